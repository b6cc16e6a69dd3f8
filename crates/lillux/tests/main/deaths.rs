//! Whoever of caller, launcher and supervisor is killed, nothing is left.

use std::process::{Command as Bare, Stdio};

use lillux::Cancel;
use lillux::confine::{Confinement, Namespaces};
use lillux::process::{End, run};

use crate::confinement::World;
use crate::support::{MARK, bash, launcher, left_behind, until};

/// A tree of processes in several sessions, some deaf to being asked.
const TREE: &str = "trap '' TERM; (setsid sleep 600 &); (sleep 600 &); sleep 600 & sleep 600";

/// Every way a run can be held together.
fn ways(world: &World) -> [Option<Confinement>; 3] {
    [None, Some(world.confinement(Namespaces::Auto)), Some(world.confinement(Namespaces::Avoided))]
}

#[test]
fn a_caller_that_is_killed_leaves_nothing() {
    let world = World::new();
    for way in ways(&world) {
        let command = bash(TREE);
        let way = serde_json::to_string(&way).expect("JSON");
        let mark = format!("{MARK}={}", command.environment[MARK]);
        let mut caller = Bare::new(launcher().program())
            .args([way.as_str(), mark.as_str(), TREE])
            .stdin(Stdio::null())
            .spawn()
            .expect("a caller");
        until("the run", || left_behind(&command).iter().filter(|name| *name == "sleep\n").count() == 4);
        caller.kill().expect("killed");
        caller.wait().expect("ended");
        until("the end of all", || left_behind(&command).is_empty());
    }
}

#[test]
fn a_caller_that_is_killed_at_any_moment_leaves_nothing() {
    let world = World::new();
    for way in ways(&world) {
        let command = bash(TREE);
        let way = serde_json::to_string(&way).expect("JSON");
        let mark = format!("{MARK}={}", command.environment[MARK]);
        for moment in 0..40_u64 {
            let mut caller = Bare::new(launcher().program())
                .args([way.as_str(), mark.as_str(), TREE])
                .stdin(Stdio::null())
                .spawn()
                .expect("a caller");
            std::thread::sleep(std::time::Duration::from_micros(moment * 250));
            caller.kill().expect("killed");
            caller.wait().expect("ended");
        }
        until("the end of all", || left_behind(&command).is_empty());
    }
}

#[test]
fn a_supervisor_that_is_killed_leaves_nothing() {
    let world = World::new();
    let log = world.root.join("project/log");
    let mut command = bash(&format!("echo $PPID > project/log; {TREE}"));
    command.folder = world.root.clone();
    let confinement = world.confinement(Namespaces::Avoided);
    std::fs::write(&log, "").expect("a file");
    std::thread::scope(|scope| {
        let running =
            scope.spawn(|| run(&launcher(), &command, Some(&confinement), &Cancel::new().expect("an event")));
        until("the run", || left_behind(&command).iter().filter(|name| *name == "sleep\n").count() == 4);
        let supervisor: i32 = std::fs::read_to_string(&log).expect("a log").trim().parse().expect("a number");
        let supervisor = rustix::process::Pid::from_raw(supervisor).expect("a pid");
        rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).expect("killed");
        assert_eq!(running.join().expect("joined").expect("ran").end, End::SupervisorLost);
    });
    assert_eq!(left_behind(&command), Vec::<String>::new());
}
