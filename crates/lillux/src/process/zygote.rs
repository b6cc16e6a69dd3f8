//! The source: a process that forks launchers for as long as its caller lives. It is begun once, is small, and never
//! sees an order; what it forks is as new as a program that was just begun, at a tenth of the price.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions};

use super::fork::{ForkResult, fork, set_cloexec_all};
use super::protocol::{self, LauncherRole};
use super::supervisor;

/// A launcher that was forked.
struct ForkedLauncher {
    pid: Pid,
    exit: OwnedFd,
}

/// Forks launchers until the caller is gone. Returns in the source, and in each launcher when that is done.
pub(super) fn serve(socket: OwnedFd) -> i32 {
    // A Ctrl-C at the terminal is the caller's business.
    if rustix::process::setsid().is_err() {
        return 2;
    }
    let mut forked: Vec<ForkedLauncher> = Vec::new();
    loop {
        let mut polled = vec![PollFd::new(&socket, PollFlags::IN)];
        polled.extend(forked.iter().map(|forked| PollFd::new(&forked.exit, PollFlags::IN)));
        // An interrupted wait is a short one.
        let _ = rustix::event::poll(&mut polled, None);
        let has_request = !polled[0].revents().is_empty();
        drop(polled);
        forked.retain(|forked| {
            matches!(rustix::process::waitpid(Some(forked.pid), WaitOptions::NOHANG), Ok(None))
        });
        if !has_request {
            continue;
        }
        let Ok((role, control)) = protocol::receive_role(&socket) else {
            return 0;
        };
        match fork() {
            Ok(ForkResult::Child) => {
                drop((socket, forked));
                return run_forked(role, &control);
            }
            Ok(ForkResult::Parent(pid)) => {
                // What cannot be watched is collected when the source ends.
                if let Ok(exit) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
                    forked.push(ForkedLauncher { pid, exit });
                }
            }
            // The caller hears of it when its socket closes.
            Err(_) => {}
        }
    }
}

/// The launcher that a caller forked from itself: it keeps nothing of the caller's.
pub(super) fn run_forked_by_caller(control: &OwnedFd) -> i32 {
    let detach = || -> io::Result<()> {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        rustix::process::chdir("/")?;
        set_cloexec_all()
    };
    if detach().is_err() {
        return 2;
    }
    run_forked(LauncherRole::Isolated, control)
}

fn run_forked(role: LauncherRole, control: &OwnedFd) -> i32 {
    let own = rustix::process::getpid();
    let Ok(exit) = rustix::process::pidfd_open(own, PidfdFlags::empty()) else {
        return 2;
    };
    if protocol::send_hello(control, own, &exit).is_err() {
        return 2;
    }
    drop(exit);
    supervisor::run_launcher(role, control)
}
