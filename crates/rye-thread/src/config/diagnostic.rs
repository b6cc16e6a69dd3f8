//! What is wrong with a configuration.

use rye_item::SourcePosition;

/// Something wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDiagnostic {
    /// The file; or the name of the config where the mistake shows only after merging.
    pub file: String,
    /// Where in it.
    pub position: Option<SourcePosition>,
    /// The key: `builtin_hooks[2].event`.
    pub key: String,
    /// What is wrong.
    pub message: String,
}

impl ConfigDiagnostic {
    /// One that shows only after merging.
    #[must_use]
    pub fn of_merged(name: &str, message: String) -> Self {
        Self {
            file: format!("agent/{name}.yaml, after merging"),
            position: None,
            key: String::new(),
            message,
        }
    }
}

impl std::fmt::Display for ConfigDiagnostic {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.file)?;
        if let Some(position) = self.position {
            write!(formatter, ":{position}")?;
        }
        if !self.key.is_empty() {
            write!(formatter, ": {}", self.key)?;
        }
        write!(formatter, ": {}", self.message)
    }
}

/// The configuration cannot be used, with all that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InvalidConfig(pub Vec<ConfigDiagnostic>);
