//! The user's secret behind threads: what the store writes carries a code that only its holder can make.
//!
//! It lies beside the signing key, which is hidden from every tool.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lillux::digest::Hasher;
use lillux::file::{self, FileMode};
use lillux::{Digest, SecretKey};

use rye_store::ThreadStoreError;

use super::{DbError, head_log};

/// Its file's name in the folder of the signing key.
const SECRET_FILE: &str = "thread_secret";
const SECRET_LEN: usize = 32;
/// What SHA-256 takes at a time.
const BLOCK_LEN: usize = 64;

/// The user's secret behind threads. It is never shown.
#[derive(Clone)]
pub struct ThreadSecret {
    bytes: [u8; SECRET_LEN],
    /// The folder of the signing key, when the secret is kept there.
    keys_dir: Option<PathBuf>,
}

impl ThreadSecret {
    /// A secret of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_LEN]) -> Self {
        Self { bytes, keys_dir: None }
    }

    /// The same, kept in the folder of the signing key: how far stores have come is then recorded beside it.
    #[must_use]
    pub fn with_keys_dir(self, signing_keys: &Path) -> Self {
        Self { keys_dir: Some(signing_keys.to_owned()), ..self }
    }

    /// The folder of the signing key, when the secret is kept there.
    pub(super) fn keys_dir(&self) -> Option<&Path> {
        self.keys_dir.as_deref()
    }

    /// The secret in the folder of the signing key; made if there is none.
    ///
    /// # Errors
    /// When others can read it, it is none, or it cannot be written.
    pub fn load_or_create(signing_keys: &Path) -> Result<Self, ThreadStoreError> {
        match Self::load(signing_keys)? {
            Some(secret) => Ok(secret),
            None => Self::create(signing_keys),
        }
    }

    fn create(signing_keys: &Path) -> Result<Self, ThreadStoreError> {
        let mut bytes = [0; SECRET_LEN];
        getrandom::fill(&mut bytes).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
        file::create_dirs(signing_keys, true).map_err(DbError::from)?;
        let text = format!("{}\n", Digest::from_bytes(bytes));
        match file::write_new(&signing_keys.join(SECRET_FILE), text.as_bytes(), FileMode::Private) {
            Ok(()) => Ok(Self::new(bytes).with_keys_dir(signing_keys)),
            // Another process was faster: its secret counts.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let lost = || ThreadStoreError::Failed("the secret came and went".to_owned());
                Self::load(signing_keys)?.ok_or_else(lost)
            }
            Err(error) => Err(DbError::from(error).into()),
        }
    }

    /// A new secret in the place of one that is lost: what was sealed with that one cannot be relied on any more.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn replace_lost(signing_keys: &Path) -> Result<Self, ThreadStoreError> {
        match Self::load(signing_keys) {
            Ok(Some(secret)) => Ok(secret),
            Ok(None) | Err(ThreadStoreError::SecretLost { .. }) => Self::create(signing_keys),
            Err(error) => Err(error),
        }
    }

    /// The secret in the folder of the signing key; `None` when there is none yet.
    ///
    /// # Errors
    /// When others can read it, it is none, or it is gone though threads were sealed with it.
    pub fn load(signing_keys: &Path) -> Result<Option<Self>, ThreadStoreError> {
        let path = signing_keys.join(SECRET_FILE);
        let invalid = |reason: String| ThreadStoreError::Secret { path: path.clone(), reason };
        let (bytes, metadata) = match file::read_bounded(&path, 4096) {
            Ok(read) => read,
            // How far stores have come is recorded beside the secret, and only by a holder of it.
            Err(error) if error.is_absent() && head_log::has_logs(signing_keys) => {
                return Err(ThreadStoreError::SecretLost { path });
            }
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(invalid(format!("cannot be read: {error}"))),
        };
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(invalid(format!("has mode {mode:04o}: others can read the secret of threads")));
        }
        let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
        let digest: Digest = text.parse().map_err(|_| invalid("does not contain a secret".to_owned()))?;
        Ok(Some(Self::new(*digest.as_bytes()).with_keys_dir(signing_keys)))
    }

    /// The key that signs transcripts of a user who has no key of their own.
    #[must_use]
    pub fn transcript_key(&self) -> SecretKey {
        SecretKey::from_seed(self.derive("transcripts").as_bytes())
    }

    /// The key that signs the tokens of tools.
    #[must_use]
    pub fn token_key(&self) -> SecretKey {
        SecretKey::from_seed(self.derive("tokens of tools").as_bytes())
    }

    /// The maker of codes.
    pub(super) fn mac(&self) -> Mac {
        Mac::new(self.derive("journal heads and approvals").as_bytes())
    }

    fn derive(&self, purpose: &str) -> Digest {
        Mac::new(&self.bytes).compute([b"rye threads 1: ", purpose.as_bytes()])
    }
}

