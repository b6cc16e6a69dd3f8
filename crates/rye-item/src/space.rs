//! The three spaces and their order, and the ids of bundles.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::id::{InvalidId, ItemId};

/// The name of a bundle: one segment of an item id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct BundleId(ItemId);

impl BundleId {
    /// Checks `text` and makes it a bundle id.
    ///
    /// # Errors
    /// When it is not a single valid segment.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
        let id = ItemId::new(text).map_err(|error| InvalidId { is_bundle: true, ..error })?;
        if id.as_str().contains('/') {
            let reason = "it is one segment, without `/`";
            return Err(InvalidId { is_bundle: true, id: id.to_string(), reason });
        }
        Ok(Self(id))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The id as that of an item: what a bundle's manifest is called.
    #[must_use]
    pub fn as_item_id(&self) -> &ItemId {
        &self.0
    }
}

impl fmt::Display for BundleId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// Where an item was found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `<project>/.ai`.
    Project,
    /// `<user space>/.ai`.
    User,
    /// A bundle of the system space.
    System(BundleId),
}

impl Space {
    /// Project 3, user 2, every system bundle 1. An element may depend on equal or lower precedence only.
    #[must_use]
    pub fn precedence(&self) -> u8 {
        self.tier().precedence()
    }

    /// The space without its bundle: `project`, `user`, `system`.
    #[must_use]
    pub fn tier(&self) -> SpaceTier {
        match self {
            Self::Project => SpaceTier::Project,
            Self::User => SpaceTier::User,
            Self::System(_) => SpaceTier::System,
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Project => formatter.write_str("project"),
            Self::User => formatter.write_str("user"),
            Self::System(bundle) => write!(formatter, "system:{bundle}"),
        }
    }
}

impl Serialize for Space {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One of the three spaces, without a bundle's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpaceTier {
    /// The project's space.
    Project,
    /// The user's space.
    User,
    /// The system's bundles.
    System,
}

impl SpaceTier {
    /// Project 3, user 2, system 1.
    #[must_use]
    pub fn precedence(self) -> u8 {
        match self {
            Self::Project => 3,
            Self::User => 2,
            Self::System => 1,
        }
    }

    /// The tier's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::User => "user",
            Self::System => "system",
        }
    }
}

impl fmt::Display for SpaceTier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
