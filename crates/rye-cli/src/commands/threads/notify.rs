//! `thread notify`: send the notifications of a thread's state again, to try them out.

use rye_agent::threads::SentNotification;
use rye_agent::views::notification_value;
use rye_engine::{Code, Error};
use serde_json::json;

use super::runner::open_threads;
use super::thread_index::ThreadIndex;
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::truncate;
use crate::output::{WARNING, paint};

/// The longest reason that is shown.
const MAX_REASON_LENGTH: usize = 120;

/// A notification that was sent, in a line.
pub fn describe(sent: &SentNotification) -> String {
    let name = truncate(&sent.target, 40);
    match &sent.error {
        None => format!("{name} ({})", sent.event),
        Some(error) => {
            let error = truncate(error, MAX_REASON_LENGTH);
            format!("{name} ({}) {}", sent.event, paint(WARNING, format_args!("failed: {error}")))
        }
    }
}

/// `rye thread notify`
pub fn notify(context: CommandContext, word: &str) -> CommandResult {
    let (_, row) = ThreadIndex::open_thread(&context.settings, word)?;
    let CommandContext { settings, engine, output } = context;
    let sent = open_threads(&settings, engine, None)?.notify(&row.id)?;
    let failed = sent.iter().filter(|sent| sent.error.is_some()).count();
    if failed > 0 {
        let lines: Vec<String> = sent
            .iter()
            .filter_map(|sent| Some(format!("{}: {}", sent.target, sent.error.as_ref()?)))
            .collect();
        let message = format!("{failed} of {} notifications failed: {}", sent.len(), lines.join("; "));
        return Err(Error::new(Code::Io, message).detail("thread_id", row.id.as_str()).into());
    }
    if output.is_json {
        let data = json!({"thread_id": row.id, "notifications": sent.iter().map(notification_value).collect::<Vec<_>>()});
        output.print_json(&rye_engine::success_response(Some("thread"), Some(row.id.as_str()), data))?;
        return Ok(());
    }
    for sent in &sent {
        output.print(describe(sent))?;
    }
    Ok(())
}
