//! A daemonized child process: not supervised or confined, and it outlives the process that started it. For programs
//! that supervise others themselves, such as another process of the same binary.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use super::fork::set_cloexec_all;

/// A process that goes its own way.
#[derive(Debug)]
pub struct DaemonChild(Child);

impl DaemonChild {
    /// Whether it has ended already.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        // What cannot be asked about is taken to live.
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// Leaves it to itself. If it ends before this process does, it is not left behind as a name without a process.
    pub fn detach(self) {
        let mut child = self.0;
        // Without a thread it is collected when this process has ended.
        let _ = std::thread::Builder::new().name("apart".to_owned()).spawn(move || child.wait());
    }
}

/// Starts a program with exactly this environment and input, and no other descriptor; what it prints is thrown away.
///
/// # Errors
/// When it cannot be started, or does not take its input.
pub fn spawn_daemon(
    program: &Path,
    arguments: &[String],
    environment: &BTreeMap<String, String>,
    cwd: &Path,
    input: &[u8],
) -> io::Result<DaemonChild> {
    #[expect(clippy::disallowed_methods, reason = "this is one of the entry points for starting processes")]
    let mut command = std::process::Command::new(program);
    command.args(arguments).env_clear().envs(environment).current_dir(cwd);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // A reader that waits for a pipe to close must not wait for the daemon.
    set_cloexec_all()?;
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input)?;
    }
    Ok(DaemonChild(child))
}

/// Leaves the terminal and process group of the parent, whose interrupts and hang-ups are not for the daemon.
///
/// # Errors
/// When it leads a group already.
pub fn start_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}
