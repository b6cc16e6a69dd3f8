//! How a process is run: started by a launcher, supervised to its end with every descendant, its output bounded.
//!
//! The caller (`rye`) starts its own binary again as the *launcher*, which makes namespaces and mounts, and forks the
//! *supervisor*, which forks the tool. The supervisor hears of cancellation and of the caller's death over a socket;
//! the tool ends when the supervisor does. Nothing inherited reaches the tool: environment, descriptors and folder are
//! all given.

pub mod callback;
mod capture;
mod child;
mod daemon;
mod descendants;
mod fork;
mod interactive;
mod launcher_pool;
mod prewarm;
mod protocol;
pub(crate) mod raw;
mod run;
mod socket_broker;
mod supervisor;
mod zygote;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::sandbox::Receipt;

pub use capture::CapturedOutput;
pub use daemon::{DaemonChild, spawn_daemon, start_session};
pub use fork::exit_immediately;
pub(crate) use fork::{ForkResult, fork, unshare};
pub use interactive::{InteractiveProcess, ProcessGuard, spawn_interactive};
pub use launcher_pool::{Launcher, fork_launcher};
pub use run::{run, run_with_callback, spawn_detached};
pub use supervisor::supervise_if_requested;

/// How long a tool may take to end after it was asked to, before it is made to.
pub const TERMINATION_GRACE: Duration = Duration::from_millis(300);

/// The variable that tells a tool the number of the descriptor its result goes to.
pub const RESULT_FD_VARIABLE: &str = "RYE_RESULT_FD";

/// One process to run.
#[derive(Clone, Debug)]
pub struct ProcessCommand {
    /// The program: a path, or a name that is searched on the `PATH` of `environment`.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub arguments: Vec<String>,
    /// The whole environment: nothing is inherited.
    pub environment: BTreeMap<String, String>,
    /// The folder it works in.
    pub current_dir: PathBuf,
    /// What it reads from its standard input.
    pub stdin: Vec<u8>,
    /// How long it may take.
    pub timeout: Duration,
    /// Whether it gets a descriptor for its result, whose number it finds in [`RESULT_FD_VARIABLE`].
    pub has_result_channel: bool,
    /// Its bounds.
    pub limits: ProcessLimits,
    /// Where the output of a detached process goes. Without one it is thrown away.
    pub log: Option<PathBuf>,
}

/// Bounds of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Processes alive at one time.
    pub processes: u32,
    /// Bytes of one file it writes.
    pub file_bytes: u64,
    /// Descriptors one process may hold.
    pub open_files: u64,
    /// Address space of one process.
    pub memory_bytes: Option<u64>,
    /// Bytes kept of each stream: the first and the last this many.
    #[serde(rename = "kept_bytes")]
    pub output_bytes: usize,
    /// Bytes kept of the result channel.
    pub result_bytes: usize,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self {
            processes: 256,
            file_bytes: 1 << 30,
            open_files: 1024,
            memory_bytes: None,
            output_bytes: 512 << 10,
            result_bytes: 8 << 20,
        }
    }
}

/// A run that came to an end.
#[derive(Clone, Debug)]
pub struct ProcessResult {
    /// How it ended.
    pub exit: ExitReason,
    /// Its standard output.
    pub stdout: CapturedOutput,
    /// Its standard error.
    pub stderr: CapturedOutput,
    /// What it wrote to its result channel, if it had one.
    pub result: Option<CapturedOutput>,
    /// What confined it.
    pub receipt: Receipt,
    /// How long it took.
    pub duration: Duration,
}

/// How a run ended. In every case no process of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// Its time was up.
    TimedOut,
    /// The caller cancelled it.
    Cancelled,
    /// It had more processes than allowed.
    TooManyProcesses {
        /// How many were allowed.
        limit: u32,
    },
    /// The supervisor was killed or did not answer in time.
    SupervisorLost,
}

/// A process that outlives its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetachedProcess {
    /// Its launcher: when that is killed, every process of the run ends.
    pub pid: u32,
}

/// Why a process was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such program.
    #[error("program `{program}` was not found; install it or correct the PATH")]
    NotFound {
        /// What was looked for.
        program: String,
    },
    /// What was asked for cannot be expressed.
    #[error("cannot run this: {reason}")]
    Invalid {
        /// Why not.
        reason: String,
    },
    /// The confinement that was asked for is not to be had here.
    #[error("not run, because it could not be confined: {reason}")]
    Refused {
        /// What is missing.
        reason: String,
        /// What would have been in force.
        receipt: Box<Receipt>,
    },
    /// Setting it up failed before the program began.
    #[error("cannot start the process: {reason}")]
    Failed {
        /// What failed.
        reason: String,
    },
    /// The system refused.
    #[error("cannot start the process: {0}")]
    Io(#[from] io::Error),
}

/// Lets this process open as many files as the system allows it: each thread that waits for a model holds a connection.
/// What tools may open is said for each of them.
pub fn raise_open_file_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If that is refused, the current limit stays.
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}
