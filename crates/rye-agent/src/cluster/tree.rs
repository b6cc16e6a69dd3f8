//! A submitted tree on a worker: verified, unpacked into a fresh folder, and opened there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use lillux::{Digest, Fingerprint};
use rye_engine::lockfiles::enforce_frozen;
use rye_engine::{Code, Engine, EngineOptions, EnginePool, Error, HostEnvironment, NativeTools, Result};
use rye_item::ItemRef;
use rye_space::Roots;

use super::archive::FileArchive;
use super::check::check_spec;
use super::checkout::{PatchRecorder, TreeCheckout};
use super::labels::project_keys;
use super::submission::SubmissionBody;
use super::worker::WorkerSetup;
use crate::driver::StopRecorder;
use crate::file_inputs::FileAccess;
use crate::prepare::ThreadRequest;
use crate::redact::Redactor;
use crate::store::{CurrentKeys, StoreHandle, Submission, ThreadRow};
use crate::thread_id::ThreadId;
use crate::threads::{BackgroundHost, Threads, ThreadsSetup, WorkerPlace};

/// The threads of one submitted tree.
pub(super) struct WorkerTree {
    pub(super) threads: Threads,
    pub(super) last_used: std::sync::Mutex<Instant>,
    folder: PathBuf,
    root: ThreadId,
    checkout: Option<Arc<TreeCheckout>>,
}

impl Drop for WorkerTree {
    /// Nothing of a tree stays on the worker.
    fn drop(&mut self) {
        let _ = lillux::file::remove_tree(&self.folder);
    }
}

/// Reads a submission and verifies whose it is; the reason otherwise.
pub(super) fn read_submission(
    store: &StoreHandle,
    submission: &Submission,
    keys: &CurrentKeys,
) -> Result<(SubmissionBody, Fingerprint)> {
    let bytes = store.blob(&submission.digest)?;
    Ok(SubmissionBody::verify(&bytes, &submission.root, keys)?)
}

impl WorkerTree {
    /// Verifies what was submitted and opens it: every byte of its files, the tools by their lockfiles and this worker's
    /// own trust, and the thread against what this worker makes of the same request.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) async fn open(
        setup: &Arc<WorkerSetup>,
        place: &WorkerPlace,
        background: Arc<dyn BackgroundHost>,
        trees: &Path,
        body: Arc<SubmissionBody>,
    ) -> Result<Self> {
        // One that was opened before may still be in use.
        let folder = trees.join(format!("{}-{}", body.thread, lillux::file::unique_name()?));
        let unpack = {
            let (setup, place, body, folder) =
                (Arc::clone(setup), place.clone(), Arc::clone(&body), folder.clone());
            move || -> Result<(Threads, Option<Arc<TreeCheckout>>)> {
                let (engine, checkout) = unpack(&setup, &place.store.store, &body, &folder)?;
                let checkout = checkout.map(Arc::new);
                let offered = Redactor::new(&setup.environment, |name| {
                    setup.secrets.iter().any(|secret| secret == name)
                });
                let offered = Arc::new(offered);
                let recorder = checkout.clone().map(|checkout| Arc::new(PatchRecorder { checkout, offered }));
                let stop_recorder = recorder.map(|recorder| recorder as Arc<dyn StopRecorder>);
                let place = WorkerPlace { stop_recorder, ..place };
                let (again, project) = (Arc::clone(&setup), folder.join("project"));
                // Opened again when the worker's own keys or settings change.
                let engines =
                    EnginePool::new(1, move |(): &()| open_engine(&again, &project)).with_engine(&(), engine);
                let threads = Threads::open(ThreadsSetup {
                    engine: Arc::new(move || Ok(engines.engine(&())?.engine)),
                    environment: setup.environment.clone(),
                    listener: None,
                    clock: Arc::clone(&setup.clock),
                    folder: place.store.folder.clone(),
                    background: Some(background),
                    worker: Some(place),
                })?;
                Ok((threads, checkout))
            }
        };
        let opened = tokio::task::spawn_blocking(unpack).await;
        let opened = opened.map_err(|error| Error::new(Code::Io, format!("it broke off: {error}")));
        let (threads, checkout) = match opened.and_then(|opened| opened) {
            Ok(opened) => opened,
            Err(error) => {
                let _ = lillux::file::remove_tree(&folder);
                return Err(error);
            }
        };
        let (last_used, root) = (std::sync::Mutex::new(Instant::now()), body.thread.clone());
        let tree = Self { threads, last_used, folder, root, checkout };
        check_root(&tree.threads, &body, &setup.secrets).await?;
        Ok(tree)
    }

    /// Whether its files are those that the store has of the tree: another worker may have had it meanwhile.
    pub(super) async fn is_current(&self) -> Result<bool> {
        let Some(checkout) = self.checkout.clone() else { return Ok(true) };
        let (threads, root) = (self.threads.clone(), self.root.clone());
        let look = move || checkout.is_current(&root, |id| threads.runs(id));
        let looked = tokio::task::spawn_blocking(look).await;
        looked.map_err(|error| Error::new(Code::Io, format!("it broke off: {error}")))?
    }
}

