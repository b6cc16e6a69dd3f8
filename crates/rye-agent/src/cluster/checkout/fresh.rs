//! A fresh checkout on a worker: the files as they were submitted beside the folder that the tree's tools work in, and the patch
//! between the two whenever the thread stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::CancelToken;
use rye_engine::{Engine, Result};
use rye_item::text::one_line;
use serde_json::Value;

use super::content::FileBytes;
use super::patch::{CheckoutPatch, PatchSummary, read_patch};
use super::snapshot::unpack_snapshot;
use super::walk::list_files;
use super::{Checkout, is_allowed_address, refused};
use crate::driver::{BoxFuture, StopRecorder};
use crate::status::ThreadStatus;
use crate::store::{StoreHandle, ThreadRow};
use crate::thread_id::ThreadId;

/// The folder of the files as they were submitted, beside that of the project.
const BASE_FOLDER: &str = "base";

/// Folders of a repository that do not come from it: items travel with the submission.
const SUBMITTED_FOLDERS: [&str; 2] = [".ai", "lockfiles"];

/// The checkout of one tree.
pub(in crate::cluster) struct TreeCheckout {
    source: String,
    base: PathBuf,
    project: PathBuf,
    store: StoreHandle,
    /// Whether another worker had the tree and did not say what it had changed.
    is_incomplete: bool,
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
                fetch_commit(engine, address, commit, &base)?;
            }
        }
        for path in list_files(&base, None)?.files {
            if let Some(file) = FileBytes::read(&base, &path)? {
                file.write(&project, &path)?;
            }
        }
        Ok(Self { source: checkout.source(), base, project, store: store.clone(), is_incomplete: false })
    }

    /// Brings a fresh checkout to where an earlier worker left it. What was changed and not recorded is missing, and every
    /// later patch says so.
    ///
    /// # Errors
    /// When what was recorded cannot be read.
    pub(in crate::cluster) fn restore(&mut self, root: &ThreadId) -> Result<()> {
        let Some(row) = self.store.verified_thread(root)? else { return Ok(()) };
        let line = self.store.chain(&row)?;
        let recorded = line.iter().rev().find(|row| !row.is_forged && PatchSummary::of_row(row).is_some());
        if let Some(recorded) = recorded {
            let patch = read_patch(&self.store, &recorded.id)?;
            patch.apply(&self.project)?;
            self.is_incomplete = patch.is_incomplete;
        }
        self.is_incomplete |= line.last().is_some_and(has_run_since);
        Ok(())
    }

    fn collect(&self, thread: &ThreadId, at_ms: u64) -> Result<PatchSummary> {
        let mut patch = CheckoutPatch::collect(thread, self.source.clone(), &self.base, &self.project)?;
        patch.is_incomplete = self.is_incomplete;
        let digest = self.store.put_blob_for(thread, patch.to_bytes()?, at_ms)?;
        Ok(PatchSummary {
            digest: Some(digest.to_hex()),
            files: patch.file_count(),
            is_incomplete: self.is_incomplete,
            error: None,
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

/// Fetches the plain files of a commit to `base`; nothing of it is run, and links and submodules are not made.
fn fetch_commit(engine: &Engine, address: &str, commit: &str, base: &Path) -> Result<()> {
    let fetched = rye_engine::verbs::sync::fetch_commit(engine, address, commit, &CancelToken::new()?)?;
    for folder in SUBMITTED_FOLDERS {
        let folder = fetched.root.join(folder);
        if folder.is_dir() {
            lillux::file::remove_tree(&folder)?;
        }
    }
    lillux::file::rename_dir(&fetched.root, base)?;
    Ok(())
}

/// Records the patch when the thread that was submitted, or one that continues it, stops.
pub(in crate::cluster) struct PatchRecorder(pub(in crate::cluster) Arc<TreeCheckout>);

impl StopRecorder for PatchRecorder {
    fn record(&self, thread: &ThreadId, at_ms: u64) -> BoxFuture<'_, (&'static str, Value)> {
        let (checkout, thread) = (Arc::clone(&self.0), thread.clone());
        Box::pin(async move {
            let collected = tokio::task::spawn_blocking(move || checkout.collect(&thread, at_ms)).await;
            let failed = |reason: String| PatchSummary {
                digest: None,
                files: 0,
                is_incomplete: true,
                error: Some(one_line(&reason)),
            };
            let summary = match collected {
                Ok(Ok(summary)) => summary,
                Ok(Err(error)) => failed(error.message),
                Err(error) => failed(error.to_string()),
            };
            (super::patch::RESULT_FIELD, summary.to_value())
        })
    }
}
