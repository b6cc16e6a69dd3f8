//! `bundle push`, `bundle pull`, and what `install` takes from a registry: bundles on their way to and from OCI
//! registries, verified before they leave and before anything of them is kept.

mod access;

use std::path::{Path, PathBuf};

use access::{find_credentials, registry_access, registry_error};
use lillux::file::{self, LockedTempDir};
use lillux::{CancelToken, Fingerprint};
use rye_bundle::archive::{self, ArchiveFormat};
use rye_bundle::registry::{self, ArtifactConfig, InvalidReference, OnBytes, PushRequest, Reference};
use rye_bundle::verify::{BundleReport, BundleScope, VerifyFileProgress};
use rye_bundle::{BundlePath, Manifest, ManifestFile};
use rye_item::Space;
use rye_item::text::{one_line, quote_name};
use rye_space::bundle::BundleOrigin;
use rye_space::{AI_FOLDER, keys};
use rye_trust::Subject as _;
use serde::Serialize;

use super::bundles::{self, BundleVerification, LocatedBundle};
use super::install;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// How a transfer is made.
pub struct TransferOptions<'a> {
    /// Whether the registry is asked without TLS though it is not on this machine.
    pub allows_plain_http: bool,
    /// Ends it early.
    pub cancel: &'a CancelToken,
    /// Hears how many bytes of how many have passed.
    pub on_bytes: OnBytes<'a>,
}

/// A bundle from a registry: nothing in it has been judged yet.
struct PulledBundle {
    source: Reference,
    /// The digest of its OCI manifest, `sha256:…`.
    source_digest: String,
    archive: PathBuf,
    /// The signed manifest the registry shows beside the archive.
    manifest: Vec<u8>,
    /// Holds the archive; goes with it when dropped.
    temporary_folder: LockedTempDir,
}

impl PulledBundle {
    /// Refuses an archive that holds another manifest than the registry shows.
    fn check_manifest(&self, found: &[u8]) -> Result<()> {
        if self.manifest == found {
            return Ok(());
        }
        let message = format!("the archive of `{}` has a different manifest than the registry", self.source);
        Err(Error::new(Code::Unsound, message).hint("nothing was saved; ask who pushed it to push it again"))
    }
}

/// A bundle that was pushed.
#[derive(Clone, Debug, Serialize)]
pub struct PushResponse {
    /// The bundle.
    pub bundle_id: String,
    /// Its version.
    pub version: String,
    /// Where it is now.
    pub reference: String,
    /// The same, for ever: by its digest.
    pub pinned: String,
    /// The digest of its OCI manifest.
    pub digest: String,
    /// Whose signature its manifest carries.
    pub signer: Fingerprint,
    /// How many bytes it has there.
    pub bytes: u64,
    /// How many of them the registry had already.
    pub bytes_reused: u64,
}

/// A bundle that was pulled and is kept.
#[derive(Clone, Debug, Serialize)]
pub struct SavedBundle {
    /// The bundle.
    pub bundle_id: String,
    /// Its version.
    pub version: String,
    /// Where it came from.
    pub reference: String,
    /// The same, for ever: by its digest.
    pub pinned: String,
    /// The digest of its OCI manifest.
    pub digest: String,
    /// The archive or folder.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Whether it is what its maker signed, and whether the user trusts that maker.
    pub verification: BundleVerification,
}

/// What a registry says of a bundle, without its archive.
#[derive(Clone, Debug, Serialize)]
pub struct RemoteBundle {
    /// The bundle.
    pub bundle_id: String,
    /// Its version.
    pub version: String,
    /// What it is for.
    pub description: String,
    /// The files its manifest lists.
    pub files: Vec<BundlePath>,
    /// The key its manifest names as its signer.
    pub signer: Fingerprint,
    /// Whether that is a key the user trusts, everywhere or for this bundle, and the signature holds. Otherwise it was not
    /// checked: the key comes with the archive.
    pub approved: bool,
    /// Where it is.
    pub reference: String,
    /// The same, for ever: by its digest.
    pub pinned: String,
    /// The digest of its OCI manifest.
    pub digest: String,
    /// The length of its archive.
    pub archive_bytes: u64,
}

/// Reads a reference.
///
/// # Errors
/// When it is none.
pub fn parse_reference(text: &str) -> Result<Reference> {
    text.parse().map_err(|error: InvalidReference| {
        Error::new(Code::InvalidArgument, error.to_string())
            .hint("such as oci://ghcr.io/team/tools:1.0.0, or …/tools@sha256:DIGEST")
    })
}

