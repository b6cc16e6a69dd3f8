//! `thread wait`, `cancel`, `kill`, `resume`, `approve`, `deny`, `prune`.

use std::time::Duration;

use rye_agent::config::Config;
use rye_agent::driver::Signal;
use rye_agent::limits::NAMES;
use rye_agent::status::Status;
use rye_agent::store::{Answer, Kept, Prune, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Changes, Ended, Waiting};
use rye_engine::{Code, Error};
use serde_json::{Map, Value, json};

use super::shelf::Shelf;
use super::work;
use crate::arguments::{AnswerArguments, ResumeArguments, WaitArguments};
use crate::commands::{Context, Failure, Outcome, says_yes};
use crate::live::view::{View, status_mark, status_word};
use crate::live::words::{several, short};
use crate::output::{CAUTION, DIM, GOOD, paint};
use crate::settings;

/// How long is waited when nobody says: as good as for ever.
const VERY_LONG: Duration = Duration::from_secs(10 * 365 * 86_400);

/// `NAME=VALUE` as limits; `none` lifts one.
pub fn limits(words: &[String], raises: bool) -> Result<Map<String, Value>, Error> {
    let mut limits = Map::new();
    for word in words {
        let shown = rye_item::text::one_line(word);
        let hint = format!("limits are {}: --limit turns=5", NAMES.join(", "));
        let wrong = |message: String| Error::new(Code::InvalidArgument, message).hint(hint.clone());
        let (name, value) =
            word.split_once('=').ok_or_else(|| wrong(format!("`{shown}` is not of the form NAME=VALUE")))?;
        if !NAMES.contains(&name) {
            return Err(wrong(format!("`{}` is no limit", rye_item::text::one_line(name))));
        }
        if value.starts_with('+') && !raises {
            return Err(wrong(format!("`{shown}` raises a limit, and there is no thread yet")));
        }
        let value = if value == "none" { Value::Null } else { Value::from(value) };
        limits.insert(name.to_owned(), value);
    }
    Ok(limits)
}

/// Prepares a view for a thread that goes on.
pub fn going_on(row: &ThreadRow) -> impl FnOnce(&mut View) + use<> {
    let (id, cost) = (row.id.to_string(), row.cost);
    move |view| view.begin(&id, cost.turns, cost.tokens(), cost.spend)
}

/// `rye thread resume`
pub fn resume(context: Context, arguments: &ResumeArguments) -> Outcome {
    let limits = limits(&arguments.limits, true)?;
    let (_, row) = Shelf::with(&context.settings, &arguments.id)?;
    let changes = Changes {
        limits,
        message: arguments.message.clone(),
        by: context.settings.owner.clone(),
        within: None,
    };
    let id = row.id.clone();
    work::drive(context, going_on(&row), async move |threads, signal| {
        threads.resume(&id, &changes, signal).await
    })
}

/// `rye thread approve`, `rye thread deny`
pub fn answer(context: Context, arguments: &AnswerArguments, is_approved: bool) -> Outcome {
    let limits = limits(&arguments.limits, true)?;
    let word = &arguments.what;
    let none = || {
        let message = format!("nothing is asked under `{}`", rye_item::text::one_line(word));
        Error::new(Code::NoQuestion, message).hint("rye thread tree marks open questions with ?")
    };
    let shelf = Shelf::open(&context.settings)?.ok_or_else(none)?;
    let open = shelf.store.open_approvals(None)?;
    for forged in &open.forged {
        let forged = short(forged, 60);
        context.output.warn(format_args!("the question {forged} was not written by you and does not count"));
    }
    let by_name: Vec<_> = open.questions.iter().filter(|question| question.id == *word).collect();
    let questions = if by_name.is_empty() {
        let row = shelf.find(word).map_err(|_| none())?;
        let asked: Vec<_> = open.questions.iter().filter(|question| question.thread == row.id).collect();
        if asked.is_empty() {
            // Suspended for a person's word without a question: going on is the answer.
            if row.status == Status::Suspended && is_approved {
                let changes = Changes {
                    limits,
                    message: arguments.message.clone(),
                    by: context.settings.owner.clone(),
                    within: None,
                };
                let id = row.id.clone();
                return work::drive(context, going_on(&row), async move |threads, signal| {
                    threads.resume(&id, &changes, signal).await
                });
            }
            let error = none();
            return Err(match shelf.way_on(&row) {
                Some(way) => error.hint(format!("to go on: {way}")).into(),
                None => error.into(),
            });
        }
        asked
    } else {
        by_name
    };
    let answer = Answer {
        approved: is_approved,
        message: arguments.message.clone(),
        changes: Value::Object(limits.clone()),
        at_ms: settings::now_ms(),
        by: context.settings.owner.clone(),
    };
    let mut thread: Option<ThreadId> = None;
    for question in &questions {
        let asked = shelf.store.answer(&question.id, &answer)?;
        let word = if is_approved { paint(GOOD, "approved") } else { paint(CAUTION, "denied") };
        context.output.note(format_args!("{word} {}", short(&asked.what, 120)));
        thread = Some(asked.thread);
    }
    let row = thread.map(|id| shelf.store.thread(&id)).transpose()?.flatten();
    match row.filter(|row| row.status == Status::Suspended || shelf.is_interrupted(row)) {
        Some(row) => {
            let message = arguments.message.clone().or_else(|| {
                let word = if is_approved { "approved" } else { "denied" };
                let asked: Vec<&str> = questions.iter().map(|question| question.what.as_str()).collect();
                Some(format!("What you asked for was {word} by a person: {}", asked.join("; ")))
            });
            let changes = Changes { limits, message, by: context.settings.owner.clone(), within: None };
            let id = row.id.clone();
            work::drive(context, going_on(&row), async move |threads, signal| {
                threads.resume(&id, &changes, signal).await
            })
        }
        // Whoever runs it hears of the answer.
        None => {
            let answered: Vec<&str> = questions.iter().map(|question| question.id.as_str()).collect();
            context.answered(
                Some("thread"),
                None,
                &json!({"approved": is_approved, "answered": answered}),
            )?;
            Ok(())
        }
    }
}

