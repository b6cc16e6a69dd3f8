//! How the system's `git` is called: with the settings and variables it needs to reach a repository as the user would,
//! without anything that runs what a repository names, and what its failures mean.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::CancelToken;
use lillux::http::certificate_file;
use lillux::process::{self, ExitReason, ProcessCommand, ProcessLimits};
use rye_bundle::project::GitSource;
use rye_exec::environment;
use rye_item::text::{one_line, shell_word};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::programs;

/// How long one call of git may take.
const GIT_TIMEOUT: Duration = Duration::from_secs(600);
/// The largest pack that is fetched.
const MAX_PACK_BYTES: u64 = 1 << 30;
/// How much of what git says about a failure is shown.
const MAX_REASON_CHARS: usize = 300;

/// Variables of the user that git needs to reach a repository as the user would.
const PASSED_VARIABLES: [&str; 12] = [
    "USER",
    "LOGNAME",
    "SSH_AUTH_SOCK",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    CERTIFICATE_VARIABLE,
];

/// What git calls the file of the authorities it trusts.
const CERTIFICATE_VARIABLE: &str = "GIT_SSL_CAINFO";

/// Settings for every call. The user's own settings stay for what they are needed for: logins and addresses.
const SETTINGS: [&str; 15] = [
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.interactive=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "transfer.bundleURI=false",
    "http.followRedirects=false",
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=30",
    "protocol.version=2",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
];

/// How `ssh` is called for a user whose git settings say nothing else: it asks nothing, and leaves a silent server.
const SSH_COMMAND: &str =
    "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=10 -o ServerAliveCountMax=3";

/// How git is called for one source.
pub(super) struct GitCommand<'a> {
    engine: &'a Engine,
    program: PathBuf,
    pub(super) source: &'a GitSource,
    /// A private folder that git works in.
    folder: &'a Path,
    cancel: &'a CancelToken,
    /// Whether the user's own settings say how `ssh` is called.
    has_ssh_command: bool,
}

/// What a call may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GitAccess {
    /// Reach the repository, with the user's logins.
    Remote,
    /// Read what was fetched, without any settings of the user.
    Local,
}

impl<'a> GitCommand<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        source: &'a GitSource,
        folder: &'a Path,
        cancel: &'a CancelToken,
    ) -> Result<Self> {
        // It runs unconfined: what tools can write to is not searched.
        let path = engine.host.variables.get("PATH").map_or("", String::as_str);
        let path = programs::search_path(engine, path);
        let program = environment::find_on_path("git", &path).ok_or_else(|| {
            Error::new(Code::SourceUnreachable, "`git` was not found on your PATH outside the project")
                .hint("install git; it fetches `git+…` sources")
        })?;
        let mut command = Self { engine, program, source, folder, cancel, has_ssh_command: true };
        let configured =
            command.run(GitAccess::Remote, &["config", "--get", "core.sshCommand"], Vec::new(), 4096)?;
        command.has_ssh_command = configured.is_ok();
        Ok(command)
    }

    fn environment(&self, access: GitAccess) -> BTreeMap<String, String> {
        let own = &self.engine.host.variables;
        let mut environment: BTreeMap<String, String> = PASSED_VARIABLES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), own.get(*name)?.clone())))
            .collect();
        let path = programs::search_path(self.engine, own.get("PATH").map_or("", String::as_str));
        let protocols = match access {
            GitAccess::Remote => self.source.allowed_protocols(),
            GitAccess::Local => "none",
        };
        // No repository around the private folder has a say.
        let around = self.folder.parent().unwrap_or(self.folder).to_string_lossy();
        for (name, value) in [
            ("PATH", path.as_str()),
            ("GIT_CEILING_DIRECTORIES", &around),
            ("HOME", &self.engine.host.home.to_string_lossy()),
            ("LC_ALL", "C"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            ("SSH_ASKPASS_REQUIRE", "never"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_LITERAL_PATHSPECS", "1"),
            ("GIT_ALLOW_PROTOCOL", protocols),
        ] {
            environment.insert(name.to_owned(), value.to_owned());
        }
        if access == GitAccess::Local {
            environment.insert("GIT_CONFIG_GLOBAL".to_owned(), "/dev/null".to_owned());
        }
        if !self.has_ssh_command {
            environment.insert("GIT_SSH_COMMAND".to_owned(), SSH_COMMAND.to_owned());
        }
        if let Some(file) = certificate_file(|name| own.get(name).map(String::as_str)) {
            let file = file.to_string_lossy().into_owned();
            environment.entry(CERTIFICATE_VARIABLE.to_owned()).or_insert(file);
        }
        environment
    }

    /// Runs git. Gives what it wrote, or the reason it failed.
    pub(super) fn run(
        &self,
        access: GitAccess,
        arguments: &[&str],
        stdin: Vec<u8>,
        output_bytes: usize,
    ) -> Result<std::result::Result<Vec<u8>, String>> {
        let settings = SETTINGS.iter().flat_map(|setting| ["-c", setting]);
        let command = ProcessCommand {
            program: self.program.clone().into(),
            arguments: settings.chain(arguments.iter().copied()).map(str::to_owned).collect(),
            environment: self.environment(access),
            current_dir: self.folder.to_owned(),
            stdin,
            timeout: GIT_TIMEOUT,
            has_result_channel: false,
            limits: ProcessLimits { output_bytes, file_bytes: MAX_PACK_BYTES, ..ProcessLimits::default() },
            log: None,
        };
        let finished = process::run(&self.engine.host.launcher, &command, None, self.cancel)
            .map_err(|error| Error::new(Code::SourceUnreachable, one_line(&error.to_string())))?;
        Ok(match finished.exit {
            ExitReason::Exited(0) if finished.stdout.is_truncated() => {
                Err("its output is too large".to_owned())
            }
            ExitReason::Exited(0) => Ok(finished.stdout.to_bytes()),
            ExitReason::Cancelled => {
                return Err(Error::new(Code::ToolCancelled, "cancelled; nothing was changed"));
            }
            ExitReason::TimedOut => Err(format!("it took longer than {} seconds", GIT_TIMEOUT.as_secs())),
            ExitReason::Exited(_)
            | ExitReason::Signalled(_)
            | ExitReason::TooManyProcesses { .. }
            | ExitReason::SupervisorLost => Err(failure_reason(&finished.stderr.to_text())),
        })
    }

    /// Runs git, which must work.
    pub(super) fn run_checked(
        &self,
        access: GitAccess,
        arguments: &[&str],
        stdin: Vec<u8>,
        output_bytes: usize,
    ) -> Result<Vec<u8>> {
        self.run(access, arguments, stdin, output_bytes)?.map_err(|reason| self.unreachable(&reason))
    }

    pub(super) fn unreachable(&self, reason: &str) -> Error {
        let url = &self.source.url;
        let error =
            Error::new(Code::SourceUnreachable, format!("the repository `{url}` cannot be read: {reason}"));
        let error = match failure_hint(reason) {
            Some(hint) => error.hint(hint),
            None => error,
        };
        error.hint(format!("check access: git ls-remote {}", shell_word(url)))
    }
}

