//! The filter of system calls: what no tool needs and attacks begin with.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, sock_filter,
};

use super::paths::InForce;
use super::{Confinement, Mechanism, Network, Row, Rule, Stage};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

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
const TYPING: [u64; 2] = [0x5412, 0x541c];

/// Asking what personality one has is fine, and so is the ordinary one.
const PERSONALITIES: [u64; 2] = [0, 0xffff_ffff];

/// Restricts this process for good, and tells of it.
pub(crate) fn restrict(
    confinement: &Confinement,
    stage: &Stage,
    landlock: InForce,
    guarded: &[i32],
    rows: &mut Vec<Row>,
) {
    let sockets = sockets_are_covered(stage);
    let needs_guard = !stage.has_pid_namespace && landlock.abi < 6;
    let guarded = if needs_guard { guarded } else { &[] };
    let outcome = programs(confinement.network, sockets, guarded).and_then(|programs| {
        programs.iter().try_for_each(|program| {
            seccompiler::apply_filter(program).map_err(|error| format!("refused by the kernel: {error}"))
        })
    });
    let is_enforced = outcome.is_ok();
    let mut tell = |rule, detail: &str| {
        let detail = outcome.as_ref().err().map_or(detail, String::as_str);
        rows.push(Row::new(rule, Mechanism::Seccomp, is_enforced, detail));
    };
    tell(Rule::SystemCalls, "tracing, mounts, namespaces, keys, kernel interfaces");
    match (confinement.network, sockets) {
        (Network::Closed, _) => {
            tell(Rule::Network, "no sockets but pairs");
            tell(Rule::AgentSockets, "no sockets but pairs");
        }
        (Network::Open, UnixSockets::Refused) => tell(Rule::AgentSockets, "no UNIX sockets but pairs"),
        (Network::Open, UnixSockets::Allowed) => {}
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
}

/// Whether UNIX sockets may be made where the network is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnixSockets {
    Allowed,
    Refused,
}

/// Only where each socket that is to be closed is mounted over, or is not there, may others be opened.
fn sockets_are_covered(stage: &Stage) -> UnixSockets {
    let is_closed = |path: &std::path::PathBuf| {
        path.symlink_metadata().is_err() || path.is_symlink() || stage.covered.contains(path)
    };
    if stage.real.sockets.iter().all(is_closed) { UnixSockets::Allowed } else { UnixSockets::Refused }
}

fn programs(network: Network, sockets: UnixSockets, guarded: &[i32]) -> Result<Vec<BpfProgram>, String> {
    let mut refused: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let new_namespaces: Result<Vec<_>, String> = NEW_NAMESPACES
        .iter()
        .map(|flag| {
            let flag = u64::from(flag.cast_unsigned());
            rule(&[(0, SeccompCmpOp::MaskedEq(flag), flag)])
        })
        .collect();
    refused.insert(libc::SYS_clone, new_namespaces?);
    refused.insert(
        libc::SYS_ioctl,
        TYPING.iter().map(|request| rule(&[(1, SeccompCmpOp::Eq, *request)])).collect::<Result<_, _>>()?,
    );
    refused.insert(
        libc::SYS_personality,
        vec![rule(&PERSONALITIES.map(|personality| (0, SeccompCmpOp::Ne, personality)))?],
    );
    if !guarded.is_empty() {
        guard(&mut refused, guarded)?;
    }
    // The C libraries then use `clone`, whose flags can be looked at.
    let absent: Rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let mut programs = vec![
        compile(refused, libc::EPERM)?,
        compile(absent, libc::ENOSYS)?,
        compile(network_rules(network, sockets)?, libc::EACCES)?,
    ];
    if cfg!(target_arch = "x86_64") {
        programs.push(without_x32());
    }
    Ok(programs)
}

/// Signals to the given processes, their groups, and everybody.
fn guard(refused: &mut Rules, guarded: &[i32]) -> Result<(), String> {
    let mut rules = vec![rule(&[(0, SeccompCmpOp::Eq, word(-1))])?];
    for pid in guarded {
        rules.push(rule(&[(0, SeccompCmpOp::Eq, word(*pid))])?);
        rules.push(rule(&[(0, SeccompCmpOp::Eq, word(-*pid))])?);
    }
    for call in [
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_tgkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_pidfd_open,
        libc::SYS_prlimit64,
    ] {
        refused.insert(call, rules.clone());
    }
    // A folder of `/proc` serves as a handle of its process.
    refused.insert(libc::SYS_pidfd_send_signal, Vec::new());
    Ok(())
}

fn network_rules(network: Network, sockets: UnixSockets) -> Result<Rules, String> {
    let family = |family: libc::c_int| (0_u8, SeccompCmpOp::Ne, word(family));
    let pairs = vec![rule(&[family(libc::AF_UNIX)])?];
    let socket = match network {
        Network::Closed => Vec::new(),
        Network::Open => {
            let mut others = vec![family(libc::AF_INET), family(libc::AF_INET6), family(libc::AF_NETLINK)];
            if sockets == UnixSockets::Allowed {
                others.push(family(libc::AF_UNIX));
            }
            // Looking up names needs the list of addresses, and nothing else of the kernel's.
            let netlink = [
                (0, SeccompCmpOp::Eq, word(libc::AF_NETLINK)),
                (2, SeccompCmpOp::Ne, word(libc::NETLINK_ROUTE)),
            ];
            vec![rule(&others)?, rule(&netlink)?]
        }
    };
    Ok(BTreeMap::from([(libc::SYS_socket, socket), (libc::SYS_socketpair, pairs)]))
}

fn word(value: i32) -> u64 {
    u64::from(value.cast_unsigned())
}

fn rule(conditions: &[(u8, SeccompCmpOp, u64)]) -> Result<SeccompRule, String> {
    let conditions: Result<Vec<_>, _> = conditions
        .iter()
        .map(|(argument, operator, value)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, operator.clone(), *value)
        })
        .collect();
    conditions.and_then(SeccompRule::new).map_err(|error| error.to_string())
}

fn compile(rules: Rules, error: libc::c_int) -> Result<BpfProgram, String> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    // A call of another architecture ends the process: its numbers mean other things.
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(error.cast_unsigned()), architecture)
        .and_then(BpfProgram::try_from)
        .map_err(|error| error.to_string())
}

/// Calls of x86-64's 32-bit sibling carry the same architecture and other numbers.
fn without_x32() -> BpfProgram {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const X32: u32 = 0x4000_0000;
    let step = |code, jt, k| sock_filter { code, jt, jf: 0, k };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    vec![
        step(LOAD_NUMBER, 0, 0),
        step(JUMP_IF_AT_LEAST, 1, X32),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, refusal),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_compiles() {
        for network in [Network::Open, Network::Closed] {
            for sockets in [UnixSockets::Allowed, UnixSockets::Refused] {
                let count = if cfg!(target_arch = "x86_64") { 4 } else { 3 };
                assert_eq!(programs(network, sockets, &[1, 2]).map(|programs| programs.len()), Ok(count));
            }
        }
    }
}
