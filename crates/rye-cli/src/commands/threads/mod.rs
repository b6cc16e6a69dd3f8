//! `thread`: look at threads, follow them, let them go on, end them.

mod check;
mod follow;
mod list;
mod shelf;
mod show;
pub mod steer;
mod tree;
pub mod work;

use super::{Context, Outcome};
use crate::arguments::ThreadCommand;
use crate::global::Global;

pub use shelf::Shelf;

/// `rye thread`
pub fn run(global: &Global, command: &ThreadCommand) -> Outcome {
    let open = || Context::open(global);
    match command {
        ThreadCommand::List(arguments) => list::list(&open()?, arguments),
        ThreadCommand::Tree { id, live } => tree::tree(&open()?, id.as_deref(), *live),
        ThreadCommand::Show { id } => show::show(&open()?, id),
        ThreadCommand::Tail { id, tree } => follow::tail(&open()?, id, *tree),
        ThreadCommand::Transcript { id, markdown } => follow::transcript(&open()?, id, *markdown),
        ThreadCommand::Verify { id, all: _ } => check::verify(&open()?, id.as_deref()),
        ThreadCommand::Replay { id } => check::replay(Context::open_to_run(global)?, id),
        ThreadCommand::Wait(arguments) => steer::wait(open()?, arguments),
        ThreadCommand::Cancel { ids, reason } => steer::cancel(open()?, ids, reason),
        ThreadCommand::Kill { id } => steer::kill(open()?, id),
        ThreadCommand::Resume(arguments) => steer::resume(Context::open_to_run(global)?, arguments),
        ThreadCommand::Approve(arguments) => steer::answer(Context::open_to_run(global)?, arguments, true),
        ThreadCommand::Deny(arguments) => steer::answer(Context::open_to_run(global)?, arguments, false),
        ThreadCommand::Prune { older_than, yes } => steer::prune(&open()?, *older_than, *yes),
    }
}
