//! The one way from an allowed action to a verb of the engine.
//!
//! Nothing else in this crate calls a verb on behalf of a model, a hook or a directive. An action that names no `source`
//! looks everywhere, project before user before system: 003's default, the project, comes first, and what it lacks is
//! found below. What agents may sign or copy is the engine's policy, the same as over MCP.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use lillux::{CancelToken, Digest};
use rye_engine::agent_actions::{
    self, AgentFetch, AgentLoad, AgentSearch, AgentSign, SignTarget, SigningPolicy,
};
use rye_engine::verbs::execute::{self, ExecuteRequest, Grants, LockMode};
use rye_engine::verbs::sign::is_glob;
use rye_engine::{Code, Engine, Error, Result};
use rye_exec::ThreadFunctions;
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_thread::item_names::judged_capabilities;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::action::{Action, PrimaryAction};
use crate::capability::{
    CONTROL_TOOL, Capabilities, HOOK_TOOLS_PREFIX, HookOrigin, PermittedAction, Principal, permit,
};
use crate::cost::Cost;
use crate::envelope::ResultEnvelope;
use crate::tool_context::{FrozenConfig, ThreadContext};

/// How many items are remembered not to answer at once.
const MAX_SLOW_ITEMS: usize = 1024;

/// How many rows a search gives if it does not say (003).
const DEFAULT_SEARCH_LIMIT: u64 = 10;

/// Does what was allowed. Blocks until it is done.
pub trait Dispatcher: Send + Sync {
    /// The result: `{"status": "success", "type", "item_id", "data", …}`, or `{"status": "error", "error", "code", …}`.
    fn dispatch(
        &self,
        permitted: &PermittedAction,
        context: &Arc<ThreadContext>,
        cancel: &CancelToken,
    ) -> Value;

    /// What a tool declares of its parameters, if it is there.
    fn parameter_schema(&self, _item: &ItemRef) -> Option<Value> {
        None
    }

    /// The same for what takes no longer than handing it to a worker; `None` for the rest, of which nothing was
    /// done.
    fn try_dispatch_inline(
        &self,
        _permitted: &PermittedAction,
        _facts: &Arc<ThreadContext>,
        _cancel: &CancelToken,
    ) -> Option<Value> {
        None
    }
}

/// Gives the engine as it is now: its owner opens it again when something has changed.
pub type EngineProvider = dyn Fn() -> Result<Arc<Engine>> + Send + Sync;

/// Dispatches to the engine.
pub struct EngineDispatcher {
    engine: Box<EngineProvider>,
    /// Items that do not answer at once: one look is enough.
    slow_items: Mutex<HashSet<String>>,
}

impl std::fmt::Debug for EngineDispatcher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EngineDispatch")
    }
}

impl EngineDispatcher {
    /// To this engine, always.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        Self::with_provider(move || Ok(Arc::clone(&engine)))
    }

    /// To the engine that `engine` gives at each call.
    pub fn with_provider(engine: impl Fn() -> Result<Arc<Engine>> + Send + Sync + 'static) -> Self {
        Self { engine: Box::new(engine), slow_items: Mutex::default() }
    }
}

impl Dispatcher for EngineDispatcher {
    fn dispatch(
        &self,
        permitted: &PermittedAction,
        context: &Arc<ThreadContext>,
        cancel: &CancelToken,
    ) -> Value {
        let result = (self.engine)().and_then(|engine| {
            let action = permitted.action();
            match action.primary {
                PrimaryAction::Execute => execute(&engine, permitted, context, cancel),
                PrimaryAction::Search => agent_actions::search(&engine, &search_arguments(action)?),
                PrimaryAction::Load => agent_actions::load(&engine, &load_arguments(&engine, permitted)?),
                PrimaryAction::Fetch => agent_actions::fetch(&engine, fetch_arguments(&engine, permitted)?),
                PrimaryAction::Sign => {
                    agent_actions::sign(&engine, &sign_arguments(action)?, sign_check(&engine))
                }
            }
        });
        let response = result.unwrap_or_else(|error| agent_actions::with_agent_hints(error).to_value(None));
        if permitted.is_hook_tool() { hook_tool_response(permitted, response) } else { response }
    }

    fn parameter_schema(&self, item: &ItemRef) -> Option<Value> {
        let located = (self.engine)().ok()?.locate(item, None).ok()?;
        let fields = located.fields();
        fields.get("config_schema").or_else(|| fields.get("input_schema")).cloned()
    }

    fn try_dispatch_inline(
        &self,
        permitted: &PermittedAction,
        context: &Arc<ThreadContext>,
        cancel: &CancelToken,
    ) -> Option<Value> {
        let id = permitted.action().item_id.as_deref()?;
        let slow = || self.slow_items.lock().unwrap_or_else(PoisonError::into_inner);
        if permitted.action().primary != PrimaryAction::Execute || slow().contains(id) {
            return None;
        }
        let attempt = || {
            let engine = (self.engine)().ok()?;
            let request = request(&engine, permitted, context, cancel).ok()?;
            let result = execute::execute_without_access(&engine, &request)?;
            Some(result.map_or_else(|error| error.to_value(None), execute::ExecuteResponse::into_value))
        };
        // What goes wrong here goes wrong again, where it is expected.
        let response = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).ok().flatten();
        if response.is_none() {
            let mut slow = slow();
            if slow.len() >= MAX_SLOW_ITEMS {
                slow.clear();
            }
            slow.insert(id.to_owned());
        }
        response
    }
}

