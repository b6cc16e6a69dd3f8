//! `verify_deps`: which files beside a tool it may import, and so have to be verified.

use serde_json::Value;

use crate::anchor::{AnchorError, flag, texts};

/// Never entered, whatever the configuration says: what lies there is made, not written.
const NEVER_ENTERED: [&str; 2] = ["__pycache__", ".git"];
/// Never copied, whatever the configuration says: code that no signature line can be put on.
const NEVER_COPIED: [&str; 8] = [".pyc", ".pyo", ".pyd", ".so", ".dylib", ".dll", ".node", ".pth"];
const EXCLUDED: [&str; 4] = ["__pycache__", ".venv", "node_modules", ".git"];

/// Which files beside a tool may be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependencies {
    /// Whether any may.
    pub is_enabled: bool,
    /// Where they are.
    pub scope: Scope,
    /// Whether folders are entered.
    pub is_recursive: bool,
    /// Their extensions, with the dot.
    pub extensions: Vec<String>,
    /// Folders that are not entered.
    pub exclude_dirs: Vec<String>,
}

/// Where importable files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Below the anchor's root.
    Anchor,
    /// Below the tool's folder.
    ToolDir,
    /// In the tool's folder, not below it.
    ToolSiblings,
    /// Nowhere: the tool is alone.
    ToolFile,
}

impl Dependencies {
    /// Reads the `verify_deps` of the first element that has one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn from_config(config: Option<&Value>) -> Result<Self, AnchorError> {
        let shape = |key: &str, expected| AnchorError::Shape { key: key.to_owned(), expected };
        let empty = serde_json::Map::new();
        let config = match config {
            None | Some(Value::Null) => &empty,
            Some(config) => config.as_object().ok_or_else(|| shape("verify_deps", "a map"))?,
        };
        let scope = match config.get("scope") {
            None | Some(Value::Null) => Scope::Anchor,
            Some(Value::String(scope)) => match scope.as_str() {
                "anchor" => Scope::Anchor,
                "tool_dir" => Scope::ToolDir,
                "tool_siblings" => Scope::ToolSiblings,
                "tool_file" => Scope::ToolFile,
                _ => return Err(wrong_scope()),
            },
            Some(_) => return Err(wrong_scope()),
        };
        let mut extensions = texts(config, "verify_deps", "extensions")?;
        for extension in &mut extensions {
            if !extension.starts_with('.') {
                extension.insert(0, '.');
            }
        }
        let mut exclude_dirs = texts(config, "verify_deps", "exclude_dirs")?;
        if !config.contains_key("exclude_dirs") {
            exclude_dirs = EXCLUDED.map(str::to_owned).to_vec();
        }
        Ok(Self {
            is_enabled: flag(config, "verify_deps", "enabled", false)?,
            scope,
            is_recursive: flag(config, "verify_deps", "recursive", true)?,
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
    pub(super) fn is_entered(&self, name: &str) -> bool {
        !NEVER_ENTERED.contains(&name) && !self.exclude_dirs.iter().any(|excluded| excluded == name)
    }

    /// Whether a file of this name may be imported.
    pub(super) fn is_listed(&self, name: &str) -> bool {
        let is_suffix = |extension: &str| name.len() > extension.len() && name.ends_with(extension);
        self.extensions.iter().any(|extension| is_suffix(extension))
            && !NEVER_COPIED.iter().any(|extension| is_suffix(extension))
    }
}

fn wrong_scope() -> AnchorError {
    AnchorError::Shape {
        key: "verify_deps.scope".to_owned(),
        expected: "anchor, tool_dir, tool_siblings or tool_file",
    }
}
