//! `thread verify`: whether transcripts are what threads wrote; what a crash kept from an ended thread's transcript is
//! written again from the journal first, as by every command that reads it. `thread replay`: whether
//! the same answers lead to the same end.

use std::collections::BTreeSet;

use lillux::{Fingerprint, PublicKey};
use rye_agent::status::ThreadStatus;
use rye_agent::store::{ThreadFilter, ThreadRow, ThreadStoreError};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::ReplayedThread;
use rye_agent::transcript::{self, TranscriptReport, TranscriptStatus};
use rye_engine::Code;
use rye_item::Space;
use serde_json::{Value, json};

use super::runner;
use super::thread_index::ThreadIndex;
use crate::commands::{CommandContext, CommandResult, error_with_data};
use crate::live::format::{format_count, pluralize, truncate};
use crate::output::{DIM, ERROR, SUCCESS, WARNING, paint};

/// How often a thread is looked at while it continues, and how long to wait in between.
const MAX_ATTEMPTS: u32 = 20;
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(25);

/// What was found of one thread.
struct ThreadCheck {
    id: String,
    directive: String,
    /// `valid`, `rebuilt` from the journal, `tampered`, …; `forged` when the store's own record is not what was written, `older` when the thread had come
    /// further, `unreadable` when there is no file.
    state: &'static str,
    is_bad: bool,
    report: Option<TranscriptReport>,
    problem: Option<String>,
}

/// `rye thread verify`
pub fn verify(context: &CommandContext, word: Option<&str>) -> CommandResult {
    let (index, rows) = match word {
        Some(word) => {
            let (index, row) = ThreadIndex::open_thread(&context.settings, word)?;
            (Some(index), vec![row])
        }
        None => {
            let index = ThreadIndex::open(&context.settings)?;
            let rows =
                index.as_ref().map(|index| index.store.threads(&ThreadFilter::default())).transpose()?;
            (index, rows.unwrap_or_default())
        }
    };
    let mut all = Vec::new();
    if let Some(index) = &index {
        for row in &rows {
            all.push(check_thread(context, index, row));
        }
        if word.is_none() {
            all.extend(unregistered_threads(index, &rows));
        }
    }
    let age = index.as_ref().map(|index| index.store.freshness()).transpose()?.unwrap_or_default();
    let bad = all.iter().filter(|check| check.is_bad).count();
    let data = json!({
        "is_age_recorded": age.is_recorded,
        "is_other_store": age.is_replaced,
        "older": age.rolled_back,
        "missing": age.missing,
        "checked": all.len(),
        "valid": all.iter().filter(|check| check.state == "valid").count(),
        "bad": bad,
        "threads": all.iter().map(to_value).collect::<Vec<_>>(),
    });
    if !context.output.is_json {
        print_checks(context, &all)?;
    }
    if let (Some(index), false) = (&index, age.is_current()) {
        let what = age.problem().unwrap_or_default();
        let error = ThreadStoreError::Older { folder: index.dir.clone(), what };
        let hint = "if you restored this folder yourself: rye thread verify --accept-older";
        return Err(error_with_data(Code::StoreOlder, error.to_string(), hint, data));
    }
    if index.is_some() && !all.is_empty() && !age.is_recorded {
        context.output.note(
            "the latest position of these threads is not recorded: an older copy would not be detected",
        );
    }
    if bad > 0 {
        let message = format!("{} failed verification", pluralize(bad as u64, "transcript"));
        let hint = "the journal is intact unless the status is `forged`: rye thread show THREAD";
        return Err(error_with_data(Code::TranscriptTampered, message, hint, data));
    }
    context.print_if_json(Some("thread"), word, &data)?;
    Ok(())
}

/// `rye thread verify --accept-older`
pub fn accept_older(context: &CommandContext) -> CommandResult {
    let index = ThreadIndex::open(&context.settings)?;
    let count = match &index {
        Some(index) => {
            index.store.accept_older()?;
            index.store.threads(&ThreadFilter::default())?.len()
        }
        None => 0,
    };
    if !context.output.is_json {
        context.output.print(format_args!("{} accepted as the latest", pluralize(count as u64, "thread")))?;
    }
    context.print_if_json(Some("thread"), None, &json!({ "accepted": count }))?;
    Ok(())
}

