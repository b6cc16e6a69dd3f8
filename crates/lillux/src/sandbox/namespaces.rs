//! Namespaces: a process tree, mounts, interprocess memory and a network of the run's own.

use std::io::{self, Write};

use rustix::mount::MountPropagationFlags;
use rustix::process::WaitOptions;
use rustix::thread::UnshareFlags;

use super::{IsolationState, Mechanism, ReceiptRow, SandboxRule};
use crate::process::{ForkResult, exit_immediately, fork, unshare};

/// Enters new namespaces. Without the privilege to do so directly, it tries through a user namespace.
pub(crate) fn enter(state: &mut IsolationState) {
    let flags = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC;
    let entered = match unshare(flags) {
        Ok(()) => {
            state.has_mount_namespace = make_mounts_slave().is_ok();
            Ok(())
        }
        // Tried in a process that is thrown away: some systems grant the namespace but no rights inside it, and
        // there is no way back out of one.
        Err(_) => enter_user_namespace(flags).map(|()| {
            state.has_user_namespace = true;
            state.has_mount_namespace = true;
        }),
    };
    match entered {
        Ok(()) => state.has_pid_namespace = true,
        Err(error) => {
            let detail = format!("namespaces are not allowed here: {error}");
            state.rows.push(ReceiptRow::new(
                SandboxRule::OtherProcesses,
                Mechanism::PidNamespace,
                false,
                detail,
            ));
        }
    }
}

/// Leaves shared memory, semaphores and queues for new ones.
pub(crate) fn enter_ipc_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWIPC)
}

/// Leaves the network for one with nothing in it, where that is allowed.
pub(crate) fn enter_network_namespace(state: &mut IsolationState) {
    state.has_network_namespace = state.has_pid_namespace && unshare(UnshareFlags::NEWNET).is_ok();
    let is_enforced = state.has_network_namespace;
    let detail = if is_enforced { "a network with nothing in it" } else { "not allowed here" };
    state.rows.push(ReceiptRow::new(SandboxRule::Network, Mechanism::NetworkNamespace, is_enforced, detail));
}

/// A process tree of its own without further change, for those who need no user namespace for it.
pub(crate) fn enter_pid_namespace(state: &mut IsolationState) {
    if unshare(UnshareFlags::NEWNS | UnshareFlags::NEWPID).is_ok() {
        state.has_pid_namespace = true;
        state.has_mount_namespace = make_mounts_private().is_ok();
    }
}

fn enter_user_namespace(flags: UnshareFlags) -> io::Result<()> {
    let flags = flags | UnshareFlags::NEWUSER;
    match fork()? {
        ForkResult::Child => exit_immediately(i32::from(unshare_and_map_user(flags).is_err())),
        ForkResult::Parent(pid) => {
            let status = rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
            if status.is_none_or(|(_, status)| status.exit_status() != Some(0)) {
                return Err(io::Error::other("user namespaces are restricted"));
            }
        }
    }
    unshare_and_map_user(flags)
}

/// Everybody is in the new namespace who they were outside.
fn unshare_and_map_user(flags: UnshareFlags) -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(flags)?;
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("{user} {user} 1"))?;
    write("/proc/self/gid_map", &format!("{group} {group} 1"))?;
    make_mounts_slave()
}

/// What is mounted from here on is seen by this run alone; it still sees what the system mounts.
fn make_mounts_slave() -> io::Result<()> {
    Ok(rustix::mount::mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// Mounts from here on are private to this mount namespace.
pub(crate) fn make_mounts_private() -> io::Result<()> {
    Ok(rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// Bounds the number of tasks where the kernel counts them per namespace: there, a new one's bound is not the system's.
pub(crate) fn limit_tasks(count: u64) {
    let version = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = version.split(|character: char| !character.is_ascii_digit()).map(str::parse::<u32>);
    if let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next())
        && (major, minor) >= (6, 14)
    {
        // The counting supervisor is the bound that is promised; this one only slows a flood down.
        let _ = write("/proc/sys/kernel/pid_max", &count.to_string());
    }
}

fn write(path: &str, text: &str) -> io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}