fn execute(
    engine: &Engine,
    permitted: &PermittedAction,
    context: &Arc<ThreadContext>,
    cancel: &CancelToken,
) -> Result<Value> {
    Ok(execute::execute(engine, &request(engine, permitted, context, cancel)?)?.into_value())
}

/// The space in which to look for an item, where it would be found in another one that may not stand in for it. A hook of the
/// user's or the system's means an item of theirs: a project's item of the same id does not replace it. The tools of hooks are
/// the system's alone.
fn reserved_source(engine: &Engine, permitted: &PermittedAction) -> Option<SpaceTier> {
    let is_own =
        matches!(permitted.principal(), Principal::Hook { origin: HookOrigin::User | HookOrigin::System });
    let is_hook_tool = permitted.is_hook_tool();
    if !is_own && !is_hook_tool {
        return None;
    }
    let action = permitted.action();
    let id = ItemId::new(action.item_id.as_deref()?).ok()?;
    let types = action.item_type.map_or(ItemType::ALL.to_vec(), |item_type| vec![item_type]);
    types.into_iter().find_map(|item_type| {
        let places = engine.workspace.spaces.candidate_paths(&ItemRef::new(item_type, id.clone()));
        let mut tiers = places.iter().filter(|place| place.is_found).map(|place| place.space.tier());
        let winner = tiers.next()?;
        match is_hook_tool {
            true => (winner != SpaceTier::System && tiers.any(|tier| tier == SpaceTier::System))
                .then_some(SpaceTier::System),
            false => tiers.next().filter(|_| winner == SpaceTier::Project),
        }
    })
}

fn request(
    engine: &Engine,
    permitted: &PermittedAction,
    context: &Arc<ThreadContext>,
    cancel: &CancelToken,
) -> Result<ExecuteRequest> {
    let action = permitted.action();
    let item = action.item().ok_or_else(|| Error::new(Code::InvalidArgument, "item_id names no item"))?;
    if action.text_option("thread") == Some("fork") {
        return Err(Error::new(Code::InvalidArgument, "a thread is not started here").for_item(&item));
    }
    let is_hook_tool = permitted.is_hook_tool();
    let thread = Arc::clone(context) as Arc<dyn ThreadFunctions>;
    let mut parameters = action.params.clone();
    let words = if has_xml_texts(permitted) { take_texts(&mut parameters) } else { Vec::new() };
    let grants = Arc::new(CallerGrants {
        capabilities: permitted.capabilities().clone(),
        principal: permitted.principal(),
        config: Arc::clone(&context.config),
        cost: context.cost,
    });
    Ok(ExecuteRequest::new(item, cancel.clone())
        .with_source(reserved_source(engine, permitted))
        .with_parameters(parameters)
        .with_words(words)
        .with_dry_run(is_true(action.option("dry_run")))
        // The thread's own tools are not pinned for each project.
        .with_lock_mode(if is_hook_tool { LockMode::Frozen } else { LockMode::Enforce })
        .with_blocking_hook(context.blocking_hook.clone())
        .with_thread(is_hook_tool.then_some(thread))
        .with_callbacks(context.callback.clone().filter(|_| !is_hook_tool))
        .with_whole_answer(permitted.decides_call())
        .with_grants(Some(grants)))
}

/// Whether the parameters come from the XML of a directive, where every value is text.
fn has_xml_texts(permitted: &PermittedAction) -> bool {
    permitted.principal() == Principal::Hook { origin: HookOrigin::Directive }
        && permitted.action().params.values().any(Value::is_string)
}

/// Takes the parameters that are texts, to be typed by what the item declares.
fn take_texts(parameters: &mut Map<String, Value>) -> Vec<(String, String)> {
    let texts: Vec<(String, String)> = parameters
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect();
    parameters.retain(|_, value| !value.is_string());
    texts
}

/// What a thread records of one of its own tools: how it went and its result, without how it was run. A refusal is a
/// failed call, so that it is reported; a failed control result is what the hook asked for, and stays an answer.
fn hook_tool_response(permitted: &PermittedAction, mut response: Value) -> Value {
    let envelope = ResultEnvelope::parse(&response);
    if !envelope.is_success() {
        return response;
    }
    let is_control = permitted.action().item_id.as_deref() == Some(CONTROL_TOOL);
    if envelope.reports_failure() && !is_control {
        let error = response["data"]["error"].as_str().unwrap_or("it was refused").to_owned();
        return json!({"status": "error", "error": error, "data": response["data"]});
    }
    if let Some(fields) = response.as_object_mut() {
        fields.retain(|key, _| ["status", "type", "item_id", "data"].contains(&key.as_str()));
    }
    response
}

