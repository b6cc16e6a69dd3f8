//! What a process may touch, and how the kernel is made to hold it to that.
//!
//! Three steps, each in its own process: the launcher leaves namespaces and lays mounts ([`isolate`]), the supervisor
//! settles inside them ([`settle`]), and the process that becomes the tool gives up the rest ([`restrict`]). What a
//! kernel or a container does not offer is left out and said in the [`Receipt`], unless that is to be refused.

mod filter;
mod mounts;
mod namespaces;
mod paths;
pub mod placeholders;
mod privileges;
mod probe;
mod receipt;
mod system_calls;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::Limits;
use crate::real::RealPaths;

pub use probe::probe;
pub use receipt::{Level, Mechanism, Receipt, Row, Rule};

/// What a process may touch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// What it may read.
    pub read: Reading,
    /// Files and folders it may change. They are real paths: one that leads through a link is refused.
    pub write: Vec<PathBuf>,
    /// What stays as it is although it lies below a folder in `write`. Only what exists is protected.
    pub read_only: Vec<PathBuf>,
    /// Placeholders that exist for the run only ([`placeholders`]). They are read-only as well.
    pub placeholders: Vec<PathBuf>,
    /// Files that the process sees in the place of others, read-only.
    pub replaced: Vec<Replacement>,
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
    pub network: Network,
    /// What happens if a rule cannot be enforced.
    pub on_missing: OnMissing,
    /// Whether namespaces are used.
    pub namespaces: Namespaces,
}

impl Confinement {
    /// A confinement that can read everything, change nothing and reach nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            read: Reading::Everything,
            write: Vec::new(),
            read_only: Vec::new(),
            placeholders: Vec::new(),
            replaced: Vec::new(),
            hidden: Vec::new(),
            homes: Vec::new(),
            visible: Vec::new(),
            visible_links: Vec::new(),
            sockets: SocketAccess::default(),
            network: Network::Closed,
            on_missing: OnMissing::Warn,
            namespaces: Namespaces::Auto,
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
pub enum Reading {
    /// Everything that is not hidden.
    Everything,
    /// These files and folders, and what it may write.
    Only(Vec<PathBuf>),
}

impl Reading {
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
pub enum Network {
    /// Internet sockets.
    Open,
    /// No internet sockets.
    Closed,
}

/// What happens if a rule cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// The process runs, and the receipt says what is missing.
    Warn,
    /// The process does not run.
    Refuse,
}

/// Whether namespaces are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespaces {
    /// Where the system allows them.
    Auto,
    /// Never, as on systems that allow none.
    Avoided,
}

/// What the launcher has made for the processes below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stage {
    pub(crate) has_user_namespace: bool,
    pub(crate) has_mount_namespace: bool,
    pub(crate) has_pid_namespace: bool,
    pub(crate) has_network_namespace: bool,
    /// Whether `/proc` shows the run's own processes only.
    pub(crate) has_own_proc: bool,
    /// Whether `/dev/shm` is the run's own.
    pub(crate) has_own_memory_folder: bool,
    /// Whether `/dev/pts` is the run's own.
    pub(crate) has_own_terminals: bool,
    /// Where the paths of the confinement really are.
    pub(crate) real: RealPlaces,
    /// What mounts protect already.
    pub(crate) covered: Vec<PathBuf>,
    pub(crate) rows: Vec<Row>,
}

impl Stage {
    /// Whether mounts protect everything that is there to be protected, so that no other rule has to.
    pub(crate) fn covers_everything(&self) -> bool {
        let is_covered = |path: &PathBuf| self.covered.contains(path);
        let is_absent = |path: &PathBuf| path.symlink_metadata().is_err();
        let mut hidden = self.real.hidden.iter().chain(&self.real.homes);
        let mut read_only = self.real.read_only.iter().filter(|path| !is_absent(path));
        // What is absent may still be made where the run may write.
        let is_closed = |path: &PathBuf| is_covered(path) || (is_absent(path) && !self.is_writable(path));
        self.has_own_proc && hidden.all(is_closed) && read_only.all(is_covered)
    }

    /// Whether the run may make this path.
    fn is_writable(&self, path: &Path) -> bool {
        self.real.write.iter().any(|root| path.starts_with(root))
    }

    /// What lost the mount over it: whoever removes or replaces a file takes its mounts along.
    pub(crate) fn uncovered(&self) -> Option<&PathBuf> {
        self.covered.iter().find(|path| !mounts::is_mount(path))
    }
}

/// Where the paths of a confinement really are, links and what they lead to, looked up once.
#[derive(Clone, Debug, Default)]
pub(crate) struct RealPlaces {
    pub(crate) write: Vec<PathBuf>,
    pub(crate) hidden: Vec<PathBuf>,
    pub(crate) read_only: Vec<PathBuf>,
    pub(crate) homes: Vec<PathBuf>,
    pub(crate) visible: Vec<PathBuf>,
}

impl RealPlaces {
    fn of(confinement: &Confinement) -> Self {
        let mut known = RealPaths::default();
        let mut real =
            |paths: &[PathBuf]| paths.iter().flat_map(|path| paths::places(path, &mut known)).collect();
        let (hidden, read_only) = (real(&confinement.hidden), real(&confinement.read_only));
        let visible = confinement.visible.clone();
        let mut homes: Vec<PathBuf> = real(&confinement.homes);
        // A home that is to be seen as a whole is not closed, and one inside another needs no second mask.
        let is_seen =
            |home: &PathBuf| visible.iter().chain(&confinement.write).any(|path| home.starts_with(path));
        homes.retain(|home| home.parent().is_some() && !is_seen(home));
        homes.sort();
        homes.dedup();
        let outer = homes.clone();
        homes.retain(|home| !outer.iter().any(|other| home != other && home.starts_with(other)));
        Self { write: confinement.write.clone(), hidden, read_only, homes, visible }
    }
}

