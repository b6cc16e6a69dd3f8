//! From a directive to a thread's spec: everything is resolved, verified and frozen before the first token is bought.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rye_engine::verbs::execute::{self, Directive};
use rye_engine::{Code, Engine, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::Message;
use serde_json::{Map, Value};

use crate::action::Action;
use crate::capability::Capabilities;
use crate::config::Config;
use crate::definitions::{Output, Preload};
use crate::hooks::Hooks;
use crate::limits::Limits;
use crate::models::{self, Chosen, Providers};
use crate::preflight::{self, Needs};
use crate::risk;
use crate::spec::{Cause, Own, Shared, Spec};
use crate::thread_id::ThreadId;

/// How many directives may extend each other.
const MOST_PARENTS: usize = 10;

/// What to run.
#[derive(Clone, Debug)]
pub struct Order {
    /// The directive.
    pub directive: ItemRef,
    /// Its inputs.
    pub inputs: Map<String, Value>,
    /// A model or a tier, instead of the directive's.
    pub model: Option<String>,
    /// A provider, instead of the configured one.
    pub provider: Option<String>,
    /// Limits on top of the directive's.
    pub limits: Map<String, Value>,
    /// Who starts it.
    pub parent: Option<Parent>,
    /// The thread it goes on from.
    pub continues: Option<ThreadId>,
    /// What was said there, as far as it goes along.
    pub history: Vec<Arc<Message>>,
    /// What the model is told after that.
    pub message: Option<String>,
    /// What of its parent starts it.
    pub cause: Option<Cause>,
    /// What it may not exceed besides.
    pub within: Option<(Capabilities, Limits)>,
    /// Its name, if it has one already.
    pub name: Option<ThreadId>,
}

impl Order {
    /// To run this directive with these inputs, and everything else as configured.
    #[must_use]
    pub fn new(directive: ItemRef, inputs: Map<String, Value>) -> Self {
        Self {
            directive,
            inputs,
            model: None,
            provider: None,
            limits: Map::new(),
            parent: None,
            continues: None,
            history: Vec::new(),
            message: None,
            cause: None,
            within: None,
            name: None,
        }
    }
}

/// The thread that starts another.
#[derive(Clone, Debug)]
pub struct Parent {
    /// What it is.
    pub spec: Arc<Spec>,
    /// How much it may use by now.
    pub limits: Limits,
}

/// A thread, ready to be registered.
#[derive(Debug)]
pub struct Prepared {
    /// What it is.
    pub spec: Arc<Spec>,
    /// Who answers it.
    pub chosen: Chosen,
    /// What its user should know.
    pub notices: Vec<String>,
}

/// Resolves, verifies and freezes all a thread needs.
///
/// # Errors
/// When anything is missing, refused or does not fit; nothing was begun.
pub fn prepare(engine: &Engine, environment: &BTreeMap<String, String>, order: &Order) -> Result<Prepared> {
    Kinds::default().prepare(engine, environment, order)
}

/// What threads of one directive, ordered alike, have in common: worked out once for those that start together.
#[derive(Debug)]
struct Kind {
    shared: Arc<Shared>,
    chosen: Chosen,
    limits: Limits,
    capabilities: Capabilities,
    notices: Vec<String>,
}

/// Kinds that were worked out just now. What they rest on may have changed since, so none is used for long: a thread that
/// starts a moment later is as if it had started then. The directive itself is read and verified for each thread.
#[derive(Debug, Default)]
pub struct Kinds {
    places: Mutex<HashMap<String, Arc<Place>>>,
    /// The configuration as whoever made this read it, for the first that needs it.
    config: Mutex<Option<(Instant, Config)>>,
}

/// Where a kind is kept; whoever works it out holds it, so that those who want the same wait instead of doing the same.
type Place = Mutex<Option<(Instant, Arc<Kind>)>>;

/// How long a kind is used.
const USED_FOR: Duration = Duration::from_secs(1);

/// How many are kept before those nobody works with go.
const MOST_KINDS: usize = 256;

impl Kinds {
    /// With a configuration that was read just now.
    #[must_use]
    pub fn with(config: Config) -> Self {
        Self { config: Mutex::new(Some((Instant::now(), config))), ..Self::default() }
    }

    fn config(&self, engine: &Engine) -> Result<Config> {
        let read = self.config.lock().unwrap_or_else(PoisonError::into_inner).take();
        match read {
            Some((at, config)) if at.elapsed() < USED_FOR => Ok(config),
            _ => crate::config::load(&engine.workspace),
        }
    }

    /// As [`prepare`], without working out again what was worked out just now.
    ///
    /// # Errors
    /// The same.
    pub fn prepare(
        &self,
        engine: &Engine,
        environment: &BTreeMap<String, String>,
        order: &Order,
    ) -> Result<Prepared> {
        let directive = execute::directive_of(engine, &order.directive, &order.inputs)?;
        let kind = self.kind(engine, environment, order, &directive)?;
        let text = |key: &str| directive.data.get(key).and_then(Value::as_str).unwrap_or_default();
        let prompt = match text("body").trim() {
            "" => "Execute the directive.",
            body => body,
        };
        let own = Own {
            thread_id: match &order.name {
                Some(name) => name.clone(),
                None => crate::random_thread_id()
                    .map_err(|error| Error::new(Code::Io, format!("no randomness: {error}")))?,
            },
            parent: order.parent.as_ref().map(|parent| parent.spec.own.thread_id.clone()),
            prompt: prompt.to_owned(),
            inputs: match directive.data.get("given_inputs") {
                Some(Value::Object(inputs)) => inputs.clone(),
                _ => Map::new(),
            },
            actions: list(directive.data.as_object().unwrap_or(&Map::new()), "actions"),
            limits: kind.limits,
            capabilities: kind.capabilities.clone(),
            continues: order.continues.clone(),
            history: order.history.clone(),
            message: order.message.clone(),
            cause: order.cause.clone(),
        };
        let spec = Arc::new(Spec { own, shared: Arc::clone(&kind.shared) });
        Ok(Prepared { spec, chosen: kind.chosen.clone(), notices: kind.notices.clone() })
    }

    fn kind(
        &self,
        engine: &Engine,
        environment: &BTreeMap<String, String>,
        order: &Order,
        directive: &Directive,
    ) -> Result<Arc<Kind>> {
        let parent = order.parent.as_ref().map(|parent| (&parent.spec.own.capabilities, &parent.limits));
        let key = format!(
            "{:p} {} {} {:?} {:?} {:?} {parent:?} {:?}",
            std::ptr::from_ref(engine),
            order.directive.id,
            directive.hash,
            order.model,
            order.provider,
            order.limits,
            order.within
        );
        let place = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            if places.len() > MOST_KINDS {
                places.retain(|_, place| Arc::strong_count(place) > 1);
            }
            Arc::clone(places.entry(key).or_default())
        };
        let mut kept = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, kind)) = kept.as_ref()
            && made.elapsed() < USED_FOR
        {
            return Ok(Arc::clone(kind));
        }
        let made = Instant::now();
        let kind = Arc::new(kind(engine, self.config(engine)?, environment, order, directive)?);
        *kept = Some((made, Arc::clone(&kind)));
        Ok(kind)
    }
}

