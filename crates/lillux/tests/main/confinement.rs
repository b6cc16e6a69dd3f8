//! Attacks on the confinement, each in every way it can be enforced here.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use lillux::CancelToken;
use lillux::process::{ExitReason, ProcessCommand, ProcessResult, RunError, run};
use lillux::sandbox::{
    Confinement, EnforcementLevel, Mechanism, MissingRulePolicy, NamespaceMode, NetworkAccess, ReadAccess,
    Receipt, SandboxRule, SocketAccess, probe,
};

use crate::support::{bash, command, exists, launcher, leftover_processes, python};

/// A folder with a project, secrets beside and inside it, and a temporary folder.
pub struct World {
    _folder: tempfile::TempDir,
    pub root: PathBuf,
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("lillux").tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        for path in ["project/.ai/config", "project/src", "home/.ssh", "temporary", "elsewhere"] {
            std::fs::create_dir_all(root.join(path)).expect("folders");
        }
        for (path, text) in [
            ("home/.ssh/key", "secret"),
            ("home/.token", "secret"),
            ("home/plain", "plain"),
            ("project/.ai/config/config.yaml", "kept"),
            ("elsewhere/file", "theirs"),
        ] {
            std::fs::write(root.join(path), text).expect("a file");
        }
        Self { _folder: folder, root }
    }

    pub fn confinement(&self, namespaces: NamespaceMode) -> Confinement {
        let paths = |paths: &[&str]| paths.iter().map(|path| self.root.join(path)).collect();
        Confinement {
            read: ReadAccess::Everything,
            write: paths(&["project", "temporary"]),
            read_only: paths(&["project/.ai/config", "project/absent"]),
            hidden: paths(&["home/.ssh", "home/.token", "home/.absent/deeper"]),
            sockets: SocketAccess { own: paths(&["temporary"]), allowed: Vec::new() },
            network: NetworkAccess::Closed,
            // Without a mount namespace nothing keeps modes and owners.
            on_missing: if namespaces == NamespaceMode::Auto {
                MissingRulePolicy::Refuse
            } else {
                MissingRulePolicy::Warn
            },
            namespaces,
            ..Confinement::new()
        }
    }

    pub fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }
}

/// What nothing enforces.
pub fn expected_unenforced(way: NamespaceMode) -> Vec<SandboxRule> {
    if way == NamespaceMode::Auto { Vec::new() } else { vec![SandboxRule::Metadata] }
}

/// Both ways: with namespaces, and with Landlock and filters alone.
pub const NAMESPACE_MODES: [NamespaceMode; 2] = [NamespaceMode::Auto, NamespaceMode::Never];

pub fn run_confined(command: &ProcessCommand, confinement: &Confinement) -> ProcessResult {
    run(&launcher(), command, Some(confinement), &CancelToken::new().expect("an event")).expect("it ran")
}

pub fn run_script(world: &World, namespaces: NamespaceMode, script: &str) -> ProcessResult {
    let mut command = bash(&script.replace("ROOT", &world.root.display().to_string()));
    command.current_dir = world.root.join("project");
    run_confined(&command, &world.confinement(namespaces))
}

pub fn is_enforced_by(receipt: &Receipt, rule: SandboxRule, mechanism: Mechanism) -> bool {
    receipt.rows.iter().any(|row| row.rule == rule && row.mechanism == mechanism && row.is_enforced)
}

#[test]
fn ordinary_work_runs_fully_confined() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let script = "echo a > src/a; mkdir src/d; mv src/a src/d/b; ln -s b src/d/c; cat src/d/c ROOT/home/plain \
            ROOT/elsewhere/file; echo t > ROOT/temporary/t; rm -r src/d; echo x > /dev/null";
        let finished = run_script(&world, way, script);
        assert_eq!(
            (finished.exit, finished.stdout.to_text().as_str(), finished.stderr.to_text().as_str()),
            (ExitReason::Exited(0), "a\nplaintheirs", ""),
            "{way:?}"
        );
        assert_eq!(finished.receipt.unenforced(), expected_unenforced(way), "{way:?}");
        let receipt = &finished.receipt;
        assert!(
            is_enforced_by(receipt, SandboxRule::Writes, Mechanism::Landlock)
                && is_enforced_by(receipt, SandboxRule::SystemCalls, Mechanism::Seccomp)
        );
        assert_eq!(
            is_enforced_by(receipt, SandboxRule::Network, Mechanism::NetworkNamespace),
            way == NamespaceMode::Auto
        );
        assert_eq!(
            is_enforced_by(receipt, SandboxRule::Descendants, Mechanism::PidNamespace),
            way == NamespaceMode::Auto
        );
        assert_eq!(
            is_enforced_by(receipt, SandboxRule::Descendants, Mechanism::Subreaper),
            way == NamespaceMode::Never
        );
    }
}