fn check_thread(context: &CommandContext, index: &ThreadIndex, row: &ThreadRow) -> ThreadCheck {
    let own = index.secret.transcript_key().public_key();
    let ring = &context.engine.workspace.keys;
    let keys = |fingerprint: &Fingerprint| -> Option<PublicKey> {
        if own.fingerprint() == *fingerprint {
            return Some(own.clone());
        }
        ring.find(fingerprint, &Space::User).map(|known| known.key.clone())
    };
    let is_rebuilt = index.rebuild_files(&row.id, crate::settings::now_ms());
    let path = transcript::path(&index.dir, &row.id);
    let (id, directive) = (row.id.to_string(), row.directive.clone());
    let mut row = row.clone();
    let mut attempts = 0;
    let (report, failure) = loop {
        // The lines of a thread at work follow its record by a moment: how far it has come says nothing about the file.
        let is_active = index.is_active(&row);
        let expected = row.transcript_head.filter(|_| !is_active);
        let report = match transcript::verify(&path, &row.id, expected, &keys) {
            Ok(report) => report,
            Err(error) => {
                let problem = Some(error.to_string());
                return ThreadCheck {
                    id,
                    directive,
                    state: "unreadable",
                    is_bad: true,
                    report: None,
                    problem,
                };
            }
        };
        let failure = match index.store.journal(&row.id) {
            Err(error) => Some(error),
            Ok(_) => index.store.verified_thread(&row.id).err(),
        };
        let is_suspicious = failure.is_some()
            || matches!(report.status, TranscriptStatus::Tampered | TranscriptStatus::Truncated);
        attempts += 1;
        let newer = index.store.thread(&row.id).ok().flatten();
        match newer {
            // It may have continued between two looks: what is wrong is wrong the next time as well.
            Some(newer)
                if attempts < MAX_ATTEMPTS && is_suspicious && (is_active || has_changed(&row, &newer)) =>
            {
                row = newer;
                std::thread::sleep(RETRY_INTERVAL);
            }
            _ => break (report, failure),
        }
    };
    let is_older = matches!(failure, Some(ThreadStoreError::Older { .. }));
    let problem = failure.map(|error| error.to_string());
    // One that is at work, or was ended by force, has not signed its last lines.
    let is_whole = match report.status {
        TranscriptStatus::Valid => true,
        TranscriptStatus::Tampered => false,
        TranscriptStatus::Truncated => index.is_active(&row),
        TranscriptStatus::UnsignedTail | TranscriptStatus::Unsigned => {
            !matches!(row.status, ThreadStatus::Completed | ThreadStatus::Error | ThreadStatus::Suspended)
        }
    };
    let state = match (&problem, report.status) {
        (Some(_), _) if is_older => "older",
        (Some(_), _) => "forged",
        (None, TranscriptStatus::Valid) if is_rebuilt => "rebuilt",
        (None, TranscriptStatus::Valid) => "valid",
        (None, TranscriptStatus::Tampered) => "tampered",
        (None, TranscriptStatus::Truncated) => "cut",
        (None, TranscriptStatus::UnsignedTail) => "unsigned_tail",
        (None, TranscriptStatus::Unsigned) => "unsigned",
    };
    let is_bad = !is_whole || problem.is_some();
    ThreadCheck { id, directive, state, is_bad, report: Some(report), problem }
}

/// Whether a thread has continued between two looks.
fn has_changed(before: &ThreadRow, now: &ThreadRow) -> bool {
    before.transcript_head != now.transcript_head || before.status != now.status
}

