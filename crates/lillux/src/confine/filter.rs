//! A filter of system calls as the kernel wants it: a small program that searches the call's number by halves. The kernel
//! walks through it once for every number there is when it takes it on, so a list would cost as much as the tool's start.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP_IF_ANY: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Where the number, the architecture and the low halves of the arguments are in what the kernel hands over.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Calls of x86-64's 32-bit sibling carry the same architecture and numbers from here on.
const X32: u32 = 0x4000_0000;

/// What is looked for in the low half of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It is this.
    Is(u32),
    /// It is not this.
    IsNot(u32),
    /// It has at least one of these bits.
    HasAny(u32),
}

/// Conditions on arguments, by their place, that all hold.
pub(crate) type Test = Vec<(u8, Condition)>;

/// When a call is not simply allowed, and what happens then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) action: Action,
    /// It happens when one of them holds; always, if there are none.
    pub(crate) tests: Vec<Test>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It fails with this error.
    Fail(u32),
    /// The supervisor is asked.
    Report,
}

impl Action {
    fn code(self) -> u32 {
        match self {
            Self::Fail(error) => libc::SECCOMP_RET_ERRNO | (error & libc::SECCOMP_RET_DATA),
            Self::Report => libc::SECCOMP_RET_USER_NOTIF,
        }
    }
}

/// Makes the program: everything is allowed but what is refused, and calls of another architecture end the process,
/// since their numbers mean other things.
pub(crate) fn compile(refusals: &BTreeMap<u32, Refusal>) -> Result<BpfProgram, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => 0xc000_003e,
        "aarch64" => 0xc000_00b7,
        "riscv64" => 0xc000_00f3,
        other => return Err(format!("no filter for the architecture {other}")),
    };
    let mut program = vec![
        step(LOAD, ARCHITECTURE),
        branch(JUMP_IF_EQUAL, architecture, 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        step(LOAD, NUMBER),
    ];
    if cfg!(target_arch = "x86_64") {
        program.push(branch(JUMP_IF_AT_LEAST, X32, 0, 1));
        program.push(act(Action::Fail(libc::ENOSYS.cast_unsigned())));
    }
    let sorted: Vec<(u32, &Refusal)> = refusals.iter().map(|(number, refusal)| (*number, refusal)).collect();
    program.extend(search(&sorted)?);
    Ok(program)
}

fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn act(action: Action) -> sock_filter {
    step(RETURN, action.code())
}

fn allow() -> sock_filter {
    step(RETURN, libc::SECCOMP_RET_ALLOW)
}

fn distance(steps: usize) -> Result<u8, String> {
    u8::try_from(steps).map_err(|_| "a system call has too many conditions".to_owned())
}

/// Finds the number among sorted ones. Every path through it ends with a return.
fn search(sorted: &[(u32, &Refusal)]) -> Result<Vec<sock_filter>, String> {
    let (number, refusal) = match sorted {
        [] => return Ok(vec![allow()]),
        [only] => *only,
        _ => {
            let (below, above) = sorted.split_at(sorted.len() / 2);
            let (left, right) = (search(below)?, search(above)?);
            let far = u32::try_from(left.len()).map_err(|error| error.to_string())?;
            let first = branch(JUMP_IF_AT_LEAST, above[0].0, 0, 1);
            return Ok([vec![first, step(JUMP, far)], left, right].concat());
        }
    };
    let body = judge(refusal)?;
    let mut steps = vec![branch(JUMP_IF_EQUAL, number, 0, distance(body.len())?)];
    steps.extend(body);
    steps.push(allow());
    Ok(steps)
}

