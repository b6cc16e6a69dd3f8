//! Threads at work in this process: opened, shown as they go, ended on Ctrl-C, told of at the end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rye_agent::driver::{CancelSignal, Listener};
use rye_agent::models::{OFFLINE_PROVIDER, Providers};
use rye_agent::prepare::{ThreadRequest, prepare};
use rye_agent::status::{SuspendReason, ThreadStatus};
use rye_agent::store::{DATABASE, StoreHandle, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{
    BackgroundHost, FinishedThread, ProviderBackoff, ResumeOptions, StartedThread, Threads, ThreadsSetup,
    finished_response,
};
use rye_agent::views::{continue_command, successor_command};
use rye_engine::{Code, Engine, EnginePool, Error};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::approvals::question_lines;
use super::ask::ApprovalPrompt;
use super::thread_index::threads_dir;
use crate::commands::{CommandContext, CommandError, CommandResult, background};
use crate::live::format::pluralize;
use crate::live::renderer::Renderer;
use crate::live::view::ThreadView;
use crate::output::{DIM, Output, WARNING, paint};
use crate::settings::{self, Settings, ThreadClock};

/// How often it is looked whether threads that others started have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What drives threads.
pub fn build_runtime() -> Result<Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error::new(Code::Io, format!("cannot run threads: {error}")))
}

/// Opens the threads of this place.
pub fn open_threads(
    settings: &Settings,
    engine: Engine,
    listener: Option<Arc<dyn Listener>>,
) -> Result<Threads, Error> {
    let environment = settings.host().variables.into_iter().collect();
    let folder = threads_dir(settings);
    let background =
        background::daemon_client(settings).map(|client| Arc::new(client) as Arc<dyn BackgroundHost>);
    let settings = settings.clone();
    let engines = EnginePool::new(1, move |(): &()| settings.engine()).with_engine(&(), engine);
    Threads::open(ThreadsSetup {
        engine: Arc::new(move || Ok(engines.engine(&())?.engine)),
        environment,
        listener,
        clock: Arc::new(ThreadClock),
        folder,
        background,
        worker: None,
    })
}

/// Opens the threads of this place to submit one: the key of a provider that is named is the workers', and need not be here.
pub fn open_for_submission(
    settings: &Settings,
    engine: Engine,
    request: &ThreadRequest,
) -> Result<Threads, Error> {
    let mut environment = settings.host().variables;
    let prepared = prepare(&engine, &environment, request);
    if prepared.is_err_and(|error| error.code == Code::ProviderKeyMissing) {
        let missing = Providers::discover(&engine.workspace).missing_variables(&environment);
        environment.extend(missing.into_iter().map(|name| (name, "kept by the worker".to_owned())));
    }
    let settings = settings.clone();
    let folder = threads_dir(&settings);
    let engines = EnginePool::new(1, move |(): &()| settings.engine()).with_engine(&(), engine);
    Threads::open(ThreadsSetup {
        engine: Arc::new(move || Ok(engines.engine(&())?.engine)),
        environment,
        listener: None,
        clock: Arc::new(ThreadClock),
        folder,
        background: None,
        worker: None,
    })
}

/// Refuses what could not start where there has never been a thread: nothing is made for it.
pub fn check_startable(context: &CommandContext, request: &ThreadRequest) -> Result<(), Error> {
    if threads_dir(&context.settings).join(DATABASE).exists() {
        return Ok(());
    }
    check_preparable(context, request)
}

/// Refuses what could not start now.
pub fn check_preparable(context: &CommandContext, request: &ThreadRequest) -> Result<(), Error> {
    let environment = context.settings.host().variables.into_iter().collect();
    prepare(&context.engine, &environment, request).map(drop)
}

/// How a thread is run to its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct DriveOptions {
    /// Whether a thread that no provider answers is resumed until one does.
    pub retries_provider: bool,
}

/// Runs the thread that `start` starts until it ends or is suspended, and renders it.
pub fn drive(
    context: CommandContext,
    prepare: impl FnOnce(&mut ThreadView),
    start: impl AsyncFnOnce(&Threads, CancelSignal) -> Result<StartedThread, Error>,
) -> CommandResult {
    drive_with(context, DriveOptions::default(), prepare, start)
}

