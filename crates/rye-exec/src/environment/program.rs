//! What decides which code a program of a project runs: its links, its file, and what it loads by itself when it starts.
//! Tools may write to `.venv` and `node_modules`, so a program there is used only while all of that is what was recorded.
//!
//! For Python these are `pyvenv.cfg`, `.pth` files with the modules they import, and `sitecustomize`; for a Node launcher
//! its package and the packages it depends on. What a tool imports itself from there is not part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use lillux::{Digest, file};
use rye_item::text::one_line;
use serde_json::Value;

const MAX_LINKS: usize = 40;
const MAX_PARTS: usize = 10_000;
const MAX_DEPTH: usize = 32;
const MAX_TEXT_BYTES: u64 = 1 << 20;
const MAX_PART_BYTES: u64 = 1 << 28;

/// Why a program cannot be recorded or compared.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Its links lead nowhere.
    #[error("`{0}` has too many links")]
    TooManyLinks(String),
    /// More files than can be compared at each run.
    #[error("it loads more than {MAX_PARTS} files when it starts")]
    TooManyParts,
    /// A Python whose standard library tools can change.
    #[error("its standard library is in the project, where tools can change it")]
    LibraryInProject,
}

/// All that decides what a program runs when it starts.
#[derive(Debug)]
pub struct ProgramParts {
    parts: BTreeMap<PathBuf, Part>,
    /// The program's own file, at the end of its links.
    target: PathBuf,
}

#[derive(Debug)]
struct Part {
    link: Option<PathBuf>,
    metadata: Metadata,
}

/// The paths in the listing `new` that are not in `old` as they are in `new`.
#[must_use]
pub fn changed_parts(old: &str, new: &str) -> Vec<PathBuf> {
    let old: BTreeSet<(&str, &str)> = listed_parts(old).collect();
    listed_parts(new).filter(|part| !old.contains(part)).map(|(path, _)| PathBuf::from(path)).collect()
}

fn listed_parts(listing: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut fields = listing.split('\0');
    std::iter::from_fn(move || Some((fields.next()?, fields.next()?)))
}

impl ProgramParts {
    /// Collects the parts of `program`. `project` is the folder that tools can change.
    ///
    /// # Errors
    /// When a part cannot be read, there are too many, or the program cannot be held to any record.
    pub fn collect(program: &Path, project: &Path) -> Result<Self, ProgramError> {
        let mut collected = Self { parts: BTreeMap::new(), target: PathBuf::new() };
        let project = fs_err::canonicalize(project)?;
        if program.is_dir() {
            collected.add_programs(program)?;
            return Ok(collected);
        }
        let target = collected.add_links(program)?;
        collected.add(&target)?;
        collected.target.clone_from(&target);
        let is_in_project = |path: &Path| path.starts_with(&project);
        let mut folders: BTreeSet<PathBuf> =
            collected.parts.keys().filter_map(|path| path.parent()).map(Path::to_owned).collect();
        folders.retain(|folder| is_in_project(folder));
        let is_python = [program, &target].iter().any(|path| is_python(path));
        let mut homes = Vec::new();
        for folder in &folders {
            collected.add_python(folder, is_python, &mut homes)?;
        }
        if is_in_project(&target) {
            collected.add_libraries(&target)?;
        }
        if is_python {
            let is_library_in_project = if homes.is_empty() {
                // A script has no library of its own.
                is_in_project(&target) && !is_script(&target)
            } else {
                homes.iter().any(|home| is_in_project(&lillux::canonicalize_existing(home)))
            };
            if is_library_in_project {
                return Err(ProgramError::LibraryInProject);
            }
        } else {
            collected.add_node(program, &target, &is_in_project)?;
        }
        Ok(collected)
    }

    /// The program's own file, at the end of its links.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// What the file system says of the program's own file.
    #[must_use]
    pub fn target_metadata(&self) -> Option<&Metadata> {
        self.parts.get(&self.target).map(|part| &part.metadata)
    }

    /// The files it loads by itself when it starts.
    pub fn startup_files(&self) -> impl Iterator<Item = &Path> {
        let files = self.parts.iter().filter(|(path, part)| part.link.is_none() && **path != self.target);
        files.map(|(path, _)| path.as_path())
    }

