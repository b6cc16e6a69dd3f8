//! Hooks: what runs when something happens to a thread.
//!
//! A hook names an event, a condition on what happened, and actions: primary calls like any other. Layers say the order
//! (0 the user's own, 1 the directive's, 2 the built-in ones, 3 the project's and the infra hooks); the kind says whether
//! a result may steer the thread, the origin on whose grants the actions run. Hooks are frozen with the thread. Hooks
//! around calls go in the opposite order (`call_hooks`), hold for every descendant and cannot be suppressed.

use std::collections::BTreeSet;

pub use crate::capability::HookOrigin;
use rye_item::PrimaryAction;
use rye_item::condition::{Condition, resolve_path};
use rye_item::interpolate::interpolate;
pub use rye_item::parse::directive::HOOK_EVENTS;
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call_hooks::{CallEvent, NeededFields};
use crate::capability::Capabilities;
use crate::item_names;

const DIRECTIVE_LAYER: u8 = 1;

/// Whether a hook's result may steer the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookKind {
    /// It may.
    Control,
    /// It always runs and never steers.
    Infra,
}

/// Where a context hook's text goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextPosition {
    /// Before the prompt.
    #[default]
    Before,
    /// After it.
    After,
}

/// One hook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hook {
    /// Its id.
    pub id: String,
    /// The event it waits for.
    pub event: String,
    /// Its place in the order.
    pub layer: u8,
    /// Whether it may steer.
    pub kind: HookKind,
    /// Who wrote it.
    pub origin: HookOrigin,
    /// What must be true; null is always.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub condition: Value,
    /// What it does, as written: `{primary, item_type, item_id, params, …}`.
    pub actions: Vec<Value>,
    /// Where its text goes, if it gives one.
    #[serde(default)]
    pub position: ContextPosition,
    /// Whether its text is wrapped in the item's name.
    #[serde(default)]
    pub wrap: bool,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The capabilities that its config gives it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<String>,
    /// Whether it is an ancestor's: it then runs on `grants`, which are what the ancestor may do.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_inherited: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Hook {
    /// Whether it is around calls.
    #[must_use]
    pub fn is_around_calls(&self) -> bool {
        CallEvent::parse(&self.event).is_some()
    }

    /// A hook of a config file. `layer` is the one of its list; without it, the origin's.
    pub(crate) fn from_config(written: &Value, kind: HookKind, layer: Option<u8>) -> Result<Self, String> {
        let map = written.as_object().ok_or("a hook is a map")?;
        let origin = match map.get("origin") {
            None => HookOrigin::System,
            Some(origin) => HookOrigin::deserialize(origin).map_err(|error| error.to_string())?,
        };
        let default = layer.unwrap_or(match origin {
            HookOrigin::User => 0,
            HookOrigin::Directive => DIRECTIVE_LAYER,
            HookOrigin::System => 2,
            HookOrigin::Project => 3,
        });
        let layer = match map.get("layer") {
            None => default,
            Some(layer) => {
                layer.as_u64().and_then(|layer| u8::try_from(layer).ok()).ok_or("`layer` is 0 to 4")?
            }
        };
        let id = map.get("id").and_then(Value::as_str).ok_or("a hook has an `id`")?.to_owned();
        let grants = map.get("grants").and_then(Value::as_array).into_iter().flatten();
        let grants = grants.filter_map(Value::as_str).map(str::to_owned).collect();
        Self::parse(map, Self { id, layer, kind, origin, grants, ..Self::empty() })
    }

    /// A hook of a directive, the `at`th, as its parser gives it.
    fn from_directive(written: &Value, at: usize) -> Result<Self, String> {
        let map = written.as_object().ok_or("a hook is a map")?;
        let id = map
            .get("id")
            .and_then(Value::as_str)
            .map_or_else(|| format!("directive_hook_{at}"), str::to_owned);
        // Its place is the directive's whatever it says: it does not go before the user's hooks.
        Self::parse(map, Self { id, layer: DIRECTIVE_LAYER, origin: HookOrigin::Directive, ..Self::empty() })
    }

    fn empty() -> Self {
        Self {
            id: String::new(),
            event: String::new(),
            layer: 0,
            kind: HookKind::Control,
            origin: HookOrigin::System,
            condition: Value::Null,
            actions: Vec::new(),
            position: ContextPosition::Before,
            wrap: false,
            description: String::new(),
            grants: Vec::new(),
            is_inherited: false,
        }
    }

    /// Fills in what is written the same way everywhere.
    fn parse(map: &Map<String, Value>, base: Self) -> Result<Self, String> {
        let fail = |message: String| Err(format!("hook `{}`: {message}", one_line(&base.id)));
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let event = match text("event") {
            Some(event) if HOOK_EVENTS.contains(&event) => event.to_owned(),
            Some(event) => {
                return fail(format!(
                    "there is no event `{}`; there are {}",
                    one_line(event),
                    HOOK_EVENTS.join(", ")
                ));
            }
            None => return fail("it names no `event`".to_owned()),
        };
        let condition = map.get("condition").cloned().unwrap_or(Value::Null);
        if let Err(error) = Condition::compile(&condition) {
            return fail(error.to_string());
        }
        let actions: Vec<Value> = match (map.get("action"), map.get("actions")) {
            (Some(action), None) => vec![action.clone()],
            (None, Some(Value::Array(actions))) if !actions.is_empty() => actions.clone(),
            _ => return fail("it has one `action`, or a list of `actions`".to_owned()),
        };
        for action in &actions {
            let primary = action.get("primary").and_then(Value::as_str).unwrap_or_default();
            if primary.parse::<PrimaryAction>().is_err() {
                return fail(format!(
                    "there is no action `{}`; there are {}",
                    one_line(primary),
                    PrimaryAction::ALL.map(PrimaryAction::as_str).join(", ")
                ));
            }
        }
        let position = match text("position") {
            None | Some("before") => ContextPosition::Before,
            Some("after") => ContextPosition::After,
            Some(other) => return fail(format!("position is before or after, not `{}`", one_line(other))),
        };
        let wrap = match map.get("wrap") {
            None => false,
            Some(Value::Bool(wrap)) => *wrap,
            Some(Value::String(word)) if word == "true" || word == "false" => word == "true",
            Some(_) => return fail("wrap is true or false".to_owned()),
        };
        let description = text("description").unwrap_or_default().to_owned();
        Ok(Self { event, condition, actions, position, wrap, description, ..base })
    }
}

