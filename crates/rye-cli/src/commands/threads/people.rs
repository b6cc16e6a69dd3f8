//! `thread approvals`, `approve`, `deny`: what threads ask people, and the answers.

use std::time::{Duration, Instant};

use rye_agent::status::Status;
use rye_agent::store::{Answer, Approval, ThreadRow};
use rye_agent::threads::Changes;
use rye_engine::{Code, Error};
use serde_json::{Map, Value, json};

use super::shelf::Shelf;
use super::steer::{going_on, limits};
use super::work;
use crate::arguments::AnswerArguments;
use crate::commands::{Context, Failure, Outcome};
use crate::live::words::{ago, short};
use crate::output::{CAUTION, DIM, GOOD, NAME, paint};
use crate::settings;

/// How long a process that holds on to a thread may take to hear of the answer.
const HEARS_WITHIN: Duration = Duration::from_secs(3);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// `rye thread approvals`
pub fn approvals(context: &Context, id: Option<&str>) -> Outcome {
    let opened = match id {
        Some(word) => Some(Shelf::with(&context.settings, word).map(|(shelf, row)| (shelf, Some(row.id)))?),
        None => Shelf::open(&context.settings)?.map(|shelf| (shelf, None)),
    };
    let open = match &opened {
        Some((shelf, below)) => shelf.store.open_approvals(below.as_ref())?,
        None => rye_agent::store::Open::default(),
    };
    warn_of_forged(context, &open.forged);
    let asked: Vec<Value> = open.questions.iter().map(value).collect();
    if context.answered(Some("thread"), None, &json!({"approvals": asked, "forged": open.forged}))? {
        return Ok(());
    }
    if open.questions.is_empty() {
        context.output.note("nobody is asked anything");
        return Ok(());
    }
    for question in &open.questions {
        let age = ago(settings::now_ms().saturating_sub(question.at_ms));
        context.output.result(format_args!(
            "{} {} {}",
            paint(CAUTION, "?"),
            paint(NAME, short(&question.what, 120)),
            paint(DIM, format_args!("· {} · {age}", short(&question.kind, 20)))
        ))?;
        if !question.why.is_empty() {
            context.output.result(format_args!("  why   {}", short(&question.why, 200)))?;
        }
        context.output.result(format_args!("  who   {}", line(question)))?;
        context.output.result(format_args!("  allow rye thread approve {}", short(&question.id, 60)))?;
        context.output.result(format_args!("  or    rye thread deny {}", short(&question.id, 60)))?;
    }
    Ok(())
}

/// What is asked by a thread and all below it, a line each.
pub fn asked_below(shelf: &Shelf, row: &ThreadRow) -> Result<Vec<(Value, String)>, Error> {
    let open = shelf.store.open_approvals(Some(&row.id))?;
    let shown = |question: &Approval| {
        let way = paint(DIM, format_args!("· rye thread approve {}", short(&question.id, 60)));
        (value(question), format!("{} {} {way}", paint(CAUTION, "?"), short(&question.what, 80)))
    };
    Ok(open.questions.iter().map(shown).collect())
}

/// A question as JSON.
fn value(question: &Approval) -> Value {
    json!({
        "id": question.id,
        "thread_id": question.thread,
        "kind": question.kind,
        "what": question.what,
        "why": question.why,
        "asked_at_ms": question.at_ms,
        "chain": question.detail.get("chain"),
        "detail": question.detail,
    })
}

/// Who asks: the thread, and those above it to the top.
fn line(question: &Approval) -> String {
    let chain = question.detail.get("chain").and_then(Value::as_array).cloned().unwrap_or_default();
    let of = |one: &Value, key: &str| short(one.get(key).and_then(Value::as_str).unwrap_or_default(), 60);
    let names: Vec<String> = chain.iter().map(|one| of(one, "directive")).collect();
    format!("{} · {}", question.thread, names.join(" ← "))
}

fn warn_of_forged(context: &Context, forged: &[String]) {
    for name in forged {
        let name = short(name, 60);
        context.output.warn(format_args!("the question {name} was not written by you and does not count"));
    }
}

