//! The `rye` binary: arguments, settings, rendering, exit codes. It holds no domain logic; it is the only crate that
//! prints or reads environment, home and working folder.

mod arguments;
mod commands;
mod completion;
mod explain;
mod global;
mod live;
mod output;
mod owner_name;
mod settings;
mod usage;

use std::ffi::OsString;
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
    if is_execute(std::env::args_os().skip(1)) {
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

/// The names of `rye execute`.
const EXECUTE_NAMES: [&str; 2] = ["execute", "exec"];

/// The global options whose value is the next word.
const OPTIONS_WITH_VALUE: [&str; 4] = ["-p", "--project", "--user-space", "--color"];

/// Whether the command is `rye execute`, before the arguments are parsed: the first word that is neither an option nor the
/// value of one. A spelling that this misses only starts its launcher later.
fn is_execute(mut words: impl Iterator<Item = OsString>) -> bool {
    while let Some(word) = words.next() {
        let Some(word) = word.to_str() else { return false };
        if OPTIONS_WITH_VALUE.contains(&word) {
            words.next();
        } else if !word.starts_with('-') {
            return EXECUTE_NAMES.contains(&word);
        }
    }
    false
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
        Err(error) => return Err(usage::print_usage_error(error)),
    };
    Arguments::from_arg_matches(&matches).map_err(usage::print_usage_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[test]
    fn only_execute_forks_a_launcher_early() {
        let is_execute = |line: &str| is_execute(line.split(' ').map(OsString::from));
        for line in ["execute team/a", "exec team/a", "--json -p /tmp/x exec a", "--color=never execute a"] {
            assert!(is_execute(line), "{line}");
        }
        for line in ["search execute", "-p execute list", "thread show exec", "--json", ""] {
            assert!(!is_execute(line), "{line}");
        }
    }

    #[test]
    fn early_names_match_the_command_line() {
        let mut command = Arguments::command();
        command.build();
        let execute = command.find_subcommand("execute").expect("a command");
        let names: Vec<&str> = std::iter::once(execute.get_name()).chain(execute.get_all_aliases()).collect();
        assert_eq!(names, EXECUTE_NAMES);
        let with_value = command.get_arguments().filter(|option| option.get_action().takes_values());
        let mut spellings: Vec<String> = with_value
            .flat_map(|option| {
                let short = option.get_short().map(|letter| format!("-{letter}"));
                short.into_iter().chain(option.get_long().map(|name| format!("--{name}")))
            })
            .collect();
        spellings.sort_unstable();
        let mut listed = OPTIONS_WITH_VALUE.map(str::to_owned);
        listed.sort_unstable();
        assert_eq!(spellings, listed);
    }

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
