//! `thread fork`: a new thread at a turn of an old one.

use rye_agent::threads::ForkOptions;

use super::thread_index::ThreadIndex;
use super::{control, runner};
use crate::arguments::ForkArguments;
use crate::commands::{CommandContext, CommandResult, run};

/// `rye thread fork`
pub fn fork(context: CommandContext, arguments: &ForkArguments) -> CommandResult {
    let limits = control::parse_limits(&arguments.limits, true)?;
    let (_, row) = ThreadIndex::open_thread(&context.settings, &arguments.id)?;
    let options = ForkOptions {
        turn: arguments.at,
        message: arguments.message.clone(),
        model: arguments.model.clone(),
        provider: arguments.provider.clone(),
        limits,
    };
    if arguments.is_async {
        return run::start_in_background(context, async move |threads, print_id| {
            let request = threads.fork_request(&row, options).await?;
            threads.start_in_background_with(request, print_id).await
        });
    }
    runner::drive(
        context,
        |_| {},
        async move |threads, signal| {
            let request = threads.fork_request(&row, options).await?;
            threads.start(request, signal).await
        },
    )
}
