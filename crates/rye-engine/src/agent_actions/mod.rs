//! The actions on items as agents ask for them, over MCP or in a thread: arguments in, one call of a verb, the answer of
//! the command line out. What is policy for agents is decided here, once.

mod agent_hints;
pub(crate) mod review;
pub mod schemas;

use lillux::Digest;
use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use review::store_signed;
pub use review::{ContentChange, SignReview, review};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::error_refused::JOIN_HINT;
use crate::response::success_response;
use crate::verbs::search::parse_scope;
use crate::verbs::{load, search, sign};

/// What to search for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSearch {
    /// The words.
    pub query: String,
    /// Only this type.
    pub item_type: Option<String>,
    /// A type and a namespace; overrules `item_type`.
    pub scope: Option<String>,
    /// Only this space.
    pub source: Option<SpaceFilter>,
    /// How many at most.
    pub limit: Option<u16>,
    /// The project, for who has several.
    pub project_path: Option<String>,
}

/// What to read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentLoad {
    /// Its type.
    pub item_type: Option<String>,
    /// Its id.
    pub item_id: String,
    /// Only from this space.
    pub source: Option<SpaceFilter>,
    /// Refused: copying is signing.
    pub destination: Option<Value>,
    /// The project, for who has several.
    pub project_path: Option<String>,
}

/// What to read, or to search for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentFetch {
    /// Its type.
    pub item_type: Option<String>,
    /// Its id: then it is read.
    pub item_id: Option<String>,
    /// The words: then it is searched for.
    pub query: Option<String>,
    /// A type and a namespace; overrules `item_type`.
    pub scope: Option<String>,
    /// Only this space.
    pub source: Option<SpaceFilter>,
    /// Refused: copying is signing.
    pub destination: Option<Value>,
    /// How many at most.
    pub limit: Option<u16>,
    /// The project, for who has several.
    pub project_path: Option<String>,
}

/// What to sign.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSign {
    /// Its type.
    pub item_type: Option<String>,
    /// Its id, or a pattern of ids.
    pub item_id: String,
    /// Only in this space.
    pub source: Option<SpaceFilter>,
    /// Copy it into this space, and sign the copy.
    pub destination: Option<CopyDestination>,
    /// The project, for who has several.
    pub project_path: Option<String>,
}

/// Where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpaceFilter {
    /// The project's space.
    Project,
    /// The user's space.
    User,
    /// The system's bundles.
    System,
    /// Everywhere, project before user before system.
    #[serde(alias = "local")]
    All,
}

impl SpaceFilter {
    /// The tier, unless it is all of them.
    #[must_use]
    pub fn tier(self) -> Option<SpaceTier> {
        match self {
            Self::Project => Some(SpaceTier::Project),
            Self::User => Some(SpaceTier::User),
            Self::System => Some(SpaceTier::System),
            Self::All => None,
        }
    }
}

/// Where to copy to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyDestination {
    /// The project's space.
    Project,
    /// The user's space.
    User,
}

impl CopyDestination {
    /// The tier.
    #[must_use]
    pub fn tier(self) -> SpaceTier {
        match self {
            Self::Project => SpaceTier::Project,
            Self::User => SpaceTier::User,
        }
    }
}

/// The item that is named, if its type is said: by itself or in the id (`tool:team/deploy`).
///
/// # Errors
/// When the id is not valid.
pub fn typed_item(item_type: Option<&str>, id: &str) -> Result<Option<ItemRef>> {
    if item_type.is_none() && ItemRef::split_canonical(id).is_none() {
        return Ok(None);
    }
    Ok(Some(ItemRef::parse(item_type, id)?))
}

/// The item that is named. Without a type it is the one item that has this id.
///
/// # Errors
/// When the id is not valid, or, without a type, no item or several have it.
pub fn named_item(
    engine: &Engine,
    item_type: Option<&str>,
    id: &str,
    source: Option<SpaceFilter>,
) -> Result<ItemRef> {
    match typed_item(item_type, id)? {
        Some(item) => Ok(item),
        None => load::find_by_id(engine, id, source.and_then(SpaceFilter::tier)),
    }
}

/// A type and a prefix from `item_type` and `scope`.
fn parse_filter(item_type: Option<&str>, scope: Option<&str>) -> Result<(Option<ItemType>, String)> {
    match scope {
        Some(scope) => parse_scope(scope).map(|(item_type, prefix)| (Some(item_type), prefix)),
        None => Ok((item_type.map(str::parse::<ItemType>).transpose()?, String::new())),
    }
}

