//! Reading what is to be imported: names first, then the files that count. No link is followed, and everything has a bound.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use lillux::Digest;
use lillux::dir::{Dir, DirEntryKind};
use lillux::file;
use rye_engine::verbs::sync::{LeftOutReason, SourceFolder};
use rye_engine::{Code, Error};
use rye_import::tree::{
    MAX_ASSET_BYTES, MAX_ENTRIES, MAX_FOLDER_DEPTH, MAX_TEXT_BYTES, MAX_TOTAL_BYTES, SourcePathError,
};
use rye_import::{
    ImportOptions, ImportPlan, SourceEntry, SourceListing, SourceOrigin, SourcePath, SourceTree,
};

use crate::commands::export;

/// Folders that hold nothing of a client.
const SKIPPED_FOLDERS: [&str; 8] =
    [".git", ".hg", ".svn", ".ai", "node_modules", ".venv", "venv", "__pycache__"];
/// What clients keep at the root of a project.
const CLIENT_NAMES: [&str; 19] = [
    ".agents",
    ".claude",
    ".claude-plugin",
    ".codex",
    ".cursor",
    ".cursorrules",
    ".gemini",
    ".github",
    ".kiro",
    ".mcp.json",
    ".opencode",
    ".vscode",
    ".windsurfrules",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    "apm.lock.yaml",
    "apm.yaml",
    "apm.yml",
];
/// How many folders above a source are looked at: where a file lies decides what it is.
const MAX_CONTEXT_PARTS: usize = 3;

/// A place to import from.
pub struct ImportSource {
    root: PathBuf,
    /// The only file of it, or the only names at its root.
    only: Option<Vec<String>>,
    label: String,
    /// What exports wrote here, by path: it is not a source, as long as it has this digest.
    exported: BTreeMap<String, String>,
    /// What was fetched or unpacked, which lies in a folder of ours.
    fetched: Option<SourceFolder>,
    /// Where it was fetched from.
    origin: Option<SourceOrigin>,
}

/// Whether a source is an address and not a path.
pub fn is_address(given: &Path) -> bool {
    let shown = given.to_string_lossy();
    shown.contains("://") || shown.starts_with("git@") || shown.starts_with("github:")
}

impl ImportSource {
    /// A folder or a file that was named.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(given: &Path, working_dir: &Path, project: Option<&Path>) -> Result<Self, Error> {
        let shown = given.display().to_string();
        let path = std::fs::canonicalize(working_dir.join(given)).map_err(|error| {
            Error::new(Code::PathNotFound, format!("`{shown}` cannot be read: {error}"))
                .hint("name a folder or a file, or everything in the project: --all")
        })?;
        let is_file = path.is_file();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        let root = match is_file {
            true => path.parent().unwrap_or(Path::new("/")).to_owned(),
            false => path.clone(),
        };
        // A skill is its folder.
        let only = (is_file && name != "SKILL.md").then(|| match name.as_str() {
            "apm.yml" | "apm.yaml" => vec![name, "apm.lock.yaml".to_owned()],
            _ => vec![name],
        });
        Ok(Self {
            label: label_of(&root, project),
            root,
            only,
            exported: BTreeMap::new(),
            fetched: None,
            origin: None,
        })
    }

    /// What clients keep in a project, but for what was exported there.
    ///
    /// # Errors
    /// When the record of an export is damaged.
    pub fn of_project(project: &Path) -> Result<Self, Error> {
        Ok(Self {
            root: project.to_owned(),
            only: Some(CLIENT_NAMES.map(str::to_owned).to_vec()),
            label: String::new(),
            exported: export::exported_digests(project)?,
            fetched: None,
            origin: None,
        })
    }

    /// What was fetched from a repository or an archive on the web.
    pub fn of_fetched(fetched: SourceFolder, origin: SourceOrigin) -> Self {
        Self { origin: Some(origin), ..Self::of_unpacked(fetched) }
    }

    /// An archive of this machine that was unpacked.
    pub fn of_unpacked(fetched: SourceFolder) -> Self {
        Self {
            root: fetched.root.clone(),
            only: None,
            label: fetched.label.clone(),
            exported: BTreeMap::new(),
            fetched: Some(fetched),
            origin: None,
        }
    }

    /// Plans the import of everything that is found here.
    ///
    /// # Errors
    /// When the folder itself cannot be read.
    pub fn plan(&self, options: &ImportOptions) -> Result<ImportPlan, Error> {
        // The folder of a fetched source has a name of ours; what counts is the name it was fetched by.
        let place = self.fetched.as_ref().map_or(self.root.as_path(), |fetched| Path::new(&fetched.label));
        let mut listing = SourceListing {
            context: context_of(place),
            label: self.label.clone(),
            origin: self.origin.clone(),
            ..SourceListing::default()
        };
        let folder = Dir::open(&self.root)
            .map_err(|error| Error::new(Code::Io, error.to_string()).hint("check that you may read it"))?;
        list(&folder, "", 0, self.only.as_deref(), &mut listing);
        self.list_left_out(&mut listing);
        let mut units = rye_import::detect(&listing);
        let mut tree = SourceTree::default();
        let mut left = MAX_TOTAL_BYTES;
        for unit in &units {
            self.read(&unit.path, MAX_TEXT_BYTES, &mut left, &mut tree);
            // What has too many files is refused; its files need not be read for that.
            for path in unit.files.iter().take(rye_import::tree::MAX_UNIT_FILES + 1) {
                self.read(path, MAX_ASSET_BYTES, &mut left, &mut tree);
            }
        }
        let is_exported = |path: &SourcePath| {
            let digest = tree.bytes(path).map(|bytes| Digest::of(bytes).to_hex());
            digest.is_some() && digest.as_ref() == self.exported.get(path.as_str())
        };
        units.retain(|unit| !(is_exported(&unit.path) && unit.files.iter().all(is_exported)));
        let mut plan = rye_import::plan(&listing, &tree, &units, options);
        if listing.is_truncated {
            let reason =
                format!("it has more than {MAX_ENTRIES} files or is nested too deep: import a part of it");
            plan.refused.push(rye_import::RefusedSource { source: listing.display_path(""), reason });
        }
        Ok(plan)
    }

    /// Enters what a fetch has left out, so that it is refused where it is a part of something.
    fn list_left_out(&self, listing: &mut SourceListing) {
        for (path, reason) in self.fetched.iter().flat_map(|fetched| &fetched.left_out) {
            let entry = match reason {
                LeftOutReason::Link => SourceEntry::Link,
                LeftOutReason::Submodule => SourceEntry::Other,
                LeftOutReason::Name => {
                    listing.refused.push((path.clone(), SourcePathError::Unsafe));
                    continue;
                }
                LeftOutReason::Size(size) => SourceEntry::File { size: *size, is_executable: false },
            };
            match SourcePath::new(path) {
                Ok(checked) => {
                    listing.entries.insert(checked, entry);
                }
                Err(error) => listing.refused.push((path.clone(), error)),
            }
        }
    }

    /// Reads a file that is a file and not too large; what is not read is refused by the plan.
    fn read(&self, path: &SourcePath, limit: u64, left: &mut u64, tree: &mut SourceTree) {
        let limit = limit.min(*left);
        if let Ok((bytes, _)) = file::read_beneath_no_symlinks(&self.root, Path::new(path.as_str()), limit) {
            *left = left.saturating_sub(bytes.len() as u64);
            tree.insert(path.clone(), bytes);
        }
    }
}

