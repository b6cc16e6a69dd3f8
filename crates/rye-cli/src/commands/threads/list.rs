//! `thread list`

use rye_agent::status::Status;
use rye_agent::store::{Filter, ThreadRow};
use rye_engine::{Code, Error};
use serde_json::{Value, json};

use super::shelf::Shelf;
use crate::arguments::ListArguments;
use crate::commands::{Context, Outcome};
use crate::live::view::{status_mark, status_word};
use crate::live::words::{amount, count, short};
use crate::output::{BAD, CAUTION, DIM, paint};

/// Rows that are shown unless more are asked for.
const USUAL: u64 = 20;
/// What a thread is called whose process is gone.
const INTERRUPTED: &str = "interrupted";

/// `rye thread list`
pub fn list(context: &Context, arguments: &ListArguments) -> Outcome {
    let statuses = arguments.status.as_deref().map(statuses).transpose()?.unwrap_or_default();
    let most = arguments.limit.or((!arguments.all).then_some(USUAL));
    // Whose process is gone is not written anywhere: all are looked at.
    let needs_all = arguments.status.as_deref().is_some_and(is_judged);
    let shelf = Shelf::open(&context.settings)?;
    let mut rows = Vec::new();
    if let Some(shelf) = &shelf {
        let filter = Filter {
            statuses,
            is_root: !arguments.all,
            directive: arguments.directive.clone(),
            limit: most.filter(|_| !needs_all),
        };
        rows = shelf.store.threads(&filter)?;
        if let Some(word) = &arguments.status {
            rows.retain(|row| shelf.standing(row) == word);
        }
        rows.truncate(most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX));
    }
    if context.output.is_json {
        let threads = match &shelf {
            Some(shelf) => rows.iter().map(|row| shelf.value(row)).collect::<Result<Vec<Value>, _>>()?,
            None => Vec::new(),
        };
        context.answered(Some("thread"), None, &json!({ "threads": threads }))?;
        return Ok(());
    }
    let Some(shelf) = shelf.filter(|_| !rows.is_empty()) else {
        context.output.note("no threads here yet: rye run DIRECTIVE starts one");
        return Ok(());
    };
    draw(context, &shelf, &rows, most)
}

/// The stored statuses behind a word of people.
fn statuses(word: &str) -> Result<Vec<Status>, Error> {
    if word == INTERRUPTED {
        return Ok(vec![Status::Created, Status::Running]);
    }
    Status::parse(word).map(|status| vec![status]).ok_or_else(|| {
        let known: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
        let message = format!("`{}` is no status", rye_item::text::one_line(word));
        Error::new(Code::InvalidArgument, message)
            .hint(format!("there are {}, {INTERRUPTED}", known.join(", ")))
    })
}

/// Whether it takes more than what is written to tell who stands so.
fn is_judged(word: &str) -> bool {
    matches!(word, INTERRUPTED | "created" | "running")
}

fn draw(context: &Context, shelf: &Shelf, rows: &[ThreadRow], most: Option<u64>) -> Outcome {
    let output = &context.output;
    let mut table = output.table(&["", "id", "directive", "status", "turns", "tokens", "spend", "age"]);
    for row in rows {
        let standing = shelf.standing(row);
        let reason = row
            .reason
            .filter(|_| !row.is_forged)
            .map(|reason| format!(" ({})", reason.as_str()))
            .unwrap_or_default();
        table.add_row([
            status_mark(standing).0.to_owned(),
            row.id.to_string(),
            short(&row.directive, 60),
            format!("{}{reason}", status_word(standing)),
            count(row.cost.turns),
            count(row.cost.tokens()),
            amount(row.cost.spend),
            Shelf::age(row),
        ]);
    }
    output.result(table.trim_fmt())?;
    if most.is_some_and(|most| rows.len() as u64 >= most) {
        output.note(paint(DIM, "--limit or --all shows more"));
    }
    let forged = rows.iter().filter(|row| row.is_forged).count();
    if forged > 0 {
        let rows = crate::live::words::several(forged as u64, "row");
        let mark = paint(BAD, "✗");
        output.note(format_args!(
            "{mark} {rows} of the registry changed from outside: rye thread verify --all"
        ));
    }
    let asked = shelf.store.open_approvals(None)?.questions.len();
    if asked > 0 {
        let questions = crate::live::words::several(asked as u64, "question");
        output.note(format_args!("{} {questions} to you: rye thread approvals", paint(CAUTION, "?")));
    }
    let waiting = rows.iter().find(|row| row.status == Status::Suspended || shelf.is_interrupted(row));
    if let Some(way) = waiting.and_then(|row| shelf.way_on(row)) {
        output.note(format_args!("to go on: {way}"));
    }
    Ok(())
}
