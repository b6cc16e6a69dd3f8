//! Whom a file belongs to, and who this process is.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::file;

/// The largest file of the system that is read here.
const MAX_BYTES: u64 = 64 << 10;

/// The superuser.
pub const ROOT_UID: u32 = 0;

/// The user this process acts as.
#[must_use]
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What is writable by every user.
const OTHERS_WRITE: u32 = 0o002;
/// What is writable by its group.
const GROUP_WRITES: u32 = 0o020;

/// Why another user could change a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignControl {
    /// It belongs to a user who is neither this one nor root.
    Owner(u32),
    /// Its mode lets other users write.
    Mode(u32),
}

/// Whether and why another user than this one and root could change what `found` describes. A group that bears the
/// number of its user, as most systems make one for each user, counts as that user.
#[must_use]
pub fn foreign_control(found: &Metadata) -> Option<ForeignControl> {
    let own = effective_uid();
    if found.uid() != own && found.uid() != ROOT_UID {
        return Some(ForeignControl::Owner(found.uid()));
    }
    let is_own_group = found.gid() == own || found.gid() == ROOT_UID;
    let is_open = found.mode() & OTHERS_WRITE != 0 || (found.mode() & GROUP_WRITES != 0 && !is_own_group);
    is_open.then_some(ForeignControl::Mode(found.mode() & 0o7777))
}

/// The owner of what lies at `path`; of a link, the link's own.
///
/// # Errors
/// When nothing can be seen there.
pub fn owner_uid(path: &Path) -> io::Result<u32> {
    fs_err::symlink_metadata(path).map(|metadata| metadata.uid())
}

/// The number that every user outside this process's user namespace is shown as; `None` where all users are known.
#[must_use]
pub fn overflow_uid() -> Option<u32> {
    if is_full_uid_map(&read("/proc/self/uid_map")?) {
        return None;
    }
    read("/proc/sys/kernel/overflowuid")?.trim().parse().ok()
}

fn read(path: &str) -> Option<String> {
    let (bytes, _) = file::read_bounded(Path::new(path), MAX_BYTES).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// What the system says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// When it was started, in ticks since the system was.
    pub started: u64,
    /// Whether it has ended and is not waited for yet: it does nothing any more.
    pub has_ended: bool,
}

/// When a process was started, in ticks since the system was. `None` when it is gone, or has ended and is not waited for yet.
#[must_use]
pub fn process_start(pid: u32) -> Option<u64> {
    process_stat(pid).filter(|stat| !stat.has_ended).map(|stat| stat.started)
}

/// What the system says of a process; `None` when it is gone, or when the system does not say.
#[must_use]
pub fn process_stat(pid: u32) -> Option<ProcessStat> {
    let text = read(&format!("/proc/{pid}/stat"))?;
    // The name of the program may hold anything, parentheses included.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    // The state is field 3, the start field 22.
    let has_ended = matches!(fields.next()?, "Z" | "X");
    Some(ProcessStat { started: fields.nth(18)?.parse().ok()?, has_ended })
}

fn is_full_uid_map(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files_belong_to_this_user() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert_eq!(owner_uid(file.path()).expect("an owner"), effective_uid());
        assert!(owner_uid(&file.path().join("absent")).is_err());
    }

    #[test]
    fn open_modes_and_foreign_owners_are_found() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let control = || foreign_control(&std::fs::metadata(file.path()).expect("there"));
        for (mode, expected) in [(0o600, None), (0o644, None), (0o646, Some(0o646)), (0o602, Some(0o602))] {
            file::set_mode(file.path(), mode).expect("a mode");
            assert_eq!(control(), expected.map(ForeignControl::Mode), "{mode:o}");
        }
        file::set_mode(file.path(), 0o660).expect("a mode");
        // Only root gives files away.
        if std::os::unix::fs::chown(file.path(), None, Some(4321)).is_ok() {
            assert_eq!(control(), Some(ForeignControl::Mode(0o660)));
            std::os::unix::fs::chown(file.path(), Some(4321), None).expect("given away");
            assert_eq!(control(), Some(ForeignControl::Owner(4321)));
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the process must not be waited for")]
    fn ended_process_has_no_start() {
        assert!(process_start(std::process::id()).is_some());
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let stat = format!("/proc/{}/stat", child.id());
        let is_ended = || read(&stat).is_some_and(|text| text.contains(") Z "));
        while !is_ended() {
            std::thread::yield_now();
        }
        assert_eq!(process_start(child.id()), None);
        child.wait().expect("its end");
        assert_eq!(process_start(child.id()), None);
    }

    #[test]
    fn only_a_whole_map_knows_all_users() {
        assert!(is_full_uid_map("         0          0 4294967295\n"));
        for map in ["0 1000 1", "1000 1000 1\n", "0 100000 65536", "0 0 1\n1 1 4294967294", ""] {
            assert!(!is_full_uid_map(map), "{map}");
        }
    }
}