/// Whether `text` says itself that it is a reference.
#[must_use]
pub fn is_reference(text: &str) -> bool {
    Reference::has_scheme(text)
}

/// Reads what a registry says of a bundle, without its archive.
///
/// # Errors
/// When the registry is not reached, refuses, has no such bundle, or its manifest is damaged.
pub fn inspect_remote(
    engine: &Engine,
    reference: &Reference,
    transfer: &mut TransferOptions<'_>,
) -> Result<RemoteBundle> {
    let find = |reference: &Reference| find_credentials(engine, reference, transfer.cancel);
    let access = registry_access(engine, transfer.allows_plain_http, transfer.cancel, &find);
    let described =
        registry::describe(reference, &access).map_err(|error| registry_error(&error, reference))?;
    let manifest = Manifest::parse(&described.manifest).map_err(|problems| {
        let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Error::new(Code::BundleFailed, format!("the manifest of `{reference}` cannot be read"))
            .detail("problems", list)
            .hint("ask who pushed it to push it again")
    })?;
    let file = ManifestFile::new(&manifest.id, described.manifest);
    let Some(signer) = file.signature().map(|line| line.fingerprint) else {
        return Err(Error::new(Code::Unsigned, format!("the manifest of `{reference}` is not signed"))
            .hint("ask who pushed it to sign it: rye bundle create, then rye bundle push"));
    };
    let workspace = &engine.workspace;
    let pins = workspace.approvals.pins_of(&manifest.id).map(|pin| &pin.key);
    let known = workspace.keys.find(&signer, &Space::User).map(|known| &known.key);
    let mut own = pins.chain(known).filter(|key| key.fingerprint() == signer).peekable();
    let is_known = own.peek().is_some();
    let approved = own.any(|key| file.is_signed_by(key));
    if is_known && !approved {
        let message =
            format!("the manifest of `{reference}` says {signer} signed it, and that signature is invalid");
        return Err(Error::new(Code::Tampered, message).hint("do not install it; report it to its maker"));
    }
    Ok(RemoteBundle {
        bundle_id: manifest.id.to_string(),
        version: manifest.version.to_string(),
        description: one_line(&manifest.description),
        files: manifest.files.keys().cloned().collect(),
        signer,
        approved,
        reference: reference.to_string(),
        pinned: reference.with_digest(described.digest).to_string(),
        digest: format!("sha256:{}", described.digest),
        archive_bytes: described.archive_bytes,
    })
}

/// The tags of a reference's repository.
///
/// # Errors
/// When the registry is not reached, refuses, or has no such repository.
pub(crate) fn list_tags(engine: &Engine, reference: &Reference, cancel: &CancelToken) -> Result<Vec<String>> {
    let find = |reference: &Reference| find_credentials(engine, reference, cancel);
    let access = registry_access(engine, false, cancel, &find);
    registry::list_tags(reference, &access).map_err(|error| registry_error(&error, reference))
}

/// Pulls a bundle and prepares its installation. What it is known by there goes into its lockfile.
///
/// # Errors
/// When the registry is not reached, refuses, has no such bundle, or sends something else; otherwise as
/// [`install::prepare`]. Nothing was changed then.
pub fn prepare(
    engine: &Engine,
    reference: &Reference,
    options: install::InstallOptions,
    transfer: &mut TransferOptions<'_>,
    progress: VerifyFileProgress<'_>,
) -> Result<install::PreparedInstall> {
    let pulled = pull(engine, reference, &staging_folder(engine)?, transfer)?;
    let source = install::InstallSource {
        path: pulled.archive.clone(),
        name: reference.to_string(),
        digest: Some(pulled.source_digest.clone()),
    };
    let prepared = install::prepare(engine, source, options, progress)?;
    pulled.check_manifest(prepared.manifest_bytes())?;
    Ok(prepared)
}

/// Where transfers are staged.
fn staging_folder(engine: &Engine) -> Result<PathBuf> {
    let folder = engine.workspace.roots.cache.join("registry");
    file::create_dirs(&folder, true)?;
    Ok(folder)
}

