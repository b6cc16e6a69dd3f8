//! A filter of system calls as the kernel wants it: a small program that searches the call's number by halves. The kernel
//! walks through it once for every number there is when it takes it on, so a list would cost as much as the tool's start.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER_OR_EQUAL: u16 = 0x35;
const JUMP_IF_ANY: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Where the number, the architecture and the low halves of the arguments are in what the kernel hands over.
const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGS_OFFSET: u32 = 16;

/// Numbers from here on mean calls that were not looked at (the first is `open_tree_attr`), and on x86-64 those of its
/// 32-bit sibling. Programs take them for calls that this kernel does not have.
pub(crate) const FIRST_UNKNOWN_SYSCALL: u32 = 467;

/// What is looked for in the low half of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgCondition {
    /// It is this.
    Equals(u32),
    /// It is not this.
    NotEquals(u32),
    /// It has at least one of these bits.
    HasAnyBit(u32),
}

/// Conditions on arguments, by their place, that all hold.
pub(crate) type ArgTest = Vec<(u8, ArgCondition)>;

/// When a call is not simply allowed, and what happens then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyscallRule {
    pub(crate) action: SyscallAction,
    /// It happens when one of them holds; always, if there are none.
    pub(crate) tests: Vec<ArgTest>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyscallAction {
    /// It fails with this error.
    Errno(u32),
    /// The supervisor is asked.
    Notify,
}

impl SyscallAction {
    fn code(self) -> u32 {
        match self {
            Self::Errno(error) => libc::SECCOMP_RET_ERRNO | (error & libc::SECCOMP_RET_DATA),
            Self::Notify => libc::SECCOMP_RET_USER_NOTIF,
        }
    }
}

/// Makes the program: everything that is known is allowed but what is refused, and calls of another architecture end the process,
/// since their numbers mean other things.
pub(crate) fn compile(rules: &BTreeMap<u32, SyscallRule>) -> Result<BpfProgram, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => 0xc000_003e,
        "aarch64" => 0xc000_00b7,
        "riscv64" => 0xc000_00f3,
        other => return Err(format!("no filter for the architecture {other}")),
    };
    let mut program = vec![
        instruction(LOAD, ARCH_OFFSET),
        jump(JUMP_IF_EQUAL, architecture, 1, 0),
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, NR_OFFSET),
    ];
    program.push(jump(JUMP_IF_GREATER_OR_EQUAL, FIRST_UNKNOWN_SYSCALL, 0, 1));
    program.push(ret_action(SyscallAction::Errno(libc::ENOSYS.cast_unsigned())));
    let sorted: Vec<(u32, &SyscallRule)> = rules.iter().map(|(number, rule)| (*number, rule)).collect();
    program.extend(compile_search(&sorted)?);
    Ok(program)
}

