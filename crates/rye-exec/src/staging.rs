//! The bytes that were verified are the bytes that run: a tool, and what it may import, is copied as verified into
//! read-only folders of the cache, named by digest and compared byte for byte on every use.
//!
//! Who vouches for a file is not decided here: a callback reads and verifies it, and its bytes are what is copied.

mod collect;
mod import_rules;
#[cfg(test)]
mod tests;
mod tree_cache;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, ReadError};
use rye_item::text::one_line;

pub use import_rules::{ImportRules, ImportScope};

use crate::anchor::{Anchor, IsImportable};
use collect::{CollectedFiles, collect};
use tree_cache::{TreeEntry, store_tree};

/// All files of a staged tree together.
const MAX_TREE_BYTES: u64 = 64 * 1024 * 1024;
/// How many failures are told one by one.
const MAX_LISTED_FAILURES: usize = 20;
/// What Node needs of a package beside its modules, and cannot be signed.
const PACKAGE_FILES: [&str; 2] = ["package.json", "tsconfig.json"];
const NODE_MODULES: &str = "node_modules";
const MAX_PACKAGE_FILE_BYTES: u64 = 1024 * 1024;

/// Reads and verifies a file, given its path and its path below the folder that is staged: its bytes, or why not. It
/// has to read beneath that folder, and to return what it verified.
pub type VerifyFile<'a> = dyn Fn(&Path, &str) -> Result<VerifiedFile, String> + 'a;

/// A file that was read and verified.
#[derive(Clone, Debug)]
pub struct VerifiedFile {
    /// What is staged: its bytes with the lines replaced that no signature covers.
    pub covered: Vec<u8>,
    /// The digest of its bytes as they are, which lockfiles pin.
    pub integrity: Digest,
}

/// What is to be staged.
pub struct StagingRequest<'a> {
    /// The cache folder.
    pub cache: &'a Path,
    /// Seconds since 1970.
    pub now: u64,
    /// The tool's file.
    pub tool: &'a Path,
    /// The tool's verified bytes, with the lines replaced that no signature covers.
    pub bytes: &'a [u8],
    /// Where the tool is anchored. Its `lib` is staged too, if there is one.
    pub anchor: &'a Anchor,
    /// What may be imported.
    pub dependencies: &'a ImportRules,
    /// The package around the anchor's root, if there is one: what verifies there comes along, the rest is left out.
    pub package: Option<PathBuf>,
    /// Which files may be imported; the others are left out, even if they are signed.
    pub is_importable: IsImportable<'a>,
    /// How a file is verified.
    pub verify: &'a VerifyFile<'a>,
    /// The `node_modules` to link beside the tool, or at its anchor: installed for it, or of an approved project.
    pub node_modules: Option<PathBuf>,
    /// Whether what Node reads of a package is copied into an anchored tree, though it cannot be signed: for project
    /// tools of approved projects only.
    pub copies_package_files: bool,
    /// Whether what Node reads of a package is pinned: wherever it may come along, today or in the next run.
    pub pins_package_files: bool,
}

/// Where the staged files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedTool {
    /// The tool's file.
    pub tool_path: PathBuf,
    /// Its folder.
    pub tool_dir: PathBuf,
    /// The folder above that, which holds nothing else unless the anchor's root is higher.
    pub tool_parent: PathBuf,
    /// The anchor's root.
    pub anchor_path: PathBuf,
    /// The runtime's library.
    pub runtime_lib: Option<PathBuf>,
    /// The files the tool may import: verified beside it, sorted by path; then what Node reads of an unsigned package.
    pub verified_deps: Vec<VerifiedDependency>,
    /// What was passed over, for the user.
    pub notices: Vec<String>,
}

/// A file that was verified beside the tool.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct VerifiedDependency {
    /// Its path below the anchor's root; `{runtime_lib}/…` below the runtime's library, `{package}/…` elsewhere in the
    /// package around the root.
    pub path: String,
    /// The digest of its bytes, in hex.
    pub integrity: String,
}

