//! When the caller, the launcher or the supervisor is killed, nothing is left.

use std::process::{Command as Bare, Stdio};

use lillux::CancelToken;
use lillux::process::{ExitReason, run};
use lillux::sandbox::{Confinement, NamespaceMode};

use crate::confinement::World;
use crate::support::{MARK, bash, launcher, leftover_processes, wait_for_io, wait_until};

/// A tree of processes in several sessions, some deaf to being asked.
const TREE: &str = "trap '' TERM; (setsid sleep 600 &); (sleep 600 &); sleep 600 & sleep 600";

/// Every way a run can be held together.
fn confinements(world: &World) -> [Option<Confinement>; 3] {
    [None, Some(world.confinement(NamespaceMode::Auto)), Some(world.confinement(NamespaceMode::Never))]
}

#[test]
fn killed_caller_leaves_no_processes() {
    let world = World::new();
    for way in confinements(&world) {
        let command = bash(TREE);
        let way = serde_json::to_string(&way).expect("JSON");
        let mark = format!("{MARK}={}", command.environment[MARK]);
        let mut caller = Bare::new(launcher().program())
            .args([way.as_str(), mark.as_str(), TREE])
            .stdin(Stdio::null())
            .spawn()
            .expect("a caller");
        wait_until("the run", || {
            leftover_processes(&command).iter().filter(|name| *name == "sleep\n").count() == 4
        });
        caller.kill().expect("killed");
        caller.wait().expect("ended");
        wait_until("the end of all", || leftover_processes(&command).is_empty());
    }
}

#[test]
fn caller_killed_anytime_leaves_no_processes() {
    let world = World::new();
    for way in confinements(&world) {
        let command = bash(TREE);
        let way = serde_json::to_string(&way).expect("JSON");
        let mark = format!("{MARK}={}", command.environment[MARK]);
        for moment in 0..40_u64 {
            let mut caller = Bare::new(launcher().program())
                .args([way.as_str(), mark.as_str(), TREE])
                .stdin(Stdio::null())
                .spawn()
                .expect("a caller");
            wait_for_io(&mut caller, moment);
            caller.kill().expect("killed");
            caller.wait().expect("ended");
        }
        wait_until("the end of all", || leftover_processes(&command).is_empty());
    }
}

#[test]
fn killed_supervisor_leaves_no_processes() {
    let world = World::new();
    let log = world.root.join("project/log");
    let mut command = bash(&format!("echo $PPID > project/log; {TREE}"));
    command.current_dir = world.root.clone();
    let confinement = world.confinement(NamespaceMode::Never);
    std::fs::write(&log, "").expect("a file");
    std::thread::scope(|scope| {
        let running = scope
            .spawn(|| run(&launcher(), &command, Some(&confinement), &CancelToken::new().expect("an event")));
        wait_until("the run", || {
            leftover_processes(&command).iter().filter(|name| *name == "sleep\n").count() == 4
        });
        let supervisor: i32 = std::fs::read_to_string(&log).expect("a log").trim().parse().expect("a number");
        let supervisor = rustix::process::Pid::from_raw(supervisor).expect("a pid");
        rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).expect("killed");
        assert_eq!(running.join().expect("joined").expect("ran").exit, ExitReason::SupervisorLost);
    });
    assert_eq!(leftover_processes(&command), Vec::<String>::new());
}
