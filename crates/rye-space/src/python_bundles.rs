//! Bundles in Python packages: those that declare an entry point of the group `rye.bundles`, in the interpreters the user
//! names. Nothing of a package is run: its metadata and the source of its function are read, within bounds.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use rye_item::parse::python::{ModuleContext, ReturnLiteral, read_return_literal};
use rye_item::text::one_line;
use rye_item::{BundleId, ItemId};
use serde_json::Value;

use crate::bundle::ConfiguredBundle;
use crate::file_stamp::WatchSet;
use crate::roots::AI_FOLDER;

const ENTRY_POINT_GROUP: &str = "rye.bundles";
/// Bounds of what is read for a look: far beyond what packages have, little for the machine.
const MAX_DIR_ENTRIES: usize = 20_000;
const MAX_ENTRY_POINTS_BYTES: u64 = 256 << 10;
const MAX_MODULE_BYTES: u64 = 256 << 10;
const MAX_METADATA_BYTES: u64 = 4 << 20;
const MAX_PTH_BYTES: u64 = 64 << 10;
const MAX_MODULE_PATHS: usize = 256;
const MAX_BUNDLES_PER_PACKAGE: usize = 64;

/// What was found in Python packages.
#[derive(Debug, Default)]
pub struct PythonBundles {
    /// The bundles, in order.
    pub bundles: Vec<ConfiguredBundle>,
    /// What was left out, and why.
    pub notices: Vec<String>,
}

/// Finds the bundles of the packages in these places: an interpreter, a virtual environment or a folder of packages.
/// The files and folders it depends on are added to `watch_set`.
#[must_use]
pub fn find_bundles(interpreters: &[PathBuf], watch_set: &mut WatchSet) -> PythonBundles {
    let mut found = PythonBundles::default();
    let mut seen = BTreeSet::new();
    for interpreter in interpreters {
        match package_dirs(interpreter) {
            Ok(folders) => {
                for folder in folders {
                    // One folder may have several names: `lib64` is often a link to `lib`.
                    if seen.insert(fs_err::canonicalize(&folder).unwrap_or_else(|_| folder.clone())) {
                        PackageDir::open(folder, watch_set).bundles(watch_set, &mut found);
                    }
                }
            }
            Err(reason) => {
                watch_set.add(interpreter.clone());
                found.notices.push(format!(
                    "`bundles.python` names `{}`, which is left out: {reason}",
                    one_line(&interpreter.display().to_string())
                ));
            }
        }
    }
    found
}

/// The folders of packages that belong to a place.
fn package_dirs(interpreter: &Path) -> Result<Vec<PathBuf>, &'static str> {
    if !interpreter.is_absolute() {
        return Err("it is not an absolute path");
    }
    let metadata = fs_err::metadata(interpreter).map_err(|_| "it is missing")?;
    let is_library = |folder: &Path| {
        folder.file_name().is_some_and(|name| name == "site-packages" || name == "dist-packages")
    };
    if metadata.is_dir() {
        if is_library(interpreter)
            || sorted_names(interpreter).iter().any(|name| name.ends_with(".dist-info"))
        {
            return Ok(vec![interpreter.to_owned()]);
        }
        return package_dirs_below(&[interpreter.to_owned()], None);
    }
    // Not where links lead: a virtual environment is known by the place of its link to an interpreter.
    let prefix = interpreter.parent().and_then(Path::parent).ok_or("it is not in a `bin` folder")?;
    if prefix.join("pyvenv.cfg").is_file() {
        return package_dirs_below(&[prefix.to_owned()], None);
    }
    let real = fs_err::canonicalize(interpreter).map_err(|_| "it is missing")?;
    let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = name.starts_with("python3.").then_some(name);
    package_dirs_below(&[prefix.join("local"), prefix.to_owned()], version)
}

/// `lib/python3.*/site-packages` and its kin below the prefixes, in order.
fn package_dirs_below(prefixes: &[PathBuf], version: Option<&str>) -> Result<Vec<PathBuf>, &'static str> {
    let mut dirs = Vec::new();
    for library in prefixes.iter().flat_map(|prefix| [prefix.join("lib"), prefix.join("lib64")]) {
        let is_python = |name: &str| {
            name == "python3" || version.map_or(name.starts_with("python3."), |version| name == version)
        };
        for name in sorted_names(&library).into_iter().filter(|name| is_python(name)) {
            for kind in ["site-packages", "dist-packages"] {
                dirs.push(library.join(&name).join(kind));
            }
        }
    }
    dirs.retain(|folder| folder.is_dir());
    if dirs.is_empty() {
        Err("not an interpreter, virtual environment or folder of packages")
    } else {
        Ok(dirs)
    }
}

/// The names in a folder, sorted; none if it cannot be read.
fn sorted_names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs_err::read_dir(folder) else {
        return Vec::new();
    };
    let names =
        entries.take(MAX_DIR_ENTRIES).flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// One folder of packages.
