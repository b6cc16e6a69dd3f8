//! `verify_deps`: which files beside a tool it may import, and so have to be verified.

use serde_json::Value;

use crate::anchor::{AnchorError, bool_field, string_list};

/// Never entered, whatever the configuration says: what lies there is made, not written.
const NEVER_ENTERED: [&str; 2] = ["__pycache__", ".git"];
/// Never copied, whatever the configuration says: code that no signature line can be put on.
const NEVER_COPIED: [&str; 8] = [".pyc", ".pyo", ".pyd", ".so", ".dylib", ".dll", ".node", ".pth"];
const DEFAULT_EXCLUDED: [&str; 4] = ["__pycache__", ".venv", "node_modules", ".git"];

/// Which files beside a tool may be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportRules {
    /// Whether any may.
    pub is_enabled: bool,
    /// Where they are.
    pub scope: ImportScope,
    /// Whether folders are entered.
    pub is_recursive: bool,
    /// Their extensions, with the dot.
    pub extensions: Vec<String>,
    /// Folders that are not entered.
    pub exclude_dirs: Vec<String>,
}

/// Where importable files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportScope {
    /// Below the anchor's root.
    Anchor,
    /// Below the tool's folder.
    ToolDir,
    /// In the tool's folder, not below it.
    ToolSiblings,
    /// Nowhere: the tool is alone.
    ToolFile,
}

impl ImportRules {
    /// Reads the `verify_deps` of the first element that has one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn from_config(config: Option<&Value>) -> Result<Self, AnchorError> {
        let shape = |key: &str, expected| AnchorError::InvalidValue { key: key.to_owned(), expected };
        let empty = serde_json::Map::new();
        let config = match config {
            None | Some(Value::Null) => &empty,
            Some(config) => config.as_object().ok_or_else(|| shape("verify_deps", "a map"))?,
        };
        let scope = match config.get("scope") {
            None | Some(Value::Null) => ImportScope::Anchor,
            Some(Value::String(scope)) => match scope.as_str() {
                "anchor" => ImportScope::Anchor,
                "tool_dir" => ImportScope::ToolDir,
                "tool_siblings" => ImportScope::ToolSiblings,
                "tool_file" => ImportScope::ToolFile,
                _ => return Err(invalid_scope()),
            },
            Some(_) => return Err(invalid_scope()),
        };
        let mut extensions = string_list(config, "verify_deps", "extensions")?;
        for extension in &mut extensions {
            if !extension.starts_with('.') {
                extension.insert(0, '.');
            }
        }
        let mut exclude_dirs = string_list(config, "verify_deps", "exclude_dirs")?;
        if !config.contains_key("exclude_dirs") {
            exclude_dirs = DEFAULT_EXCLUDED.map(str::to_owned).to_vec();
        }
        Ok(Self {
            is_enabled: bool_field(config, "verify_deps", "enabled", false)?,
            scope,
            is_recursive: bool_field(config, "verify_deps", "recursive", true)?,
            extensions,
            exclude_dirs,
        })
    }

    /// The same for a runtime's library: files of the tool's own kind, where no extensions are given.
    pub(super) fn for_library(&self, extension: Option<&str>) -> Self {
        let mut library = self.clone();
        if library.extensions.is_empty() {
            library.extensions.extend(extension.map(|extension| format!(".{extension}")));
        }
        library
    }

    /// Whether a folder of this name is entered.
    pub(super) fn includes_folder(&self, name: &str) -> bool {
        !NEVER_ENTERED.contains(&name) && !self.exclude_dirs.iter().any(|excluded| excluded == name)
    }

    /// Whether a file of this name may be imported.
    pub(super) fn includes_file(&self, name: &str) -> bool {
        let is_suffix = |extension: &str| name.len() > extension.len() && name.ends_with(extension);
        self.extensions.iter().any(|extension| is_suffix(extension))
            && !NEVER_COPIED.iter().any(|extension| is_suffix(extension))
    }
}

fn invalid_scope() -> AnchorError {
    AnchorError::InvalidValue {
        key: "verify_deps.scope".to_owned(),
        expected: "anchor, tool_dir, tool_siblings or tool_file",
    }
}