    /// The digest of what the parts contain.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn digest(&self) -> Result<Digest, ProgramError> {
        self.listing().map(|listing| Digest::of(listing.as_bytes()))
    }

    /// Each part with the digest of what it contains, or where it leads. Its own digest is that of the program.
    ///
    /// # Errors
    /// When a part cannot be read.
    pub fn listing(&self) -> Result<String, ProgramError> {
        let mut text = String::new();
        for (path, part) in &self.parts {
            let content = match &part.link {
                Some(target) => format!("link {}", target.display()),
                None => {
                    let read = file::read_bounded(path, MAX_PART_BYTES);
                    Digest::of(&read.map_err(|error| io::Error::other(error.to_string()))?.0).to_hex()
                }
            };
            text.push_str(&format!("{}\0{content}\0", path.display()));
        }
        Ok(text)
    }

    /// The digest of what the file system says of the parts: while it is the same, no content has changed. The time of
    /// change in it cannot be set by a tool.
    #[must_use]
    pub fn stamp(&self) -> Digest {
        let mut text = String::new();
        for (path, Part { link, metadata }) in &self.parts {
            let link = link.as_deref().unwrap_or(Path::new("")).display();
            text.push_str(&format!(
                "{}\0{link}\0{} {} {} {}.{} {}.{}\0",
                path.display(),
                metadata.dev(),
                metadata.ino(),
                metadata.len(),
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ctime(),
                metadata.ctime_nsec(),
            ));
        }
        Digest::of(text.as_bytes())
    }

    fn add(&mut self, path: &Path) -> Result<(), ProgramError> {
        let metadata = fs_err::symlink_metadata(path)?;
        let link = if metadata.is_symlink() { Some(fs_err::read_link(path)?) } else { None };
        self.parts.insert(path.to_owned(), Part { link, metadata });
        if self.parts.len() > MAX_PARTS { Err(ProgramError::TooManyParts) } else { Ok(()) }
    }

    /// Adds all programs of a folder, with what they lead to. Such a folder is recorded to be first on the PATH.
    fn add_programs(&mut self, folder: &Path) -> Result<(), ProgramError> {
        self.target = fs_err::canonicalize(folder)?;
        for name in file_names(folder) {
            let path = self.target.join(name);
            self.add(&path)?;
            if let Some(target) = fs_err::canonicalize(&path).ok().filter(|target| target.is_file()) {
                self.add(&target)?;
            }
        }
        // Folders are not started.
        self.parts.retain(|_, part| !part.metadata.is_dir());
        Ok(())
    }

    /// Adds every link between the program and its file; gives the file.
    fn add_links(&mut self, program: &Path) -> Result<PathBuf, ProgramError> {
        let mut current = program.to_owned();
        for _ in 0..MAX_LINKS {
            let folder = fs_err::canonicalize(current.parent().unwrap_or(Path::new("/")))?;
            let link_path = folder.join(current.file_name().unwrap_or_default());
            if !fs_err::symlink_metadata(&link_path)?.is_symlink() {
                return Ok(fs_err::canonicalize(link_path)?);
            }
            self.add(&link_path)?;
            current = folder.join(fs_err::read_link(&link_path)?);
        }
        Err(ProgramError::TooManyLinks(one_line(&program.display().to_string())))
    }

    /// Adds a file or link that is there, with what the link leads to, or a folder with all that is in it.
    fn add_tree(&mut self, path: &Path, depth: usize) -> Result<(), ProgramError> {
        let Ok(metadata) = fs_err::symlink_metadata(path) else { return Ok(()) };
        if metadata.is_dir() {
            for entry in file_names(path) {
                if depth < MAX_DEPTH {
                    self.add_tree(&path.join(entry), depth + 1)?;
                }
            }
            return Ok(());
        }
        if !metadata.is_file() && !metadata.is_symlink() {
            return Ok(());
        }
        self.add(path)?;
        if metadata.is_symlink()
            && depth < MAX_DEPTH
            && let Ok(target) = fs_err::canonicalize(path)
            && !self.parts.contains_key(&target)
        {
            self.add_tree(&target, depth + 1)?;
        }
        Ok(())
    }

    /// Adds what a Python in this folder reads when it starts; notes the `home` of an environment.
    fn add_python(
        &mut self,
        folder: &Path,
        is_python: bool,
        homes: &mut Vec<PathBuf>,
    ) -> Result<(), ProgramError> {
        let prefix = folder.parent().unwrap_or(folder);
        for place in [folder, prefix] {
            let config = place.join("pyvenv.cfg");
            if fs_err::symlink_metadata(&config).is_ok() {
                self.add_tree(&config, 0)?;
                homes.extend(venv_home(&config).map(|home| place.join(home)));
            }
        }
        if !is_python {
            return Ok(());
        }
        for name in file_names(folder) {
            if name.ends_with("._pth") || name == "pybuilddir.txt" {
                self.add_tree(&folder.join(name), 0)?;
            }
        }
        let sites = site_folders(prefix);
        let mut modules = ModuleScan::new(&sites);
        for site in &sites {
            self.add_site(site, &mut modules)?;
        }
        // What the system's own `sitecustomize` imports may be found in the environment.
        let versions = library_folders(prefix);
        let versions: BTreeSet<&OsStr> = versions.iter().filter_map(|library| library.file_name()).collect();
        for home in homes.iter() {
            let programs = lillux::canonicalize_existing(&folder.join(home));
            let libraries = ["lib", "lib64"].map(|name| programs.parent().unwrap_or(&programs).join(name));
            for library in libraries.iter().flat_map(|library| versions.iter().map(|name| library.join(name)))
            {
                modules.read_imports(&library.join("sitecustomize.py"));
                modules.read_imports(&library.join("usercustomize.py"));
            }
        }
        while let Some(name) = modules.next() {
            for site in &sites {
                for file in self.add_module(site, &name)? {
                    modules.read_imports(&file);
                }
            }
        }
        Ok(())
    }

    /// Adds the shared libraries that a program finds beside itself.
    fn add_libraries(&mut self, target: &Path) -> Result<(), ProgramError> {
        let folder = target.parent().unwrap_or(target);
        let prefix = folder.parent().unwrap_or(folder);
        for place in [folder.to_owned(), prefix.join("lib"), prefix.join("lib64")] {
            for name in
                file_names(&place).into_iter().filter(|name| name.ends_with(".so") || name.contains(".so."))
            {
                self.add_tree(&place.join(name), 0)?;
            }
        }
        Ok(())
    }

    /// Adds what Python runs by itself of a folder of packages.
    fn add_site(&mut self, site: &Path, modules: &mut ModuleScan) -> Result<(), ProgramError> {
        modules.add("sitecustomize");
        modules.add("usercustomize");
        for name in
            file_names(site).into_iter().filter(|name| name.ends_with(".pth") || name.ends_with(".start"))
        {
            let path = site.join(name);
            self.add_tree(&path, 0)?;
            let Ok((bytes, _)) = file::read_bounded(&path, MAX_TEXT_BYTES) else { continue };
            for line in String::from_utf8_lossy(&bytes).lines() {
                let line = line.trim_end();
                if line.starts_with("import ") || line.starts_with("import\t") {
                    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
                    for word in line.split(|letter| !is_word(letter)).filter(|word| !word.is_empty()) {
                        modules.add(word);
                    }
                } else if !line.is_empty() && !line.starts_with('#') {
                    // A further folder to import from: `sitecustomize` is looked for there too.
                    self.add_customization(&site.join(line))?;
                }
            }
        }
        Ok(())
    }

    fn add_customization(&mut self, folder: &Path) -> Result<(), ProgramError> {
        self.add_module(folder, "sitecustomize")?;
        self.add_module(folder, "usercustomize")?;
        Ok(())
    }

    /// Adds a module of this name: a folder, a file of any kind, and what is compiled of it. Gives its Python files.
    fn add_module(&mut self, folder: &Path, name: &str) -> Result<Vec<PathBuf>, ProgramError> {
        let known: BTreeSet<PathBuf> = self.parts.keys().cloned().collect();
        self.add_tree(&folder.join(name), 0)?;
        for place in [folder.to_owned(), folder.join("__pycache__")] {
            let is_its = |entry: &String| entry.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
            for entry in file_names(&place).into_iter().filter(is_its) {
                self.add_tree(&place.join(entry), 0)?;
            }
        }
        let is_source = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "py");
        Ok(self.parts.keys().filter(|path| !known.contains(*path)).filter(is_source).cloned().collect())
    }

    /// Adds the package of a launcher in `node_modules`, and all packages it depends on.
    fn add_node(
        &mut self,
        program: &Path,
        target: &Path,
        is_in_project: &dyn Fn(&Path) -> bool,
    ) -> Result<(), ProgramError> {
        let mut waiting: Vec<PathBuf> = node_package(target).into_iter().collect();
        if waiting.is_empty() && program.parent().is_some_and(|folder| folder.ends_with("node_modules/.bin"))
        {
            waiting.extend(launcher_targets(target).iter().filter_map(|entry| node_package(entry)));
        }
        let mut seen = BTreeSet::new();
        while let Some(package) = waiting.pop() {
            if !is_in_project(&package) || !seen.insert(package.clone()) {
                continue;
            }
            self.add_tree(&package, 0)?;
            // Node looks for packages between a scope's folder and its packages too.
            if let Some(scope) = package.parent().filter(|parent| is_scope(parent)) {
                self.add_tree(&scope.join("node_modules"), 0)?;
            }
            for name in node_dependencies(&package) {
                let candidates = package.ancestors().map(|folder| folder.join("node_modules").join(&name));
                // All of that name: which one Node takes depends on what is in them.
                let found = candidates.filter_map(|candidate| fs_err::canonicalize(candidate).ok());
                waiting.extend(found.filter(|found| found.is_dir()));
            }
        }
        Ok(())
    }
}

