//! `thread wait`, `cancel`, `kill`, `resume`, `prune`.

use std::time::Duration;

use rye_agent::driver::Signal;
use rye_agent::limits::NAMES;
use rye_agent::status::Status;
use rye_agent::store::ThreadRow;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Changes, Ended, Waiting};
use rye_engine::{Code, Error};
use serde_json::{Map, Value, json};

use super::shelf::Shelf;
use super::work;
use crate::arguments::{ResumeArguments, WaitArguments};
use crate::commands::{Context, Failure, Outcome};
use crate::live::view::{View, status_mark, status_word};
use crate::live::words::short;
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
        Waiting { needed, timeout, waits_for_people: false, result_ttl: VERY_LONG, ..Waiting::for_all(ids) };
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
            // One that nobody goes on with says why, and what helps.
            for (key, word) in [("error", ""), ("hint", "to go on: ")] {
                let text = result.get(key).and_then(Value::as_str).filter(|_| result.get("hint").is_some());
                text.iter().for_each(|text| output.note(format_args!("{word}{}", short(text, 300))));
            }
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
