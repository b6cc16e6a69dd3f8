//! `thread verify`: whether transcripts are what threads wrote; it reads only, and mends nothing. `thread replay`: whether
//! the same answers lead to the same end.

use std::collections::BTreeSet;

use lillux::{Fingerprint, PublicKey};
use rye_agent::status::Status;
use rye_agent::store::{Filter, StoreError, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::transcript::{self, Report, Verified};
use rye_engine::Code;
use rye_item::Space;
use serde_json::{Value, json};

use super::shelf::Shelf;
use super::work;
use crate::commands::{Context, Outcome, failed_with};
use crate::live::words::{count, several, short};
use crate::output::{BAD, CAUTION, DIM, GOOD, paint};

/// What was found of one thread.
struct Checked {
    id: String,
    directive: String,
    /// `valid`, `tampered`, …; `forged` when the store's own record is not what was written, `older` when the thread had come
    /// further, `unreadable` when there is no file.
    state: &'static str,
    is_bad: bool,
    report: Option<Report>,
    problem: Option<String>,
}

/// `rye thread verify`
pub fn verify(context: &Context, word: Option<&str>) -> Outcome {
    let (shelf, rows) = match word {
        Some(word) => {
            let (shelf, row) = Shelf::with(&context.settings, word)?;
            (Some(shelf), vec![row])
        }
        None => {
            let shelf = Shelf::open(&context.settings)?;
            let rows = shelf.as_ref().map(|shelf| shelf.store.threads(&Filter::default())).transpose()?;
            (shelf, rows.unwrap_or_default())
        }
    };
    let mut all = Vec::new();
    if let Some(shelf) = &shelf {
        for row in &rows {
            all.push(check(context, shelf, row));
        }
        if word.is_none() {
            all.extend(strangers(shelf, &rows));
        }
    }
    let age = shelf.as_ref().map(|shelf| shelf.store.age()).transpose()?.unwrap_or_default();
    let bad = all.iter().filter(|checked| checked.is_bad).count();
    let data = json!({
        "is_age_recorded": age.is_recorded,
        "is_other_store": age.is_other,
        "older": age.older,
        "missing": age.missing,
        "checked": all.len(),
        "valid": all.iter().filter(|checked| checked.state == "valid").count(),
        "bad": bad,
        "threads": all.iter().map(value).collect::<Vec<_>>(),
    });
    if !context.output.is_json {
        draw(context, &all)?;
    }
    if let (Some(shelf), false) = (&shelf, age.is_current()) {
        let what = age.problem().unwrap_or_default();
        let error = StoreError::Older { folder: shelf.folder.clone(), what };
        let hint = "if you restored this folder yourself: rye thread verify --accept-older";
        return Err(failed_with(Code::StoreOlder, error.to_string(), hint, data));
    }
    if shelf.is_some() && !all.is_empty() && !age.is_recorded {
        context
            .output
            .note("how far these threads had come is not recorded: an older copy would not be noticed");
    }
    if bad > 0 {
        let message = format!("{} not what was written", several(bad as u64, "transcript"));
        let hint = "what the journal holds is intact unless it says forged: rye thread show THREAD";
        return Err(failed_with(Code::TranscriptTampered, message, hint, data));
    }
    context.answered(Some("thread"), word, &data)?;
    Ok(())
}

/// `rye thread verify --accept-older`
pub fn accept_older(context: &Context) -> Outcome {
    let shelf = Shelf::open(&context.settings)?;
    let count = match &shelf {
        Some(shelf) => {
            shelf.store.accept_older()?;
            shelf.store.threads(&Filter::default())?.len()
        }
        None => 0,
    };
    if !context.output.is_json {
        context.output.result(format_args!("{} accepted as the latest", several(count as u64, "thread")))?;
    }
    context.answered(Some("thread"), None, &json!({ "accepted": count }))?;
    Ok(())
}

fn check(context: &Context, shelf: &Shelf, row: &ThreadRow) -> Checked {
    let own = shelf.secret.transcript_key().public();
    let ring = &context.engine.workspace.keys;
    let keys = |fingerprint: &Fingerprint| -> Option<PublicKey> {
        if own.fingerprint() == *fingerprint {
            return Some(own.clone());
        }
        ring.find(fingerprint, &Space::User).map(|known| known.key.clone())
    };
    let path = transcript::path(&shelf.folder, &row.id);
    let (id, directive) = (row.id.to_string(), row.directive.clone());
    let report = match transcript::verify(&path, &row.id, row.transcript_head, &keys) {
        Ok(report) => report,
        Err(error) => {
            let problem = Some(error.to_string());
            return Checked { id, directive, state: "unreadable", is_bad: true, report: None, problem };
        }
    };
    let failure = match shelf.store.journal(&row.id) {
        Err(error) => Some(error),
        Ok(_) => shelf.store.sealed_thread(&row.id).err(),
    };
    let is_older = matches!(failure, Some(StoreError::Older { .. }));
    let problem = failure.map(|error| error.to_string());
    // One that is at work, or was ended by force, has not signed its last lines.
    let is_whole = match report.status {
        Verified::Valid => true,
        Verified::Tampered | Verified::Cut => false,
        Verified::UnsignedTail | Verified::Unsigned => {
            !matches!(row.status, Status::Completed | Status::Error | Status::Suspended)
        }
    };
    let state = match (&problem, report.status) {
        (Some(_), _) if is_older => "older",
        (Some(_), _) => "forged",
        (None, Verified::Valid) => "valid",
        (None, Verified::Tampered) => "tampered",
        (None, Verified::Cut) => "cut",
        (None, Verified::UnsignedTail) => "unsigned_tail",
        (None, Verified::Unsigned) => "unsigned",
    };
    let is_bad = !is_whole || problem.is_some();
    Checked { id, directive, state, is_bad, report: Some(report), problem }
}

/// Folders of threads that the registry does not know.
fn strangers(shelf: &Shelf, rows: &[ThreadRow]) -> Vec<Checked> {
    let known: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let entries = std::fs::read_dir(&shelf.folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut strangers: Vec<String> =
        names.filter(|name| ThreadId::parse(name).is_ok() && !known.contains(name.as_str())).collect();
    strangers.sort();
    strangers
        .into_iter()
        .map(|id| Checked {
            id,
            directive: String::new(),
            state: "unknown",
            is_bad: true,
            report: None,
            problem: Some("the registry has no such thread".to_owned()),
        })
        .collect()
}

fn value(checked: &Checked) -> Value {
    let mut value = json!({
        "thread_id": checked.id,
        "directive": checked.directive,
        "state": checked.state,
        "is_bad": checked.is_bad,
        "problem": checked.problem,
    });
    if let (Value::Object(map), Some(report)) = (&mut value, &checked.report) {
        map.insert("transcript".to_owned(), json!(report));
    }
    value
}

fn draw(context: &Context, all: &[Checked]) -> Outcome {
    if all.is_empty() {
        context.output.note("no threads here yet");
    }
    for checked in all {
        let (mark, style) = match (checked.is_bad, checked.state) {
            (true, _) => ("✗", BAD),
            (false, "valid") => ("✓", GOOD),
            (false, _) => ("◐", CAUTION),
        };
        let state = checked.state.replace('_', " ");
        let mut parts = vec![
            format!("{} {}", paint(style, mark), checked.id),
            paint(style, state),
            short(&checked.directive, 60),
        ];
        if let Some(report) = &checked.report {
            parts.push(several(report.events, "event"));
            parts.push(several(report.checkpoints, "signature"));
            parts.extend(
                report.signed_until.map(|last| paint(DIM, format_args!("signed to {}", count(last)))),
            );
        }
        parts.retain(|part| !part.is_empty());
        context.output.result(parts.join(" · "))?;
        if let Some(problem) = &checked.problem {
            context.output.result(format_args!("  {}", short(problem, 200)))?;
        }
        for problem in checked.report.iter().flat_map(|report| &report.problems) {
            let what = short(&problem.what, 200);
            context.output.result(format_args!("  line {}: {what}", problem.line))?;
        }
    }
    Ok(())
}

/// `rye thread replay`
pub fn replay(context: Context, word: &str) -> Outcome {
    let (_, row) = Shelf::with(&context.settings, word)?;
    work::drive(context, |_| {}, async move |threads, signal| threads.replay(&row.id, signal).await)
}