/// Pulls `reference`; the caller verifies it before use.
fn pull(
    engine: &Engine,
    reference: &Reference,
    parent: &Path,
    transfer: &mut TransferOptions<'_>,
) -> Result<PulledBundle> {
    let find = |reference: &Reference| find_credentials(engine, reference, transfer.cancel);
    let access = registry_access(engine, transfer.allows_plain_http, transfer.cancel, &find);
    let pulled = registry::pull(reference, &access, parent, transfer.on_bytes)
        .map_err(|error| registry_error(&error, reference))?;
    Ok(PulledBundle {
        source: reference.clone(),
        source_digest: format!("sha256:{}", pulled.description.digest),
        archive: pulled.archive,
        manifest: pulled.description.manifest,
        temporary_folder: pulled.folder,
    })
}

/// Pulls a bundle, verifies it, and keeps it as `out`: an archive if the name says so, else a folder. Without `out` it
/// becomes an archive in `folder`, called by its id and version.
///
/// # Errors
/// As [`prepare`], when the bundle does not verify, or when `out` is there already. Then nothing is kept.
pub fn pull_to(
    engine: &Engine,
    reference: &Reference,
    out: Option<&Path>,
    folder: &Path,
    transfer: &mut TransferOptions<'_>,
) -> Result<SavedBundle> {
    let out = out.map(|out| folder.join(out));
    if let Some(out) = out.as_deref().filter(|out| out.symlink_metadata().is_ok()) {
        return Err(path_exists_error(out));
    }
    let parent = match out.as_deref().filter(|out| ArchiveFormat::from_path(out).is_none()) {
        // A folder gets its place by one rename, so it is made beside that place.
        Some(out) => out.parent().unwrap_or(folder).to_owned(),
        None => staging_folder(engine)?,
    };
    let pulled = pull(engine, reference, &parent, transfer)?;
    let staged = pulled.temporary_folder.path().join("bundle");
    let files = archive::unpack(&pulled.archive, &archive::ArchiveLimits::default(), &staged)?;
    let found = bundles::find_folder(engine, &staged)?;
    pulled.check_manifest(found.manifest.bytes())?;
    let mut verification = verify_bundle(engine, &found)?;
    let manifest = readable_manifest(&found)?;
    let (id, version) = (manifest.id.to_string(), manifest.version.to_string());
    let path = out.unwrap_or_else(|| folder.join(format!("{id}-{version}.tar.zst")));
    if path.symlink_metadata().is_ok() {
        return Err(path_exists_error(&path));
    }
    match ArchiveFormat::from_path(&path) {
        None => {
            // It was private while it was judged.
            file::set_mode(&staged, 0o755)?;
            file::rename_dir(&staged, &path)?;
        }
        Some(_) => archive::pack(&staged, &files, &path)?,
    }
    verification.path.clone_from(&path);
    let digest = pulled.source_digest.clone();
    Ok(SavedBundle {
        bundle_id: id,
        version,
        reference: reference.to_string(),
        pinned: pinned_reference(reference, &digest),
        digest,
        path,
        verification,
    })
}

/// Pulls a bundle to be looked at: it lies in a private folder that goes with the answer. Nothing of it is judged yet but
/// that it is the one the registry shows.
///
/// # Errors
/// When the registry is not reached, refuses, has no such bundle, or sends something else.
pub fn pull_for_inspection(
    engine: &Engine,
    reference: &Reference,
    transfer: &mut TransferOptions<'_>,
) -> Result<LocatedBundle> {
    let pulled = pull(engine, reference, &staging_folder(engine)?, transfer)?;
    let folder = pulled.temporary_folder.path().join("bundle");
    archive::unpack(&pulled.archive, &archive::ArchiveLimits::default(), &folder)?;
    let found = bundles::find_folder(engine, &folder)?;
    pulled.check_manifest(found.manifest.bytes())?;
    Ok(found.with_temporary_folder(
        PathBuf::from(pinned_reference(reference, &pulled.source_digest)),
        pulled.temporary_folder,
    ))
}

