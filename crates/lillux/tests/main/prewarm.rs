//! Launchers that were started ahead of their orders.

use std::os::unix::fs::PermissionsExt;

use lillux::CancelToken;
use lillux::process::{ExitReason, Launcher, ProcessCommand, ProcessResult, run};
use lillux::sandbox::{Confinement, NamespaceMode};
use rustix::process::{Pid, Signal};

use crate::confinement::World;
use crate::support::{bash, launcher, leftover_processes, wait_until};

fn run_with(
    launcher: &Launcher,
    command: &ProcessCommand,
    confinement: Option<&Confinement>,
) -> ProcessResult {
    run(launcher, command, confinement, &CancelToken::new().expect("an event")).expect("it ran")
}

/// The sources of launchers that this thread has started.
fn zygotes(program: &str) -> Vec<i32> {
    let children = std::fs::read_dir("/proc/self/task").expect("tasks").filter_map(|task| {
        let path = task.expect("a task").path().join("children");
        lillux::file::read_bounded(&path, 1 << 20).ok()
    });
    let children: String =
        children.map(|(text, _)| String::from_utf8(text).expect("numbers") + " ").collect();
    let is_zygote = |pid: &i32| {
        let words = format!("/proc/{pid}/cmdline");
        let words = lillux::file::read_bounded(words.as_ref(), 4096).map(|(words, _)| words);
        let folder = format!("/proc/{pid}/exe");
        words.is_ok_and(|words| words == b"rye-supervisor\0source\0")
            && std::fs::read_link(folder).is_ok_and(|path| path.to_string_lossy().starts_with(program))
    };
    children.split_whitespace().filter_map(|number| number.parse().ok()).filter(is_zygote).collect()
}

#[test]
fn pending_launchers_take_next_requests() {
    let world = World::new();
    let confinement = world.confinement(NamespaceMode::Auto);
    let launcher = launcher().with_pool();
    launcher.prestart();
    for number in 0..8 {
        let command = bash(&format!("echo {number}"));
        let confinement = (number % 3 != 2).then_some(&confinement);
        let ran = run_with(&launcher, &command, confinement);
        assert_eq!((ran.exit, ran.stdout.to_text()), (ExitReason::Exited(0), format!("{number}\n")));
        assert_eq!(leftover_processes(&command), Vec::<String>::new());
    }
}

#[test]
fn concurrent_runs_get_launchers() {
    let world = World::new();
    let confinement = world.confinement(NamespaceMode::Auto);
    let launcher = launcher().with_pool();
    run_with(&launcher, &bash("true"), Some(&confinement));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (launcher, confinement) = (&launcher, &confinement);
            scope.spawn(move || {
                let ran = run_with(launcher, &bash(&format!("echo {number}")), Some(confinement));
                assert_eq!((ran.exit, ran.stdout.to_text()), (ExitReason::Exited(0), format!("{number}\n")));
            });
        }
    });
}

#[test]
fn dead_pending_launcher_is_replaced() {
    let world = World::new();
    let confinement = world.confinement(NamespaceMode::Auto);
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("launcher");
    let first = folder.path().join("first");
    let script = format!(
        "#!/bin/bash\nmkdir '{}' 2>/dev/null && exit 0\nexec -a rye-supervisor '{}' \"$@\"\n",
        first.display(),
        launcher().program().display()
    );
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("made a program");
    let launcher = Launcher::new(program);
    launcher.prestart();
    wait_until("it has begun", || first.exists());
    // It may be just about to end: what it then takes is lost, and said to be.
    let mut ran = run_with(&launcher, &bash("echo here"), Some(&confinement));
    if ran.exit == ExitReason::SupervisorLost {
        ran = run_with(&launcher, &bash("echo here"), Some(&confinement));
    }
    assert_eq!((ran.exit, ran.stdout.to_text().as_str()), (ExitReason::Exited(0), "here\n"));
}