#[test]
fn memory_limit_applies_only_to_the_tool() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let deep = world.root.join("home/a/b/c/d/e/f");
        std::fs::create_dir_all(&deep).expect("folders");
        std::fs::write(deep.join("plain"), "deep").expect("a file");
        let mut confinement = world.confinement(way);
        confinement.hidden.push(deep.join("secret"));
        std::fs::write(deep.join("secret"), "secret").expect("a file");
        let mut command = bash(&format!("ulimit -v; cat {}/plain", deep.display()));
        command.current_dir = world.root.join("project");
        command.limits.memory_bytes = Some(100 << 20);
        let finished = run_confined(&command, &confinement);
        let output = finished.stdout.to_text();
        assert_eq!(output.lines().collect::<Vec<_>>(), ["102400", "deep"], "{way:?}");
    }
}

#[test]
fn interpreters_and_tools_still_run() {
    for way in NAMESPACE_MODES {
        for (program, arguments) in [
            (
                "/usr/bin/python3",
                vec![
                    "-c",
                    "import json, subprocess, threading, tempfile\nsubprocess.run(['true'], check=True)\nt = threading.Thread(target=print)\nt.start(); t.join()",
                ],
            ),
            (
                "node",
                vec![
                    "-e",
                    "require('child_process').execFileSync('true'); new Promise(r => setTimeout(r, 1))",
                ],
            ),
            ("perl", vec!["-e", "system('true') == 0 or die"]),
            ("git", vec!["-c", "safe.directory=*", "init", "-q", "src/repository"]),
            ("npm", vec!["--version"]),
        ] {
            let world = World::new();
            let mut command = command(program, &arguments);
            command.current_dir = world.root.join("project");
            command.environment.insert("HOME".to_owned(), world.root.join("temporary").display().to_string());
            command
                .environment
                .insert("TMPDIR".to_owned(), world.root.join("temporary").display().to_string());
            let finished = run_confined(&command, &world.confinement(way));
            assert_eq!(
                finished.exit,
                ExitReason::Exited(0),
                "{program} {way:?}: {}",
                finished.stderr.to_text()
            );
        }
    }
}

#[test]
fn nothing_outside_is_written() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let script = "echo x > ROOT/elsewhere/new; echo x > ROOT/elsewhere/file; truncate -s 0 ROOT/elsewhere/file; \
            rm ROOT/elsewhere/file; mkdir ROOT/d; mv src ROOT/; ln ROOT/elsewhere/file src/hard; \
            chmod 777 /proc/sys/kernel/core_pattern; echo x > /proc/sys/kernel/core_pattern; echo x > /tmp/lillux-x";
        let before = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("a setting");
        run_script(&world, way, script);
        assert_eq!(world.text("elsewhere/file").as_deref(), Some("theirs"), "{way:?}");
        for path in ["elsewhere/new", "d", "src", "project/src/hard"] {
            assert!(!exists(&world.root.join(path)), "{way:?} {path}");
        }
        assert!(exists(&world.root.join("project/src")) && !exists(Path::new("/tmp/lillux-x")));
        assert_eq!(std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("a setting"), before);
    }
}

#[test]
fn links_out_of_project_are_useless() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let finished = run_script(
            &world,
            way,
            "ln -s ROOT/elsewhere/file out; ln -s ROOT/home/.ssh ssh; echo x > out; cat ssh/key; echo done",
        );
        assert_eq!(finished.stdout.to_text(), "done\n", "{way:?}");
        assert_eq!(world.text("elsewhere/file").as_deref(), Some("theirs"));
    }
}

#[test]
fn hidden_files_are_not_read_by_any_path() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let script = "cat ROOT/home/.ssh/key ROOT/home/.token ROOT/home/../home/.ssh/key /proc/self/root/ROOT/home/.token; \
            cd ROOT/home/.ssh && cat key; cp -r ROOT/home/.ssh src/; mv ROOT/home/.ssh src/; cat src/.ssh/key; \
            mkdir ROOT/home/.absent; echo done";
        let finished = run_script(&world, way, script);
        assert_eq!(finished.stdout.to_text(), "done\n", "{way:?}");
        assert!(!exists(&world.root.join("home/.absent")));
        assert_eq!(world.text("home/.ssh/key").as_deref(), Some("secret"));
    }
}