/// What a folder is called in records: its path in the project, else its name. A path of this machine says nothing elsewhere.
fn label_of(root: &Path, project: Option<&Path>) -> String {
    let project = project.and_then(|project| std::fs::canonicalize(project).ok());
    match project.and_then(|project| root.strip_prefix(project).map(Path::to_owned).ok()) {
        Some(relative) => relative.to_string_lossy().into_owned(),
        None => root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
    }
}

fn context_of(root: &Path) -> String {
    let parts: Vec<String> = root
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    parts[parts.len().saturating_sub(MAX_CONTEXT_PARTS)..].join("/")
}

fn list(folder: &Dir, prefix: &str, depth: usize, only: Option<&[String]>, listing: &mut SourceListing) {
    let room = MAX_ENTRIES.saturating_sub(listing.entries.len());
    if depth > MAX_FOLDER_DEPTH || room == 0 {
        listing.is_truncated = true;
        return;
    }
    let Ok((entries, is_complete)) = folder.entries(room) else {
        listing.skipped.push(prefix.to_owned());
        return;
    };
    listing.is_truncated |= !is_complete;
    for entry in entries {
        let Ok(name) = std::str::from_utf8(entry.name.as_bytes()) else {
            listing.refused.push((entry.name.to_string_lossy().into_owned(), SourcePathError::Unsafe));
            continue;
        };
        if only.is_some_and(|only| !only.iter().any(|wanted| wanted == name)) {
            continue;
        }
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let checked = match SourcePath::new(&path) {
            Ok(checked) => checked,
            Err(error) => {
                listing.refused.push((path, error));
                continue;
            }
        };
        match entry.kind {
            DirEntryKind::Dir if SKIPPED_FOLDERS.contains(&name) => listing.skipped.push(path),
            DirEntryKind::Dir => match folder.open_child_dir(&entry.name) {
                Ok(child) => list(&child, &path, depth + 1, None, listing),
                Err(_) => listing.skipped.push(path),
            },
            DirEntryKind::File => {
                let status = folder.status(&entry.name).ok().flatten();
                let size = status.map_or(u64::MAX, |status| status.size);
                let is_executable = status.is_some_and(|status| status.mode & 0o100 != 0);
                listing.entries.insert(checked, SourceEntry::File { size, is_executable });
            }
            DirEntryKind::Symlink => {
                listing.entries.insert(checked, SourceEntry::Link);
            }
            DirEntryKind::Other => {
                listing.entries.insert(checked, SourceEntry::Other);
            }
        }
    }
}
