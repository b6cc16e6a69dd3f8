//! Moving the threads of a place from one store to another: journals, ledger, questions, transcripts and shared parts. A tree is
//! taken whole or not at all, and compared with what it was afterwards; what is there already as it should be is left alone, so
//! that one that broke off can be run again.

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use rye_engine::{Code, Engine, Error, Result};
use rye_item::text::one_line;

use super::{
    LocalClock, OpenedStore, SharedStoreConfig, StoreHandle, ThreadProgress, ThreadSecret, ThreadStoreError,
    ThreadTransfer, open_existing_store, open_shared, open_store,
};
use crate::thread_id::ThreadId;
use crate::threads::ledger_spec;
use crate::transcript;

/// What the store in a project's own files is called.
const LOCAL: &str = "local";

/// A store that threads move to or from.
#[derive(Debug)]
pub struct MigrationStore {
    /// What people call it.
    pub name: String,
    store: StoreHandle,
    /// Where transcripts are files; none where the store keeps them.
    folder: Option<PathBuf>,
    _opened: Option<OpenedStore>,
}

/// Which end of a migration a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreRole {
    /// Threads come from it.
    Source,
    /// Threads go to it.
    Target,
}

/// What came of moving the threads of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationReport {
    /// Roots of trees that the other store took.
    pub migrated: Vec<ThreadId>,
    /// Roots of trees that it had already.
    pub unchanged: Vec<ThreadId>,
    /// Of both: roots of trees that had not ended. They are in the other store alone now: only one may resume them.
    pub removed: Vec<ThreadId>,
}

impl MigrationStore {
    /// Opens `local`, the store in the files of this place, or one that settings describe. A local one
    /// that threads go to is made.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    pub fn open(engine: &Engine, name: &str, role: StoreRole, clock: LocalClock) -> Result<Self> {
        let roots = &engine.workspace.roots;
        let place = roots.threads_dir();
        let config = crate::config::load(&engine.workspace)?;
        let spec = ledger_spec(&config);
        if name != LOCAL {
            let config = SharedStoreConfig::named(engine, name)?;
            let opened = open_shared(engine, &config, &place, &spec, clock)?;
            let store = opened.store.clone();
            return Ok(Self { name: name.to_owned(), store, folder: None, _opened: Some(opened) });
        }
        let store = if role == StoreRole::Target {
            let secret = ThreadSecret::load_or_create(&roots.signing_keys)?;
            Some(open_store(&place, &secret, &spec)?)
        } else {
            match ThreadSecret::load(&roots.signing_keys)? {
                Some(secret) => open_existing_store(&place, &secret, &spec)?,
                None => None,
            }
        };
        let store = store.ok_or_else(|| {
            let shown = one_line(&place.display().to_string());
            Error::new(Code::PathNotFound, format!("there are no threads in `{shown}`"))
                .hint("run this in the project whose threads move, or: --project DIR")
        })?;
        store.ensure_current()?;
        Ok(Self { name: LOCAL.to_owned(), store, folder: Some(place), _opened: None })
    }

    /// A tree, with its transcripts wherever they are.
    fn export(&self, root: &ThreadId) -> Result<Vec<ThreadTransfer>> {
        let mut threads = self.store.export_tree(root).map_err(|error| match error {
            ThreadStoreError::Running { thread } => running_error(&thread),
            other => Error::from(other),
        })?;
        if let Some(folder) = &self.folder {
            for transfer in &mut threads {
                transfer.transcript = transcript::read_bytes(&transcript::path(folder, &transfer.id))?;
            }
        }
        Ok(threads)
    }

    fn import(&self, threads: Vec<ThreadTransfer>, at_ms: u64) -> Result<()> {
        if let Some(folder) = &self.folder {
            for transfer in &threads {
                file::create_folders_beneath(folder, Path::new(transfer.id.as_str()), true)?;
                let path = transcript::path(folder, &transfer.id);
                file::write_atomic(&path, &transfer.transcript, FileMode::Private)?;
            }
        }
        Ok(self.store.import_tree(threads, at_ms)?)
    }

    /// Forgets a tree, if it is as it was exported.
    fn forget(&self, threads: &[ThreadTransfer]) -> std::result::Result<(), ForgetError> {
        let progress: Option<Vec<ThreadProgress>> = threads.iter().map(ThreadTransfer::progress).collect();
        let progress = progress.ok_or(ForgetError::Changed)?;
        self.store.forget_tree(progress).map_err(|error| match error {
            ThreadStoreError::Conflict { .. } | ThreadStoreError::Running { .. } => ForgetError::Changed,
            other => ForgetError::Failed(other.into()),
        })?;
        let folders = threads.iter().filter_map(|one| Some(self.folder.as_ref()?.join(one.id.as_str())));
        for folder in folders.filter(|folder| folder.is_dir()) {
            file::remove_tree(&folder).map_err(|error| ForgetError::Failed(error.into()))?;
        }
        Ok(())
    }
}

