//! Bundles in Python packages: those that declare an entry point of the group `rye.bundles`, in the interpreters the user
//! names. Nothing of a package is run: its metadata and the source of its function are read, within bounds.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use rye_item::parse::python::{Around, Returned, returned};
use rye_item::text::one_line;
use rye_item::{BundleId, ItemId};
use serde_json::Value;

use crate::bundle::Configured;
use crate::roots::AI_FOLDER;
use crate::stamp::Watched;

const GROUP: &str = "rye.bundles";
/// Bounds of what is read for a look: far beyond what packages have, little for the machine.
const MAX_ENTRIES: usize = 20_000;
const MAX_ENTRY_POINTS: u64 = 256 << 10;
const MAX_MODULE: u64 = 256 << 10;
const MAX_METADATA: u64 = 4 << 20;
const MAX_PATH_FILE: u64 = 64 << 10;
const MAX_SEARCH: usize = 256;
const MAX_POINTS: usize = 64;

/// What was found in Python packages.
#[derive(Debug, Default)]
pub struct Found {
    /// The bundles, in order.
    pub bundles: Vec<Configured>,
    /// What was left out, and why.
    pub notices: Vec<String>,
}

/// Finds the bundles of the packages in these places: an interpreter, a virtual environment or a folder of packages.
/// What is looked at goes into `watched`.
#[must_use]
pub fn find(places: &[PathBuf], watched: &mut Watched) -> Found {
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    for place in places {
        match libraries(place) {
            Ok(folders) => {
                for folder in folders {
                    // One folder may have several names: `lib64` is often a link to `lib`.
                    if seen.insert(fs_err::canonicalize(&folder).unwrap_or_else(|_| folder.clone())) {
                        Library::open(folder, watched).bundles(watched, &mut found);
                    }
                }
            }
            Err(reason) => {
                watched.add(place.clone());
                found.notices.push(format!(
                    "`bundles.python` names `{}`, which is left out: {reason}",
                    one_line(&place.display().to_string())
                ));
            }
        }
    }
    found
}

/// The folders of packages that belong to a place.
fn libraries(place: &Path) -> Result<Vec<PathBuf>, &'static str> {
    if !place.is_absolute() {
        return Err("it is not an absolute path");
    }
    let metadata = fs_err::metadata(place).map_err(|_| "it is not there")?;
    let is_library = |folder: &Path| {
        folder.file_name().is_some_and(|name| name == "site-packages" || name == "dist-packages")
    };
    if metadata.is_dir() {
        if is_library(place) || entries(place).iter().any(|name| name.ends_with(".dist-info")) {
            return Ok(vec![place.to_owned()]);
        }
        return found_below(&[place.to_owned()], None);
    }
    // Not where links lead: a virtual environment is known by the place of its link to an interpreter.
    let prefix = place.parent().and_then(Path::parent).ok_or("it lies in no `bin` folder")?;
    if prefix.join("pyvenv.cfg").is_file() {
        return found_below(&[prefix.to_owned()], None);
    }
    let real = fs_err::canonicalize(place).map_err(|_| "it is not there")?;
    let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = name.starts_with("python3.").then_some(name);
    found_below(&[prefix.join("local"), prefix.to_owned()], version)
}

/// `lib/python3.*/site-packages` and its kin below the prefixes, in order.
fn found_below(prefixes: &[PathBuf], version: Option<&str>) -> Result<Vec<PathBuf>, &'static str> {
    let mut found = Vec::new();
    for library in prefixes.iter().flat_map(|prefix| [prefix.join("lib"), prefix.join("lib64")]) {
        let is_python = |name: &str| {
            name == "python3" || version.map_or(name.starts_with("python3."), |version| name == version)
        };
        for name in entries(&library).into_iter().filter(|name| is_python(name)) {
            for kind in ["site-packages", "dist-packages"] {
                found.push(library.join(&name).join(kind));
            }
        }
    }
    found.retain(|folder| folder.is_dir());
    if found.is_empty() {
        Err("it is no interpreter, virtual environment or folder of packages")
    } else {
        Ok(found)
    }
}

