//! The anchor: the folder whose files a tool may import, decided from its `anchor` configuration. What lies there is
//! verified and copied by [`crate::staging`]; here nothing is read but whether markers exist.

use std::path::{Component, Path, PathBuf};

use rye_item::text::one_line;
use serde_json::{Map, Value};

/// Where a tool is anchored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Whether there is more than the tool's own file.
    pub is_active: bool,
    /// The folder imports start from; the tool's own folder when not active.
    pub root: PathBuf,
    /// The library folder of the element that declares the anchor, if it has one.
    pub lib: Option<PathBuf>,
    /// The working folder, a template.
    pub cwd: Option<String>,
    /// Search paths that get folders; empty when not active.
    pub env_paths: Vec<SearchPath>,
}

/// Whether the tool may import a file: one that another bundle brought is none of its own.
pub type IsImportable<'a> = &'a dyn Fn(&Path) -> bool;

/// What makes a folder a package of Python, which may import from the packages around it.
const PACKAGE_MARKER: &str = "__init__.py";

impl Anchor {
    /// The outermost package around the root, if the root is a package inside another. `tools` itself is none. Files that
    /// may not be imported make no package.
    #[must_use]
    pub fn package(&self, tools: &Path, is_importable: IsImportable<'_>) -> Option<PathBuf> {
        let is_package = |folder: &Path| {
            let file = folder.join(PACKAGE_MARKER);
            file.is_file() && is_importable(&file)
        };
        if !self.is_active || !is_package(&self.root) {
            return None;
        }
        let is_inside = |folder: &Path| folder.starts_with(tools) && folder != tools;
        let ancestors = self.root.ancestors().skip(1);
        ancestors.take_while(|folder| is_inside(folder) && is_package(folder)).last().map(Path::to_owned)
    }
}

/// What continues one search path. The folders are templates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchPath {
    /// The variable.
    pub variable: String,
    /// Folders before what is there.
    pub prepend: Vec<String>,
    /// Folders after what is there.
    pub append: Vec<String>,
}

/// Why an `anchor` is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnchorError {
    /// A key has the wrong type or value.
    #[error("`{key}` must be {expected}")]
    InvalidValue {
        /// The key, with dots.
        key: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The tool's path has no folder.
    #[error("`{path}` has no parent folder")]
    NoParentFolder {
        /// The path.
        path: String,
    },
}

/// Decides where a tool is anchored.
///
/// `config` is the `anchor` of the first element that has one, `declared_in` that element's folder, `tool` the tool's
/// file. A marker that may not be imported marks nothing.
///
/// # Errors
/// When the configuration is malformed.
pub fn resolve(
    config: Option<&Value>,
    declared_in: &Path,
    tool: &Path,
    project: Option<&Path>,
    is_importable: IsImportable<'_>,
) -> Result<Anchor, AnchorError> {
    let folder = tool
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .ok_or_else(|| AnchorError::NoParentFolder { path: one_line(&tool.display().to_string()) })?;
    let inactive =
        Anchor { is_active: false, root: folder.to_owned(), lib: None, cwd: None, env_paths: Vec::new() };
    let Some(config) = config.filter(|config| !config.is_null()) else {
        return Ok(inactive);
    };
    let config = config.as_object().ok_or_else(|| invalid_value("anchor", "a map"))?;
    if !bool_field(config, "anchor", "enabled", false)? {
        return Ok(inactive);
    }
    let lib = library_folder(config, declared_in)?;
    let is_active = match string_field(config, "mode")?.unwrap_or("auto") {
        "auto" => {
            let markers = string_list(config, "anchor", "markers_any")?;
            markers.iter().any(|marker| is_marked(folder, marker) && is_importable(&folder.join(marker)))
        }
        "always" => true,
        "never" => false,
        _ => return Err(invalid_value("anchor.mode", "auto, always or never")),
    };
    let root = match string_field(config, "root")?.unwrap_or("tool_dir") {
        "tool_dir" => folder,
        "tool_parent" => folder.parent().unwrap_or(folder),
        "project_path" => project.filter(|project| tool.starts_with(project)).unwrap_or(folder),
        _ => return Err(invalid_value("anchor.root", "tool_dir, tool_parent or project_path")),
    };
    let (cwd, env_paths) = (string_field(config, "cwd")?.map(str::to_owned), search_paths(config)?);
    if !is_active {
        return Ok(Anchor { lib, ..inactive });
    }
    Ok(Anchor { is_active, root: root.to_owned(), lib, cwd, env_paths })
}

