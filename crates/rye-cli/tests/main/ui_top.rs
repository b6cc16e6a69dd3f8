//! `rye top` at a terminal: it shows, is left cleanly, and needs no colour.

use serde_json::Value;

use crate::support::User;
use crate::thread_approvals::write_gate;
use crate::tool_support::RYE;

/// Runs `rye top` at a terminal of its own, shows each page and leaves; prints what was seen.
const AT_A_TERMINAL: &str = r#"
import fcntl, json, os, pty, select, struct, sys, termios, time
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 30, 120, 0, 0))
    os.execv(sys.argv[1], [sys.argv[1], 'top'])
seen = b''
def wait_for(word):
    global seen
    end = time.time() + 60
    while word not in seen and time.time() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                return
wait_for(b'team/gate')
os.write(terminal, b'\t')
wait_for(b'May I write?')
os.write(terminal, b'q')
wait_for(b'\x1b[?1049l')
status = os.waitpid(pid, 0)[1]
colours = [b'\x1b[3%dm' % colour in seen for colour in range(8)]
print(json.dumps({
    'exit': os.waitstatus_to_exitcode(status),
    'threads': b'team/gate' in seen,
    'question': b'May I write?' in seen,
    'left': b'\x1b[?1049l' in seen,
    'colours': any(colours) or b'\x1b[38;' in seen,
}))
"#;

#[test]
fn top_shows_questions_and_quits_cleanly() {
    let user = User::initialized();
    write_gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let mut command = user.program("python3");
    command.args(["-c", AT_A_TERMINAL, RYE]).env("TERM", "xterm-256color").env("NO_COLOR", "1");
    let output = command.output().expect("python3");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let seen: Value = serde_json::from_str(stdout.trim())
        .unwrap_or_else(|error| panic!("{error}: {stdout} {}", String::from_utf8_lossy(&output.stderr)));
    let expected = serde_json::json!({
        "exit": 0, "threads": true, "question": true, "left": true, "colours": false,
    });
    assert_eq!(seen, expected);
}

#[test]
fn top_needs_a_terminal() {
    let user = User::initialized();
    user.run(["--json", "top"]).error(2, "RYE0104");
    assert_eq!(user.run(["top"]).exit, 2);
}
