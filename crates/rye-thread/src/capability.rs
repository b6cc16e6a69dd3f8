//! Who may do what: grants as patterns, and the one place where an action is allowed.
//!
//! A grant is `rye.<primary>.<item type>.<id with dots>`; `*` stands for anything, dots included, and nothing else is
//! special. `x.*` also grants `x` itself, so `rye.execute.tool.rye.bash.*` runs the tool `rye/bash`. `fetch` is `search`
//! and `load`. No grant implies another: who may run a tool may not read its source for that. No grants, no rights.
//!
//! [`permit`] is the only way to a [`PermittedAction`], and a [`PermittedAction`] is all the dispatcher takes.

mod hook_tools;
mod pattern;
#[cfg(test)]
mod tests;

use std::fmt;

use rye_item::ItemType;
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::action::{Action, PrimaryAction};
use crate::spec::MACHINE_REVISION;
pub use hook_tools::LEDGER_REFUSAL;
pub(crate) use hook_tools::hook_tool_path;
use pattern::Pattern;

/// Where the tools of hooks live: theirs alone.
pub const HOOK_TOOLS_PREFIX: &str = "rye/agent/threads/internal";
/// The tool whose answers steer a thread.
pub const CONTROL_TOOL: &str = "rye/agent/threads/internal/control";
/// The error code of what is not granted.
pub const PERMISSION_DENIED: &str = "RYE1121";
/// The most grants a thread has.
const MAX_GRANTS: usize = 1000;
/// How many grants a refusal lists.
const MAX_LISTED_GRANTS: usize = 20;

/// What a thread may do: an ordered set of grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Capabilities(Vec<Pattern>);

/// A text is not a grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidCapability(pub String);

impl Capabilities {
    /// No rights.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads grants, in their order; what is granted twice counts once.
    ///
    /// # Errors
    /// When one is none, all of them named.
    pub fn parse<T: AsRef<str>>(grants: impl IntoIterator<Item = T>) -> Result<Self, InvalidCapability> {
        let mut patterns = Vec::new();
        let mut errors = Vec::new();
        for grant in grants {
            match Pattern::parse(grant.as_ref()) {
                Ok(parsed) => patterns.extend(parsed),
                Err(message) => errors.push(message),
            }
        }
        if !errors.is_empty() {
            return Err(InvalidCapability(errors.join("; ")));
        }
        let set = Self::from_patterns(patterns);
        if set.0.len() > MAX_GRANTS {
            return Err(InvalidCapability(format!("more than {MAX_GRANTS} grants")));
        }
        Ok(set)
    }

    /// The grants of a parsed directive: its `permissions`, a list of `{"tag": "cap", "content": "rye.…"}`.
    ///
    /// # Errors
    /// When one is not a grant.
    pub fn from_directive(permissions: Option<&Value>) -> Result<Self, InvalidCapability> {
        let Some(list) = permissions else {
            return Ok(Self::none());
        };
        let list = list.as_array().ok_or_else(|| InvalidCapability("permissions are a list".to_owned()))?;
        let grants: Option<Vec<&str>> = list
            .iter()
            .map(|grant| grant.get("content").and_then(Value::as_str).or_else(|| grant.as_str()))
            .collect();
        Self::parse(grants.ok_or_else(|| InvalidCapability("a permission without its text".to_owned()))?)
    }

    fn from_patterns(patterns: Vec<Pattern>) -> Self {
        let mut unique: Vec<Pattern> = Vec::new();
        for pattern in patterns {
            if !unique.contains(&pattern) {
                unique.push(pattern);
            }
        }
        Self(unique)
    }

    /// Whether nothing is granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The grants, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Pattern::as_str)
    }

    /// Whether everything `required` stands for is granted; it may itself be a pattern.
    #[must_use]
    pub fn covers(&self, required: &str) -> bool {
        let required = Pattern::new(required);
        self.0.iter().any(|grant| grant.covers(&required))
    }

    /// Whether anything at all of what `pattern` stands for may be granted.
    #[must_use]
    pub fn overlaps(&self, pattern: &str) -> bool {
        let pattern = Pattern::new(pattern);
        self.0.iter().any(|grant| grant.overlaps(&pattern))
    }

    /// What both of the two grant: a child never has more than its parent, whatever it asks for.
    #[must_use]
    pub fn attenuate(&self, parent: &Self) -> Self {
        let mut both: Vec<Pattern> = Vec::new();
        for own in &self.0 {
            for theirs in &parent.0 {
                let narrower = if theirs.covers(own) {
                    own
                } else if own.covers(theirs) {
                    theirs
                } else {
                    continue;
                };
                if !both.iter().any(|known| known.covers(narrower)) {
                    both.retain(|known| !narrower.covers(known));
                    both.push(narrower.clone());
                }
            }
        }
        Self(both)
    }

    /// Whether `other` grants all that this does.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.iter().all(|own| other.0.iter().any(|theirs| theirs.covers(own)))
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed: Vec<String> =
            self.iter().take(MAX_LISTED_GRANTS).map(|grant| format!("'{grant}'")).collect();
        let more = self.0.len().saturating_sub(MAX_LISTED_GRANTS);
        let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
        write!(formatter, "[{}{rest}]", listed.join(", "))
    }
}