/// All hooks of a thread, in order, ready to be asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Hook>", into = "Vec<Hook>")]
pub struct Hooks {
    hooks: Vec<Hook>,
    conditions: Vec<Condition>,
    /// The hooks around calls, for each [`CallEvent`] in the order they run in.
    around_calls: [Vec<usize>; 4],
    /// What the conditions of those read.
    needed_fields: [NeededFields; 4],
}

impl PartialEq for Hooks {
    fn eq(&self, other: &Self) -> bool {
        self.hooks == other.hooks
    }
}

impl From<Hooks> for Vec<Hook> {
    fn from(hooks: Hooks) -> Self {
        hooks.hooks
    }
}

impl TryFrom<Vec<Hook>> for Hooks {
    type Error = String;

    fn try_from(hooks: Vec<Hook>) -> Result<Self, String> {
        let compile = |hook: &Hook| {
            Condition::compile(&hook.condition)
                .map_err(|error| format!("hook `{}`: {error}", one_line(&hook.id)))
        };
        let conditions = hooks.iter().map(compile).collect::<Result<Vec<_>, _>>()?;
        let around_calls = CallEvent::ALL.map(|event| {
            let mut order: Vec<usize> =
                (0..hooks.len()).filter(|at| hooks[*at].event == event.as_str()).collect();
            order.sort_by_key(|at| std::cmp::Reverse((hooks[*at].layer, origin_rank(hooks[*at].origin))));
            order
        });
        let needed_fields = around_calls.each_ref().map(|order| read_fields(order, &conditions));
        Ok(Self { hooks, conditions, around_calls, needed_fields })
    }
}

