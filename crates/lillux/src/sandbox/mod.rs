//! What a process may access, and how the kernel enforces it.
//!
//! Three steps, each in its own process: the launcher creates namespaces and mounts (`isolate`), the supervisor enters
//! them (`enter`), and the process that becomes the tool gives up what is left (`lock_down`). Mechanisms that the
//! kernel or container does not offer are skipped and listed in the [`Receipt`], unless the caller requires them.

mod bpf;
mod landlock;
mod mounts;
mod namespaces;
pub mod placeholders;
mod privileges;
mod probe;
mod receipt;
mod seccomp;

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::canonicalize::CanonicalPathCache;
use crate::process::ProcessLimits;

pub use probe::probe;
pub use receipt::{EnforcementLevel, Mechanism, Receipt, ReceiptRow, SandboxRule};

/// What a process may touch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// What it may read.
    pub read: ReadAccess,
    /// Files and folders it may change. They are real paths: one that leads through a link is refused.
    pub write: Vec<PathBuf>,
    /// What stays as it is although it lies below a folder in `write`. Only what exists is protected.
    pub read_only: Vec<PathBuf>,
    /// Placeholders that exist for the run only ([`placeholders`]). They are read-only as well.
    pub placeholders: Vec<PathBuf>,
    /// Files that the process sees in the place of others, read-only.
    #[serde(rename = "replaced")]
    pub replacements: Vec<Replacement>,
    /// What it may neither read nor make, whatever lies above.
    pub hidden: Vec<PathBuf>,
    /// Folders of which it sees nothing but what is in `visible` and `write`.
    pub homes: Vec<PathBuf>,
    /// What it may read below `homes`. No link is followed: one that leads elsewhere shows nothing.
    pub visible: Vec<PathBuf>,
    /// Links below `homes`, and the files or folders that are seen in their place.
    pub visible_links: Vec<Replacement>,
    /// Which UNIX sockets it may connect to. Pairs always work.
    pub sockets: SocketAccess,
    /// Whether the network is open.
    pub network: NetworkAccess,
    /// What happens if a rule cannot be enforced.
    pub on_missing: MissingRulePolicy,
    /// Whether namespaces are used.
    pub namespaces: NamespaceMode,
}

impl Confinement {
    /// A confinement that can read everything, change nothing and reach nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            read: ReadAccess::Everything,
            write: Vec::new(),
            read_only: Vec::new(),
            placeholders: Vec::new(),
            replacements: Vec::new(),
            hidden: Vec::new(),
            homes: Vec::new(),
            visible: Vec::new(),
            visible_links: Vec::new(),
            sockets: SocketAccess::default(),
            network: NetworkAccess::Closed,
            on_missing: MissingRulePolicy::Warn,
            namespaces: NamespaceMode::Auto,
        }
    }
}

impl Default for Confinement {
    fn default() -> Self {
        Self::new()
    }
}

/// A file that the process sees in the place of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The file that is replaced. If it does not exist, nothing is.
    pub path: PathBuf,
    /// What is seen instead.
    pub with: PathBuf,
}

/// The UNIX sockets a process may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketAccess {
    /// Folders in which it makes sockets of its own.
    pub own: Vec<PathBuf>,
    /// Other sockets, or folders of sockets.
    pub allowed: Vec<PathBuf>,
}

/// What a process may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadAccess {
    /// Everything that is not hidden.
    Everything,
    /// These files and folders, and what it may write.
    Only(Vec<PathBuf>),
}

impl ReadAccess {
    /// What is named one by one.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        match self {
            Self::Everything => &[],
            Self::Only(paths) => paths,
        }
    }
}

/// Whether the network is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkAccess {
    /// Internet sockets.
    Open,
    /// No internet sockets.
    Closed,
}

/// What happens if a rule cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingRulePolicy {
    /// The process runs, and the receipt says what is missing.
    Warn,
    /// The process does not run.
    Refuse,
}

/// Whether namespaces are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamespaceMode {
    /// Where the system allows them.
    Auto,
    /// Never, as on systems that allow none.
    #[serde(rename = "avoided")]
    Never,
}

