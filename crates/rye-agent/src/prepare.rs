//! From a directive to a thread's spec: everything is resolved, verified and frozen before the first token is bought.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use rye_engine::verbs::execute::{self, LoadedDirective};
use rye_engine::verbs::notify::NotificationTargets;
use rye_engine::{Code, Engine, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::{ChatMessage, ModelSettings};
use rye_space::file_stamp::{MonitoredSet, record_reads};
use serde_json::{Map, Value};

use crate::action::Action;
use crate::capability::Capabilities;
use crate::config::{ConfigCache, ThreadConfig};
use crate::definitions::{OutputField, PreloadOptions};
use crate::file_inputs::{self, FileAccess, LoadedFile};
use crate::hooks::{Hook, Hooks};
use crate::limits::{LIMIT_EXAMPLES, ThreadLimits};
use crate::models::{self, ModelChoice, Providers};
use crate::preflight::{self, ThreadNeeds};
use crate::redact::RedactionTally;
use crate::risk;
use crate::rolling::RollingSettings;
use crate::spec::{
    ForkSource, MACHINE_REVISION, RemovedSecrets, SpawnReason, ThreadInstance, ThreadSpec, ThreadTemplate,
};
use crate::thread_id::ThreadId;

/// How many directives may extend each other.
const MAX_EXTENDS_DEPTH: usize = 10;

/// What to run.
#[derive(Clone, Debug)]
pub struct ThreadRequest {
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
    pub parent: Option<ParentThread>,
    /// The thread it continues from.
    pub continues: Option<ThreadId>,
    /// What that one is. Its hooks around calls hold here too.
    pub continued_spec: Option<Arc<ThreadSpec>>,
    /// The turn of another thread that it begins from.
    pub fork: Option<ForkOrigin>,
    /// What was said there, as far as it goes along.
    pub history: Vec<Arc<ChatMessage>>,
    /// What the model is given after that.
    pub message: Option<String>,
    /// What of its parent starts it.
    pub spawn_reason: Option<SpawnReason>,
    /// Where the files among its inputs come from.
    pub files: FileAccess,
    /// What it may not exceed besides.
    pub bounds: Option<(Capabilities, ThreadLimits)>,
    /// Its name, if it has one already.
    pub thread_id: Option<ThreadId>,
    /// Whether it only writes a summary: it has no tools, and fails where another thread would be suspended.
    pub is_summary: bool,
    /// The secrets that were removed from it.
    pub redacted: RedactionTally,
}

impl ThreadRequest {
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
            continued_spec: None,
            fork: None,
            history: Vec::new(),
            message: None,
            spawn_reason: None,
            files: FileAccess::Project,
            bounds: None,
            thread_id: None,
            is_summary: false,
            redacted: RedactionTally::default(),
        }
    }

    /// Names the thread before there is one, so that it can be recorded and looked for after a crash.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn assign_thread_id(&mut self) -> Result<ThreadId> {
        let id = new_thread_id()?;
        self.thread_id = Some(id.clone());
        Ok(id)
    }
}

fn new_thread_id() -> Result<ThreadId> {
    crate::random_thread_id().map_err(|error| Error::new(Code::Io, format!("no randomness: {error}")))
}

/// The thread that another is forked from.
#[derive(Clone, Debug)]
pub struct ForkOrigin {
    /// Where.
    pub source: ForkSource,
    /// What it is. Its hooks around calls hold for the fork too.
    pub spec: Arc<ThreadSpec>,
    /// How much the fork may use.
    pub limits: ThreadLimits,
}

/// The thread that starts another.
#[derive(Clone, Debug)]
pub struct ParentThread {
    /// What it is.
    pub spec: Arc<ThreadSpec>,
    /// How much it may use now.
    pub limits: ThreadLimits,
}

/// A thread, ready to be registered.
#[derive(Debug)]
pub struct PreparedThread {
    /// What it is.
    pub spec: Arc<ThreadSpec>,
    /// Who answers it.
    pub model_choice: ModelChoice,
    /// What its user should know.
    pub notices: Vec<String>,
    /// The files that were read for it; the store must have them before it starts.
    pub files: Vec<LoadedFile>,
    /// The project files that its directive wants where it runs on another machine.
    pub checkout: Option<String>,
}

/// Resolves, verifies and freezes all a thread needs.
///
/// # Errors
/// When anything is missing, refused or does not fit; nothing was begun.
pub fn prepare(
    engine: &Engine,
    environment: &BTreeMap<String, String>,
    request: &ThreadRequest,
) -> Result<PreparedThread> {
    PreparedCache::default().prepare(engine, environment, request)
}

