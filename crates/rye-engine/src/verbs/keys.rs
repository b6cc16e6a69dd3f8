//! `keys`: the own key pair, the keys of others, revocation.

mod encryption;
mod handover;
mod publish;
mod rotate;

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use lillux::{Fingerprint, SecretKey};
use rye_item::space::SpaceTier;
use rye_space::keys::{self, REVOKED_FOLDER, TRUSTED_FOLDER};
use rye_space::{AI_FOLDER, roots};
use rye_trust::{Identity, Revocation, check_owner_name};
use serde::Serialize;

pub use encryption::{KeyEncryption, decrypt, encrypt};
pub(crate) use handover::record_handovers;
pub use publish::{PublishedIdentity, is_unpublished_member, publish};
pub use rotate::{ResignReport, RotatedKey, replace_own_key, resign};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// A key as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct KeyRow {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// Its owner, as its document says.
    pub owner: String,
    /// `user`, `project`, `introduced`, `bundle`, `revoked` or `none`.
    pub trust: &'static str,
    /// Where its document is.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Whether it is the own key.
    pub own: bool,
    /// Whether documents it signs introduce their keys.
    pub may_introduce: bool,
    /// The projects it is trusted in, if not everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projects: Option<Vec<String>>,
    /// Why it is not trusted, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer of a key list.
#[derive(Clone, Debug, Serialize)]
pub struct KeyList {
    /// Every key with a document in user or project space.
    pub keys: Vec<KeyRow>,
    /// Documents that cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub broken: Vec<String>,
}

/// Lists the keys of user and project space.
#[must_use]
pub fn list(engine: &Engine) -> KeyList {
    let workspace = &engine.workspace;
    let project_documents = workspace.project_documents();
    let documents = workspace
        .user_documents
        .iter()
        .map(|found| (rye_item::Space::User, found))
        .chain(project_documents.iter().map(|found| (rye_item::Space::Project, found)));
    let mut listing = KeyList { keys: Vec::new(), broken: Vec::new() };
    for (space, found) in documents {
        // What the user's own document says of a key is what decides; the project's copy adds nothing.
        if space == rye_item::Space::Project && is_copy_of_user_document(workspace, found) {
            continue;
        }
        let identity = match &found.identity {
            Ok(identity) => identity,
            Err(error) => {
                match tampered_row(found, error) {
                    Some(row) => listing.keys.push(row),
                    None => listing.broken.push(format!("{}: {error}", found.path.display())),
                }
                continue;
            }
        };
        let revocation = workspace.keys.revocation(&identity.fingerprint);
        let known = workspace.keys.find(&identity.fingerprint, &rye_item::Space::Project);
        let known = known.filter(|known| known.key == identity.key);
        let (trust, reason) = match (revocation, known) {
            (Some(revocation), _) => ("revoked", Some(revocation.reason.clone())),
            (None, Some(known)) => (known.basis.as_str(), None),
            (None, None) => ("none", Some(untrusted_reason(identity, &space))),
        };
        listing.keys.push(KeyRow {
            fingerprint: identity.fingerprint,
            owner: rye_item::text::one_line(&identity.owner),
            trust,
            path: found.path.clone(),
            own: workspace.own_key.as_ref() == Some(&identity.key),
            may_introduce: workspace.keys.is_introducer(&identity.fingerprint),
            projects: identity.projects.clone(),
            reason,
        });
    }
    listing
}

/// Whether a document of the project is about a key that user space has a valid document of.
fn is_copy_of_user_document(workspace: &rye_space::Workspace, found: &keys::IdentityFile) -> bool {
    let Ok(identity) = &found.identity else { return false };
    let mut known = workspace.user_documents.iter().filter_map(|known| known.identity.as_ref().ok());
    known.any(|known| known.key == identity.key)
}

/// The row of a document that changed since it was signed: nothing it says is repeated.
fn tampered_row(found: &keys::IdentityFile, error: &keys::DocumentError) -> Option<KeyRow> {
    use rye_trust::IdentityError;
    let keys::DocumentError::Identity(IdentityError::Changed | IdentityError::Forged) = error else {
        return None;
    };
    Some(KeyRow {
        fingerprint: found.path.file_stem()?.to_str()?.parse().ok()?,
        owner: "unknown".to_owned(),
        trust: "none",
        path: found.path.clone(),
        own: false,
        may_introduce: false,
        projects: None,
        reason: Some(error.to_string()),
    })
}

