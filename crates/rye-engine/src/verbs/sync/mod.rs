//! `add`, `remove`, `sync`, `outdated` and `bundle upgrade`: the bundles that a project's manifest asks for, resolved,
//! locked and installed. One resolver serves all of them, and what it finds is installed by `install`.
//!
//! The manifest and the lock come with a clone. Nothing is fetched for a project that the user has not approved, and
//! nothing is installed whose signer the user does not trust.

mod add;
mod apply;
mod check;
mod download;
mod git;
mod git_command;
mod outdated;
mod plan;
mod resolve;
mod source_tree;

use lillux::{CancelToken, Digest, PublicKey};
use rye_bundle::BundlePath;
use rye_bundle::project::{
    BundleRequirement, LockedBundle, MAX_PROJECT_FILE_BYTES, PROJECT_LOCK_PATH, PROJECT_MANIFEST_PATH,
    ProjectLock, ProjectManifest,
};
use rye_bundle::registry::OnBytes;
use rye_bundle::verify::VerifyFileProgress;
use rye_item::diagnostic::attach_snippets;
use rye_item::{BundleId, Diagnostic};
use rye_space::approvals::Approvals;
use rye_space::installed::installed_ids;

pub use add::{AddRequest, prepare_add, prepare_remove};
pub use apply::{SyncResponse, UnchangedBundle, apply};
pub(crate) use check::check_installed;
pub use git::{LeftOutReason, MAX_TREE_FILE_BYTES};
pub use outdated::{OutdatedBundle, OutdatedReport, outdated};
pub use plan::{PreparedBundle, PreparedSync, SyncOptions, SyncPreview, prepare_sync, prepare_upgrade};
pub use rye_bundle::project::SourceFields;
pub use source_tree::{SourceFolder, fetch_commit, fetch_source, is_archive_name, unpack_source};

use super::install::{self, ConflictPreference, InstallOptions, ProjectFile};
use super::trust::check_not_damaged;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What to do where a server's certificate is not trusted.
const CERTIFICATE_HINT: &str = "if your organisation has its own CA: export SSL_CERT_FILE=FILE, a PEM bundle with that CA and the public ones";

/// How bundles are fetched.
pub struct FetchContext<'a> {
    /// Ends it early.
    pub cancel: &'a CancelToken,
    /// Hears how many bytes of how many have come.
    pub on_bytes: OnBytes<'a>,
    /// Hears how many files of how many are verified.
    pub on_files: VerifyFileProgress<'a>,
}

/// Whether the project's manifest asks for a bundle.
#[must_use]
pub fn is_managed(engine: &Engine, id: &str) -> bool {
    let manifest = ProjectBundles::read(engine).ok().map(|found| found.manifest);
    BundleId::new(id).is_ok_and(|id| manifest.is_some_and(|manifest| manifest.find(&id).is_some()))
}

/// The manifest of a project and its lock, as they were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProjectBundles {
    pub(crate) manifest: ProjectManifest,
    pub(crate) lock: ProjectLock,
    manifest_digest: Option<Digest>,
    lock_digest: Option<Digest>,
}

impl ProjectBundles {
    /// Reads both files; one that is not there is empty.
    ///
    /// # Errors
    /// When there is no project, or one of them is not valid: every problem, with its line.
    pub(crate) fn read(engine: &Engine) -> Result<Self> {
        if !engine.workspace.roots.project_ai().is_some_and(|ai| ai.is_dir()) {
            return Err(Error::new(Code::PathNotFound, "no project here: the folder has no `.ai`")
                .hint("change into a project, or make one: rye init"));
        }
        let mut found = Self::default();
        if let Some(bytes) = read_file(engine, PROJECT_MANIFEST_PATH)? {
            found.manifest_digest = Some(Digest::of(&bytes));
            found.manifest = ProjectManifest::parse(&bytes)
                .map_err(|problems| invalid_error(PROJECT_MANIFEST_PATH, problems, &bytes))?;
        }
        if let Some(bytes) = read_file(engine, PROJECT_LOCK_PATH)? {
            found.lock_digest = Some(Digest::of(&bytes));
            found.lock = ProjectLock::parse(&bytes)
                .map_err(|problems| invalid_error(PROJECT_LOCK_PATH, problems, &bytes))?;
        }
        Ok(found)
    }

    /// As [`ProjectBundles::read`], of a project that the user has approved.
    fn read_approved(engine: &Engine) -> Result<Self> {
        let found = Self::read(engine)?;
        if !engine.workspace.is_project_approved {
            let message =
                format!("this project is not approved, so its `{PROJECT_MANIFEST_PATH}` is not followed");
            return Err(Error::new(Code::ProjectNotApproved, message)
                .hint("see who made it, what comes along and who signed it: rye join"));
        }
        Ok(found)
    }

    /// Whether the project has neither of the files.
    pub(crate) fn is_absent(&self) -> bool {
        self.manifest_digest.is_none() && self.lock_digest.is_none()
    }

    fn find(&self, id: &BundleId) -> Result<&BundleRequirement> {
        self.manifest.find(id).ok_or_else(|| {
            let error = Error::new(Code::NoBundle, format!("`{id}` is not in `{PROJECT_MANIFEST_PATH}`"));
            if [".tar.zst", ".zip"].iter().any(|extension| id.as_str().ends_with(extension)) {
                return error.hint(format!("a newer version from a file: rye add {id}")).hint(
                    "or name the bundle, which is looked for where it came from: rye bundle upgrade ID",
                );
            }
            error
                .hint("rye add SOURCE adds a bundle")
                .hint(format!("what was installed without the manifest: rye uninstall {id}, rye install SRC"))
        })
    }

