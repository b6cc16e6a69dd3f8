//! Where the background process is found, and which places have threads of it: a private folder beside the user's key, which is
//! hidden from every tool.
//!
//! ```text
//! background/<host>-<version>.lock   held by the running daemon
//! background/<host>-<version>.sock   where it listens
//! background/places/<digest>.json    a place with threads that have not ended
//! background/places.lock             shared while registering a thread, exclusive while removing a location
//! ```
//!
//! Another version of rye, or another machine with the same home, has a process of its own: what is claimed in a store is
//! claimed for all of them.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode, Lock};
use lillux::socket;
use rye_agent::store::current_owner;

use crate::location::ThreadsLocation;

/// Its name beside the key.
const RUNTIME_DIR_NAME: &str = "background";
/// The largest file of a place.
const MAX_LOCATION_BYTES: u64 = 1 << 20;

/// The folder.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeDir {
    folder: PathBuf,
    name: String,
}

impl RuntimeDir {
    /// The folder beside this key.
    pub(crate) fn for_keys(signing_keys: &Path) -> Self {
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
        let host: String = current_owner().host.chars().filter(is_plain).take(64).collect();
        Self {
            folder: signing_keys.join(RUNTIME_DIR_NAME),
            name: format!("{host}-{}", env!("CARGO_PKG_VERSION")),
        }
    }

    /// Makes it, or refuses one that others may enter.
    pub(crate) fn create(&self) -> io::Result<()> {
        file::create_dirs(&self.locations_dir(), true)?;
        let found = fs_err::symlink_metadata(&self.folder)?;
        let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if is_own && found.mode() & 0o077 == 0 {
            return Ok(());
        }
        let message =
            format!("`{}` must be a folder that you own and that only you can enter", self.folder.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }

    fn locations_dir(&self) -> PathBuf {
        self.folder.join("places")
    }

    fn lock_path(&self) -> PathBuf {
        self.folder.join(format!("{}.lock", self.name))
    }

    /// Becomes the process; `None` when there is one.
    pub(crate) fn acquire(&self) -> io::Result<Option<OwnedRuntimeDir>> {
        self.create()?;
        let Some(lock) = Lock::try_acquire(&self.lock_path())? else { return Ok(None) };
        let listener = socket::listen(&self.folder, &self.socket_name())?;
        Ok(Some(OwnedRuntimeDir { dir: self.clone(), lock, listener: Some(listener) }))
    }

    fn socket_name(&self) -> String {
        format!("{}.sock", self.name)
    }

    /// Connects to the process.
    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        socket::connect(&self.folder, &self.socket_name())
    }

    /// Remembers a place. It is not forgotten as long as the answer is kept.
    pub(crate) fn add_location(&self, location: &ThreadsLocation) -> io::Result<Lock> {
        let lock = Lock::acquire_shared(&self.folder.join("places.lock"))?;
        let path = self.locations_dir().join(location.file_name());
        let bytes = serde_json::to_vec(location)?;
        let is_unchanged =
            file::read_bounded(&path, MAX_LOCATION_BYTES).is_ok_and(|(current, _)| current == bytes);
        if !is_unchanged {
            file::write_atomic(&path, &bytes, FileMode::Private)?;
        }
        Ok(lock)
    }

    /// Whether a place is remembered.
    pub(crate) fn has_location(&self, location: &ThreadsLocation) -> bool {
        self.locations_dir().join(location.file_name()).is_file()
    }

    /// All places that are remembered. What cannot be read is none.
    pub(crate) fn locations(&self) -> Vec<ThreadsLocation> {
        let Ok(entries) = fs_err::read_dir(self.locations_dir()) else { return Vec::new() };
        let read = |path: PathBuf| {
            serde_json::from_slice(&file::read_bounded(&path, MAX_LOCATION_BYTES).ok()?.0).ok()
        };
        let mut locations: Vec<ThreadsLocation> =
            entries.filter_map(|entry| read(entry.ok()?.path())).collect();
        locations.sort();
        locations
    }

    /// Removes locations for which `is_finished` holds, under the lock that registering a thread takes too.
    pub(crate) fn remove_locations(&self, is_finished: impl Fn(&ThreadsLocation) -> bool) -> io::Result<()> {
        let _lock = Lock::acquire(&self.folder.join("places.lock"))?;
        for location in self.locations().iter().filter(|location| is_finished(location)) {
            file::remove(&self.locations_dir().join(location.file_name()))?;
        }
        Ok(())
    }
}

/// The folder, of the process that owns it.
pub(crate) struct OwnedRuntimeDir {
    pub(crate) dir: RuntimeDir,
    lock: Lock,
    listener: Option<UnixListener>,
}

impl OwnedRuntimeDir {
    /// Where it listens; once.
    pub(crate) fn listener(&mut self) -> io::Result<UnixListener> {
        self.listener.take().ok_or_else(|| io::Error::other("it listens already"))
    }

    /// Whether the folder still belongs to this process: it may have been removed.
    pub(crate) fn is_current(&self) -> bool {
        self.lock.is_at(&self.dir.lock_path())
    }
}

impl Drop for OwnedRuntimeDir {
    /// Clients that connect from now on find no daemon, and start the next.
    fn drop(&mut self) {
        if self.is_current() {
            // There is no listener any more in any case.
            let _ = file::remove(&self.dir.folder.join(self.dir.socket_name()));
        }
    }
}
