//! Starting what is due: each time once, said if it was missed or skipped.

use std::time::Duration;

use lillux::process::spawn_daemon;
use rye_agent::driver::MillisClock as _;
use rye_agent::prepare::ThreadRequest;
use rye_agent::schedule::{
    ApprovalsPolicy, PlannedRun, Schedule, ScheduleState, ScheduleStates, ScheduledRun, Schedules,
    follow_clock, format_missed_count, plan,
};
use rye_agent::status::ThreadStatus;
use rye_agent::store::{Approval, current_owner, is_owner_gone};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::WaitRequest;
use rye_engine::{Code, Error};
use rye_item::timestamp::iso_timestamp;
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::super::threads::{ThreadIndex, control, runner as thread_runner};
use super::super::{CommandContext, CommandError, CommandResult};
use super::find;
use crate::global::GlobalArguments;
use crate::output::{Output, WARNING, paint};
use crate::settings::{self, ThreadClock};

/// What a scheduled thread is given when it asks.
const DENIED_MESSAGE: &str = "denied: this run is unattended";

/// What became of a schedule in one round.
pub(super) struct TickLine {
    schedule: String,
    run: ScheduledRun,
}

/// `rye schedule tick`
pub fn tick_command(global: &GlobalArguments) -> CommandResult {
    let context = CommandContext::open_without_project(global)?;
    let lines = tick(global, &context)?;
    if context.output.is_json {
        let runs: Vec<_> =
            lines.iter().map(|line| json!({"schedule": line.schedule, "run": line.run})).collect();
        context.print_if_json(Some("schedule"), None, &json!({"runs": runs}))?;
    }
    Ok(())
}

/// `rye schedule run`
pub fn run_now(global: &GlobalArguments, context: &CommandContext, name: &str) -> CommandResult {
    let schedule = find(context, name)?;
    let now_ms = ThreadClock.now_ms();
    let mut states = ScheduleStates::lock(&context.settings.roots.signing_keys)?;
    let started = start(global, &schedule, thread_request(&schedule)?)?;
    let state = states.schedules.entry(schedule.id.clone()).or_default();
    state.thread_id = Some(started.to_string());
    state.add_run(run_record(now_ms, now_ms, "started", Some(&started), Some("by hand".to_owned())));
    states.save()?;
    let data = json!({"schedule": schedule.id, "thread_id": started});
    if !context.print_if_json(Some("schedule"), Some(&schedule.id), &data)? {
        context.output.print(&started)?;
    }
    Ok(())
}

fn run_record(
    due_ms: u64,
    at_ms: u64,
    outcome: &str,
    thread: Option<&ThreadId>,
    message: Option<String>,
) -> ScheduledRun {
    let thread_id = thread.map(ToString::to_string);
    ScheduledRun { due_ms, at_ms, outcome: outcome.to_owned(), thread_id, message }
}

/// Starts what is due, once. What was decided is written before anything starts, with the name of the thread: after a process
/// that was killed in between the next one finds out whether there is such a thread, and starts none for that time.
pub(super) fn tick(
    global: &GlobalArguments,
    context: &CommandContext,
) -> Result<Vec<TickLine>, CommandError> {
    let schedules = Schedules::load(&context.engine.workspace)?;
    for problem in &schedules.problems {
        context.output.warn(rye_item::text::one_line(problem));
    }
    let mut states = ScheduleStates::lock(&context.settings.roots.signing_keys)?;
    let mut lines = Vec::new();
    for schedule in &schedules.list {
        let now_ms = ThreadClock.now_ms();
        let mut state = states.schedules.get(&schedule.id).cloned().unwrap_or_default();
        let before = state.clone();
        if let Some(served_ms) = follow_clock(&schedule.times()?, &mut state, now_ms) {
            context.output.warn(format_args!(
                "{}: the last run is in the future ({}): the clock was ahead or is behind; scheduling from the present time",
                schedule.id,
                iso_timestamp(served_ms)
            ));
        }
        let planned = match last_thread(global, schedule, &mut state) {
            Ok(last) => {
                if let Some(run) = settle_interrupted(&mut state, last) {
                    print_run(&context.output, &schedule.id, &run);
                    lines.push(TickLine { schedule: schedule.id.clone(), run });
                }
                plan(schedule, &schedule.times()?, &state, now_ms, last == LastThread::Active)
            }
            Err(error) => {
                context.output.warn(format_args!("{}: {}", schedule.id, error_text(&error)));
                PlannedRun::Wait { next_ms: None }
            }
        };
        let request = named_request(schedule);
        let thread = request.as_ref().ok().and_then(|request| request.thread_id.as_ref());
        let run = record_plan(schedule, &mut state, &planned, now_ms, thread);
        if state != before {
            states.schedules.insert(schedule.id.clone(), state.clone());
            states.save()?;
        }
        let Some(mut run) = run else { continue };
        if run.outcome == "starting" {
            let started =
                request.map_err(CommandError::from).and_then(|request| start(global, schedule, request));
            run = finish_start(&run, started, now_ms);
            state.runs.pop();
            state.add_run(run.clone());
            states.schedules.insert(schedule.id.clone(), state);
            states.save()?;
        }
        print_run(&context.output, &schedule.id, &run);
        lines.push(TickLine { schedule: schedule.id.clone(), run });
    }
    Ok(lines)
}