fn untrusted_reason(identity: &Identity, space: &rye_item::Space) -> String {
    let reason = match (&identity.signature, space) {
        (None, _) => "its document is not signed",
        (Some(_), rye_item::Space::Project) => "a project's key is trusted only after you trust it",
        (Some(_), _) if identity.projects.is_some() => "it is trusted in other projects only",
        (Some(_), _) => "its document is signed by a key you do not trust",
    };
    reason.to_owned()
}

/// What was made.
#[derive(Clone, Debug, Serialize)]
pub struct GeneratedKey {
    /// The key.
    pub fingerprint: Fingerprint,
    /// The key folder.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub folder: PathBuf,
    /// Its identity document.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub document: PathBuf,
}

/// Makes a key pair and its identity document. Never replaces a key.
///
/// # Errors
/// When a key is there already, or it cannot be written.
pub fn generate(engine: &Engine, owner: &str) -> Result<GeneratedKey> {
    let key = SecretKey::generate().map_err(|error| Error::new(Code::Io, error.to_string()))?;
    store_key(engine, &key, owner)
}

/// Takes over a private key from a file, as the own key.
///
/// # Errors
/// When a key is there already, or the file holds none.
pub fn import(engine: &Engine, path: &Path, owner: &str) -> Result<GeneratedKey> {
    let (bytes, _) = file::read_bounded(path, 64 << 10).map_err(|error| Error::read(&error))?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    let key = SecretKey::from_pem(text).map_err(|error| {
        Error::new(Code::InvalidKey, format!("`{}`: {error}", path.display()))
            .hint("to trust another's public key in this project alone: rye keys trust FILE --space project")
    })?;
    store_key(engine, &key, owner)
}

fn store_key(engine: &Engine, key: &SecretKey, owner: &str) -> Result<GeneratedKey> {
    require_valid_owner(owner)?;
    let folder = &engine.workspace.roots.signing_keys;
    keys::store_key_pair(folder, key)?;
    let document = write_own_document(engine, key, owner)?;
    Ok(GeneratedKey { fingerprint: key.public_key().fingerprint(), folder: folder.clone(), document })
}

/// Refuses an owner's name that a person could not read as it is.
///
/// # Errors
/// When it is not valid.
pub fn require_valid_owner(owner: &str) -> Result<()> {
    check_owner_name(owner)
        .map_err(|error| Error::new(Code::InvalidArgument, error.to_string()).hint("--owner NAME"))
}

/// Writes the own key's identity document, self-signed: through it the key counts.
pub(crate) fn write_own_document(engine: &Engine, key: &SecretKey, owner: &str) -> Result<PathBuf> {
    let identity = Identity::new(key.public_key(), owner);
    let folder = engine.workspace.roots.user_ai().join(TRUSTED_FOLDER);
    let path = folder.join(format!("{}.toml", identity.fingerprint));
    keys::write_signed_document(&path, &identity.to_document(), key, &engine.now()?)?;
    Ok(path)
}

/// How to trust a key.
#[derive(Clone, Debug, Default)]
pub struct TrustOptions {
    /// `user`: everywhere; `project`: in this project alone. Without it, a key that lies in the project counts there,
    /// any other everywhere.
    pub tier: Option<SpaceTier>,
    /// The owner's name, for a key in PEM.
    pub owner: Option<String>,
    /// Documents this key signs introduce their keys to a project.
    pub may_introduce: bool,
}

/// A key that is now trusted.
#[derive(Clone, Debug, Serialize)]
pub struct KeyTrustResponse {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Its owner.
    pub owner: String,
    /// Everywhere, or in these projects.
    pub projects: Option<Vec<String>>,
    /// Whether it may introduce others.
    pub may_introduce: bool,
    /// The document that was written.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
}