/// Pushes the bundle that `word` names: a folder, an archive, or the id of a configured bundle.
///
/// # Errors
/// When there is no such bundle, it does not verify, or the registry does not take it.
pub fn push(
    engine: &Engine,
    word: &str,
    folder: &Path,
    reference: &Reference,
    transfer: &mut TransferOptions<'_>,
) -> Result<PushResponse> {
    let found = bundles::find(engine, word, folder)?;
    verify_bundle(engine, &found)?;
    let not_pushable = |location: &str| {
        Error::new(Code::InvalidArgument, format!("the bundle `{}` is {location}", one_line(word)))
            .hint("push its folder or archive: rye bundle push PATH REF")
    };
    let source = match (&found.origin, found.scope) {
        (BundleOrigin::Folder(source), BundleScope::Standalone) => source,
        (BundleOrigin::Folder(_), BundleScope::Installed) => {
            return Err(not_pushable("among other files here"));
        }
        (BundleOrigin::Embedded(_), _) => return Err(not_pushable("inside rye")),
    };
    // What goes out is verified again as it is packed: a file of the folder may have changed meanwhile.
    let temporary = LockedTempDir::new(&staging_folder(engine)?, "push-")?;
    let packed = temporary.path().join("bundle.tar.zst");
    archive::pack(source, &archive_files(source, readable_manifest(&found)?)?, &packed)?;
    let found = bundles::find(engine, &packed.to_string_lossy(), folder)?;
    let verification = verify_bundle(engine, &found)?;
    let manifest = readable_manifest(&found)?;
    let Some(signer) = verification.report.signer.as_ref().map(|signer| signer.fingerprint) else {
        return Err(Error::new(Code::Unsigned, format!("the manifest of `{}` is not signed", manifest.id)));
    };
    let config = ArtifactConfig {
        id: manifest.id.to_string(),
        version: manifest.version.to_string(),
        signer: signer.to_string(),
    };
    let outgoing = PushRequest { config: config.clone(), manifest: found.manifest.bytes(), archive: &packed };
    let find = |reference: &Reference| find_credentials(engine, reference, transfer.cancel);
    let access = registry_access(engine, transfer.allows_plain_http, transfer.cancel, &find);
    let pushed = registry::push(reference, &outgoing, &access, transfer.on_bytes)
        .map_err(|error| registry_error(&error, reference))?;
    Ok(PushResponse {
        bundle_id: config.id,
        version: config.version,
        reference: reference.to_string(),
        pinned: reference.with_digest(pushed.digest).to_string(),
        digest: format!("sha256:{}", pushed.digest),
        signer,
        bytes: pushed.bytes,
        bytes_reused: pushed.bytes_reused,
    })
}

/// The report on a bundle that holds in every layer.
fn verify_bundle(engine: &Engine, found: &LocatedBundle) -> Result<BundleVerification> {
    let verification = bundles::verify(engine, found, &|_, _| {});
    match verification.failure() {
        None => Ok(verification),
        Some(failure) => Err(failure),
    }
}

/// What goes into the archive: the listed files, the manifest itself, and the identity documents beside them.
fn archive_files(source: &Path, manifest: &Manifest) -> Result<Vec<BundlePath>> {
    let mut files: Vec<BundlePath> = manifest.files.keys().cloned().collect();
    let mut others = vec![Manifest::path_for(&manifest.id)];
    for found in keys::identities_in(&source.join(AI_FOLDER).join(keys::TRUSTED_FOLDER)) {
        if let (Ok(_), Some(name)) = (&found.identity, found.path.file_name().and_then(|name| name.to_str()))
        {
            others.push(format!("{AI_FOLDER}/{}/{name}", keys::TRUSTED_FOLDER));
        }
    }
    for path in others {
        files.push(BundlePath::new(path).map_err(|error| Error::new(Code::Invalid, error.to_string()))?);
    }
    Ok(files)
}

fn readable_manifest(found: &LocatedBundle) -> Result<&Manifest> {
    let unreadable =
        || Error::new(Code::Invalid, format!("the manifest of `{}` cannot be read", found.manifest.id()));
    found.manifest.manifest().map_err(|_| unreadable())
}

fn pinned_reference(reference: &Reference, digest: &str) -> String {
    let digest = digest.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
    digest.map_or_else(|| reference.to_string(), |digest| reference.with_digest(digest).to_string())
}

fn path_exists_error(path: &Path) -> Error {
    Error::new(Code::InvalidArgument, format!("`{}` already exists", path.display()))
        .detail("path", path.display().to_string())
        .hint("name another place with --out")
}

/// Whose signature a verified report carries.
#[must_use]
pub fn signer_text(report: &BundleReport) -> String {
    match &report.signer {
        Some(signer) => format!("{}, owner {}", signer.fingerprint, quote_name(&signer.owner)),
        None => "no key".to_owned(),
    }
}
