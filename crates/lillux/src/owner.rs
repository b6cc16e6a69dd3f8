//! Whom a file belongs to, and who this process is.

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
    String::from_utf8(bytes).ok()
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
    fn only_a_whole_map_knows_all_users() {
        assert!(is_full_uid_map("         0          0 4294967295\n"));
        for map in ["0 1000 1", "1000 1000 1\n", "0 100000 65536", "0 0 1\n1 1 4294967294", ""] {
            assert!(!is_full_uid_map(map), "{map}");
        }
    }
}