impl Hooks {
    /// The hooks of the config and of a directive (its parsed field `hooks`), ordered by layer; within a layer the
    /// user's come first, then the directive's, then the rest as written.
    ///
    /// # Errors
    /// When a hook of the directive names no event or action that there is.
    pub fn merge(config: &[Hook], directive: Option<&Value>) -> Result<Self, String> {
        let entries = directive.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let parsed =
            entries.iter().enumerate().map(|(at, hook)| Hook::from_directive(hook, at)).collect::<Vec<_>>();
        let errors: Vec<&str> =
            parsed.iter().filter_map(|hook| hook.as_ref().err()).map(String::as_str).collect();
        if !errors.is_empty() {
            return Err(errors.join("; "));
        }
        let mut hooks: Vec<Hook> = parsed.into_iter().flatten().chain(config.iter().cloned()).collect();
        hooks.sort_by_key(|hook| (hook.layer, origin_rank(hook.origin)));
        Self::try_from(hooks)
    }

    /// These, and an ancestor's hooks around calls that are not among them. What that ancestor's directive or project
    /// wrote runs on what the ancestor may do, not on what is left of it here.
    ///
    /// # Errors
    /// When a condition cannot be read.
    pub fn inherit(self, parent: &Self, parent_capabilities: &Capabilities) -> Result<Self, String> {
        let is_own = |hook: &Hook| self.hooks.iter().any(|own| own == hook);
        let mut inherited: Vec<Hook> = Vec::new();
        for hook in parent.hooks.iter().filter(|hook| hook.is_around_calls() && !is_own(hook)) {
            let mut hook = hook.clone();
            if !hook.is_inherited && matches!(hook.origin, HookOrigin::Directive | HookOrigin::Project) {
                hook.grants = parent_capabilities.iter().map(str::to_owned).collect();
                hook.is_inherited = true;
            }
            inherited.push(hook);
        }
        if inherited.is_empty() {
            return Ok(self);
        }
        let mut hooks = self.hooks;
        hooks.extend(inherited);
        hooks.sort_by_key(|hook| (hook.layer, origin_rank(hook.origin)));
        Self::try_from(hooks)
    }

    /// The hooks in order.
    #[must_use]
    pub fn all(&self) -> &[Hook] {
        &self.hooks
    }