/// A marker is the name of something in the tool's own folder.
fn is_marked(folder: &Path, marker: &str) -> bool {
    let mut parts = Path::new(marker).components();
    let is_name = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    is_name && folder.join(marker).exists()
}

fn library_folder(config: &Map<String, Value>, declared_in: &Path) -> Result<Option<PathBuf>, AnchorError> {
    let Some(lib) = string_field(config, "lib")?.filter(|lib| !lib.is_empty()) else {
        return Ok(None);
    };
    let parts = Path::new(lib).components();
    if !parts.clone().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(invalid_value("anchor.lib", "a folder below the one of the item that declares it"));
    }
    let names = parts.filter(|part| matches!(part, Component::Normal(_)));
    let folder = names.fold(declared_in.to_owned(), |folder, name| folder.join(name));
    Ok(folder.is_dir().then_some(folder))
}

fn search_paths(config: &Map<String, Value>) -> Result<Vec<SearchPath>, AnchorError> {
    let paths = match config.get("env_paths") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(paths) => {
            paths.as_object().ok_or_else(|| invalid_value("anchor.env_paths", "a map of variables"))?
        }
    };
    let path = |(variable, ends): (&String, &Value)| {
        let key = format!("anchor.env_paths.{variable}");
        if !crate::environment::is_variable_name(variable) {
            return Err(invalid_value(key, "named like a variable: letters, digits and `_`"));
        }
        let ends =
            ends.as_object().ok_or_else(|| invalid_value(&key, "a map with `prepend` and `append`"))?;
        let (prepend, append) = (string_list(ends, &key, "prepend")?, string_list(ends, &key, "append")?);
        Ok(SearchPath { variable: variable.clone(), prepend, append })
    };
    paths.iter().map(path).collect()
}

fn invalid_value(key: impl Into<String>, expected: &'static str) -> AnchorError {
    AnchorError::InvalidValue { key: key.into(), expected }
}

fn string_field<'a>(config: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, AnchorError> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(invalid_value(format!("anchor.{key}"), "a text")),
    }
}

pub(crate) fn bool_field(
    config: &Map<String, Value>,
    above: &str,
    key: &str,
    default: bool,
) -> Result<bool, AnchorError> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(invalid_value(format!("{above}.{key}"), "true or false")),
    }
}

