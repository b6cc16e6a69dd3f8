//! The one way from an allowed action to a verb of the engine.
//!
//! Nothing else in this crate calls a verb on behalf of a model, a hook or a directive. An action that names no `source`
//! looks everywhere, project before user before system: 003's default, the project, comes first, and what it lacks is
//! found below. What agents may sign or copy is the engine's policy, the same as over MCP.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lillux::{Cancel, Digest};
use rye_engine::primaries::{self, Fetch, Load, Search, Sign, SignTarget, Signing};
use rye_engine::verbs::execute::{self, Caller, Demand, Grants, Mode, Request};
use rye_engine::verbs::sign::is_glob;
use rye_engine::{Code, Engine, Error, Result};
use rye_item::{ItemRef, ItemType};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::action::{Action, Primary};
use crate::capability::{Asker, Capabilities, INTERNAL, Permitted, permit, required};
use crate::facts::{Rules, ThreadFacts};

/// How many items are remembered not to answer at once.
const MOST_SLOW: usize = 1024;

/// How many rows a search gives if it does not say (003).
const ROWS: u64 = 10;

/// Does what was allowed. Blocks until it is done.
pub trait Dispatch: Send + Sync {
    /// The result: `{"status": "success", "type", "item_id", "data", …}`, or `{"status": "error", "error", "code", …}`.
    fn dispatch(&self, permitted: &Permitted, facts: &Arc<ThreadFacts>, cancel: &Cancel) -> Value;

    /// The same for what takes no longer than asking somebody else to do it; `None` for the rest, of which nothing was
    /// done.
    fn dispatch_at_once(
        &self,
        _permitted: &Permitted,
        _facts: &Arc<ThreadFacts>,
        _cancel: &Cancel,
    ) -> Option<Value> {
        None
    }
}

/// Gives the engine as it is now: whoever keeps it opens it anew when something has changed.
pub type Opening = dyn Fn() -> Result<Arc<Engine>> + Send + Sync;

/// Dispatches to the engine.
pub struct EngineDispatch {
    engine: Box<Opening>,
    /// The thread's own tools that were found to be the binary's own, and when.
    known: Mutex<HashMap<String, Instant>>,
    /// Items that do not answer at once: one look is enough.
    slow: Mutex<HashSet<String>>,
}

impl std::fmt::Debug for EngineDispatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EngineDispatch")
    }
}

impl EngineDispatch {
    /// To this engine, always.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        Self::with(move || Ok(Arc::clone(&engine)))
    }

    /// To the engine that `engine` gives at each call.
    pub fn with(engine: impl Fn() -> Result<Arc<Engine>> + Send + Sync + 'static) -> Self {
        Self { engine: Box::new(engine), known: Mutex::default(), slow: Mutex::default() }
    }
}

impl Dispatch for EngineDispatch {
    fn dispatch(&self, permitted: &Permitted, facts: &Arc<ThreadFacts>, cancel: &Cancel) -> Value {
        if let Some(answer) = self.own(permitted, facts) {
            return answer;
        }
        let result = (self.engine)().and_then(|engine| {
            let action = permitted.action();
            match action.primary {
                Primary::Execute => execute(&engine, permitted, facts, cancel),
                Primary::Search => primaries::search(&engine, &search(action)?),
                Primary::Load => primaries::load(&engine, &load(action)?),
                Primary::Fetch => primaries::fetch(&engine, fetch(action)?),
                Primary::Sign => primaries::sign(&engine, &sign(action)?, may_sign(&engine)),
            }
        });
        let answer = result.unwrap_or_else(|error| primaries::for_agent(error).to_value(None));
        self.remember(permitted, &answer);
        answer
    }

