//! What a client passes to a tool, read strictly: a misspelt argument is refused, `null` means not given.

use rye_engine::verbs::search::parse_scope;
use rye_engine::verbs::sign::parse_item;
use rye_engine::{Code, Error, Result};
use rye_item::space::Tier;
use rye_item::{ItemRef, ItemType};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads the arguments of a tool.
///
/// # Errors
/// When one is missing, unknown or of another type.
pub(crate) fn read<T: DeserializeOwned>(given: Map<String, Value>) -> Result<T> {
    let given = given.into_iter().filter(|(_, value)| !value.is_null()).collect();
    serde_json::from_value(Value::Object(given)).map_err(|error| {
        Error::new(Code::InvalidArgument, rye_item::text::one_line(&error.to_string()))
            .hint("the tool's input schema lists its arguments")
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Search {
    pub(crate) query: String,
    pub(crate) item_type: Option<String>,
    pub(crate) scope: Option<String>,
    pub(crate) source: Option<Source>,
    pub(crate) limit: Option<u16>,
    pub(crate) project_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    pub(crate) item_type: Option<String>,
    pub(crate) item_id: String,
    pub(crate) source: Option<Source>,
    pub(crate) destination: Option<Destination>,
    pub(crate) project_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fetch {
    pub(crate) item_type: Option<String>,
    pub(crate) item_id: Option<String>,
    pub(crate) query: Option<String>,
    pub(crate) scope: Option<String>,
    pub(crate) source: Option<Source>,
    pub(crate) destination: Option<Destination>,
    pub(crate) limit: Option<u16>,
    pub(crate) project_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Execute {
    pub(crate) item_type: Option<String>,
    pub(crate) item_id: String,
    #[serde(default)]
    pub(crate) parameters: Map<String, Value>,
    #[serde(default)]
    pub(crate) dry_run: bool,
    #[serde(default)]
    pub(crate) thread: Thread,
    #[serde(default, rename = "async")]
    pub(crate) is_async: bool,
    #[serde(default)]
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) limit_overrides: Map<String, Value>,
    pub(crate) project_path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sign {
    pub(crate) item_type: Option<String>,
    pub(crate) item_id: String,
    pub(crate) source: Option<Source>,
    pub(crate) project_path: Option<String>,
}

/// Where to look.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    Project,
    User,
    System,
    #[serde(alias = "local")]
    All,
}

impl Source {
    /// The tier, unless it is all of them.
    pub(crate) fn tier(self) -> Option<Tier> {
        match self {
            Self::Project => Some(Tier::Project),
            Self::User => Some(Tier::User),
            Self::System => Some(Tier::System),
            Self::All => None,
        }
    }
}

/// Where to copy to.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Destination {
    Project,
    User,
}

impl Destination {
    pub(crate) fn tier(self) -> Tier {
        match self {
            Self::Project => Tier::Project,
            Self::User => Tier::User,
        }
    }
}

/// Who follows a directive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Thread {
    /// The agent that asks.
    #[default]
    Inline,
    /// A thread of its own.
    Fork,
}

/// The item that is named.
///
/// # Errors
/// When the type is missing or the id not valid.
pub(crate) fn item(item_type: Option<&str>, id: &str) -> Result<ItemRef> {
    if item_type.is_none() && ItemRef::split_canonical(id).is_none() {
        return Err(Error::new(Code::InvalidArgument, "item_type is missing")
            .hint("give item_type, or a canonical id such as `tool:team/deploy`"));
    }
    parse_item(item_type, id)
}

/// A type and a prefix from `item_type` and `scope`.
///
/// # Errors
/// When either names no type.
pub(crate) fn narrowed(item_type: Option<&str>, scope: Option<&str>) -> Result<(Option<ItemType>, String)> {
    match scope {
        Some(scope) => parse_scope(scope).map(|(item_type, prefix)| (Some(item_type), prefix)),
        None => Ok((item_type.map(str::parse::<ItemType>).transpose()?, String::new())),
    }
}
