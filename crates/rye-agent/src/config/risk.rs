//! `capability_risk.yaml`: how dangerous a capability is. Only the user may say otherwise than the system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How dangerous capabilities are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Risk {
    /// The levels by name: `safe`, `write`, `elevated`, `unrestricted`.
    #[serde(rename = "risk_levels")]
    pub levels: BTreeMap<String, Level>,
    /// Which capability has which level.
    pub classifications: Vec<Classification>,
}

/// A level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// What it takes to grant it.
    pub policy: Policy,
    /// What it means.
    #[serde(default)]
    pub description: String,
}

/// What it takes to grant a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Nothing.
    Allow,
    /// The directive acknowledges the level.
    AcknowledgeRequired,
    /// Likewise, and it is refused without.
    Block,
}

/// Capabilities of one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classification {
    /// The level.
    pub risk: String,
    /// Capabilities, with `*`.
    pub patterns: Vec<String>,
    /// What they are.
    #[serde(default)]
    pub description: String,
}

impl Risk {
    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        let risk: Self = super::typed(value)?;
        let unknown = risk.classifications.iter().find(|one| !risk.levels.contains_key(&one.risk));
        match unknown {
            Some(one) => {
                Err(format!("classifications: there is no level `{}`", rye_item::text::one_line(&one.risk)))
            }
            None => Ok(risk),
        }
    }
}
