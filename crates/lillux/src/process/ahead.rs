//! What a launcher has laid out for an order that has not come yet, and whether it still fits: mounts and rules are made
//! of what was there when they were made.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Limits;
use super::wire::{self, Expected, Message};
use crate::confine::Confinement;

/// A larger order is read by a launcher that is under no bounds yet.
const MOST_BYTES: usize = 1 << 20;

/// What one order is held to, if a launcher may lay it out ahead.
pub(super) fn expectation(confinement: &Confinement, limits: &Limits) -> Option<Expected> {
    // What bounds memory would bound the reading of the order as well.
    limits.memory_bytes.is_none().then(|| Expected {
        confinement: confinement.clone(),
        limits: limits.clone(),
        caller: std::process::id(),
    })
}

/// A run that is laid out and waits for its order.
#[derive(Debug)]
pub(super) struct Ahead {
    expected: Expected,
    seen: Seen,
    /// Where the order is given.
    desk: OwnedFd,
}

impl Ahead {
    /// Has the launcher at `control` lay this out.
    pub(super) fn ask(control: &OwnedFd, expected: &Expected) -> io::Result<Self> {
        // Before the launcher looks: what changes in between is noticed.
        let seen = Seen::now(expected)?;
        let (desk, other) = super::launcher::pair()?;
        let message = Message::Expected(Box::new(expected.clone())).to_bytes()?;
        wire::send_message(control, &message, &[other.as_fd()])?;
        Ok(Self { expected: expected.clone(), seen, desk })
    }

    /// Whether it was laid out for this, and would be laid out just so now.
    pub(super) fn fits(&self, expected: &Expected) -> bool {
        self.expected == *expected && !self.seen.has_changed(expected)
    }

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
#[derive(Debug)]
struct Seen {
    files: Vec<Option<(u64, u64)>>,
    root: Option<(i64, i64)>,
    /// Tells when something is mounted or unmounted.
    mounts: OwnedFd,
}

impl Seen {
    fn now(expected: &Expected) -> io::Result<Self> {
        let mounts = std::fs::File::open("/proc/self/mountinfo")?.into();
        Ok(Self { files: files(&expected.confinement), root: root(), mounts })
    }

    fn has_changed(&self, expected: &Expected) -> bool {
        let mut polled = [PollFd::new(&self.mounts, PollFlags::PRI)];
        let is_quiet = rustix::event::poll(&mut polled, Some(&Timespec::default())) == Ok(0);
        !is_quiet || self.root != root() || self.files != files(&expected.confinement)
    }
}

/// The identity of each file that a confinement names.
fn files(confinement: &Confinement) -> Vec<Option<(u64, u64)>> {
    paths(confinement).map(|path| path.metadata().ok().map(|found| (found.dev(), found.ino()))).collect()
}

fn paths(confinement: &Confinement) -> impl Iterator<Item = &PathBuf> {
    let Confinement { read, write, read_only, hidden, sockets, .. } = confinement;
    read.paths().iter().chain(write).chain(read_only).chain(hidden).chain(sockets)
}

/// When the last entry at the root came or went: each of them has a rule of its own.
fn root() -> Option<(i64, i64)> {
    Path::new("/").metadata().ok().map(|found| (found.mtime(), found.mtime_nsec()))
}
