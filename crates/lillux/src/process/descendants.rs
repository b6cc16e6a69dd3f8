//! The descendants of a process: found in `/proc`, counted, ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions};

/// Between looks at processes that are ending but have not ended.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A view of `/proc`, opened before it could be mounted over.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    proc_dir: OwnedFd,
    has_children_files: bool,
}

impl ProcessTree {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open("/proc", flags, Mode::empty())?;
        let has_children_files = read(folder.as_fd(), "thread-self/children").is_ok();
        Ok(Self { proc_dir: folder, has_children_files })
    }

    /// The caller's own number as this `/proc` counts, which in a pid namespace is not what `getpid` says.
    pub(crate) fn own_pid(&self) -> io::Result<i32> {
        let link = rustix::fs::readlinkat(&self.proc_dir, "self", Vec::new())?;
        link.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Every process below `pid`, parents before children. It is a snapshot: processes may come and go meanwhile.
    pub(crate) fn descendants(&self, pid: i32) -> Vec<i32> {
        let pairs = if self.has_children_files { Vec::new() } else { self.parent_pairs() };
        let mut found = Vec::new();
        let mut pending = vec![pid];
        while let Some(parent) = pending.pop() {
            let children = if self.has_children_files {
                self.children(parent)
            } else {
                pairs.iter().filter(|pair| pair.1 == parent).map(|pair| pair.0).collect()
            };
            pending.extend(&children);
            found.extend(children);
        }
        found
    }

    fn children(&self, pid: i32) -> Vec<i32> {
        let mut found = Vec::new();
        for thread in self.list_pids(&format!("{pid}/task")) {
            // A thread that has just ended has no children left: they went to another.
            let text =
                read(self.proc_dir.as_fd(), &format!("{pid}/task/{thread}/children")).unwrap_or_default();
            found.extend(text.split_ascii_whitespace().filter_map(|number| number.parse::<i32>().ok()));
        }
        found
    }

    /// Every process and its parent, for kernels without `children` files.
    fn parent_pairs(&self) -> Vec<(i32, i32)> {
        let parent = |number: i32| {
            let text = read(self.proc_dir.as_fd(), &format!("{number}/stat")).ok()?;
            // The name may hold spaces and brackets; the state and the parent follow the last bracket.
            text.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse().ok()
        };
        self.list_pids(".").into_iter().filter_map(|number| Some((number, parent(number)?))).collect()
    }

    fn list_pids(&self, folder: &str) -> Vec<i32> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::openat(&self.proc_dir, folder, flags, Mode::empty()) else {
            return Vec::new();
        };
        let Ok(entries) = rustix::fs::Dir::read_from(&folder) else {
            return Vec::new();
        };
        entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().to_str().ok().and_then(|name| name.parse().ok()))
            .collect()
    }

    /// Ends every descendant of the caller, which must be a subreaper. Returns when none is left: a tool that forks
    /// without pause is outrun, never given up on.
    pub(crate) fn kill_all(&self, own: i32) {
        let own_group = rustix::process::getpgrp();
        loop {
            let found: Vec<Pid> = self.descendants(own).into_iter().filter_map(Pid::from_raw).collect();
            // One signal to a group reaches all of it at once, whatever it forks: that alone outruns most bombs.
            // A group of a descendant holds descendants only, since the tool began with a session of its own.
            let mut groups: Vec<Pid> =
                found.iter().filter_map(|pid| rustix::process::getpgid(Some(*pid)).ok()).collect();
            groups.sort_by_key(|group| group.as_raw_pid());
            groups.dedup();
            // In each call below it may have ended by itself.
            for group in groups.into_iter().filter(|group| *group != own_group) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            // Stopped first: what is stopped cannot fork while the others are found.
            for signal in [Signal::STOP, Signal::KILL] {
                for pid in &found {
                    let _ = rustix::process::kill_process(*pid, signal);
                }
            }
            if !reap() {
                return;
            }
            if found.is_empty() {
                std::thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}

/// Collects ended children. Says whether the caller still has others.
pub(crate) fn reap() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn read(folder: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    let file = rustix::fs::openat(folder, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut buffer) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
