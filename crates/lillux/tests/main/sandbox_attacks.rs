//! Attacks on what lies outside the files a run may write: sockets, modes and owners, terminals, homes, reserved names.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;

use lillux::CancelToken;
use lillux::process::{ExitReason, ProcessCommand, RunError, run};
use lillux::sandbox::placeholders::{PlaceholderContent, PlaceholderGuard, ReservedName};
use lillux::sandbox::{
    Confinement, Mechanism, MissingRulePolicy, NamespaceMode, NetworkAccess, Replacement, SandboxRule,
};

use crate::confinement::{
    NAMESPACE_MODES, World, expected_unenforced, is_enforced_by, run_confined, run_script,
};
use crate::support::{bash, exists, launcher, python};

/// A command that works in the world's project, with `ROOT` replaced.
fn in_project(world: &World, mut command: ProcessCommand) -> ProcessCommand {
    for argument in &mut command.arguments {
        *argument = argument.replace("ROOT", &world.root.display().to_string());
    }
    command.current_dir = world.root.join("project/src");
    let temporary = world.root.join("temporary").display().to_string();
    command.environment.insert("TMPDIR".to_owned(), temporary);
    command
}

/// Tries to reach sockets outside by every kind of call, and says which it reached.
const CONNECT_SCRIPT: &str = "
import ctypes, os, socket, threading
def attempt(name, action):
    try: action(); print('reached', name)
    except OSError as error: print(name, error.errno)
def stream(path, kind=socket.SOCK_STREAM):
    s = socket.socket(socket.AF_UNIX, kind); s.connect(path); return s
outside = 'ROOT/elsewhere/agent'
os.symlink(outside, 'link')
os.chdir('ROOT/elsewhere')
attempt('relative', lambda: stream('agent'))
os.chdir('ROOT/project/src')
attempt('absolute', lambda: stream(outside))
attempt('link', lambda: stream('link'))
attempt('project', lambda: stream('../inside'))
attempt('proc', lambda: stream('/proc/self/root' + outside))
attempt('abstract', lambda: stream('\\0lillux'))
attempt('sequence', lambda: stream(outside, socket.SOCK_SEQPACKET))
attempt('datagram', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', 'ROOT/elsewhere/log'))
attempt('raw', lambda: socket.socket(socket.AF_UNIX, socket.SOCK_RAW).sendto(b'x', 'ROOT/elsewhere/log'))
attempt('pair', lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', 'ROOT/elsewhere/log'))
a, b = socket.socketpair()
attempt('connected', lambda: a.connect(outside))
attempt('hard link', lambda: (os.link(outside, 'ROOT/temporary/hard'), stream('ROOT/temporary/hard')))
attempt('made', lambda: socket.socket(socket.AF_UNIX).bind('ROOT/project/src/made'))
";

#[test]
fn no_foreign_unix_socket_is_reached() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let agent = UnixListener::bind(world.root.join("elsewhere/agent")).expect("a listener");
        let inside = UnixListener::bind(world.root.join("project/inside")).expect("a listener");
        let log = UnixDatagram::bind(world.root.join("elsewhere/log")).expect("a socket");
        for listener in [&agent, &inside] {
            listener.set_nonblocking(true).expect("set");
        }
        log.set_nonblocking(true).expect("set");
        for network in [NetworkAccess::Open, NetworkAccess::Closed] {
            let _ = std::fs::remove_file(world.root.join("project/src/link"));
            let confinement = Confinement { network, ..world.confinement(way) };
            let finished = run_confined(&in_project(&world, python(CONNECT_SCRIPT)), &confinement);
            let text = finished.stdout.to_text();
            assert_eq!(text.lines().count(), 13, "{way:?} {text} {}", finished.stderr.to_text());
            assert!(!text.contains("reached"), "{way:?} {network:?} {text}");
            assert!(agent.accept().is_err() && inside.accept().is_err() && log.recv(&mut [0]).is_err());
            assert!(is_enforced_by(&finished.receipt, SandboxRule::UnixSockets, Mechanism::Seccomp));
        }
    }
}