/// Searches.
///
/// # Errors
/// When the query or the scope cannot be read.
pub fn search(engine: &Engine, arguments: &AgentSearch) -> Result<Value> {
    let (item_type, prefix) = parse_filter(arguments.item_type.as_deref(), arguments.scope.as_deref())?;
    let options = search::SearchOptions {
        query: arguments.query.clone(),
        item_type,
        prefix,
        tier: arguments.source.and_then(SpaceFilter::tier),
        limit: arguments.limit.map(usize::from),
        all: false,
    };
    let response = search::search(engine, &options, &mut |_, _| {})?;
    Ok(success_response(None, None, to_json(&response)?))
}

/// Reads an item.
///
/// # Errors
/// When it may not be trusted, or a copy is asked for.
pub fn load(engine: &Engine, arguments: &AgentLoad) -> Result<Value> {
    refuse_destination(arguments.destination.as_ref())?;
    let item = named_item(engine, arguments.item_type.as_deref(), &arguments.item_id, arguments.source)?;
    load_item(engine, &item, arguments.source)
}

/// A copy is signed with the user's key: that is for the action which says so.
fn refuse_destination(destination: Option<&Value>) -> Result<()> {
    match destination.filter(|destination| !destination.is_null()) {
        None => Ok(()),
        Some(_) => Err(Error::new(Code::InvalidArgument, "`destination` is not allowed when reading")
            .hint("to copy an item, sign it with `destination`: the copy is signed with the user's key")),
    }
}

fn load_item(engine: &Engine, item: &ItemRef, source: Option<SpaceFilter>) -> Result<Value> {
    let from = source.and_then(SpaceFilter::tier);
    let data = to_json(&load::load(engine, item, load::LoadOptions { from, unverified: false })?)?;
    Ok(success_response(Some(item.item_type.as_str()), Some(item.id.as_str()), data))
}

/// Loads when given an id, searches when given a query.
///
/// # Errors
/// As [`load()`] and [`search()`], and when it is given neither or both.
pub fn fetch(engine: &Engine, arguments: AgentFetch) -> Result<Value> {
    refuse_destination(arguments.destination.as_ref())?;
    match (arguments.item_id, arguments.query) {
        (Some(id), None) => {
            let item = named_item(engine, arguments.item_type.as_deref(), &id, arguments.source)?;
            load_item(engine, &item, arguments.source)
        }
        (None, Some(query)) => {
            let arguments = AgentSearch {
                query,
                item_type: arguments.item_type,
                scope: arguments.scope,
                source: arguments.source,
                limit: arguments.limit,
                project_path: None,
            };
            search(engine, &arguments)
        }
        (Some(_), Some(_)) => Err(Error::new(Code::InvalidArgument, "give item_id or query, not both")),
        (None, None) => Err(Error::new(Code::InvalidArgument, "give item_id, or query")
            .hint("item_id reads one item, query searches")),
    }
}

/// What an agent wants signed.
#[derive(Clone, Copy, Debug)]
pub struct SignTarget<'a> {
    /// Its type.
    pub item_type: ItemType,
    /// Its id, or a pattern of ids.
    pub id: &'a str,
    /// Only in this space.
    pub source: Option<SpaceTier>,
    /// The space it is copied into.
    pub destination: Option<SpaceTier>,
}

impl SignTarget<'_> {
    /// What the user may type instead.
    #[must_use]
    pub fn command(&self) -> String {
        let id = rye_item::text::shell_word(&rye_item::text::one_line(self.id));
        match self.destination {
            Some(to) => format!("rye load {} {id} --to {to}", self.item_type),
            None => format!("rye sign {} {id}", self.item_type),
        }
    }
}