fn kind(
    engine: &Engine,
    config: Config,
    environment: &BTreeMap<String, String>,
    order: &Order,
    directive: &Directive,
) -> Result<Kind> {
    let limits = limits(&config, directive, order)?;
    let family = family(engine, &order.directive, directive)?;
    let mut capabilities = capabilities(&family, order)?;
    let mut limits = limits;
    if let Some((most, bounds)) = &order.within {
        capabilities = capabilities.attenuate(most);
        limits = limits.within(bounds);
    }
    let mut notices = config.notices.clone();
    notices.extend(risks(&config, &capabilities, &family, order)?);
    let model =
        |key: &str| directive.fields.get("model").and_then(|model| model.get(key)).and_then(Value::as_str);
    let wanted = models::Wanted {
        model: order.model.as_deref(),
        provider: order.provider.as_deref(),
        directive_model: model("id"),
        directive_tier: model("tier"),
        directive_provider: model("provider"),
        is_spend_limited: limits.spend.is_some(),
    };
    let chosen = Providers::find(&engine.workspace).choose(&wanted, &config.agent, environment)?;
    let outputs = list(&directive.fields, "outputs");
    let preload = Preload {
        enabled: config.resilience.tool_preload.enabled,
        max_tokens: usize::try_from(config.resilience.tool_preload.max_tokens).unwrap_or(usize::MAX),
    };
    let declared = Output::of_directive(directive.fields.get("outputs"));
    let definitions = crate::definitions::build(engine, &capabilities, &declared, preload);
    let hooks = Hooks::merged(&config.hooks, directive.fields.get("hooks"))
        .map_err(|message| Error::new(Code::Invalid, message).of(&order.directive))?
        .without(&family.suppress);
    let skipped = definitions.skipped.iter();
    notices
        .extend(skipped.map(|tool| format!("not offered to the model: {} ({})", tool.item_id, tool.reason)));
    let knowledge: Vec<ItemRef> = family
        .system
        .iter()
        .chain(&family.before)
        .chain(&family.after)
        .filter_map(|name| Some(ItemRef::new(ItemType::Knowledge, ItemId::new(name).ok()?)))
        .collect();
    let starting: Vec<Action> = hooks
        .all()
        .iter()
        .filter(|hook| hook.event == "thread_started")
        .flat_map(|hook| hook.actions.iter().filter_map(|action| Action::from_value(action).ok()))
        .collect();
    let needs =
        Needs { capabilities: &capabilities, context: &knowledge, starting: &starting, provider: None };
    let findings = preflight::check(engine, &needs);
    preflight::judge(&findings).map_err(|error| error.of(&order.directive))?;
    notices.extend(
        findings.iter().map(|found| format!("{} ({}): {}", found.item, found.needed_by, found.message)),
    );
    let shared = Shared {
        directive: order.directive.id.to_string(),
        directive_hash: directive.hash.to_string(),
        system: joined(engine, &family.system)?,
        before: texts(engine, &family.before)?,
        after: texts(engine, &family.after)?,
        outputs,
        hooks,
        definitions,
        provider: chosen.provider_id.clone(),
        model: chosen.model.clone(),
        price: chosen.price,
        context_window: chosen.context_window,
        max_output_tokens: chosen.max_output_tokens,
        wants_stream: true,
        config,
    };
    Ok(Kind { shared: Arc::new(shared), chosen, limits, capabilities, notices })
}