#[test]
fn address_changed_during_connect_is_ignored() {
    // One thread connects to a socket of its own while another one writes a foreign path over the address and swaps
    // the descriptor.
    let script = "
import ctypes, os, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
own, outside = b'ROOT/temporary/own', b'ROOT/elsewhere/agent'
listener = socket.socket(socket.AF_UNIX); listener.bind(own.decode()); listener.listen(4096)
def address(path): return (1).to_bytes(2, 'little') + path.ljust(107, b'\\0')
memory = ctypes.create_string_buffer(address(own), 109)
stop = False
def swap():
    while not stop:
        ctypes.memmove(memory, address(outside), 109)
        ctypes.memmove(memory, address(own), 109)
thread = threading.Thread(target=swap); thread.start()
made = 0
for _ in range(300):
    s = socket.socket(socket.AF_UNIX)
    made += libc.connect(s.fileno(), memory, 109) == 0
    s.close()
stop = True; thread.join()
print('made', made > 0)
";
    for way in NAMESPACE_MODES {
        let world = World::new();
        let agent = UnixListener::bind(world.root.join("elsewhere/agent")).expect("a listener");
        agent.set_nonblocking(true).expect("set");
        let finished = run_confined(&in_project(&world, python(script)), &world.confinement(way));
        assert_eq!(finished.stdout.to_text(), "made True\n", "{way:?} {}", finished.stderr.to_text());
        assert!(agent.accept().is_err(), "{way:?}");
    }
}

#[test]
fn sockets_of_the_run_and_allowed_ones_work() {
    let script = "
import multiprocessing, os, socket
from multiprocessing.managers import SyncManager
def double(x): return x * 2
if __name__ == '__main__':
    manager = multiprocessing.Manager(); shared = manager.dict(); shared['a'] = 1; print(dict(shared))
    try:
        with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(double, [1, 2]))
    except PermissionError: print('no shared memory')
    parent, child = multiprocessing.Pipe(); parent.send('x'); print(child.recv())
    s = socket.socket(socket.AF_UNIX); s.connect('ROOT/elsewhere/agent'); print(s.recv(5))
";
    for way in NAMESPACE_MODES {
        let world = World::new();
        let agent = UnixListener::bind(world.root.join("elsewhere/agent")).expect("a listener");
        let greeter = std::thread::spawn(move || {
            let (mut stream, _) = agent.accept().expect("a connection");
            std::io::Write::write_all(&mut stream, b"hello").expect("said");
        });
        let mut confinement = world.confinement(way);
        confinement.sockets.allowed.push(world.root.join("elsewhere/agent"));
        let finished = run_confined(&in_project(&world, python(script)), &confinement);
        let pool = if way == NamespaceMode::Auto { "[2, 4]" } else { "no shared memory" };
        let expected = format!("{{'a': 1}}\n{pool}\nx\nb'hello'\n");
        assert_eq!(finished.stdout.to_text(), expected, "{way:?} {}", finished.stderr.to_text());
        greeter.join().expect("greeted");
    }
}

#[test]
fn blocked_connection_times_out() {
    // A listener that accepts nothing: with its queue full, a blocking connection waits for ever.
    let script = "
import socket
listener = socket.socket(socket.AF_UNIX); listener.bind('ROOT/temporary/full'); listener.listen(0)
kept = []
while True:
    s = socket.socket(socket.AF_UNIX); s.connect('ROOT/temporary/full'); kept.append(s)
";
    let world = World::new();
    let mut command = in_project(&world, python(script));
    command.timeout = std::time::Duration::from_secs(2);
    let finished = run_confined(&command, &world.confinement(NamespaceMode::Auto));
    assert_eq!(finished.exit, ExitReason::TimedOut, "{}", finished.stderr.to_text());
}

#[test]
fn metadata_outside_stays_as_it_is() {
    let script = "
import os
def attempt(name, action):
    try: action(); print('changed', name)
    except OSError: pass
for path in ('ROOT/elsewhere/file', 'ROOT/elsewhere', 'ROOT/home/plain', 'ROOT/project/.ai/config/config.yaml'):
    attempt('mode', lambda: os.chmod(path, 0o600))
    attempt('times', lambda: os.utime(path, (1, 1)))
    attempt('owner', lambda: os.chown(path, os.getuid(), os.getgid()))
    attempt('attribute', lambda: os.setxattr(path, 'user.x', b'x'))
    attempt('by descriptor', lambda: os.fchmod(os.open(path, os.O_RDONLY), 0o600))
    attempt('through proc', lambda: os.chmod('/proc/self/root' + path, 0o600))
os.mkdir('own'); os.chmod('own', 0o700); os.utime('own', (1, 1)); print('own', oct(os.stat('own').st_mode))
";
    let world = World::new();
    let finished = run_confined(&in_project(&world, python(script)), &world.confinement(NamespaceMode::Auto));
    assert_eq!(finished.stdout.to_text(), "own 0o40700\n", "{}", finished.stderr.to_text());
    assert!(is_enforced_by(&finished.receipt, SandboxRule::Metadata, Mechanism::MountNamespace));
}