/// `rye thread approve`, `rye thread deny`
pub fn answer(context: Context, arguments: &AnswerArguments, is_approved: bool, ends: bool) -> Outcome {
    let given = limits(&arguments.limits, true)?;
    let word = &arguments.what;
    let none = || {
        let message = format!("nothing is asked under `{}`", rye_item::text::one_line(word));
        Error::new(Code::NoQuestion, message).hint("rye thread approvals shows what is")
    };
    let shelf = Shelf::open(&context.settings)?.ok_or_else(none)?;
    let open = shelf.store.open_approvals(None)?;
    warn_of_forged(&context, &open.forged);
    let mut questions: Vec<Approval> =
        open.questions.iter().filter(|question| question.id == *word).cloned().collect();
    if questions.is_empty() {
        let row = shelf.find(word).map_err(|_| none())?;
        questions.extend(open.questions.iter().filter(|question| question.thread == row.id).cloned());
        // Suspended for a person's word without a question: going on is the answer.
        if questions.is_empty() && row.status == Status::Suspended && is_approved {
            return go_on(context, &row, given, arguments.message.clone());
        }
        if questions.is_empty() {
            let error = none();
            return Err(match shelf.way_on(&row) {
                Some(way) => error.hint(format!("to go on: {way}")).into(),
                None => error.into(),
            });
        }
    }
    for question in &questions {
        let proposed = question.detail.get("proposed").and_then(Value::as_object);
        let changes = match (is_approved, given.is_empty()) {
            (true, true) => proposed.cloned().unwrap_or_default(),
            (true, false) => given.clone(),
            (false, _) => Map::new(),
        };
        let answer = Answer {
            approved: is_approved,
            message: arguments.message.clone(),
            changes: Value::Object(changes),
            at_ms: settings::now_ms(),
            by: context.settings.owner.clone(),
        };
        let asked = shelf.store.answer(&question.id, &answer)?;
        let word = if is_approved { paint(GOOD, "approved") } else { paint(CAUTION, "denied") };
        context.output.note(format_args!("{word} {}", short(&asked.what, 120)));
    }
    let Some(row) = questions.first().map(|question| shelf.store.thread(&question.thread)).transpose()?
    else {
        return Err(none().into());
    };
    let answered: Vec<&str> = questions.iter().map(|question| question.id.as_str()).collect();
    let told = json!({"approved": is_approved, "answered": answered});
    let Some(row) = row.filter(|row| row.status == Status::Suspended) else {
        context.answered(Some("thread"), None, &told)?;
        return Ok(());
    };
    if ends {
        let reason = match &arguments.message {
            Some(said) => format!("denied by {}: {}", context.settings.owner, rye_item::text::one_line(said)),
            None => format!("denied by {}", context.settings.owner),
        };
        return super::steer::cancel(context, &[row.id.to_string()], &reason);
    }
    let is_open =
        |question: &Approval| question.thread == row.id && !answered.contains(&question.id.as_str());
    let others: Vec<&Approval> = open.questions.iter().filter(|question| is_open(question)).collect();
    if let Some(next) = others.first() {
        context.output.note(format_args!(
            "{} asks more before it goes on: {}",
            row.id,
            paint(DIM, format_args!("rye thread approve {}", short(&next.id, 60)))
        ));
        context.answered(Some("thread"), None, &told)?;
        return Ok(());
    }
    if is_heard(&shelf, &row)? {
        goes_on_elsewhere(&context, &row);
        context.answered(Some("thread"), None, &told)?;
        return Ok(());
    }
    go_on(context, &row, Map::new(), None)
}

/// Whether a process that runs a thread above this one takes it up: its tree goes on there.
fn is_heard(shelf: &Shelf, row: &ThreadRow) -> Result<bool, Error> {
    let above = shelf.store.ancestors(&row.id)?;
    if !above.iter().any(|above| above.status == Status::Running && !shelf.is_interrupted(above)) {
        return Ok(false);
    }
    let end = Instant::now() + HEARS_WITHIN;
    while Instant::now() < end {
        if shelf
            .store
            .thread(&row.id)?
            .is_none_or(|row| row.status != Status::Suspended || row.owner.is_some())
        {
            return Ok(true);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(false)
}

fn goes_on_elsewhere(context: &Context, row: &ThreadRow) {
    context
        .output
        .note(paint(DIM, format_args!("it goes on where it was; follow it: rye thread tail {}", row.id)));
}

/// Goes on with it here.
fn go_on(context: Context, row: &ThreadRow, limits: Map<String, Value>, message: Option<String>) -> Outcome {
    let changes = Changes { limits, message, by: context.settings.owner.clone(), within: None };
    let id = row.id.clone();
    let output = context.output;
    let driven = work::drive(context, going_on(row), async move |threads, signal| {
        threads.resume(&id, &changes, signal).await
    });
    match driven {
        // Whoever held on to it was faster.
        Err(Failure::Verb(error, _)) if error.code == Code::ThreadHeld => {
            let id = &row.id;
            output.note(paint(DIM, format_args!("it goes on elsewhere; follow it: rye thread tail {id}")));
            Ok(())
        }
        driven => driven,
    }
}