/// As [`drive`], with options.
pub fn drive_with(
    context: CommandContext,
    options: DriveOptions,
    prepare: impl FnOnce(&mut ThreadView),
    start: impl AsyncFnOnce(&Threads, CancelSignal) -> Result<StartedThread, Error>,
) -> CommandResult {
    let CommandContext { settings, engine, output } = context;
    let prompt = ApprovalPrompt::for_terminal(&settings, output);
    let renderer = Renderer::start(output, prepare)?;
    let runtime = build_runtime()?;
    let signal = CancelSignal::default();
    let result = open_threads(&settings, engine, Some(renderer.listener())).and_then(|threads| {
        cancel_threads_on_signals(&signal, &threads, renderer.line_sender());
        let driven = runtime.block_on(async {
            let _watching = threads.watch();
            let started = start(&threads, signal.clone()).await?;
            let print_line = renderer.line_sender();
            for notice in &started.notices {
                print_line(format!("{} {}", paint(WARNING, "!"), rye_item::text::one_line(notice)));
            }
            let mut finished = finish_with_answers(&threads, started, prompt.as_ref(), &renderer).await?;
            let mut backoff = ProviderBackoff::default();
            while options.retries_provider && finished.outcome.reason == Some(SuspendReason::Provider) {
                let delay = backoff.next_delay();
                print_line(paint(
                    DIM,
                    format_args!("no provider answers; trying again in {} s", delay.as_secs()),
                ));
                tokio::select! {
                    () = signal.cancel_token.cancelled() => break,
                    () = tokio::time::sleep(delay) => {}
                }
                let options = ResumeOptions { by: settings.owner.clone(), ..ResumeOptions::default() };
                let resumed = threads.resume(&finished.thread_id, &options, signal.clone()).await?;
                finished = finish_with_answers(&threads, resumed, prompt.as_ref(), &renderer).await?;
            }
            wait_for_others(&threads, &print_line).await;
            print_background_threads(&threads, &finished.thread_id, &print_line).await;
            let questions = match finished.outcome.has_questions() {
                true => threads.open_approvals(&finished.thread_id).await?,
                false => Vec::new(),
            };
            Ok((finished, questions))
        });
        driven.map(|(finished, questions)| {
            let command = command_to_continue(threads.store(), &finished);
            (finished, questions, command)
        })
    });
    let view = renderer.finish();
    let (finished, questions, command) = result?;
    if prompt.is_some() && !questions.is_empty() {
        return Err(leave_suspended(output, &finished.thread_id));
    }
    for line in questions.iter().flat_map(question_lines) {
        output.note(line);
    }
    let key_hint = match finished.provider == OFFLINE_PROVIDER {
        true => model_key_hint(&settings),
        false => None,
    };
    print_outcome(output, view.as_ref(), &finished, &command, key_hint.as_deref())
}

/// What to set where no key of a model is.
pub fn model_key_hint(settings: &Settings) -> Option<String> {
    // What keeps the project from being opened was said before.
    let engine = settings.engine().ok()?;
    Providers::discover(&engine.workspace).key_hint(&settings.host().variables)
}

/// The command that lets a suspended thread continue.
fn command_to_continue(store: &StoreHandle, finished: &FinishedThread) -> String {
    let (id, outcome) = (&finished.thread_id, &finished.outcome);
    let reason = outcome.reason.map(|reason| reason.as_str());
    continue_command(store, id, &finished.directive, reason, Some(&outcome.detail))
}

/// A thread whose question the person left for later: it waits, and the exit code says so.
pub fn leave_suspended(output: Output, id: &ThreadId) -> CommandError {
    output.note(format_args!(
        "suspended until you answer: {}",
        paint(DIM, format_args!("rye thread resume {id}"))
    ));
    CommandError::Exit(exit_code(ThreadStatus::Suspended))
}

/// Waits until a thread has ended or stopped. What it or a thread below it asks meanwhile is put to the person at the
/// terminal, if there is one; answered, it continues.
async fn finish_with_answers(
    threads: &Threads,
    started: StartedThread,
    prompt: Option<&ApprovalPrompt>,
    renderer: &Renderer,
) -> Result<FinishedThread, Error> {
    let lost = || Error::new(Code::ThreadFailed, "the thread ended unexpectedly");
    let root = started.thread_id.clone();
    let Some(prompt) = prompt else {
        return started.finished().await.map(|finished| (*finished).clone()).ok_or_else(lost);
    };
    let first = async move { started.finished().await.map(|finished| (*finished).clone()).ok_or_else(lost) };
    let mut done: Pin<Box<dyn Future<Output = Result<FinishedThread, Error>>>> = Box::pin(first);
    let mut is_left = false;
    loop {
        let finished = tokio::select! {
            finished = &mut done => Some(finished?),
            () = tokio::time::sleep(POLL_INTERVAL), if !is_left => None,
        };
        let may_ask = match &finished {
            Some(finished) => finished.outcome.status == ThreadStatus::Suspended && !is_left,
            None => threads.has_pending_approvals(),
        };
        let open = if may_ask { threads.open_approvals(&root).await? } else { Vec::new() };
        let has_asked = !open.is_empty();
        if has_asked {
            let (prompt, threads) = (prompt.clone(), threads.clone());
            let ask = move || {
                prompt.ask_all(&open, |id, decision| {
                    threads.store().answer_approval(id, decision)?;
                    Ok(())
                })
            };
            is_left = !renderer.prompt(ask).await.unwrap_or(Ok(false))?;
        }
        match finished {
            Some(finished) if !has_asked || is_left => return Ok(finished),
            Some(_) => {
                let (threads, root) = (threads.clone(), root.clone());
                done =
                    Box::pin(async move { threads.resume_and_wait(&root, &CancellationToken::new()).await });
            }
            None => {}
        }
    }
}

