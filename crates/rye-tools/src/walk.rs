//! Going through the project's folders: each is opened in the one above it, links are not followed, what is hidden is
//! not seen, and `.gitignore` and `.ignore` files are obeyed if asked.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use lillux::Cancel;
use lillux::beneath::{Entry, Folder, Kind};
use rye_exec::NativeError;

use crate::place::Project;

const MOST_DEPTH: usize = 100;
const MOST_ENTRIES: usize = 300_000;
const MOST_IGNORE_BYTES: u64 = 256 * 1024;

/// What is passed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Names that begin with a dot. `.ai` is always seen.
    pub(crate) includes_hidden: bool,
    /// The insides of `.git`.
    pub(crate) includes_git: bool,
    /// What `.gitignore` and `.ignore` name.
    pub(crate) respects_ignore: bool,
    /// How many folders deep, the first counted.
    pub(crate) depth: usize,
}

/// Something that was found.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// The folder it is in.
    pub(crate) folder: &'a Folder,
    pub(crate) name: &'a OsStr,
    /// Its path below the project.
    pub(crate) path: &'a Path,
    pub(crate) kind: Kind,
    /// How deep below the start, from 1.
    pub(crate) depth: usize,
}

/// What the visitor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Stop,
}

/// How the walk ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Not everything was seen: too much, too deep, or the visitor had enough.
    pub(crate) is_cut: bool,
    /// Folders that could not be opened.
    pub(crate) unreadable: usize,
}

struct Walk<'a, 'v> {
    project: &'a Project<'a>,
    cancel: &'a Cancel,
    options: Options,
    rules: Vec<(usize, Gitignore)>,
    seen: usize,
    result: Walked,
    visit: &'v mut dyn FnMut(&Found<'_>) -> Result<Flow, NativeError>,
}

/// Visits everything below `start`, a folder of the project, in the order of names.
pub(crate) fn walk(
    project: &Project<'_>,
    start: &Folder,
    options: Options,
    cancel: &Cancel,
    visit: &mut dyn FnMut(&Found<'_>) -> Result<Flow, NativeError>,
) -> Result<Walked, NativeError> {
    let relative = start.path().strip_prefix(project.root.path()).unwrap_or(Path::new("")).to_owned();
    let mut walk =
        Walk { project, cancel, options, rules: Vec::new(), seen: 0, result: Walked::default(), visit };
    walk.rules_above(&relative);
    let mut path = relative;
    walk.folder(start, &mut path, 1)?;
    Ok(walk.result)
}

impl Walk<'_, '_> {
    /// The rules of the folders above the start, from the project down.
    fn rules_above(&mut self, relative: &Path) {
        if !self.options.respects_ignore {
            return;
        }
        let mut above = PathBuf::new();
        for name in relative.components() {
            if let Ok(folder) = self.project.root.folder(&above) {
                self.add_rules(&folder, &above, &[OsStr::new(".gitignore"), OsStr::new(".ignore")]);
            }
            above.push(name);
        }
    }

    fn add_rules(&mut self, folder: &Folder, relative: &Path, names: &[&OsStr]) {
        let mut builder = GitignoreBuilder::new("");
        for name in names {
            let Ok(opened) = folder.child_file(name) else { continue };
            if self.project.is_hidden(&opened.path) {
                continue;
            }
            let mut bytes = Vec::new();
            // A rule file that cannot be read has no rules, as for git.
            let _ = opened.file.take(MOST_IGNORE_BYTES).read_to_end(&mut bytes);
            for line in String::from_utf8_lossy(&bytes).lines() {
                let _ = builder.add_line(None, line);
            }
        }
        if let Ok(rules) = builder.build()
            && !rules.is_empty()
        {
            self.rules.push((relative.components().count(), rules));
        }
    }

    fn is_ignored(&self, path: &Path, is_folder: bool) -> bool {
        for (depth, rules) in self.rules.iter().rev() {
            let below: PathBuf = path.components().skip(*depth).collect();
            let matched = rules.matched(&below, is_folder);
            if !matched.is_none() {
                return matched.is_ignore();
            }
        }
        false
    }

    fn is_passed_over(&self, entry: &Entry, path: &Path) -> bool {
        let name = entry.name.as_encoded_bytes();
        if name == b".git" {
            return !self.options.includes_git;
        }
        if name.starts_with(b".") && name != b".ai" && !self.options.includes_hidden {
            return true;
        }
        self.project.is_hidden(&self.project.root.path().join(path))
            || (self.options.respects_ignore && self.is_ignored(path, entry.kind == Kind::Folder))
    }

    fn folder(&mut self, folder: &Folder, path: &mut PathBuf, depth: usize) -> Result<Flow, NativeError> {
        if depth > self.options.depth.min(MOST_DEPTH) {
            self.result.is_cut |= self.options.depth > MOST_DEPTH;
            return Ok(Flow::Continue);
        }
        let Ok((entries, is_complete)) = folder.entries(MOST_ENTRIES - self.seen.min(MOST_ENTRIES)) else {
            self.result.unreadable += 1;
            return Ok(Flow::Continue);
        };
        self.seen += entries.len();
        self.result.is_cut |= !is_complete;
        let rules = self.rules.len();
        if self.options.respects_ignore {
            let is_rules = |name: &OsStr| name == ".gitignore" || name == ".ignore";
            let mut names: Vec<&OsStr> =
                entries.iter().map(|entry| entry.name.as_os_str()).filter(|name| is_rules(name)).collect();
            // Later rules win, and `.ignore` is the stronger one.
            names.sort_unstable();
            if !names.is_empty() {
                names.sort_by_key(|name| *name == ".ignore");
                self.add_rules(folder, path, &names);
            }
        }
        let flow = self.entries(folder, &entries, path, depth);
        self.rules.truncate(rules);
        flow
    }

    fn entries(
        &mut self,
        folder: &Folder,
        entries: &[Entry],
        path: &mut PathBuf,
        depth: usize,
    ) -> Result<Flow, NativeError> {
        for entry in entries {
            if self.cancel.is_cancelled() {
                return Err(NativeError::failed("cancelled"));
            }
            path.push(&entry.name);
            let flow = self.entry(folder, entry, path, depth);
            path.pop();
            if flow? == Flow::Stop {
                self.result.is_cut = true;
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    fn entry(
        &mut self,
        folder: &Folder,
        entry: &Entry,
        path: &mut PathBuf,
        depth: usize,
    ) -> Result<Flow, NativeError> {
        if self.is_passed_over(entry, path) {
            return Ok(Flow::Continue);
        }
        let found = Found { folder, name: &entry.name, path, kind: entry.kind, depth };
        if (self.visit)(&found)? == Flow::Stop {
            return Ok(Flow::Stop);
        }
        if entry.kind != Kind::Folder || depth >= self.options.depth {
            return Ok(Flow::Continue);
        }
        match folder.child_folder(&entry.name) {
            Ok(child) => self.folder(&child, path, depth + 1),
            Err(_) => {
                self.result.unreadable += 1;
                Ok(Flow::Continue)
            }
        }
    }
}
