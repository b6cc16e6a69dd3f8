//! Telling without looking that files have not changed: the kernel reports changes of files and folders that are
//! watched (`inotify`). A report is there before the call that made the change returns.
//!
//! It says only that something may have changed; what it was is left to the caller. Changes through a memory map or
//! another name of a file, and those of another machine on a shared file system, are not reported.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

/// The most files and folders watched at one time: the kernel counts those of all processes of a user.
const MAX_WATCHES: usize = 4096;

/// Every change of a file, or of the names in a folder.
const CHANGES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO);

/// The watched files and folders of a process.
#[derive(Debug)]
pub struct ChangeMonitor(Mutex<MonitorState>);

#[derive(Debug)]
struct MonitorState {
    inotify: OwnedFd,
    change_count: u64,
    /// How many guards watch each.
    uses: HashMap<i32, usize>,
}

/// Files and folders that are watched until this is dropped.
#[derive(Debug)]
pub struct WatchedPaths {
    monitor: &'static ChangeMonitor,
    watches: Vec<i32>,
}

impl ChangeMonitor {
    /// The monitor of this process; `None` where the kernel gives none.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<ChangeMonitor>> = OnceLock::new();
        SHARED.get_or_init(Self::open).as_ref()
    }

    fn open() -> Option<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        Some(Self(Mutex::new(MonitorState { inotify, change_count: 0, uses: HashMap::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, MonitorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches what these paths lead to now; `None` when one of them cannot be watched.
    pub fn watch<'a>(&'static self, paths: impl IntoIterator<Item = &'a Path>) -> Option<WatchedPaths> {
        let mut watched = WatchedPaths { monitor: self, watches: Vec::new() };
        let is_watched = paths.into_iter().all(|path| watched.add(path));
        is_watched.then_some(watched)
    }

    /// A number that is another one after each reported change.
    pub fn change_count(&self) -> u64 {
        let mut buffer = [0; 4096];
        // Held meanwhile: a report that another caller has read counts for this one too.
        let mut state = self.lock();
        loop {
            match rustix::io::read(&state.inotify, &mut buffer) {
                Ok(count) if count > 0 => state.change_count += 1,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return state.change_count,
                // What cannot be read may be a report.
                Ok(_) | Err(_) => {
                    state.change_count += 1;
                    return state.change_count;
                }
            }
        }
    }
}

impl WatchedPaths {
    /// Watches what one more path leads to; whether it can be watched.
    pub fn add(&mut self, path: &Path) -> bool {
        let mut state = self.monitor.lock();
        if state.uses.len() >= MAX_WATCHES {
            return false;
        }
        let Ok(watch) = inotify::add_watch(&state.inotify, path, CHANGES) else { return false };
        *state.uses.entry(watch).or_default() += 1;
        self.watches.push(watch);
        true
    }
}

impl Drop for WatchedPaths {
    fn drop(&mut self) {
        let mut state = self.monitor.lock();
        for watch in &self.watches {
            let Some(uses) = state.uses.get_mut(watch) else { continue };
            *uses -= 1;
            if *uses == 0 {
                state.uses.remove(watch);
                // The kernel has removed it already if the file is gone.
                let _ = inotify::remove_watch(&state.inotify, *watch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{self, FileMode};

    /// A monitor that no other test's changes reach.
    fn monitor() -> &'static ChangeMonitor {
        Box::leak(Box::new(ChangeMonitor::open().expect("a monitor")))
    }

    #[test]
    fn each_kind_of_change_is_reported_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        file::write_atomic(&path, b"one", FileMode::Preserve).expect("written");
        let monitor = monitor();
        let watched = monitor.watch([path.as_path(), folder.path()]).expect("watched");
        let mut last = monitor.change_count();
        let mut is_reported =
            || std::mem::replace(&mut last, monitor.change_count()) != monitor.change_count();
        assert!(!is_reported());
        file::write_atomic(&path, b"two", FileMode::Preserve).expect("replaced");
        assert!(is_reported() && !is_reported());
        file::write_atomic(&folder.path().join("new"), b"", FileMode::Preserve).expect("created");
        assert!(is_reported());
        file::remove(&folder.path().join("new")).expect("removed");
        assert!(is_reported() && !is_reported());
        drop(watched);
    }

    #[test]
    fn unwatched_files_are_not_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let monitor = monitor();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        for path in [&one, &other] {
            file::create_dirs(path, false).expect("a folder");
        }
        let watched = [monitor.watch([one.as_path()]), monitor.watch([one.as_path()])];
        let before = monitor.change_count();
        file::create_dirs(&other.join("below"), false).expect("a folder");
        assert_eq!(monitor.change_count(), before);
        let [first, second] = watched;
        drop(first);
        file::create_dirs(&one.join("below"), false).expect("a folder");
        assert_ne!(monitor.change_count(), before, "the second guard still watches it");
        drop(second);
        assert!(monitor.lock().uses.is_empty());
        assert!(monitor.watch([folder.path().join("absent").as_path()]).is_none());
    }
}
