//! `schedule`: directives that start by themselves.

mod runner;
mod systemd;
mod watcher;

use std::path::PathBuf;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rye_agent::driver::MillisClock as _;
use rye_agent::schedule::{
    MAX_SCHEDULES, SCHEDULES_CONFIG, Schedule, ScheduleState, ScheduleStates, Schedules,
};
use rye_agent::views::{ScheduleRow, schedule_rows};
use rye_engine::verbs::sign;
use rye_engine::{Code, Error};
use rye_item::space::SpaceTier;
use rye_item::timestamp::iso_timestamp;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::AI_FOLDER;
use serde_json::{Map, Value, json};

use super::threads::{control, runner as thread_runner};
use super::{CommandContext, CommandError, CommandResult, execute};
use crate::arguments::{AddScheduleArguments, ScheduleCommand};
use crate::global::GlobalArguments;
use crate::live::format::truncate;
use crate::output::{DIM, WARNING, paint};
use crate::settings::ThreadClock;

/// `rye schedule`
pub fn run(global: &GlobalArguments, command: &ScheduleCommand) -> CommandResult {
    match command {
        ScheduleCommand::Add(arguments) => add(&CommandContext::open(global)?, arguments),
        ScheduleCommand::List => list(&CommandContext::open(global)?),
        ScheduleCommand::Remove { name } => remove(&CommandContext::open(global)?, name),
        ScheduleCommand::Run { name } => runner::run_now(global, &CommandContext::open(global)?, name),
        ScheduleCommand::Pause { name } => set_paused(&CommandContext::open(global)?, name, true),
        ScheduleCommand::Resume { name } => set_paused(&CommandContext::open(global)?, name, false),
        ScheduleCommand::Tick => runner::tick_command(global),
        ScheduleCommand::Watch { background: false, until_none } => watcher::watch(global, *until_none),
        ScheduleCommand::Watch { background: true, .. } => {
            watcher::watch_in_background(&CommandContext::open(global)?)
        }
        ScheduleCommand::Systemd { write, dir } => {
            systemd::units(&CommandContext::open(global)?, *write, dir.as_deref())
        }
    }
}

/// The file of schedules.
fn schedules_path(context: &CommandContext) -> PathBuf {
    let config = context.settings.roots.user.join(AI_FOLDER).join("config");
    config.join(format!("{SCHEDULES_CONFIG}.yaml"))
}

/// The schedules, to be changed: a file that cannot be used whole is not written over.
fn load_for_change(context: &CommandContext) -> Result<Schedules, Error> {
    let schedules = Schedules::load(&context.engine.workspace)?;
    match schedules.problems.first() {
        None => Ok(schedules),
        Some(problem) => {
            let message = format!("the schedules cannot be changed: {}", rye_item::text::one_line(problem));
            Err(Error::new(Code::ThreadConfig, message)
                .hint("read the file, correct it, and sign it: rye sign config agent/schedules --space user"))
        }
    }
}

/// Writes the schedules and signs them with the user's key.
fn save(context: &CommandContext, schedules: &Schedules) -> Result<(), Error> {
    // Without a key nothing is written.
    context.engine.signing_key()?;
    let path = schedules_path(context);
    if let Some(folder) = path.parent() {
        lillux::file::create_dirs(folder, false)?;
    }
    let text = schedules.to_yaml().map_err(std::io::Error::other)?;
    lillux::file::write_atomic(&path, text.as_bytes(), lillux::file::FileMode::Preserve)?;
    let engine = context.settings.engine()?;
    let item = ItemRef::new(ItemType::Config, ItemId::new(SCHEDULES_CONFIG)?);
    sign::sign_item(&engine, &item, Some(SpaceTier::User)).map(drop)
}

fn not_found(name: &str) -> Error {
    let name = rye_item::text::one_line(name);
    Error::new(Code::NotFound, format!("schedule `{name}` not found")).hint("rye schedule list")
}