pub(crate) fn string_list(
    config: &Map<String, Value>,
    above: &str,
    key: &str,
) -> Result<Vec<String>, AnchorError> {
    let wrong = || invalid_value(format!("{above}.{key}"), "a list of texts");
    match config.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(value) => {
            let list = value.as_array().ok_or_else(wrong)?.iter();
            list.map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use rye_test::TestContext;
    use serde_json::json;

    use super::*;

    fn tool(world: &TestContext) -> PathBuf {
        world.write("project/.ai/tools/demo/pack/tool.py", "")
    }

    fn anchor(world: &TestContext, config: &Value) -> Result<Anchor, AnchorError> {
        let project = world.project();
        resolve(Some(config), &world.path().join("runtime"), &tool(world), Some(&project), &|_| true)
    }

    fn inactive(world: &TestContext) -> Anchor {
        let root = world.project().join(".ai/tools/demo/pack");
        Anchor { is_active: false, root, lib: None, cwd: None, env_paths: Vec::new() }
    }

    #[test]
    fn anchor_is_off_unless_enabled_and_marked() {
        let world = TestContext::new();
        let off = [
            json!(null),
            json!({}),
            json!({"mode": "always"}),
            json!({"enabled": true}),
            json!({"enabled": true, "mode": "never", "markers_any": ["tool.py"]}),
            json!({"enabled": true, "markers_any": ["pyproject.toml", "../pack", "/", ""]}),
        ];
        for config in off {
            assert_eq!(anchor(&world, &config), Ok(inactive(&world)), "{config}");
        }
        world.write("project/.ai/tools/demo/pack/pyproject.toml", "");
        for config in [
            json!({"enabled": true, "markers_any": ["__init__.py", "pyproject.toml"]}),
            json!({"enabled": true, "mode": "always"}),
        ] {
            assert_eq!(
                anchor(&world, &config),
                Ok(Anchor { is_active: true, ..inactive(&world) }),
                "{config}"
            );
        }
    }

    #[test]
    fn marker_of_another_bundle_marks_nothing() {
        let world = TestContext::new();
        world.write("project/.ai/tools/demo/pack/__init__.py", "");
        let config = json!({"enabled": true, "markers_any": ["__init__.py"]});
        let at = |is_importable: IsImportable<'_>| {
            resolve(Some(&config), &world.path().join("runtime"), &tool(&world), None, is_importable)
        };
        assert!(at(&|_| true).expect("an anchor").is_active);
        assert_eq!(at(&|_| false), Ok(inactive(&world)));
    }

    #[test]
    fn the_root_is_one_of_three_folders() {
        let world = TestContext::new();
        let root = |root: &str| {
            let anchor =
                anchor(&world, &json!({"enabled": true, "mode": "always", "root": root})).expect("an anchor");
            anchor.root.strip_prefix(world.project()).expect("inside").display().to_string()
        };
        assert_eq!(root("tool_dir"), ".ai/tools/demo/pack");
        assert_eq!(root("tool_parent"), ".ai/tools/demo");
        assert_eq!(root("project_path"), "");
        let config = json!({"enabled": true, "mode": "always", "root": "project_path"});
        let elsewhere = world.write("home/.ai/tools/a.py", "");
        let anchor = resolve(Some(&config), Path::new("/"), &elsewhere, Some(&world.project()), &|_| true)
            .expect("an anchor");
        assert_eq!(anchor.root, world.home().join(".ai/tools"));
    }

    #[test]
    fn package_is_the_outermost_enclosing_one() {
        let world = TestContext::new();
        let tools = world.project().join(".ai/tools");
        let anchor = |is_active| Anchor { is_active, root: tools.join("a/b/c"), ..inactive(&world) };
        for folder in ["", "a/b/", "a/b/c/"] {
            world.write(&format!("project/.ai/tools/{folder}__init__.py"), "");
        }
        assert_eq!(anchor(true).package(&tools, &|_| true), Some(tools.join("a/b")));
        assert_eq!(anchor(false).package(&tools, &|_| true), None);
        world.write("project/.ai/tools/a/__init__.py", "");
        assert_eq!(anchor(true).package(&tools, &|_| true), Some(tools.join("a")));
        assert_eq!(anchor(true).package(&tools.join("a/b/c"), &|_| true), None);
        // What another bundle brought makes no package.
        let others = |path: &Path| path.parent() != Some(&tools.join("a"));
        assert_eq!(anchor(true).package(&tools, &others), Some(tools.join("a/b")));
        let plain = Anchor { root: tools.join("a/b/d"), ..anchor(true) };
        assert_eq!(plain.package(&tools, &|_| true), None);
    }

    #[test]
    fn library_is_below_its_declaring_element() {
        let world = TestContext::new();
        world.write("runtime/lib/a.py", "");
        world.write("other/a.py", "");
        let lib = |lib: &str| anchor(&world, &json!({"enabled": true, "lib": lib})).map(|anchor| anchor.lib);
        assert_eq!(lib("lib"), Ok(Some(world.path().join("runtime/lib"))));
        assert_eq!(lib("."), Ok(Some(world.path().join("runtime"))));
        assert_eq!((lib("none"), lib("")), (Ok(None), Ok(None)));
        for outside in ["../other", "/etc", "lib/../../other"] {
            assert!(
                matches!(lib(outside), Err(AnchorError::InvalidValue { key, .. }) if key == "anchor.lib"),
                "{outside}"
            );
        }
    }

    #[test]
    fn malformed_anchor_is_refused_even_when_inactive() {
        let world = TestContext::new();
        let cases = [
            (json!([]), "anchor"),
            (json!({"enabled": "yes"}), "anchor.enabled"),
            (json!({"enabled": true, "mode": "maybe"}), "anchor.mode"),
            (json!({"enabled": true, "root": "/"}), "anchor.root"),
            (json!({"enabled": true, "markers_any": "x"}), "anchor.markers_any"),
            (json!({"enabled": true, "cwd": 1}), "anchor.cwd"),
            (json!({"enabled": true, "env_paths": []}), "anchor.env_paths"),
            (json!({"enabled": true, "env_paths": {"A": []}}), "anchor.env_paths.A"),
            (json!({"enabled": true, "env_paths": {"A B": {}}}), "anchor.env_paths.A B"),
            (json!({"enabled": true, "env_paths": {"A": {"prepend": [1]}}}), "anchor.env_paths.A.prepend"),
        ];
        for (config, expected) in cases {
            assert!(
                matches!(anchor(&world, &config), Err(AnchorError::InvalidValue { key, .. }) if key == expected),
                "{config}"
            );
        }
    }
}