/// The names in a folder, sorted; none if it cannot be read.
fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs_err::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.take(MAX_ENTRIES).flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// One folder of packages.
struct Library {
    folder: PathBuf,
    /// The folders that describe packages.
    described: Vec<String>,
    /// Where modules are looked for: here, and in the folders that `.pth` files name.
    search: Vec<PathBuf>,
}

impl Library {
    fn open(folder: PathBuf, watched: &mut Watched) -> Self {
        watched.add(folder.clone());
        let names = entries(&folder);
        let mut search = vec![folder.clone()];
        for name in names.iter().filter(|name| name.ends_with(".pth")) {
            watched.add(folder.join(name));
            search.extend(path_lines(&folder, name));
        }
        search.truncate(MAX_SEARCH);
        let described = names.into_iter().filter(|name| name.ends_with(".dist-info")).collect();
        Self { folder, described, search }
    }

    fn bundles(&self, watched: &mut Watched, found: &mut Found) {
        for described in &self.described {
            let path = format!("{described}/entry_points.txt");
            let Some(text) = self.text(&path, MAX_ENTRY_POINTS) else {
                continue;
            };
            let points = entry_points(&text);
            if points.is_empty() {
                continue;
            }
            watched.add(self.folder.join(&path));
            watched.add(self.folder.join(described).join("METADATA"));
            let shown = self.folder.join(&path);
            let Some(package) = self.package(described) else {
                found.notices.push(left_out(
                    &shown,
                    None,
                    "its package has no `METADATA` with name and version",
                ));
                continue;
            };
            for (line, point) in points.into_iter().take(MAX_POINTS) {
                match self.bundle(&point, &package, watched) {
                    Ok(bundle) => found.bundles.push(bundle),
                    Err(Fault { file: Some(file), line, reason }) => {
                        found.notices.push(left_out(&file, line, &reason));
                    }
                    Err(Fault { file: None, reason, .. }) => {
                        found.notices.push(left_out(&shown, Some(line), &reason));
                    }
                }
            }
        }
    }

