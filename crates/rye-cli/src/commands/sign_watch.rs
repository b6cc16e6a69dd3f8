//! `sign --watch`: signs again after each change, until it is interrupted.

use std::sync::mpsc;
use std::time::Duration;

use rye_engine::verbs::sign::SignResponse;
use rye_engine::{Code, Error};
use rye_item::ItemType;
use rye_space::search::SpaceWatcher;

use super::{CommandContext, CommandResult};
use crate::output::{DIM, NAME, SUCCESS, display_path, paint};

/// How long files must be left alone before they are signed: an editor writes a file in several steps.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(150);

/// Signs what `sign_all` names now and after each change.
pub fn watch(context: &CommandContext, sign_all: impl Fn() -> Result<SignResponse, Error>) -> CommandResult {
    let (sender, changes) = mpsc::channel();
    let spaces = &context.engine.workspace.spaces;
    let watcher = SpaceWatcher::start_with_callback(spaces, &ItemType::ALL, move || {
        // The other end is there as long as this runs.
        let _ = sender.send(());
    });
    let Some(_watcher) = watcher else {
        return Err(Error::new(Code::Io, "the folders of items cannot be watched")
            .hint("raise fs.inotify.max_user_watches, or sign without --watch")
            .into());
    };
    show(context, &sign_all()?)?;
    context.output.note(paint(DIM, "watching; press Ctrl-C to stop"));
    while changes.recv().is_ok() {
        // One round for all changes that come together, and for those that signing itself makes.
        while changes.recv_timeout(SETTLE_TIMEOUT).is_ok() {}
        match sign_all() {
            Ok(report) => show(context, &report)?,
            // What was to be signed is gone for now: an editor may be replacing it.
            Err(error) if error.code == Code::NotFound => {}
            Err(error) => {
                context.output.print_error(&error, None)?;
            }
        }
    }
    Ok(())
}

/// Shows what was signed just now and what could not be.
fn show(context: &CommandContext, report: &SignResponse) -> CommandResult {
    for signed in report.signed.iter().filter(|signed| !signed.unchanged) {
        if context.output.is_json {
            context.output.print_json_line(&serde_json::to_value(signed).map_err(std::io::Error::from)?)?;
            continue;
        }
        context.output.print(format_args!(
            "{} {}:{} {}",
            paint(SUCCESS, "signed"),
            signed.item_type,
            paint(NAME, &signed.item_id),
            paint(DIM, display_path(&signed.path))
        ))?;
        for warning in &signed.warnings {
            context.output.warn_diagnostic(&signed.path, warning);
        }
    }
    for failed in &report.failed {
        context.output.print_error(&failed.error, None)?;
    }
    Ok(())
}
