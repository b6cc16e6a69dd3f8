//! Threads at work in this process: opened, shown as they go, ended on Ctrl-C, told of at the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rye_agent::driver::{Listener, Signal};
use rye_agent::prepare::{Order, prepare};
use rye_agent::status::Status;
use rye_agent::store::{DATABASE, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Background, Finished, Setup, Started, Threads, sync_answer};
use rye_engine::{Code, Engine, Error};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::shelf::{folder, resuming};
use crate::commands::{Context, Failure, Outcome, background};
use crate::live::screen::Screen;
use crate::live::view::View;
use crate::live::words::several;
use crate::output::{CAUTION, DIM, Output, paint};
use crate::settings::{self, Settings, ThreadClock};

/// How often it is looked whether threads that others started have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What drives threads.
pub fn runtime() -> Result<Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error::new(Code::Io, format!("cannot run threads: {error}")))
}

/// Opens the threads of this place.
pub fn open(
    settings: &Settings,
    engine: Engine,
    listener: Option<Arc<dyn Listener>>,
) -> Result<Threads, Error> {
    let environment = settings.host().environment.into_iter().collect();
    let kept = Mutex::new(Arc::new(engine));
    let folder = folder(settings);
    let background = background::client(settings).map(|client| Arc::new(client) as Arc<dyn Background>);
    let settings = settings.clone();
    let door = move || {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.workspace.is_current() {
            *kept = Arc::new(settings.engine()?);
        }
        Ok(Arc::clone(&kept))
    };
    Threads::open(Setup {
        engine: Arc::new(door),
        environment,
        listener,
        clock: Arc::new(ThreadClock),
        folder,
        background,
    })
}

/// Refuses what could not start where there has never been a thread: nothing is made for it.
pub fn refuse_early(context: &Context, order: &Order) -> Result<(), Error> {
    if folder(&context.settings).join(DATABASE).exists() {
        return Ok(());
    }
    let environment = context.settings.host().environment.into_iter().collect();
    prepare(&context.engine, &environment, order).map(drop)
}

/// Runs what `begin` starts until it ends or stops, and shows it.
pub fn drive(
    context: Context,
    prepare: impl FnOnce(&mut View),
    begin: impl AsyncFnOnce(&Threads, Signal) -> Result<Started, Error>,
) -> Outcome {
    let Context { settings, engine, output } = context;
    let screen = Screen::open(output, prepare)?;
    let runtime = runtime()?;
    let signal = Signal::default();
    let driven = open(&settings, engine, Some(screen.listener())).and_then(|threads| {
        end_on_signals(&signal, &threads, screen.teller());
        runtime.block_on(async {
            let _watching = threads.watch();
            let started = begin(&threads, signal.clone()).await?;
            let tell = screen.teller();
            for notice in &started.notices {
                tell(format!("{} {}", paint(CAUTION, "!"), rye_item::text::one_line(notice)));
            }
            let finished = started.finished().await;
            wait_for_others(&threads, &tell).await;
            if let Some(finished) = &finished {
                tell_what_goes_on(&threads, &finished.thread_id, &tell);
            }
            finished.ok_or_else(|| Error::new(Code::ThreadFailed, "the thread was lost"))
        })
    });
    let view = screen.close();
    tell(output, view.as_ref(), driven?.as_ref())
}

/// Where nobody else runs them, threads that nobody waits for run in this process: it ends after them.
async fn wait_for_others(threads: &Threads, tell: &impl Fn(String)) {
    let count = threads.live_count();
    if count == 0 {
        return;
    }
    let others = several(count as u64, "other thread");
    tell(paint(DIM, format_args!("waiting for {others} that it has started")));
    while threads.live_count() > 0 {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Threads that nobody waits for go on in the background.
fn tell_what_goes_on(threads: &Threads, id: &ThreadId, tell: &impl Fn(String)) {
    let is_at_work =
        |row: &&ThreadRow| row.id != *id && matches!(row.status, Status::Created | Status::Running);
    let count = threads.store().subtree(id).map_or(0, |rows| rows.iter().filter(is_at_work).count());
    if count > 0 {
        let others = several(count as u64, "thread");
        tell(paint(
            DIM,
            format_args!("still at work in the background: {others} it started; rye thread tree {id}"),
        ));
    }
}

/// The first Ctrl-C asks threads to end, the second ends the process.
fn end_on_signals(signal: &Signal, threads: &Threads, tell: impl Fn(String) + Send + 'static) {
    let (signal, threads) = (signal.clone(), threads.clone());
    let is_asked = AtomicBool::new(false);
    settings::on_end_signals(move || {
        if is_asked.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(exit_code(Status::Cancelled)));
        }
        tell(paint(CAUTION, "ending it; once more ends at once"));
        signal.cancel("interrupted");
        threads.cancel_all("interrupted");
    });
}

/// The exit code a thread's end has.
pub fn exit_code(status: Status) -> u8 {
    let code = match status {
        Status::Completed | Status::Continued => return 0,
        Status::Suspended => Code::ThreadSuspended,
        Status::Cancelled | Status::Killed => Code::ThreadCancelled,
        Status::Error | Status::Created | Status::Running => Code::ThreadFailed,
    };
    code.kind().exit_code()
}

/// The end: the result on stdout, and what went wrong with the command that mends it.
fn tell(output: Output, view: Option<&View>, finished: &Finished) -> Outcome {
    let outcome = &finished.outcome;
    if output.is_json {
        output.json_line(&Value::Object(sync_answer(finished)))?;
        return match exit_code(outcome.status) {
            0 => Ok(()),
            code => Err(Failure::Ended(code)),
        };
    }
    match (&outcome.outputs, &outcome.result) {
        (Some(outputs), _) => {
            let pretty = serde_json::to_string_pretty(outputs).map_err(std::io::Error::from)?;
            output.result(rye_item::text::without_controls(&pretty))?;
        }
        // Who has just read it need not read it again.
        (None, Some(text)) if view.is_some_and(|view| view.has_shown(text)) && output.is_result_seen() => {}
        (None, Some(text)) if !text.is_empty() => output.raw(&rye_item::text::without_controls(text))?,
        (None, _) => {}
    }
    let id = &finished.thread_id;
    let why = rye_item::text::one_line(outcome.error.as_deref().unwrap_or_default());
    let error = |code: Code, word: &str| {
        let between = if why.is_empty() { "" } else { ": " };
        Error::new(code, format!("{word}{between}{why}")).detail("thread_id", id.as_str())
    };
    let seen = format!("see what it did: rye thread show {id}");
    Err(match outcome.status {
        Status::Completed | Status::Continued => return Ok(()),
        Status::Suspended => {
            let way = resuming(id, outcome.reason.map(|reason| reason.as_str()), Some(&outcome.detail));
            error(Code::ThreadSuspended, "suspended").hint(format!("to go on: {way}")).into()
        }
        Status::Cancelled | Status::Killed => {
            let on = format!("to go on from there: rye run {} --continue {id}", finished.directive);
            error(Code::ThreadCancelled, "cancelled").hint(on).into()
        }
        Status::Error | Status::Created | Status::Running => {
            error(Code::ThreadFailed, "failed").hint(seen).into()
        }
    })
}