    /// A small file below this folder; a link that leaves the folder counts as absent.
    fn text(&self, relative: &str, limit: u64) -> Option<String> {
        let (bytes, _) = lillux::file::read_beneath(&self.folder, Path::new(relative), limit).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Name and version of a package, as its metadata says.
    fn package(&self, described: &str) -> Option<Package> {
        let metadata = self.text(&format!("{described}/METADATA"), MAX_METADATA)?;
        let header = |name: &str| {
            let lines = metadata.lines().take_while(|line| !line.is_empty());
            let mut values = lines.filter_map(|line| line.split_once(": ").filter(|(own, _)| *own == name));
            values.next().map(|(_, value)| value.trim().to_owned())
        };
        Some(Package { name: header("Name")?, version: header("Version")? })
    }

    /// The version of the package that is called `name`, however it is written.
    fn version_of(&self, name: &str) -> Option<String> {
        let wanted = normal(name);
        let is_meant =
            |described: &&String| described.split_once('-').is_some_and(|(name, _)| normal(name) == wanted);
        let found = self.described.iter().find(is_meant).and_then(|described| self.package(described));
        found.filter(|package| normal(&package.name) == wanted).map(|package| package.version)
    }

    fn bundle(&self, point: &str, package: &Package, watched: &mut Watched) -> Result<Configured, Fault> {
        let bare = point.split('[').next().unwrap_or_default().trim();
        let (module, function) = bare.split_once(':').ok_or_else(|| fault("it names no function"))?;
        let (module, function) = (module.trim(), function.trim());
        if !module.split('.').all(is_name) || !is_name(function) {
            return Err(fault("it names no module and function"));
        }
        let relative = module.replace('.', "/");
        let candidates = [format!("{relative}.py"), format!("{relative}/__init__.py")];
        let mut refusal = None;
        for root in &self.search {
            for candidate in &candidates {
                let file = root.join(candidate);
                watched.add(file.clone());
                match lillux::file::read_beneath(root, Path::new(candidate), MAX_MODULE) {
                    Ok((bytes, _)) => {
                        let top = root.join(module.split('.').next().unwrap_or_default());
                        return self.described_by(&bytes, &file, function, package, &top);
                    }
                    Err(error) if error.is_absent() => {}
                    Err(error) => {
                        refusal =
                            refusal.or_else(|| Some(in_file(&file, None, one_line(&error.to_string()))));
                    }
                }
            }
        }
        Err(refusal.unwrap_or_else(|| {
            fault("its module is not found; an editable install is, if a `.pth` file names its folder")
        }))
    }

    /// The bundle that `function` in `file` describes, inside the package at `top`.
    fn described_by(
        &self,
        bytes: &[u8],
        file: &Path,
        function: &str,
        package: &Package,
        top: &Path,
    ) -> Result<Configured, Fault> {
        let text = std::str::from_utf8(bytes).map_err(|_| in_file(file, None, "it is not valid UTF-8"))?;
        let version = |name: &str| self.version_of(name);
        let told = returned(text, function, &Around { file, version: &version })
            .map_err(|problem| in_file(file, problem.position.map(|place| place.line), problem.message))?;
        read_bundle(&told, package, top).map_err(|(key, reason)| {
            let place = told.positions.iter().find(|(own, _)| own == key);
            in_file(file, place.map(|(_, place)| place.line), reason)
        })
    }
}

/// A package as its metadata calls it.
struct Package {
    name: String,
    version: String,
}

/// Why an entry point gives no bundle.
struct Fault {
    file: Option<PathBuf>,
    line: Option<u32>,
    reason: String,
}

fn fault(reason: &str) -> Fault {
    Fault { file: None, line: None, reason: reason.to_owned() }
}

fn in_file(file: &Path, line: Option<u32>, reason: impl Into<String>) -> Fault {
    Fault { file: Some(file.to_owned()), line, reason: reason.into() }
}

fn left_out(file: &Path, line: Option<u32>, reason: &str) -> String {
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    format!("a Python bundle is left out: `{}{line}`: {reason}", one_line(&file.display().to_string()))
}

/// The bundle a dictionary describes, or the key that is wrong and why.
fn read_bundle<'a>(told: &Returned, package: &Package, top: &Path) -> Result<Configured, (&'a str, String)> {
    let text = |key: &'a str| match told.entries.get(key) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        None | Some(Value::Null) => Ok(None),
        Some(_) => Err((key, format!("`{key}` is no text"))),
    };
    let needed = |key: &'a str| text(key)?.ok_or_else(|| (key, format!("`{key}` is missing")));
    let id = needed("bundle_id")?;
    BundleId::new(id.clone()).map_err(|error| ("bundle_id", error.to_string()))?;
    let root = PathBuf::from(needed("root_path")?);
    check_root(&root, top).map_err(|reason| ("root_path", format!("`root_path` {reason}")))?;
    let categories = match told.entries.get("categories") {
        None | Some(Value::Null) => None,
        Some(Value::Array(list)) => Some(
            list.iter()
                .map(|category| {
                    let category = category.as_str().filter(|category| ItemId::new(*category).is_ok());
                    category
                        .map(str::to_owned)
                        .ok_or_else(|| ("categories", "a category is no prefix of ids".to_owned()))
                })
                .collect::<Result<Vec<_>, _>>()?,
        ),
        Some(_) => return Err(("categories", "`categories` is no list".to_owned())),
    };
    let version = text("version")?.unwrap_or_else(|| package.version.clone());
    Ok(Configured {
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
        return Err("lies outside its package");
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
    let mut is_ours = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_ours = name.trim() == GROUP;
        } else if is_ours
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
fn path_lines(folder: &Path, name: &str) -> Vec<PathBuf> {
    let Ok((bytes, _)) = lillux::file::read_beneath(folder, Path::new(name), MAX_PATH_FILE) else {
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
    paths.take(MAX_SEARCH).filter(|path| path.is_dir()).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A package's name, as all its spellings have it in common.
fn normal(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests;