/// Whether what a document says of its key was signed by that key or by one the user trusts everywhere.
#[must_use]
pub fn is_signed_by_trusted(engine: &Engine, identity: &Identity) -> bool {
    let ring = &engine.workspace.keys;
    let by_trusted = identity.signature.as_ref().is_some_and(|line| {
        ring.find(&line.fingerprint, &rye_item::Space::User)
            .is_some_and(|known| ring.is_trusted_everywhere(&known.key) && identity.is_signed_by(&known.key))
    });
    identity.is_self_signed() || by_trusted
}

/// Refuses a document whose owner's name is not covered by a trusted signature.
fn require_trusted_signature(engine: &Engine, path: &Path, identity: &Identity) -> Result<()> {
    if is_signed_by_trusted(engine, identity) {
        return Ok(());
    }
    let path_text = path.display();
    let error = match &identity.signature {
        None => Error::new(Code::Unsigned, format!("the identity document `{path_text}` is not signed")),
        Some(line) => Error::new(
            Code::Untrusted,
            format!(
                "the identity document `{path_text}` is signed by the key {}, which you don't trust",
                line.fingerprint
            ),
        ),
    };
    Err(error
        .hint("ask the key's owner for the output of `rye keys export`")
        .hint("or trust its public key and name the owner yourself: rye keys trust KEY.pem --owner NAME --space project"))
}

/// Trusts the key in a file: writes its document into user space, signed by the own key.
///
/// # Errors
/// When the file holds no key, the key is revoked, or you have no key.
pub fn trust(engine: &Engine, path: &Path, options: &TrustOptions) -> Result<KeyTrustResponse> {
    let owner = options.owner.clone().unwrap_or_else(|| {
        path.file_stem().map_or_else(|| "unknown".to_owned(), |stem| stem.to_string_lossy().into_owned())
    });
    let found = keys::read_key_file(path, &owner)?;
    if found.is_document {
        require_trusted_signature(engine, path, &found.identity)?;
    }
    let found = found.identity;
    let owner = options.owner.clone().unwrap_or_else(|| found.owner.clone());
    if let Err(error) = check_owner_name(&owner) {
        return Err(Error::new(Code::InvalidIdentity, format!("`{}`: {error}", path.display()))
            .hint("name the owner yourself: --owner NAME"));
    }
    let is_in_project = match (&engine.workspace.roots.project, path.parent()) {
        (Some(project), Some(_)) => roots::canonicalize_existing(path)
            .starts_with(roots::canonicalize_existing(&project.join(AI_FOLDER))),
        _ => false,
    };
    let is_for_project = match options.tier {
        None => is_in_project,
        Some(SpaceTier::Project) => true,
        Some(SpaceTier::User) => false,
        Some(SpaceTier::System) => {
            return Err(Error::new(Code::InvalidArgument, "a key is trusted in user or project space"));
        }
    };
    trust_identity(engine, Identity { owner, ..found }, is_for_project, options.may_introduce)
}

/// Trusts a key, whose document was read and judged before, in this project alone.
pub(crate) fn trust_in_project(engine: &Engine, identity: Identity) -> Result<KeyTrustResponse> {
    trust_identity(engine, identity, true, false)
}

/// Writes the document by which a key is trusted into user space, signed by the own key.
fn trust_identity(
    engine: &Engine,
    found: Identity,
    is_for_project: bool,
    may_introduce: bool,
) -> Result<KeyTrustResponse> {
    if let Some(revocation) = engine.workspace.keys.revocation(&found.fingerprint) {
        return Err(Error::new(
            Code::Revoked,
            format!("the key {} is revoked: {}", found.fingerprint, revocation.reason),
        )
        .hint("ask its owner for a new key; a revocation cannot be undone"));
    }
    // Two at once for one key: the second adds its project to what the first has written.
    let folder = engine.workspace.roots.user_ai().join(TRUSTED_FOLDER);
    file::create_dirs(&folder, true)?;
    let _lock = file::Lock::acquire_dir(&folder)?;
    let documents = keys::identities_in(&folder);
    let present = documents.iter().filter_map(|found| found.identity.as_ref().ok());
    let present =
        present.filter(|known| known.key == found.key).find(|known| is_signed_by_trusted(engine, known));
    let projects = match (is_for_project, present) {
        (false, _) => None,
        // Trusted everywhere already: asking for less takes nothing away.
        (true, Some(Identity { projects: None, .. })) => None,
        (true, present) => {
            let project = engine.workspace.roots.project_key().ok_or_else(|| {
                Error::new(Code::InvalidArgument, "not inside a project").hint("use --space user")
            })?;
            let mut projects = present.and_then(|known| known.projects.clone()).unwrap_or_default();
            if !projects.contains(&project) {
                projects.push(project);
            }
            Some(projects)
        }
    };
    let identity = Identity { may_introduce, projects, ..Identity::new(found.key, &found.owner) };
    let key = engine.signing_key()?;
    let path =
        engine.workspace.roots.user_ai().join(TRUSTED_FOLDER).join(format!("{}.toml", identity.fingerprint));
    keys::write_signed_document(&path, &identity.to_document(), &key, &engine.now()?)?;
    Ok(KeyTrustResponse {
        fingerprint: identity.fingerprint,
        owner: rye_item::text::one_line(&identity.owner),
        projects: identity.projects,
        may_introduce: identity.may_introduce,
        path,
    })
}

