//! Tools that attack: each attempt is stopped, the receipt names what stopped it, and no process is left.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{User, run, snapshot, text};
use crate::tool_support::{
    RYE, assert_no_processes, execute, execute_error, execute_with, sandbox_settings, write_function,
    write_function_with, write_shell_tool,
};

/// Defines `attempt(function, …)` for a tool: `"done"`, or the name of the error.
const ATTEMPT_HELPER: &str = r#"
import errno, os, signal, socket, sys, time
def attempt(function, *arguments):
    try:
        function(*arguments)
        return "done"
    except OSError as error:
        return errno.errorcode.get(error.errno, "?")
def write(path):
    with open(path, "a") as file:
        file.write("evil")
def read(path):
    with open(path, "rb") as file:
        if not file.read():
            raise OSError(errno.ENODATA, "empty")
"#;

pub fn write_attacker(user: &User, metadata: &str, body: &str) {
    write_function_with(user, "attack", metadata, &format!("{ATTEMPT_HELPER}\n{}", body.trim_matches('\n')));
}

/// A mark that every process of this user's runs carries, and no other.
fn marker(user: &User) -> String {
    user.home().display().to_string()
}

/// Asserts that the receipt says this rule is in force by this mechanism. A machine without it fails the test.
fn assert_enforced(answer: &Value, rule: &str, mechanism: &str) {
    let rows = answer["sandbox"]["rows"].as_array().unwrap_or_else(|| panic!("no receipt: {answer}"));
    assert!(
        rows.iter()
            .any(|row| row["rule"] == rule && row["mechanism"] == mechanism && row["is_enforced"] == true),
        "{rule} is not enforced by {mechanism}: {answer:#}"
    );
    assert_eq!(answer["sandbox"]["level"], "full", "{answer:#}");
}

/// What became of each attempt that is a key of `done`.
pub fn assert_all_refused(done: &Value) {
    let attempts = done.as_object().expect("attempts");
    assert!(!attempts.is_empty());
    for (attempt, outcome) in attempts {
        assert_ne!(outcome, "done", "{attempt} was not stopped: {done}");
    }
}

#[test]
fn receipt_names_every_rule_and_mechanism() {
    let user = User::initialized();
    write_function_with(&user, "quiet", "SANDBOX = {'network': False}", "return 1");
    let answer = execute(&user, "quiet", &[]);
    for (rule, mechanism) in [
        ("writes", "landlock"),
        ("hidden", "mount_namespace"),
        ("read_only", "mount_namespace"),
        ("network", "network_namespace"),
        ("network", "landlock"),
        ("unix_sockets", "seccomp"),
        ("set_id", "seccomp"),
        ("metadata", "mount_namespace"),
        ("terminals", "mount_namespace"),
        ("system_calls", "seccomp"),
        ("other_processes", "pid_namespace"),
        ("descendants", "pid_namespace"),
        ("privileges", "capabilities"),
        ("processes", "counting"),
        ("resources", "resource_limit"),
    ] {
        assert_enforced(&answer, rule, mechanism);
    }
    let rows = answer["sandbox"]["rows"].as_array().expect("rows");
    for row in rows.iter().filter(|row| row["mechanism"] == "landlock") {
        assert!(row["abi"].as_u64().is_some_and(|abi| abi >= 3), "{row}");
    }
}

