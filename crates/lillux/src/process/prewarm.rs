//! Sandboxes that a launcher sets up before the request they are for, and whether they still fit it: mounts and rules
//! name the files that existed when they were made.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::ProcessLimits;
use super::protocol::{self, LauncherMessage, PrewarmSpec};
use crate::sandbox::Confinement;

/// The most that fits into a socket's buffer; a larger request starts a launcher of its own.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// What a sandbox of this kind is set up from, if it may be prewarmed.
pub(super) fn prewarm_spec(confinement: &Confinement, limits: &ProcessLimits) -> Option<PrewarmSpec> {
    // Tools whose memory is bounded are rare: their sandbox is set up when they are run.
    limits.memory_bytes.is_none().then(|| PrewarmSpec {
        confinement: confinement.clone(),
        limits: limits.clone(),
        caller: std::process::id(),
    })
}

/// What a prewarmed sandbox was set up from, and the files it depends on as they were then.
#[derive(Debug)]
pub(super) struct SandboxLayout {
    spec: PrewarmSpec,
    snapshot: FsSnapshot,
}

impl SandboxLayout {
    /// Records the files before the launcher reads them, so that a change in between is noticed.
    pub(super) fn capture(spec: &PrewarmSpec) -> io::Result<Self> {
        Ok(Self { spec: spec.clone(), snapshot: FsSnapshot::capture(spec)? })
    }

    /// Whether it was set up for this.
    pub(super) fn is_for_spec(&self, spec: &PrewarmSpec) -> bool {
        self.spec == *spec
    }

    /// Whether it was set up for this, and would be set up the same way now.
    pub(super) fn is_current_for(&self, spec: &PrewarmSpec) -> bool {
        self.is_for_spec(spec) && !self.snapshot.has_changed(spec)
    }

    /// Has the launcher at `control` set this up, or reuse it, for the next request.
    pub(super) fn prewarm(self, control: &OwnedFd) -> io::Result<PrewarmedSandbox> {
        let (request_socket, launcher_end) = super::launcher_pool::socket_pair()?;
        let message = LauncherMessage::Prewarm(Box::new(self.spec.clone())).to_bytes()?;
        protocol::send_message(control, &message, &[launcher_end.as_fd()])?;
        Ok(PrewarmedSandbox { layout: self, request_socket })
    }
}

/// A sandbox that is set up and waits for its request.
#[derive(Debug)]
pub(super) struct PrewarmedSandbox {
    pub(super) layout: SandboxLayout,
    /// Where the request is sent.
    request_socket: OwnedFd,
}

impl PrewarmedSandbox {
    /// Whether a message is small enough to be sent.
    pub(super) fn accepts(message: &[u8]) -> bool {
        message.len() <= MAX_REQUEST_BYTES
    }

    /// Sends the request to the process that becomes the tool.
    pub(super) fn send_request(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        protocol::send_message(&self.request_socket, request, descriptors)
    }
}

/// What mounts and rules depend on: which files are there, what is mounted, what lies at the root.
///
/// A file that is removed or replaced takes the mount over it along, in every namespace: so that a file has the same name
/// and the same number is not enough, it must be the very same one.
#[derive(Debug)]
struct FsSnapshot {
    files: Vec<FileIdentity>,
    root: Option<(i64, i64)>,
    /// Reports once that something was mounted or unmounted.
    mounts: OwnedFd,
    has_changed: AtomicBool,
}

impl FsSnapshot {
    fn capture(spec: &PrewarmSpec) -> io::Result<Self> {
        let mounts = std::fs::File::open("/proc/self/mountinfo")?.into();
        let has_changed = AtomicBool::new(false);
        Ok(Self { files: file_identities(&spec.confinement), root: root_mtime(), mounts, has_changed })
    }

    /// What has changed once stays changed.
    fn has_changed(&self, spec: &PrewarmSpec) -> bool {
        let mut polled = [PollFd::new(&self.mounts, PollFlags::PRI)];
        let is_quiet = rustix::event::poll(&mut polled, Some(&Timespec::default())) == Ok(0);
        let is_same =
            is_quiet && self.root == root_mtime() && self.files == file_identities(&spec.confinement);
        self.has_changed.fetch_or(!is_same, Ordering::Relaxed) || !is_same
    }
}

/// Which file is at a path.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    created: Option<SystemTime>,
    /// When its links last changed, of what is not a folder: one that was away and came back is found out.
    ctime: Option<(i64, i64)>,
    /// How far above the path it is: the nearest that is there.
    levels_up: usize,
}

/// Which files a confinement names, and which folders lead to what it protects.
fn file_identities(confinement: &Confinement) -> Vec<FileIdentity> {
    let Confinement {
        read,
        write,
        read_only,
        placeholders,
        hidden,
        homes,
        visible,
        visible_links,
        replacements: replacement_paths,
        // None of these is mounted. What they decide is part of the spec, and sockets are looked at on each connect.
        sockets: _,
        network: _,
        on_missing: _,
        namespaces: _,
    } = confinement;
    let replacement_paths = replacement_paths
        .iter()
        .chain(visible_links)
        .flat_map(|replacement| [&replacement.path, &replacement.with]);
    let named = read.paths().iter().chain(write).chain(read_only).chain(hidden).chain(homes).chain(visible);
    let named = named.chain(replacement_paths);
    // Placeholders come and go with each run; the folders they lie in stay.
    let protected = read_only.iter().chain(hidden).chain(placeholders);
    let ancestors = protected.flat_map(|path| {
        let root = write.iter().find(|root| path.starts_with(root) && path != *root);
        path.ancestors().skip(1).take_while(move |above| root.is_some_and(|root| above.starts_with(root)))
    });
    // Most of what is protected lies in one folder: it is looked at once.
    let mut paths: Vec<&OsStr> = named.map(PathBuf::as_path).chain(ancestors).map(Path::as_os_str).collect();
    paths.sort_unstable();
    paths.dedup();
    paths.into_iter().map(Path::new).filter_map(file_identity).collect()
}

fn file_identity(path: &Path) -> Option<FileIdentity> {
    path.ancestors().enumerate().find_map(|(above, path)| {
        let metadata = path.metadata().ok()?;
        Some(FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            created: metadata.created().ok(),
            ctime: (!metadata.is_dir()).then(|| (metadata.ctime(), metadata.ctime_nsec())),
            levels_up: above,
        })
    })
}

/// When the last entry at the root came or went: each of them has a rule of its own.
fn root_mtime() -> Option<(i64, i64)> {
    Path::new("/").metadata().ok().map(|metadata| (metadata.mtime(), metadata.mtime_nsec()))
}
