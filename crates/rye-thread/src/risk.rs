//! The risk of grants, judged once before a thread starts.
//!
//! A grant is as risky as the riskiest thing it could reach: `rye.execute.tool.*` reaches a shell whether or not it names
//! one. A pattern of the rules that covers the whole grant says how risky it is, the most specific one first; every
//! pattern that the grant reaches into can only raise that. No rules, no thread.

use std::collections::BTreeMap;

use rye_item::text::one_line;
use serde::{Deserialize, Serialize};

use crate::capability::Capabilities;
use crate::item_names::TOOL_NAMES;

/// How risky something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// It looks.
    Safe,
    /// It changes files of the project.
    Write,
    /// It can do what the user can, or vouch in the user's name.
    Elevated,
    /// Everything.
    Unrestricted,
}

impl Risk {
    /// All of them, the least first.
    pub const ALL: [Self; 4] = [Self::Safe, Self::Write, Self::Elevated, Self::Unrestricted];

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Write => "write",
            Self::Elevated => "elevated",
            Self::Unrestricted => "unrestricted",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|risk| risk.as_str() == word)
    }
}

/// What a risk needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RiskPolicy {
    /// Nothing.
    Allow,
    /// The directive acknowledges it, or a greater one.
    AcknowledgeRequired,
    /// A person allows each call.
    ApprovalRequired,
    /// The directive acknowledges exactly it.
    Block,
}

/// A level of risk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RiskLevel {
    /// What it needs.
    pub policy: RiskPolicy,
    /// For people.
    #[serde(default)]
    pub description: String,
}

/// What has which risk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RiskClass {
    /// How risky.
    pub risk: Risk,
    /// What: patterns of grants.
    pub patterns: Vec<String>,
    /// For people.
    #[serde(default)]
    pub description: String,
}

/// The rules: `capability_risk.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RiskRules {
    /// What each risk needs.
    pub risk_levels: BTreeMap<Risk, RiskLevel>,
    /// What has which risk.
    pub classifications: Vec<RiskClass>,
}

/// Why a thread may not have its grants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RiskRefusal(pub String);

/// A grant that is risky and may be had all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgedGrant {
    /// The grant.
    pub grant: String,
    /// How risky it is.
    pub risk: Risk,
    /// What the rules say of it.
    pub description: String,
}

impl RiskRules {
    /// Whether the rules can judge anything.
    ///
    /// # Errors
    /// When a level is missing, or a pattern is not a grant.
    pub fn check(&self) -> Result<(), RiskRefusal> {
        let absent: Vec<&str> = Risk::ALL
            .iter()
            .filter(|risk| !self.risk_levels.contains_key(risk))
            .map(|risk| risk.as_str())
            .collect();
        if !absent.is_empty() {
            return Err(RiskRefusal(format!("the rules of risk say nothing of {}", absent.join(", "))));
        }
        if self.classifications.is_empty() {
            return Err(RiskRefusal("the rules of risk classify nothing".to_owned()));
        }
        for class in &self.classifications {
            Capabilities::parse(&class.patterns)
                .map_err(|error| RiskRefusal(format!("the rules of risk: {error}")))?;
        }
        Ok(())
    }

    /// How risky a grant is, and why: as risky as the same grant for the other id of an item that it reaches.
    fn classify_all_names(&self, grant: &str) -> (Risk, &str) {
        let granted = Capabilities::parse([grant]).unwrap_or_default();
        let reaches = |id: &str| granted.overlaps(&execute_grant(id));
        let names = TOOL_NAMES.iter().filter(|(first, second)| reaches(first) || reaches(second));
        let others =
            names.flat_map(|(first, second)| [first, second]).map(|id| self.classify(&execute_grant(id)));
        others.fold(self.classify(grant), |most, other| if other.0 > most.0 { other } else { most })
    }

