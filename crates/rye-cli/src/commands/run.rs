//! `run`: a directive in a thread, shown as it goes.

use std::path::Path;
use std::time::{Duration, Instant};

use lillux::file::{self, Mode};
use lillux::process::{Apart, leave_session, start_apart};
use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::store::ThreadRow;
use rye_agent::threads::{Started, Threads, async_answer};
use rye_engine::{Code, Error};
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value};

use super::threads::{Shelf, steer, work};
use super::{Context, Failure, Outcome, dry_run, execute};
use crate::arguments::RunArguments;
use crate::global::Global;
use crate::output::{DIM, paint};
use crate::settings;

/// How long a background process may take until its thread has begun.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked for its word.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The longest word of it.
const MOST_ANSWER: u64 = 1 << 20;

/// `rye run`
pub fn run(global: &Global, arguments: &RunArguments) -> Outcome {
    if arguments.dry_run {
        let context = Context::open(global)?;
        return dry_run::show(&context, &order(arguments)?);
    }
    let wanted = Wanted::of(arguments)?;
    if arguments.is_async {
        return in_background(&Context::open(global)?, arguments, &wanted);
    }
    let context = Context::open_to_run(global)?;
    let old = old(&context, arguments)?;
    match &arguments.detached {
        Some(answer) => in_foreground_of_nobody(context, wanted, old.as_ref(), answer),
        None => work::drive(
            context,
            |_| {},
            async move |threads, signal| wanted.begin(threads, old.as_ref(), signal).await,
        ),
    }
}

/// What was asked for.
struct Wanted {
    order: Order,
    message: Option<String>,
}

impl Wanted {
    fn of(arguments: &RunArguments) -> Result<Self, Error> {
        Ok(Self { order: order(arguments)?, message: arguments.message.clone() })
    }

    async fn begin(
        self,
        threads: &Threads,
        old: Option<&ThreadRow>,
        signal: Signal,
    ) -> Result<Started, Error> {
        match old {
            Some(old) => threads.continue_from(old, self.message, signal).await,
            None => threads.start(self.order, signal).await,
        }
    }
}

fn order(arguments: &RunArguments) -> Result<Order, Error> {
    let parse = rye_engine::verbs::sign::parse_item;
    let item = match ItemRef::split_canonical(&arguments.directive) {
        Some(_) => parse(None, &arguments.directive)?,
        None => parse(Some("directive"), &arguments.directive)?,
    };
    if item.item_type != ItemType::Directive {
        let message = format!("a {} is not run in a thread", item.item_type);
        return Err(Error::new(Code::InvalidArgument, message)
            .of(&item)
            .hint(format!("rye execute {} {}", item.item_type, item.id)));
    }
    let mut inputs = arguments.params.as_deref().map(execute::parameters).transpose()?.unwrap_or_default();
    inputs
        .extend(execute::pairs(&arguments.inputs)?.into_iter().map(|(name, word)| (name, Value::from(word))));
    let mut order = Order::new(item, inputs);
    order.model.clone_from(&arguments.model);
    order.provider.clone_from(&arguments.provider);
    order.limits = steer::limits(&arguments.limits, false)?;
    Ok(order)
}

/// The thread to go on from, which must be one of this directive.
fn old(context: &Context, arguments: &RunArguments) -> Result<Option<ThreadRow>, Error> {
    let Some(word) = &arguments.continues else {
        return Ok(None);
    };
    let (_, row) = Shelf::with(&context.settings, word)?;
    let directive = arguments.directive.strip_prefix("directive:").unwrap_or(&arguments.directive);
    if row.directive != directive {
        let message =
            format!("{} runs another directive: {}", row.id, rye_item::text::one_line(&row.directive));
        return Err(Error::new(Code::InvalidArgument, message)
            .hint(format!("rye run {} --continue {}", row.directive, row.id)));
    }
    Ok(Some(row))
}