    fn dispatch_at_once(
        &self,
        permitted: &Permitted,
        facts: &Arc<ThreadFacts>,
        cancel: &Cancel,
    ) -> Option<Value> {
        let id = permitted.action().item_id.as_deref()?;
        let slow = || self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if permitted.action().primary != Primary::Execute || slow().contains(id) {
            return None;
        }
        let attempt = || {
            let engine = (self.engine)().ok()?;
            let request = request(permitted, facts, cancel).ok()?;
            let answered = execute::execute_at_once(&engine, &request)?;
            Some(answered.map_or_else(|error| error.to_value(None), execute::Answer::into_value))
        };
        // What goes wrong here goes wrong again, where it is expected.
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).ok().flatten();
        if answer.is_none() {
            let mut slow = slow();
            if slow.len() >= MOST_SLOW {
                slow.clear();
            }
            slow.insert(id.to_owned());
        }
        answer
    }
}

/// How long a verdict on one of the thread's own tools is used again.
const KNOWN_FOR: Duration = Duration::from_secs(1);

impl EngineDispatch {
    /// One of the thread's own tools that was resolved, verified and run a moment ago, and is the binary's own: hooks call
    /// them several times a turn.
    fn own(&self, permitted: &Permitted, facts: &Arc<ThreadFacts>) -> Option<Value> {
        if !permitted.is_internal() || permitted.action().primary != Primary::Execute {
            return None;
        }
        let id = permitted.action().item_id.as_deref()?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id).filter(|at| at.elapsed() < KNOWN_FOR)?;
        drop(known);
        let data = crate::internal::answer(
            id.strip_prefix(INTERNAL)?.strip_prefix('/')?,
            &permitted.action().params,
            facts,
        )?;
        Some(json!({"status": "success", "type": "tool", "item_id": id, "data": data}))
    }

    fn remember(&self, permitted: &Permitted, answer: &Value) {
        let id = permitted.action().item_id.as_deref().filter(|_| permitted.is_internal());
        let is_own =
            answer["status"] == json!("success") && answer["chain"][0]["space"] == json!("system:ryeos");
        if let Some(id) = id.filter(|_| is_own) {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(id.to_owned(), Instant::now());
        }
    }
}

fn execute(
    engine: &Engine,
    permitted: &Permitted,
    facts: &Arc<ThreadFacts>,
    cancel: &Cancel,
) -> Result<Value> {
    Ok(execute::execute(engine, &request(permitted, facts, cancel)?)?.into_value())
}

fn request(permitted: &Permitted, facts: &Arc<ThreadFacts>, cancel: &Cancel) -> Result<Request> {
    let action = permitted.action();
    let item = action.item().ok_or_else(|| Error::new(Code::InvalidArgument, "item_id names no item"))?;
    if action.text_option("thread") == Some("fork") {
        return Err(Error::new(Code::InvalidArgument, "a thread is not started here").of(&item));
    }
    let thread = Arc::clone(facts) as Arc<dyn Any + Send + Sync>;
    Ok(Request {
        item,
        parameters: action.params.clone(),
        words: words(action),
        mode: if is_true(action.option("dry_run")) { Mode::DryRun } else { Mode::Run },
        wants_trace: false,
        // The thread's own tools are not pinned anew for each project.
        demand: if permitted.is_internal() { Demand::Frozen } else { Demand::Hold },
        cancel: cancel.clone(),
        progress: None,
        waits: facts.waits.clone(),
        caller: Caller::Agent,
        thread: permitted.is_internal().then_some(thread),
        door: facts.door.clone().filter(|_| !permitted.is_internal()),
        grants: Some(Arc::new(CallerGrants {
            capabilities: permitted.capabilities().clone(),
            asker: permitted.asker(),
            rules: Arc::clone(&facts.rules),
        })),
    })
}

/// The rights of who asked, for a tool that executes other items in their name.
struct CallerGrants {
    capabilities: Capabilities,
    asker: Asker,
    rules: Arc<dyn Rules>,
}

impl std::fmt::Debug for CallerGrants {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CallerGrants").field("asker", &self.asker).finish_non_exhaustive()
    }
}

