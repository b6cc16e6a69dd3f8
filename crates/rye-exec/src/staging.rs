//! The bytes that were verified are the bytes that run: a tool, and what it may import, is copied as verified into
//! read-only folders of the cache, named by digest and compared byte for byte on every use.
//!
//! Who vouches for a file is not decided here: a callback reads and verifies it, and its bytes are what is copied.

mod collect;
mod dependencies;
mod shelf;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, ReadError};
use rye_item::text::one_line;

pub use dependencies::{Dependencies, Scope};

use crate::anchor::{Anchor, IsImportable};
use collect::{Collected, collect};
use shelf::{Piece, keep};

/// All files of a staged tree together.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// How many failures are told one by one.
const MAX_TOLD: usize = 20;
/// What Node needs of a package beside its modules, and nobody can sign.
const PACKAGE_FILES: [&str; 2] = ["package.json", "tsconfig.json"];
const MODULES: &str = "node_modules";
const MAX_PACKAGE_FILE: u64 = 1024 * 1024;

/// Reads and verifies a file, given its path and its path below the folder that is staged: its bytes, or why not. It
/// has to read beneath that folder, and to return what it verified.
pub type Verify<'a> = dyn Fn(&Path, &str) -> Result<VerifiedFile, String> + 'a;

/// A file that was read and verified.
#[derive(Clone, Debug)]
pub struct VerifiedFile {
    /// What is staged: its bytes with the lines replaced that no signature covers.
    pub covered: Vec<u8>,
    /// The digest of its bytes as they are, which lockfiles pin.
    pub integrity: Digest,
}

/// What is to be staged.
pub struct Order<'a> {
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
    pub dependencies: &'a Dependencies,
    /// The package around the anchor's root, if there is one: what verifies there comes along, the rest is left out.
    pub package: Option<PathBuf>,
    /// Which files may be imported; the others are left out, even if they are signed.
    pub is_importable: IsImportable<'a>,
    /// How a file is verified.
    pub verify: &'a Verify<'a>,
    /// The `node_modules` to link beside the tool, or at its anchor: installed for it, or of an approved project.
    pub with_modules: Option<PathBuf>,
    /// Whether what Node reads of a package comes along into an anchored tree, though nobody can sign it: for project
    /// tools of approved projects only.
    pub with_package_files: bool,
    /// Whether what Node reads of a package is pinned: wherever it may come along, today or in the next run.
    pub pins_package_files: bool,
}