#[test]
fn killed_zygote_is_replaced() {
    let world = World::new();
    let confinement = world.confinement(NamespaceMode::Auto);
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("launcher");
    std::fs::copy(launcher().program(), &program).expect("a copy");
    let name = program.to_str().expect("text").to_owned();
    let launcher = Launcher::new(program).with_pool();
    launcher.prestart();
    wait_until("there is one", || !zygotes(&name).is_empty());
    let first = zygotes(&name);
    for pid in &first {
        let pid = Pid::from_raw(*pid).expect("a number");
        rustix::process::kill_process(pid, Signal::KILL).expect("ended");
    }
    wait_until("it is replaced", || {
        let ran = run_with(&launcher, &bash("echo here"), Some(&confinement));
        assert_eq!((ran.exit, ran.stdout.to_text().as_str()), (ExitReason::Exited(0), "here\n"));
        zygotes(&name).iter().any(|pid| !first.contains(pid))
    });
}

/// Runs until one was laid out before it was asked for: its process is then older than the wish.
fn wait_until_prewarmed(launcher: &Launcher, confinement: &Confinement) {
    let ticks = |text: &str| text.trim().parse::<f64>().expect("a number");
    wait_until("a run was laid out ahead", || {
        let uptime = std::fs::read_to_string("/proc/uptime").expect("the time");
        let requested_at = ticks(uptime.split(' ').next().expect("a number")) * 100.0;
        let output =
            run_with(launcher, &bash("read -a stat < /proc/$$/stat; echo ${stat[21]}"), Some(confinement));
        assert_eq!(output.exit, ExitReason::Exited(0), "{}", output.stderr.to_text());
        // The kernel counts in hundredths.
        ticks(&output.stdout.to_text()) < requested_at - 1.0
    });
}

/// The confinement of a world in which everything that is protected is there, and one in which something is not yet.
fn complete_and_partial(world: &World) -> [Confinement; 2] {
    let open = world.confinement(NamespaceMode::Auto);
    let mut whole = open.clone();
    for paths in [&mut whole.hidden, &mut whole.read_only] {
        paths.retain(|path| path.exists());
    }
    [whole, open]
}

#[test]
fn prewarmed_run_is_equally_confined() {
    let world = World::new();
    for confinement in complete_and_partial(&world) {
        let launcher = launcher().with_pool();
        wait_until_prewarmed(&launcher, &confinement);
        let root = world.root.display();
        let script = format!(
            "echo x > {root}/elsewhere/new; cat {root}/home/.token; echo x > {root}/project/.ai/config/config.yaml; \
             echo x > {root}/project/src/own && exec 3<>/dev/tcp/127.0.0.1/9"
        );
        let ran = run_with(&launcher, &bash(&script), Some(&confinement));
        assert_eq!(
            (ran.exit, ran.stdout.to_text().as_str()),
            (ExitReason::Exited(1), ""),
            "{}",
            ran.stderr.to_text()
        );
        assert_eq!(world.text("elsewhere/new"), None);
        assert_eq!(world.text("project/.ai/config/config.yaml").as_deref(), Some("kept"));
        assert_eq!(world.text("project/src/own").as_deref(), Some("x\n"));
        let fresh = run_with(&crate::support::launcher(), &bash("true"), Some(&confinement));
        assert_eq!(ran.receipt, fresh.receipt);
    }
}

#[test]
fn changes_after_prewarm_are_respected() {
    let world = World::new();
    let [whole, mut open] = complete_and_partial(&world);
    open.hidden = vec![world.root.join("home/.late")];
    open.read_only.push(world.root.join("project/late"));
    let launcher = launcher().with_pool();
    wait_until_prewarmed(&launcher, &open);
    std::fs::write(world.root.join("home/.late"), "secret").expect("written");
    std::fs::write(world.root.join("project/late"), "kept").expect("written");
    let root = world.root.display();
    let script = format!("cat {root}/home/.late; echo x > {root}/project/late");
    let ran = run_with(&launcher, &bash(&script), Some(&open));
    assert_eq!(
        (ran.exit, ran.stdout.to_text().as_str()),
        (ExitReason::Exited(1), ""),
        "{}",
        ran.stderr.to_text()
    );
    assert_eq!(world.text("project/late").as_deref(), Some("kept"));

    wait_until_prewarmed(&launcher, &whole);
    std::fs::rename(world.root.join("project"), world.root.join("old")).expect("moved");
    std::fs::create_dir_all(world.root.join("project/.ai/config")).expect("another");
    let script = format!("echo x > {root}/project/own; echo x > {root}/project/.ai/config/own");
    let ran = run_with(&launcher, &bash(&script), Some(&whole));
    assert_eq!(ran.exit, ExitReason::Exited(1), "{}", ran.stderr.to_text());
    assert_eq!((world.text("project/own").as_deref(), world.text("old/own")), (Some("x\n"), None));
    assert_eq!(world.text("project/.ai/config/own"), None);
}

