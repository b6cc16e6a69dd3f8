//! Where the background process is found, and which places have threads of it: a private folder beside the user's key, which is
//! hidden from every tool.
//!
//! ```text
//! background/<host>-<version>.lock   whoever holds it is the process
//! background/<host>-<version>.sock   where it listens
//! background/places/<digest>.json    a place with threads that have not ended
//! background/places.lock             shared by whoever registers a thread, alone to whoever forgets a place
//! ```
//!
//! Another version of rye, or another machine with the same home, has a process of its own: what is claimed in a store is
//! claimed for all of them.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use lillux::file::{self, Lock, Mode};
use lillux::socket;
use rye_agent::store::Owner;

use crate::place::Place;

/// Its name beside the key.
const FOLDER: &str = "background";
/// The largest file of a place.
const MOST_PLACE: u64 = 1 << 20;

/// The folder.
#[derive(Clone, Debug)]
pub(crate) struct Den {
    folder: PathBuf,
    name: String,
}

impl Den {
    /// The folder beside this key.
    pub(crate) fn beside(signing_keys: &Path) -> Self {
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
        let host: String = Owner::current().host.chars().filter(is_plain).take(64).collect();
        Self { folder: signing_keys.join(FOLDER), name: format!("{host}-{}", env!("CARGO_PKG_VERSION")) }
    }

    /// Makes it, or refuses one that others may enter.
    pub(crate) fn make(&self) -> io::Result<()> {
        file::create_folders(&self.places(), true)?;
        let found = fs_err::symlink_metadata(&self.folder)?;
        let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        if is_own && found.mode() & 0o077 == 0 {
            return Ok(());
        }
        let why = format!("`{}` must be a folder of yours that nobody else may enter", self.folder.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    fn places(&self) -> PathBuf {
        self.folder.join("places")
    }

    fn lock(&self) -> PathBuf {
        self.folder.join(format!("{}.lock", self.name))
    }

    /// Becomes the process; `None` when there is one.
    pub(crate) fn own(&self) -> io::Result<Option<Owned>> {
        self.make()?;
        let Some(lock) = Lock::try_acquire(&self.lock())? else { return Ok(None) };
        let listener = socket::listen(&self.folder, &self.socket())?;
        Ok(Some(Owned { den: self.clone(), lock, listener: Some(listener) }))
    }

    fn socket(&self) -> String {
        format!("{}.sock", self.name)
    }

    /// Connects to the process.
    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        socket::connect(&self.folder, &self.socket())
    }

    /// Remembers a place. It is not forgotten as long as the answer is kept.
    pub(crate) fn remember(&self, place: &Place) -> io::Result<Lock> {
        let kept = Lock::share(&self.folder.join("places.lock"))?;
        let path = self.places().join(place.name());
        let bytes = serde_json::to_vec(place)?;
        let is_there = file::read_bounded(&path, MOST_PLACE).is_ok_and(|(there, _)| there == bytes);
        if !is_there {
            file::write_atomic(&path, &bytes, Mode::Private)?;
        }
        Ok(kept)
    }

    /// Whether a place is remembered.
    pub(crate) fn remembers(&self, place: &Place) -> bool {
        self.places().join(place.name()).is_file()
    }

    /// All places that are remembered. What cannot be read is none.
    pub(crate) fn remembered(&self) -> Vec<Place> {
        let Ok(entries) = fs_err::read_dir(self.places()) else { return Vec::new() };
        let read =
            |path: PathBuf| serde_json::from_slice(&file::read_bounded(&path, MOST_PLACE).ok()?.0).ok();
        let mut places: Vec<Place> = entries.filter_map(|entry| read(entry.ok()?.path())).collect();
        places.sort();
        places
    }

    /// Forgets places that `is_over`, while nobody registers a thread.
    pub(crate) fn forget(&self, is_over: impl Fn(&Place) -> bool) -> io::Result<()> {
        let _alone = Lock::acquire(&self.folder.join("places.lock"))?;
        for place in self.remembered().iter().filter(|place| is_over(place)) {
            file::remove(&self.places().join(place.name()))?;
        }
        Ok(())
    }
}

/// The folder, of the process that owns it.
pub(crate) struct Owned {
    pub(crate) den: Den,
    lock: Lock,
    listener: Option<UnixListener>,
}

impl Owned {
    /// Where it listens; once.
    pub(crate) fn listener(&mut self) -> io::Result<UnixListener> {
        self.listener.take().ok_or_else(|| io::Error::other("it listens already"))
    }

    /// Whether the folder is still this process's: somebody may have removed it.
    pub(crate) fn is_own(&self) -> bool {
        self.lock.is_at(&self.den.lock())
    }
}

impl Drop for Owned {
    /// Whoever connects from now on finds nobody, and starts the next.
    fn drop(&mut self) {
        if self.is_own() {
            // Nobody listens there any more in any case.
            let _ = file::remove(&self.den.folder.join(self.den.socket()));
        }
    }
}