/// A file that could not be staged, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagingFailure {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// Why nothing was staged.
#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    /// Files beside the tool do not verify.
    #[error("{}", render_failures(failures))]
    Unverified {
        /// All of them.
        failures: Vec<StagingFailure>,
    },
    /// There is more than may be staged.
    #[error("`{}` holds more than {limit}: narrow `verify_deps`", folder.display())]
    TooLarge {
        /// The folder.
        folder: PathBuf,
        /// The bound.
        limit: &'static str,
    },
    /// The tool is not below its anchor, or its name cannot be used.
    #[error("`{}` cannot be staged: {reason}", path.display())]
    InvalidPath {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// The cache cannot be written.
    #[error("the cache cannot hold a copy of the tool: {0}")]
    Cache(#[from] std::io::Error),
}

fn render_failures(failures: &[StagingFailure]) -> String {
    let lines = failures.iter().take(MAX_LISTED_FAILURES).map(|failure| {
        let path = one_line(&failure.path.display().to_string());
        format!("\n  {path}: {}", one_line(&failure.reason))
    });
    let more = match failures.len().saturating_sub(MAX_LISTED_FAILURES) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    let files = if failures.len() == 1 { "a file" } else { "files" };
    format!("{files} the tool may import cannot be trusted:{}{more}", lines.collect::<String>())
}

/// Stages a tool.
///
/// # Errors
/// When a file does not verify (all of them are told), when there is too much, or when the cache cannot be written.
pub fn stage(request: &StagingRequest<'_>) -> Result<StagedTool, StagingError> {
    let anchor = request.anchor;
    let mut failures = Vec::new();
    let mut notices = Vec::new();
    let tree =
        if anchor.is_active { Some(collect_anchored(request, &mut failures, &mut notices)?) } else { None };
    let lib = match &anchor.lib {
        Some(lib) => Some(collect_library(request, lib, &mut failures, &mut notices)?),
        None => None,
    };
    if !failures.is_empty() {
        failures.sort_by(|one, other| one.path.cmp(&other.path));
        return Err(StagingError::Unverified { failures });
    }
    let name = tool_file_name(request.tool)?;
    let (anchor_path, relative, mut verified_deps) = match tree {
        Some(tree) => {
            let relative = tree.tool.clone();
            let verified = tree.verified_dependencies(Some(&relative), "");
            (tree.store(request)?, relative, verified)
        }
        None => {
            let mut pieces =
                vec![TreeEntry::File { relative: name.to_owned(), bytes: Cow::Borrowed(request.bytes) }];
            pieces.extend(request.node_modules.as_deref().map(modules_link));
            (store_tree(request.cache, request.now, &pieces)?, name.to_owned(), Vec::new())
        }
    };
    let runtime_lib = match lib {
        Some(lib) => {
            verified_deps.extend(lib.verified_dependencies(None, "{runtime_lib}/"));
            Some(lib.store(request)?)
        }
        None => None,
    };
    let tool_path = anchor_path.join(relative);
    let above = |path: &Path| path.parent().unwrap_or(path).to_owned();
    let (tool_dir, tool_parent) = (above(&tool_path), above(&above(&tool_path)));
    Ok(StagedTool { tool_path, tool_dir, tool_parent, anchor_path, runtime_lib, verified_deps, notices })
}

/// A file's path in its tree, its bytes, and the digest that a lockfile pins of it.
type CopiedFile<'a> = (String, Cow<'a, [u8]>, Digest);

/// Verified files that are staged together, below a folder of a given name.
struct StagedTree<'a> {
    name: String,
    /// Where in the tree the folder is that it is staged for; empty where that is the tree itself.
    anchor_folder: String,
    /// The tool's path in that folder.
    tool: String,
    files: Vec<CopiedFile<'a>>,
    /// What was not verified and comes along for Node.
    unverified_entries: Vec<TreeEntry<'a>>,
    /// What cannot be verified and is pinned all the same.
    unsigned_pins: Vec<VerifiedDependency>,
}

impl<'a> StagedTree<'a> {
    fn verified_dependencies(&self, except: Option<&str>, above: &str) -> Vec<VerifiedDependency> {
        let named = self.files.iter().map(|(relative, _, integrity)| {
            match strip_folder(&self.anchor_folder, relative) {
                Some(own) => (format!("{above}{own}"), integrity),
                None => (format!("{{package}}/{relative}"), integrity),
            }
        });
        let others = named.filter(|(path, _)| Some(path.as_str()) != except);
        let verified =
            others.map(|(path, integrity)| VerifiedDependency { path, integrity: integrity.to_hex() });
        verified.chain(self.unsigned_pins.iter().cloned()).collect()
    }

    /// Puts the tree on the shelf; the answer is the folder it is staged for.
    fn store(self, request: &StagingRequest<'_>) -> Result<PathBuf, StagingError> {
        let Self { name, anchor_folder: inside, files, unverified_entries: companions, .. } = self;
        let files = files
            .into_iter()
            .map(|(relative, bytes, _)| TreeEntry::File { relative: format!("{name}/{relative}"), bytes });
        let folder = join_path(&name, &inside);
        let companions = companions.into_iter().map(|piece| piece.inside_folder(&folder));
        let pieces: Vec<TreeEntry<'a>> = files.chain(companions).collect();
        Ok(store_tree(request.cache, request.now, &pieces)?.join(folder))
    }
}