/// Without a daemon, detached threads run in this process, which ends after them.
async fn wait_for_others(threads: &Threads, print_line: &impl Fn(String)) {
    let count = threads.running_count();
    if count == 0 {
        return;
    }
    let others = pluralize(count as u64, "other thread");
    print_line(paint(DIM, format_args!("waiting for {others} it started")));
    while threads.running_count() > 0 {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Detached threads continue in the background.
async fn print_background_threads(threads: &Threads, id: &ThreadId, print_line: &impl Fn(String)) {
    let is_active = |row: &&ThreadRow| {
        row.id != *id && matches!(row.status, ThreadStatus::Created | ThreadStatus::Running)
    };
    let count =
        threads.store().shared().subtree(id).await.map_or(0, |rows| rows.iter().filter(is_active).count());
    if count > 0 {
        let others = pluralize(count as u64, "thread");
        print_line(paint(
            DIM,
            format_args!("still running in the background: {others} it started; rye thread tree {id}"),
        ));
    }
}

/// The first Ctrl-C asks threads to end, the second ends the process.
fn cancel_threads_on_signals(
    signal: &CancelSignal,
    threads: &Threads,
    print_line: impl Fn(String) + Send + 'static,
) {
    let (signal, threads) = (signal.clone(), threads.clone());
    let is_cancelling = AtomicBool::new(false);
    settings::on_termination_signals(move || {
        if is_cancelling.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(exit_code(ThreadStatus::Cancelled)));
        }
        print_line(paint(WARNING, "stopping; press Ctrl-C again to force"));
        signal.cancel("interrupted");
        threads.cancel_all("interrupted");
    });
}

/// The exit code a thread's end has.
pub fn exit_code(status: ThreadStatus) -> u8 {
    let code = match status {
        ThreadStatus::Completed | ThreadStatus::Continued => return 0,
        ThreadStatus::Suspended => Code::ThreadSuspended,
        ThreadStatus::Cancelled | ThreadStatus::Killed => Code::ThreadCancelled,
        ThreadStatus::Error | ThreadStatus::Created | ThreadStatus::Running => Code::ThreadFailed,
    };
    code.kind().exit_code()
}

/// The end: the result on stdout, and what went wrong with the command that fixes it.
fn print_outcome(
    output: Output,
    view: Option<&ThreadView>,
    finished: &FinishedThread,
    command: &str,
    key_hint: Option<&str>,
) -> CommandResult {
    let outcome = &finished.outcome;
    if output.is_json {
        output.print_json_line(&Value::Object(finished_response(finished)))?;
        return match exit_code(outcome.status) {
            0 => Ok(()),
            code => Err(CommandError::Exit(code)),
        };
    }
    match (&outcome.outputs, &outcome.result) {
        (Some(outputs), _) => {
            let pretty = serde_json::to_string_pretty(outputs).map_err(std::io::Error::from)?;
            output.print(rye_item::text::strip_controls(&pretty))?;
        }
        // Who has just read it need not read it again.
        (None, Some(text)) if view.is_some_and(|view| view.has_printed(text)) && output.is_terminal() => {}
        (None, Some(text)) if !text.is_empty() => output.print_raw(&rye_item::text::strip_controls(text))?,
        (None, _) => {}
    }
    let id = &finished.thread_id;
    let error_text = rye_item::text::one_line(outcome.error.as_deref().unwrap_or_default());
    let error = |code: Code, word: &str| {
        let separator = if error_text.is_empty() { "" } else { ": " };
        Error::new(code, format!("{word}{separator}{error_text}")).detail("thread_id", id.as_str())
    };
    let show_hint = format!("see what it did: rye thread show {id}");
    Err(match outcome.status {
        ThreadStatus::Completed | ThreadStatus::Continued => {
            // A program that reads what is printed here asked for no model.
            if let Some(hint) = key_hint.filter(|_| output.is_terminal()) {
                output.note(paint(DIM, hint));
            }
            return Ok(());
        }
        ThreadStatus::Suspended => {
            error(Code::ThreadSuspended, "suspended").hint(format!("to continue: {command}")).into()
        }
        ThreadStatus::Cancelled | ThreadStatus::Killed => {
            let command = successor_command(id, &finished.directive, &finished.provider);
            let hint = command.map_or(show_hint, |command| format!("to continue from there: {command}"));
            error(Code::ThreadCancelled, outcome.status.as_str()).hint(hint).into()
        }
        ThreadStatus::Error | ThreadStatus::Created | ThreadStatus::Running => {
            let refusals = view.map(ThreadView::refusal_hints).unwrap_or_default();
            let failed = error(Code::ThreadFailed, "failed");
            let failed = key_hint.into_iter().fold(failed, |failed, hint| failed.hint(hint));
            refusals.iter().fold(failed, |failed, hint| failed.hint(hint.as_str())).hint(show_hint).into()
        }
    })
}