#[test]
fn home_as_project_exposes_no_secrets() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let mut confinement = world.confinement(way);
        confinement.write = vec![world.root.join("home"), world.root.join("temporary")];
        std::fs::create_dir(world.root.join("home/work")).expect("a folder");
        let script = "cat .ssh/key .token; echo x >> .ssh/authorized_keys; rm -rf .ssh .token; mv .ssh s; mv .token t; \
            cat s/key t; mkdir -p .absent/deeper; echo ok > work/new; cat work/new";
        let mut command = bash(script);
        command.current_dir = world.root.join("home");
        let finished = run_confined(&command, &confinement);
        assert_eq!(finished.stdout.to_text(), "ok\n", "{way:?} {}", finished.stderr.to_text());
        assert_eq!(world.text("home/.ssh/key").as_deref(), Some("secret"), "{way:?}");
        assert_eq!(world.text("home/.token").as_deref(), Some("secret"), "{way:?}");
        for path in ["home/.ssh/authorized_keys", "home/.absent/deeper", "home/s", "home/t"] {
            assert!(!exists(&world.root.join(path)), "{way:?} {path}");
        }
    }
}

#[test]
fn read_only_paths_in_project_stay_unchanged() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let script = "echo x > .ai/config/config.yaml; echo x > .ai/config/new; rm -rf .ai/config; mv .ai/config c; \
            mv .ai moved; mkdir -p .ai/config; echo x > .ai/config/config.yaml; cat .ai/config/config.yaml";
        let finished = run_script(&world, way, script);
        assert_eq!(finished.stdout.to_text(), "kept", "{way:?}");
        assert_eq!(world.text("project/.ai/config/config.yaml").as_deref(), Some("kept"), "{way:?}");
        let entries = std::fs::read_dir(world.root.join("project/.ai/config")).expect("a folder").count();
        assert_eq!((entries, exists(&world.root.join("project/moved"))), (1, false), "{way:?}");
    }
}

#[test]
fn read_only_link_is_not_replaced() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let config = world.root.join("project/.ai/config");
        std::fs::rename(&config, world.root.join("elsewhere/config")).expect("moved");
        std::os::unix::fs::symlink(world.root.join("elsewhere/config"), &config).expect("a link");
        run_script(
            &world,
            way,
            "rm -f .ai/config; mv .ai/config c; mv .ai m; mkdir -p .ai/config; echo x > .ai/config/x",
        );
        assert!(config.is_symlink(), "{way:?}");
        assert_eq!(world.text("elsewhere/config/config.yaml").as_deref(), Some("kept"));
    }
}

#[test]
fn writable_folder_inside_read_only_stays_writable() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let mut confinement = world.confinement(way);
        std::fs::create_dir(world.root.join("project/.ai/config/scratch")).expect("a folder");
        confinement.write.push(world.root.join("project/.ai/config/scratch"));
        let mut command =
            bash("echo x > .ai/config/scratch/x; echo x > .ai/config/config.yaml; cat .ai/config/scratch/x");
        command.current_dir = world.root.join("project");
        assert_eq!(run_confined(&command, &confinement).stdout.to_text(), "x\n", "{way:?}");
        assert_eq!(world.text("project/.ai/config/config.yaml").as_deref(), Some("kept"), "{way:?}");
    }
}

#[test]
fn writable_folder_swapped_for_link_is_refused() {
    let world = World::new();
    std::os::unix::fs::symlink(world.root.join("elsewhere"), world.root.join("project/out")).expect("a link");
    for way in NAMESPACE_MODES {
        let mut confinement = world.confinement(way);
        confinement.write = vec![world.root.join("project/out")];
        let result = run(
            &launcher(),
            &bash("echo x > ROOT"),
            Some(&confinement),
            &CancelToken::new().expect("an event"),
        );
        assert!(matches!(result, Err(RunError::Failed { reason }) if reason.contains("following a link")));
    }
}

#[test]
fn strict_read_access_shows_nothing_else() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let mut confinement = world.confinement(way);
        confinement.read = ReadAccess::Only(
            ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"].iter().map(PathBuf::from).collect(),
        );
        let mut command =
            bash(&format!("cat {0}/home/plain {0}/elsewhere/file; ls /; echo done", world.root.display()));
        command.current_dir = world.root.join("project");
        assert_eq!(run_confined(&command, &confinement).stdout.to_text(), "done\n", "{way:?}");
    }
}