/// What the launcher has made for the processes below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct IsolationState {
    pub(crate) has_user_namespace: bool,
    pub(crate) has_mount_namespace: bool,
    pub(crate) has_pid_namespace: bool,
    pub(crate) has_network_namespace: bool,
    /// Whether `/proc` shows the run's own processes only.
    pub(crate) has_own_proc: bool,
    /// Whether `/dev/shm` is the run's own.
    pub(crate) has_own_shm: bool,
    /// Whether `/dev/pts` is the run's own.
    pub(crate) has_own_pts: bool,
    /// Where the paths of the confinement really are.
    pub(crate) paths: ResolvedPaths,
    /// What mounts protect already.
    pub(crate) mount_protected: HashSet<PathBuf>,
    pub(crate) rows: Vec<ReceiptRow>,
}

impl IsolationState {
    /// Whether mounts protect everything that is there to be protected, so that no other rule has to.
    pub(crate) fn is_fully_covered(&self) -> bool {
        let is_covered = |path: &PathBuf| self.mount_protected.contains(path);
        let is_absent = |path: &PathBuf| path.symlink_metadata().is_err();
        let mut hidden = self.paths.hidden.iter().chain(&self.paths.homes);
        let mut read_only = self.paths.read_only.iter().filter(|path| !is_absent(path));
        // What is absent may still be made where the run may write.
        let is_closed = |path: &PathBuf| is_covered(path) || (is_absent(path) && !self.is_writable(path));
        self.has_own_proc && hidden.all(is_closed) && read_only.all(is_covered)
    }

    /// Whether the run may make this path.
    fn is_writable(&self, path: &Path) -> bool {
        self.paths.write.iter().any(|root| path.starts_with(root))
    }

    /// The path that lost the mount over it: removing or replacing a file removes its mounts too.
    pub(crate) fn find_uncovered(&self) -> Option<&PathBuf> {
        self.mount_protected.iter().find(|path| !mounts::is_mount(path))
    }
}

/// Where the paths of a confinement really are, links and what they lead to, looked up once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResolvedPaths {
    pub(crate) write: Vec<PathBuf>,
    pub(crate) hidden: Vec<PathBuf>,
    pub(crate) read_only: Vec<PathBuf>,
    pub(crate) homes: Vec<PathBuf>,
    pub(crate) visible: Vec<PathBuf>,
}

impl ResolvedPaths {
    fn from_confinement(confinement: &Confinement) -> Self {
        let mut cache = CanonicalPathCache::default();
        let mut resolve = |paths: &[PathBuf]| {
            paths.iter().flat_map(|path| landlock::resolve_link_and_target(path, &mut cache)).collect()
        };
        let (hidden, read_only) = (resolve(&confinement.hidden), resolve(&confinement.read_only));
        let visible = confinement.visible.clone();
        let mut homes: Vec<PathBuf> = resolve(&confinement.homes);
        // A home that is to be seen as a whole is not closed, and one inside another needs no second mask.
        let is_visible =
            |home: &PathBuf| visible.iter().chain(&confinement.write).any(|path| home.starts_with(path));
        homes.retain(|home| home.parent().is_some() && !is_visible(home));
        homes.sort();
        homes.dedup();
        let outer = homes.clone();
        homes.retain(|home| !outer.iter().any(|other| home != other && home.starts_with(other)));
        Self { write: confinement.write.clone(), hidden, read_only, homes, visible }
    }
}

/// In the launcher: leaves the namespaces and lays the mounts that are to be had.
pub(crate) fn isolate(confinement: &Confinement) -> Result<IsolationState, String> {
    let mut state = IsolationState::default();
    if confinement.namespaces == NamespaceMode::Auto {
        namespaces::enter(&mut state);
    }
    finish_isolation(&mut state, confinement, SetupTiming::Now)?;
    Ok(state)
}

/// In a launcher that does not know yet what it will run: leaves the namespaces that every confinement leaves, if they
/// are to be had. What is mounted on the system is still heard of.
pub(crate) fn prewarm_namespaces() -> Option<IsolationState> {
    let mut state = IsolationState::default();
    namespaces::enter(&mut state);
    state.has_pid_namespace.then_some(state)
}

/// In a supervisor that does not know yet what it will run: a `/proc` and a memory folder of its own.
pub(crate) fn prewarm_mounts(state: &mut IsolationState) {
    if state.has_mount_namespace {
        state.has_own_proc = state.has_pid_namespace && mounts::mount_proc().is_ok();
        state.has_own_shm = mounts::mount_shm().is_ok();
        state.has_own_pts = mounts::mount_pts().is_ok();
    }
}

