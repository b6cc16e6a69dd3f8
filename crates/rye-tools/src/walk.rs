//! Going through the project's folders: each is opened in the one above it, links are not followed, what is hidden is
//! not seen, and `.gitignore` and `.ignore` files are obeyed if asked.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use lillux::CancelToken;
use lillux::dir::{Dir, DirEntry, DirEntryKind, IGNORE_FILES, IgnoreRules};
use rye_exec::NativeError;

use crate::path_access::ProjectAccess;

const MAX_DEPTH: usize = 100;
const MAX_ENTRIES: usize = 300_000;

/// What is passed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkOptions {
    /// Names that begin with a dot. `.ai` is always seen.
    pub(crate) include_hidden: bool,
    /// The insides of `.git`.
    pub(crate) include_git: bool,
    /// What `.gitignore` and `.ignore` name.
    pub(crate) respect_ignore: bool,
    /// How many folders deep, the first counted.
    pub(crate) depth: usize,
}

/// Something that was found.
#[derive(Debug)]
pub(crate) struct WalkEntry<'a> {
    /// The folder it is in.
    pub(crate) folder: &'a Dir,
    pub(crate) name: &'a OsStr,
    /// Its path below the project.
    pub(crate) path: &'a Path,
    pub(crate) kind: DirEntryKind,
    /// How deep below the start, from 1.
    pub(crate) depth: usize,
}

/// What the visitor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkControl {
    Continue,
    Stop,
}

/// How the walk ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkReport {
    /// Not everything was seen: too much, too deep, or the visitor had enough.
    pub(crate) is_truncated: bool,
    /// Folders that could not be opened.
    pub(crate) unreadable: usize,
}

struct Walker<'a, 'v> {
    project: &'a ProjectAccess<'a>,
    cancel: &'a CancelToken,
    options: WalkOptions,
    rules: IgnoreRules,
    entry_count: usize,
    result: WalkReport,
    visit: &'v mut dyn FnMut(&WalkEntry<'_>) -> Result<WalkControl, NativeError>,
}

/// Visits everything below `start`, a folder of the project, in the order of names.
pub(crate) fn walk(
    project: &ProjectAccess<'_>,
    start: &Dir,
    options: WalkOptions,
    cancel: &CancelToken,
    visit: &mut dyn FnMut(&WalkEntry<'_>) -> Result<WalkControl, NativeError>,
) -> Result<WalkReport, NativeError> {
    let relative = start.path().strip_prefix(project.root.path()).unwrap_or(Path::new("")).to_owned();
    let mut walker = Walker {
        project,
        cancel,
        options,
        rules: IgnoreRules::default(),
        entry_count: 0,
        result: WalkReport::default(),
        visit,
    };
    walker.add_parent_rules(&relative);
    let mut path = relative;
    walker.visit_folder(start, &mut path, 1)?;
    Ok(walker.result)
}

impl Walker<'_, '_> {
    /// The rules of the folders above the start, from the project down.
    fn add_parent_rules(&mut self, relative: &Path) {
        if !self.options.respect_ignore {
            return;
        }
        let mut above = PathBuf::new();
        for name in relative.components() {
            if let Ok(folder) = self.project.root.open_dir(&above) {
                self.add_rules(&folder, &above);
            }
            above.push(name);
        }
    }

    fn add_rules(&mut self, folder: &Dir, relative: &Path) {
        let project = self.project;
        self.rules.add(folder, relative, |path| !project.is_hidden(path));
    }

    fn is_skipped(&self, entry: &DirEntry, path: &Path) -> bool {
        let name = entry.name.as_encoded_bytes();
        if name == b".git" {
            return !self.options.include_git;
        }
        if name.starts_with(b".") && name != b".ai" && !self.options.include_hidden {
            return true;
        }
        self.project.is_hidden(&self.project.root.path().join(path))
            || (self.options.respect_ignore && self.rules.is_ignored(path, entry.kind == DirEntryKind::Dir))
    }

    fn visit_folder(
        &mut self,
        folder: &Dir,
        path: &mut PathBuf,
        depth: usize,
    ) -> Result<WalkControl, NativeError> {
        if depth > self.options.depth.min(MAX_DEPTH) {
            self.result.is_truncated |= self.options.depth > MAX_DEPTH;
            return Ok(WalkControl::Continue);
        }
        let Ok((entries, is_complete)) = folder.entries(MAX_ENTRIES - self.entry_count.min(MAX_ENTRIES))
        else {
            self.result.unreadable += 1;
            return Ok(WalkControl::Continue);
        };
        self.entry_count += entries.len();
        self.result.is_truncated |= !is_complete;
        let rules = self.rules.len();
        if self.options.respect_ignore {
            // Most folders have no such file.
            if entries.iter().any(|entry| IGNORE_FILES.iter().any(|name| entry.name == *name)) {
                self.add_rules(folder, path);
            }
        }
        let flow = self.visit_entries(folder, &entries, path, depth);
        self.rules.truncate(rules);
        flow
    }

    fn visit_entries(
        &mut self,
        folder: &Dir,
        entries: &[DirEntry],
        path: &mut PathBuf,
        depth: usize,
    ) -> Result<WalkControl, NativeError> {
        for entry in entries {
            if self.cancel.is_cancelled() {
                return Err(NativeError::failed("cancelled"));
            }
            path.push(&entry.name);
            let flow = self.visit_entry(folder, entry, path, depth);
            path.pop();
            if flow? == WalkControl::Stop {
                self.result.is_truncated = true;
                return Ok(WalkControl::Stop);
            }
        }
        Ok(WalkControl::Continue)
    }

    fn visit_entry(
        &mut self,
        folder: &Dir,
        entry: &DirEntry,
        path: &mut PathBuf,
        depth: usize,
    ) -> Result<WalkControl, NativeError> {
        if self.is_skipped(entry, path) {
            return Ok(WalkControl::Continue);
        }
        let walk_entry = WalkEntry { folder, name: &entry.name, path, kind: entry.kind, depth };
        if (self.visit)(&walk_entry)? == WalkControl::Stop {
            return Ok(WalkControl::Stop);
        }
        if entry.kind != DirEntryKind::Dir || depth >= self.options.depth {
            return Ok(WalkControl::Continue);
        }
        match folder.open_child_dir(&entry.name) {
            Ok(child) => self.visit_folder(&child, path, depth + 1),
            Err(_) => {
                self.result.unreadable += 1;
                Ok(WalkControl::Continue)
            }
        }
    }
}