#[test]
fn a_disk_is_not_read() {
    for way in NAMESPACE_MODES {
        let finished = run_script(
            &World::new(),
            way,
            "for device in /dev/[a-z]*; do [ -b $device ] && head -c 1 $device | wc -c; done; \
             head -c 1 /dev/mem /dev/kmsg; mknod d b 8 0; echo done",
        );
        let text = finished.stdout.to_text();
        assert!(text.ends_with("done\n") && !text.contains('1'), "{way:?} {text}");
    }
}

#[test]
fn a_closed_network_reaches_no_listener() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = tcp.local_addr().expect("an address").port();
    for way in NAMESPACE_MODES {
        let world = World::new();
        let path = world.root.join("project/socket");
        let unix = UnixListener::bind(&path).expect("a listener");
        unix.set_nonblocking(true).expect("set");
        tcp.set_nonblocking(true).expect("set");
        let script = format!(
            "
import socket
def attempt(family, kind, address):
    try:
        s = socket.socket(family, kind); s.connect(address); print('connected', family)
    except OSError as error: print(error.errno)
attempt(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {port}))
attempt(socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', {port}))
attempt(socket.AF_UNIX, socket.SOCK_STREAM, '{}')
a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))
",
            path.display()
        );
        let finished = run_confined(&python(&script), &world.confinement(way));
        assert_eq!(finished.stdout.to_text(), "13\n13\n13\nb'x'\n", "{way:?} {}", finished.stderr.to_text());
        assert!(tcp.accept().is_err() && unix.accept().is_err());
    }
}

#[test]
fn open_network_blocks_agents_and_odd_families() {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = tcp.local_addr().expect("an address").port();
    for way in NAMESPACE_MODES {
        let world = World::new();
        let agent = world.root.join("elsewhere/agent");
        let unix = UnixListener::bind(&agent).expect("a listener");
        unix.set_nonblocking(true).expect("set");
        let mut confinement = world.confinement(way);
        confinement.network = NetworkAccess::Open;
        let script = format!(
            "
import socket
s = socket.create_connection(('127.0.0.1', {port})); s.send(b'hello'); s.close()
for family, kind, protocol in [(17, 3, 0), (40, 1, 0), (16, 3, 9), (38, 5, 0)]:
    try: socket.socket(family, kind, protocol); print('made', family)
    except OSError as error: print(error.errno)
try:
    socket.socket(socket.AF_UNIX).connect('{}'); print('connected')
except OSError: print('closed')
",
            agent.display()
        );
        let finished = run_confined(&python(&script), &confinement);
        assert_eq!(
            finished.stdout.to_text(),
            "13\n13\n13\n13\nclosed\n",
            "{way:?} {}",
            finished.stderr.to_text()
        );
        let mut received = String::new();
        tcp.accept().expect("a connection").0.read_to_string(&mut received).expect("heard");
        assert_eq!((received.as_str(), unix.accept().is_err()), ("hello", true), "{way:?}");
    }
}

#[test]
fn other_processes_are_out_of_reach() {
    for way in NAMESPACE_MODES {
        let own = std::process::id();
        let mut victim = std::process::Command::new("sleep").arg("600").spawn().expect("a victim");
        let script = format!(
            "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try: action(); print(name)
    except OSError: pass
for pid in ({own}, {victim}, os.getppid()):
    for name in ('environ', 'mem', 'maps', 'root/etc/hostname', 'cwd/etc'):
        attempt(name, lambda: open(f'/proc/{{pid}}/{{name}}', 'rb').read(1))
    if libc.ptrace(16, pid, 0, 0) == 0: print('traced')
for pid in ({own}, {victim}):
    attempt('killed', lambda: os.kill(pid, 15))
attempt('killed', lambda: os.kill(os.getppid(), 9))
print('done')
",
            victim = victim.id()
        );
        let finished = run_confined(&python(&script), &World::new().confinement(way));
        // Killing process 1 of a namespace from inside is allowed and does nothing.
        let text = finished
            .stdout
            .to_text()
            .replace("killed\n", if way == NamespaceMode::Auto { "" } else { "killed\n" });
        assert_eq!(
            (finished.exit, text.as_str()),
            (ExitReason::Exited(0), "done\n"),
            "{way:?} {}",
            finished.stderr.to_text()
        );
        assert!(victim.try_wait().expect("asked").is_none(), "{way:?}");
        victim.kill().expect("killed");
        victim.wait().expect("ended");
    }
}