fn add(context: &CommandContext, arguments: &AddScheduleArguments) -> CommandResult {
    let item = ItemRef::parse(Some("directive"), &arguments.directive)?;
    let project = context.settings.roots.project.clone();
    let project = project.filter(|project| project.join(AI_FOLDER).is_dir()).ok_or_else(|| {
        Error::new(Code::InvalidArgument, "a schedule belongs to a project")
            .hint("run this in the project's folder, or name it with --project")
    })?;
    let inputs: Map<String, Value> = execute::parse_pairs(&arguments.inputs)?
        .into_iter()
        .map(|(name, word)| (name, Value::from(word)))
        .collect();
    // Checked now; read again when a thread starts.
    control::parse_limits(&arguments.limits, false)?;
    let schedule = Schedule {
        id: arguments.name.clone().unwrap_or_else(|| item.id.to_string()),
        directive: item.id.to_string(),
        project: lillux::canonicalize_existing(&project),
        cron: arguments.cron.clone(),
        every: arguments.every.clone(),
        time_zone: arguments.time_zone.clone(),
        overlap: arguments.overlap.into(),
        approvals: arguments.approvals.into(),
        missed: arguments.missed.into(),
        inputs,
        limits: arguments.limits.clone(),
        model: arguments.model.clone(),
        provider: arguments.provider.clone(),
        paused: false,
        added_ms: ThreadClock.now_ms(),
    };
    let times = schedule.times()?;
    // What could not start now is not scheduled.
    thread_runner::check_preparable(context, &runner::thread_request(&schedule)?).map_err(with_input_hint)?;
    let mut states = ScheduleStates::lock(&context.settings.roots.signing_keys)?;
    let mut schedules = load_for_change(context)?;
    if schedules.list.iter().any(|known| known.id == schedule.id) {
        let message = format!("there is a schedule `{}` already", schedule.id);
        return Err(Error::new(Code::InvalidArgument, message)
            .hint("remove it first, or give this one another name: --name NAME")
            .into());
    }
    if schedules.list.len() >= MAX_SCHEDULES {
        let message = format!("there are {MAX_SCHEDULES} schedules already");
        return Err(Error::new(Code::InvalidArgument, message).into());
    }
    let Some(next_ms) = times.next_after(schedule.added_ms) else {
        let message = format!(
            "schedule `{}` would never start: no time fits `{}`",
            schedule.id,
            describe_times(&schedule)
        );
        return Err(Error::new(Code::InvalidArgument, message)
            .hint("name days that its months have, such as --cron '0 7 1 * *'")
            .into());
    };
    // An earlier one of this name may have left something.
    states.schedules.remove(&schedule.id);
    states.save()?;
    schedules.list.push(schedule.clone());
    save(context, &schedules)?;
    let data = json!({"schedule": schedule, "next_at": iso_timestamp(next_ms)});
    if context.print_if_json(Some("schedule"), Some(&schedule.id), &data)? {
        return Ok(());
    }
    context.output.print(format_args!(
        "{} added; it starts first at {}",
        schedule.id,
        local_time(&schedule, next_ms)
    ))?;
    if schedule.provider.is_none()
        && let Some(hint) = thread_runner::model_key_hint(&context.settings)
    {
        context.output.warn(format_args!("no key of a model is set here: it runs offline; {hint}"));
    }
    if !watcher::is_watched(context) {
        context.output.note("nothing starts schedules yet; have a timer or a background process do it:");
        context.output.note("  rye schedule systemd --write    or    rye schedule watch --background");
    }
    Ok(())
}

/// Names the option that gives the inputs which are missing.
fn with_input_hint(mut error: Error) -> Error {
    let missing = error.details.get("missing").and_then(Value::as_array);
    let names: Vec<&str> = missing.into_iter().flatten().filter_map(Value::as_str).collect();
    if error.code != Code::InvalidInputs || names.is_empty() {
        return error;
    }
    let options: Vec<String> =
        names.iter().map(|name| format!("--input {}=…", rye_item::text::one_line(name))).collect();
    error.hints.insert(0, format!("give what each run gets: {}", options.join(" ")));
    error
}

fn remove(context: &CommandContext, name: &str) -> CommandResult {
    let mut states = ScheduleStates::lock(&context.settings.roots.signing_keys)?;
    let mut schedules = load_for_change(context)?;
    let count = schedules.list.len();
    schedules.list.retain(|schedule| schedule.id != name);
    if schedules.list.len() == count {
        return Err(not_found(name).into());
    }
    save(context, &schedules)?;
    states.schedules.remove(name);
    states.save()?;
    print_changed(context, name, "removed")
}