/// Defaults, then the directive's, then the caller's, then no more than the parent's.
fn limits(config: &Config, directive: &Directive, order: &Order) -> Result<Limits> {
    let wrong = |error: crate::limits::LimitError| {
        Error::new(Code::InvalidArgument, error.to_string()).of(&order.directive)
    };
    let mut limits = config.resilience.default_limits;
    if let Some(Value::Object(own)) = directive.fields.get("limits") {
        limits = limits.with(own).map_err(wrong)?;
    }
    limits = limits.with(&order.limits).map_err(wrong)?;
    Ok(match &order.parent {
        Some(parent) => limits.capped_by(&parent.limits),
        None => limits,
    })
}

/// What a directive and those it extends say together.
struct Family {
    /// Of the nearest that says anything.
    permissions: Option<Value>,
    acknowledged: Vec<Value>,
    system: Vec<String>,
    before: Vec<String>,
    after: Vec<String>,
    suppress: Vec<String>,
}

/// Follows `extends` to its root; context comes root first, permissions from the nearest that has any.
fn family(engine: &Engine, item: &ItemRef, directive: &Directive) -> Result<Family> {
    let mut line: Vec<Map<String, Value>> = vec![directive.fields.clone()];
    let mut seen = vec![item.id.to_string()];
    while let Some(parent) = line.last().and_then(|fields| fields.get("extends")).and_then(Value::as_str) {
        let parent = parent.to_owned();
        if seen.contains(&parent) || seen.len() > MOST_PARENTS {
            let path = format!("{} → {parent}", seen.join(" → "));
            return Err(
                Error::new(Code::Invalid, format!("`extends` goes in circles or too far: {path}")).of(item)
            );
        }
        let id =
            ItemId::new(&parent).map_err(|error| Error::new(Code::InvalidId, error.to_string()).of(item))?;
        let reference = ItemRef::new(ItemType::Directive, id);
        // A parent's inputs are not asked for: only its context and permissions are taken.
        line.push(execute::directive_fields(engine, &reference)?);
        seen.push(parent);
    }
    let nearest = line.iter().find(|fields| {
        fields.get("permissions").and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    });
    let permissions = nearest.and_then(|fields| fields.get("permissions").cloned());
    let acknowledged = nearest.map(|fields| list(fields, "acknowledged_risks")).unwrap_or_default();
    let mut family = Family {
        permissions,
        acknowledged,
        system: Vec::new(),
        before: Vec::new(),
        after: Vec::new(),
        suppress: Vec::new(),
    };
    for fields in line.iter().rev() {
        let Some(Value::Object(context)) = fields.get("context") else { continue };
        for (part, place) in [
            ("system", &mut family.system),
            ("before", &mut family.before),
            ("after", &mut family.after),
            ("suppress", &mut family.suppress),
        ] {
            for name in list(context, part).iter().filter_map(Value::as_str) {
                if !place.iter().any(|known| known == name) {
                    place.push(name.to_owned());
                }
            }
        }
    }
    let suppress = family.suppress.clone();
    for place in [&mut family.system, &mut family.before, &mut family.after] {
        place.retain(|name| !suppress.contains(name));
    }
    Ok(family)
}