/// A key that is now revoked.
#[derive(Clone, Debug, Serialize)]
pub struct RevokedKey {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Why.
    pub reason: String,
    /// The revocation.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
}

/// Revokes a key: it fails verification everywhere from now on.
///
/// # Errors
/// When the fingerprint is none, or you have no key to sign with.
pub fn revoke(engine: &Engine, fingerprint: &str, reason: &str) -> Result<RevokedKey> {
    let fingerprint: Fingerprint = fingerprint.parse().map_err(|error| {
        Error::new(Code::InvalidArgument, format!("{error}")).hint("rye keys list shows the fingerprints")
    })?;
    let mut embedded = rye_space::bundle::embedded_bundles().into_iter().flat_map(|bundle| bundle.signers);
    if embedded.any(|signer| signer.fingerprint == fingerprint) {
        let message = format!("the key {fingerprint} seals the items inside this binary");
        return Err(
            Error::new(Code::InvalidArgument, message).hint("if you do not trust the binary, do not run it")
        );
    }
    let revocation = Revocation { fingerprint, reason: reason.to_owned() };
    // Even a revoked key may revoke: that takes trust away and gives none.
    let (key, now) = (engine.own_secret_key()?, engine.now()?);
    let path = engine.workspace.roots.user_ai().join(REVOKED_FOLDER).join(format!("{fingerprint}.toml"));
    keys::write_signed_document(&path, &keys::revocation_document(&revocation, &now), &key, &now)?;
    Ok(RevokedKey { fingerprint, reason: reason.to_owned(), path })
}

/// The identity document of a known key, or of the own one, as text to give to others.
///
/// # Errors
/// When no known key has the fingerprint.
pub fn export(engine: &Engine, fingerprint: Option<&str>) -> Result<(Fingerprint, String)> {
    let workspace = &engine.workspace;
    let selected = match (fingerprint, &workspace.own_key) {
        (Some(text), _) => text.to_owned(),
        (None, Some(own)) => own.fingerprint().to_string(),
        (None, None) => {
            return Err(Error::new(Code::NoKey, "you have no key").hint("make one: rye init"));
        }
    };
    let project_documents = workspace.project_documents();
    let documents = workspace.user_documents.iter().chain(&project_documents);
    let found = documents
        .filter_map(|found| Some((found, found.identity.as_ref().ok()?)))
        .find(|(_, identity)| identity.fingerprint.as_str() == selected);
    let Some((found, identity)) = found else {
        return Err(Error::new(
            Code::UnknownKey,
            format!("no known key has the fingerprint `{}`", rye_item::text::one_line(&selected)),
        )
        .hint("rye keys list shows the fingerprints"));
    };
    let (bytes, _) = file::read_bounded(&found.path, 64 << 10).map_err(|error| Error::read(&error))?;
    Ok((identity.fingerprint, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes exported text to a file.
///
/// # Errors
/// When it cannot be written.
pub fn write_export(path: &Path, text: &str) -> Result<()> {
    Ok(file::write_atomic(path, text.as_bytes(), FileMode::Preserve)?)
}
