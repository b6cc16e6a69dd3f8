//! The filter of system calls: what no tool needs and attacks begin with.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use libc::c_long;

use super::bpf::{ArgCondition, ArgTest, SyscallAction, SyscallRule, compile};
use super::landlock::LandlockState;
use super::{Confinement, IsolationState, Mechanism, NetworkAccess, ReceiptRow, SandboxRule};
use crate::process::raw;

type SyscallRules = BTreeMap<u32, SyscallRule>;

/// Always refused.
const DENIED_SYSCALLS: &[c_long] = &[
    // Into other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Into the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_syslog,
    LSM_SET_SELF_ATTR,
    // Keys.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    STATMOUNT,
    LISTMOUNT,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Files without a path.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_fanotify_init,
    // The machine.
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_acct,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// What changes the resources of the process that its first argument names; 0 is the caller.
const RESOURCE_SYSCALLS: &[c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setaffinity,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

/// Memory, semaphores and queues that all programs of a user share, where a run has none of its own.
const SHARED_MEMORY_SYSCALLS: &[c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// New namespaces by `clone`.
const NAMESPACE_FLAGS: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// What puts words into a terminal as if typed.
const TTY_INJECTION_IOCTLS: [u32; 2] = [0x5412, 0x541c];

/// Asking what personality one has is fine, and so is the ordinary one.
const ALLOWED_PERSONALITIES: [u32; 2] = [0, 0xffff_ffff];

/// The set-uid and set-gid bits.
const SET_ID_BITS: u32 = 0o6000;

/// Flags of `open` with which a mode counts: `O_CREAT`, and the bit of `O_TMPFILE` that is not `O_DIRECTORY`.
const CREATE_FLAGS: u32 = 0o100 | 0o20_000_000;

/// `fchmodat2`, which has this number on every architecture.
const FCHMODAT2: c_long = 452;

/// Calls that tell of mounts, and the one that changes a process's security label: each has its number on every architecture.
const STATMOUNT: c_long = 457;
const LISTMOUNT: c_long = 458;
const LSM_SET_SELF_ATTR: c_long = 460;

/// The bit that datagram and raw types of sockets have, and streams and packet sequences have not.
const DATAGRAM_BIT: u32 = 0b10;

/// Restricts this process for good, and tells of it. Returns where the supervisor hears of connections.
pub(crate) fn apply(
    confinement: &Confinement,
    state: &IsolationState,
    landlock: LandlockState,
    protected_pids: &[i32],
    rows: &mut Vec<ReceiptRow>,
) -> Option<OwnedFd> {
    let needs_signal_rules = !state.has_pid_namespace && landlock.abi < 6;
    // In a process tree of its own, the supervisor is the first process.
    let protected_pids = ProtectedProcesses {
        supervisors: if state.has_pid_namespace { vec![1] } else { protected_pids.to_vec() },
        denies_signals: needs_signal_rules,
        denies_sharing: !state.has_pid_namespace,
    };
    let reported = compile(&build_rules(confinement.network, UnixSocketPolicy::Brokered, &protected_pids))
        .and_then(|program| {
            raw::apply_filter_with_listener(&program)
                .map_err(|error| format!("refused by the kernel: {error}"))
        });
    // Where connections cannot be reported, no UNIX socket is made at all.
    let (sockets, outcome, listener) = match reported {
        Ok(listener) => (UnixSocketPolicy::Brokered, Ok(()), Some(listener)),
        Err(_) => {
            let program =
                compile(&build_rules(confinement.network, UnixSocketPolicy::Denied, &protected_pids));
            let applied = program.and_then(|program| {
                seccompiler::apply_filter(&program).map_err(|error| format!("refused by the kernel: {error}"))
            });
            (UnixSocketPolicy::Denied, applied, None)
        }
    };
    let is_enforced = outcome.is_ok();
    let mut push_row = |rule, detail: &str| {
        let detail = outcome.as_ref().err().map_or(detail, String::as_str);
        rows.push(ReceiptRow::new(rule, Mechanism::Seccomp, is_enforced, detail));
    };
    push_row(SandboxRule::SystemCalls, "tracing, mounts, namespaces, keys, kernel interfaces");
    push_row(SandboxRule::SetId, "no set-uid or set-gid bit can be set");
    if confinement.network == NetworkAccess::Closed {
        push_row(SandboxRule::Network, "no internet sockets");
    }
    match sockets {
        UnixSocketPolicy::Brokered => {
            push_row(SandboxRule::UnixSockets, "pairs, the run's own, and allowed ones")
        }
        UnixSocketPolicy::Denied => push_row(
            SandboxRule::UnixSockets,
            "socket pairs only: this system cannot distinguish other sockets",
        ),
    }
    if !state.has_pid_namespace {
        push_row(
            SandboxRule::OtherProcesses,
            "no shared memory, queues or priorities of others; their command lines are readable",
        );
    }
    if needs_signal_rules {
        push_row(SandboxRule::OtherProcesses, "no signals to the supervisors and to everybody at once");
    }
    if state.has_pid_namespace {
        let is_hidden = state.has_own_proc || landlock.abi > 0;
        let detail =
            if state.has_own_proc { "others are not there" } else { "others are seen but out of reach" };
        rows.push(ReceiptRow::new(SandboxRule::OtherProcesses, Mechanism::PidNamespace, is_hidden, detail));
    }
    listener
}

/// Processes that hold the run to its rules.
struct ProtectedProcesses {
    supervisors: Vec<i32>,
    /// Whether signals to them are refused here, since nothing else does.
    denies_signals: bool,
    /// Whether other processes of the user share the process tree and System V's memory with the run.
    denies_sharing: bool,
}

/// What happens to UNIX sockets that are not pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnixSocketPolicy {
    /// They can be made, and the supervisor decides where they connect to.
    Brokered,
    Denied,
}

/// What is refused, by number of the system call.
fn build_rules(
    network: NetworkAccess,
    sockets: UnixSocketPolicy,
    protected: &ProtectedProcesses,
) -> SyscallRules {
    let mut all = SyscallRules::new();
    let mut deny = |call: c_long, error: libc::c_int, tests: Vec<ArgTest>| {
        // A number that is none names no call.
        if let Ok(number) = u32::try_from(call) {
            all.insert(number, SyscallRule { action: SyscallAction::Errno(error.cast_unsigned()), tests });
        }
    };
    for call in DENIED_SYSCALLS {
        deny(*call, libc::EPERM, Vec::new());
    }
    let new_namespaces = NAMESPACE_FLAGS.iter().fold(0, |flags, flag| flags | flag.cast_unsigned());
    deny(libc::SYS_clone, libc::EPERM, vec![vec![(0, ArgCondition::HasAnyBit(new_namespaces))]]);
    let typing =
        TTY_INJECTION_IOCTLS.iter().map(|request| vec![(1, ArgCondition::Equals(*request))]).collect();
    deny(libc::SYS_ioctl, libc::EPERM, typing);
    // A lease on a file makes others wait who open it; it needs no more than the right to read.
    let leases = [libc::F_SETLEASE, libc::F_NOTIFY]
        .iter()
        .map(|command| vec![(1, ArgCondition::Equals(command.cast_unsigned()))]);
    deny(libc::SYS_fcntl, libc::EPERM, leases.collect());
    let personalities = ALLOWED_PERSONALITIES.map(|personality| (0, ArgCondition::NotEquals(personality)));
    deny(libc::SYS_personality, libc::EPERM, vec![personalities.to_vec()]);
    if protected.denies_signals {
        deny_signals(&protected.supervisors, &mut deny);
    }
    match protected.denies_sharing {
        true => deny_sharing(&mut deny),
        false => deny_resource_changes(&protected.supervisors, &mut deny),
    }
    // The C libraries then use `clone`, whose flags can be looked at.
    deny(libc::SYS_clone3, libc::ENOSYS, Vec::new());
    deny_set_id(&mut deny);
    let is_not = |family: libc::c_int| (0, ArgCondition::NotEquals(family.cast_unsigned()));
    let mut others = Vec::new();
    if network == NetworkAccess::Open {
        others.extend([libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(is_not));
    }
    if sockets == UnixSocketPolicy::Brokered {
        others.push(is_not(libc::AF_UNIX));
    }
    // Looking up names needs the list of addresses, and nothing else of the kernel's.
    let netlink = vec![
        (0, ArgCondition::Equals(libc::AF_NETLINK.cast_unsigned())),
        (2, ArgCondition::NotEquals(libc::NETLINK_ROUTE.cast_unsigned())),
    ];
    // A datagram can be sent to any address without connecting.
    let datagram = vec![
        (0, ArgCondition::Equals(libc::AF_UNIX.cast_unsigned())),
        (1, ArgCondition::HasAnyBit(DATAGRAM_BIT)),
    ];
    let socket = if others.is_empty() { Vec::new() } else { vec![others, netlink, datagram] };
    deny(libc::SYS_socket, libc::EACCES, socket);
    let pairs = vec![vec![is_not(libc::AF_UNIX)], vec![(1, ArgCondition::HasAnyBit(DATAGRAM_BIT))]];
    deny(libc::SYS_socketpair, libc::EACCES, pairs);
    if sockets == UnixSocketPolicy::Brokered
        && let Ok(number) = u32::try_from(libc::SYS_connect)
    {
        all.insert(number, SyscallRule { action: SyscallAction::Notify, tests: Vec::new() });
    }
    all
}

/// Set-uid and set-gid bits, in every call that takes a mode.
fn deny_set_id(deny: &mut impl FnMut(c_long, libc::c_int, Vec<ArgTest>)) {
    let mode = |argument: u8| vec![vec![(argument, ArgCondition::HasAnyBit(SET_ID_BITS))]];
    let creating = |flags: u8| {
        vec![vec![
            (flags, ArgCondition::HasAnyBit(CREATE_FLAGS)),
            (flags + 1, ArgCondition::HasAnyBit(SET_ID_BITS)),
        ]]
    };
    #[cfg(target_arch = "x86_64")]
    {
        deny(libc::SYS_chmod, libc::EPERM, mode(1));
        deny(libc::SYS_creat, libc::EPERM, mode(1));
        deny(libc::SYS_mknod, libc::EPERM, mode(1));
        deny(libc::SYS_open, libc::EPERM, creating(1));
    }
    deny(libc::SYS_fchmod, libc::EPERM, mode(1));
    deny(libc::SYS_fchmodat, libc::EPERM, mode(2));
    deny(FCHMODAT2, libc::EPERM, mode(2));
    deny(libc::SYS_mknodat, libc::EPERM, mode(2));
    deny(libc::SYS_openat, libc::EPERM, creating(2));
    // Its mode is in memory, which no filter sees. The C libraries then use `openat`.
    deny(libc::SYS_openat2, libc::ENOSYS, Vec::new());
}

/// Signals to the given processes, their groups, and everybody.
fn deny_signals(pids: &[i32], deny: &mut impl FnMut(c_long, libc::c_int, Vec<ArgTest>)) {
    let targets = pids.iter().flat_map(|pid| [*pid, -*pid]).chain([-1]);
    let tests: Vec<ArgTest> =
        targets.map(|pid| vec![(0, ArgCondition::Equals(pid.cast_unsigned()))]).collect();
    for call in [
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_tgkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_pidfd_open,
    ] {
        deny(call, libc::EPERM, tests.clone());
    }
    // A folder of `/proc` serves as a handle of its process.
    deny(libc::SYS_pidfd_send_signal, libc::EPERM, Vec::new());
}

/// Memory, semaphores and queues of other programs, and limits, priorities and processors of any process but the caller.
fn deny_sharing(deny: &mut impl FnMut(c_long, libc::c_int, Vec<ArgTest>)) {
    for call in SHARED_MEMORY_SYSCALLS {
        deny(*call, libc::EPERM, Vec::new());
    }
    let others = |argument: u8| vec![(argument, ArgCondition::NotEquals(0))];
    for call in RESOURCE_SYSCALLS {
        deny(*call, libc::EPERM, vec![others(0)]);
    }
    // The first argument says whether the second is a process, a group or a user.
    for (call, process) in [(libc::SYS_setpriority, 0), (libc::SYS_ioprio_set, 1)] {
        deny(call, libc::EPERM, vec![vec![(0, ArgCondition::NotEquals(process))], others(1)]);
    }
}

/// Limits, priorities and processors of the given processes: a supervisor without descriptors or time holds nothing.
fn deny_resource_changes(pids: &[i32], deny: &mut impl FnMut(c_long, libc::c_int, Vec<ArgTest>)) {
    let named = |argument: u8| -> Vec<ArgTest> {
        pids.iter().map(|pid| vec![(argument, ArgCondition::Equals(pid.cast_unsigned()))]).collect()
    };
    for call in RESOURCE_SYSCALLS {
        deny(*call, libc::EPERM, named(0));
    }
    for call in [libc::SYS_setpriority, libc::SYS_ioprio_set] {
        deny(call, libc::EPERM, named(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protected(supervisors: &[i32]) -> ProtectedProcesses {
        ProtectedProcesses {
            supervisors: supervisors.to_vec(),
            denies_signals: true,
            denies_sharing: supervisors.len() > 1,
        }
    }

    #[test]
    fn every_filter_compiles() {
        for network in [NetworkAccess::Open, NetworkAccess::Closed] {
            for sockets in [UnixSocketPolicy::Brokered, UnixSocketPolicy::Denied] {
                let rules = build_rules(network, sockets, &protected(&[1, 2]));
                assert!(rules.len() > DENIED_SYSCALLS.len());
                assert!(compile(&rules).is_ok());
            }
        }
    }

    #[test]
    fn each_syscall_has_one_rule() {
        let all = build_rules(NetworkAccess::Open, UnixSocketPolicy::Brokered, &protected(&[7]));
        let rule = |call: c_long| all.get(&u32::try_from(call).expect("a number")).expect("a refusal");
        let (kill, clone) = (rule(libc::SYS_kill), rule(libc::SYS_clone));
        assert_eq!(kill.tests.len(), 3, "the process, its group, and everybody");
        assert_eq!(clone.tests, [[(0, ArgCondition::HasAnyBit(0x7e02_0000))]]);
        assert!(rule(libc::SYS_ptrace).tests.is_empty(), "always");
    }
}