/// Signs an item, all items of a pattern, or a copy, if `may_sign` lets it. The digest that `may_sign` returns is the one
/// that was agreed to: other bytes are not signed.
///
/// # Errors
/// When it may not be signed, is not found or not valid.
pub fn sign<E: From<Error>>(
    engine: &Engine,
    arguments: &AgentSign,
    may_sign: impl Fn(&SignTarget<'_>) -> std::result::Result<Option<Digest>, E>,
) -> std::result::Result<Value, E> {
    let (item_type, id) = match (&arguments.item_type, ItemRef::split_canonical(&arguments.item_id)) {
        (None, Some((item_type, id))) => (item_type, id),
        (Some(word), Some((item_type, id))) if word == item_type.as_str() => (item_type, id),
        (Some(word), _) => (word.parse().map_err(Error::from)?, arguments.item_id.as_str()),
        (None, None) if sign::is_glob(&arguments.item_id) => {
            return Err(Error::new(Code::InvalidArgument, "item_type is missing")
                .hint("a pattern needs it: give item_type, or a pattern such as `tool:team/*`")
                .into());
        }
        (None, None) => {
            let item = named_item(engine, None, &arguments.item_id, arguments.source)?;
            (item.item_type, arguments.item_id.as_str())
        }
    };
    let tier = arguments.source.and_then(SpaceFilter::tier);
    let destination = arguments.destination.map(CopyDestination::tier);
    let approved = may_sign(&SignTarget { item_type, id, source: tier, destination })?;
    if sign::is_glob(id) && destination.is_none() {
        let response =
            sign::sign_glob(engine, &[item_type], id, tier, sign::OthersItems::Leave.into(), &mut |_, _| {})?;
        return match response.failure() {
            Some(error) => Err(error.detail("data", response.to_value()).into()),
            None => Ok(success_response(None, None, response.to_value())),
        };
    }
    let item = ItemRef::parse(Some(item_type.as_str()), id).map_err(Error::from)?;
    if let Some(to) = destination {
        let copied = load::copy_approved(engine, &item, tier, to, approved.as_ref())?;
        return Ok(success_response(Some(item_type.as_str()), Some(item.id.as_str()), to_json(&copied)?));
    }
    // No lockfile follows: only a person's signing is consent to what will run.
    let signed = sign::sign_approved(engine, &item, tier, approved.as_ref())?;
    Ok(success_response(Some(item_type.as_str()), Some(&signed.item_id), to_json(&signed)?))
}

/// What policy says of an agent that wants something signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningPolicy {
    /// It may.
    Allowed,
    /// It may if a person agrees.
    NeedsApproval,
}

/// Whether an agent may have this signed: `mcp.sign`, and never what decides about trust.
///
/// # Errors
/// When it may not.
pub fn signing_policy(engine: &Engine, target: &SignTarget<'_>) -> Result<SigningPolicy> {
    let refuse = |message: &str| {
        Err(Error::new(Code::SigningDenied, message)
            .hint(format!("ask the user to run: {}", target.command())))
    };
    if target.item_type == ItemType::Config {
        return refuse("config is never signed for an agent");
    }
    match engine.workspace.settings.get("mcp.sign").and_then(Value::as_str) {
        Some("allow") => Ok(SigningPolicy::Allowed),
        Some("ask") => Ok(SigningPolicy::NeedsApproval),
        _ => refuse("`mcp.sign` does not let agents sign"),
    }
}

/// Commands by which a user decides what is trusted, pinned or installed.
const USER_COMMANDS: [&str; 11] = [
    "rye sign",
    "rye trust",
    "rye join",
    "rye keys",
    "rye bundle trust",
    "rye bundle enable",
    "rye install",
    "rye lock update",
    "rye lock remove",
    "rye init",
    "--to user",
];

/// Says to tell the user, if a text for an agent names a command by which only the user decides.
pub(crate) fn address_user(text: &mut String) {
    if USER_COMMANDS.iter().any(|command| text.contains(command)) && !text.contains("the user") {
        *text = format!("ask the user, who decides: {text}");
    }
}

/// A refusal as an agent reads it: hints name calls, or commands for the user; what concerns signatures and trust is for its user to decide, so the hints say to
/// tell them, and nothing else.
#[must_use]
pub fn with_agent_hints(mut error: Error) -> Error {
    let what = match error.code {
        Code::Unsigned => "it is not signed",
        Code::Tampered => "it was changed since it was signed",
        Code::Misplaced => "it is not where it was signed for",
        Code::Partial => "its signature covers only a part of it",
        Code::Untrusted => "its signer is not trusted",
        Code::Revoked => "the key that signed it is revoked",
        _ => {
            error.hints = std::mem::take(&mut error.hints)
                .into_iter()
                .filter_map(|mut hint| {
                    address_user(&mut hint);
                    agent_hints::translate_hint(&hint)
                })
                .collect();
            if error.hints.is_empty() {
                let page = format!("for the user, the page about it: rye explain {}", error.code);
                error = error.hint(page);
            }
            return error;
        }
    };
    if error.code == Code::Unsigned
        && let Some(item) = &error.item
    {
        let call = format!("rye_sign {}", serde_json::json!({"item_id": item}));
        error.hints.clear();
        return error
            .hint(format!("if you wrote it just now: {call}; the user is asked first"))
            .hint("otherwise tell the user: it is not signed; only they decide what happens with it");
    }
    let can_join = error.hints.iter().any(|hint| hint == JOIN_HINT);
    error.hints.clear();
    if can_join {
        error = error.hint(format!("a command for the user: {JOIN_HINT}"));
    }
    error
        .hint(format!("tell the user: {what}; only they decide what happens with it"))
        .hint("do not change it, sign it or work around the refusal yourself")
}

/// An answer as JSON.
fn to_json(response: &impl Serialize) -> Result<Value> {
    serde_json::to_value(response)
        .map_err(|error| Error::new(Code::Io, format!("cannot serialize the response: {error}")))
}