/// What threads of one directive, ordered alike, have in common.
#[derive(Debug)]
struct PreparedTemplate {
    shared: Arc<ThreadTemplate>,
    model_choice: ModelChoice,
    limits: ThreadLimits,
    capabilities: Capabilities,
    notices: Vec<String>,
}

/// Templates that were worked out before, each used as long as every file it was read from is unchanged. The directive
/// itself is read and verified for each thread.
#[derive(Debug, Default)]
pub struct PreparedCache {
    slots: Mutex<HashMap<String, Arc<CacheSlot>>>,
    config: ConfigCache,
}

/// Where a template is kept. It is locked while one is worked out: others that want the same wait for it.
type CacheSlot = Mutex<Option<CachedTemplate>>;

/// A template, and what it was read from besides what its workspace was opened from.
#[derive(Debug)]
struct CachedTemplate {
    files: MonitoredSet,
    template: Arc<PreparedTemplate>,
}

/// How many are kept before unused ones are removed.
const MAX_TEMPLATES: usize = 256;

impl PreparedCache {
    /// The configuration of threads of this workspace.
    ///
    /// # Errors
    /// As [`crate::config::load`].
    pub fn config(&self, engine: &Engine) -> Result<Arc<ThreadConfig>> {
        self.config.load(&engine.workspace)
    }

    /// As [`prepare`], without working out again what has not changed.
    ///
    /// # Errors
    /// The same.
    pub fn prepare(
        &self,
        engine: &Engine,
        environment: &BTreeMap<String, String>,
        request: &ThreadRequest,
    ) -> Result<PreparedThread> {
        let directive = execute::load_directive(engine, &request.directive, &request.inputs)?;
        let template = self.template(engine, environment, request, &directive)?;
        let files = load_files(engine, request, &directive, &template.model_choice)?;
        let mut redacted = request.redacted.clone();
        files.iter().for_each(|file| redacted.merge(file.redacted.clone()));
        let text = |key: &str| directive.data.get(key).and_then(Value::as_str).unwrap_or_default();
        let prompt = match text("body").trim() {
            "" => "Execute the directive.",
            body => body,
        };
        let own = ThreadInstance {
            thread_id: match &request.thread_id {
                Some(name) => name.clone(),
                None => new_thread_id()?,
            },
            parent: request.parent.as_ref().map(|parent| parent.spec.instance.thread_id.clone()),
            prompt: prompt.to_owned(),
            inputs: match directive.data.get("given_inputs") {
                Some(Value::Object(inputs)) => inputs.clone(),
                _ => Map::new(),
            },
            actions: list_field(directive.data.as_object().unwrap_or(&Map::new()), "actions"),
            limits: template.limits,
            capabilities: template.capabilities.clone(),
            continuation_of: request.continues.clone(),
            forked_from: request.fork.as_ref().map(|fork| fork.source.clone()),
            files: match &request.files {
                FileAccess::Recorded(parts) => parts.clone(),
                FileAccess::User(_) | FileAccess::Project => {
                    files.iter().map(|file| file.part.clone()).collect()
                }
            },
            history: file_inputs::check_history(&request.history, &template.model_choice)?,
            message: request.message.clone(),
            spawn_reason: request.spawn_reason.clone(),
            depth: request.parent.as_ref().map_or(0, |parent| parent.spec.instance.depth.saturating_add(1)),
            cannot_suspend: request.is_summary,
            removed_secrets: (redacted.count > 0).then(|| RemovedSecrets {
                count: redacted.count,
                names: redacted.names.into_iter().collect(),
            }),
        };
        let spec = Arc::new(ThreadSpec { instance: own, template: Arc::clone(&template.shared) });
        Ok(PreparedThread {
            spec,
            model_choice: template.model_choice.clone(),
            notices: template.notices.clone(),
            files,
            checkout: directive.fields.get("checkout").and_then(Value::as_str).map(str::to_owned),
        })
    }