impl TryFrom<Vec<String>> for Capabilities {
    type Error = InvalidCapability;

    fn try_from(grants: Vec<String>) -> Result<Self, InvalidCapability> {
        Self::parse(grants)
    }
}

impl From<Capabilities> for Vec<String> {
    fn from(capabilities: Capabilities) -> Self {
        capabilities.iter().map(str::to_owned).collect()
    }
}

/// Where a hook was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookOrigin {
    /// In the directive.
    Directive,
    /// In the project's configuration.
    Project,
    /// In the user's configuration.
    User,
    /// In a system bundle's configuration.
    System,
}

impl HookOrigin {
    /// What a hook of this origin runs on: what its configuration gives it if that is the user's or the system's, else
    /// what the thread may do.
    #[must_use]
    pub fn effective_capabilities<'a>(
        self,
        thread: &'a Capabilities,
        granted: &'a Capabilities,
    ) -> &'a Capabilities {
        match self {
            Self::Directive | Self::Project => thread,
            Self::User | Self::System => granted,
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Principal {
    /// The model, by a tool call.
    Model,
    /// A hook; its capabilities are [`HookOrigin::effective_capabilities`].
    Hook {
        /// Where it was written.
        origin: HookOrigin,
    },
    /// The directive itself, by what it declares.
    Directive,
    /// A tool that the thread runs, through its callback channel.
    Tool,
}

/// An action that was allowed. Nothing else makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct PermittedAction {
    action: Action,
    principal: Principal,
    capabilities: Capabilities,
    decides_call: bool,
}

impl PermittedAction {
    /// Its answer decides whether a call is made.
    pub(crate) fn deciding_call(self, decides_call: bool) -> Self {
        Self { decides_call, ..self }
    }

    /// Whether its answer decides whether a call is made: it has to be read as a whole.
    #[must_use]
    pub fn decides_call(&self) -> bool {
        self.decides_call
    }

    /// What was allowed.
    #[must_use]
    pub fn action(&self) -> &Action {
        &self.action
    }

    /// Who asked.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.principal
    }

    /// The grants of the asker: what is done in its name has no others.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether it is a hook's call of one of the thread's own tools, which alone learns of the thread.
    #[must_use]
    pub fn is_hook_tool(&self) -> bool {
        hook_tools::hook_tool_name(&self.action).is_some()
    }
}

/// Why an action was not allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct PermissionDenied {
    /// The grant that would allow it; empty if no grant can.
    pub required: String,
    /// What to tell.
    pub message: String,
    /// The action's primary.
    pub action: String,
    /// The item's type.
    pub item_type: Option<String>,
    /// The item's id.
    pub item_id: Option<String>,
}

impl PermissionDenied {
    fn new(action: &Action, required: &str, message: String) -> Self {
        Self {
            required: required.to_owned(),
            message,
            action: action.primary.as_str().to_owned(),
            item_type: action.item_type.map(|item_type| item_type.to_string()),
            item_id: action.item_id.as_deref().map(one_line),
        }
    }

    /// The refusal of what a person is asked about, to those who cannot ask.
    #[must_use]
    pub fn unasked(action: &Action, reason: &str) -> Self {
        Self::new(action, "", format!("Permission denied: {reason}"))
    }

    /// The result a model or a hook gets instead.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({
            "status": "error",
            "error": self.message,
            "code": PERMISSION_DENIED,
            "denied_action": self.action,
            "denied_item_type": self.item_type,
            "denied_item_id": self.item_id,
        })
    }
}