    /// The manifest as a file that changes.
    fn manifest_file(&self, manifest: &ProjectManifest) -> Result<ProjectFile> {
        let (path, old) = (file_path(PROJECT_MANIFEST_PATH)?, self.manifest_digest);
        Ok(ProjectFile { path, old, new: manifest.to_bytes() })
    }

    /// The lock as a file that changes.
    fn lock_file(&self, lock: &ProjectLock) -> Result<ProjectFile> {
        let (path, old) = (file_path(PROJECT_LOCK_PATH)?, self.lock_digest);
        Ok(ProjectFile { path, old, new: lock.to_bytes() })
    }
}

/// The ids of the bundles that the project's manifest asks for; none if it cannot be read.
#[must_use]
pub fn manifest_ids(engine: &Engine) -> Vec<String> {
    let project = ProjectBundles::read(engine).unwrap_or_default();
    project.manifest.bundles().iter().map(|bundle| bundle.id.to_string()).collect()
}

/// The bundles that the project's manifest asks for and that are not installed; none if it cannot be read.
pub(crate) fn missing_bundles(engine: &Engine) -> Vec<BundleId> {
    let project = ProjectBundles::read(engine).unwrap_or_default();
    let installed = engine.workspace.roots.project_ai().map(|ai| installed_ids(&ai)).unwrap_or_default();
    let wanted = project.manifest.bundles().iter().map(|bundle| &bundle.id);
    wanted.filter(|id| !installed.contains(id)).cloned().collect()
}

fn file_path(text: &str) -> Result<BundlePath> {
    BundlePath::new(text).map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))
}

fn read_file(engine: &Engine, path: &str) -> Result<Option<Vec<u8>>> {
    let bytes = install::read_project_file(engine, &file_path(path)?, MAX_PROJECT_FILE_BYTES)?;
    // A placeholder, which keeps the name from a tool that is running, is not a file of the project.
    Ok(bytes.filter(|bytes| bytes != rye_space::RESERVED_FILE_TEXT.as_bytes()))
}

fn invalid_error(path: &str, mut problems: Vec<Diagnostic>, bytes: &[u8]) -> Error {
    attach_snippets(&mut problems, &String::from_utf8_lossy(bytes));
    let count = rye_item::text::counted(problems.len(), "problem");
    let error = Error::new(Code::InvalidProjectManifest, format!("`{path}` is not valid: {count}"))
        .detail("path", path)
        .detail("problems", serde_json::to_value(&problems).unwrap_or_default());
    let error = match problems.first().and_then(|problem| problem.position) {
        Some(position) => error.detail("line", position.line).detail("column", position.column),
        None => error,
    };
    match path {
        PROJECT_LOCK_PATH => error.hint("restore it from version control, or remove it and run: rye sync"),
        _ => error.hint("correct it; docs/manifest.md has the format"),
    }
}

/// How bundles of a manifest are installed: into the project, and what was changed here stays.
fn install_options(options: &SyncOptions, trust: Option<lillux::Fingerprint>) -> InstallOptions {
    InstallOptions {
        space: rye_item::space::SpaceTier::Project,
        force: options.force,
        preference: if options.theirs {
            ConflictPreference::TakeBundle
        } else {
            ConflictPreference::KeepLocal
        },
        trust,
        allows_downgrade: options.allows_downgrade,
    }
}

/// Whether the user trusts the key, for this bundle or everywhere.
pub(crate) fn is_approved(engine: &Engine, id: &BundleId, key: &PublicKey) -> bool {
    let workspace = &engine.workspace;
    workspace.approvals.pins_of(id).any(|pin| pin.key == *key) || workspace.keys.is_trusted_everywhere(key)
}

/// Refuses a locked bundle whose signer the user does not trust.
fn check_locked_signer(engine: &Engine, locked: &LockedBundle) -> Result<()> {
    let (id, signer) = (locked.id(), locked.requirement.signer);
    if let Some(revocation) = engine.workspace.keys.revocation(&signer) {
        let reason = rye_item::text::one_line(&revocation.reason);
        let message = format!("`{id}` is signed by {signer}, which you revoked: {reason}");
        return Err(
            Error::new(Code::Revoked, message).hint("ask the bundle's maker for one signed with another key")
        );
    }
    if is_approved(engine, id, &locked.key) {
        return Ok(());
    }
    let message = format!("`{id}` is signed by {signer}, which you do not trust for it");
    Err(Error::new(Code::UnknownSigner, message)
        .detail("fingerprint", signer.as_str())
        .hint("see the bundles of this project and who signed them, and decide: rye join"))
}

/// Trusts the key that a lock names for a bundle of this project, and for nothing else.
///
/// # Errors
/// When the user has no key, or the record is damaged.
pub(crate) fn approve_locked_signer(engine: &Engine, id: &BundleId, key: &PublicKey) -> Result<()> {
    let workspace = &engine.workspace;
    let (own, now) = (engine.signing_key()?, engine.now()?);
    let user_ai = workspace.roots.user_ai();
    let (mut approvals, _lock) = Approvals::read_locked(&user_ai, &workspace.keys)?;
    check_not_damaged(&approvals)?;
    let project = workspace.approvals.current_project.as_deref();
    approvals.pin_signer(id, key, project, None);
    approvals.write_bundles(&user_ai, &own, &now)?;
    Ok(())
}
