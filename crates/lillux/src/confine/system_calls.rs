//! The filter of system calls: what no tool needs and attacks begin with.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use libc::c_long;

use super::filter::{Action, Condition, Refusal, Test, compile};
use super::paths::InForce;
use super::{Confinement, Mechanism, Network, Row, Rule, Stage};
use crate::process::raw;

type Refusals = BTreeMap<u32, Refusal>;

/// Always refused.
const REFUSED: &[c_long] = &[
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

/// New namespaces by `clone`.
const NEW_NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// What puts words into a terminal as if typed.
const TYPING: [u32; 2] = [0x5412, 0x541c];

/// Asking what personality one has is fine, and so is the ordinary one.
const PERSONALITIES: [u32; 2] = [0, 0xffff_ffff];

/// The set-uid and set-gid bits.
const SET_ID: u32 = 0o6000;

/// Flags of `open` with which a mode counts: `O_CREAT`, and the bit of `O_TMPFILE` that is not `O_DIRECTORY`.
const MAKES_FILE: u32 = 0o100 | 0o20_000_000;

/// `fchmodat2`, which has this number on every architecture.
const FCHMODAT2: c_long = 452;

/// The bit that datagram and raw types of sockets have, and streams and packet sequences have not.
const DATAGRAM: u32 = 0b10;

/// Restricts this process for good, and tells of it. Returns where the supervisor hears of connections.
pub(crate) fn restrict(
    confinement: &Confinement,
    stage: &Stage,
    landlock: InForce,
    guarded: &[i32],
    rows: &mut Vec<Row>,
) -> Option<OwnedFd> {
    let needs_guard = !stage.has_pid_namespace && landlock.abi < 6;
    // In a process tree of its own, the supervisor is the first process.
    let guarded = Guarded {
        supervisors: if stage.has_pid_namespace { vec![1] } else { guarded.to_vec() },
        has_signals: needs_guard,
    };
    let reported =
        compile(&refusals(confinement.network, UnixSockets::Reported, &guarded)).and_then(|program| {
            raw::apply_filter_with_listener(&program)
                .map_err(|error| format!("refused by the kernel: {error}"))
        });
    // Where connections cannot be reported, no UNIX socket is made at all.
    let (sockets, outcome, listener) = match reported {
        Ok(listener) => (UnixSockets::Reported, Ok(()), Some(listener)),
        Err(_) => {
            let program = compile(&refusals(confinement.network, UnixSockets::Refused, &guarded));
            let applied = program.and_then(|program| {
                seccompiler::apply_filter(&program).map_err(|error| format!("refused by the kernel: {error}"))
            });
            (UnixSockets::Refused, applied, None)
        }
    };
    let is_enforced = outcome.is_ok();
    let mut tell = |rule, detail: &str| {
        let detail = outcome.as_ref().err().map_or(detail, String::as_str);
        rows.push(Row::new(rule, Mechanism::Seccomp, is_enforced, detail));
    };
    tell(Rule::SystemCalls, "tracing, mounts, namespaces, keys, kernel interfaces");
    tell(Rule::SetId, "no set-uid or set-gid bit can be set");
    if confinement.network == Network::Closed {
        tell(Rule::Network, "no internet sockets");
    }
    match sockets {
        UnixSockets::Reported => tell(Rule::UnixSockets, "pairs, the run's own, and allowed ones"),
        UnixSockets::Refused => tell(Rule::UnixSockets, "pairs only: this system cannot tell others apart"),
    }
    if needs_guard {
        tell(Rule::OtherProcesses, "no signals to the supervisors and to everybody at once");
    }
    if stage.has_pid_namespace {
        let is_hidden = stage.has_own_proc || landlock.abi > 0;
        let detail =
            if stage.has_own_proc { "others are not there" } else { "others are seen but out of reach" };
        rows.push(Row::new(Rule::OtherProcesses, Mechanism::PidNamespace, is_hidden, detail));
    }
    listener
}

/// Processes that hold the run to its rules.
struct Guarded {
    supervisors: Vec<i32>,
    /// Whether signals to them are refused here, since nothing else does.
    has_signals: bool,
}

/// What happens to UNIX sockets that are not pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnixSockets {
    /// They can be made, and the supervisor decides where they connect to.
    Reported,
    Refused,
}