impl fmt::Debug for ThreadSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

/// HMAC-SHA256 under one key, with the key's blocks worked out once.
#[derive(Clone)]
pub(super) struct Mac {
    inner: Hasher,
    outer: Hasher,
}

impl Mac {
    fn new(key: &[u8; SECRET_LEN]) -> Self {
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK_LEN];
            block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
            let mut hasher = Hasher::default();
            hasher.update(&block);
            hasher
        };
        Self { inner: padded(0x36), outer: padded(0x5c) }
    }

    fn compute<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> Digest {
        let (mut inner, mut outer) = (self.inner.clone(), self.outer.clone());
        pieces.into_iter().for_each(|piece| inner.update(piece));
        outer.update(inner.finish().as_bytes());
        outer.finish()
    }

    /// The code of these fields, in this order, for this purpose: each with its length, so that none can pass for
    /// another.
    pub(super) fn compute_fields<'a>(
        &self,
        purpose: &'a str,
        fields: impl IntoIterator<Item = Option<&'a [u8]>>,
    ) -> Digest {
        let mut builder = self.builder(purpose);
        fields.into_iter().for_each(|field| builder.add(field));
        builder.finish()
    }

    /// The same, field by field.
    pub(super) fn builder(&self, purpose: &str) -> MacBuilder {
        let mut builder = MacBuilder { inner: self.inner.clone(), outer: self.outer.clone() };
        builder.add(Some(purpose.as_bytes()));
        builder
    }
}

/// A code that is being made, field by field.
pub(super) struct MacBuilder {
    inner: Hasher,
    outer: Hasher,
}

impl MacBuilder {
    pub(super) fn add(&mut self, field: Option<&[u8]>) {
        // No field is as long as the mark of an absent one.
        let length = field.map_or(u64::MAX, |field| field.len() as u64);
        self.inner.update(&length.to_be_bytes());
        self.inner.update(field.unwrap_or_default());
    }

    pub(super) fn finish(mut self) -> Digest {
        self.outer.update(self.inner.finish().as_bytes());
        self.outer.finish()
    }
}

/// Whether two codes are the same; it takes as long for a wrong one as for the right one.
pub(super) fn macs_equal(code: &Digest, other: &[u8]) -> bool {
    let difference = code.as_bytes().iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other));
    other.len() == SECRET_LEN && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_matches_rfc_4231() {
        // RFC 4231, test case 1, its key filled up with noughts, which HMAC does by itself.
        let mut key = [0; SECRET_LEN];
        key[..20].fill(0x0b);
        let code = Mac::new(&key).compute([&b"Hi "[..], b"There"]);
        assert_eq!(code.to_hex(), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
        let fields = |fields: [Option<&[u8]>; 2]| Mac::new(&key).compute_fields("x", fields);
        assert_ne!(fields([Some(b"ab"), Some(b"c")]), fields([Some(b"a"), Some(b"bc")]));
        assert_ne!(fields([Some(b""), None]), fields([None, Some(b"")]));
    }

    #[test]
    fn secret_is_created_once_and_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = folder.path().join("keys");
        assert!(ThreadSecret::load(&keys).expect("none").is_none());
        let first = ThreadSecret::load_or_create(&keys).expect("a secret");
        assert_eq!(ThreadSecret::load_or_create(&keys).expect("the same").bytes, first.bytes);
        assert_eq!(format!("{first:?}"), "Secret");
        assert_eq!(std::fs::metadata(keys.join(SECRET_FILE)).expect("a file").mode() & 0o777, 0o600);
        file::set_mode(&keys.join(SECRET_FILE), 0o640).expect("loosened");
        assert!(matches!(ThreadSecret::load(&keys), Err(ThreadStoreError::Secret { .. })));
        file::write_atomic(&keys.join(SECRET_FILE), b"short\n", FileMode::Private).expect("written");
        assert!(matches!(ThreadSecret::load_or_create(&keys), Err(ThreadStoreError::Secret { .. })));
    }

    #[test]
    fn transcript_key_differs_from_secret() {
        let secret = ThreadSecret::new([7; 32]);
        assert_eq!(secret.transcript_key().public_key(), secret.transcript_key().public_key());
        assert_ne!(secret.transcript_key().public_key(), SecretKey::from_seed(&[7; 32]).public_key());
    }
}