/// Starts another process of this binary that runs the thread, and waits for its word that the thread has begun.
fn in_background(context: &Context, arguments: &RunArguments, wanted: &Wanted) -> Outcome {
    let (settings, output) = (&context.settings, &context.output);
    let name = format!("async-{}-{}.json", std::process::id(), settings::now_ms());
    let answer = settings.roots.cache.join(name);
    file::create_folders(&settings.roots.cache, true).map_err(Error::from)?;
    let inputs = serde_json::to_vec(&wanted.order.inputs).map_err(std::io::Error::from)?;
    let words = background_words(context, arguments, &answer)?;
    let environment = settings.host().environment.into_iter().collect();
    let started = start_apart(&settings::own_program(), &words, &environment, &settings.folder, &inputs);
    let mut process = started.map_err(|error| {
        Error::new(Code::ThreadFailed, format!("the background process did not start: {error}"))
            .hint("run it in the foreground: leave --async out")
    })?;
    let value = word_of(&answer, &mut process)?;
    if value.get("status").and_then(Value::as_str) == Some("error") {
        return Err(failure(&value).into());
    }
    if output.is_json {
        output.json(&value)?;
        return Ok(());
    }
    let id = value.get("thread_id").and_then(Value::as_str).unwrap_or_default();
    output.result(id)?;
    output.note(paint(DIM, format_args!("it goes on by itself; follow it: rye thread tail {id}")));
    Ok(())
}

/// The words that make another process of this binary do the same in the foreground.
fn background_words(
    context: &Context,
    arguments: &RunArguments,
    answer: &Path,
) -> Result<Vec<String>, Error> {
    let text = |path: &Path| {
        path.to_str().map(str::to_owned).ok_or_else(|| {
            Error::new(Code::InvalidArgument, format!("`{}` is not UTF-8", path.display()))
                .hint("run it in the foreground: leave --async out")
        })
    };
    let mut words = vec!["--quiet".to_owned(), "--json".to_owned()];
    if let Some(project) = &context.settings.roots.project {
        words.extend(["--project".to_owned(), text(project)?]);
    }
    words.extend(["--user-space".to_owned(), text(&context.settings.roots.user)?]);
    words.extend(["run", "--params", "-", "--detached"].map(str::to_owned));
    words.push(text(answer)?);
    let mut option = |name: &str, value: Option<&String>| {
        words.extend(value.map(|value| format!("{name}={value}")));
    };
    option("--model", arguments.model.as_ref());
    option("--provider", arguments.provider.as_ref());
    option("--continue", arguments.continues.as_ref());
    option("--message", arguments.message.as_ref());
    for limit in &arguments.limits {
        option("--limit", Some(limit));
    }
    words.extend(["--".to_owned(), arguments.directive.clone()]);
    Ok(words)
}

/// Waits for what the background process says.
fn word_of(answer: &Path, process: &mut Apart) -> Result<Value, Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        // Looked at before the file: one that has said its word and ended at once has said it all the same.
        let is_gone = process.has_ended();
        match file::read_bounded(answer, MOST_ANSWER) {
            Ok((bytes, _)) => {
                // It is read; nobody else looks for it.
                let _ = file::remove(answer);
                return serde_json::from_slice(&bytes).map_err(|error| {
                    Error::new(Code::ThreadFailed, format!("the background process: {error}"))
                });
            }
            Err(error) if !error.is_absent() => return Err(Error::read(&error)),
            Err(_) if is_gone || Instant::now() > end => {
                let message = "the background process said nothing and is gone";
                return Err(Error::new(Code::ThreadFailed, message)
                    .hint("run it in the foreground to see why: leave --async out"));
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// The failure that the background process told of.
fn failure(value: &Value) -> Error {
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

/// Runs a thread in a process that nobody looks at; its beginning, or why there is none, goes to a file.
fn in_foreground_of_nobody(
    context: Context,
    wanted: Wanted,
    old: Option<&ThreadRow>,
    answer: &Path,
) -> Outcome {
    let Context { settings, engine, .. } = context;
    let tell = |value: &Value| file::write_atomic(answer, value.to_string().as_bytes(), Mode::Private);
    // Without a session of its own the terminal's interrupts reach it: they end the thread in good order.
    let _ = leave_session();
    let runtime = work::runtime()?;
    let signal = Signal::default();
    settings::on_end_signals({
        let signal = signal.clone();
        move || signal.cancel("its process was asked to end")
    });
    let status = runtime.block_on(async {
        let begun = async {
            let threads = work::open(&settings, engine, None)?;
            let watching = threads.watch();
            let started = wanted.begin(&threads, old, signal).await?;
            Ok::<_, Error>((threads, watching, started))
        };
        match begun.await {
            Ok((threads, _watching, started)) => {
                tell(&async_answer(&started)).map_err(Failure::Output)?;
                let finished = started.finished().await;
                work::wait_for_others(&threads, &|_| {}).await;
                Ok(finished.map(|finished| finished.outcome.status))
            }
            Err(error) => {
                tell(&error.to_value(None)).map_err(Failure::Output)?;
                Err(Failure::from(error))
            }
        }
    })?;
    match status.map_or(1, work::exit_code) {
        0 => Ok(()),
        code => Err(Failure::Ended(code)),
    }
}
