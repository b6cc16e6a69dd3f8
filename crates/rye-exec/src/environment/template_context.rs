//! The places a tool's configuration may name in braces: `{tool_path}`, `{anchor_path}`, ….

/// Where a tool and its surroundings are, as text for templates. What is not there is the empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateContext {
    /// The tool's file.
    pub tool_path: String,
    /// The folder of the tool's file.
    pub tool_dir: String,
    /// The folder above that.
    pub tool_parent: String,
    /// The anchor's root, or the tool's folder.
    pub anchor_path: String,
    /// The library folder of the runtime.
    pub runtime_lib: String,
    /// The project.
    pub project_path: String,
    /// The user space's base.
    pub user_space: String,
    /// The system space's base.
    pub system_space: String,
}

const PLACEHOLDER_NAMES: [&str; 8] = [
    "tool_path",
    "tool_dir",
    "tool_parent",
    "anchor_path",
    "runtime_lib",
    "project_path",
    "user_space",
    "system_space",
];

impl TemplateContext {
    /// The names that [`TemplateContext::get`] knows.
    #[must_use]
    pub fn placeholder_names() -> &'static [&'static str] {
        &PLACEHOLDER_NAMES
    }

    /// The place of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        Some(match name {
            "tool_path" => &self.tool_path,
            "tool_dir" => &self.tool_dir,
            "tool_parent" => &self.tool_parent,
            "anchor_path" => &self.anchor_path,
            "runtime_lib" => &self.runtime_lib,
            "project_path" => &self.project_path,
            "user_space" => &self.user_space,
            "system_space" => &self.system_space,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_name_resolves() {
        let context = TemplateContext { project_path: "/p".to_owned(), ..TemplateContext::default() };
        assert!(TemplateContext::placeholder_names().iter().all(|name| context.get(name).is_some()));
        assert_eq!((context.get("project_path"), context.get("params_json")), (Some("/p"), None));
    }
}