/// The last thread of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastThread {
    /// It was never made.
    Missing,
    /// It has ended.
    Ended,
    /// It has not ended.
    Active,
}

/// A process was killed while it started the last thread: says what came of that, which the thread itself tells.
fn settle_interrupted(state: &mut ScheduleState, last: LastThread) -> Option<ScheduledRun> {
    let run = state.runs.last_mut().filter(|run| run.outcome == "starting")?;
    let message = "the process was killed while it started it";
    let (outcome, message) = match last {
        LastThread::Missing => ("failed", message.to_owned()),
        LastThread::Ended | LastThread::Active => ("started", format!("{message}; the thread was there")),
    };
    outcome.clone_into(&mut run.outcome);
    run.message = Some(run.message.take().map_or(message.clone(), |before| format!("{message}; {before}")));
    if last == LastThread::Missing {
        run.thread_id = None;
    }
    Some(run.clone())
}

/// Writes into the state what was decided; gives what is to be said or started, in a thread of this name.
fn record_plan(
    schedule: &Schedule,
    state: &mut ScheduleState,
    planned: &PlannedRun,
    now_ms: u64,
    thread: Option<&ThreadId>,
) -> Option<ScheduledRun> {
    let missed_before =
        |missed: u64| (missed > 0).then(|| format!("missed {} before this one", format_missed_count(missed)));
    let run = match planned {
        PlannedRun::Wait { .. } => return None,
        PlannedRun::Start { due_ms, missed } => {
            state.queued_ms = None;
            state.thread_id = thread.map(ToString::to_string);
            run_record(*due_ms, now_ms, "starting", thread, missed_before(*missed))
        }
        PlannedRun::Overlap { due_ms, missed, is_queued } => {
            let last = state.thread_id.clone().unwrap_or_default();
            let reason = format!("{last} has not ended");
            let message =
                missed_before(*missed).map_or(reason.clone(), |missed| format!("{reason}; {missed}"));
            state.queued_ms = is_queued.then_some(*due_ms);
            let outcome = if *is_queued { "queued" } else { "skipped" };
            run_record(*due_ms, now_ms, outcome, None, Some(message))
        }
        PlannedRun::Missed { due_ms, missed } => {
            let message = format!("missed {}: no scheduler was running", format_missed_count(*missed));
            run_record(*due_ms, now_ms, "missed", None, Some(message))
        }
    };
    state.served_ms = state.served_ms.max(run.due_ms).max(schedule.added_ms);
    state.add_run(run.clone());
    Some(run)
}

fn finish_start(run: &ScheduledRun, started: Result<ThreadId, CommandError>, now_ms: u64) -> ScheduledRun {
    match started {
        Ok(thread) => run_record(run.due_ms, now_ms, "started", Some(&thread), run.message.clone()),
        Err(error) => run_record(run.due_ms, now_ms, "failed", None, Some(error_text(&error))),
    }
}

pub(super) fn error_text(error: &CommandError) -> String {
    match error {
        CommandError::Engine(error, _) => rye_item::text::one_line(&error.to_string()),
        CommandError::Output(error) => rye_item::text::one_line(&error.to_string()),
        CommandError::Exit(code) => format!("exit code {code}"),
    }
}

fn print_run(output: &Output, schedule: &str, run: &ScheduledRun) {
    let due = iso_timestamp(run.due_ms);
    let detail = run.thread_id.as_deref().into_iter().chain(run.message.as_deref());
    let detail = detail.collect::<Vec<_>>().join(" ");
    let line = format!("{schedule} {due} {} {detail}", run.outcome);
    match run.outcome.as_str() {
        "started" => output.note(line),
        _ => output.note(paint(WARNING, line)),
    }
}