/// The rights of who asked, for a tool that executes other items in their name.
struct CallerGrants {
    capabilities: Capabilities,
    principal: Principal,
    config: Arc<dyn FrozenConfig>,
    cost: Cost,
}

impl std::fmt::Debug for CallerGrants {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CallerGrants").field("asker", &self.principal).finish_non_exhaustive()
    }
}

impl Grants for CallerGrants {
    fn check_execute(
        &self,
        item: &ItemRef,
        parameters: &Map<String, Value>,
    ) -> std::result::Result<(), String> {
        let action = Action::execute(item, parameters.clone());
        permit(&self.capabilities, &action, self.principal).map_err(|denied| denied.message)?;
        if let Some(hook) = self.config.watching_hook(&action, &self.cost) {
            return Err(format!(
                "Permission denied: the hook `{hook}` watches such calls; call the tool itself to have it run"
            ));
        }
        match self.config.approval_reason(&judged_capabilities(&action)) {
            None => Ok(()),
            Some(reason) => Err(format!("Permission denied: {reason}; call the tool itself to be asked")),
        }
    }
}

fn search_arguments(action: &Action) -> Result<AgentSearch> {
    let mut arguments = verb_arguments(action, &["query", "scope", "source", "limit"]);
    arguments.entry("limit").or_insert_with(|| json!(DEFAULT_SEARCH_LIMIT));
    parse_arguments(arguments)
}

fn load_arguments(engine: &Engine, permitted: &PermittedAction) -> Result<AgentLoad> {
    let mut arguments = verb_arguments(permitted.action(), &["source", "destination"]);
    add_source(engine, permitted, &mut arguments);
    parse_arguments(arguments)
}

fn fetch_arguments(engine: &Engine, permitted: &PermittedAction) -> Result<AgentFetch> {
    let mut arguments =
        verb_arguments(permitted.action(), &["query", "scope", "source", "destination", "limit"]);
    add_source(engine, permitted, &mut arguments);
    if arguments.contains_key("query") {
        arguments.entry("limit").or_insert_with(|| json!(DEFAULT_SEARCH_LIMIT));
    }
    parse_arguments(arguments)
}

fn add_source(engine: &Engine, permitted: &PermittedAction, arguments: &mut Map<String, Value>) {
    if !arguments.contains_key("source")
        && let Some(tier) = reserved_source(engine, permitted)
    {
        arguments.insert("source".to_owned(), json!(tier.as_str()));
    }
}

fn sign_arguments(action: &Action) -> Result<AgentSign> {
    parse_arguments(verb_arguments(action, &["source", "destination"]))
}

/// The arguments of a verb: the item, and the options it knows.
fn verb_arguments(action: &Action, options: &[&str]) -> Map<String, Value> {
    let mut arguments = Map::new();
    if let Some(item_type) = action.item_type {
        arguments.insert("item_type".to_owned(), json!(item_type));
    }
    if let Some(id) = &action.item_id {
        arguments.insert("item_id".to_owned(), json!(id));
    }
    for name in options {
        let Some(value) = action.option(name).filter(|value| **value != "") else {
            continue;
        };
        // An attribute of a directive's tag is text.
        let number = value.as_str().filter(|_| *name == "limit").and_then(|text| text.parse::<u16>().ok());
        arguments.insert((*name).to_owned(), number.map_or_else(|| value.clone(), Value::from));
    }
    arguments
}

fn parse_arguments<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Error::new(Code::InvalidArgument, rye_item::text::one_line(&error.to_string())))
}

fn is_true(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true))) || value.and_then(Value::as_str) == Some("true")
}

/// The engine's policy for agents. In a thread there is no person to ask.
fn sign_check(engine: &Engine) -> impl Fn(&SignTarget<'_>) -> Result<Option<Digest>> + '_ {
    move |target| {
        let (item_type, id) = (target.item_type, rye_item::text::one_line(target.id));
        if is_glob(target.id) && item_type == ItemType::Tool && has_hook_tool_overrides(engine) {
            let message = format!(
                "a pattern could sign tools of hooks, and this project has some: {HOOK_TOOLS_PREFIX}"
            );
            return Err(Error::new(Code::SigningDenied, message)
                .hint("name the items one by one, or sign them yourself"));
        }
        match agent_actions::signing_policy(engine, target)? {
            SigningPolicy::Allowed => Ok(None),
            SigningPolicy::NeedsApproval => {
                let message = format!("signing {item_type} `{id}` needs the user's consent");
                Err(Error::new(Code::ConsentNeeded, message)
                    .hint(format!("a thread cannot ask for it; the user may type: {}", target.command())))
            }
        }
    }
}

/// Whether the project or the user has items where the tools of hooks live: they would come before the system's.
fn has_hook_tool_overrides(engine: &Engine) -> bool {
    let spaces = &engine.workspace.spaces;
    [rye_item::Space::Project, rye_item::Space::User]
        .iter()
        .filter_map(|space| spaces.folder(space))
        .any(|ai| ai.join(ItemType::Tool.folder()).join(HOOK_TOOLS_PREFIX).exists())
}

#[cfg(test)]
mod tests;
