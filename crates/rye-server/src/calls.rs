//! One tool call: arguments read, the verb run beside the thread that talks, progress told meanwhile.

use std::sync::Arc;

use rmcp::service::{RequestContext, RoleServer};
use rye_engine::{Code, Engine, Error, primaries};
use rye_item::ItemType;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::arguments::{self, Execute, Thread};
use crate::consent::{Consents, Refusal, Way};
use crate::pool::Pace;
use crate::session::Session;
use crate::telling::Voice;
use crate::threads::Asking;
use crate::verbs::Outcome;
use crate::{execution, verbs};

/// Calls the tool `name`, which exists.
pub(crate) async fn call(
    session: &Session,
    name: &str,
    given: Map<String, Value>,
    consents: &Consents,
    context: &RequestContext<RoleServer>,
    voice: &Voice,
) -> Outcome {
    if let Some(door) = session.shared.projects.setup().door.clone() {
        let action = action(name, given)?;
        let answer = session.shared.pool.run(Pace::Long, move || door.ask(&action)).await?;
        return if answer["status"] == "error" { Err(Refusal::Told(answer)) } else { Ok(answer) };
    }
    let consents = consents.clone();
    match name {
        "rye_search" => {
            let given: primaries::Search = arguments::read(given)?;
            let project = given.project_path.clone();
            quick(session, project, voice, move |engine| Ok(primaries::search(engine, &given)?)).await
        }
        "rye_load" => {
            let given: primaries::Load = arguments::read(given)?;
            let project = given.project_path.clone();
            quick(session, project, voice, move |engine| verbs::load(engine, &given, &consents)).await
        }
        "rye_fetch" => {
            let given: primaries::Fetch = arguments::read(given)?;
            let project = given.project_path.clone();
            quick(session, project, voice, move |engine| verbs::fetch(engine, given, &consents)).await
        }
        "rye_sign" => {
            let given: primaries::Sign = arguments::read(given)?;
            let project = given.project_path.clone();
            quick(session, project, voice, move |engine| verbs::sign(engine, &given, &consents)).await
        }
        _ => execute(session, arguments::read(given)?, consents, context, voice).await,
    }
}

/// What a call asks of the thread behind the door.
fn action(name: &str, mut given: Map<String, Value>) -> Result<Value, Error> {
    if given.remove("project_path").is_some_and(|path| !path.is_null()) {
        let message = "a tool acts where its thread does: project_path is not for it";
        return Err(Error::new(Code::InvalidArgument, message).hint("leave it out"));
    }
    given.insert("primary".to_owned(), Value::from(name.trim_start_matches("rye_")));
    Ok(Value::Object(given))
}

async fn quick(
    session: &Session,
    project: Option<String>,
    voice: &Voice,
    work: impl FnOnce(&Engine) -> Outcome + Send + 'static,
) -> Outcome {
    let shared = Arc::clone(&session.shared);
    let done = session.shared.pool.run(Pace::Quick, move || {
        let opened = shared.projects.engine(project.as_deref())?;
        Ok((work(&opened.engine), opened.notices))
    });
    let (outcome, notices) = done.await?;
    voice.warn(notices).await;
    outcome
}

async fn execute(
    session: &Session,
    given: Execute,
    consents: Consents,
    context: &RequestContext<RoleServer>,
    voice: &Voice,
) -> Outcome {
    let item = execution::item(&given)?;
    if given.thread == Thread::Fork {
        return fork(session, item, given, &consents, context).await;
    }
    let shared = Arc::clone(&session.shared);
    let ending = CancellationToken::new();
    let (lines, told) = tokio::sync::mpsc::channel(16);
    let wants_progress = voice.wants_progress();
    let inner = ending.clone();
    let label = item.to_string();
    // Cancelled before its turn: it never begins.
    let _guard = ending.clone().drop_guard();
    let pace = match item.item_type {
        ItemType::Tool => Pace::Long,
        ItemType::Directive | ItemType::Knowledge | ItemType::Config => Pace::Quick,
    };
    let work = session.shared.pool.run(pace, move || {
        if inner.is_cancelled() {
            return Err(cancelled());
        }
        let opened = shared.projects.engine(given.project_path.as_deref())?;
        let progress = if wants_progress {
            Some(execution::progress_into(lines, shared.projects.redactor(&opened.engine)?))
        } else {
            None
        };
        // What is secret now stays so in the answer, whatever the call does to the files that say it.
        shared.projects.redactor(&opened.engine)?;
        let outcome = execution::run(&opened.engine, item, &given, progress, &inner, &consents);
        Ok((outcome, opened.notices))
    });
    tokio::pin!(work);
    let telling = voice.tell_progress(&label, told);
    tokio::pin!(telling);
    let (outcome, notices) = loop {
        tokio::select! {
            done = &mut work => break done?,
            () = context.ct.cancelled(), if !ending.is_cancelled() => ending.cancel(),
            () = session.state.gone.cancelled(), if !ending.is_cancelled() => ending.cancel(),
            () = &mut telling => {}
        }
    };
    voice.warn(notices).await;
    outcome
}

/// A directive in a thread of its own; its end comes with the client's.
async fn fork(
    session: &Session,
    item: rye_item::ItemRef,
    given: Execute,
    consents: &Consents,
    context: &RequestContext<RoleServer>,
) -> Outcome {
    let ending = CancellationToken::new();
    let can_ask = session.way(context).await? != Way::None;
    let asking = Asking { answered: consents.answered(), consents: consents.clone(), can_ask };
    let runs = Arc::clone(&session.shared.runs);
    let work = runs.fork(Arc::clone(&session.shared.projects), item, given, asking, ending.clone());
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = context.ct.cancelled(), if !ending.is_cancelled() => ending.cancel(),
            () = session.state.gone.cancelled(), if !ending.is_cancelled() => ending.cancel(),
        }
    }
}

fn cancelled() -> Error {
    Error::new(Code::ToolCancelled, "the call was cancelled before it began")
}