/// What is refused, by number of the system call.
fn refusals(network: Network, sockets: UnixSockets, guarded: &Guarded) -> Refusals {
    let mut all = Refusals::new();
    let mut refuse = |call: c_long, error: libc::c_int, tests: Vec<Test>| {
        // A number that is none names no call.
        if let Ok(number) = u32::try_from(call) {
            all.insert(number, Refusal { action: Action::Fail(error.cast_unsigned()), tests });
        }
    };
    for call in REFUSED {
        refuse(*call, libc::EPERM, Vec::new());
    }
    let new_namespaces = NEW_NAMESPACES.iter().fold(0, |flags, flag| flags | flag.cast_unsigned());
    refuse(libc::SYS_clone, libc::EPERM, vec![vec![(0, Condition::HasAny(new_namespaces))]]);
    let typing = TYPING.iter().map(|request| vec![(1, Condition::Is(*request))]).collect();
    refuse(libc::SYS_ioctl, libc::EPERM, typing);
    let personalities = PERSONALITIES.map(|personality| (0, Condition::IsNot(personality)));
    refuse(libc::SYS_personality, libc::EPERM, vec![personalities.to_vec()]);
    if guarded.has_signals {
        guard(&guarded.supervisors, &mut refuse);
    }
    guard_resources(&guarded.supervisors, &mut refuse);
    // The C libraries then use `clone`, whose flags can be looked at.
    refuse(libc::SYS_clone3, libc::ENOSYS, Vec::new());
    refuse_set_id(&mut refuse);
    let is_not = |family: libc::c_int| (0, Condition::IsNot(family.cast_unsigned()));
    let mut others = Vec::new();
    if network == Network::Open {
        others.extend([libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(is_not));
    }
    if sockets == UnixSockets::Reported {
        others.push(is_not(libc::AF_UNIX));
    }
    // Looking up names needs the list of addresses, and nothing else of the kernel's.
    let netlink = vec![
        (0, Condition::Is(libc::AF_NETLINK.cast_unsigned())),
        (2, Condition::IsNot(libc::NETLINK_ROUTE.cast_unsigned())),
    ];
    // A datagram can be sent to any address without connecting.
    let datagram = vec![(0, Condition::Is(libc::AF_UNIX.cast_unsigned())), (1, Condition::HasAny(DATAGRAM))];
    let socket = if others.is_empty() { Vec::new() } else { vec![others, netlink, datagram] };
    refuse(libc::SYS_socket, libc::EACCES, socket);
    let pairs = vec![vec![is_not(libc::AF_UNIX)], vec![(1, Condition::HasAny(DATAGRAM))]];
    refuse(libc::SYS_socketpair, libc::EACCES, pairs);
    if sockets == UnixSockets::Reported
        && let Ok(number) = u32::try_from(libc::SYS_connect)
    {
        all.insert(number, Refusal { action: Action::Report, tests: Vec::new() });
    }
    all
}

/// Set-uid and set-gid bits, in every call that takes a mode.
fn refuse_set_id(refuse: &mut impl FnMut(c_long, libc::c_int, Vec<Test>)) {
    let mode = |argument: u8| vec![vec![(argument, Condition::HasAny(SET_ID))]];
    let making = |flags: u8| {
        vec![vec![(flags, Condition::HasAny(MAKES_FILE)), (flags + 1, Condition::HasAny(SET_ID))]]
    };
    #[cfg(target_arch = "x86_64")]
    {
        refuse(libc::SYS_chmod, libc::EPERM, mode(1));
        refuse(libc::SYS_creat, libc::EPERM, mode(1));
        refuse(libc::SYS_mknod, libc::EPERM, mode(1));
        refuse(libc::SYS_open, libc::EPERM, making(1));
    }
    refuse(libc::SYS_fchmod, libc::EPERM, mode(1));
    refuse(libc::SYS_fchmodat, libc::EPERM, mode(2));
    refuse(FCHMODAT2, libc::EPERM, mode(2));
    refuse(libc::SYS_mknodat, libc::EPERM, mode(2));
    refuse(libc::SYS_openat, libc::EPERM, making(2));
    // Its mode is in memory, which no filter sees. The C libraries then use `openat`.
    refuse(libc::SYS_openat2, libc::ENOSYS, Vec::new());
}

/// Signals to the given processes, their groups, and everybody.
fn guard(guarded: &[i32], refuse: &mut impl FnMut(c_long, libc::c_int, Vec<Test>)) {
    let targets = guarded.iter().flat_map(|pid| [*pid, -*pid]).chain([-1]);
    let tests: Vec<Test> = targets.map(|pid| vec![(0, Condition::Is(pid.cast_unsigned()))]).collect();
    for call in [
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_tgkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_pidfd_open,
    ] {
        refuse(call, libc::EPERM, tests.clone());
    }
    // A folder of `/proc` serves as a handle of its process.
    refuse(libc::SYS_pidfd_send_signal, libc::EPERM, Vec::new());
}

/// Limits, priorities and processors of the given processes: a supervisor without descriptors or time holds nothing.
fn guard_resources(guarded: &[i32], refuse: &mut impl FnMut(c_long, libc::c_int, Vec<Test>)) {
    let named = |argument: u8| -> Vec<Test> {
        guarded.iter().map(|pid| vec![(argument, Condition::Is(pid.cast_unsigned()))]).collect()
    };
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
        libc::SYS_sched_setaffinity,
        libc::SYS_migrate_pages,
        libc::SYS_move_pages,
    ] {
        refuse(call, libc::EPERM, named(0));
    }
    for call in [libc::SYS_setpriority, libc::SYS_ioprio_set] {
        refuse(call, libc::EPERM, named(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(supervisors: &[i32]) -> Guarded {
        Guarded { supervisors: supervisors.to_vec(), has_signals: true }
    }

    #[test]
    fn every_filter_compiles() {
        for network in [Network::Open, Network::Closed] {
            for sockets in [UnixSockets::Reported, UnixSockets::Refused] {
                let refusals = refusals(network, sockets, &guarded(&[1, 2]));
                assert!(refusals.len() > REFUSED.len());
                assert!(compile(&refusals).is_ok());
            }
        }
    }

    #[test]
    fn each_call_is_refused_for_one_reason() {
        let all = refusals(Network::Open, UnixSockets::Reported, &guarded(&[7]));
        let refusal = |call: c_long| all.get(&u32::try_from(call).expect("a number")).expect("a refusal");
        let (kill, clone) = (refusal(libc::SYS_kill), refusal(libc::SYS_clone));
        assert_eq!(kill.tests.len(), 3, "the process, its group, and everybody");
        assert_eq!(clone.tests, [[(0, Condition::HasAny(0x7e02_0000))]]);
        assert!(refusal(libc::SYS_ptrace).tests.is_empty(), "always");
    }
}