/// What has to be granted for an action: all of these.
///
/// A search needs the type it searches (`rye.search.tool`), narrowed by `scope` what lies below it
/// (`rye.search.tool.team.*`). Copying an item writes and signs, so it needs `load` and `sign`. A fetch that leaves the
/// type open needs all types. A pattern of ids needs a grant for all it could match.
#[must_use]
pub fn required_capabilities(action: &Action) -> Vec<String> {
    let id = action.item_id.as_deref().unwrap_or_default();
    let types = match action.item_type {
        Some(item_type) => vec![item_type],
        None => ItemType::SEARCHABLE.to_vec(),
    };
    let of_item = |word: &str| -> Vec<String> {
        types.iter().map(|item_type| format!("rye.{word}.{item_type}.{}", grant_path(id))).collect()
    };
    match action.primary {
        PrimaryAction::Execute => of_item("execute"),
        PrimaryAction::Sign => add_copy_requirements(of_item("sign"), action, of_item),
        PrimaryAction::Load => of_item("load"),
        PrimaryAction::Fetch if action.item_id.is_some() => of_item("load"),
        PrimaryAction::Search | PrimaryAction::Fetch => vec![required_for_search(action)],
    }
}

fn add_copy_requirements(
    mut required: Vec<String>,
    action: &Action,
    of_item: impl Fn(&str) -> Vec<String>,
) -> Vec<String> {
    if action.option("destination").is_some() {
        required.extend(of_item("load"));
    }
    required
}

fn required_for_search(action: &Action) -> String {
    match (action.text_option("scope"), action.item_type) {
        (Some(scope), _) => match rye_item::scope::parse_scope(scope) {
            Ok((item_type, prefix)) if prefix.is_empty() => format!("rye.search.{item_type}"),
            Ok((item_type, prefix)) => format!("rye.search.{item_type}.{}.*", grant_path(&prefix)),
            // The verb will refuse it; until then nothing less than everything will do.
            Err(_) => "rye.search".to_owned(),
        },
        (None, Some(item_type)) => format!("rye.search.{item_type}"),
        (None, None) => "rye.search".to_owned(),
    }
}

/// An id, or a pattern of ids, as grants write it. Whatever is special in a pattern becomes `*`: at least all it matches.
fn grant_path(id: &str) -> String {
    let id = id.trim_end_matches('/');
    match id.find(['*', '?', '[', '{']) {
        None => id.replace('/', "."),
        // A pattern without a slash matches names at any depth.
        Some(_) if !id.contains('/') => "*".to_owned(),
        Some(special) => format!("{}*", id[..special].replace('/', ".")),
    }
}

/// Allows an action, or says why not.
///
/// # Errors
/// When a grant is missing, or no grant can allow it.
pub fn permit(
    capabilities: &Capabilities,
    action: &Action,
    principal: Principal,
) -> Result<PermittedAction, PermissionDenied> {
    permit_as_of(capabilities, action, principal, MACHINE_REVISION)
}

/// The same by the rules of a thread's `revision`.
pub(crate) fn permit_as_of(
    capabilities: &Capabilities,
    action: &Action,
    principal: Principal,
    revision: u32,
) -> Result<PermittedAction, PermissionDenied> {
    // An item that cannot exist is not checked against patterns.
    let action = action.clone().validate().map_err(|error| {
        PermissionDenied::new(action, "", format!("Permission denied: {}", one_line(&error.to_string())))
    })?;
    let permitted = |action| PermittedAction {
        action,
        principal,
        capabilities: capabilities.clone(),
        decides_call: false,
    };
    if hook_tools::hook_tool_name(&action).is_some() {
        return match (principal, action.primary, action.item_type) {
            (Principal::Hook { origin }, PrimaryAction::Execute, Some(ItemType::Tool)) => {
                if !origin.changes_ledger() && hook_tools::may_change_ledger(&action, revision) {
                    return Err(PermissionDenied::new(&action, "", LEDGER_REFUSAL.to_owned()));
                }
                Ok(permitted(action))
            }
            _ => {
                let message = format!("Permission denied: {HOOK_TOOLS_PREFIX}/ is for hooks");
                Err(PermissionDenied::new(&action, "", message))
            }
        };
    }
    match required_capabilities(&action).into_iter().find(|required| !capabilities.covers(required)) {
        None => Ok(permitted(action)),
        Some(missing) => {
            let message =
                format!("Permission denied: '{missing}' not covered by capabilities {capabilities}");
            Err(PermissionDenied::new(&action, &missing, message))
        }
    }
}
