//! `agent.yaml`: which model is asked when nothing else says it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Defaults of models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentConfig {
    /// The provider that is asked unless another is named.
    pub default_provider: Option<String>,
    /// The most tokens of one answer.
    pub max_output_tokens: u64,
    /// Tier to model, over what providers say.
    pub tier_mapping: BTreeMap<String, String>,
    /// The models of a tier, in the order in which they are asked.
    pub tiers: BTreeMap<String, Vec<TierModel>>,
}

/// A model of a tier's list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct TierModel {
    /// The provider.
    pub provider: String,
    /// The model; the provider's own for the tier if it is not said.
    #[serde(default)]
    pub model: Option<String>,
}

#[derive(Deserialize)]
struct AgentFile {
    #[serde(default)]
    provider: Provider,
    max_output_tokens: u64,
    #[serde(default)]
    tier_mapping: BTreeMap<String, String>,
    #[serde(default)]
    tiers: BTreeMap<String, Vec<TierModel>>,
}

#[derive(Default, Deserialize)]
struct Provider {
    default: Option<String>,
}

impl AgentConfig {
    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        let file: AgentFile = super::typed(value)?;
        Ok(Self {
            default_provider: file.provider.default,
            max_output_tokens: file.max_output_tokens,
            tier_mapping: file.tier_mapping,
            tiers: file.tiers,
        })
    }
}