    /// How risky a grant is, and why. Without a rule it is elevated: it was not reviewed.
    fn classify(&self, grant: &str) -> (Risk, &str) {
        let Ok(granted) = Capabilities::parse([grant]) else {
            return (Risk::Unrestricted, "it cannot be read");
        };
        let mut covering: Option<(usize, Risk, &str)> = None;
        let mut overlapping: Option<(Risk, &str)> = None;
        for class in &self.classifications {
            let Ok(patterns) = Capabilities::parse(&class.patterns) else {
                return (Risk::Unrestricted, "the rules of risk cannot be read");
            };
            let (risk, description) = (class.risk, class.description.as_str());
            for pattern in patterns.iter() {
                let specific = specificity(pattern);
                if Capabilities::parse([pattern]).is_ok_and(|pattern| pattern.covers(grant)) {
                    let is_better = |best: &(usize, Risk, &str)| (specific, risk) > (best.0, best.1);
                    if covering.as_ref().is_none_or(is_better) {
                        covering = Some((specific, risk, description));
                    }
                } else if granted.overlaps(pattern) && overlapping.is_none_or(|known| risk > known.0) {
                    overlapping = Some((risk, description));
                }
            }
        }
        let covered = covering.map_or((Risk::Elevated, "no rule speaks of it"), |(_, risk, why)| (risk, why));
        overlapping.filter(|overlapping| overlapping.0 > covered.0).unwrap_or(covered)
    }

    /// Why a person is asked before what needs these grants is done; nothing if no approval is needed.
    #[must_use]
    pub fn approval_reason(&self, required: &[String]) -> Option<String> {
        let needs_approval = |risk: &Risk| {
            self.risk_levels.get(risk).is_some_and(|level| level.policy == RiskPolicy::ApprovalRequired)
        };
        if !Risk::ALL.iter().any(needs_approval) {
            return None;
        }
        let classified = required.iter().map(|grant| self.classify(grant));
        let (risk, description) =
            classified.filter(|(risk, _)| needs_approval(risk)).max_by_key(|(risk, _)| *risk)?;
        Some(format!("{} needs a person's word: {}", risk.as_str(), one_line(description)))
    }

    /// Lets a thread have these grants, or says which acknowledgements are missing, all at once.
    ///
    /// # Errors
    /// When the rules cannot judge, or a risk is not acknowledged.
    pub fn authorize(
        &self,
        capabilities: &Capabilities,
        acknowledged: &[Risk],
    ) -> Result<Vec<AcknowledgedGrant>, RiskRefusal> {
        self.check()?;
        let mut allowed = Vec::new();
        let mut refused = Vec::new();
        for grant in capabilities.iter() {
            let (risk, description) = self.classify_all_names(grant);
            let policy = self.risk_levels.get(&risk).map_or(RiskPolicy::Block, |level| level.policy);
            let is_fine = match policy {
                // Of each call a person is asked.
                RiskPolicy::Allow | RiskPolicy::ApprovalRequired => true,
                RiskPolicy::AcknowledgeRequired => acknowledged.iter().any(|known| *known >= risk),
                RiskPolicy::Block => acknowledged.contains(&risk),
            };
            if !is_fine {
                let word = risk.as_str();
                refused.push(format!(
                    "Capability '{grant}' classified as '{word}' ({}). Add <acknowledge risk=\"{word}\"> to the \
                     directive's <permissions> to explicitly allow this.",
                    one_line(description)
                ));
            } else if policy != RiskPolicy::Allow {
                let description = one_line(description);
                allowed.push(AcknowledgedGrant { grant: grant.to_owned(), risk, description });
            }
        }
        if refused.is_empty() { Ok(allowed) } else { Err(RiskRefusal(refused.join("\n"))) }
    }
}

fn execute_grant(id: &str) -> String {
    format!("rye.execute.tool.{}", id.replace('/', "."))
}

/// More dots, more specific; of two with as many, the one without a wildcard.
fn specificity(pattern: &str) -> usize {
    pattern.matches('.').count() * 2 + usize::from(!pattern.contains('*'))
}

/// The risks a directive acknowledges: its `acknowledged_risks`, a list of `{"risk", "reason"}`.
///
/// # Errors
/// When a word is not a risk.
pub fn acknowledged_risks(risks: Option<&serde_json::Value>) -> Result<Vec<Risk>, RiskRefusal> {
    let list = risks.and_then(serde_json::Value::as_array).into_iter().flatten();
    list.map(|entry| {
        let word = entry.get("risk").and_then(serde_json::Value::as_str).unwrap_or_default();
        Risk::parse(word).ok_or_else(|| {
            let words = Risk::ALL.map(Risk::as_str).join(", ");
            RiskRefusal(format!("<acknowledge risk=\"{}\">: there are {words}", one_line(word)))
        })
    })
    .collect()
}

#[cfg(test)]
mod tests;