/// In the launcher: leaves the namespaces and lays the mounts that are to be had.
pub(crate) fn isolate(confinement: &Confinement) -> Result<Stage, String> {
    let mut stage = Stage::default();
    if confinement.namespaces == Namespaces::Auto {
        namespaces::enter(&mut stage);
    }
    isolate_for(&mut stage, confinement, Timing::Now)?;
    Ok(stage)
}

/// In a launcher that does not know yet what it will run: leaves the namespaces that every confinement leaves, if they
/// are to be had. What is mounted on the system is still heard of.
pub(crate) fn isolate_ahead() -> Option<Stage> {
    let mut stage = Stage::default();
    namespaces::enter(&mut stage);
    stage.has_pid_namespace.then_some(stage)
}

/// In a supervisor that does not know yet what it will run: a `/proc` and a memory folder of its own.
pub(crate) fn settle_ahead(stage: &mut Stage) {
    if stage.has_mount_namespace {
        stage.has_own_proc = stage.has_pid_namespace && mounts::mount_proc().is_ok();
        stage.has_own_memory_folder = mounts::mount_memory_folder().is_ok();
        stage.has_own_terminals = mounts::mount_terminals().is_ok();
    }
}

/// Whether the run that is prepared has its order, and with it its placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// The order is there.
    Now,
    /// The order comes later.
    Ahead,
}

/// Does the rest of isolating, once it is known what for.
pub(crate) fn isolate_for(
    stage: &mut Stage,
    confinement: &Confinement,
    timing: Timing,
) -> Result<(), String> {
    paths::check(confinement)?;
    stage.real = RealPlaces::of(confinement);
    if confinement.namespaces == Namespaces::Auto && confinement.network == Network::Closed {
        namespaces::leave_network(stage);
    }
    // From here on, what is mounted elsewhere must not change what is seen.
    stage.has_mount_namespace = stage.has_mount_namespace && namespaces::mount_privately().is_ok();
    if stage.has_mount_namespace {
        mounts::lay(stage, confinement)?;
    } else {
        let detail = "nothing keeps modes, owners and times without a mount namespace";
        stage.rows.push(Row::new(Rule::Metadata, Mechanism::MountNamespace, false, detail));
    }
    if timing == Timing::Now {
        cover_placeholders(stage, confinement)?;
    }
    Ok(())
}

/// In the supervisor, once the order and with it the placeholders are there: makes them read-only.
pub(crate) fn cover_placeholders(stage: &Stage, confinement: &Confinement) -> Result<(), String> {
    if stage.has_mount_namespace { mounts::cover_placeholders(&confinement.placeholders) } else { Ok(()) }
}

/// In a supervisor whose run is over and left nobody: what the run could have left in memory goes, too.
pub(crate) fn renew(stage: &Stage) -> Result<(), String> {
    let refused = |error: std::io::Error| format!("what was laid out cannot be used again: {error}");
    namespaces::leave_shared_memory().map_err(refused)?;
    if stage.has_own_memory_folder {
        mounts::renew_memory_folder().map_err(refused)?;
    }
    if stage.has_own_terminals {
        mounts::renew_terminals().map_err(refused)?;
    }
    Ok(())
}

/// In the launcher, where nothing is to be confined: a process tree of its own, for those who may make one.
pub(crate) fn gather() -> Stage {
    let mut stage = Stage::default();
    namespaces::enter_for_supervision(&mut stage);
    stage
}

/// In the supervisor: a `/proc` that shows the new process tree, and a hard bound of its size.
pub(crate) fn settle(stage: &mut Stage, limits: &Limits) {
    if stage.has_pid_namespace && stage.has_mount_namespace {
        stage.has_own_proc = stage.has_own_proc || mounts::mount_proc().is_ok();
        if stage.has_own_proc {
            // Only newer kernels count per namespace. Where they do not, this file is not ours to write: it would
            // change the whole system, so it is tried only where the new namespace began with its own count.
            namespaces::bound_tasks(tasks(limits));
        }
    }
}

/// In the process that becomes the tool: gives up everything that is not allowed. `guarded` are the processes that
/// must be out of its reach where no namespace hides them. Also returns the descriptor at which the supervisor hears of
/// connections, where the kernel has one.
pub(crate) fn restrict(
    confinement: &Confinement,
    stage: &Stage,
    guarded: &[i32],
) -> Result<(Vec<Row>, Option<OwnedFd>), String> {
    let mut rows = vec![privileges::drop_all(confinement, stage)?];
    let landlock = paths::restrict(confinement, stage, &mut rows)?;
    let listener = system_calls::restrict(confinement, stage, landlock, guarded, &mut rows);
    Ok((rows, listener))
}

/// What is missing, if that is to be refused.
pub(crate) fn missing(confinement: &Confinement, rows: Vec<Row>) -> Option<String> {
    match confinement.on_missing {
        OnMissing::Warn => None,
        OnMissing::Refuse => {
            Receipt::of(rows).shortfall().map(|rules| format!("nothing here enforces: {rules}"))
        }
    }
}

/// The hard bound of tasks, threads included, for a bound of processes.
pub(crate) fn tasks(limits: &Limits) -> u64 {
    (u64::from(limits.processes) * 8).max(1024)
}