#[test]
fn files_replaced_after_prewarm_are_protected() {
    let world = World::new();
    let [whole, open] = complete_and_partial(&world);
    let replace = |path: &str, text: &str| {
        let new = world.root.join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, world.root.join(path)).expect("replaced");
    };
    for mut confinement in [whole, open] {
        let launcher = launcher().with_pool();
        confinement.read_only.push(world.root.join("project/kept"));
        replace("project/kept", "kept");
        wait_until_prewarmed(&launcher, &confinement);
        // Replacing a file takes the mounts over it along, and a second time the number is the first one's.
        for text in ["other", "secret"] {
            replace("home/.token", text);
            replace("project/kept", "kept");
        }
        std::fs::rename(world.root.join("project/.ai"), world.root.join("away")).expect("moved");
        std::fs::create_dir(world.root.join("project/.ai")).expect("another");
        std::fs::rename(world.root.join("away/config"), world.root.join("project/.ai/config"))
            .expect("moved");
        std::fs::remove_dir(world.root.join("away")).expect("removed");
        let root = world.root.display();
        let script = format!(
            "cat {root}/home/.token; echo x > {root}/project/kept; echo x > {root}/project/.ai/config/config.yaml"
        );
        let ran = run_with(&launcher, &bash(&script), Some(&confinement));
        assert_eq!(
            (ran.exit, ran.stdout.to_text().as_str()),
            (ExitReason::Exited(1), ""),
            "{}",
            ran.stderr.to_text()
        );
        assert_eq!(world.text("project/kept").as_deref(), Some("kept"));
        assert_eq!(world.text("project/.ai/config/config.yaml").as_deref(), Some("kept"));
    }
}

#[test]
fn nothing_leaks_into_the_next_run() {
    let world = World::new();
    let [whole, _] = complete_and_partial(&world);
    let launcher = launcher().with_pool();
    let script = "ls -A /dev/shm; ipcs -m | grep -c 0x; set -- /proc/[0-9]*; echo $#; nice; cat /proc/$$/oom_score_adj";
    let fresh = run_with(&launcher, &bash(script), Some(&whole));
    assert_eq!(fresh.exit, ExitReason::Exited(0), "{}", fresh.stderr.to_text());
    for number in 0..12 {
        wait_until_prewarmed(&launcher, &whole);
        let leave = match number % 3 {
            0 => "echo x > /dev/shm/left; ipcmk -M 4096 >/dev/null",
            1 => "(setsid sleep 60 >/dev/null 2>&1 &) ; echo x > /dev/shm/left",
            _ => "kill -9 $$",
        };
        run_with(&launcher, &bash(leave), Some(&whole));
        let ran = run_with(&launcher, &bash(script), Some(&whole));
        assert_eq!(ran.stdout.to_text(), fresh.stdout.to_text(), "after `{leave}`");
        assert_eq!(ran.receipt, fresh.receipt);
    }
    // How soon one is used again depends on the machine; that it happens does not.
    let namespaces = std::cell::RefCell::new(std::collections::HashSet::new());
    wait_until("what was laid out is used again", || {
        let namespace =
            run_with(&launcher, &bash("readlink /proc/self/ns/pid"), Some(&whole)).stdout.to_text();
        !namespaces.borrow_mut().insert(namespace)
    });
}

#[test]
fn different_confinement_also_gets_a_launcher() {
    let world = World::new();
    let [whole, open] = complete_and_partial(&world);
    let launcher = launcher().with_pool();
    wait_until_prewarmed(&launcher, &whole);
    for number in 0..6 {
        let confinement = if number % 2 == 0 { &open } else { &whole };
        let ran = run_with(&launcher, &bash(&format!("echo {number}")), Some(confinement));
        assert_eq!((ran.exit, ran.stdout.to_text()), (ExitReason::Exited(0), format!("{number}\n")));
    }
    let long = "x".repeat(2 << 20);
    let mut command = bash("cat | wc -c");
    command.stdin = long.clone().into_bytes();
    command.arguments.push("y".repeat(100_000));
    let ran = run_with(&launcher, &command, Some(&whole));
    assert_eq!(ran.stdout.to_text().trim(), long.len().to_string());
}