/// Names of modules that are imported when Python starts, each looked at once. Only names that exist in a folder of
/// packages count: everything else is the standard library's.
#[derive(Debug)]
struct ModuleScan {
    existing: BTreeSet<String>,
    seen: BTreeSet<String>,
    waiting: Vec<String>,
}

impl ModuleScan {
    fn new(sites: &BTreeSet<PathBuf>) -> Self {
        let names = sites
            .iter()
            .flat_map(|site| file_names(site).into_iter().chain(file_names(&site.join("__pycache__"))));
        let existing = names.map(|name| name.split('.').next().unwrap_or_default().to_owned()).collect();
        Self { existing, seen: BTreeSet::new(), waiting: Vec::new() }
    }

    fn add(&mut self, name: &str) {
        if self.existing.contains(name) && self.seen.insert(name.to_owned()) {
            self.waiting.push(name.to_owned());
        }
    }

    fn next(&mut self) -> Option<String> {
        self.waiting.pop()
    }

    /// Adds every word of the lines of a Python file that import something.
    fn read_imports(&mut self, file: &Path) {
        let Ok((bytes, _)) = file::read_bounded(file, MAX_TEXT_BYTES) else { return };
        for line in String::from_utf8_lossy(&bytes).lines().filter(|line| line.contains("import")) {
            let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            line.split(|letter| !is_word(letter))
                .filter(|word| !word.is_empty())
                .for_each(|word| self.add(word));
        }
    }
}