#[test]
fn writes_outside_the_project_fail() {
    let user = User::initialized();
    let outside = user.context.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    user.context.write("outside/theirs", "theirs");
    std::os::unix::fs::symlink(&outside, user.project().join("out")).expect("a link");
    write_attacker(
        &user,
        "",
        r#"
home, outside = os.environ["HOME"], params["outside"]
os.symlink(outside, "own-link")
paths = [home + "/.bashrc", home + "/x", home + "/.ai/x", "/tmp/rye-evil", "/var/tmp/rye-evil", "/etc/rye-evil", "/rye-evil",
         outside + "/new", outside + "/theirs", "out/new", "own-link/new", "own-link/theirs"]
done = {path: attempt(write, path) for path in paths}
done["truncate"] = attempt(os.truncate, outside + "/theirs", 0)
done["unlink"] = attempt(os.unlink, outside + "/theirs")
done["rename in"] = attempt(os.rename, outside + "/theirs", "mine")
done["hard link"] = attempt(os.link, outside + "/theirs", "mine")
done["mkdir"] = attempt(os.mkdir, outside + "/folder")
write("inside")
return done
"#,
    );
    let before = (snapshot(&user.home().join(".ai/config")), snapshot(&outside));
    let answer = execute(
        &user,
        "attack",
        &["--params", &json!({"outside": outside.display().to_string()}).to_string()],
    );
    assert_all_refused(&answer["data"]);
    assert_enforced(&answer, "writes", "landlock");
    assert_eq!((snapshot(&user.home().join(".ai/config")), snapshot(&outside)), before);
    assert_eq!(user.context.read("project/inside"), b"evil");
    for path in ["/tmp/rye-evil", "/var/tmp/rye-evil", "/etc/rye-evil", "/rye-evil"] {
        assert!(!Path::new(path).exists(), "{path}");
    }
}

#[test]
fn keys_and_secrets_are_unreadable() {
    let user = User::initialized();
    user.context.write("home/.ssh/id_ed25519", "secret");
    user.context.write("home/.gnupg/private", "secret");
    user.context.write("home/.netrc", "secret");
    user.context.write("home/.ai/config/keys/signing/thread_secret", "secret");
    let key = user.home().join(".ai/config/keys/signing/private_key.pem");
    std::os::unix::fs::symlink(&key, user.project().join("key-link")).expect("a link");
    write_attacker(
        &user,
        "",
        r#"
home = os.environ["HOME"]
paths = [home + "/.ai/config/keys/signing/private_key.pem", home + "/.ai/config/keys/signing/thread_secret", home + "/.ssh/id_ed25519", home + "/.gnupg/private", home + "/.netrc",
         "key-link", "/proc/self/root" + home + "/.ssh/id_ed25519", "/etc/shadow"]
done = {path: attempt(read, path) for path in paths}
import subprocess
done["a program"] = "done" if b"secret" in subprocess.run(["cat", home + "/.ssh/id_ed25519"], capture_output=True).stdout else "no"
return done
"#,
    );
    let answer = execute(&user, "attack", &[]);
    assert_all_refused(&answer["data"]);
    assert_enforced(&answer, "hidden", "mount_namespace");
}

#[test]
fn protected_project_files_are_read_only() {
    let user = User::initialized();
    let saved = [".ai/config", ".ai/lockfiles", ".ai/threads", ".ai/bundles", "lockfiles"];
    for folder in saved {
        user.context.write(&format!("project/{folder}/x"), "as it was");
    }
    write_attacker(
        &user,
        "",
        r#"
done = {}
for folder in params["kept"]:
    done[folder + " new"] = attempt(write, folder + "/new")
    done[folder + " old"] = attempt(write, folder + "/x")
    done[folder + " unlink"] = attempt(os.unlink, folder + "/x")
    done[folder + " rename"] = attempt(os.rename, folder, folder + "-aside")
done[".ai rename"] = attempt(os.rename, ".ai", "aside")
return done
"#,
    );
    let before = snapshot(&user.project());
    let answer = execute(&user, "attack", &["--params", &json!({ "kept": saved }).to_string()]);
    assert_all_refused(&answer["data"]);
    assert_enforced(&answer, "read_only", "mount_namespace");
    assert_eq!(snapshot(&user.project()), before);
}

