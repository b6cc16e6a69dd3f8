//! Reading and writing what trust rests on: identity documents, revocations, the own key pair.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode, Lock, ReadError};
use lillux::key::KeyError;
use lillux::{Fingerprint, PublicKey, SecretKey};
use rye_item::{ItemType, yaml};
use rye_trust::coverage::{ContentStatus, compare_content};
use rye_trust::signature::{FileLayout, Timestamp};
use rye_trust::{Identity, IdentityError, KeyRing, Revocation, SignOutcome, sign};

pub(crate) const MAX_DOCUMENT_BYTES: u64 = 16 << 10;
/// More documents than this in one folder are not keys but an attack on patience.
const MAX_DOCUMENTS: usize = 512;

/// Below a space's `.ai/`: identity documents.
pub const TRUSTED_FOLDER: &str = "config/keys/trusted";
/// Below the user's `.ai/`: revocations.
pub const REVOKED_FOLDER: &str = "config/keys/revoked";
/// Below the user's `.ai/`: the own key pair.
pub const SIGNING_FOLDER: &str = "config/keys/signing";
/// Below the user's `.ai/`: signed records of what the user approved.
const RECORDS_FOLDER: &str = "config/trust";

/// A document found in a folder, readable or not.
#[derive(Debug)]
pub struct IdentityFile {
    /// The file.
    pub path: PathBuf,
    /// The identity, or why it is not valid.
    pub identity: Result<Identity, DocumentError>,
}

/// Why a document is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is not a valid identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Its file is named after another key.
    #[error("the document of `{actual}` is named `{stated}`")]
    Misnamed {
        /// The file's name.
        stated: String,
        /// The key's fingerprint.
        actual: Fingerprint,
    },
}

/// The identity documents in a folder, sorted by file name. A folder that is not there has none.
#[must_use]
pub fn identities_in(folder: &Path) -> Vec<IdentityFile> {
    // `.ai` is three levels up: a folder behind a link may hold other users' documents.
    let ai = folder.ancestors().nth(3).unwrap_or(folder);
    if !crate::roots::canonicalize_existing(folder).starts_with(crate::roots::canonicalize_existing(ai)) {
        return Vec::new();
    }
    toml_files(folder)
        .into_iter()
        .map(|name| {
            let identity = read_identity(folder, &name);
            IdentityFile { path: folder.join(&name), identity }
        })
        .collect()
}

pub(crate) fn toml_files(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs_err::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".toml") && !name.starts_with('.'))
        .collect();
    names.sort();
    names.truncate(MAX_DOCUMENTS);
    names
}

fn read_identity(folder: &Path, name: &str) -> Result<Identity, DocumentError> {
    let (bytes, _) = file::read_beneath(folder, Path::new(name), MAX_DOCUMENT_BYTES)?;
    let identity = Identity::parse(&bytes)?;
    let stated = name.trim_end_matches(".toml");
    if stated != identity.fingerprint.as_str() {
        return Err(DocumentError::Misnamed { stated: stated.to_owned(), actual: identity.fingerprint });
    }
    Ok(identity)
}

/// A key file that a user names.
#[derive(Debug)]
pub struct KeyFile {
    /// The key, with what is said of it.
    pub identity: Identity,
    /// Whether the file is an identity document, and not a key alone.
    pub is_document: bool,
}

/// Reads a key file that a user names: a public key in PEM, or an identity document.
///
/// # Errors
/// When it is neither.
pub fn read_key_file(path: &Path, owner: &str) -> Result<KeyFile, DocumentError> {
    let (bytes, _) = file::read_bounded(path, MAX_DOCUMENT_BYTES)?;
    if let Ok(text) = std::str::from_utf8(&bytes)
        && text.trim_start().starts_with("-----BEGIN")
    {
        let key = PublicKey::from_pem(text).map_err(IdentityError::from)?;
        return Ok(KeyFile { identity: Identity::new(key, owner), is_document: false });
    }
    Ok(KeyFile { identity: Identity::parse(&bytes)?, is_document: true })
}

/// The revocations in a folder. The file's name is enough: one that cannot be read still revokes.
#[must_use]
pub fn revocations_in(folder: &Path) -> Vec<Revocation> {
    toml_files(folder)
        .into_iter()
        .filter_map(|name| {
            let fingerprint: Fingerprint = name.trim_end_matches(".toml").parse().ok()?;
            let reason =
                read_reason(folder, &name).unwrap_or_else(|| "its revocation cannot be read".to_owned());
            Some(Revocation { fingerprint, reason })
        })
        .collect()
}

