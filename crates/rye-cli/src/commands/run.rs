//! `run`: a directive in a thread, shown as it goes.

use std::path::PathBuf;

use rye_agent::cluster::{SubmitOptions, parse_checkout};
use rye_agent::driver::CancelSignal;
use rye_agent::file_inputs::FileAccess;
use rye_agent::prepare::ThreadRequest;
use rye_agent::store::{SharedStoreConfig, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{BackgroundThread, StartedThread, Threads, started_response};
use rye_engine::{Code, Error};
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value, json};

use super::threads::{ThreadIndex, control, runner};
use super::{CommandContext, CommandError, CommandResult, dry_run, execute};
use crate::arguments::RunArguments;
use crate::global::GlobalArguments;
use crate::output::{DIM, paint};

/// `rye run`
pub fn run(global: &GlobalArguments, arguments: &RunArguments) -> CommandResult {
    if arguments.dry_run {
        let context = CommandContext::open(global)?;
        return dry_run::show(&context, &thread_request(arguments)?);
    }
    let request = RunRequest::from_arguments(arguments)?;
    if let Some(store) = &arguments.on {
        return submit(CommandContext::open(global)?, store, request.thread, arguments);
    }
    if arguments.is_async {
        let context = CommandContext::open(global)?;
        let previous = continued_thread(&context, arguments)?;
        return run_in_background(context, request, previous.as_ref());
    }
    let context = CommandContext::open_for_run(global)?;
    let previous = continued_thread(&context, arguments)?;
    runner::check_startable(&context, &request.thread)?;
    runner::drive(
        context,
        |_| {},
        async move |threads, signal| request.start(threads, previous.as_ref(), signal).await,
    )
}

/// What was asked for.
struct RunRequest {
    thread: ThreadRequest,
    message: Option<String>,
}

impl RunRequest {
    fn from_arguments(arguments: &RunArguments) -> Result<Self, Error> {
        Ok(Self { thread: thread_request(arguments)?, message: arguments.message.clone() })
    }

    async fn start(
        self,
        threads: &Threads,
        previous: Option<&ThreadRow>,
        signal: CancelSignal,
    ) -> Result<StartedThread, Error> {
        match previous {
            Some(previous) => threads.continue_from(previous, self.message, signal).await,
            None => threads.start(self.thread, signal).await,
        }
    }
}

pub(super) fn thread_request(arguments: &RunArguments) -> Result<ThreadRequest, Error> {
    let parse = ItemRef::parse;
    let item = match ItemRef::split_canonical(&arguments.directive) {
        Some(_) => parse(None, &arguments.directive)?,
        None => parse(Some("directive"), &arguments.directive)?,
    };
    if item.item_type != ItemType::Directive {
        let message = format!("only directives run in a thread, not a {}", item.item_type);
        return Err(Error::new(Code::InvalidArgument, message)
            .for_item(&item)
            .hint(format!("rye execute {} {}", item.item_type, item.id)));
    }
    let mut inputs =
        arguments.params.as_deref().map(execute::parse_parameters).transpose()?.unwrap_or_default();
    inputs.extend(
        execute::parse_pairs(&arguments.inputs)?.into_iter().map(|(name, word)| (name, Value::from(word))),
    );
    let mut request = ThreadRequest::new(item, inputs);
    request.model.clone_from(&arguments.model);
    request.provider.clone_from(&arguments.provider);
    request.limits = control::parse_limits(&arguments.limits, false)?;
    request.files = FileAccess::User(PathBuf::from("."));
    Ok(request)
}

/// The thread to continue from, which must be one of this directive.
fn continued_thread(context: &CommandContext, arguments: &RunArguments) -> Result<Option<ThreadRow>, Error> {
    let Some(word) = &arguments.continues else {
        return Ok(None);
    };
    let (_, row) = ThreadIndex::open_thread(&context.settings, word)?;
    let directive = arguments.directive.strip_prefix("directive:").unwrap_or(&arguments.directive);
    if row.directive != directive {
        let message =
            format!("{} runs another directive: {}", row.id, rye_item::text::one_line(&row.directive));
        return Err(Error::new(Code::InvalidArgument, message)
            .hint(format!("rye run {} --continue {}", row.directive, row.id)));
    }
    Ok(Some(row))
}