impl Grants for CallerGrants {
    fn check_execute(
        &self,
        item: &ItemRef,
        parameters: &Map<String, Value>,
    ) -> std::result::Result<(), String> {
        let action = Action::execute(item, parameters.clone());
        permit(&self.capabilities, &action, self.asker).map_err(|denied| denied.message)?;
        match self.rules.approval_reason(&required(&action)) {
            None => Ok(()),
            Some(reason) => Err(format!("Permission denied: {reason}; call the tool itself to be asked")),
        }
    }
}

/// Parameters as words, typed by what the item declares: from a command line in a tool.
fn words(action: &Action) -> Vec<(String, String)> {
    let words = action.options.get("words").and_then(Value::as_object).into_iter().flatten();
    words.filter_map(|(name, word)| Some((name.clone(), word.as_str()?.to_owned()))).collect()
}

fn search(action: &Action) -> Result<Search> {
    let mut given = given(action, &["query", "scope", "source", "limit"]);
    given.entry("limit").or_insert_with(|| json!(ROWS));
    read(given)
}

fn load(action: &Action) -> Result<Load> {
    read(given(action, &["source", "destination"]))
}

fn fetch(action: &Action) -> Result<Fetch> {
    let mut given = given(action, &["query", "scope", "source", "destination", "limit"]);
    if given.contains_key("query") {
        given.entry("limit").or_insert_with(|| json!(ROWS));
    }
    read(given)
}

fn sign(action: &Action) -> Result<Sign> {
    read(given(action, &["source", "destination"]))
}

/// The arguments of a verb: the item, and the options it knows.
fn given(action: &Action, options: &[&str]) -> Map<String, Value> {
    let mut given = Map::new();
    if let Some(item_type) = action.item_type {
        given.insert("item_type".to_owned(), json!(item_type));
    }
    if let Some(id) = &action.item_id {
        given.insert("item_id".to_owned(), json!(id));
    }
    for name in options {
        let Some(value) = action.option(name).filter(|value| **value != "") else {
            continue;
        };
        // An attribute of a directive's tag is text.
        let number = value.as_str().filter(|_| *name == "limit").and_then(|text| text.parse::<u16>().ok());
        given.insert((*name).to_owned(), number.map_or_else(|| value.clone(), Value::from));
    }
    given
}

fn read<T: DeserializeOwned>(given: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(given))
        .map_err(|error| Error::new(Code::InvalidArgument, rye_item::text::one_line(&error.to_string())))
}

fn is_true(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true))) || value.and_then(Value::as_str) == Some("true")
}

/// The engine's policy for agents. In a thread nobody can be asked.
fn may_sign(engine: &Engine) -> impl Fn(&SignTarget<'_>) -> Result<Option<Digest>> + '_ {
    move |target| {
        let (item_type, shown) = (target.item_type, rye_item::text::one_line(target.id));
        if is_glob(target.id) && item_type == ItemType::Tool && has_own_internals(engine) {
            let message =
                format!("a pattern could sign tools of hooks, and this project has some: {INTERNAL}");
            return Err(Error::new(Code::SigningDenied, message)
                .hint("name the items one by one, or sign them yourself"));
        }
        match primaries::signing(engine, target)? {
            Signing::Allowed => Ok(None),
            Signing::Ask => {
                let message = format!("signing {item_type} `{shown}` needs the user's consent");
                Err(Error::new(Code::ConsentNeeded, message)
                    .hint(format!("a thread cannot ask for it; the user may type: {}", target.command())))
            }
        }
    }
}

/// Whether the project or the user has items where the tools of hooks live: they would come before the system's.
fn has_own_internals(engine: &Engine) -> bool {
    let spaces = &engine.workspace.spaces;
    [rye_item::Space::Project, rye_item::Space::User]
        .iter()
        .filter_map(|space| spaces.folder(space))
        .any(|ai| ai.join(ItemType::Tool.folder()).join(INTERNAL).exists())
}

#[cfg(test)]
mod tests;
