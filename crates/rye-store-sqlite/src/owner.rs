//! Which process this is, and whether another one of this machine still runs.

use std::path::Path;

use lillux::owner::process_stat;
use rustix::process::{Pid, test_kill_process};
use rye_store::{Liveness, Owner, OwnerProbe};

/// Asks the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemProbe;

impl OwnerProbe for SystemProbe {
    fn is_running(&self, owner: &Owner) -> bool {
        let Some(pid) = i32::try_from(owner.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        // Where the system does not say when it was started, it is taken to run.
        let is_another = || {
            owner.pid_start != 0
                && process_stat(owner.pid)
                    .is_some_and(|stat| stat.has_ended || stat.started != owner.pid_start)
        };
        match test_kill_process(pid) {
            Err(rustix::io::Errno::SRCH) => false,
            // Refused means that a process has the number; its start tells which.
            Ok(()) | Err(_) => !is_another(),
        }
    }
}

/// This process.
#[must_use]
pub fn current_owner() -> Owner {
    let pid = std::process::id();
    Owner {
        pid,
        pid_start: process_stat(pid).map_or(0, |stat| stat.started),
        boot_id: boot_id(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}

/// Whether a process is certainly gone, seen from `observer`, a process that runs here. What cannot be known is taken to
/// live: another machine's processes, and those that are not ours to ask.
#[must_use]
pub fn is_owner_gone(owner: &Owner, observer: &Owner) -> bool {
    owner.liveness(observer, &SystemProbe) == Liveness::Gone
}

fn boot_id() -> String {
    let read = lillux::file::read_bounded(Path::new("/proc/sys/kernel/random/boot_id"), 256);
    let bytes = read.map(|(bytes, _)| bytes).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_process_is_alive() {
        let this = current_owner();
        assert!(this.pid_start > 0 && !this.boot_id.is_empty());
        assert!(!is_owner_gone(&this, &this));
    }

    #[test]
    fn reused_pid_is_another_process() {
        let this = current_owner();
        assert!(is_owner_gone(&Owner { pid_start: this.pid_start + 1, ..this.clone() }, &this));
        assert!(is_owner_gone(&Owner { boot_id: "before".to_owned(), ..this.clone() }, &this));
        assert!(is_owner_gone(&Owner { pid: i32::MAX as u32, ..this.clone() }, &this));
    }

    #[test]
    fn unknown_process_is_assumed_alive() {
        let this = current_owner();
        assert!(!is_owner_gone(
            &Owner { host: "elsewhere".to_owned(), pid: i32::MAX as u32, ..this.clone() },
            &this
        ));
        let first =
            Owner { pid: 1, pid_start: process_stat(1).map_or(0, |stat| stat.started), ..this.clone() };
        assert!(!is_owner_gone(&first, &this), "the first process, which is not ours to end, lives");
    }
}