fn read_reason(folder: &Path, name: &str) -> Option<String> {
    let (bytes, _) = file::read_beneath(folder, Path::new(name), MAX_DOCUMENT_BYTES).ok()?;
    let layout = FileLayout::parse(&bytes, &rye_trust::identity::signature_format());
    let is_intact =
        matches!(compare_content(ItemType::Config, &bytes, &layout), ContentStatus::Intact { .. });
    let parsed = rye_item::parse::parse(rye_item::extractor::Parser::Toml, ".toml", &bytes);
    let note = if is_intact { "" } else { " (its revocation is not intact)" };
    Some(format!("{}{note}", rye_item::text::one_line(parsed.text("reason")?)))
}

/// The text of a revocation, unsigned.
#[must_use]
pub fn revocation_document(revocation: &Revocation, at: &Timestamp) -> String {
    format!(
        "version = \"1.0.0\"\ncategory = \"keys/revoked\"\nfingerprint = \"{}\"\nrevoked_at = \"{at}\"\nreason = {}\n",
        revocation.fingerprint,
        rye_item::text::quote(&revocation.reason)
    )
}

/// Why the own key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnKeyError {
    /// There is none.
    #[error("no signing key in `{}`", folder.display())]
    Missing {
        /// The key folder.
        folder: PathBuf,
    },
    /// Others can read it.
    #[error("`{}` has mode {mode:04o}: others can reach the key", path.display())]
    TooPermissive {
        /// The folder or file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The bits it must have.
        wanted: u32,
    },
    /// It is encrypted.
    #[error("the signing key `{}` is encrypted", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It is encrypted with another passphrase.
    #[error("wrong passphrase for the signing key `{}`", path.display())]
    WrongPassphrase {
        /// The file.
        path: PathBuf,
    },
    /// It is not a key.
    #[error("`{}`: {source}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KeyError,
    },
    /// A key is there already.
    #[error("a signing key is already in `{}`", folder.display())]
    Exists {
        /// The key folder.
        folder: PathBuf,
    },
    /// The system refused.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<io::Error> for OwnKeyError {
    fn from(error: io::Error) -> Self {
        Self::Read(error.into())
    }
}

/// The own public key, if there is one.
#[must_use]
pub fn own_public_key(folder: &Path) -> Option<PublicKey> {
    let (bytes, _) = file::read_bounded(&folder.join("public_key.pem"), MAX_DOCUMENT_BYTES).ok()?;
    PublicKey::from_pem(std::str::from_utf8(&bytes).ok()?).ok()
}

/// The own private key.
///
/// # Errors
/// When it is missing, readable by others, or no key.
pub fn own_secret_key(folder: &Path) -> Result<SecretKey, OwnKeyError> {
    let (path, text) = read_private_key(folder)?;
    match SecretKey::from_pem(&text) {
        Err(KeyError::Encrypted) => Err(OwnKeyError::Locked { path }),
        other => other.map_err(|source| OwnKeyError::Invalid { path, source }),
    }
}

/// The own private key, which is encrypted with this passphrase.
///
/// # Errors
/// As [`own_secret_key`], and when the passphrase is wrong or the key is not encrypted.
pub fn unlock_own_key(folder: &Path, passphrase: &str) -> Result<SecretKey, OwnKeyError> {
    let (path, text) = read_private_key(folder)?;
    SecretKey::from_encrypted_pem(&text, passphrase).map_err(|source| match source {
        KeyError::WrongPassphrase => OwnKeyError::WrongPassphrase { path },
        source => OwnKeyError::Invalid { path, source },
    })
}

/// Whether the own private key is there and encrypted.
///
/// # Errors
/// When it is missing, or readable by others.
pub fn is_own_key_encrypted(folder: &Path) -> Result<bool, OwnKeyError> {
    read_private_key(folder).map(|(_, text)| lillux::key::is_encrypted_pem(&text))
}

/// The text of the own private key, and its path.
fn read_private_key(folder: &Path) -> Result<(PathBuf, String), OwnKeyError> {
    let path = folder.join("private_key.pem");
    if !path.exists() {
        return Err(OwnKeyError::Missing { folder: folder.to_owned() });
    }
    check_permissions(folder, 0o700)?;
    let (bytes, metadata) = file::read_bounded(&path, MAX_DOCUMENT_BYTES)?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(OwnKeyError::TooPermissive { path, mode, wanted: 0o600 });
    }
    Ok((path, String::from_utf8(bytes).unwrap_or_default()))
}

fn check_permissions(path: &Path, max_mode: u32) -> Result<(), OwnKeyError> {
    let mode = fs_err::metadata(path)?.permissions().mode() & 0o777;
    if mode & !max_mode & 0o077 != 0 {
        return Err(OwnKeyError::TooPermissive { path: path.to_owned(), mode, wanted: max_mode });
    }
    Ok(())
}

