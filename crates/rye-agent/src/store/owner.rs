//! Which process runs a thread, and whether it still lives.

use std::path::Path;

use rustix::process::{Pid, test_kill_process};

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

impl Owner {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            pid_start: process_start(pid).unwrap_or(0),
            boot_id: boot_id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// Whether the process is certainly gone, seen from `observer`, a process that runs here. What cannot be known is
    /// taken to live: another machine's processes, and those that are not ours to ask.
    #[must_use]
    pub fn is_gone(&self, observer: &Self) -> bool {
        self.liveness(observer) == Liveness::Gone
    }

    /// Whether the process lives, as far as `observer`, a process that runs here, can tell.
    #[must_use]
    pub fn liveness(&self, observer: &Self) -> Liveness {
        if self.host != observer.host {
            return Liveness::Unknown;
        }
        if !self.boot_id.is_empty() && !observer.boot_id.is_empty() && self.boot_id != observer.boot_id {
            return Liveness::Gone;
        }
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Liveness::Gone;
        };
        let is_another =
            || self.pid_start != 0 && process_start(self.pid).is_some_and(|start| start != self.pid_start);
        match test_kill_process(pid) {
            Err(rustix::io::Errno::SRCH) => Liveness::Gone,
            // Refused means that somebody has the number; its start tells who.
            Ok(()) | Err(_) if is_another() => Liveness::Gone,
            Ok(()) | Err(_) => Liveness::Alive,
        }
    }
}

fn boot_id() -> String {
    let read = lillux::file::read_bounded(Path::new("/proc/sys/kernel/random/boot_id"), 256);
    let bytes = read.map(|(bytes, _)| bytes).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default().trim().to_owned()
}

/// When a process started; `None` when the system does not say. One that has ended and is not yet waited for counts as
/// started at another time: it does nothing any more.
fn process_start(pid: u32) -> Option<u64> {
    let (bytes, _) = lillux::file::read_bounded(Path::new(&format!("/proc/{pid}/stat")), 4096).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // The name may hold anything, blanks and brackets too; it ends at the last bracket.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    // The state is field 3, the start field 22.
    let start = fields.nth(18)?.parse().ok()?;
    Some(if matches!(state, "Z" | "X") { u64::MAX } else { start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_process_is_alive() {
        let this = Owner::current();
        assert!(this.pid_start > 0 && !this.boot_id.is_empty());
        assert!(!this.is_gone(&this));
    }

    #[test]
    fn reused_pid_is_another_process() {
        let this = Owner::current();
        assert!(Owner { pid_start: this.pid_start + 1, ..this.clone() }.is_gone(&this));
        assert!(Owner { boot_id: "before".to_owned(), ..this.clone() }.is_gone(&this));
        assert!(Owner { pid: i32::MAX as u32, ..this.clone() }.is_gone(&this));
    }

    #[test]
    fn unknown_process_is_assumed_alive() {
        let this = Owner::current();
        assert!(!Owner { host: "elsewhere".to_owned(), pid: i32::MAX as u32, ..this.clone() }.is_gone(&this));
        let first = Owner { pid: 1, pid_start: process_start(1).unwrap_or(0), ..this.clone() };
        assert!(!first.is_gone(&this), "the first process, which is not ours to end, lives");
    }
}
