//! Making a patch: what a tree changed in its project files, without what no patch may change.

use std::collections::BTreeSet;
use std::path::Path;

use rye_engine::{Code, Error, Result};

use super::content::{FileBytes, FileContent, FoundEntry};
use super::left_out::LeftOutFiles;
use super::patch::{CheckoutPatch, FORMAT, FileChange};
use super::repository_shape::RepositoryShape;
use super::rules::{CheckoutRules, Exclusion, holds_private_key};
use super::walk::list_files;
use crate::redact::Redactor;
use crate::thread_id::ThreadId;

/// The most that the files of a patch may hold together, before and after.
const MAX_PATCH_BYTES: usize = 32 << 20;

/// What a patch is made of.
pub(super) struct PatchSource<'a> {
    pub(super) thread: &'a ThreadId,
    /// What it is against, in words.
    pub(super) source: &'a str,
    /// The files as they were.
    pub(super) base: &'a Path,
    /// The files as they are.
    pub(super) project: &'a Path,
    pub(super) rules: &'a CheckoutRules,
    /// Knows the values of the worker's secrets.
    pub(super) redactor: &'a Redactor,
    /// What the source has and the worker was not given.
    pub(super) missing: &'a LeftOutFiles,
}

/// A file that differs, before and after.
struct ChangedFile {
    path: String,
    before: Option<FileBytes>,
    after: Option<FileBytes>,
}

impl PatchSource<'_> {
    /// What differs in `project` from `base`: new files that the project's own `.gitignore` names are not in it.
    ///
    /// # Errors
    /// When there is too much, or a folder cannot be read.
    pub(super) fn collect(&self) -> Result<CheckoutPatch> {
        let (files, mut left_out) = self.changed_files()?;
        let written = files.iter().filter(|file| file.after.is_some()).map(|file| file.path.as_str());
        let shape = RepositoryShape::new(written);
        let (mut changes, mut total) = (Vec::new(), 0_usize);
        for file in files {
            if let Some(reason) = self.exclusion(&file, &shape) {
                self.leave_out(&mut left_out, &file.path, reason);
                continue;
            }
            let size = |file: &Option<FileBytes>| file.as_ref().map_or(0, |file| file.bytes.len());
            total = total.saturating_add(size(&file.before)).saturating_add(size(&file.after));
            if total > MAX_PATCH_BYTES {
                let message =
                    format!("the changed files are larger than {} MiB in total", MAX_PATCH_BYTES >> 20);
                return Err(Error::new(Code::TooLarge, message).hint("add build output to .gitignore"));
            }
            let ChangedFile { path, before, after } = file;
            let (before, after) = (before.map(FileContent::from), after.map(FileContent::from));
            changes.push(FileChange { path, before, after });
        }
        Ok(CheckoutPatch {
            format: FORMAT,
            thread: self.thread.clone(),
            source: self.source.to_owned(),
            is_incomplete: false,
            changes,
            left_out: left_out.files,
            left_out_more: left_out.more,
            is_outdated: false,
        })
    }

    /// All files that differ, and what is not among them.
    fn changed_files(&self) -> Result<(Vec<ChangedFile>, LeftOutFiles)> {
        let known = list_files(self.base, self.rules, None)?.files;
        let listing = list_files(self.project, self.rules, Some(self.base))?;
        let known_set: BTreeSet<&str> = known.iter().map(String::as_str).collect();
        let mut left_out = self.missing.clone();
        for (path, reason) in &listing.left_out {
            let is_same = || match FoundEntry::find(self.base, path) {
                before @ FoundEntry::File(_) => FoundEntry::find(self.project, path) == before,
                _ => false,
            };
            if !known_set.contains(path.as_str()) && !is_same() {
                self.leave_out(&mut left_out, path, reason);
            }
        }
        let new = listing.files.iter().filter(|path| !known_set.contains(path.as_str()));
        let paths: BTreeSet<&str> = known.iter().chain(new).map(String::as_str).collect();
        let mut files = Vec::new();
        for path in paths.into_iter().filter(|path| !self.missing.names(path)) {
            // A folder in the place of a file: the file is gone.
            let (before, after) =
                match (FoundEntry::find(self.base, path), FoundEntry::find(self.project, path)) {
                    (FoundEntry::Other(reason), _) | (_, FoundEntry::Other(reason)) => {
                        self.leave_out(&mut left_out, path, reason);
                        continue;
                    }
                    (before, after) => (before.into_file(), after.into_file()),
                };
            if before != after {
                files.push(ChangedFile { path: path.to_owned(), before, after });
            }
        }
        Ok((files, left_out))
    }

    /// Why a file is not in the patch, if it is not.
    fn exclusion(&self, file: &ChangedFile, shape: &RepositoryShape) -> Option<&'static str> {
        let repository = || shape.contains(&file.path, Some(self.project)).then_some(Exclusion::Repository);
        if let Some(reason) = self.rules.change_exclusion(&file.path).or_else(repository) {
            return Some(reason.reason());
        }
        if file.after.as_ref().is_some_and(|after| holds_private_key(&after.bytes)) {
            return Some(Exclusion::Secret.reason());
        }
        let values = |file: Option<&FileBytes>| match file {
            Some(file) => self.redactor.find_values(&file.bytes),
            None => Some(BTreeSet::new()),
        };
        // What was there before is known to those who have the project.
        let is_known = match (values(file.before.as_ref()), values(file.after.as_ref())) {
            (Some(before), Some(after)) => after.is_subset(&before),
            (None, _) | (_, None) => false,
        };
        let is_named = self.redactor.find_values(file.path.as_bytes()).is_none_or(|found| !found.is_empty());
        (!is_known || is_named).then_some("holds the value of a secret of the worker")
    }

    /// Leaves a file out. Its name may be a secret too.
    fn leave_out(&self, left_out: &mut LeftOutFiles, path: &str, reason: &str) {
        left_out.push(&self.redactor.redact_text(path), reason);
    }
}