/// What the directive asks for, narrowed by its parent; a child that asks for nothing has what its parent has.
fn capabilities(family: &Family, order: &Order) -> Result<Capabilities> {
    let own = Capabilities::of_directive(family.permissions.as_ref())
        .map_err(|error| Error::new(Code::Invalid, error.to_string()).of(&order.directive))?;
    Ok(match &order.parent {
        Some(parent) if own.is_empty() => parent.spec.own.capabilities.clone(),
        Some(parent) => own.attenuate(&parent.spec.own.capabilities),
        None => own,
    })
}

/// What is risky in these grants, if it was acknowledged.
fn risks(
    config: &Config,
    capabilities: &Capabilities,
    family: &Family,
    order: &Order,
) -> Result<Vec<String>> {
    let refused = |message: String| Error::new(Code::RiskRefused, message).of(&order.directive);
    let acknowledged = risk::acknowledged(Some(&Value::Array(family.acknowledged.clone())))
        .map_err(|error| refused(error.to_string()))?;
    let allowed =
        config.risk.gate(capabilities, &acknowledged).map_err(|error| refused(error.to_string()))?;
    let told = allowed
        .iter()
        .map(|grant| format!("{} is {}: {}", grant.grant, grant.risk.as_str(), grant.description));
    Ok(told.collect())
}

/// The texts of knowledge entries; one that is not vouched for ends the attempt.
fn texts(engine: &Engine, names: &[String]) -> Result<Vec<String>> {
    names
        .iter()
        .map(|name| {
            let id = ItemId::new(name).map_err(|error| Error::new(Code::InvalidId, error.to_string()))?;
            execute::knowledge_text(engine, &ItemRef::new(ItemType::Knowledge, id))
        })
        .collect()
}

fn joined(engine: &Engine, names: &[String]) -> Result<Option<String>> {
    let texts = texts(engine, names)?;
    Ok((!texts.is_empty()).then(|| texts.join("\n\n")))
}

fn list(fields: &Map<String, Value>, key: &str) -> Vec<Value> {
    fields.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
}
