//! `thread`: look at threads, follow them, let them go on, end them.

mod check;
mod cost;
mod follow;
mod list;
mod people;
mod prune;
mod shelf;
mod show;
pub mod steer;
mod tree;
pub mod work;

use super::{Context, Failure, Outcome, background};
use crate::arguments::ThreadCommand;
use crate::global::Global;

pub use shelf::{Shelf, folder};

/// `rye thread`
pub fn run(global: &Global, command: &ThreadCommand) -> Outcome {
    let open = || Context::open(global);
    // What somebody looks at should go on if it can; if it cannot, looking is what they wanted.
    let look = || {
        let context = open()?;
        if let Err(error) = background::revive(&context) {
            context.output.warn(rye_item::text::one_line(&error.to_string()));
        }
        Ok::<_, Failure>(context)
    };
    match command {
        ThreadCommand::List(arguments) => list::list(&look()?, arguments),
        ThreadCommand::Tree { id, live } => tree::tree(&look()?, id.as_deref(), *live),
        ThreadCommand::Show { id } => show::show(&look()?, id),
        ThreadCommand::Cost { id, by } => cost::cost(&open()?, id, *by),
        ThreadCommand::Tail { id, tree } => follow::tail(&look()?, id, *tree),
        ThreadCommand::Transcript { id, markdown } => follow::transcript(&open()?, id, *markdown),
        ThreadCommand::Verify { accept_older: true, .. } => check::accept_older(&open()?),
        ThreadCommand::Verify { id, all: _, accept_older: false } => check::verify(&open()?, id.as_deref()),
        ThreadCommand::Replay { id } => check::replay(Context::open_to_run(global)?, id),
        ThreadCommand::Wait(arguments) => steer::wait(open()?, arguments),
        ThreadCommand::Cancel { ids, reason } => steer::cancel(open()?, ids, reason),
        ThreadCommand::Kill { id } => steer::kill(open()?, id),
        ThreadCommand::Resume(arguments) => steer::resume(Context::open_to_run(global)?, arguments),
        ThreadCommand::Approve(arguments) => {
            people::answer(Context::open_to_run(global)?, arguments, true, false)
        }
        ThreadCommand::Deny { answer, end } => {
            people::answer(Context::open_to_run(global)?, answer, false, *end)
        }
        ThreadCommand::Approvals { id } => people::approvals(&open()?, id.as_deref()),
        ThreadCommand::Prune(arguments) => prune::prune(&open()?, arguments),
    }
}
