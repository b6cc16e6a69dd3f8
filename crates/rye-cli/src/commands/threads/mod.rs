//! `thread`: look at threads, follow them, let them continue, end them.

mod approvals;
mod ask;
pub mod control;
mod cost;
mod fork;
mod list;
mod notify;
mod patch;
mod prune;
mod rebuild;
pub mod runner;
mod shared_store;
mod show;
mod spending;
mod tail;
mod thread_index;
mod tree;
mod user_host;
mod verify;

use super::{CommandContext, CommandError, CommandResult, background};
use crate::arguments::ThreadCommand;
use crate::global::GlobalArguments;

pub use rebuild::{check_budgets, check_models, check_store};
pub use shared_store::check_shared_store;
pub use thread_index::{ThreadIndex, threads_dir};
pub use user_host::user_threads;

/// `rye thread`
pub fn run(global: &GlobalArguments, command: &ThreadCommand) -> CommandResult {
    let open = || CommandContext::open(global);
    // Threads that are looked at are resumed if possible; if not, the view is what was asked for.
    let open_and_resume = || {
        let context = open()?;
        if let Err(error) = background::resume_abandoned(&context) {
            context.output.warn(rye_item::text::one_line(&error.to_string()));
        }
        Ok::<_, CommandError>(context)
    };
    match command {
        ThreadCommand::List(arguments) => list::list(&open_and_resume()?, arguments),
        ThreadCommand::Tree { id, live } => tree::tree(&open_and_resume()?, id.as_deref(), *live),
        ThreadCommand::Show { id } => show::show(&open_and_resume()?, id.as_deref()),
        ThreadCommand::Cost { since: Some(since), .. } => spending::spending(&open()?, since),
        ThreadCommand::Cost { id, by, since: None } => cost::cost(&open()?, id.as_deref(), *by),
        ThreadCommand::Tail { id, tree } => tail::tail(&open_and_resume()?, id.as_deref(), *tree),
        ThreadCommand::Transcript { id, markdown } => tail::transcript(&open()?, id, *markdown),
        ThreadCommand::Verify { accept_older: true, .. } => verify::accept_older(&open()?),
        ThreadCommand::Verify { id, all: _, accept_older: false } => verify::verify(&open()?, id.as_deref()),
        ThreadCommand::Replay { id } => verify::replay(CommandContext::open_for_run(global)?, id),
        ThreadCommand::Wait(arguments) => control::wait(open()?, arguments),
        ThreadCommand::Cancel { ids, reason } => control::cancel(open()?, ids, reason),
        ThreadCommand::Kill { id } => control::kill(open()?, id),
        ThreadCommand::Resume(arguments) => control::resume(CommandContext::open_for_run(global)?, arguments),
        ThreadCommand::Fork(arguments) => fork::fork(CommandContext::open_for_run(global)?, arguments),
        ThreadCommand::Approve(arguments) => {
            approvals::approve(CommandContext::open_for_run(global)?, arguments)
        }
        ThreadCommand::Deny { answer, end } => {
            approvals::deny(CommandContext::open_for_run(global)?, answer, *end)
        }
        ThreadCommand::Approvals { id, full } => approvals::approvals(&open()?, id.as_deref(), *full),
        ThreadCommand::Notify { id } => notify::notify(CommandContext::open_for_run(global)?, id),
        ThreadCommand::Patch(arguments) => patch::patch(&open()?, arguments),
        ThreadCommand::Rebuild => rebuild::rebuild(&open()?),
        ThreadCommand::Prune(arguments) => prune::prune(&open()?, arguments),
    }
}
