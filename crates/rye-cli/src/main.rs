//! The `rye` binary: arguments, settings, rendering, exit codes. It holds no domain logic; it is the only crate that
//! prints or reads environment, home and working folder.

mod arguments;
mod commands;
mod completion;
mod explain;
mod global;
mod live;
mod output;
mod settings;
mod usage;

use std::io::{self, Write as _};

use clap::{CommandFactory, FromArgMatches};

use crate::arguments::Arguments;
use crate::commands::CommandError;
use crate::output::Output;

/// A thread makes and drops thousands of small things a second; the system's allocator takes a fifth of its time for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    // A run's supervisor is this binary too; it must begin before anything else has.
    lillux::process::supervise_if_requested();
    if std::env::args_os().any(|word| word == "execute") {
        lillux::process::fork_launcher();
    }
    lillux::process::raise_open_file_limit();
    clap_complete::CompleteEnv::with_factory(Arguments::command).complete();
    survive_file_size_limit();
    let code = run();
    // The reader has closed the pipe if this fails; everything durable is already written.
    let _ = io::stdout().flush();
    lillux::process::exit_immediately(code.into())
}

/// Does what was asked; gives the exit code.
fn run() -> u8 {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match commands::run(&arguments) {
        Ok(()) => 0,
        // The reader has closed the pipe.
        Err(CommandError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(CommandError::Output(error)) => {
            Output::new(&arguments.global, None, false)
                .warn(format_args!("cannot write the result: {error}"));
            1
        }
        Err(CommandError::Exit(code)) => code,
        Err(CommandError::Engine(error, data)) => {
            let output = Output::new(&arguments.global, None, false);
            match output.print_error(&error, data.map(|data| *data)) {
                Err(write_error) if write_error.kind() != io::ErrorKind::BrokenPipe => 1,
                _ => error.code.kind().exit_code(),
            }
        }
    }
}

/// A write beyond a file size limit becomes an error that is cleaned up after, instead of the end of the process.
fn survive_file_size_limit() {
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    // Without the handler the limit ends the process: worse manners, same safety.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag);
}

fn parse() -> Result<Arguments, u8> {
    let matches = match Arguments::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return Err(usage::print_usage_error(&error)),
    };
    Arguments::from_arg_matches(&matches).map_err(|error| usage::print_usage_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn command_line_is_well_formed() {
        Arguments::command().debug_assert();
        assert!(Arguments::try_parse_from(["rye", "search", "hello", "--json"]).is_ok());
    }

    /// What a command says of itself must not change when its arguments are looked at: a description of their own would win.
    #[test]
    fn building_keeps_command_descriptions() {
        fn descriptions(command: &clap::Command, above: &str) -> Vec<String> {
            let path = format!("{above} {}", command.get_name());
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let below = command.get_subcommands().flat_map(|command| descriptions(command, &path));
            std::iter::once(format!("{path}: {about}")).chain(below).collect()
        }
        let mut built = Arguments::command();
        built.build();
        let (named, built) = (descriptions(&Arguments::command(), ""), descriptions(&built, ""));
        assert!(named.len() > 50, "{named:?}");
        let changed: Vec<_> = named.iter().filter(|command| !built.contains(command)).collect();
        assert!(changed.is_empty(), "{changed:?}");
    }
}
