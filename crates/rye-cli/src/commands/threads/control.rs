//! `thread wait`, `cancel`, `kill`, `resume`, `prune`.

use std::time::Duration;

use rye_agent::driver::CancelSignal;
use rye_agent::limits::{LIMIT_NAMES, ThreadLimits};
use rye_agent::status::ThreadStatus;
use rye_agent::store::{ApprovalDecision, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{CancelOutcome, ResumeOptions, WaitRequest};
use rye_engine::{Code, Error};
use serde_json::{Map, Value, json};

use super::ask::ApprovalPrompt;
use super::runner::{self, DriveOptions};
use super::show::transcript_end;
use super::thread_index::ThreadIndex;
use crate::arguments::{ResumeArguments, WaitArguments};
use crate::commands::{CommandContext, CommandError, CommandResult};
use crate::live::format::truncate;
use crate::live::view::{ThreadView, status_label, status_mark};
use crate::output::{self, DIM, SUCCESS, WARNING, paint};
use crate::settings;

/// The default timeout: practically unlimited.
const NO_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// `NAME=VALUE` as limits; `none` lifts one.
pub fn parse_limits(words: &[String], can_raise: bool) -> Result<Map<String, Value>, Error> {
    let mut limits = Map::new();
    for word in words {
        let text = rye_item::text::one_line(word);
        let hint = format!("limits are {}: --limit turns=5", LIMIT_NAMES.join(", "));
        let invalid = |message: String| Error::new(Code::InvalidArgument, message).hint(hint.clone());
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| invalid(format!("invalid limit `{text}`: expected NAME=VALUE")))?;
        if !LIMIT_NAMES.contains(&name) {
            return Err(invalid(format!("unknown limit `{}`", rye_item::text::one_line(name))));
        }
        if value.starts_with('+') && !can_raise {
            return Err(invalid(format!("`{text}` raises a limit, but a new thread has none to raise")));
        }
        if value != "none" && !is_amount(name, value.strip_prefix('+').unwrap_or(value)) {
            return Err(invalid_amount(name, &text));
        }
        let value = if value == "none" { Value::Null } else { Value::from(value) };
        limits.insert(name.to_owned(), value);
    }
    Ok(limits)
}

/// Whether a limit can have this value.
fn is_amount(name: &str, value: &str) -> bool {
    let limit = Map::from_iter([(name.to_owned(), Value::from(value))]);
    ThreadLimits::default().with_overrides(&limit).is_ok()
}

fn invalid_amount(name: &str, text: &str) -> Error {
    let (expected, example) = match name {
        "spend" => ("an amount of dollars", "0.25"),
        "duration_seconds" => ("a whole number of seconds", "600"),
        "tokens" => ("a whole number", "20000"),
        _ => ("a whole number", "5"),
    };
    Error::new(Code::InvalidArgument, format!("invalid limit `{text}`: expected {expected}"))
        .hint(format!("such as --limit {name}={example}; without a limit: --limit {name}=none"))
}

/// Prepares a view for a thread that continues.
pub fn resume_view(index: &ThreadIndex, row: &ThreadRow) -> impl FnOnce(&mut ThreadView) + use<> {
    let (id, cost) = (row.id.to_string(), row.cost);
    let events = transcript_end(index, row).unwrap_or_default();
    move |view| {
        view.set_root(&id, cost.turns, cost.tokens(), cost.spend);
        view.add_running_calls(&id, events.iter().map(|event| (event.event_type.as_str(), &event.payload)));
    }
}

/// `rye thread resume`
pub fn resume(context: CommandContext, arguments: &ResumeArguments) -> CommandResult {
    let limits = parse_limits(&arguments.limits, true)?;
    let (index, row) = ThreadIndex::open_thread(&context.settings, &arguments.id)?;
    if let Some(prompt) = ApprovalPrompt::for_terminal(&context.settings, context.output)
        && row.status == ThreadStatus::Suspended
    {
        let mut open = index.store.open_approvals(Some(&row.id))?.approvals;
        // More of a limit, given here, is the answer to that question.
        open.retain(|approval| limits.is_empty() || approval.kind != "limit");
        open.iter().try_for_each(|approval| index.refuse_unresumable(&approval.thread))?;
        let record = |id: &str, decision: &ApprovalDecision| {
            index.store.answer_approval(id, decision)?;
            Ok(())
        };
        if !prompt.ask_all(&open, record)? {
            return Err(runner::leave_suspended(context.output, &row.id));
        }
    }
    let changes = ResumeOptions {
        limits,
        message: arguments.message.clone(),
        by: context.settings.owner.clone(),
        ..ResumeOptions::default()
    };
    if row.is_submitted {
        return request_resume(context, &row.id, &changes, arguments.when_available);
    }
    let id = row.id.clone();
    let options = DriveOptions { retries_provider: arguments.when_available };
    runner::drive_with(context, options, resume_view(&index, &row), async move |threads, signal| {
        threads.resume(&id, &changes, signal).await.map_err(|mut error| {
            // A thread keeps the provider it was started with.
            error.hints.retain(|hint| !hint.contains("--provider"));
            error
        })
    })
}

/// Asks workers to resume a thread of theirs.
fn request_resume(
    context: CommandContext,
    id: &ThreadId,
    changes: &ResumeOptions,
    is_retried: bool,
) -> CommandResult {
    let CommandContext { settings, engine, output } = context;
    if is_retried {
        output.note("ignoring --when-available: it only applies to threads on this machine; a worker tries once per request");
    }
    let threads = runner::open_threads(&settings, engine, None)?;
    if !runner::build_runtime()?.block_on(threads.request_resume(id, changes))? {
        let message = format!("{id} is no longer left to workers");
        return Err(Error::new(Code::ThreadHeld, message)
            .hint(format!("look again: rye thread show {id}"))
            .into());
    }
    if output.is_json {
        let data = json!({"thread_id": id, "requested": true});
        output.print_json(&rye_engine::success_response(Some("thread"), Some(id.as_str()), data))?;
        return Ok(());
    }
    output.print(format_args!("{id} {}", paint(SUCCESS, "resume requested")))?;
    output.note(paint(DIM, format_args!("a worker will resume it; follow it: rye thread tail {id}")));
    Ok(())
}