    fn template(
        &self,
        engine: &Engine,
        environment: &BTreeMap<String, String>,
        request: &ThreadRequest,
        directive: &LoadedDirective,
    ) -> Result<Arc<PreparedTemplate>> {
        let parent =
            request.parent.as_ref().map(|parent| (&parent.spec.instance.capabilities, &parent.limits));
        let key = format!(
            "{} {} {} {:?} {:?} {:?} {parent:?} {:?} {} {:?} {:?}",
            engine.workspace.generation(),
            request.directive.id,
            directive.hash,
            request.model,
            request.provider,
            request.limits,
            request.bounds,
            request.is_summary,
            request.fork.as_ref().map(|fork| fork.limits),
            inherited_hooks(request)
        );
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            if slots.len() > MAX_TEMPLATES {
                slots.retain(|_, slot| Arc::strong_count(slot) > 1);
            }
            Arc::clone(slots.entry(key).or_default())
        };
        let mut cached = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached.as_ref()
            && cached.files.is_unchanged()
        {
            return Ok(Arc::clone(&cached.template));
        }
        *cached = None;
        let started_at = engine.unix_nanoseconds();
        let (template, files) = record_reads(|| {
            let config = (*self.config(engine)?).clone();
            build_template(engine, config, environment, request, directive)
        });
        let template = Arc::new(template?);
        // A file that changed just now may change again without another stamp.
        if files.is_settled(started_at) {
            let files = MonitoredSet::new(files);
            *cached = Some(CachedTemplate { files, template: Arc::clone(&template) });
        }
        Ok(template)
    }
}

fn build_template(
    engine: &Engine,
    config: ThreadConfig,
    environment: &BTreeMap<String, String>,
    request: &ThreadRequest,
    directive: &LoadedDirective,
) -> Result<PreparedTemplate> {
    let limits = resolve_limits(&config, directive, request)?;
    let inherited = inherit_context(engine, &request.directive, directive)?;
    let mut capabilities = resolve_capabilities(&inherited, request)?;
    let mut limits = limits;
    if request.is_summary {
        capabilities = Capabilities::none();
    }
    if let Some((max_capabilities, bounds)) = &request.bounds {
        capabilities = capabilities.attenuate(max_capabilities);
        limits = limits.clamp_to(bounds);
    }
    let mut notices = config.notices.clone();
    notices.extend(risk_notices(&config, &capabilities, &inherited, request)?);
    let rolling = RollingSettings::load(&engine.workspace)?;
    notices.extend(rolling.notices);
    notices.extend(NotificationTargets::load(&engine.workspace)?.notices);
    let model =
        |key: &str| directive.fields.get("model").and_then(|model| model.get(key)).and_then(Value::as_str);
    let settings = ModelSettings::from_directive(directive.fields.get("model")).map_err(|error| {
        Error::new(Code::Invalid, format!("<model>: {error}")).for_item(&request.directive)
    })?;
    let query = models::ModelQuery {
        model: request.model.as_deref(),
        provider: request.provider.as_deref(),
        directive_model: model("id"),
        directive_tier: model("tier"),
        directive_provider: model("provider"),
        is_spend_limited: limits.spend.is_some() || !rolling.caps.is_empty(),
        settings: Some(&settings),
    };
    let model_choice = Providers::discover(&engine.workspace).choose(&query, &config.agent, environment)?;
    notices.extend(model_choice.notices.iter().cloned());
    let outputs = list_field(&directive.fields, "outputs");
    let preload = PreloadOptions {
        enabled: config.resilience.tool_preload.enabled,
        max_tokens: usize::try_from(config.resilience.tool_preload.max_tokens).unwrap_or(usize::MAX),
    };
    let declared = OutputField::from_directive(directive.fields.get("outputs"));
    let definitions = crate::definitions::build(engine, &capabilities, &declared, preload);
    let hooks = Hooks::merge(&config.hooks, directive.fields.get("hooks"))
        .map_err(|message| Error::new(Code::Invalid, message).for_item(&request.directive))?
        .without(&inherited.suppress);
    let hooks = hook_sources(request)
        .try_fold(hooks, |hooks, spec| hooks.inherit(&spec.template.hooks, &spec.instance.capabilities))
        .map_err(|message| Error::new(Code::Invalid, message).for_item(&request.directive))?;
    let skipped = definitions.skipped.iter();
    notices
        .extend(skipped.map(|tool| format!("not offered to the model: {} ({})", tool.item_id, tool.reason)));
    let knowledge: Vec<ItemRef> = inherited
        .system
        .iter()
        .chain(&inherited.before)
        .chain(&inherited.after)
        .filter_map(|name| Some(ItemRef::new(ItemType::Knowledge, ItemId::new(name).ok()?)))
        .collect();
    let starting: Vec<Action> = hooks
        .all()
        .iter()
        .filter(|hook| hook.event == "thread_started")
        .flat_map(|hook| hook.actions.iter().filter_map(|action| Action::from_value(action).ok()))
        .collect();
    let needs = ThreadNeeds {
        capabilities: &capabilities,
        context: &knowledge,
        start_actions: &starting,
        provider: None,
    };
    let findings = preflight::check(engine, &needs);
    preflight::findings_to_result(&findings).map_err(|error| error.for_item(&request.directive))?;
    notices.extend(
        findings
            .iter()
            .map(|finding| format!("{} ({}): {}", finding.item, finding.needed_by, finding.message)),
    );
    let shared = ThreadTemplate {
        revision: MACHINE_REVISION,
        directive: request.directive.id.to_string(),
        directive_hash: directive.hash.to_string(),
        system: joined_texts(engine, &inherited.system)?,
        before: knowledge_texts(engine, &inherited.before)?,
        after: knowledge_texts(engine, &inherited.after)?,
        outputs,
        hooks,
        definitions,
        provider: model_choice.provider_id.clone(),
        model: model_choice.model.clone(),
        candidates: model_choice.candidates.clone(),
        fallbacks: model_choice.fallbacks.iter().map(ModelChoice::to_fallback).collect(),
        price: model_choice.price,
        context_window: model_choice.context_window,
        max_output_tokens: model_choice.max_output_tokens,
        settings: Arc::new(settings),
        wants_stream: true,
        config,
    };
    Ok(PreparedTemplate { shared: Arc::new(shared), model_choice, limits, capabilities, notices })
}

