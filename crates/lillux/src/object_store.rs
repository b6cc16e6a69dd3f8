//! The content-addressed store: `blobs/ab/cd/<sha256>` for raw bytes, `objects/ab/cd/<sha256>.json` for canonical
//! JSON. A file's name is the digest of its bytes, checked whenever it is read.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::canonical;
use crate::digest::Digest;
use crate::file::{self, FileMode, ReadError};

/// Why something could not be taken from the store.
#[derive(Debug, thiserror::Error)]
pub enum ObjectStoreError {
    /// The bytes under a digest's name have another digest.
    #[error("`{}` is damaged: it does not have the digest of its name", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// The bytes are not JSON.
    #[error("`{}` is not JSON: {source}", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        source: serde_json::Error,
    },
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A store below one folder.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    root: PathBuf,
    max_bytes: u64,
}

impl ObjectStore {
    /// The store at `root`; nothing larger than `limit` bytes is read from it.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, limit: u64) -> Self {
        Self { root: root.into(), max_bytes: limit }
    }

    /// Stores raw bytes.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn put_blob(&self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(bytes);
        Self::put(&self.blob_path(&digest), bytes)?;
        Ok(digest)
    }

    /// Stores a value as canonical JSON.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_object(&self, value: &Value) -> io::Result<Digest> {
        let text = canonical::to_string(value);
        let digest = Digest::of(text.as_bytes());
        Self::put(&self.object_path(&digest), text.as_bytes())?;
        Ok(digest)
    }

    /// The bytes with this digest, or `None` when the store has none.
    ///
    /// # Errors
    /// When the file is damaged or unreadable.
    pub fn get_blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, ObjectStoreError> {
        self.read(self.blob_path(digest), digest)
    }

    /// The value with this digest, or `None` when the store has none.
    ///
    /// # Errors
    /// When the file is damaged or unreadable.
    pub fn get_object(&self, digest: &Digest) -> Result<Option<Value>, ObjectStoreError> {
        let path = self.object_path(digest);
        let Some(bytes) = self.read(path.clone(), digest)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|source| ObjectStoreError::NotJson { path, source })
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.to_hex();
        self.root.join("blobs").join(&hex[..2]).join(&hex[2..4]).join(hex)
    }

    fn object_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.to_hex();
        self.root.join("objects").join(&hex[..2]).join(&hex[2..4]).join(format!("{hex}.json"))
    }

    fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
        if path.exists() {
            return Ok(());
        }
        if let Some(folder) = path.parent() {
            file::create_dirs(folder, true)?;
        }
        file::write_atomic(path, bytes, FileMode::Private)
    }

    fn read(&self, path: PathBuf, digest: &Digest) -> Result<Option<Vec<u8>>, ObjectStoreError> {
        match file::read_bounded(&path, self.max_bytes) {
            Ok((bytes, _)) if Digest::of(&bytes) == *digest => Ok(Some(bytes)),
            Ok(_) => Err(ObjectStoreError::Corrupt { path }),
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stored_values_are_read_by_digest() {
        let folder = tempfile::tempdir().expect("folder");
        let store = ObjectStore::new(folder.path().join("private"), 1 << 20);
        let blob = store.put_blob(b"hello").expect("put");
        let object = store.put_object(&json!({"b": 1, "a": 2})).expect("put");
        assert_eq!(store.put_blob(b"hello").expect("put again"), blob);
        assert_eq!(store.get_blob(&blob).expect("taken"), Some(b"hello".to_vec()));
        assert_eq!(store.get_object(&object).expect("taken"), Some(json!({"a": 2, "b": 1})));
        assert_eq!(store.get_blob(&Digest::of(b"other")).expect("asked"), None);
        let hex = blob.to_hex();
        let blob = folder.path().join("private/blobs").join(&hex[..2]).join(&hex[2..4]).join(&hex);
        assert!(blob.is_file());
        // Other users do not read it.
        let mode = |path: &Path| {
            let metadata = path.metadata().expect("metadata");
            std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777
        };
        assert_eq!((mode(&blob), mode(&folder.path().join("private"))), (0o600, 0o700));
    }

    #[test]
    fn corruption_is_detected() {
        let folder = tempfile::tempdir().expect("folder");
        let store = ObjectStore::new(folder.path(), 1 << 20);
        let digest = store.put_blob(b"hello").expect("put");
        file::write_atomic(&store.blob_path(&digest), b"jello", FileMode::Preserve).expect("damaged");
        assert!(matches!(store.get_blob(&digest), Err(ObjectStoreError::Corrupt { .. })));
    }
}
