//! `rye ci`.

use lillux::CancelToken;
use rye_engine::Error;
use rye_engine::verbs::ci::{self, CheckStatus};
use rye_item::text::one_line;

use super::{CommandContext, CommandError, CommandResult};
use crate::output::{ERROR, WARNING, paint};
use crate::settings;

/// Checks the project; nothing prompts.
pub fn ci(context: &CommandContext) -> CommandResult {
    let cancel = CancelToken::new().map_err(Error::from)?;
    settings::cancel_on_signals(&cancel);
    let mut bar = context.output.progress("checking");
    let report = ci::ci(&context.engine, &cancel, &mut |done, total| bar.update(done, total))?;
    drop(bar);
    if !context.output.is_json {
        let mut table = context.output.table(&["check", "result", "found"]);
        for check in &report.checks {
            let row = [check.check.to_owned(), check.status.as_str().to_owned(), one_line(&check.summary)];
            table.add_row(row);
        }
        context.output.print(table.trim_fmt())?;
        for check in &report.checks {
            let mark = match check.status {
                CheckStatus::Failed => paint(ERROR, "✗"),
                CheckStatus::Passed | CheckStatus::Empty => paint(WARNING, "!"),
            };
            for problem in &check.problems {
                let problem = one_line(problem);
                context.output.print(format_args!("{mark} {}: {problem}", check.check))?;
            }
        }
    }
    match report.failure() {
        None => {
            context.print_if_json(None, None, &report)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(&report).map_err(std::io::Error::from)?;
            Err(CommandError::Engine(error, Some(Box::new(data))))
        }
    }
}
