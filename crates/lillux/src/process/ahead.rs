//! What a launcher has laid out for an order that has not come yet, and whether it still fits: mounts and rules are made
//! of what was there when they were made.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Limits;
use super::wire::{self, Expected, Message};
use crate::confine::Confinement;

/// A larger order is given to a launcher that waits for it: this much fits into a socket, whoever reads or does not.
const MOST_BYTES: usize = 64 << 10;

/// What one order is held to, if a launcher may lay it out ahead.
pub(super) fn expectation(confinement: &Confinement, limits: &Limits) -> Option<Expected> {
    // A tool whose memory is bounded is rare, and begun when it comes.
    limits.memory_bytes.is_none().then(|| Expected {
        confinement: confinement.clone(),
        limits: limits.clone(),
        caller: std::process::id(),
    })
}

/// What a launcher has laid out, and when.
#[derive(Debug)]
pub(super) struct Laid {
    expected: Expected,
    seen: Seen,
}

impl Laid {
    /// What is about to be laid out. Before the launcher looks: what changes in between is noticed.
    pub(super) fn now(expected: &Expected) -> io::Result<Self> {
        Ok(Self { expected: expected.clone(), seen: Seen::now(expected)? })
    }

    /// Whether it was laid out for this.
    pub(super) fn is_for(&self, expected: &Expected) -> bool {
        self.expected == *expected
    }

    /// Whether it was laid out for this, and would be laid out just so now.
    pub(super) fn fits(&self, expected: &Expected) -> bool {
        self.is_for(expected) && !self.seen.has_changed(expected)
    }

    /// Has the launcher at `control` lay this out, or use it again, for an order to come.
    pub(super) fn ask(self, control: &OwnedFd) -> io::Result<Ahead> {
        let (desk, other) = super::launcher::pair()?;
        let message = Message::Expected(Box::new(self.expected.clone())).to_bytes()?;
        wire::send_message(control, &message, &[other.as_fd()])?;
        Ok(Ahead { laid: self, desk })
    }
}

/// A run that is laid out and waits for its order.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) laid: Laid,
    /// Where the order is given.
    desk: OwnedFd,
}

impl Ahead {
    /// Whether a message may be given at its desk.
    pub(super) fn takes(message: &[u8]) -> bool {
        message.len() <= MOST_BYTES
    }

    /// Gives the order to the process that becomes the tool.
    pub(super) fn give(&self, order: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send_message(&self.desk, order, descriptors)
    }
}

/// What mounts and rules depend on: which files are there, what is mounted, what lies at the root.
///
/// A file that is removed or replaced takes the mount over it along, in every namespace: so that a file has the same name
/// and the same number is not enough, it must be the very same one.
#[derive(Debug)]
struct Seen {
    files: Vec<Identity>,
    root: Option<(i64, i64)>,
    /// Tells when something is mounted or unmounted; it tells only once.
    mounts: OwnedFd,
    has_changed: AtomicBool,
}

impl Seen {
    fn now(expected: &Expected) -> io::Result<Self> {
        let mounts = std::fs::File::open("/proc/self/mountinfo")?.into();
        let has_changed = AtomicBool::new(false);
        Ok(Self { files: files(&expected.confinement), root: root(), mounts, has_changed })
    }

    /// What has changed once is never again as it was.
    fn has_changed(&self, expected: &Expected) -> bool {
        let mut polled = [PollFd::new(&self.mounts, PollFlags::PRI)];
        let is_quiet = rustix::event::poll(&mut polled, Some(&Timespec::default())) == Ok(0);
        let is_same = is_quiet && self.root == root() && self.files == files(&expected.confinement);
        self.has_changed.fetch_or(!is_same, Ordering::Relaxed) || !is_same
    }
}

/// Which file is at a path.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    number: u64,
    born: Option<SystemTime>,
    /// When its links last changed, of what is no folder: one that was away and came back is found out.
    changed: Option<(i64, i64)>,
    /// How far above the path it is: the nearest that is there.
    above: usize,
}

/// Which files a confinement names, and which folders lead to what it protects.
fn files(confinement: &Confinement) -> Vec<Identity> {
    let Confinement {
        read,
        write,
        read_only,
        placeholders,
        hidden,
        homes,
        visible,
        visible_links,
        replaced,
        ..
    } = confinement;
    let replaced =
        replaced.iter().chain(visible_links).flat_map(|replacement| [&replacement.path, &replacement.with]);
    let named = read.paths().iter().chain(write).chain(read_only).chain(hidden).chain(homes).chain(visible);
    let named = named.chain(replaced);
    // Placeholders come and go with each run; the folders they lie in stay.
    let protected = read_only.iter().chain(hidden).chain(placeholders);
    let between = protected.flat_map(|path| {
        let root = write.iter().find(|root| path.starts_with(root) && path != *root);
        path.ancestors().skip(1).take_while(move |above| root.is_some_and(|root| above.starts_with(root)))
    });
    named.map(PathBuf::as_path).chain(between).filter_map(identity).collect()
}

fn identity(path: &Path) -> Option<Identity> {
    path.ancestors().enumerate().find_map(|(above, path)| {
        let found = path.metadata().ok()?;
        Some(Identity {
            device: found.dev(),
            number: found.ino(),
            born: found.created().ok(),
            changed: (!found.is_dir()).then(|| (found.ctime(), found.ctime_nsec())),
            above,
        })
    })
}

/// When the last entry at the root came or went: each of them has a rule of its own.
fn root() -> Option<(i64, i64)> {
    Path::new("/").metadata().ok().map(|found| (found.mtime(), found.mtime_nsec()))
}