fn set_paused(context: &CommandContext, name: &str, paused: bool) -> CommandResult {
    let mut states = ScheduleStates::lock(&context.settings.roots.signing_keys)?;
    let mut schedules = load_for_change(context)?;
    let found = schedules.list.iter_mut().find(|schedule| schedule.id == name);
    let schedule = found.ok_or_else(|| not_found(name))?;
    schedule.paused = paused;
    // What was due in between is not made up for.
    let state = states.schedules.entry(name.to_owned()).or_default();
    state.served_ms = state.served_ms.max(ThreadClock.now_ms());
    state.queued_ms = None;
    save(context, &schedules)?;
    states.save()?;
    print_changed(context, name, if paused { "paused" } else { "resumed" })
}

fn print_changed(context: &CommandContext, name: &str, what: &str) -> CommandResult {
    if !context.print_if_json(Some("schedule"), Some(name), &json!({"schedule": name, "change": what}))? {
        context.output.print(format_args!("{what} {}", truncate(name, 80)))?;
    }
    Ok(())
}

fn list(context: &CommandContext) -> CommandResult {
    let (rows, problems) = schedule_rows(&context.engine.workspace)?;
    let now_ms = ThreadClock.now_ms();
    if context.output.is_json {
        let values: Vec<Value> = rows.iter().map(ScheduleRow::to_value).collect();
        let data = json!({
            "schedules": values, "problems": problems, "is_watched": watcher::is_watched(context),
            "watcher_pid": watcher::watcher_pid(context),
        });
        context.print_if_json(Some("schedule"), None, &data)?;
        return Ok(());
    }
    problems.iter().for_each(|problem| context.output.warn(rye_item::text::one_line(problem)));
    if rows.is_empty() {
        context.output.note("no schedules");
        if watcher::is_watched(context) {
            context.output.note(paint(DIM, watcher::describe_watcher(context)));
        }
        return Ok(());
    }
    let mut table = context.output.table(&["schedule", "when", "next", "last"]);
    for ScheduleRow { schedule, state, next_ms } in &rows {
        let next = match next_ms {
            _ if schedule.paused => "paused".to_owned(),
            Some(next) if *next <= now_ms => "due".to_owned(),
            Some(next) => local_time(schedule, *next),
            None => "never".to_owned(),
        };
        table.add_row([
            truncate(&schedule.id, 40),
            describe_times(schedule),
            next,
            describe_last(schedule, state),
        ]);
    }
    context.output.print(table.trim_fmt())?;
    if watcher::is_watched(context) {
        context.output.note(paint(DIM, watcher::describe_watcher(context)));
    } else {
        let hint = "rye schedule systemd --write    or    rye schedule watch --background";
        context.output.note(paint(WARNING, "no background process starts them; a systemd timer may"));
        context.output.note(paint(DIM, hint));
    }
    Ok(())
}

/// A moment as the clock shows it where the schedule is meant: in its time zone, or else in that of this machine.
fn local_time(schedule: &Schedule, at_ms: u64) -> String {
    let zone = schedule.time_zone.as_deref().and_then(|name| TimeZone::get(name).ok());
    let moment = i64::try_from(at_ms).ok().and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
    match moment {
        Some(moment) => {
            let zoned = moment.to_zoned(zone.unwrap_or_else(TimeZone::system));
            zoned.strftime("%Y-%m-%d %H:%M %Z").to_string()
        }
        None => iso_timestamp(at_ms),
    }
}

fn describe_times(schedule: &Schedule) -> String {
    let times = match (&schedule.cron, &schedule.every) {
        (Some(cron), _) => truncate(cron, 40),
        (None, Some(every)) => format!("every {}", truncate(every, 20)),
        (None, None) => String::new(),
    };
    match &schedule.time_zone {
        Some(zone) => format!("{times} {}", truncate(zone, 30)),
        None => times,
    }
}

fn describe_last(schedule: &Schedule, state: &ScheduleState) -> String {
    let Some(run) = state.runs.last() else { return "-".to_owned() };
    let detail = run.thread_id.as_deref().or(run.message.as_deref()).unwrap_or_default();
    truncate(&format!("{} {} {detail}", local_time(schedule, run.due_ms), run.outcome), 90)
}

/// The schedule of this name.
fn find(context: &CommandContext, name: &str) -> Result<Schedule, CommandError> {
    let schedules = Schedules::load(&context.engine.workspace)?;
    let found = schedules.list.into_iter().find(|schedule| schedule.id == name);
    Ok(found.ok_or_else(|| not_found(name))?)
}
