//! The primary actions: what agents may ask of an item.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What can be done with items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrimaryAction {
    /// Find items by words.
    Search,
    /// Read one item.
    Load,
    /// Load when given an id, search when given a query.
    Fetch,
    /// Run an item.
    Execute,
    /// Validate and sign an item.
    Sign,
}

impl PrimaryAction {
    /// All actions.
    pub const ALL: [Self; 5] = [Self::Search, Self::Load, Self::Fetch, Self::Execute, Self::Sign];

    /// The action's word, as in tags and capabilities.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::Load => "load",
            Self::Fetch => "fetch",
            Self::Execute => "execute",
            Self::Sign => "sign",
        }
    }
}

/// The text is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown action `{0}`")]
pub struct UnknownPrimaryAction(pub String);

impl FromStr for PrimaryAction {
    type Err = UnknownPrimaryAction;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|action| action.as_str() == text)
            .ok_or_else(|| UnknownPrimaryAction(text.to_owned()))
    }
}