/// `rye thread wait`
pub fn wait(context: CommandContext, arguments: &WaitArguments) -> CommandResult {
    let rows = find_threads(&context, &arguments.ids)?;
    let mut ids: Vec<ThreadId> = Vec::new();
    for row in rows {
        if !ids.contains(&row.id) {
            ids.push(row.id);
        }
    }
    let needed = match (arguments.any, arguments.quorum) {
        (true, _) => 1,
        (false, None) => ids.len(),
        (false, Some(quorum)) if (1..=ids.len()).contains(&quorum) => quorum,
        (false, Some(_)) => {
            let message = format!("--quorum is a number from 1 to {}", ids.len());
            return Err(Error::new(Code::InvalidArgument, message).hint("rye thread wait --help").into());
        }
    };
    let timeout = match arguments.timeout {
        None => NO_TIMEOUT,
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| {
            let message = "--timeout is a number of seconds, 0 or more";
            Error::new(Code::InvalidArgument, message).hint("rye thread wait ID --timeout 60")
        })?,
    };
    let waiting = WaitRequest {
        needed,
        timeout,
        waits_for_approval: false,
        result_ttl: NO_TIMEOUT,
        ..WaitRequest::for_all(ids)
    };
    let CommandContext { settings, engine, output } = context;
    let threads = runner::open_threads(&settings, engine, None)?;
    let runtime = runner::build_runtime()?;
    let signal = CancelSignal::default();
    settings::on_termination_signals({
        let signal = signal.clone();
        move || {
            output::end_interrupted_line();
            signal.cancel("interrupted");
        }
    });
    let response = runtime.block_on(threads.wait(&waiting, &signal.cancel_token))?;
    let results = response.get("results").and_then(Value::as_object);
    let status_of =
        |result: &Value| result.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
    if output.is_json {
        output.print_json(&rye_engine::success_response(Some("thread"), None, response.clone()))?;
    } else {
        for (id, result) in results.into_iter().flatten() {
            let status = status_of(result);
            let (mark, style) = status_mark(&status);
            let status = status_label(&status);
            output.print(format_args!("{} {id} {}", paint(style, mark), paint(style, status)))?;
            // A thread that is not resumed prints why, and what to do.
            for (key, word) in [("error", ""), ("hint", "to continue: ")] {
                let text = result.get(key).and_then(Value::as_str).filter(|_| result.get("hint").is_some());
                text.iter().for_each(|text| output.note(format_args!("{word}{}", truncate(text, 300))));
            }
        }
    }
    if signal.cancel_token.is_cancelled() {
        return Err(CommandError::Exit(runner::exit_code(ThreadStatus::Cancelled)));
    }
    if response.get("success") == Some(&Value::Bool(true)) {
        return Ok(());
    }
    // The first that did not complete says how it went; one that is still at work was waited for in vain.
    let mut others = results.into_iter().flatten().map(|(_, result)| ThreadStatus::of_result(result));
    let first = others.find(|status| *status != Some(ThreadStatus::Completed)).flatten();
    Err(CommandError::Exit(runner::exit_code(first.unwrap_or(ThreadStatus::Error))))
}

fn find_threads(context: &CommandContext, words: &[String]) -> Result<Vec<ThreadRow>, Error> {
    words.iter().map(|word| ThreadIndex::open_thread(&context.settings, word).map(|(_, row)| row)).collect()
}

/// `rye thread cancel`
pub fn cancel(context: CommandContext, words: &[String], reason: &str) -> CommandResult {
    let rows = find_threads(&context, words)?;
    let CommandContext { settings, engine, output } = context;
    let threads = runner::open_threads(&settings, engine, None)?;
    let runtime = runner::build_runtime()?;
    let mut responses = Vec::new();
    for row in &rows {
        let result = runtime.block_on(threads.cancel(&row.id, &rye_item::text::one_line(reason)))?;
        let word = match result {
            CancelOutcome::Cancelled => "cancelled",
            CancelOutcome::Requested => "cancel requested",
        };
        if !output.is_json {
            output.print(format_args!("{} {}", row.id, paint(SUCCESS, word)))?;
        }
        responses.push(json!({"thread_id": row.id, "ended": result == CancelOutcome::Cancelled}));
    }
    if output.is_json {
        output.print_json(&rye_engine::success_response(
            Some("thread"),
            None,
            json!({"cancelled": responses}),
        ))?;
    }
    Ok(())
}

/// `rye thread kill`
pub fn kill(context: CommandContext, word: &str) -> CommandResult {
    let (_, row) = ThreadIndex::open_thread(&context.settings, word)?;
    let CommandContext { settings, engine, output } = context;
    let threads = runner::open_threads(&settings, engine, None)?;
    let response = runner::build_runtime()?.block_on(threads.kill(&row.id))?;
    if output.is_json {
        output.print_json(&rye_engine::success_response(Some("thread"), Some(row.id.as_str()), response))?;
        return Ok(());
    }
    output.print(format_args!("{} {}", row.id, paint(WARNING, "killed")))?;
    output.note(paint(DIM, format_args!("its history is kept: rye thread show {}", row.id)));
    Ok(())
}