/// The path below a folder of a tree, if it lies there.
fn strip_folder<'a>(folder: &str, path: &'a str) -> Option<&'a str> {
    if folder.is_empty() { Some(path) } else { path.strip_prefix(folder)?.strip_prefix('/') }
}

fn join_path(folder: &str, path: &str) -> String {
    [folder, path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

fn collect_anchored<'a>(
    request: &StagingRequest<'a>,
    failures: &mut Vec<StagingFailure>,
    notices: &mut Vec<String>,
) -> Result<StagedTree<'a>, StagingError> {
    let (root, dependencies) = (&request.anchor.root, request.dependencies);
    let outside =
        StagingError::InvalidPath { path: request.tool.to_owned(), reason: "it is not below its anchor" };
    let tool = request.tool.strip_prefix(root).ok().and_then(Path::to_str).ok_or(outside)?.to_owned();
    tool_file_name(request.tool)?;
    let folder = request.tool.parent().unwrap_or(root);
    let (base, is_recursive) = match (dependencies.is_enabled, dependencies.scope) {
        (true, ImportScope::Anchor) => (Some(root.as_path()), dependencies.is_recursive),
        (true, ImportScope::ToolDir) => (Some(folder), dependencies.is_recursive),
        (true, ImportScope::ToolSiblings) => (Some(folder), false),
        (true, ImportScope::ToolFile) => (None, false),
        (false, _) => {
            let notice = "`verify_deps` is off: the tool can import nothing from its own folder";
            notices.push(notice.to_owned());
            (None, false)
        }
    };
    let mut dependencies = dependencies.clone();
    if request.node_modules.is_some() {
        // They are linked as a whole, so they cannot be files of the tree as well.
        dependencies.exclude_dirs.push(NODE_MODULES.to_owned());
    }
    let mut files = match base {
        Some(base) => {
            let found = collect(root, base, is_recursive, &dependencies)?;
            verify_files(root, found, Some(&tool), request, failures, notices)?
        }
        None => Vec::new(),
    };
    files.push((tool.clone(), Cow::Borrowed(request.bytes), Digest::of(request.bytes)));
    let package_files = if request.copies_package_files || request.pins_package_files {
        read_package_files(root, &files, request.is_importable)
    } else {
        Vec::new()
    };
    let unsigned =
        if request.pins_package_files { pin_package_files(root, &package_files) } else { Vec::new() };
    let mut companions = if request.copies_package_files { package_files } else { Vec::new() };
    companions.extend(request.node_modules.as_deref().map(modules_link));
    let (top, inside) = match &request.package {
        Some(package) if base == Some(root.as_path()) => {
            let inside =
                root.strip_prefix(package).ok().and_then(Path::to_str).unwrap_or_default().to_owned();
            for (relative, ..) in &mut files {
                *relative = join_path(&inside, relative);
            }
            files.extend(collect_package(package, &inside, &dependencies, request, notices)?);
            (package.as_path(), inside)
        }
        Some(_) | None => (root.as_path(), String::new()),
    };
    files.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(StagedTree {
        name: folder_name(top),
        anchor_folder: inside,
        tool,
        files,
        unverified_entries: companions,
        unsigned_pins: unsigned,
    })
}

/// What verifies of the package around the anchor. Not all of it has to: the rest cannot be imported.
fn collect_package<'a>(
    package: &Path,
    inside: &str,
    dependencies: &ImportRules,
    request: &StagingRequest<'_>,
    notices: &mut Vec<String>,
) -> Result<Vec<CopiedFile<'a>>, StagingError> {
    if inside.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = collect(package, package, true, dependencies)?;
    found.files.retain(|relative| strip_folder(inside, relative).is_none());
    found.failures.retain(|failure| !failure.path.starts_with(package.join(inside)));
    let mut unverified = Vec::new();
    let files = verify_files(package, found, None, request, &mut unverified, notices)?;
    notices.extend(left_out(unverified.iter().map(|failure| failure.path.as_path()), "not verified"));
    Ok(files)
}

