//! A fresh checkout on a worker: the files as they were submitted beside the folder that the tree's tools work in, and the patch
//! between the two whenever the thread stops.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lillux::CancelToken;
use rye_engine::verbs::sync::LeftOutReason;
use rye_engine::{Engine, Result};
use rye_item::text::one_line;
use serde_json::Value;

use super::collect::PatchSource;
use super::content::{FileBytes, MAX_FILE_BYTES};
use super::left_out::LeftOutFiles;
use super::patch::{PatchSummary, read_patch};
use super::rules::CheckoutRules;
use super::snapshot::unpack_snapshot;
use super::walk::list_files;
use super::{Checkout, is_allowed_address, refused};
use crate::driver::{BoxFuture, StopRecorder};
use crate::redact::Redactor;
use crate::status::ThreadStatus;
use crate::store::{StoreHandle, ThreadRow};
use crate::thread_id::ThreadId;

/// The folder of the files as they were submitted, beside that of the project.
const BASE_FOLDER: &str = "base";

/// Folders of a repository that do not come from it: items travel with the submission.
const SUBMITTED_FOLDERS: [&str; 2] = [".ai", "lockfiles"];

/// What is said of a file that was left out.
const NOT_GIVEN: &str = "was not given to the worker:";

/// The checkout of one tree.
pub(in crate::cluster) struct TreeCheckout {
    source: String,
    base: PathBuf,
    project: PathBuf,
    store: StoreHandle,
    rules: CheckoutRules,
    /// What the source has and is not in the folders.
    missing: LeftOutFiles,
    /// What an earlier worker left out of its patch.
    earlier: Vec<(String, String)>,
    /// Whether another worker had the tree and did not say what it had changed.
    is_incomplete: bool,
    /// What the store said of the thread when the folders were made.
    opened_at: RecordedState,
    /// The digest of the patch that the folders are at.
    patch: Mutex<Option<String>>,
}

/// What a store says of the files of a thread, and of those that continue it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RecordedState {
    /// The last thread, and how many records it has.
    last: Option<(ThreadId, u64)>,
    /// The digest of the last patch, if there was one.
    patch: Option<String>,
    /// The thread that has it.
    recorded: Option<ThreadId>,
    /// Whether something was changed afterwards and is lost.
    has_run_since: bool,
}

impl RecordedState {
    fn read(store: &StoreHandle, root: &ThreadId) -> Result<Self> {
        let Some(row) = store.verified_thread(root)? else { return Ok(Self::default()) };
        let chain = store.chain(&row)?;
        let summary = |row: &ThreadRow| {
            PatchSummary::of_row(row).filter(|_| !row.is_forged).map(|summary| (row.id.clone(), summary))
        };
        let recorded = chain.iter().rev().find_map(summary);
        let last = chain.last();
        Ok(Self {
            last: last.map(|row| (row.id.clone(), row.records)),
            patch: recorded.as_ref().and_then(|(_, summary)| summary.digest.clone()),
            recorded: recorded.map(|(id, _)| id),
            has_run_since: last.is_some_and(has_run_since),
        })
    }
}

impl TreeCheckout {
    /// Makes the folders of a tree, and brings the project to where the tree left it when it last stopped.
    ///
    /// # Errors
    /// When the files are not those that were submitted, cannot be fetched, or this worker does not fetch from there.
    pub(in crate::cluster) fn make(
        checkout: &Checkout,
        folder: &Path,
        store: &StoreHandle,
        engine: &Engine,
        allowed: &[String],
    ) -> Result<Self> {
        let (base, project) = (folder.join(BASE_FOLDER), folder.join("project"));
        let mut missing = LeftOutFiles::default();
        match checkout {
            Checkout::Snapshot { manifest } => {
                lillux::file::create_dirs(&base, true)?;
                unpack_snapshot(store, manifest, &base)?;
            }
            Checkout::Git { address, commit } => {
                if !is_allowed_address(address, allowed) {
                    let message = format!("this worker may not fetch from `{}`", one_line(address));
                    return Err(refused(message)
                        .hint("if it should: rye worker --checkout-from git+https://HOST/PATH/"));
                }
                missing = fetch_commit(engine, address, commit, &base)?;
            }
        }
        let made = Self {
            source: checkout.source(),
            base,
            project,
            store: store.clone(),
            rules: CheckoutRules::from_engine(engine)?,
            missing,
            earlier: Vec::new(),
            is_incomplete: false,
            opened_at: RecordedState::default(),
            patch: Mutex::default(),
        };
        made.fill_project()
    }

    /// Copies what is a project's own from the files as they were.
    fn fill_project(mut self) -> Result<Self> {
        let listing = list_files(&self.base, &self.rules, None)?;
        for path in listing.files {
            if let Some(file) = FileBytes::read(&self.base, &path)? {
                file.write(&self.project, &path)?;
            }
        }
        for (path, reason) in listing.left_out {
            self.missing.push(&path, &format!("{NOT_GIVEN} {reason}"));
        }
        Ok(self)
    }

    /// The rules of the tree's own project hold from now on.
    ///
    /// # Errors
    /// When its sandbox settings are not what they must be.
    pub(in crate::cluster) fn set_rules(&mut self, engine: &Engine) -> Result<()> {
        self.rules = CheckoutRules::from_engine(engine)?;
        Ok(())
    }