/// Writes a key pair into the key folder, which must not hold one.
///
/// # Errors
/// When a key is there already or the files cannot be written.
pub fn store_key_pair(folder: &Path, key: &SecretKey) -> Result<(), OwnKeyError> {
    if folder.join("private_key.pem").exists() {
        return Err(OwnKeyError::Exists { folder: folder.to_owned() });
    }
    file::create_dirs(folder, true)?;
    // An existing folder keeps its mode: the user may have set it.
    check_permissions(folder, 0o700)?;
    let pem = key
        .to_pem()
        .map_err(|source| OwnKeyError::Invalid { path: folder.join("private_key.pem"), source })?;
    match file::write_new(&folder.join("private_key.pem"), pem.as_bytes(), FileMode::Private) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(OwnKeyError::Exists { folder: folder.to_owned() });
        }
        Err(error) => return Err(error.into()),
    }
    store_public_key(folder, &key.public_key())?;
    Ok(())
}

/// Replaces the key pair in the key folder, encrypted if there is a passphrase. The private half comes first: until the
/// public half follows, `rye init` can write it again.
///
/// # Errors
/// When the files cannot be written.
pub fn replace_key_pair(folder: &Path, key: &SecretKey, passphrase: Option<&str>) -> Result<(), OwnKeyError> {
    check_permissions(folder, 0o700)?;
    let path = folder.join("private_key.pem");
    let pem = match passphrase {
        Some(passphrase) => key.to_encrypted_pem(passphrase),
        None => key.to_pem(),
    };
    let pem = pem.map_err(|source| OwnKeyError::Invalid { path: path.clone(), source })?;
    file::write_atomic(&path, pem.as_bytes(), FileMode::Private)?;
    store_public_key(folder, &key.public_key())?;
    Ok(())
}

/// Writes the public half of the own key beside it.
///
/// # Errors
/// When it cannot be written.
pub fn store_public_key(folder: &Path, key: &PublicKey) -> io::Result<PathBuf> {
    let path = folder.join("public_key.pem");
    file::write_atomic(&path, key.to_pem().as_bytes(), FileMode::Preserve)?;
    Ok(path)
}

/// Signs a document of config syntax and writes it.
///
/// # Errors
/// When it cannot be written.
pub fn write_signed_document(path: &Path, text: &str, key: &SecretKey, now: &Timestamp) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        file::create_dirs(folder, true)?;
    }
    match sign(text.as_bytes(), &rye_trust::identity::signature_format(), key, now) {
        SignOutcome::Written { bytes, .. } => file::write_atomic(path, &bytes, FileMode::Preserve),
        SignOutcome::Unchanged(_) => file::write_atomic(path, text.as_bytes(), FileMode::Preserve),
    }
}

/// Locks the user's signed records: without it, one of two processes that write at once would take back what the other
/// wrote.
///
/// # Errors
/// When the folder of the records cannot be made or locked.
pub fn lock_records(user_ai: &Path) -> io::Result<Lock> {
    let folder = user_ai.join(RECORDS_FOLDER);
    file::create_dirs(&folder, true)?;
    Lock::acquire_dir(&folder)
}

/// Reads a signed record of the user's `.ai/`, which a key the user trusts everywhere must have signed; null when it is
/// not there.
///
/// # Errors
/// Why it is not used, in words.
pub fn read_record(user_ai: &Path, file: &str, keys: &KeyRing) -> Result<serde_json::Value, String> {
    let path = user_ai.join(file);
    let bytes = match file::read_bounded(&path, 1 << 20) {
        Ok((bytes, _)) => bytes,
        Err(error) if error.is_absent() => return Ok(serde_json::Value::Null),
        Err(error) => return Err(error.to_string()),
    };
    let layout = FileLayout::parse(&bytes, &rye_trust::identity::signature_format());
    let shown = path.display();
    let Some(line) = &layout.signature else {
        return Err(format!("`{shown}` is not signed"));
    };
    let is_intact =
        matches!(compare_content(ItemType::Config, &bytes, &layout), ContentStatus::Intact { .. });
    if is_intact && keys.revocation(&line.fingerprint).is_some() {
        // What a revoked key approved is approved no longer; the record itself is unchanged.
        return Ok(serde_json::Value::Null);
    }
    let known = keys.find(&line.fingerprint, &rye_item::Space::User);
    let is_trusted = known.is_some_and(|known| {
        keys.is_trusted_everywhere(&known.key) && known.key.verify(&line.hash, &line.signature)
    });
    if !is_intact || !is_trusted {
        return Err(format!("`{shown}` is not signed by a key you trust, or was changed"));
    }
    let text = std::str::from_utf8(&bytes).map_err(|error| format!("`{shown}`: {error}"))?;
    yaml::parse(text).map(|document| document.value).map_err(|problem| format!("`{shown}`:{problem}"))
}