#[test]
fn unenforced_metadata_is_reported_without_namespaces() {
    let world = World::new();
    let mut confinement = world.confinement(NamespaceMode::Never);
    let finished = run_confined(&bash("true"), &confinement);
    assert_eq!(finished.receipt.unenforced(), expected_unenforced(NamespaceMode::Never));
    confinement.on_missing = MissingRulePolicy::Refuse;
    let result = run(&launcher(), &bash("true"), Some(&confinement), &CancelToken::new().expect("an event"));
    assert!(matches!(result, Err(RunError::Refused { reason, .. }) if reason.contains("metadata")));
}

#[test]
fn no_set_id_bit_is_ever_set() {
    let script = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(*arguments) == -1 else 'done'
def path(name): return name.encode()
open('a', 'w').close(); d = os.open('a', os.O_RDONLY)
print(call(90, path('a'), 0o4755), call(91, d, 0o2755), call(268, -100, path('a'), 0o6755), call(452, -100, path('a'), 0o4755, 0))
print(call(2, path('b'), 0o101, 0o4755), call(257, -100, path('c'), 0o101, 0o2755), call(85, path('e'), 0o4755))
print(call(133, path('f'), 0o104755, 0), call(259, -100, path('g'), 0o104755, 0), call(437, -100, path('h'), 0, 24))
print(call(257, -100, path('.'), 0o20200001, 0o4755))
os.chmod('a', 0o755); os.close(os.open('i', os.O_CREAT | os.O_WRONLY, 0o755)); print(sorted(os.listdir('.')))
";
    for way in NAMESPACE_MODES {
        let world = World::new();
        let finished = run_confined(&in_project(&world, python(script)), &world.confinement(way));
        let expected = "1 1 1 1\n1 1 1\n1 1 38\n1\n['a', 'i']\n";
        assert_eq!(finished.stdout.to_text(), expected, "{way:?} {}", finished.stderr.to_text());
        assert!(is_enforced_by(&finished.receipt, SandboxRule::SetId, Mechanism::Seccomp), "{way:?}");
    }
}

#[test]
fn leases_are_refused() {
    let script = "
import fcntl, os
file = os.open('/etc/passwd', os.O_RDONLY)
for command in (fcntl.F_SETLEASE, fcntl.F_NOTIFY):
    try:
        fcntl.fcntl(file, command, fcntl.F_RDLCK)
        print('done')
    except OSError as error:
        print(error.errno)
print(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE)
";
    for way in NAMESPACE_MODES {
        let world = World::new();
        let finished = run_confined(&in_project(&world, python(script)), &world.confinement(way));
        assert_eq!(finished.stdout.to_text(), "1\n1\n0\n", "{way:?} {}", finished.stderr.to_text());
    }
}

#[test]
fn other_terminals_are_closed_and_own_ones_open() {
    let script = "
import os, sys
for name in sys.argv[1:]:
    try: os.open(name, os.O_RDWR | os.O_NOCTTY); print('opened', name)
    except OSError: pass
try:
    master, slave = os.openpty(); os.write(slave, b'x'); print(os.read(master, 1), os.ttyname(slave))
except OSError as error: print('none', error.errno)
";
    let (master, slave) = terminal();
    for way in NAMESPACE_MODES {
        let world = World::new();
        let mut command = in_project(&world, python(script));
        command.arguments.extend([slave.clone(), "/dev/tty1".to_owned(), "/dev/console".to_owned()]);
        let finished = run_confined(&command, &world.confinement(way));
        let expected = if way == NamespaceMode::Auto { "b'x' /dev/pts/0\n" } else { "none 13\n" };
        let text = finished.stdout.to_text().replace(&format!("opened {slave}\n"), "another\n");
        // The number of the other terminal is free in the run's own `/dev/pts`.
        assert_eq!(text, expected, "{way:?} {}", finished.stderr.to_text());
        assert!(
            finished.receipt.rows.iter().any(|row| row.rule == SandboxRule::Terminals && row.is_enforced)
        );
    }
    drop(master);
}

