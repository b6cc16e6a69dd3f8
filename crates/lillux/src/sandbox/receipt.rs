//! The receipt: which rule of a confinement is in force, and by what.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What confined a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// How much of what was asked for is in force.
    pub level: EnforcementLevel,
    /// Each rule, with each mechanism that was to enforce it.
    pub rows: Vec<ReceiptRow>,
    /// Protected paths that another program replaced or removed during the run: from then on they were not protected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<PathBuf>,
    /// Files and folders that the run made, that other programs would obey, and that were given another name after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved_aside: Vec<PathBuf>,
    /// The same, where that failed: they are still there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_in_place: Vec<PathBuf>,
}

/// How much of what was asked for is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnforcementLevel {
    /// Every rule, by at least one mechanism.
    Full,
    /// Some rules are not enforced.
    Partial,
    /// No confinement was asked for.
    #[default]
    Off,
}

/// One rule and one mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptRow {
    /// The rule.
    pub rule: SandboxRule,
    /// What enforces it.
    pub mechanism: Mechanism,
    /// The version of the mechanism, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abi: Option<u32>,
    /// Whether it is in force.
    pub is_enforced: bool,
    /// What a person should know of it.
    pub detail: String,
}

/// What a confinement demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxRule {
    /// Files change only below the folders that are open for writing.
    Writes,
    /// Hidden files cannot be read.
    Hidden,
    /// Files inside folders that are open for writing stay as they are.
    ReadOnly,
    /// The network is closed.
    Network,
    /// UNIX sockets are refused but for pairs, the run's own and allowed ones.
    UnixSockets,
    /// Dangerous system calls are refused.
    SystemCalls,
    /// Processes outside cannot be read or signalled.
    OtherProcesses,
    /// Every descendant ends with the run.
    Descendants,
    /// Privileges are gone and cannot be gained.
    Privileges,
    /// The number of processes is bounded.
    Processes,
    /// File sizes, descriptors and memory are bounded.
    Resources,
    /// Modes, owners, times and attributes change only below the folders that are open for writing.
    Metadata,
    /// No set-uid or set-gid bit is set.
    SetId,
    /// No terminal but the run's own can be opened.
    Terminals,
}

/// What enforces a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// Landlock, the kernel's path, port and scope rules.
    Landlock,
    /// A filter of system calls.
    Seccomp,
    /// Mounts of the process's own.
    MountNamespace,
    /// A process tree of its own.
    PidNamespace,
    /// A network of its own, with nothing in it.
    NetworkNamespace,
    /// A user namespace, which allows the others to ordinary users.
    UserNamespace,
    /// The kernel's limits of resources.
    ResourceLimit,
    /// A supervisor that counts.
    #[serde(rename = "counting")]
    ProcessCounter,
    /// A supervisor that inherits orphans and ends them.
    Subreaper,
    /// `no_new_privs` and dropped capabilities.
    Capabilities,
    /// Nothing.
    None,
}

impl fmt::Display for SandboxRule {
    /// The rule in words: `UNIX sockets`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Writes => "writes",
            Self::Hidden => "hidden",
            Self::ReadOnly => "read only",
            Self::Network => "network",
            Self::UnixSockets => "UNIX sockets",
            Self::SystemCalls => "system calls",
            Self::OtherProcesses => "other processes",
            Self::Descendants => "descendants",
            Self::Privileges => "privileges",
            Self::Processes => "processes",
            Self::Resources => "resources",
            Self::Metadata => "metadata",
            Self::SetId => "set-id bits",
            Self::Terminals => "terminals",
        })
    }
}

impl ReceiptRow {
    pub(crate) fn new(
        rule: SandboxRule,
        mechanism: Mechanism,
        is_enforced: bool,
        detail: impl Into<String>,
    ) -> Self {
        Self { rule, mechanism, abi: None, is_enforced, detail: detail.into() }
    }

    pub(crate) fn abi(mut self, abi: Option<u32>) -> Self {
        self.abi = abi;
        self
    }
}

impl Receipt {
    /// A receipt whose level follows from its rows.
    #[must_use]
    pub fn from_rows(rows: Vec<ReceiptRow>) -> Self {
        let mut receipt = Self {
            level: EnforcementLevel::Full,
            rows,
            replaced: Vec::new(),
            moved_aside: Vec::new(),
            left_in_place: Vec::new(),
        };
        if !receipt.unenforced().is_empty() {
            receipt.level = EnforcementLevel::Partial;
        }
        receipt
    }

    /// The rules that nothing enforces, in words; `None` if there are none.
    #[must_use]
    pub fn describe_unenforced(&self) -> Option<String> {
        let rules: Vec<String> = self.unenforced().iter().map(ToString::to_string).collect();
        (!rules.is_empty()).then(|| rules.join(", "))
    }

    /// Notes protected paths that were replaced during the run. With any of them, not all that was asked for was in force.
    pub fn add_replaced(&mut self, paths: Vec<PathBuf>) {
        if !paths.is_empty() && self.level == EnforcementLevel::Full {
            self.level = EnforcementLevel::Partial;
        }
        self.replaced.extend(paths);
    }

    /// The rules that nothing enforces.
    #[must_use]
    pub fn unenforced(&self) -> Vec<SandboxRule> {
        let mut rules: Vec<SandboxRule> = self.rows.iter().map(|row| row.rule).collect();
        rules.sort();
        rules.dedup();
        rules.retain(|rule| !self.rows.iter().any(|row| row.rule == *rule && row.is_enforced));
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_paths_make_a_receipt_partial() {
        let mut receipt = Receipt::from_rows(vec![ReceiptRow::new(
            SandboxRule::ReadOnly,
            Mechanism::MountNamespace,
            true,
            "",
        )]);
        receipt.add_replaced(Vec::new());
        assert_eq!(receipt.level, EnforcementLevel::Full);
        receipt.add_replaced(vec![PathBuf::from("/p/.mcp.json")]);
        assert_eq!(receipt.level, EnforcementLevel::Partial);
        assert_eq!(receipt.unenforced(), Vec::<SandboxRule>::new());
        let read: Receipt =
            serde_json::from_value(serde_json::to_value(&receipt).expect("JSON")).expect("a receipt");
        assert_eq!(read, receipt);
    }

    #[test]
    fn unenforced_rules_are_listed_by_name() {
        let row = |rule, is_enforced| ReceiptRow::new(rule, Mechanism::None, is_enforced, "");
        let rows = vec![
            row(SandboxRule::UnixSockets, false),
            row(SandboxRule::Writes, false),
            row(SandboxRule::Hidden, true),
        ];
        assert_eq!(Receipt::from_rows(rows).describe_unenforced().as_deref(), Some("writes, UNIX sockets"));
        assert_eq!(Receipt::from_rows(vec![row(SandboxRule::Writes, true)]).describe_unenforced(), None);
    }
}
