//! What this system offers, found out by trying.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{Confinement, Receipt};
use crate::CancelToken;
use crate::process::{Launcher, ProcessCommand, ProcessLimits, RunError, run};

/// Runs the launcher's own program, asked for its version, as confined as it goes. The receipt says what held.
///
/// # Errors
/// When not even that can be run.
pub fn probe(launcher: &Launcher) -> Result<Receipt, RunError> {
    let command = ProcessCommand {
        program: launcher.program().into(),
        arguments: vec!["--version".to_owned()],
        environment: BTreeMap::new(),
        current_dir: PathBuf::from("/"),
        stdin: Vec::new(),
        timeout: Duration::from_secs(60),
        has_result_channel: false,
        limits: ProcessLimits::default(),
        log: None,
    };
    let confinement = Confinement::new();
    run(launcher, &command, Some(&confinement), &CancelToken::new()?).map(|finished| finished.receipt)
}