/// What a schedule's thread is.
pub(super) fn thread_request(schedule: &Schedule) -> Result<ThreadRequest, Error> {
    let item = ItemRef::new(ItemType::Directive, ItemId::new(schedule.directive.as_str())?);
    let mut request = ThreadRequest::new(item, schedule.inputs.clone());
    request.model.clone_from(&schedule.model);
    request.provider.clone_from(&schedule.provider);
    request.limits = control::parse_limits(&schedule.limits, false)?;
    Ok(request)
}

/// The same, with a name for the thread.
fn named_request(schedule: &Schedule) -> Result<ThreadRequest, Error> {
    let mut request = thread_request(schedule)?;
    request.assign_thread_id()?;
    Ok(request)
}

/// The schedule's project, opened; the directive is verified there as for any run.
fn open_project(global: &GlobalArguments, schedule: &Schedule) -> Result<CommandContext, CommandError> {
    let global = GlobalArguments { project: Some(schedule.project.clone()), quiet: true, ..global.clone() };
    CommandContext::open(&GlobalArguments { verbose: false, ..global })
}

/// Starts a schedule's thread, and leaves it to the process that runs such threads.
fn start(
    global: &GlobalArguments,
    schedule: &Schedule,
    request: ThreadRequest,
) -> Result<ThreadId, CommandError> {
    let CommandContext { settings, engine, .. } = open_project(global, schedule)?;
    let threads = thread_runner::open_threads(&settings, engine, None)?;
    let started = thread_runner::build_runtime()?
        .block_on(threads.start_in_background(request))
        .map_err(CommandError::from)?;
    match started.runner {
        Ok(_) => Ok(started.thread_id),
        Err(reason) => {
            let message = format!("{} is not running yet: {reason}", started.thread_id);
            Err(Error::new(Code::NoBackground, message).into())
        }
    }
}

/// Where a schedule's last thread stands. What it asks is denied, if the schedule says so; one whose process is gone continues.
fn last_thread(
    global: &GlobalArguments,
    schedule: &Schedule,
    state: &mut ScheduleState,
) -> Result<LastThread, CommandError> {
    let Some(id) = state.thread_id.as_deref().and_then(|id| ThreadId::parse(id).ok()) else {
        return Ok(LastThread::Missing);
    };
    let context = open_project(global, schedule)?;
    let Some(index) = ThreadIndex::open(&context.settings)? else { return Ok(LastThread::Missing) };
    let Some(row) = index.store.thread(&id)? else { return Ok(LastThread::Missing) };
    if row.status.is_terminal() {
        return Ok(LastThread::Ended);
    }
    if schedule.approvals == ApprovalsPolicy::Deny {
        let open = index.store.open_approvals(Some(&id))?.approvals;
        let new: Vec<&Approval> =
            open.iter().filter(|approval| !state.denied.contains(&approval.id)).collect();
        for approval in &new {
            deny(&context, &approval.id)?;
        }
        state.denied = open.iter().map(|approval| approval.id.clone()).collect();
    }
    let owner = current_owner();
    let has_owner = row.owner.as_ref().is_some_and(|holder| !is_owner_gone(holder, &owner));
    if row.status != ThreadStatus::Suspended && !has_owner {
        drop(index);
        recover(context, &id)?;
    }
    Ok(LastThread::Active)
}

/// Hands a thread whose process is gone to the one that runs threads in the background.
fn recover(context: CommandContext, id: &ThreadId) -> Result<(), CommandError> {
    let CommandContext { settings, engine, output, .. } = context;
    let threads = thread_runner::open_threads(&settings, engine, None)?;
    let request = WaitRequest { timeout: Duration::ZERO, ..WaitRequest::for_all(vec![id.clone()]) };
    let never = CancellationToken::new();
    let response = thread_runner::build_runtime()?.block_on(threads.wait(&request, &never))?;
    if let Some(error) = response["results"][id.as_str()]["error"].as_str() {
        output.warn(format_args!("{id}: {}", rye_item::text::one_line(error)));
    }
    Ok(())
}

/// Denies a request in a process of its own, which resumes the thread.
fn deny(context: &CommandContext, request: &str) -> Result<(), CommandError> {
    let settings = &context.settings;
    let project = settings.roots.project.clone().unwrap_or_default().to_string_lossy().into_owned();
    let user_space = settings.roots.user.to_string_lossy().into_owned();
    let words = ["--project", &project, "--user-space", &user_space, "--quiet"];
    let words = words.into_iter().chain(["thread", "deny", request, "--message", DENIED_MESSAGE]);
    let arguments: Vec<String> = words.map(str::to_owned).collect();
    let environment = settings.host().variables;
    spawn_daemon(&settings::current_exe(), &arguments, &environment, &settings.home, b"")?.detach();
    Ok(())
}