/// Where the staged files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
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
pub struct Failure {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// Why nothing was staged.
#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    /// Files beside the tool do not verify.
    #[error("{}", told(failures))]
    Unverified {
        /// All of them.
        failures: Vec<Failure>,
    },
    /// There is more than may be staged.
    #[error("`{}` holds more than {limit}: narrow `verify_deps`", folder.display())]
    TooMuch {
        /// The folder.
        folder: PathBuf,
        /// The bound.
        limit: &'static str,
    },
    /// The tool is not below its anchor, or its name cannot be used.
    #[error("`{}` cannot be staged: {reason}", path.display())]
    Place {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// The cache cannot be written.
    #[error("the cache cannot hold a copy of the tool: {0}")]
    Cache(#[from] std::io::Error),
}

fn told(failures: &[Failure]) -> String {
    let lines = failures.iter().take(MAX_TOLD).map(|failure| {
        let path = one_line(&failure.path.display().to_string());
        format!("\n  {path}: {}", one_line(&failure.reason))
    });
    let more = match failures.len().saturating_sub(MAX_TOLD) {
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
pub fn stage(order: &Order<'_>) -> Result<Staged, StagingError> {
    let anchor = order.anchor;
    let mut failures = Vec::new();
    let mut notices = Vec::new();
    let tree = if anchor.is_active { Some(anchored(order, &mut failures, &mut notices)?) } else { None };
    let lib = match &anchor.lib {
        Some(lib) => Some(library(order, lib, &mut failures, &mut notices)?),
        None => None,
    };
    if !failures.is_empty() {
        failures.sort_by(|one, other| one.path.cmp(&other.path));
        return Err(StagingError::Unverified { failures });
    }
    let name = file_name(order.tool)?;
    let (anchor_path, relative, mut verified_deps) = match tree {
        Some(tree) => {
            let relative = tree.tool.clone();
            let verified = tree.verified(Some(&relative), "");
            (tree.keep(order)?, relative, verified)
        }
        None => {
            let mut pieces =
                vec![Piece::File { relative: name.to_owned(), bytes: Cow::Borrowed(order.bytes) }];
            pieces.extend(order.with_modules.as_deref().map(modules_link));
            (keep(order.cache, order.now, &pieces)?, name.to_owned(), Vec::new())
        }
    };
    let runtime_lib = match lib {
        Some(lib) => {
            verified_deps.extend(lib.verified(None, "{runtime_lib}/"));
            Some(lib.keep(order)?)
        }
        None => None,
    };
    let tool_path = anchor_path.join(relative);
    let above = |path: &Path| path.parent().unwrap_or(path).to_owned();
    let (tool_dir, tool_parent) = (above(&tool_path), above(&above(&tool_path)));
    Ok(Staged { tool_path, tool_dir, tool_parent, anchor_path, runtime_lib, verified_deps, notices })
}

/// A file's path in its tree, its bytes, and the digest that a lockfile pins of it.
type Copied<'a> = (String, Cow<'a, [u8]>, Digest);

/// Verified files that are staged together, below a folder of a given name.
struct Tree<'a> {
    name: String,
    /// Where in the tree the folder is that it is staged for; empty where that is the tree itself.
    inside: String,
    /// The tool's path in that folder.
    tool: String,
    files: Vec<Copied<'a>>,
    /// What was not verified and comes along for Node.
    companions: Vec<Piece<'a>>,
    /// What cannot be verified and is pinned all the same.
    unsigned: Vec<VerifiedDependency>,
}

impl<'a> Tree<'a> {
    fn verified(&self, except: Option<&str>, above: &str) -> Vec<VerifiedDependency> {
        let named = self.files.iter().map(|(relative, _, integrity)| match below(&self.inside, relative) {
            Some(own) => (format!("{above}{own}"), integrity),
            None => (format!("{{package}}/{relative}"), integrity),
        });
        let others = named.filter(|(path, _)| Some(path.as_str()) != except);
        let verified =
            others.map(|(path, integrity)| VerifiedDependency { path, integrity: integrity.to_hex() });
        verified.chain(self.unsigned.iter().cloned()).collect()
    }

    /// Puts the tree on the shelf; the answer is the folder it is staged for.
    fn keep(self, order: &Order<'_>) -> Result<PathBuf, StagingError> {
        let Self { name, inside, files, companions, .. } = self;
        let files = files
            .into_iter()
            .map(|(relative, bytes, _)| Piece::File { relative: format!("{name}/{relative}"), bytes });
        let folder = joined(&name, &inside);
        let companions = companions.into_iter().map(|piece| piece.below(&folder));
        let pieces: Vec<Piece<'a>> = files.chain(companions).collect();
        Ok(keep(order.cache, order.now, &pieces)?.join(folder))
    }
}

/// The path below a folder of a tree, if it lies there.
fn below<'a>(folder: &str, path: &'a str) -> Option<&'a str> {
    if folder.is_empty() { Some(path) } else { path.strip_prefix(folder)?.strip_prefix('/') }
}

fn joined(folder: &str, path: &str) -> String {
    [folder, path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

fn anchored<'a>(
    order: &Order<'a>,
    failures: &mut Vec<Failure>,
    notices: &mut Vec<String>,
) -> Result<Tree<'a>, StagingError> {
    let (root, dependencies) = (&order.anchor.root, order.dependencies);
    let outside = StagingError::Place { path: order.tool.to_owned(), reason: "it is not below its anchor" };
    let tool = order.tool.strip_prefix(root).ok().and_then(Path::to_str).ok_or(outside)?.to_owned();
    file_name(order.tool)?;
    let folder = order.tool.parent().unwrap_or(root);
    let (base, is_recursive) = match (dependencies.is_enabled, dependencies.scope) {
        (true, Scope::Anchor) => (Some(root.as_path()), dependencies.is_recursive),
        (true, Scope::ToolDir) => (Some(folder), dependencies.is_recursive),
        (true, Scope::ToolSiblings) => (Some(folder), false),
        (true, Scope::ToolFile) => (None, false),
        (false, _) => {
            let notice = "`verify_deps` is off: the tool can import nothing from its own folder";
            notices.push(notice.to_owned());
            (None, false)
        }
    };
    let mut dependencies = dependencies.clone();
    if order.with_modules.is_some() {
        // They are linked as a whole, so they cannot be files of the tree as well.
        dependencies.exclude_dirs.push(MODULES.to_owned());
    }
    let mut files = match base {
        Some(base) => {
            let found = collect(root, base, is_recursive, &dependencies)?;
            read(root, found, Some(&tool), order, failures, notices)?
        }
        None => Vec::new(),
    };
    files.push((tool.clone(), Cow::Borrowed(order.bytes), Digest::of(order.bytes)));
    let package_files = if order.with_package_files || order.pins_package_files {
        package_files(root, &files, order.is_importable)
    } else {
        Vec::new()
    };
    let unsigned = if order.pins_package_files { pins(root, &package_files) } else { Vec::new() };
    let mut companions = if order.with_package_files { package_files } else { Vec::new() };
    companions.extend(order.with_modules.as_deref().map(modules_link));
    let (top, inside) = match &order.package {
        Some(package) if base == Some(root.as_path()) => {
            let inside =
                root.strip_prefix(package).ok().and_then(Path::to_str).unwrap_or_default().to_owned();
            for (relative, ..) in &mut files {
                *relative = joined(&inside, relative);
            }
            files.extend(around(package, &inside, &dependencies, order, notices)?);
            (package.as_path(), inside)
        }
        Some(_) | None => (root.as_path(), String::new()),
    };
    files.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(Tree { name: folder_name(top), inside, tool, files, companions, unsigned })
}