/// Whether a failure is the answer of a repository, and not that there was none.
pub(super) fn has_answered(reason: &str) -> bool {
    ["fatal:", "error:"].iter().any(|start| reason.starts_with(start))
        && !reason.starts_with("fatal: unable to access")
}

/// What to do about a failure that git's own words do not explain.
fn failure_hint(reason: &str) -> Option<&'static str> {
    if reason.contains("Host key verification failed") {
        return Some(
            "the server's ssh key is unknown or has changed: check it against the published key, then connect once with ssh",
        );
    }
    if reason.contains("returned error: 30") {
        return Some("redirects are not followed: use the final address, often the one ending in `.git`");
    }
    let is_certificate = ["certificate", "SSL", "CAfile"].iter().any(|word| reason.contains(word));
    is_certificate.then_some(super::CERTIFICATE_HINT)
}

/// The line of what git says that names the failure. What ssh says comes before git's line that nothing was read.
fn failure_reason(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_failure = |line: &&str| line.starts_with("fatal:") || line.starts_with("error:");
    let found = match lines.iter().position(is_failure) {
        Some(index) if index > 0 && lines[index].ends_with("Could not read from remote repository.") => {
            lines.get(index - 1)
        }
        Some(index) => lines.get(index),
        None => lines.last(),
    };
    let reason = one_line(found.copied().unwrap_or("git failed without a reason"));
    reason.chars().take(MAX_REASON_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_short() {
        assert_eq!(failure_reason("hint: x\nfatal: no\x1b[31m way\nmore"), "fatal: no way");
        assert_eq!(failure_reason(""), "git failed without a reason");
        let unread = "fatal: Could not read from remote repository.\n\nPlease make sure";
        let unknown = format!("No ED25519 host key is known\nHost key verification failed.\n{unread}");
        assert_eq!(failure_reason(&unknown), "Host key verification failed.");
        assert_eq!(failure_reason(unread), "fatal: Could not read from remote repository.");
    }

    #[test]
    fn failures_of_the_way_are_not_answers() {
        for reason in ["fatal: remote error: upload-pack: not our ref 1", "error: no such remote ref 1"] {
            assert!(has_answered(reason), "{reason}");
        }
        for (reason, word) in [
            ("fatal: unable to access 'https://a/': SSL certificate problem: self-signed", "SSL_CERT_FILE"),
            ("fatal: unable to access 'https://a/': The requested URL returned error: 302", "redirects"),
            ("Host key verification failed.", "connect once"),
        ] {
            assert!(!has_answered(reason), "{reason}");
            assert!(failure_hint(reason).is_some_and(|hint| hint.contains(word)), "{reason}");
        }
        assert_eq!(failure_hint("fatal: unable to access 'https://a/': Could not resolve host: a"), None);
    }
}