fn judge(refusal: &Refusal) -> Result<Vec<sock_filter>, String> {
    let mut steps = Vec::new();
    for test in &refusal.tests {
        for (place, (argument, condition)) in test.iter().enumerate() {
            // Past the conditions to come, two steps each, and the refusal.
            let past = distance((test.len() - place - 1) * 2 + 1)?;
            steps.push(step(LOAD, ARGUMENTS + 8 * u32::from(*argument)));
            steps.push(match *condition {
                Condition::Is(value) => branch(JUMP_IF_EQUAL, value, 0, past),
                Condition::IsNot(value) => branch(JUMP_IF_EQUAL, value, past, 0),
                Condition::HasAny(bits) => branch(JUMP_IF_ANY, bits, 0, past),
            });
        }
        steps.push(act(refusal.action));
    }
    steps.push(if refusal.tests.is_empty() { act(refusal.action) } else { allow() });
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

    /// What the kernel does with the program.
    fn run(program: &[sock_filter], number: u32, architecture: u32, arguments: [u32; 6]) -> u32 {
        let (mut at, mut held) = (0, 0);
        for _ in 0..program.len() {
            let step = &program[at];
            at += 1;
            let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    held = match step.k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        offset => arguments[(offset as usize - 16) / 8],
                    }
                }
                JUMP => at += step.k as usize,
                JUMP_IF_EQUAL => at += jump(held == step.k),
                JUMP_IF_AT_LEAST => at += jump(held >= step.k),
                JUMP_IF_ANY => at += jump(held & step.k != 0),
                RETURN => return step.k,
                other => panic!("step {other}"),
            }
        }
        panic!("it does not end")
    }

    fn wanted(refusals: &BTreeMap<u32, Refusal>, number: u32, arguments: [u32; 6]) -> u32 {
        let Some(refusal) = refusals.get(&number) else { return libc::SECCOMP_RET_ALLOW };
        let holds = |(place, condition): &(u8, Condition)| {
            let value = arguments[usize::from(*place)];
            match *condition {
                Condition::Is(other) => value == other,
                Condition::IsNot(other) => value != other,
                Condition::HasAny(bits) => value & bits != 0,
            }
        };
        let is_refused = refusal.tests.is_empty() || refusal.tests.iter().any(|test| test.iter().all(holds));
        if is_refused { refusal.action.code() } else { libc::SECCOMP_RET_ALLOW }
    }

    fn refusals() -> impl Strategy<Value = BTreeMap<u32, Refusal>> {
        let condition = prop_oneof![
            (0_u32..4).prop_map(Condition::Is),
            (0_u32..4).prop_map(Condition::IsNot),
            (0_u32..4).prop_map(Condition::HasAny),
        ];
        let test = prop::collection::vec((0_u8..3, condition), 1..4);
        let action = prop_oneof![(1_u32..100).prop_map(Action::Fail), Just(Action::Report)];
        let refusal = (action, prop::collection::vec(test, 0..4));
        let refusal = refusal.prop_map(|(action, tests)| Refusal { action, tests });
        prop::collection::btree_map(0_u32..40, refusal, 0..24)
    }

    proptest! {
        #[test]
        fn every_call_is_judged_by_its_own_rule(
            refusals in refusals(),
            arguments in prop::collection::vec((0_u32..5, 0_u32..5, 0_u32..5), 4),
        ) {
            let program = compile(&refusals).expect("a program");
            for number in 0..42 {
                for (one, two, three) in &arguments {
                    let arguments = [*one, *two, *three, 0, 0, 0];
                    let verdict = run(&program, number, OWN, arguments);
                    prop_assert_eq!(verdict, wanted(&refusals, number, arguments));
                }
            }
        }
    }

    #[test]
    fn calls_of_another_architecture_end_the_process() {
        let program = compile(&BTreeMap::new()).expect("a program");
        assert_eq!(run(&program, 1, 0x4000_0003, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        assert_eq!(run(&program, 1, OWN, [0; 6]), libc::SECCOMP_RET_ALLOW);
        if cfg!(target_arch = "x86_64") {
            let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
            assert_eq!(run(&program, X32 + 1, OWN, [0; 6]), refusal);
        }
    }
}