/// What verifies of the package around the anchor. Nobody promised that all of it does: the rest cannot be imported.
fn around<'a>(
    package: &Path,
    inside: &str,
    dependencies: &Dependencies,
    order: &Order<'_>,
    notices: &mut Vec<String>,
) -> Result<Vec<Copied<'a>>, StagingError> {
    if inside.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = collect(package, package, true, dependencies)?;
    found.files.retain(|relative| below(inside, relative).is_none());
    found.failures.retain(|failure| !failure.path.starts_with(package.join(inside)));
    let mut unverified = Vec::new();
    let files = read(package, found, None, order, &mut unverified, notices)?;
    notices.extend(left_out(unverified.iter().map(|failure| failure.path.as_path()), "not verified"));
    Ok(files)
}

fn library<'a>(
    order: &Order<'a>,
    lib: &Path,
    failures: &mut Vec<Failure>,
    notices: &mut Vec<String>,
) -> Result<Tree<'a>, StagingError> {
    let extension = order.tool.extension().and_then(|extension| extension.to_str());
    let dependencies = order.dependencies.for_library(extension);
    let found = collect(lib, lib, true, &dependencies)?;
    let mut files = read(lib, found, None, order, failures, notices)?;
    files.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(Tree {
        name: folder_name(lib),
        inside: String::new(),
        tool: String::new(),
        files,
        companions: Vec::new(),
        unsigned: Vec::new(),
    })
}

fn read<'a>(
    root: &Path,
    found: Collected,
    except: Option<&str>,
    order: &Order<'_>,
    failures: &mut Vec<Failure>,
    notices: &mut Vec<String>,
) -> Result<Vec<Copied<'a>>, StagingError> {
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
        if !(order.is_importable)(&path) {
            others.push(path);
            continue;
        }
        match (order.verify)(&path, &relative) {
            Ok(file) => {
                total = total.saturating_add(file.covered.len() as u64);
                if total > MAX_BYTES {
                    return Err(StagingError::TooMuch { folder: root.to_owned(), limit: "64 MiB" });
                }
                files.push((relative, Cow::Owned(file.covered), file.integrity));
            }
            Err(reason) => failures.push(Failure { path, reason }),
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

fn modules_link<'a>(modules: &Path) -> Piece<'a> {
    Piece::Link { relative: MODULES.to_owned(), target: modules.to_owned() }
}

fn package_files<'a>(root: &Path, files: &[Copied<'_>], is_importable: IsImportable<'_>) -> Vec<Piece<'a>> {
    let is_free =
        |name: &str| is_importable(&root.join(name)) && !files.iter().any(|(relative, ..)| relative == name);
    let package = PACKAGE_FILES.iter().filter(|name| is_free(name)).filter_map(|name| {
        let read: Result<_, ReadError> = file::read_beneath(root, Path::new(name), MAX_PACKAGE_FILE);
        // Without it Node falls back to its defaults, as it does for a package that has none.
        let (bytes, _) = read.ok()?;
        Some(Piece::File { relative: (*name).to_owned(), bytes: Cow::Owned(bytes) })
    });
    package.collect()
}

/// The pins of package files, and of `node_modules` being there. What lies in that folder is not pinned: it is installed
/// and changed by others.
fn pins(root: &Path, package_files: &[Piece<'_>]) -> Vec<VerifiedDependency> {
    let pin = |path: String, bytes: &[u8]| VerifiedDependency { path, integrity: Digest::of(bytes).to_hex() };
    let files = package_files.iter().filter_map(|piece| match piece {
        Piece::File { relative, bytes } => Some(pin(relative.clone(), bytes)),
        Piece::Link { .. } => None,
    });
    let has_modules = !package_files.is_empty() && root.join(MODULES).is_dir();
    files.chain(has_modules.then(|| pin(format!("{MODULES}/"), b""))).collect()
}

fn file_name(tool: &Path) -> Result<&str, StagingError> {
    let name = tool.file_name().and_then(|name| name.to_str());
    name.filter(|name| !name.chars().any(char::is_control))
        .ok_or_else(|| StagingError::Place { path: tool.to_owned(), reason: "its name is not plain text" })
}

/// The name of a staged folder: the real one, without what could split a search path.
fn folder_name(folder: &Path) -> String {
    let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let is_kept = |character: char| character.is_alphanumeric() || "._- ".contains(character);
    let name: String = name.chars().map(|c| if is_kept(c) { c } else { '_' }).collect();
    if name.is_empty() { "root".to_owned() } else { name }
}