/// Why a tree was not forgotten.
enum ForgetError {
    /// It has continued since it was exported, or is running.
    Changed,
    Failed(Error),
}

/// How the other store stands to a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TreeState {
    Missing,
    Same,
}

/// Moves the threads of this place. All of them are looked at before any is written.
///
/// # Errors
/// When one is at work, does not verify, or is in the other store with another content. Trees that the other store took before
/// that stay there.
pub fn migrate(source: &MigrationStore, target: &MigrationStore, at_ms: u64) -> Result<MigrationReport> {
    let mut planned = Vec::new();
    for root in source.store.transferable()? {
        let threads = source.export(&root)?;
        planned.push((root, compare(target, &threads)?));
    }
    let mut report = MigrationReport::default();
    for (root, state) in planned {
        if migrate_tree(source, target, &root, state, at_ms)? {
            report.removed.push(root.clone());
        }
        match state {
            TreeState::Missing => report.migrated.push(root),
            TreeState::Same => report.unchanged.push(root),
        }
    }
    Ok(report)
}

/// Moves one tree; whether it was removed where it came from.
fn migrate_tree(
    source: &MigrationStore,
    target: &MigrationStore,
    root: &ThreadId,
    state: TreeState,
    at_ms: u64,
) -> Result<bool> {
    let threads = source.export(root)?;
    if state == TreeState::Missing {
        for digest in threads.iter().flat_map(|transfer| &transfer.blobs) {
            target.store.put_blob_blocking(source.store.blob(digest)?, at_ms)?;
        }
        target.import(threads.clone(), at_ms)?;
    }
    if target.export(root)? != threads {
        let message = format!("{root} differs in `{}` after the copy; both copies were kept", target.name);
        return Err(Error::new(Code::StoreDamaged, message).detail("thread_id", root.as_str()));
    }
    let is_ended = threads.iter().all(|transfer| transfer.is_ended);
    if is_ended {
        return Ok(false);
    }
    match source.forget(&threads) {
        Ok(()) => Ok(true),
        Err(ForgetError::Failed(error)) => Err(error),
        Err(ForgetError::Changed) => Err(undo_copy(target, &threads)),
    }
}

/// A tree continued while it was copied. The copy goes, so that only one store resumes it.
fn undo_copy(target: &MigrationStore, threads: &[ThreadTransfer]) -> Error {
    let root = threads.first().map(|root| root.id.to_string()).unwrap_or_default();
    let (copy, hint) = match target.forget(threads) {
        Ok(()) => {
            ("its copy was removed".to_owned(), "run it again when no thread of it is running".to_owned())
        }
        Err(error) => {
            let reason = match error {
                ForgetError::Changed => "it has continued too".to_owned(),
                ForgetError::Failed(error) => one_line(&error.message),
            };
            let copy = format!("its copy in `{}` could not be removed: {reason}", one_line(&target.name));
            (copy, format!("end one of the two: rye thread cancel {root}"))
        }
    };
    Error::new(Code::MigrationRefused, format!("{root} continued while it was copied; {copy}"))
        .detail("thread_id", root)
        .hint(hint)
}

/// Whether the other store has a tree; one with another content is refused.
fn compare(target: &MigrationStore, threads: &[ThreadTransfer]) -> Result<TreeState> {
    let Some(root) = threads.first() else { return Ok(TreeState::Same) };
    let mut known = 0;
    for transfer in threads {
        known += usize::from(target.store.thread(&transfer.id)?.is_some());
    }
    if known == 0 {
        return Ok(TreeState::Missing);
    }
    let found = target.export(&root.id)?;
    if found == threads {
        return Ok(TreeState::Same);
    }
    let message = format!("{} already exists in `{}` and differs", root.id, one_line(&target.name));
    Err(Error::new(Code::MigrationRefused, message)
        .detail("thread_id", root.id.as_str())
        .hint("compare them: rye thread show, with and without threads.store in your settings"))
}

fn running_error(id: &ThreadId) -> Error {
    Error::new(Code::MigrationRefused, format!("{id} cannot be moved: it is running"))
        .detail("thread_id", id.as_str())
        .hint(format!("wait for it, or end it: rye thread cancel {id}"))
        .hint(format!("if it was interrupted, let it continue first: rye thread resume {id}"))
}
