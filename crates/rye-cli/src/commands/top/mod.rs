//! `top`: threads, questions and costs in the terminal, kept up to date.

mod question;
mod rows;
mod view;

use std::time::Duration;

use ratatui::crossterm::event::{self, Event};
use rye_agent::store::ApprovalDecision;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::Threads;
use rye_agent::views::{LiveThreads, question_digest};
use rye_engine::{Code, Error};
use serde_json::Value;
use tokio::runtime::Runtime;

use self::view::{TopAction, TopAnswer, TopView};
use super::threads::ThreadIndex;
use super::threads::runner::open_threads;
use super::{CommandContext, CommandResult};
use crate::arguments::TopArguments;
use crate::settings;

/// How often it is looked whether anything changed.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);

/// Threads that are resumed from here run in the background; in this process, on a runtime beside the screen, only where
/// there can be no background process.
struct Workers {
    runtime: Runtime,
    threads: Threads,
}

impl Workers {
    fn open(context: &CommandContext) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let threads = open_threads(&context.settings, context.settings.engine()?, None)?;
        Ok(Self { runtime, threads })
    }
}

/// `rye top`
pub fn run(context: &CommandContext, arguments: &TopArguments) -> CommandResult {
    if context.output.is_json || !context.settings.is_interactive || !context.output.is_terminal() {
        return Err(Error::new(Code::InvalidArgument, "rye top needs a terminal")
            .hint("for programs: rye thread tree --json")
            .into());
    }
    let mut terminal = ratatui::try_init()?;
    let result = watch(context, arguments, &mut terminal);
    ratatui::restore();
    let left = result?;
    if left > 0 {
        let threads = crate::live::format::pluralize(left as u64, "thread");
        context.output.note(format_args!("{threads} that ran in this process stopped: rye thread list"));
    }
    Ok(())
}

fn watch(
    context: &CommandContext,
    arguments: &TopArguments,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<usize, super::CommandError> {
    let mut live: Option<LiveThreads> = None;
    let mut view = TopView::new(arguments.read_only);
    let mut workers: Option<Workers> = None;
    loop {
        match &mut live {
            Some(live) => drop(live.refresh()?),
            None => live = ThreadIndex::open(&context.settings)?.map(LiveThreads::load).transpose()?,
        }
        view.update(live.as_ref());
        terminal.draw(|frame| view.draw(frame))?;
        if !event::poll(REFRESH_INTERVAL)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        let mut action = view.handle_key(key);
        // Take pending keys while a text is typed; redraw after every other key.
        while view.is_typing() && event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()? {
                action = view.handle_key(key);
            }
        }
        match action {
            TopAction::None => {}
            TopAction::Quit => return Ok(workers.map_or(0, |workers| workers.threads.running_count())),
            TopAction::Answer(given) => {
                let done = answer(context, &view, &mut workers, &given);
                view.message = done.unwrap_or_else(|error| error.message);
            }
            TopAction::Cancel(id) => {
                let done = cancel(context, &mut workers, &id);
                view.message = done.unwrap_or_else(|error| error.message);
            }
        }
    }
}

fn workers<'a>(context: &CommandContext, open: &'a mut Option<Workers>) -> Result<&'a Workers, Error> {
    if open.is_none() {
        *open = Some(Workers::open(context)?);
    }
    open.as_ref().ok_or_else(|| Error::new(Code::Io, "threads cannot be run here"))
}

/// Answers the question as it was shown.
fn answer(
    context: &CommandContext,
    view: &TopView,
    open: &mut Option<Workers>,
    answer: &TopAnswer,
) -> Result<String, Error> {
    let gone = || Error::new(Code::QuestionChanged, "the question is not the one that was shown");
    let shown = view.question(&answer.id).ok_or_else(gone)?;
    let workers = workers(context, open)?;
    let store = workers.threads.store();
    let record = store.approval(&answer.id)?.filter(|record| record.answer.is_none()).ok_or_else(gone)?;
    if question_digest(&record.approval) != question_digest(shown) {
        return Err(gone());
    }
    // Nothing is recorded of a thread that cannot be resumed.
    ThreadIndex::open(&context.settings)?.ok_or_else(gone)?.refuse_unresumable(&shown.thread)?;
    let is_approved = answer.is_approved;
    let proposed = shown.detail.get("proposed").filter(|_| is_approved).cloned();
    let decision = ApprovalDecision {
        approved: is_approved,
        message: answer.reason.clone(),
        changes: proposed.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
        at_ms: settings::now_ms(),
        by: context.settings.owner.clone(),
        always: answer.always.filter(|_| is_approved && shown.kind == "tool"),
    };
    store.answer_approval(&answer.id, &decision)?;
    let (thread, by) = (&shown.thread, context.settings.owner.clone());
    let word = if is_approved { "approved" } else { "denied" };
    Ok(match workers.runtime.block_on(workers.threads.resume_answered(thread, by)) {
        Ok(true) => format!("{word}; {thread} is resumed"),
        Ok(false) => format!("{word}; {thread} needs another answer"),
        Err(error) => format!("{word}; {}", error.message),
    })
}

fn cancel(context: &CommandContext, open: &mut Option<Workers>, id: &str) -> Result<String, Error> {
    let id = ThreadId::parse(id).map_err(|error| Error::new(Code::NoThread, error.to_string()))?;
    let workers = workers(context, open)?;
    let reason = format!("cancelled by {}", context.settings.owner);
    workers.runtime.block_on(workers.threads.cancel(&id, &reason))?;
    Ok(format!("{id}: cancel requested"))
}
