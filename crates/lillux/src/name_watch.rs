//! Waiting until a name in one of several folders changes (`inotify`).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A name that is written, made or moved to.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ONLYDIR);

/// Watches folders for changes of one name.
#[derive(Debug)]
pub struct NameWatch {
    inotify: OwnedFd,
    name: &'static str,
}

impl NameWatch {
    /// Watches these folders.
    ///
    /// # Errors
    /// When the kernel has no watch left, or a folder cannot be watched.
    pub fn new<'a>(name: &'static str, folders: impl IntoIterator<Item = &'a Path>) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        for folder in folders {
            inotify::add_watch(&inotify, folder, CHANGES)?;
        }
        Ok(Self { inotify, name })
    }

    /// Waits until the name has changed, one of `others` can be read, or the time is over.
    pub fn wait(watch: Option<&Self>, others: &[BorrowedFd<'_>], timeout: Option<Duration>) {
        loop {
            let mut descriptors: Vec<PollFd<'_>> =
                others.iter().map(|other| PollFd::new(other, PollFlags::IN)).collect();
            descriptors.extend(watch.map(|watch| PollFd::new(&watch.inotify, PollFlags::IN)));
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            match poll(&mut descriptors, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let is_other = descriptors.iter().take(others.len()).any(|other| !other.revents().is_empty());
            if is_other || watch.is_none_or(Self::has_changed) {
                return;
            }
        }
    }

    /// Reads what the kernel reports; whether the name is among it, or may be.
    fn has_changed(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut has_changed = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(std::ffi::CStr::to_bytes);
                    has_changed |= name.is_none_or(|name| name == self.name.as_bytes());
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return has_changed,
                // What cannot be read may be a report.
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CancelToken, file};
    use std::os::fd::AsFd;

    #[test]
    fn waits_for_the_name_or_another_descriptor() {
        let folder = tempfile::tempdir().expect("a folder");
        let watch = NameWatch::new("index", [folder.path()]).expect("a watch");
        file::replace_unsynced(&folder.path().join("other"), b"1").expect("written");
        assert!(!watch.has_changed());
        file::replace_unsynced(&folder.path().join("index"), b"1").expect("written");
        NameWatch::wait(Some(&watch), &[], None);
        let cancel = CancelToken::new().expect("an event");
        cancel.cancel();
        NameWatch::wait(Some(&watch), &[cancel.as_fd()], None);
        NameWatch::wait(None, &[], Some(Duration::from_millis(1)));
        assert!(NameWatch::new("index", [folder.path().join("absent").as_path()]).is_err());
    }
}