/// `rye thread wait`
pub fn wait(context: Context, arguments: &WaitArguments) -> Outcome {
    let rows = rows(&context, &arguments.ids)?;
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
        None => VERY_LONG,
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| {
            let message = "--timeout is a number of seconds, 0 or more";
            Error::new(Code::InvalidArgument, message).hint("rye thread wait ID --timeout 60")
        })?,
    };
    let waiting =
        Waiting { ids, needed, timeout, fail_fast: false, cancels_siblings: false, result_ttl: VERY_LONG };
    let Context { settings, engine, output } = context;
    let threads = work::open(&settings, engine, None)?;
    let runtime = work::runtime()?;
    let signal = Signal::default();
    settings::on_end_signals({
        let signal = signal.clone();
        move || signal.cancel("interrupted")
    });
    let answer = runtime.block_on(threads.wait(&waiting, &signal.ending))?;
    let results = answer.get("results").and_then(Value::as_object);
    let status_of =
        |result: &Value| result.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
    if output.is_json {
        output.json(&rye_engine::success(Some("thread"), None, answer.clone()))?;
    } else {
        for (id, result) in results.into_iter().flatten() {
            let status = status_of(result);
            let (mark, style) = status_mark(&status);
            let status = status_word(&status);
            output.result(format_args!("{} {id} {}", paint(style, mark), paint(style, status)))?;
        }
    }
    if signal.ending.is_cancelled() {
        return Err(Failure::Ended(work::exit_code(Status::Cancelled)));
    }
    if answer.get("success") == Some(&Value::Bool(true)) {
        return Ok(());
    }
    // The first that did not complete says how it went; one that is still at work was waited for in vain.
    let mut others = results.into_iter().flatten().map(|(_, result)| status_of(result));
    let first = others.find(|status| status != "completed").unwrap_or_default();
    Err(Failure::Ended(work::exit_code(Status::parse(&first).unwrap_or(Status::Error))))
}

fn rows(context: &Context, words: &[String]) -> Result<Vec<ThreadRow>, Error> {
    words.iter().map(|word| Shelf::with(&context.settings, word).map(|(_, row)| row)).collect()
}

/// `rye thread cancel`
pub fn cancel(context: Context, words: &[String], reason: &str) -> Outcome {
    let rows = rows(&context, words)?;
    let Context { settings, engine, output } = context;
    let threads = work::open(&settings, engine, None)?;
    let runtime = work::runtime()?;
    let mut answers = Vec::new();
    for row in &rows {
        let ended = runtime.block_on(threads.end(&row.id, &rye_item::text::one_line(reason)))?;
        let word = match ended {
            Ended::Now => "cancelled",
            Ended::Asked => "asked to end",
        };
        if !output.is_json {
            output.result(format_args!("{} {}", row.id, paint(GOOD, word)))?;
        }
        answers.push(json!({"thread_id": row.id, "ended": ended == Ended::Now}));
    }
    if output.is_json {
        output.json(&rye_engine::success(Some("thread"), None, json!({"cancelled": answers})))?;
    }
    Ok(())
}

/// `rye thread kill`
pub fn kill(context: Context, word: &str) -> Outcome {
    let (_, row) = Shelf::with(&context.settings, word)?;
    let Context { settings, engine, output } = context;
    let threads = work::open(&settings, engine, None)?;
    let answer = work::runtime()?.block_on(threads.kill(&row.id))?;
    if output.is_json {
        output.json(&rye_engine::success(Some("thread"), Some(row.id.as_str()), answer))?;
        return Ok(());
    }
    output.result(format_args!("{} {}", row.id, paint(CAUTION, "killed")))?;
    output.note(paint(DIM, format_args!("what it did is kept: rye thread show {}", row.id)));
    Ok(())
}

/// `rye thread prune`
pub fn prune(context: &Context, older_than: Option<u64>, is_agreed: bool) -> Outcome {
    let config = Config::load(&context.engine.workspace)?;
    let after_days = older_than.unwrap_or(config.ledger.archive_after_days);
    let what = format!("threads that ended at least {} ago", several(after_days, "day"));
    if !is_agreed {
        let refused = || {
            Error::new(Code::ConsentNeeded, format!("nothing was forgotten: nobody agreed to forget {what}"))
                .hint("if you agree: rye thread prune --yes")
        };
        if !context.settings.is_interactive || context.output.is_json {
            return Err(refused().into());
        }
        context.output.note(format_args!("forget {what}? their folders move to archive/ [y/N]"));
        if !says_yes()? {
            return Err(refused().into());
        }
    }
    let mut pruned = Vec::new();
    if let Some(shelf) = Shelf::open(&context.settings)? {
        let wanted = Prune {
            at_ms: settings::now_ms(),
            after_days,
            kept: Kept::Archived,
            vacuum_interval_days: Some(config.ledger.vacuum_interval_days),
        };
        pruned = shelf.store.prune(&wanted)?.threads;
    }
    if !context.answered(Some("thread"), None, &json!({"pruned": pruned, "after_days": after_days}))? {
        context.output.result(format_args!("forgot {}", several(pruned.len() as u64, "thread")))?;
    }
    Ok(())
}