struct PackageDir {
    folder: PathBuf,
    /// The folders that describe packages.
    dist_infos: Vec<String>,
    /// Where modules are looked for: here, and in the folders that `.pth` files name.
    module_paths: Vec<PathBuf>,
}

impl PackageDir {
    fn open(folder: PathBuf, watch_set: &mut WatchSet) -> Self {
        watch_set.add(folder.clone());
        let names = sorted_names(&folder);
        let mut search = vec![folder.clone()];
        for name in names.iter().filter(|name| name.ends_with(".pth")) {
            watch_set.add(folder.join(name));
            search.extend(read_pth(&folder, name));
        }
        search.truncate(MAX_MODULE_PATHS);
        let described = names.into_iter().filter(|name| name.ends_with(".dist-info")).collect();
        Self { folder, dist_infos: described, module_paths: search }
    }

    fn bundles(&self, watch_set: &mut WatchSet, found: &mut PythonBundles) {
        for dist_info in &self.dist_infos {
            let path = format!("{dist_info}/entry_points.txt");
            let Some(text) = self.read_text(&path, MAX_ENTRY_POINTS_BYTES) else {
                continue;
            };
            let points = entry_points(&text);
            if points.is_empty() {
                continue;
            }
            watch_set.add(self.folder.join(&path));
            watch_set.add(self.folder.join(dist_info).join("METADATA"));
            let entry_points_path = self.folder.join(&path);
            let Some(package) = self.package(dist_info) else {
                found.notices.push(skipped_notice(
                    &entry_points_path,
                    None,
                    "its package has no `METADATA` with name and version",
                ));
                continue;
            };
            for (line, point) in points.into_iter().take(MAX_BUNDLES_PER_PACKAGE) {
                match self.bundle(&point, &package, watch_set) {
                    Ok(bundle) => found.bundles.push(bundle),
                    Err(EntryPointError { file: Some(file), line, reason }) => {
                        found.notices.push(skipped_notice(&file, line, &reason));
                    }
                    Err(EntryPointError { file: None, reason, .. }) => {
                        found.notices.push(skipped_notice(&entry_points_path, Some(line), &reason));
                    }
                }
            }
        }
    }

    /// A small file below this folder; a link that leaves the folder counts as absent.
    fn read_text(&self, relative: &str, limit: u64) -> Option<String> {
        let (bytes, _) = lillux::file::read_beneath(&self.folder, Path::new(relative), limit).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Name and version of a package, as its metadata says.
    fn package(&self, described: &str) -> Option<Package> {
        let metadata = self.read_text(&format!("{described}/METADATA"), MAX_METADATA_BYTES)?;
        let header = |name: &str| {
            let lines = metadata.lines().take_while(|line| !line.is_empty());
            let mut values = lines.filter_map(|line| line.split_once(": ").filter(|(own, _)| *own == name));
            values.next().map(|(_, value)| value.trim().to_owned())
        };
        Some(Package { name: header("Name")?, version: header("Version")? })
    }

    /// The version of the package that is called `name`, however it is written.
    fn version_of(&self, name: &str) -> Option<String> {
        let normalized = normalize_name(name);
        let is_match = |described: &&String| {
            described.split_once('-').is_some_and(|(name, _)| normalize_name(name) == normalized)
        };
        let found = self.dist_infos.iter().find(is_match).and_then(|described| self.package(described));
        found.filter(|package| normalize_name(&package.name) == normalized).map(|package| package.version)
    }

    fn bundle(
        &self,
        point: &str,
        package: &Package,
        watch_set: &mut WatchSet,
    ) -> Result<ConfiguredBundle, EntryPointError> {
        let target = point.split('[').next().unwrap_or_default().trim();
        let (module, function) =
            target.split_once(':').ok_or_else(|| entry_point_error("it has no function name"))?;
        let (module, function) = (module.trim(), function.trim());
        if !module.split('.').all(is_name) || !is_name(function) {
            return Err(entry_point_error("it is not MODULE:FUNCTION"));
        }
        let relative = module.replace('.', "/");
        let candidates = [format!("{relative}.py"), format!("{relative}/__init__.py")];
        let mut read_error = None;
        for root in &self.module_paths {
            for candidate in &candidates {
                let file = root.join(candidate);
                watch_set.add(file.clone());
                match lillux::file::read_beneath(root, Path::new(candidate), MAX_MODULE_BYTES) {
                    Ok((bytes, _)) => {
                        let top = root.join(module.split('.').next().unwrap_or_default());
                        return self.read_bundle_function(&bytes, &file, function, package, &top);
                    }
                    Err(error) if error.is_absent() => {}
                    Err(error) => {
                        read_error = read_error
                            .or_else(|| Some(error_in_file(&file, None, one_line(&error.to_string()))));
                    }
                }
            }
        }
        Err(read_error.unwrap_or_else(|| {
            entry_point_error(
                "its module is not found; an editable install is, if a `.pth` file names its folder",
            )
        }))
    }

    /// The bundle that `function` in `file` describes, inside the package at `top`.
    fn read_bundle_function(
        &self,
        bytes: &[u8],
        file: &Path,
        function: &str,
        package: &Package,
        top: &Path,
    ) -> Result<ConfiguredBundle, EntryPointError> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| error_in_file(file, None, "it is not valid UTF-8"))?;
        let version = |name: &str| self.version_of(name);
        let literal = read_return_literal(text, function, &ModuleContext { file, version: &version })
            .map_err(|problem| {
                error_in_file(file, problem.position.map(|position| position.line), problem.message)
            })?;
        read_bundle(&literal, package, top).map_err(|(key, reason)| {
            let position = literal.positions.iter().find(|(own, _)| own == key);
            error_in_file(file, position.map(|(_, position)| position.line), reason)
        })
    }
}