    /// Brings a fresh checkout to where an earlier worker left it. What was changed and not recorded is missing, and every
    /// later patch says so.
    ///
    /// # Errors
    /// When what was recorded cannot be read.
    pub(in crate::cluster) fn restore(&mut self, root: &ThreadId) -> Result<()> {
        let state = RecordedState::read(&self.store, root)?;
        if let Some(recorded) = &state.recorded {
            let patch = read_patch(&self.store, recorded, &self.rules)?;
            patch.apply(&self.project, &self.rules)?;
            self.is_incomplete = patch.is_incomplete;
            self.earlier = patch.left_out;
        }
        self.is_incomplete |= state.has_run_since;
        *self.patch.lock().unwrap_or_else(PoisonError::into_inner) = state.patch.clone();
        self.opened_at = state;
        Ok(())
    }

    /// Whether the folders are what the store has of the tree: as they were opened, or as they were recorded from here. `is_here`
    /// says which threads run here.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(in crate::cluster) fn is_current(
        &self,
        root: &ThreadId,
        is_here: impl Fn(&ThreadId) -> bool,
    ) -> Result<bool> {
        let state = RecordedState::read(&self.store, root)?;
        if state.last.as_ref().is_some_and(|(last, _)| is_here(last)) {
            return Ok(true);
        }
        let patch = self.patch.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(state == self.opened_at
            || (!state.has_run_since && state.patch.is_some() && state.patch == *patch))
    }

    fn collect(&self, thread: &ThreadId, at_ms: u64, redactor: &Redactor) -> Result<PatchSummary> {
        let source = PatchSource {
            thread,
            source: &self.source,
            base: &self.base,
            project: &self.project,
            rules: &self.rules,
            redactor,
            missing: &self.missing,
        };
        let mut patch = source.collect()?;
        patch.is_incomplete = self.is_incomplete;
        patch.add_left_out(&self.earlier);
        let digest = self.store.put_blob_for(thread, patch.to_bytes()?, at_ms)?.to_hex();
        *self.patch.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest.clone());
        Ok(PatchSummary {
            digest: Some(digest),
            files: patch.file_count(),
            is_incomplete: self.is_incomplete,
            error: None,
            is_outdated: false,
        })
    }
}

/// Whether a thread was at work after it last stopped, or at all if it never did: its worker is gone.
fn has_run_since(row: &ThreadRow) -> bool {
    match row.status {
        ThreadStatus::Created => row.records > 1,
        ThreadStatus::Running => true,
        ThreadStatus::Suspended
        | ThreadStatus::Completed
        | ThreadStatus::Error
        | ThreadStatus::Cancelled
        | ThreadStatus::Killed
        | ThreadStatus::Continued => PatchSummary::of_row(row).is_none(),
    }
}

/// Fetches the plain files of a commit to `base`; nothing of it is run, and links and submodules are not made. Gives what is not
/// there.
fn fetch_commit(engine: &Engine, address: &str, commit: &str, base: &Path) -> Result<LeftOutFiles> {
    let fetched = rye_engine::verbs::sync::fetch_commit(engine, address, commit, &CancelToken::new()?)?;
    for folder in SUBMITTED_FOLDERS {
        let folder = fetched.root.join(folder);
        if folder.is_dir() {
            lillux::file::remove_tree(&folder)?;
        }
    }
    lillux::file::rename_dir(&fetched.root, base)?;
    Ok(not_fetched(&fetched.left_out))
}

/// What of a commit is not in the checkout, and why.
fn not_fetched(left_out: &[(String, LeftOutReason)]) -> LeftOutFiles {
    let mut missing = LeftOutFiles::default();
    for (path, reason) in left_out {
        let is_submitted = SUBMITTED_FOLDERS
            .iter()
            .any(|folder| path.split('/').next().is_some_and(|first| first == *folder));
        if is_submitted {
            continue;
        }
        let reason = match reason {
            LeftOutReason::Link => "is a link".to_owned(),
            LeftOutReason::Submodule => "is a submodule".to_owned(),
            LeftOutReason::Name => "has a name that is not portable".to_owned(),
            LeftOutReason::Size(bytes) => {
                format!("has {bytes} bytes, more than {} MiB", MAX_FILE_BYTES >> 20)
            }
        };
        missing.push(path, &format!("{NOT_GIVEN} {reason}"));
    }
    missing
}

/// Records the patch when the thread that was submitted, or one that continues it, stops.
pub(in crate::cluster) struct PatchRecorder {
    pub(in crate::cluster) checkout: Arc<TreeCheckout>,
    /// Knows the secrets that the worker offers, whatever they are called.
    pub(in crate::cluster) offered: Arc<Redactor>,
}

impl StopRecorder for PatchRecorder {
    fn record<'a>(
        &'a self,
        thread: &ThreadId,
        at_ms: u64,
        redactor: &Arc<Redactor>,
    ) -> BoxFuture<'a, (&'static str, Value)> {
        let (checkout, thread) = (Arc::clone(&self.checkout), thread.clone());
        let (redactor, offered) = (Arc::clone(redactor), Arc::clone(&self.offered));
        Box::pin(async move {
            let collect = move || checkout.collect(&thread, at_ms, &redactor.merge(&offered));
            let summary = match tokio::task::spawn_blocking(collect).await {
                Ok(Ok(summary)) => summary,
                Ok(Err(error)) => PatchSummary::failed(&error.message),
                Err(error) => PatchSummary::failed(&error.to_string()),
            };
            (super::patch::RESULT_FIELD, summary.to_value())
        })
    }
}

#[cfg(test)]
#[path = "fresh_tests.rs"]
mod tests;