#[test]
fn dangerous_calls_are_refused() {
    let script = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    answer = libc.syscall(*arguments)
    return ctypes.get_errno() if answer == -1 else 'allowed'
print(call(272, 0x10000000), call(165, 0, 0, 0, 0, 0), call(425, 1, 0), call(321, 0, 0, 0), call(250, 0, 0), call(304, 0, 0, 0))
print(call(56, 0x10000000 | 17, 0, 0, 0, 0), call(435, 0, 0), call(135, 0x0040000), call(16, 0, 0x5412, 0), call(0x40000000 + 39))
print(open('/proc/self/status').read().split('NoNewPrivs:')[1].split()[0])
";
    for way in NAMESPACE_MODES {
        let finished = run_confined(&python(script), &World::new().confinement(way));
        assert_eq!(
            finished.stdout.to_text(),
            "1 1 1 1 1 1\n1 38 1 1 38\n1\n",
            "{way:?} {}",
            finished.stderr.to_text()
        );
    }
}

#[test]
fn root_keeps_no_privileges_over_its_own_files() {
    for way in NAMESPACE_MODES {
        let finished = run_script(&World::new(), way, "grep -E 'Cap(Prm|Eff|Bnd|Amb)' /proc/self/status");
        let is_root = rustix::process::geteuid().is_root();
        let none = "0000000000000000";
        let text = finished.stdout.to_text();
        let capabilities: Vec<&str> = text.lines().filter_map(|line| line.split('\t').nth(1)).collect();
        assert_eq!(&capabilities[..2], [none, none], "{way:?}");
        assert_eq!(capabilities[3], "0000000000000000");
        assert!(!is_root || capabilities[2] == none, "{way:?} {text}");
    }
}

#[test]
fn fork_bomb_is_stopped_when_confined() {
    // Bounded by itself, at 512 processes in 512 sessions, so that a failure of this test spares the machine.
    let script = "
import os, time
for level in range(9):
    if os.fork() == 0:
        os.setsid()
time.sleep(600)
";
    for way in NAMESPACE_MODES {
        let mut command = python(script);
        command.limits.processes = 40;
        let finished = run_confined(&command, &World::new().confinement(way));
        assert_eq!(finished.exit, ExitReason::TooManyProcesses { limit: 40 }, "{way:?}");
        assert_eq!(leftover_processes(&command), Vec::<String>::new(), "{way:?}");
    }
}

#[test]
fn shared_memory_is_private_to_the_run() {
    let name = format!("/dev/shm/lillux-{}", std::process::id());
    let finished = run_script(&World::new(), NamespaceMode::Auto, &format!("echo x > {name}; cat {name}"));
    assert_eq!((finished.stdout.to_text().as_str(), exists(Path::new(&name))), ("x\n", false));
    let finished = run_script(&World::new(), NamespaceMode::Never, &format!("echo x > {name}; echo done"));
    assert_eq!((finished.stdout.to_text().as_str(), exists(Path::new(&name))), ("done\n", false));
}

/// Where a run has no namespaces, what programs of a user share stays closed to it.
#[test]
fn memory_and_priorities_of_others_are_out_of_reach() {
    let script = "perl -e 'my @made = (defined(shmget(0, 64, 01600)), defined(msgget(0, 01600)), \
        defined(semget(0, 1, 01600)), setpriority(2, 0, 19), setpriority(1, 0, 19)); \
        print join(\" \", map { $_ ? 1 : 0 } @made, setpriority(0, 0, 7))'";
    let finished = run_script(&World::new(), NamespaceMode::Never, script);
    assert_eq!(finished.stdout.to_text(), "0 0 0 0 0 1");
    let finished = run_script(&World::new(), NamespaceMode::Auto, script);
    assert!(finished.stdout.to_text().starts_with("1 1 1 "), "{}", finished.stdout.to_text());
}

#[test]
fn a_path_that_is_not_absolute_is_refused() {
    for path in ["relative", "/a/../b"] {
        let mut confinement = World::new().confinement(NamespaceMode::Auto);
        confinement.hidden = vec![PathBuf::from(path)];
        let result =
            run(&launcher(), &bash("true"), Some(&confinement), &CancelToken::new().expect("an event"));
        assert!(matches!(result, Err(RunError::Failed { reason }) if reason.contains("absolute")));
    }
}

#[test]
fn probe_reports_full_enforcement() {
    let receipt = probe(&launcher()).expect("it ran");
    assert_eq!((receipt.level, receipt.unenforced()), (EnforcementLevel::Full, vec![]));
}