/// A package as its metadata calls it.
struct Package {
    name: String,
    version: String,
}

/// Why an entry point gives no bundle.
struct EntryPointError {
    file: Option<PathBuf>,
    line: Option<u32>,
    reason: String,
}

fn entry_point_error(reason: &str) -> EntryPointError {
    EntryPointError { file: None, line: None, reason: reason.to_owned() }
}

fn error_in_file(file: &Path, line: Option<u32>, reason: impl Into<String>) -> EntryPointError {
    EntryPointError { file: Some(file.to_owned()), line, reason: reason.into() }
}

fn skipped_notice(file: &Path, line: Option<u32>, reason: &str) -> String {
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    format!("a Python bundle is left out: `{}{line}`: {reason}", one_line(&file.display().to_string()))
}

/// The bundle a dictionary describes, or the key that is wrong and why.
fn read_bundle<'a>(
    literal: &ReturnLiteral,
    package: &Package,
    top: &Path,
) -> Result<ConfiguredBundle, (&'a str, String)> {
    let text = |key: &'a str| match literal.entries.get(key) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        None | Some(Value::Null) => Ok(None),
        Some(_) => Err((key, format!("`{key}` is not a string"))),
    };
    let required = |key: &'a str| text(key)?.ok_or_else(|| (key, format!("`{key}` is missing")));
    let id = required("bundle_id")?;
    BundleId::new(id.clone()).map_err(|error| ("bundle_id", error.to_string()))?;
    let root = PathBuf::from(required("root_path")?);
    check_root(&root, top).map_err(|reason| ("root_path", format!("`root_path` {reason}")))?;
    let categories = match literal.entries.get("categories") {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) => Some(
            list.iter()
                .map(|category| {
                    let category = category.as_str().filter(|category| ItemId::new(*category).is_ok());
                    category
                        .map(str::to_owned)
                        .ok_or_else(|| ("categories", "invalid category: not a prefix of ids".to_owned()))
                })
                .collect::<Result<Vec<_>, _>>()?,
        ),
        Some(_) => return Err(("categories", "`categories` is not a list".to_owned())),
    };
    let version = text("version")?.unwrap_or_else(|| package.version.clone());
    Ok(ConfiguredBundle {
        path: root,
        id: Some(id),
        categories,
        version: Some(one_line(&version)),
        package: Some(one_line(&format!("{} {}", package.name, package.version))),
    })
}

/// A bundle's folder lies inside its package and is reached without links that leave it.
fn check_root(root: &Path, top: &Path) -> Result<(), &'static str> {
    let is_plain = root.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !root.is_absolute() || !is_plain || !root.starts_with(top) {
        return Err("is outside its package");
    }
    let is_link = |path: &Path| fs_err::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    let folders = root.ancestors().take_while(|folder| folder.starts_with(top));
    if folders.chain([root.join(AI_FOLDER).as_path()]).any(is_link) {
        return Err("is reached through a link");
    }
    if root.join(AI_FOLDER).is_dir() { Ok(()) } else { Err("holds no `.ai` folder") }
}

/// The entry points of the group, with their lines.
fn entry_points(text: &str) -> Vec<(u32, String)> {
    let mut is_in_group = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_in_group = name.trim() == ENTRY_POINT_GROUP;
        } else if is_in_group
            && !line.starts_with(['#', ';'])
            && let Some((_, value)) = line.split_once('=')
        {
            let value = value.split(" #").next().unwrap_or_default();
            found.push((number, value.trim().to_owned()));
        }
    }
    found
}

/// The folders a `.pth` file names: its lines that are neither comments nor code.
fn read_pth(folder: &Path, name: &str) -> Vec<PathBuf> {
    let Ok((bytes, _)) = lillux::file::read_beneath(folder, Path::new(name), MAX_PTH_BYTES) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&bytes);
    let is_path = |line: &&str| {
        !line.is_empty()
            && !line.starts_with('#')
            && !line.starts_with("import ")
            && !line.starts_with("import\t")
    };
    let paths = text.lines().map(str::trim_end).filter(is_path).map(|line| folder.join(line));
    paths.take(MAX_MODULE_PATHS).filter(|path| path.is_dir()).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A package's name, as all its spellings have it in common.
fn normalize_name(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests;