/// The folders of libraries below a prefix, those of each version included. Debian has some below `local` too.
fn library_folders(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for base in [prefix.to_owned(), prefix.join("local")] {
        for library in ["lib", "lib64", "Lib"].map(|name| base.join(name)) {
            let versions = file_names(&library).into_iter().filter(|name| name.starts_with("py"));
            folders.extend(versions.map(|name| library.join(name)));
            folders.push(library);
        }
    }
    folders
}

/// The folders of packages below a prefix: `site-packages`, and `dist-packages` as Debian calls them.
fn site_folders(prefix: &Path) -> BTreeSet<PathBuf> {
    let folders = library_folders(prefix).into_iter();
    let sites = folders.flat_map(|folder| [folder.join("site-packages"), folder.join("dist-packages")]);
    sites.filter_map(|site| fs_err::canonicalize(site).ok()).collect()
}

/// The names in a folder; none if it cannot be read. Names that are not UTF-8 are not modules.
fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn is_python(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("python") || name.starts_with("pypy")
}

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    file::open_regular(path).and_then(|mut file| file.read_exact(&mut start)).is_ok_and(|()| start == *b"#!")
}

/// What `home` of a `pyvenv.cfg` says.
fn venv_home(config: &Path) -> Option<PathBuf> {
    let (bytes, _) = file::read_bounded(config, MAX_TEXT_BYTES).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let (_, home) = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case("home"))?;
    Some(PathBuf::from(home.trim()))
}

fn is_scope(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with('@'))
}

/// The folder of the package that a file below `node_modules` belongs to.
fn node_package(file: &Path) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = file.components().collect();
    let modules = parts.iter().rposition(|part| part.as_os_str() == "node_modules")?;
    let name = parts.get(modules + 1)?.as_os_str().to_string_lossy();
    if name.starts_with('.') {
        // `.bin` and the like are not packages.
        return None;
    }
    let end = modules + 2 + usize::from(name.starts_with('@'));
    (parts.len() > end).then(|| parts.iter().take(end).collect())
}

/// The files that a script of a package manager starts: paths beside itself.
fn launcher_targets(script: &Path) -> Vec<PathBuf> {
    let Ok((bytes, _)) = file::read_bounded(script, MAX_TEXT_BYTES) else { return Vec::new() };
    let folder = script.parent().unwrap_or(script);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let words = text.split(|letter: char| letter.is_whitespace() || "\"'`;()".contains(letter));
    let paths = words.filter_map(|word| word.find("../").map(|start| folder.join(&word[start..])));
    paths.filter_map(|path| fs_err::canonicalize(path).ok()).filter(|path| path.is_file()).collect()
}

fn node_dependencies(package: &Path) -> BTreeSet<String> {
    let bytes = file::read_bounded(&package.join("package.json"), MAX_TEXT_BYTES).map(|(bytes, _)| bytes);
    let manifest: Value =
        bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let kinds = ["dependencies", "optionalDependencies", "peerDependencies"];
    let names = kinds.iter().filter_map(|kind| manifest.get(kind)?.as_object()).flat_map(|map| map.keys());
    let is_plain = |name: &&String| !name.split('/').any(|part| part.is_empty() || part.starts_with('.'));
    names.filter(is_plain).cloned().collect()
}