/// The files among the inputs, read and counted for the model.
fn load_files(
    engine: &Engine,
    request: &ThreadRequest,
    directive: &LoadedDirective,
    model_choice: &ModelChoice,
) -> Result<Vec<LoadedFile>> {
    let declared = list_field(&directive.fields, "inputs");
    let Some(Value::Object(inputs)) = directive.data.get("given_inputs") else { return Ok(Vec::new()) };
    let parent = request.parent.as_ref().map(|parent| &parent.spec.instance.capabilities);
    let mut files = file_inputs::read_files(engine, &request.files, parent, &declared, inputs)
        .map_err(|error| error.for_item(&request.directive))?;
    for file in &mut files {
        file_inputs::check_file(&mut file.part, model_choice)
            .map_err(|error| error.for_item(&request.directive))?;
    }
    Ok(files)
}

/// The thread that starts this one, that it is forked from, that it continues from: their hooks around calls hold for it
/// too.
fn hook_sources(request: &ThreadRequest) -> impl Iterator<Item = &ThreadSpec> {
    let parent = request.parent.as_ref().map(|parent| &*parent.spec);
    let fork = request.fork.as_ref().map(|fork| &*fork.spec);
    [parent, fork, request.continued_spec.as_deref()].into_iter().flatten()
}

/// The hooks around calls that it takes from other threads, and the grants some of them run on.
fn inherited_hooks(request: &ThreadRequest) -> Vec<(&Hook, &Capabilities)> {
    let hooks = hook_sources(request).flat_map(|spec| {
        spec.template.hooks.all().iter().map(move |hook| (hook, &spec.instance.capabilities))
    });
    hooks.filter(|(hook, _)| hook.is_around_calls()).collect()
}

/// Defaults, then the directive's, then the caller's, then no more than the parent's.
fn resolve_limits(
    config: &ThreadConfig,
    directive: &LoadedDirective,
    request: &ThreadRequest,
) -> Result<ThreadLimits> {
    let invalid = |error: crate::limits::LimitError| {
        Error::new(Code::InvalidArgument, error.to_string()).for_item(&request.directive).hint(LIMIT_EXAMPLES)
    };
    let mut limits = config.resilience.default_limits;
    if let Some(Value::Object(own)) = directive.fields.get("limits") {
        limits = limits.with_overrides(own).map_err(invalid)?;
    }
    limits = limits.with_overrides(&request.limits).map_err(invalid)?;
    if let Some(fork) = &request.fork {
        limits = fork.limits;
    }
    Ok(match &request.parent {
        Some(parent) => limits.clamp_to_parent(&parent.limits),
        None => limits,
    })
}

/// What a directive and those it extends say together.
struct InheritedContext {
    /// Of the nearest that says anything.
    permissions: Option<Value>,
    acknowledged: Vec<Value>,
    system: Vec<String>,
    before: Vec<String>,
    after: Vec<String>,
    suppress: Vec<String>,
}