/// A terminal of the test's own: its master side, and the name of the other.
fn terminal() -> (std::fs::File, String) {
    use std::os::fd::AsRawFd;
    let master = std::fs::OpenOptions::new().read(true).write(true).open("/dev/ptmx").expect("a terminal");
    let number = std::process::Command::new("python3")
        .args([
            "-c",
            "import fcntl, struct; print(struct.unpack('i', fcntl.ioctl(0, 0x80045430, b'....'))[0])",
        ])
        .stdin(master.try_clone().expect("a copy"))
        .output()
        .expect("asked");
    let number = String::from_utf8_lossy(&number.stdout).trim().to_owned();
    assert!(master.as_raw_fd() > 0 && !number.is_empty());
    (master, format!("/dev/pts/{number}"))
}

#[test]
fn homes_show_only_what_is_visible() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let home = world.root.join("home");
        for path in [".tools/bin", ".config/app", "dotfiles", "work"] {
            std::fs::create_dir_all(home.join(path)).expect("folders");
        }
        for path in
            [".tools/bin/program", ".config/app/token", "dotfiles/gitconfig", "work/file", ".tools/secret"]
        {
            std::fs::write(home.join(path), format!("{path}\n")).expect("a file");
        }
        std::os::unix::fs::symlink("dotfiles/gitconfig", home.join(".gitconfig")).expect("a link");
        let mut confinement = world.confinement(way);
        confinement.homes = vec![home.clone()];
        confinement.visible =
            vec![home.join(".tools"), home.join(".absent"), world.root.join("project/swapped")];
        confinement.visible_links =
            vec![Replacement { path: home.join(".gitconfig"), with: home.join("dotfiles/gitconfig") }];
        // A link that took the place of a folder after it was looked at.
        std::os::unix::fs::symlink(home.join(".config"), world.root.join("project/swapped")).expect("a link");
        confinement.hidden.push(home.join(".tools/secret"));
        confinement.write.push(home.join("work"));
        let script = "cat ROOT/home/.tools/bin/program ROOT/home/.gitconfig ROOT/home/work/file; \
            cat ROOT/home/plain ROOT/home/.config/app/token ROOT/home/.ssh/key ROOT/home/.token ROOT/home/.tools/secret \
            ROOT/project/../home/plain /proc/1/root/ROOT/home/plain ROOT/project/swapped/app/token; \
            echo new > ROOT/home/work/new; echo x > ROOT/home/new; mkdir ROOT/home/.config2; echo x > ROOT/home/.tools/x; \
            mv ROOT/home/.tools ROOT/home/t; cat ROOT/home/work/new";
        let finished = run_confined(&in_project(&world, bash(script)), &confinement);
        let expected = ".tools/bin/program\ndotfiles/gitconfig\nwork/file\nnew\n";
        assert_eq!(finished.stdout.to_text(), expected, "{way:?} {}", finished.stderr.to_text());
        assert_eq!(
            finished.receipt.unenforced(),
            expected_unenforced(way),
            "{way:?} {:?}",
            finished.receipt.rows
        );
        for path in ["new", ".config2", ".tools/x", "t"] {
            assert!(!exists(&home.join(path)), "{way:?} {path}");
        }
    }
}

