//! Which process holds the lease on a thread, and whether it still lives.

/// A process, told apart from a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// When it started, in the system's ticks since boot; 0 when the system does not say.
    pub pid_start: u64,
    /// Which boot of the system; empty when the system does not say.
    pub boot_id: String,
    /// The machine or container.
    pub host: String,
}

/// Whether a process still lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It does.
    Alive,
    /// It certainly does not.
    Gone,
    /// It cannot be asked: it is another machine's.
    Unknown,
}

/// Asks the system whether a process of this machine and this boot runs.
pub trait OwnerProbe: Send + Sync {
    /// Whether exactly this process runs, not a later one with its number.
    fn is_running(&self, owner: &Owner) -> bool;
}

impl Owner {
    /// Whether the process lives, as far as `observer`, a process that runs here, can tell.
    #[must_use]
    pub fn liveness(&self, observer: &Self, probe: &dyn OwnerProbe) -> Liveness {
        if self.host != observer.host {
            return Liveness::Unknown;
        }
        if !self.boot_id.is_empty() && !observer.boot_id.is_empty() && self.boot_id != observer.boot_id {
            return Liveness::Gone;
        }
        if probe.is_running(self) { Liveness::Alive } else { Liveness::Gone }
    }
}