    /// The hook at an index that [`Hooks::matching`] gave.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&Hook> {
        self.hooks.get(at)
    }

    /// The hooks without those that a directive suppresses: by id, or by the full id of an item they act on. Infra hooks
    /// and hooks around calls stay.
    #[must_use]
    pub fn without(self, suppressed: &[String]) -> Self {
        if suppressed.is_empty() {
            return self;
        }
        let is_kept = |hook: &Hook| {
            let acts_on = |id: &String| {
                hook.actions.iter().any(|action| action.get("item_id").and_then(Value::as_str) == Some(id))
            };
            hook.kind == HookKind::Infra
                || hook.is_around_calls()
                || !suppressed.iter().any(|id| *id == hook.id || acts_on(id))
        };
        let kept: Vec<Hook> = self.hooks.iter().filter(|hook| is_kept(hook)).cloned().collect();
        // Their conditions were compiled before.
        Self::try_from(kept).unwrap_or(self)
    }

    /// Whether any hook is around such calls.
    #[must_use]
    pub fn has_around(&self, event: CallEvent) -> bool {
        !self.around_calls[event as usize].is_empty()
    }

    /// The hooks around such calls, in the order they run in.
    #[must_use]
    pub fn around(&self, event: CallEvent) -> &[usize] {
        &self.around_calls[event as usize]
    }

    /// The next hook around a call, from this place in their order: the place behind it, the hook, and what it does.
    ///
    /// `context` gives what is known of the call, if it means anything. It is first asked for what conditions read, and for
    /// everything only when one of them holds: most calls match no hook. From `revision` 3 of the machine on a condition that
    /// names one id of a tool means its other id too.
    #[must_use]
    pub fn next_around(
        &self,
        event: CallEvent,
        from: usize,
        revision: u32,
        context: impl Fn(&NeededFields) -> Option<Map<String, Value>>,
    ) -> Option<(usize, usize, Vec<Value>)> {
        let mut order = self.around_calls[event as usize].iter().enumerate().skip(from).peekable();
        order.peek()?;
        let read = context(&self.needed_fields[event as usize])?;
        let other = (revision >= 3).then(|| item_names::under_other_id(&read)).flatten().map(Value::Object);
        let read = Value::Object(read);
        let (place, at) = order.find(|(_, at)| match &other {
            None => self.is_match(**at, &read),
            Some(other) => self.conditions[**at]
                .matches_either(&|path| resolve_in_event(&read, path), &|path| resolve_in_event(other, path)),
        })?;
        let known = with_event(Value::Object(context(&NeededFields::All)?));
        let actions = self.hooks[*at].actions.iter().map(|action| interpolate_params(action, &known));
        Some((place + 1, *at, actions.collect()))
    }

    /// The hooks that an event sets off, with what each of them does: `${…}` in the params of its actions is filled in
    /// from the context, and nothing else is. The context is there as `event` too.
    #[must_use]
    pub fn matching(&self, event: &str, context: Value) -> Vec<(usize, Vec<Value>)> {
        let is_candidate = |at: &usize| self.hooks[*at].event == event && self.is_match(*at, &context);
        let matching: Vec<usize> = (0..self.hooks.len()).filter(is_candidate).collect();
        if matching.is_empty() {
            return Vec::new();
        }
        let known = with_event(context);
        matching
            .into_iter()
            .map(|at| {
                let actions =
                    self.hooks[at].actions.iter().map(|action| interpolate_params(action, &known)).collect();
                (at, actions)
            })
            .collect()
    }

    fn is_match(&self, at: usize, context: &Value) -> bool {
        self.conditions[at].matches_with(&|path| resolve_in_event(context, path))
    }
}

/// What the conditions of some hooks read of a context.
fn read_fields(hooks: &[usize], conditions: &[Condition]) -> NeededFields {
    let mut fields = BTreeSet::new();
    for path in hooks.iter().flat_map(|at| conditions[*at].paths()) {
        let mut parts = path.split('.');
        let field = match parts.next() {
            Some("event") => {
                fields.insert("event".to_owned());
                parts.next()
            }
            first => first,
        };
        if field == Some("item") {
            fields.insert("item_type".to_owned());
        }
        match field {
            Some(field) => fields.insert(field.to_owned()),
            None => return NeededFields::All,
        };
    }
    NeededFields::Only(fields)
}

/// What stands at a path of a context, as [`with_event`] would have it.
fn resolve_in_event<'a>(context: &'a Value, path: &str) -> Option<&'a Value> {
    match path.strip_prefix("event") {
        Some("") if context.get("event").is_none() => Some(context),
        Some(rest) if rest.starts_with('.') && context.get("event").is_none() => {
            resolve_path(context, &rest[1..])
        }
        _ => resolve_path(context, path),
    }
}

/// The context, which is there as `event` too.
fn with_event(mut context: Value) -> Value {
    if let Value::Object(map) = &mut context
        && !map.contains_key("event")
    {
        let itself = Value::Object(map.clone());
        map.insert("event".to_owned(), itself);
    }
    context
}

/// The place of an origin within a layer.
fn origin_rank(origin: HookOrigin) -> u8 {
    match origin {
        HookOrigin::User => 0,
        HookOrigin::Directive => 1,
        HookOrigin::System | HookOrigin::Project => 2,
    }
}

/// An action with its params filled in.
fn interpolate_params(action: &Value, context: &Value) -> Value {
    let mut action = action.clone();
    if let Some(params) = action.get_mut("params") {
        *params = interpolate(params, context);
    }
    action
}

#[cfg(test)]
mod tests;
