//! `thread list`

use rye_agent::status::ThreadStatus;
use rye_agent::store::{ThreadFilter, ThreadRow};
use rye_engine::{Code, Error};
use serde_json::{Value, json};

use super::thread_index::{INTERRUPTED, ThreadIndex, WAITING, thread_age};
use crate::arguments::ListArguments;
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::{format_count, format_money, truncate};
use crate::live::view::{status_label, status_mark};
use crate::output::{DIM, ERROR, WARNING, paint};

/// Rows that are shown unless more are asked for.
const DEFAULT_LIMIT: u64 = 20;

/// The status `error` in words of people.
const FAILED: &str = "failed";

/// `rye thread list`
pub fn list(context: &CommandContext, arguments: &ListArguments) -> CommandResult {
    // The word that tables show for it means the status too.
    let status = arguments.status.as_deref().map(|word| if word == FAILED { "error" } else { word });
    let statuses = status.map(parse_statuses).transpose()?.unwrap_or_default();
    let limit = arguments.limit.or((!arguments.all).then_some(DEFAULT_LIMIT));
    // Whose process is gone is not written anywhere: all are looked at.
    let needs_all = status.is_some_and(is_derived_status);
    // Children that wait are what is looked for; the other lists show trees by their roots.
    let is_root = !arguments.all && status != Some(WAITING);
    let index = ThreadIndex::open(&context.settings)?;
    let mut rows = Vec::new();
    if let Some(index) = &index {
        let filter = ThreadFilter {
            statuses,
            is_root,
            directive: arguments.directive.clone(),
            limit: limit.filter(|_| !needs_all),
        };
        rows = index.store.threads(&filter)?;
        if let Some(word) = status {
            rows.retain(|row| index.effective_status(row) == word);
        }
        rows.truncate(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX));
    }
    if context.output.is_json {
        let threads = match &index {
            Some(index) => rows.iter().map(|row| index.to_value(row)).collect::<Result<Vec<Value>, _>>()?,
            None => Vec::new(),
        };
        context.print_if_json(Some("thread"), None, &json!({ "threads": threads }))?;
        return Ok(());
    }
    let Some(index) = index.filter(|_| !rows.is_empty()) else {
        let is_filtered = arguments.status.is_some() || arguments.directive.is_some();
        context.output.note(match is_filtered {
            true => "no such threads here: rye thread list --all shows every one",
            false => "no threads here yet: rye run DIRECTIVE starts one",
        });
        return Ok(());
    };
    print_list(context, &index, &rows, limit)
}

/// The stored statuses behind a word of people.
fn parse_statuses(word: &str) -> Result<Vec<ThreadStatus>, Error> {
    if word == INTERRUPTED || word == WAITING {
        return Ok(vec![ThreadStatus::Created, ThreadStatus::Running]);
    }
    ThreadStatus::parse(word).map(|status| vec![status]).ok_or_else(|| {
        let known: Vec<&str> = ThreadStatus::ALL.iter().map(|status| status.as_str()).collect();
        let message = format!("unknown status `{}`", rye_item::text::one_line(word));
        Error::new(Code::InvalidArgument, message)
            .hint(format!("there are {}, {INTERRUPTED}, {WAITING}; {FAILED} is error", known.join(", ")))
    })
}

/// Whether it takes more than what is written to tell who stands so.
fn is_derived_status(word: &str) -> bool {
    matches!(word, INTERRUPTED | WAITING | "created" | "running")
}

fn print_list(
    context: &CommandContext,
    index: &ThreadIndex,
    rows: &[ThreadRow],
    max: Option<u64>,
) -> CommandResult {
    let output = &context.output;
    let mut table = output.table(&["", "id", "directive", "status", "turns", "tokens", "spend", "age"]);
    for row in rows {
        let status = index.effective_status(row);
        let reason = index.status_reason(row);
        table.add_row([
            status_mark(status).0.to_owned(),
            row.id.to_string(),
            truncate(&row.directive, 60),
            format!("{}{reason}", status_label(status)),
            format_count(row.cost.turns),
            format_count(row.cost.tokens()),
            format_money(row.cost.spend),
            thread_age(row),
        ]);
    }
    output.print(table.trim_fmt())?;
    for row in rows {
        if let Some(label) = index.fork_label(row)? {
            output.note(paint(DIM, format_args!("{} was {label}", row.id)));
        }
    }
    if max.is_some_and(|max| rows.len() as u64 >= max) {
        output.note(paint(DIM, "use --limit or --all to show more"));
    }
    let forged = rows.iter().filter(|row| row.is_forged).count();
    if forged > 0 {
        let rows = crate::live::format::pluralize(forged as u64, "row");
        let mark = paint(ERROR, "✗");
        output.note(format_args!(
            "{mark} {rows} of the registry changed from outside: rye thread verify --all"
        ));
    }
    let asked = index.store.open_approvals(None)?.approvals.len();
    if asked > 0 {
        let questions = crate::live::format::pluralize(asked as u64, "question");
        output.note(format_args!("{} {questions} pending: rye thread approvals", paint(WARNING, "?")));
    }
    let waiting = rows.iter().find(|row| index.is_idle(row));
    if let Some(command) = waiting.and_then(|row| index.next_command(row)) {
        output.note(format_args!("to continue: {command}"));
    }
    Ok(())
}
