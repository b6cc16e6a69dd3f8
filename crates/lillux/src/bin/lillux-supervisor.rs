//! The launcher for tests of `lillux::process`, and a caller that can be killed. The shipped binary is its own launcher.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lillux::Cancel;
use lillux::confine::Confinement;
use lillux::process::{Command, Launcher, Limits, run, supervise_if_asked};

/// `lillux-supervisor CONFINEMENT VARIABLE SCRIPT` runs a shell script as `rye` would.
fn main() -> ExitCode {
    supervise_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [confinement, variable, script] = arguments.as_slice() else {
        return ExitCode::FAILURE;
    };
    let confinement: Option<Confinement> = serde_json::from_str(confinement).unwrap_or_default();
    let variable = variable.split_once('=').unwrap_or_default();
    let path = ("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    let command = Command {
        program: "bash".into(),
        arguments: vec!["-c".to_owned(), script.clone()],
        environment: BTreeMap::from([path, (variable.0.to_owned(), variable.1.to_owned())]),
        folder: PathBuf::from("/"),
        stdin: Vec::new(),
        timeout: Duration::from_secs(600),
        has_result_channel: false,
        limits: Limits::default(),
        log: None,
    };
    let launcher = Launcher::new("/proc/self/exe");
    let ran = Cancel::new().map(|cancel| run(&launcher, &command, confinement.as_ref(), &cancel));
    match ran {
        Ok(Ok(_)) => ExitCode::SUCCESS,
        Ok(Err(_)) | Err(_) => ExitCode::FAILURE,
    }
}