/// Folders of threads that the registry does not know.
fn unregistered_threads(index: &ThreadIndex, rows: &[ThreadRow]) -> Vec<ThreadCheck> {
    let known: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let entries = std::fs::read_dir(&index.dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut unregistered: Vec<String> =
        names.filter(|name| ThreadId::parse(name).is_ok() && !known.contains(name.as_str())).collect();
    unregistered.sort();
    unregistered
        .into_iter()
        .map(|id| ThreadCheck {
            id,
            directive: String::new(),
            state: "unknown",
            is_bad: true,
            report: None,
            problem: Some("the registry has no such thread".to_owned()),
        })
        .collect()
}

fn to_value(check: &ThreadCheck) -> Value {
    let mut value = json!({
        "thread_id": check.id,
        "directive": check.directive,
        "state": check.state,
        "is_bad": check.is_bad,
        "problem": check.problem,
    });
    if let (Value::Object(map), Some(report)) = (&mut value, &check.report) {
        map.insert("transcript".to_owned(), json!(report));
    }
    value
}

fn print_checks(context: &CommandContext, all: &[ThreadCheck]) -> CommandResult {
    if all.is_empty() {
        context.output.note("no threads here yet");
    }
    for check in all {
        let (mark, style) = match (check.is_bad, check.state) {
            (true, _) => ("✗", ERROR),
            (false, "valid") => ("✓", SUCCESS),
            (false, _) => ("◐", WARNING),
        };
        let state = check.state.replace('_', " ");
        let mut parts = vec![
            format!("{} {}", paint(style, mark), check.id),
            paint(style, state),
            truncate(&check.directive, 60),
        ];
        if let Some(report) = &check.report {
            parts.push(pluralize(report.events, "event"));
            parts.push(pluralize(report.checkpoints, "signature"));
            parts.extend(
                report.signed_until.map(|last| paint(DIM, format_args!("signed to {}", format_count(last)))),
            );
        }
        parts.retain(|part| !part.is_empty());
        context.output.print(parts.join(" · "))?;
        if let Some(problem) = &check.problem {
            context.output.print(format_args!("  {}", truncate(problem, 200)))?;
        }
        for problem in check.report.iter().flat_map(|report| &report.problems) {
            let what = truncate(&problem.what, 200);
            context.output.print(format_args!("  line {}: {what}", problem.line))?;
        }
    }
    Ok(())
}

/// `rye thread replay`
pub fn replay(context: CommandContext, word: &str) -> CommandResult {
    let (_, row) = ThreadIndex::open_thread(&context.settings, word)?;
    let CommandContext { settings, engine, output } = context;
    let runtime = runner::build_runtime()?;
    let threads = runner::open_threads(&settings, engine, None)?;
    let report = runtime.block_on(threads.replay(&row.id))?;
    let data = json!({
        "thread_id": row.id,
        "is_same": report.different().next().is_none(),
        "threads": report.threads.iter().map(replayed_value).collect::<Vec<_>>(),
    });
    for thread in &report.threads {
        let (id, directive) = (&thread.thread_id, &thread.directive);
        match &thread.difference {
            None => output.note(format_args!(
                "{} {directive} · {id} · {}",
                paint(SUCCESS, "✓"),
                pluralize(thread.turns, "turn")
            )),
            Some(difference) => {
                output.note(format_args!(
                    "{} {directive} · {id} · after {}: {}",
                    paint(ERROR, "✗"),
                    pluralize(difference.turn, "turn"),
                    difference.what
                ));
                for line in &difference.lines {
                    output.note(format_args!("    {}", rye_item::text::one_line(line)));
                }
            }
        }
    }
    let different = report.different().count();
    if different > 0 {
        let message = format!("{} differ from what was recorded", pluralize(different as u64, "thread"));
        let hint = "no model was asked and no tool ran: `-` is the record, `+` what it is now";
        return Err(error_with_data(Code::ThreadFailed, message, hint, data));
    }
    if output.is_json {
        output.print_json(&rye_engine::success_response(Some("thread"), Some(word), data))?;
        return Ok(());
    }
    let outcome = report.threads.first().and_then(|thread| thread.outcome.as_ref());
    if let Some(result) = outcome.and_then(|outcome| outcome.result.as_deref()) {
        output.print(format_args!("{result}"))?;
    }
    Ok(())
}

fn replayed_value(thread: &ReplayedThread) -> Value {
    json!({
        "thread_id": thread.thread_id,
        "directive": thread.directive,
        "turns": thread.turns,
        "status": thread.outcome.as_ref().map(|outcome| outcome.status),
        "difference": thread.difference.as_ref().map(|difference| {
            json!({"turn": difference.turn, "what": difference.what, "lines": difference.lines})
        }),
    })
}
