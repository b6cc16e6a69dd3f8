//! The launcher for tests of `lillux::process`, and a caller that can be killed. The shipped binary is its own launcher.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lillux::CancelToken;
use lillux::process::{Launcher, ProcessCommand, ProcessLimits, run, supervise_if_requested};
use lillux::sandbox::Confinement;

/// `lillux-supervisor CONFINEMENT VARIABLE SCRIPT` runs a shell script as `rye` would.
fn main() -> ExitCode {
    supervise_if_requested();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [confinement, variable, script] = arguments.as_slice() else {
        return ExitCode::FAILURE;
    };
    let confinement: Option<Confinement> = serde_json::from_str(confinement).unwrap_or_default();
    let variable = variable.split_once('=').unwrap_or_default();
    let path = ("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    let command = ProcessCommand {
        program: "bash".into(),
        arguments: vec!["-c".to_owned(), script.clone()],
        environment: BTreeMap::from([path, (variable.0.to_owned(), variable.1.to_owned())]),
        current_dir: PathBuf::from("/"),
        stdin: Vec::new(),
        timeout: Duration::from_secs(600),
        has_result_channel: false,
        limits: ProcessLimits::default(),
        log: None,
    };
    let launcher = Launcher::new("/proc/self/exe");
    let result = CancelToken::new().map(|cancel| run(&launcher, &command, confinement.as_ref(), &cancel));
    match result {
        Ok(Ok(_)) => ExitCode::SUCCESS,
        Ok(Err(_)) | Err(_) => ExitCode::FAILURE,
    }
}