#[test]
fn a_daemon_does_not_outlive_its_tool() {
    let user = User::initialized();
    write_attacker(
        &user,
        "",
        r#"
sys.stdout.flush()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(64):
            attempt(os.close, number)
        os.setsid() if os.getpid() != os.getsid(0) else None
        write("daemon-" + str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not any(name.startswith("daemon-") for name in os.listdir(".")):
    time.sleep(0.01)
return "left a daemon"
"#,
    );
    let answer = execute(&user, "attack", &[]);
    assert_eq!(answer["data"], "left a daemon");
    assert_enforced(&answer, "descendants", "pid_namespace");
    assert_no_processes(&marker(&user));
    write_shell_tool(
        &user,
        "background",
        "",
        "(setsid nohup sleep 600 >/dev/null 2>&1 &)\nnohup sleep 600 >/dev/null 2>&1 &\ndisown\necho 1",
    );
    assert_eq!(execute_with(&user, "background", &json!({})), json!(1));
    assert_no_processes(&marker(&user));
}

#[test]
fn daemon_ignoring_signals_ends_at_timeout() {
    let user = User::initialized();
    write_attacker(
        &user,
        "CONFIG = {'timeout': 1}",
        r#"
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
while True:
    time.sleep(600)
"#,
    );
    let answer = execute_error(&user, "attack", &[], 1, "RYE0802");
    assert_enforced(&answer, "descendants", "pid_namespace");
    assert_no_processes(&marker(&user));
}

#[test]
fn file_size_limit_is_enforced() {
    let user = User::initialized();
    sandbox_settings(&user, "limits:\n  file_megabytes: 1\n");
    write_function(
        &user,
        "grow",
        "with open('large', 'wb', buffering=0) as file:\n    while True:\n        file.write(b'x' * 65536)",
    );
    let answer = execute_error(&user, "grow", &[], 1, "RYE0801");
    assert_eq!(answer["error"], "OSError: [Errno 27] File too large");
    assert_enforced(&answer, "resources", "resource_limit");
    assert_eq!(fs::metadata(user.project().join("large")).expect("the file").len(), 1 << 20);
    // A tool's own declaration cannot loosen it.
    let declares = "SANDBOX = {'limits': {'file_megabytes': 4096}}";
    write_function_with(
        &user,
        "more",
        declares,
        "with open('larger', 'wb') as file:\n    file.truncate(2 << 20)",
    );
    execute_error(&user, "more", &[], 1, "RYE0801");
    write_shell_tool(&user, "spills", "", "head -c 2000000 /dev/zero > spilled; echo \"$?\"");
    assert_ne!(execute_with(&user, "spills", &json!({})), json!(0));
    assert_eq!(fs::metadata(user.project().join("spilled")).expect("the file").len(), 1 << 20);
}

/// The most memory a process has held so far, in KiB.
fn peak_memory(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn huge_output_uses_bounded_memory() {
    let user = User::initialized();
    write_shell_tool(&user, "floods", "", "head -c 300000000 /dev/zero | tr '\\0' 'x'\necho\necho '\"end\"'");
    let mut command = user.program(RYE);
    command.args(["--json", "execute", "team/floods", "--trace"]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
    let mut stdout = child.stdout.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        stdout.read_to_end(&mut text).map(|_| text)
    });
    let mut peak = 0;
    let status = loop {
        peak = peak_memory(&child).unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().expect("a state") {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    let printed = reader.join().expect("read").expect("output");
    assert!(status.success());
    assert!(printed.len() < 4 << 20, "{} bytes", printed.len());
    let answer: Value = serde_json::from_slice(&printed).expect("JSON");
    assert_eq!((&answer["data"], &answer["truncated"]), (&json!("end"), &json!(true)));
    let run = answer["trace"].as_array().expect("a trace").iter().find(|row| row["step"] == "run");
    assert_eq!(run.expect("a run")["stdout_bytes"], 300_000_007);
    assert!(peak > 0 && peak < 150 << 10, "{peak} KiB");
}

#[test]
fn fork_bomb_is_stopped_and_reported() {
    let user = User::initialized();
    sandbox_settings(&user, "limits:\n  processes: 50\n");
    // It ends by itself at 400 processes and after half a minute, whatever happens.
    write_attacker(
        &user,
        "",
        r#"
for count in range(400):
    if os.fork() == 0:
        if count % 2:
            os.setsid()
        time.sleep(30)
        os._exit(0)
time.sleep(30)
"#,
    );
    let answer = execute_error(&user, "attack", &[], 1, "RYE0804");
    assert_eq!(answer["error"], "it started more than 50 processes");
    assert_enforced(&answer, "processes", "counting");
    assert_no_processes(&marker(&user));
}

#[test]
fn disabled_network_is_unreachable() {
    let user = User::initialized();
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let path = user.project().join("listener.sock");
    let _unix = UnixListener::bind(&path).expect("a listener");
    let body = r#"
def tcp():
    socket.create_connection(("127.0.0.1", params["port"]), 5)
def unix():
    socket.socket(socket.AF_UNIX).connect(params["path"])
def udp():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", params["port"]))
def tcp6():
    socket.create_connection(("::1", params["port"]), 5)
def netlink():
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
def packet():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
def listen():
    server = socket.socket(); server.bind(("0.0.0.0", 0)); server.listen()
return {function.__name__: attempt(function) for function in (tcp, unix, udp, tcp6, netlink, packet, listen)}
"#;
    let input =
        json!({"port": tcp.local_addr().expect("an address").port(), "path": path.display().to_string()});
    let words = ["--params", &input.to_string()];
    write_attacker(&user, "", body);
    let open = execute(&user, "attack", &words)["data"].clone();
    assert!(open["tcp"] == "done" && open["unix"] != "done", "{open}");
    // The tool says so.
    write_attacker(&user, "SANDBOX = {'network': False}", body);
    let closed = execute(&user, "attack", &words);
    assert_all_refused(&closed["data"]);
    assert_enforced(&closed, "network", "network_namespace");
    // The user says so, whatever the tool says.
    write_attacker(&user, "SANDBOX = {'network': True}", body);
    sandbox_settings(&user, "network: false\n");
    assert_all_refused(&execute(&user, "attack", &words)["data"]);
}

#[test]
fn other_processes_are_inaccessible() {
    let user = User::initialized();
    let mut other =
        Command::new("sleep").arg("600").env_clear().env("THEIR_MARK", "theirs").spawn().expect("started");
    write_attacker(
        &user,
        "",
        r#"
import ctypes, glob
libc = ctypes.CDLL(None, use_errno=True)
def ptrace(request, pid):
    if libc.ptrace(request, pid, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), "")
done = {
    "attach parent": attempt(ptrace, 16, os.getppid()), "attach other": attempt(ptrace, 16, params["other"]),
    "seize": attempt(ptrace, 0x4206, os.getppid()), "traceme": attempt(ptrace, 0, 0),
    "kill": attempt(os.kill, params["other"], 9), "kill caller": attempt(os.kill, params["caller"], 9),
    "parent's environment": attempt(read, "/proc/%d/environ" % os.getppid()),
    "parent's memory": attempt(read, "/proc/%d/mem" % os.getppid()),
    "other's environment": attempt(read, "/proc/%d/environ" % params["other"]),
}
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        continue
    if b"OF_THE_CALLER" in content or b"THEIR_MARK" in content:
        done[path] = "done"
return done
"#,
    );
    let input = json!({"other": other.id(), "caller": std::process::id()}).to_string();
    let words = ["--json", "execute", "team/attack", "--params", &input];
    let result = run(user.command().env("SECRET_TOKEN", "OF_THE_CALLER").args(words));
    assert_eq!(result.exit, 0, "{result}");
    let lives = other.try_wait().expect("a state").is_none();
    other.kill().expect("ended");
    other.wait().expect("collected");
    assert!(lives, "{result}");
    let answer = result.json();
    assert_all_refused(&answer["data"]);
    assert_enforced(&answer, "other_processes", "pid_namespace");
    assert_enforced(&answer, "system_calls", "seccomp");
}

#[test]
fn temporary_dir_is_private_and_removed() {
    let user = User::initialized();
    let temporary = user.context.path().join("temporary");
    fs::create_dir(&temporary).expect("a folder");
    write_attacker(
        &user,
        "",
        r#"
import stat, tempfile
place = os.environ["TMPDIR"]
write(place + "/x")
os.mkdir(place + "/closed"); write(place + "/closed/y"); os.chmod(place + "/closed", 0)
with tempfile.NamedTemporaryFile() as file:
    inside = os.path.dirname(file.name)
return {"place": place, "inside": inside, "mode": stat.S_IMODE(os.stat(place).st_mode), "others": attempt(write, os.path.dirname(place) + "/x"),
        "same": os.environ["TMP"] == place == os.environ["TEMP"]}
"#,
    );
    let result = run(user.command().env("TMPDIR", &temporary).args(["--json", "execute", "team/attack"]));
    assert_eq!(result.exit, 0, "{result}");
    let data = result.json()["data"].clone();
    let location = text(&data["place"]);
    assert!(Path::new(&location).parent().and_then(Path::parent) == Some(&*temporary), "{data}");
    assert_eq!(
        (&data["inside"], &data["mode"], &data["same"]),
        (&json!(location), &json!(0o700), &json!(true))
    );
    assert_all_refused(&json!({"others": data["others"]}));
    assert_eq!(fs::read_dir(&temporary).expect("the folder").count(), 0);
    write_function(
        &user,
        "fails",
        "import os\nopen(os.environ['TMPDIR'] + '/x', 'w').close()\nraise SystemExit(3)",
    );
    run(user.command().env("TMPDIR", &temporary).args(["execute", "team/fails"]));
    assert_eq!(fs::read_dir(&temporary).expect("the folder").count(), 0);
}

#[test]
fn deeply_nested_temporary_dir_is_removed() {
    let user = User::initialized();
    let temporary = user.context.path().join("temporary");
    fs::create_dir(&temporary).expect("a folder");
    let body = "import os\nos.chdir(os.environ['TMPDIR'])\nfor _ in range(2500):\n    os.mkdir('d')\n    os.chdir('d')\nreturn 1";
    write_function(&user, "digs", body);
    let result = run(user.command().env("TMPDIR", &temporary).args(["execute", "team/digs"]));
    assert_eq!(result.exit, 0, "{result}");
    assert_eq!(fs::read_dir(&temporary).expect("the folder").count(), 0);
}

#[test]
fn invalid_sandbox_declaration_is_refused() {
    let user = User::initialized();
    user.write(
        "tools/team/computed.py",
        crate::tool_support::function_text("SANDBOX = {'network': NETWORK}", "return 1"),
    );
    user.assert_refused(["sign", "tool", "team/computed"], 9, "RYE0301");
    fs::remove_file(user.project().join(".ai/tools/team/computed.py")).expect("removed");
    let key = |quote: &str, equals: &str, more: &str| {
        let names = ["version", "tool_type", "executor_id", "category", "description"];
        let values = ["1.0.0", "any", "rye/core/runtimes/bash/bash", "team", "Is run"];
        let lines =
            names.iter().zip(values).map(|(name, value)| format!("{name}{equals}{quote}{value}{quote}\n"));
        format!("{}{more}", lines.collect::<String>())
    };
    for (extension, text) in [
        ("yaml", key("\"", ": ", "sandbox: {network: false}\n")),
        ("toml", key("\"", " = ", "sandbox = {network = false}\n")),
        (
            "sh",
            key("", ": ", "sandbox: {\"network\": false}\n")
                .lines()
                .map(|line| format!("# {line}\n"))
                .collect(),
        ),
    ] {
        let path = crate::tool_support::write_signed_tool(&user, "team/kinds", extension, &text);
        let trace = execute(&user, "kinds", &["--dry-run", "--trace"])["trace"].clone();
        let step = trace.as_array().expect("a trace").iter().find(|row| row["step"] == "sandbox").cloned();
        assert_eq!(step.expect("a sandbox")["network"], false, "{extension}");
        fs::remove_file(path).expect("removed");
    }
}

#[test]
fn strict_level_opens_only_declared_paths() {
    let user = User::initialized();
    for path in ["project/data/in", "project/other/in", "project/out/x", "home/notes"] {
        user.context.write(path, "text");
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    // A shell: Python may lie in a folder of the user's, which strict does not open.
    let body = r#"
attempt() { if eval "$2" >/dev/null 2>&1; then echo "\"$1\": \"done\","; else echo "\"$1\": \"refused\","; fi; }
result="{$(
  attempt "read project" 'cat other/in'
  attempt "read home" 'cat "$HOME/notes"'
  attempt "read tools" 'cat .ai/tools/examples/hello.py'
  attempt "list project" 'ls .'
  attempt "write what is read" 'echo >> data/in'
  attempt "write project" 'echo > new'
  attempt "write temp" 'echo > /tmp/rye-evil-strict'
  attempt "tcp" "exec 3<>/dev/tcp/127.0.0.1/$RYE_PARAM_PORT"
) \"read\": \"$(cat data/in)\"}"
echo new > out/new && echo new > "$TMPDIR/new" && echo $result
"#;
    let check = |metadata: &str| {
        write_shell_tool(&user, "attack", metadata, body);
        let port = listener.local_addr().expect("an address").port();
        let mut answer = execute(&user, "attack", &[&format!("port={port}")]);
        let data = answer["data"].as_object_mut().unwrap_or_else(|| panic!("no result"));
        assert_eq!((data.remove("read"), data.len()), (Some(json!("text")), 8), "{answer}");
        assert_all_refused(&answer["data"]);
        assert_enforced(&answer, "writes", "landlock");
        assert_enforced(&answer, "network", "network_namespace");
    };
    let declares =
        r#"# sandbox: {"level": "strict", "read": ["{project_path}/data"], "write": ["{project_path}/out"]}"#;
    check(declares);
    // The user's own level holds for a tool that asks for less.
    sandbox_settings(&user, "level: strict\n");
    check(&declares.replace("strict", "standard"));
}

#[test]
fn declaring_a_hidden_path_does_not_expose_it() {
    let user = User::initialized();
    user.context.write("home/.ssh/id", "secret");
    for declared in [
        "'read': ['~/.ssh'], 'level': 'strict'",
        "'write': ['~/.ssh']",
        "'write': ['~/.ai']",
        "'write': ['{project_path}/.ai/config']",
        "'write': ['{project_path}/../x']",
    ] {
        write_function_with(&user, "asks", &format!("SANDBOX = {{{declared}}}"), "return 1");
        user.assert_refused(["execute", "team/asks"], 5, "RYE0806");
    }
}

#[test]
fn project_cannot_loosen_the_sandbox() {
    let user = User::initialized();
    user.write(
        "config/execution/sandbox.yaml",
        "version: \"1.0.0\"\ncategory: execution\nlevel: \"off\"\nhidden: []\n",
    );
    user.ok(["sign", "config", "execution/sandbox"]);
    write_attacker(
        &user,
        "SANDBOX = {'level': 'off'}",
        "return {'home': attempt(write, os.environ['HOME'] + '/x')}",
    );
    let answer = execute(&user, "attack", &[]);
    assert_all_refused(&answer["data"]);
    assert_enforced(&answer, "writes", "landlock");
}

#[test]
fn tool_output_has_no_terminal_escapes() {
    let user = User::initialized();
    write_function(
        &user,
        "draws",
        "import sys\nprint('\\x1b[2Jlog')\nsys.stderr.write('\\x1b]0;title\\x07\\n')\nreturn {'x\\x1b[1m': '\\x1b[2J\\u202e'}",
    );
    user.ok(["execute", "team/draws"]).assert_plain();
    user.ok(["execute", "team/draws", "--trace"]).assert_plain();
}