#[test]
fn reserved_names_cannot_be_created() {
    for way in NAMESPACE_MODES {
        let world = World::new();
        let project = world.root.join("project");
        std::fs::create_dir_all(project.join(".git/info")).expect("folders");
        std::os::unix::fs::symlink("src/target", project.join(".envrc")).expect("a link");
        let name = |path: &str, content| ReservedName { path: project.join(path), content };
        let names = [
            name(".git/commondir", PlaceholderContent::File(".\n".to_owned())),
            name(".git/info/attributes", PlaceholderContent::File(String::new())),
            name(".mcp.json", PlaceholderContent::File("{}\n".to_owned())),
            name(".envrc", PlaceholderContent::File(String::new())),
            name(".vscode", PlaceholderContent::Folder),
            name(".cargo/config.toml", PlaceholderContent::File(String::new())),
        ];
        let records = world.root.join("records");
        let guard = PlaceholderGuard::acquire(&records, &project, &names).expect("placeholders");
        let mut confinement = world.confinement(way);
        confinement.read_only.extend(guard.existing.clone());
        confinement.placeholders.clone_from(&guard.placeholders);
        let script = "cd ..; for name in .git/commondir .git/info/attributes .mcp.json .envrc .vscode/tasks.json \
            .cargo/config.toml .cargo/config; do echo x > $name; rm -rf $name; mv $name moved; ln -sf src $name; done; \
            mv .git/info i; mv .git g; mv .vscode v; rmdir .vscode .cargo; \
            cat .mcp.json .git/commondir; echo done > src/new; rm -rf i g v moved";
        let finished = run_confined(&in_project(&world, bash(script)), &confinement);
        assert_eq!(finished.stdout.to_text(), "{}\n.\n", "{way:?} {}", finished.stderr.to_text());
        assert_eq!(finished.exit, ExitReason::Exited(0), "{way:?}");
        drop(guard);
        let mut left: Vec<PathBuf> = Vec::new();
        for folder in [&project, &project.join(".git"), &project.join(".git/info")] {
            left.extend(folder.read_dir().expect("listed").map(|entry| entry.expect("an entry").path()));
        }
        left.sort();
        let expected = [".ai", ".envrc", ".git", ".git/info", "src"].map(|name| project.join(name));
        assert_eq!(left, expected, "{way:?} {}", finished.stderr.to_text());
        assert!(project.join(".envrc").is_symlink(), "{way:?}");
    }
}

#[test]
fn placeholders_protect_prewarmed_sandboxes() {
    let world = World::new();
    let project = world.root.join("project");
    let names = [ReservedName {
        path: project.join(".mcp.json"),
        content: PlaceholderContent::File("{}\n".to_owned()),
    }];
    let launcher = launcher().with_pool();
    for _ in 0..6 {
        let guard = PlaceholderGuard::acquire(&world.root.join("records"), &project, &names).expect("held");
        let mut confinement = world.confinement(NamespaceMode::Auto);
        confinement.placeholders.clone_from(&guard.placeholders);
        let command = in_project(
            &world,
            bash("cd ..; rm -f .mcp.json; echo x > .mcp.json; mv .mcp.json x; cat .mcp.json"),
        );
        let finished = run(&launcher, &command, Some(&confinement), &CancelToken::new().expect("an event"));
        let finished = finished.expect("it ran");
        assert_eq!(finished.stdout.to_text(), "{}\n", "{}", finished.stderr.to_text());
        drop(guard);
        assert!(!exists(&project.join(".mcp.json")) && !exists(&project.join("x")));
    }
}

#[test]
fn read_only_mounts_stay_read_only() {
    let world = World::new();
    let finished = run_script(
        &world,
        NamespaceMode::Auto,
        "touch src/x && stat -c %a src/x; touch /etc/x; chmod 777 /etc",
    );
    assert_eq!(finished.stdout.to_text(), "644\n");
    let mode = std::fs::metadata("/etc").expect("a folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[test]
fn supervisors_keep_their_limits_and_priorities() {
    let script = "
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, action):
    try: action(); print('changed', name)
    except OSError as error: print(name, error.errno)
supervisor = os.getppid()
attempt('limit', lambda: resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (1, 1)))
attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, supervisor, 19))
attempt('scheduler', lambda: os.sched_setscheduler(supervisor, os.SCHED_IDLE, os.sched_param(0)))
attempt('processors', lambda: os.sched_setaffinity(supervisor, {0}))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.setpriority(os.PRIO_PROCESS, 0, 5); print('own')
";
    for way in NAMESPACE_MODES {
        let world = World::new();
        let finished = run_confined(&in_project(&world, python(script)), &world.confinement(way));
        let expected = "limit 1\npriority 1\nscheduler 1\nprocessors 1\nown\n";
        assert_eq!(finished.stdout.to_text(), expected, "{way:?} {}", finished.stderr.to_text());
        assert_eq!(finished.exit, ExitReason::Exited(0), "{way:?}");
    }
}