/// Whether the run that is prepared has its order, and with it its placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetupTiming {
    /// The order is there.
    Now,
    /// The order comes later.
    Prewarm,
}

/// Does the rest of isolating, once it is known what for.
pub(crate) fn finish_isolation(
    state: &mut IsolationState,
    confinement: &Confinement,
    timing: SetupTiming,
) -> Result<(), String> {
    landlock::validate_paths(confinement)?;
    state.paths = ResolvedPaths::from_confinement(confinement);
    if confinement.namespaces == NamespaceMode::Auto && confinement.network == NetworkAccess::Closed {
        namespaces::enter_network_namespace(state);
    }
    // From here on, what is mounted elsewhere must not change what is seen.
    state.has_mount_namespace = state.has_mount_namespace && namespaces::make_mounts_private().is_ok();
    if state.has_mount_namespace {
        mounts::apply_mounts(state, confinement)?;
    } else {
        let detail = "nothing keeps modes, owners and times without a mount namespace";
        state.rows.push(ReceiptRow::new(SandboxRule::Metadata, Mechanism::MountNamespace, false, detail));
    }
    if timing == SetupTiming::Now {
        protect_placeholders(state, confinement)?;
    }
    Ok(())
}

/// In the supervisor, once the order and with it the placeholders are there: makes them read-only.
pub(crate) fn protect_placeholders(state: &IsolationState, confinement: &Confinement) -> Result<(), String> {
    if state.has_mount_namespace { mounts::protect_placeholders(&confinement.placeholders) } else { Ok(()) }
}

/// In a supervisor whose run has ended and left no process: removes what the run could have left in memory.
pub(crate) fn reset(state: &IsolationState) -> Result<(), String> {
    let to_message = |error: std::io::Error| format!("cannot reuse the prewarmed sandbox: {error}");
    namespaces::enter_ipc_namespace().map_err(to_message)?;
    if state.has_own_shm {
        mounts::remount_shm().map_err(to_message)?;
    }
    if state.has_own_pts {
        mounts::remount_pts().map_err(to_message)?;
    }
    Ok(())
}

/// In the launcher, where nothing is to be confined: a process tree of its own, for those who may make one.
pub(crate) fn isolate_process_tree() -> IsolationState {
    let mut state = IsolationState::default();
    namespaces::enter_pid_namespace(&mut state);
    state
}

/// In the supervisor: a `/proc` that shows the new process tree, and a hard bound of its size.
pub(crate) fn enter(state: &mut IsolationState, limits: &ProcessLimits) {
    if state.has_pid_namespace && state.has_mount_namespace {
        state.has_own_proc = state.has_own_proc || mounts::mount_proc().is_ok();
        if state.has_own_proc {
            // Only newer kernels count per namespace. Where they do not, this file is not ours to write: it would
            // change the whole system, so it is tried only where the new namespace began with its own count.
            namespaces::limit_tasks(task_limit(limits));
        }
    }
}

/// In the process that becomes the tool: gives up everything that is not allowed. `protected_pids` are the processes that
/// must be out of its reach where no namespace hides them. Also returns the descriptor at which the supervisor hears of
/// connections, where the kernel has one.
pub(crate) fn lock_down(
    confinement: &Confinement,
    state: &IsolationState,
    protected_pids: &[i32],
) -> Result<(Vec<ReceiptRow>, Option<OwnedFd>), String> {
    let mut rows = vec![privileges::drop_capabilities(confinement, state)?];
    let landlock = landlock::lock_down(confinement, state, &mut rows)?;
    let listener = seccomp::apply(confinement, state, landlock, protected_pids, &mut rows);
    Ok((rows, listener))
}

/// What is missing, if that is to be refused.
pub(crate) fn missing_rules(confinement: &Confinement, rows: Vec<ReceiptRow>) -> Option<String> {
    match confinement.on_missing {
        MissingRulePolicy::Warn => None,
        MissingRulePolicy::Refuse => Receipt::from_rows(rows)
            .describe_unenforced()
            .map(|rules| format!("nothing here enforces: {rules}")),
    }
}

/// The hard bound of tasks, threads included, for a bound of processes.
pub(crate) fn task_limit(limits: &ProcessLimits) -> u64 {
    (u64::from(limits.processes) * 8).max(1024)
}
