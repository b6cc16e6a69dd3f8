//! Looking for a change whose process died, whenever a workspace is opened: one look per space when all is well.

use rye_bundle::install::transaction::RecoveryOutcome;
use rye_bundle::install::{InstallError, InstallState, TargetDir};
use rye_item::text;
use rye_space::{Roots, roots};

/// How many files are named of those that could not be put back.
const MAX_NAMED_FILES: usize = 5;

/// Brings the spaces below `roots` to the state before or after a change that was interrupted; says so.
pub(crate) fn recover(roots: &Roots) -> Vec<String> {
    let spaces = [roots.project_ai(), Some(roots.user_ai())];
    spaces
        .into_iter()
        .flatten()
        .filter_map(|ai| {
            let state = InstallState::for_space(&roots.user_ai(), &roots::canonicalize_existing(&ai));
            if !state.has_pending_change() {
                return None;
            }
            let recovered = || -> Result<Option<RecoveryOutcome>, InstallError> {
                // The process that holds the lock is alive.
                let Some(_lock) = state.try_lock()? else { return Ok(None) };
                rye_bundle::install::recover(&TargetDir::open(&ai)?, &state).map(Some)
            };
            let path_text = ai.display();
            match recovered() {
                Ok(None | Some(RecoveryOutcome::Nothing)) => None,
                Ok(Some(RecoveryOutcome::Undone { different })) if different.is_empty() => Some(format!(
                    "a change of the bundles in `{path_text}` was interrupted and has been rolled back"
                )),
                Ok(Some(RecoveryOutcome::Undone { different })) => {
                    let names: Vec<String> = different.iter().map(|path| path.as_str().to_owned()).collect();
                    Some(format!(
                        "a change of the bundles in `{path_text}` was interrupted and has been rolled back, but for files \
                         that something else changed: {}; install the bundle again",
                        text::join_first(&names, MAX_NAMED_FILES)
                    ))
                }
                Ok(Some(RecoveryOutcome::Finished)) => Some(format!(
                    "a change of the bundles in `{path_text}` was interrupted and has been completed"
                )),
                Err(error) => {
                    Some(format!("a change of the bundles in `{path_text}` was interrupted: {error}"))
                }
            }
        })
        .collect()
}