/// Unpacks the files and opens an engine on them, with the worker's own user space.
fn unpack(
    setup: &WorkerSetup,
    store: &StoreHandle,
    body: &SubmissionBody,
    folder: &Path,
) -> Result<(Engine, Option<TreeCheckout>)> {
    let project = folder.join("project");
    lillux::file::remove_tree(folder).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    lillux::file::create_dirs(&project, true)?;
    let mut checkout = match &body.checkout {
        Some(checkout) => {
            let places = &setup.allowed_checkout_prefixes;
            let mut made = TreeCheckout::make(checkout, folder, store, &setup.engine, places)?;
            made.restore(&body.thread)?;
            Some(made)
        }
        None => None,
    };
    lillux::file::create_dirs(&project.join(rye_space::AI_FOLDER), true)?;
    let digest: Digest = body
        .archive
        .parse()
        .map_err(|_| Error::new(Code::SubmissionRefused, "the submission names no archive".to_owned()))?;
    let archive = FileArchive { files: body.files.clone(), bytes: store.blob(&digest)? };
    archive.unpack(&project)?;
    let engine = open_engine(setup, &project)?;
    if let Some(checkout) = &mut checkout {
        checkout.set_rules(&engine)?;
    }
    let tools: std::result::Result<Vec<ItemRef>, _> =
        body.tools.iter().map(|tool| ItemRef::parse(Some("tool"), tool)).collect();
    enforce_frozen(&engine, &tools?)?;
    Ok((engine, checkout))
}

/// An engine on a tree's folder, with the worker's own user space.
fn open_engine(setup: &WorkerSetup, project: &Path) -> Result<Engine> {
    let options = EngineOptions {
        wants_dev_mode: false,
        is_warm: false,
        host: HostEnvironment {
            variables: setup.environment.clone(),
            home: setup.home.clone(),
            current_dir: project.to_owned(),
            launcher: setup.launcher.clone(),
            temporary_folders: setup.temporary_folders.clone(),
            passphrase_prompt: None,
        },
        natives: NativeTools(crate::thread_tools::native_tools()),
    };
    let roots = Roots { project: Some(project.to_owned()), ..setup.engine.workspace.roots.clone() };
    Engine::open(roots, options, (setup.engine_clock)())
}

/// Refuses a thread that is not the one which was signed, or more than what this worker makes of the request.
async fn check_root(threads: &Threads, body: &SubmissionBody, secrets: &[String]) -> Result<()> {
    let refused = |message: &str| {
        Error::new(Code::SubmissionRefused, format!("the submission is refused: {message}"))
            .hint("find out who changed the database: rye doctor --store")
    };
    let (spec, first) = threads.submitted_spec(&body.thread).await?;
    if Digest::of(&first.body).to_hex() != body.header {
        return Err(refused("the journal does not begin with what was signed"));
    }
    let directive = ItemRef::parse(Some("directive"), &body.directive)?;
    let mut request = ThreadRequest::new(directive, body.inputs.clone());
    request.model.clone_from(&body.model);
    request.provider.clone_from(&body.provider);
    request.limits.clone_from(&body.limits);
    request.files = FileAccess::Recorded(spec.instance.files.clone());
    request.thread_id = Some(body.thread.clone());
    let own = threads.prepare_alike(request).await?;
    check_spec(&spec, &own.spec)?;
    // A project's provider may be a server of anyone: it gets no key that the worker does not offer.
    let engine = threads.engine()?;
    match project_keys(&engine, &spec.template).into_iter().find(|name| !secrets.contains(name)) {
        Some(name) => {
            let message = format!("the submission is refused: its provider would be sent `{name}`");
            Err(Error::new(Code::SubmissionRefused, message)
                .hint(format!("if that is intended, offer it: rye worker --secret {name}")))
        }
        None => Ok(()),
    }
}

/// Whether a thread works on the project files that the thread above all others has: then it runs where that one does, unless
/// that one has ended.
pub(super) async fn must_run_on_other_worker(
    store: &StoreHandle,
    row: &ThreadRow,
    open: Option<&WorkerTree>,
) -> Result<bool> {
    let Some(top) = store.shared().ancestors(&row.id).await?.pop() else { return Ok(false) };
    Ok(!top.status.is_terminal() && !open.is_some_and(|tree| tree.threads.runs(&top.id)))
}

/// Whether a thread of a tree may be run: one that was not submitted itself must have been made by a worker.
pub(super) fn is_made_by_worker(
    row: &ThreadId,
    submission: &Submission,
    is_new: bool,
    signer: Option<&str>,
    workers: &[String],
) -> bool {
    let is_worker = signer.is_none_or(|signer| workers.iter().any(|worker| worker == signer));
    is_worker || (*row == submission.root && is_new)
}