/// Follows `extends` to its root; context comes root first, permissions from the nearest that states them.
fn inherit_context(engine: &Engine, item: &ItemRef, directive: &LoadedDirective) -> Result<InheritedContext> {
    let mut chain: Vec<Map<String, Value>> = vec![directive.fields.clone()];
    let mut seen = vec![item.id.to_string()];
    while let Some(parent) = chain.last().and_then(|fields| fields.get("extends")).and_then(Value::as_str) {
        let parent = parent.to_owned();
        if seen.contains(&parent) || seen.len() > MAX_EXTENDS_DEPTH {
            let path = format!("{} → {parent}", seen.join(" → "));
            return Err(Error::new(Code::Invalid, format!("`extends` goes in circles or too far: {path}"))
                .for_item(item));
        }
        let id = ItemId::new(&parent)
            .map_err(|error| Error::new(Code::InvalidId, error.to_string()).for_item(item))?;
        let reference = ItemRef::new(ItemType::Directive, id);
        // A parent's inputs are not asked for: only its context and permissions are taken.
        chain.push(execute::directive_fields(engine, &reference)?);
        seen.push(parent);
    }
    let nearest = chain.iter().find(|fields| fields.get("permissions").is_some_and(Value::is_array));
    let permissions = nearest.and_then(|fields| fields.get("permissions").cloned());
    let acknowledged = nearest.map(|fields| list_field(fields, "acknowledged_risks")).unwrap_or_default();
    let mut family = InheritedContext {
        permissions,
        acknowledged,
        system: Vec::new(),
        before: Vec::new(),
        after: Vec::new(),
        suppress: Vec::new(),
    };
    for fields in chain.iter().rev() {
        let Some(Value::Object(context)) = fields.get("context") else { continue };
        for (part, names) in [
            ("system", &mut family.system),
            ("before", &mut family.before),
            ("after", &mut family.after),
            ("suppress", &mut family.suppress),
        ] {
            for name in list_field(context, part).iter().filter_map(Value::as_str) {
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
        }
    }
    let suppress = family.suppress.clone();
    for names in [&mut family.system, &mut family.before, &mut family.after] {
        names.retain(|name| !suppress.contains(name));
    }
    Ok(family)
}

/// What the directive asks for, narrowed by its parent; a child that states none has what its parent has.
fn resolve_capabilities(family: &InheritedContext, request: &ThreadRequest) -> Result<Capabilities> {
    let own = Capabilities::from_directive(family.permissions.as_ref())
        .map_err(|error| Error::new(Code::Invalid, error.to_string()).for_item(&request.directive))?;
    Ok(match &request.parent {
        // One that states no permissions has its parent's; one that states none of them has none.
        Some(parent) if family.permissions.is_none() => parent.spec.instance.capabilities.clone(),
        Some(parent) => own.attenuate(&parent.spec.instance.capabilities),
        None => own,
    })
}

/// What is risky in these grants, if it was acknowledged.
fn risk_notices(
    config: &ThreadConfig,
    capabilities: &Capabilities,
    family: &InheritedContext,
    request: &ThreadRequest,
) -> Result<Vec<String>> {
    let refused = |message: String| Error::new(Code::RiskRefused, message).for_item(&request.directive);
    let acknowledged = risk::acknowledged_risks(Some(&Value::Array(family.acknowledged.clone())))
        .map_err(|error| refused(error.to_string()))?;
    let allowed =
        config.risk.authorize(capabilities, &acknowledged).map_err(|error| refused(error.to_string()))?;
    let lines = allowed
        .iter()
        .map(|grant| format!("{} is {}: {}", grant.grant, grant.risk.as_str(), grant.description));
    Ok(lines.collect())
}

/// The texts of knowledge entries; one that is not vouched for ends the attempt.
fn knowledge_texts(engine: &Engine, names: &[String]) -> Result<Vec<String>> {
    names
        .iter()
        .map(|name| {
            let id = ItemId::new(name).map_err(|error| Error::new(Code::InvalidId, error.to_string()))?;
            execute::knowledge_text(engine, &ItemRef::new(ItemType::Knowledge, id))
        })
        .collect()
}

fn joined_texts(engine: &Engine, names: &[String]) -> Result<Option<String>> {
    let texts = knowledge_texts(engine, names)?;
    Ok((!texts.is_empty()).then(|| texts.join("\n\n")))
}

fn list_field(fields: &Map<String, Value>, key: &str) -> Vec<Value> {
    fields.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
}
