//! The system calls without a safe form: `fork`, `unshare`, `close_range`, `_exit`, and `fcntl` on a descriptor that is
//! known by its number alone. Beside `raw.rs`, nothing else in the workspace is `unsafe`.
#![expect(unsafe_code, reason = "these calls have no safe form")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Which side of a fork the caller finds itself on.
#[derive(Debug)]
pub(crate) enum ForkResult {
    /// The new process.
    Child,
    /// The old one, and the child it now has.
    Parent(Pid),
}

/// Splits this process in two. Only a process that has one thread may call it: the launcher, which never starts another,
/// and a program at the beginning of its `main`.
pub(crate) fn fork() -> io::Result<ForkResult> {
    // SAFETY: the caller has one thread (nothing of `main` has run), so no lock can be held by a thread
    // that does not exist in the child, and the child may continue as an ordinary process.
    let result = unsafe { libc::fork() };
    match result {
        -1 => Err(io::Error::last_os_error()),
        other => Ok(Pid::from_raw(other).map_or(ForkResult::Child, ForkResult::Parent)),
    }
}

/// Ends this process at once. Nothing is taken apart before, which the kernel does better; what was printed must be flushed.
pub fn exit_immediately(code: i32) -> ! {
    // SAFETY: the call takes any number and does not return; what other threads hold ends with them.
    unsafe { libc::_exit(code) }
}

/// Leaves the given namespaces for new ones.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: only the unsharing of the descriptor table can break others, and it is never asked for.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Marks every descriptor but input, output and error to be closed on exec, including those of other libraries.
pub(crate) fn set_cloexec_all() -> io::Result<()> {
    // The C library of static builds (musl) has no function for it.
    // SAFETY: descriptors stay open and valid; only what happens to them at `exec` changes.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A copy of a descriptor that this process was started with and knows by its number. The copy is owned by the caller.
///
/// # Errors
/// When there is no such descriptor.
pub fn dup_inherited_fd(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes any number, and fails for one that is not a descriptor.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made it, so nothing else owns it.
        copy => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
    }
}