/// Leaves the thread to the workers of a store.
fn submit(
    context: CommandContext,
    store: &str,
    request: ThreadRequest,
    arguments: &RunArguments,
) -> CommandResult {
    let config = SharedStoreConfig::named(&context.engine, store)?;
    let is_current = SharedStoreConfig::current(&context.engine)?.is_some_and(|one| one.name == config.name);
    if !is_current {
        let name = rye_item::text::one_line(store);
        let message =
            format!("`{name}` is not the store of your threads: other commands would not find them");
        return Err(Error::new(Code::StoreUnusable, message)
            .hint(format!("rye config set threads.store {name} --space user"))
            .into());
    }
    let options = SubmitOptions {
        labels: arguments.labels.clone(),
        secrets: arguments.secrets.clone(),
        checkout: arguments.checkout.as_deref().map(parse_checkout).transpose()?,
    };
    let CommandContext { settings, engine, output } = context;
    let threads = runner::open_for_submission(&settings, engine, &request)?;
    let report = runner::build_runtime()?.block_on(threads.submit(request, options))?;
    for notice in &report.notices {
        output.warn(rye_item::text::one_line(notice));
    }
    let id = &report.thread_id;
    if output.is_json {
        output.print_json(&rye_engine::success_response(
            Some("thread"),
            Some(id.as_str()),
            json!({"thread_id": id, "directive": report.directive, "status": "submitted", "labels": report.labels}),
        ))?;
        return Ok(());
    }
    output.print(id)?;
    if !report.labels.is_empty() {
        output.note(format_args!("for a worker with {}", report.labels.join(", ")));
    }
    output.note(paint(DIM, format_args!("submitted; follow it: rye thread tail {id}")));
    Ok(())
}

/// Leaves the thread to the process that runs such threads; it is there for good when this returns.
fn run_in_background(
    context: CommandContext,
    request: RunRequest,
    previous: Option<&ThreadRow>,
) -> CommandResult {
    runner::check_startable(&context, &request.thread)?;
    start_in_background(context, async |threads, print_id| match previous {
        Some(previous) => threads.continue_in_background(previous, request.message, print_id).await,
        None => threads.start_in_background_with(request.thread, print_id).await,
    })
}

/// Leaves the thread that `start` registers to the background process. `start` calls its second argument with the thread's
/// id as soon as there is one.
pub(super) fn start_in_background(
    context: CommandContext,
    start: impl AsyncFnOnce(&Threads, &mut dyn FnMut(&ThreadId)) -> Result<BackgroundThread, Error>,
) -> CommandResult {
    let CommandContext { settings, engine, output } = context;
    let threads = runner::open_threads(&settings, engine, None)?;
    let mut printed = Ok(());
    // Printed before the hand-over: the thread exists from here on, even if the background process never answers.
    let mut print_id = |id: &ThreadId| {
        if !output.is_json {
            printed = output.print(id);
        }
    };
    let started = runner::build_runtime()?.block_on(start(&threads, &mut print_id))?;
    printed?;
    for notice in &started.notices {
        output.warn(rye_item::text::one_line(notice));
    }
    let id = &started.thread_id;
    if output.is_json {
        let mut value = started_response(id, &started.directive, *started.runner.as_ref().unwrap_or(&0));
        if let Err(reason) = &started.runner {
            value["status"] = Value::from("created");
            value["note"] = Value::from(reason.as_str());
        }
        output.print_json(&value)?;
        return started.runner.map(drop).map_err(|_| not_handed_over());
    }
    match &started.runner {
        Ok(_) => {
            output
                .note(paint(DIM, format_args!("running in the background; follow it: rye thread tail {id}")));
            Ok(())
        }
        Err(reason) => {
            output.warn(format_args!("not running yet: {}", rye_item::text::one_line(reason)));
            output.note("it is kept, and starts when the background process takes it over");
            output.note(format_args!("to run it here instead: rye thread resume {id}"));
            Err(not_handed_over())
        }
    }
}

/// The exit code of a thread that exists and that the background process has not taken over.
fn not_handed_over() -> CommandError {
    CommandError::Exit(Code::NoBackground.kind().exit_code())
}

/// The failure that another process told of.
pub(super) fn error_from_value(value: &Value) -> Error {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let code = Code::ALL.iter().copied().find(|code| code.as_str() == text("code"));
    let mut error = Error::new(code.unwrap_or(Code::ThreadFailed), text("error"));
    for (key, detail) in value.as_object().unwrap_or(&Map::new()) {
        if !matches!(key.as_str(), "status" | "error" | "code" | "hints") {
            error.details.insert(key.clone(), detail.clone());
        }
    }
    for hint in value.get("hints").and_then(Value::as_array).into_iter().flatten() {
        error.hints.extend(hint.as_str().map(str::to_owned));
    }
    error
}