fn collect_library<'a>(
    request: &StagingRequest<'a>,
    lib: &Path,
    failures: &mut Vec<StagingFailure>,
    notices: &mut Vec<String>,
) -> Result<StagedTree<'a>, StagingError> {
    let extension = request.tool.extension().and_then(|extension| extension.to_str());
    let dependencies = request.dependencies.for_library(extension);
    let found = collect(lib, lib, true, &dependencies)?;
    let mut files = verify_files(lib, found, None, request, failures, notices)?;
    files.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(StagedTree {
        name: folder_name(lib),
        anchor_folder: String::new(),
        tool: String::new(),
        files,
        unverified_entries: Vec::new(),
        unsigned_pins: Vec::new(),
    })
}

fn verify_files<'a>(
    root: &Path,
    found: CollectedFiles,
    except: Option<&str>,
    request: &StagingRequest<'_>,
    failures: &mut Vec<StagingFailure>,
    notices: &mut Vec<String>,
) -> Result<Vec<CopiedFile<'a>>, StagingError> {
    failures.extend(found.failures);
    notices.extend(found.notices);
    let mut files = Vec::with_capacity(found.files.len() + 1);
    let mut others = Vec::new();
    let mut total = 0_u64;
    for relative in found.files {
        if Some(relative.as_str()) == except {
            continue;
        }
        let path = root.join(&relative);
        if !(request.is_importable)(&path) {
            others.push(path);
            continue;
        }
        match (request.verify)(&path, &relative) {
            Ok(file) => {
                total = total.saturating_add(file.covered.len() as u64);
                if total > MAX_TREE_BYTES {
                    return Err(StagingError::TooLarge { folder: root.to_owned(), limit: "64 MiB" });
                }
                files.push((relative, Cow::Owned(file.covered), file.integrity));
            }
            Err(reason) => failures.push(StagingFailure { path, reason }),
        }
    }
    let reason = "the tool and the file do not belong to the same bundle";
    notices.extend(left_out(others.iter().map(PathBuf::as_path), reason));
    Ok(files)
}

/// What to say of files that are not copied.
fn left_out<'p>(mut files: impl ExactSizeIterator<Item = &'p Path>, reason: &str) -> Option<String> {
    let shown = one_line(&files.next()?.display().to_string());
    let more = match files.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("`{shown}`{more} cannot be imported: {reason}"))
}

fn modules_link<'a>(modules: &Path) -> TreeEntry<'a> {
    TreeEntry::Link { relative: NODE_MODULES.to_owned(), target: modules.to_owned() }
}

fn read_package_files<'a>(
    root: &Path,
    files: &[CopiedFile<'_>],
    is_importable: IsImportable<'_>,
) -> Vec<TreeEntry<'a>> {
    let is_free =
        |name: &str| is_importable(&root.join(name)) && !files.iter().any(|(relative, ..)| relative == name);
    let package = PACKAGE_FILES.iter().filter(|name| is_free(name)).filter_map(|name| {
        let read: Result<_, ReadError> = file::read_beneath(root, Path::new(name), MAX_PACKAGE_FILE_BYTES);
        // Without it Node falls back to its defaults, as it does for a package that has none.
        let (bytes, _) = read.ok()?;
        Some(TreeEntry::File { relative: (*name).to_owned(), bytes: Cow::Owned(bytes) })
    });
    package.collect()
}

/// The pins of package files, and of `node_modules` being there. What lies in that folder is not pinned: it is installed
/// and changed by others.
fn pin_package_files(root: &Path, package_files: &[TreeEntry<'_>]) -> Vec<VerifiedDependency> {
    let pin = |path: String, bytes: &[u8]| VerifiedDependency { path, integrity: Digest::of(bytes).to_hex() };
    let files = package_files.iter().filter_map(|piece| match piece {
        TreeEntry::File { relative, bytes } => Some(pin(relative.clone(), bytes)),
        TreeEntry::Link { .. } => None,
    });
    let has_modules = !package_files.is_empty() && root.join(NODE_MODULES).is_dir();
    files.chain(has_modules.then(|| pin(format!("{NODE_MODULES}/"), b""))).collect()
}

fn tool_file_name(tool: &Path) -> Result<&str, StagingError> {
    let name = tool.file_name().and_then(|name| name.to_str());
    name.filter(|name| !name.chars().any(char::is_control)).ok_or_else(|| StagingError::InvalidPath {
        path: tool.to_owned(),
        reason: "its name is not plain text",
    })
}

/// The name of a staged folder: the real one, without what could split a search path.
fn folder_name(folder: &Path) -> String {
    let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let is_kept = |character: char| character.is_alphanumeric() || "._- ".contains(character);
    let name: String = name.chars().map(|c| if is_kept(c) { c } else { '_' }).collect();
    if name.is_empty() { "root".to_owned() } else { name }
}
