//! Looking for a change whose process died, whenever a workspace is opened: one look per space when all is well.

use rye_bundle::install::transaction::Recovered;
use rye_bundle::install::{InstallError, Site, State};
use rye_space::{Roots, roots};

/// Brings the spaces below `roots` to the state before or after a change that was interrupted; says so.
pub(crate) fn recover(roots: &Roots) -> Vec<String> {
    let spaces = [roots.project_ai(), Some(roots.user_ai())];
    spaces
        .into_iter()
        .flatten()
        .filter_map(|ai| {
            let state = State::of(&roots.user_ai(), &roots::real(&ai));
            if !state.is_unsettled() {
                return None;
            }
            let recovered = || -> Result<Option<Recovered>, InstallError> {
                // Whoever holds the lock is not dead.
                let Some(_lock) = state.try_lock()? else { return Ok(None) };
                rye_bundle::install::recover(&Site::open(&ai)?, &state).map(Some)
            };
            let shown = ai.display();
            match recovered() {
                Ok(None | Some(Recovered::Nothing)) => None,
                Ok(Some(Recovered::Undone)) => {
                    Some(format!("a change of the bundles in `{shown}` was interrupted, and is taken back"))
                }
                Ok(Some(Recovered::Finished)) => {
                    Some(format!("a change of the bundles in `{shown}` was interrupted, and is finished"))
                }
                Err(error) => Some(format!("a change of the bundles in `{shown}` was interrupted: {error}")),
            }
        })
        .collect()
}