fn instruction(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn ret_action(action: SyscallAction) -> sock_filter {
    instruction(RETURN, action.code())
}

fn ret_allow() -> sock_filter {
    instruction(RETURN, libc::SECCOMP_RET_ALLOW)
}

fn jump_offset(steps: usize) -> Result<u8, String> {
    u8::try_from(steps).map_err(|_| "a system call has too many conditions".to_owned())
}

/// Finds the number among sorted ones. Every path through it ends with a return.
fn compile_search(sorted: &[(u32, &SyscallRule)]) -> Result<Vec<sock_filter>, String> {
    let (number, rule) = match sorted {
        [] => return Ok(vec![ret_allow()]),
        [only] => *only,
        _ => {
            let (below, above) = sorted.split_at(sorted.len() / 2);
            let (left, right) = (compile_search(below)?, compile_search(above)?);
            let left_len = u32::try_from(left.len()).map_err(|error| error.to_string())?;
            let first = jump(JUMP_IF_GREATER_OR_EQUAL, above[0].0, 0, 1);
            return Ok([vec![first, instruction(JUMP, left_len)], left, right].concat());
        }
    };
    let body = compile_rule(rule)?;
    let mut steps = vec![jump(JUMP_IF_EQUAL, number, 0, jump_offset(body.len())?)];
    steps.extend(body);
    steps.push(ret_allow());
    Ok(steps)
}

fn compile_rule(rule: &SyscallRule) -> Result<Vec<sock_filter>, String> {
    let mut steps = Vec::new();
    for test in &rule.tests {
        for (index, (argument, condition)) in test.iter().enumerate() {
            // Past the conditions to come, two steps each, and the refusal.
            let skip = jump_offset((test.len() - index - 1) * 2 + 1)?;
            steps.push(instruction(LOAD, ARGS_OFFSET + 8 * u32::from(*argument)));
            steps.push(match *condition {
                ArgCondition::Equals(value) => jump(JUMP_IF_EQUAL, value, 0, skip),
                ArgCondition::NotEquals(value) => jump(JUMP_IF_EQUAL, value, skip, 0),
                ArgCondition::HasAnyBit(bits) => jump(JUMP_IF_ANY, bits, 0, skip),
            });
        }
        steps.push(ret_action(rule.action));
    }
    steps.push(if rule.tests.is_empty() { ret_action(rule.action) } else { ret_allow() });
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NATIVE_ARCH: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

    /// What the kernel does with the program.
    fn interpret(program: &[sock_filter], number: u32, architecture: u32, arguments: [u32; 6]) -> u32 {
        let (mut pc, mut accumulator) = (0, 0);
        for _ in 0..program.len() {
            let step = &program[pc];
            pc += 1;
            let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    accumulator = match step.k {
                        NR_OFFSET => number,
                        ARCH_OFFSET => architecture,
                        offset => arguments[(offset as usize - 16) / 8],
                    }
                }
                JUMP => pc += step.k as usize,
                JUMP_IF_EQUAL => pc += jump(accumulator == step.k),
                JUMP_IF_GREATER_OR_EQUAL => pc += jump(accumulator >= step.k),
                JUMP_IF_ANY => pc += jump(accumulator & step.k != 0),
                RETURN => return step.k,
                other => panic!("step {other}"),
            }
        }
        panic!("it does not end")
    }

    fn expected(rules: &BTreeMap<u32, SyscallRule>, number: u32, arguments: [u32; 6]) -> u32 {
        let Some(rule) = rules.get(&number) else { return libc::SECCOMP_RET_ALLOW };
        let is_true = |(argument, condition): &(u8, ArgCondition)| {
            let value = arguments[usize::from(*argument)];
            match *condition {
                ArgCondition::Equals(other) => value == other,
                ArgCondition::NotEquals(other) => value != other,
                ArgCondition::HasAnyBit(bits) => value & bits != 0,
            }
        };
        let is_refused = rule.tests.is_empty() || rule.tests.iter().any(|test| test.iter().all(is_true));
        if is_refused { rule.action.code() } else { libc::SECCOMP_RET_ALLOW }
    }

    fn any_rules() -> impl Strategy<Value = BTreeMap<u32, SyscallRule>> {
        let condition = prop_oneof![
            (0_u32..4).prop_map(ArgCondition::Equals),
            (0_u32..4).prop_map(ArgCondition::NotEquals),
            (0_u32..4).prop_map(ArgCondition::HasAnyBit),
        ];
        let test = prop::collection::vec((0_u8..3, condition), 1..4);
        let action = prop_oneof![(1_u32..100).prop_map(SyscallAction::Errno), Just(SyscallAction::Notify)];
        let rule = (action, prop::collection::vec(test, 0..4));
        let rule = rule.prop_map(|(action, tests)| SyscallRule { action, tests });
        prop::collection::btree_map(0_u32..40, rule, 0..24)
    }

    proptest! {
        #[test]
        fn each_syscall_follows_its_own_rule(
            refusals in any_rules(),
            arguments in prop::collection::vec((0_u32..5, 0_u32..5, 0_u32..5), 4),
        ) {
            let program = compile(&refusals).expect("a program");
            for number in 0..42 {
                for (one, two, three) in &arguments {
                    let arguments = [*one, *two, *three, 0, 0, 0];
                    let verdict = interpret(&program, number, NATIVE_ARCH, arguments);
                    prop_assert_eq!(verdict, expected(&refusals, number, arguments));
                }
            }
        }
    }

    #[test]
    fn foreign_architecture_kills_the_process() {
        let program = compile(&BTreeMap::new()).expect("a program");
        assert_eq!(interpret(&program, 1, 0x4000_0003, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        assert_eq!(interpret(&program, 1, NATIVE_ARCH, [0; 6]), libc::SECCOMP_RET_ALLOW);
    }

    #[test]
    fn unknown_syscalls_are_not_implemented() {
        let program = compile(&BTreeMap::new()).expect("a program");
        let expected = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
        // `open_tree_attr`, `file_setattr`, what is to come, the 32-bit sibling of x86-64, and no call at all.
        for number in [467, 469, 470, 1000, 0x4000_0001, u32::MAX] {
            assert_eq!(interpret(&program, number, NATIVE_ARCH, [0; 6]), expected, "{number}");
        }
        assert_eq!(interpret(&program, 466, NATIVE_ARCH, [0; 6]), libc::SECCOMP_RET_ALLOW);
    }
}
