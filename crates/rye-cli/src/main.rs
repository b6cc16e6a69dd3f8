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

use std::io::{self, Write as _};

use clap::{CommandFactory, FromArgMatches};
use rye_engine::{Code, Error};

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
        Err(error) => return Err(print_usage_error(&error)),
    };
    Arguments::from_arg_matches(&matches).map_err(|error| print_usage_error(&error))
}

/// What newcomers type for commands that have another name here.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("call", "rye execute ID"),
    ("cat", "rye load ID"),
    ("check", "rye verify, or rye doctor for your setup"),
    ("create", "rye new TYPE ID"),
    ("dashboard", "rye ui"),
    ("edit", "edit the file below .ai, then rye sign ID"),
    ("find", "rye search WORDS"),
    ("get", "rye load ID, or rye config get KEY"),
    ("help", "rye --help, or rye COMMAND --help"),
    ("info", "rye why ID"),
    ("logs", "rye thread tail THREAD"),
    ("ls", "rye list"),
    ("make", "rye new TYPE ID"),
    ("monitor", "rye top"),
    ("ps", "rye thread list"),
    ("resume", "rye thread resume THREAD"),
    ("serve", "rye mcp"),
    ("server", "rye mcp"),
    ("set", "rye config set KEY VALUE"),
    ("show", "rye load ID, or rye thread show"),
    ("start", "rye run DIRECTIVE"),
    ("status", "rye thread list, or rye doctor"),
    ("stop", "rye thread cancel THREAD"),
    ("threads", "rye thread list"),
    ("validate", "rye verify"),
    ("version", "rye --version"),
    ("web", "rye ui"),
];

/// The command that was likely meant, as far as it is known.
fn usage_hint(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let text = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        Some(ContextValue::Strings(words)) => words.first().map(String::as_str),
        _ => None,
    };
    let word = text(ContextKind::InvalidSubcommand)?;
    // Below another command the word means something else.
    let is_first =
        std::env::args().skip(1).find(|argument| !argument.starts_with('-')).as_deref() == Some(word);
    let known = OTHER_NAMES.iter().find(|(other, _)| is_first && *other == word);
    known.map(|(_, command)| (*command).to_owned())
}

/// Help and versions are results; anything else is wrong usage, told in JSON if JSON was asked for.
fn print_usage_error(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    if is_help || !wants_json {
        // A broken pipe while printing help is not an error.
        let _ = error.print();
        if let Some(hint) = usage_hint(error) {
            let global = global::GlobalArguments { json: false, ..global_defaults() };
            Output::new(&global, None, false).note(format_args!("hint: {hint}"));
        }
        return if is_help { 0 } else { 2 };
    }
    let text = error.to_string();
    // The first paragraph says what is wrong, the rest how it is used.
    let message = text.lines().take_while(|line| !line.trim().is_empty()).collect::<Vec<_>>().join(" ");
    let message = rye_item::text::one_line(message.trim_start_matches("error: "));
    let hint = usage_hint(error).unwrap_or_else(|| "rye --help".to_owned());
    let failure = Error::new(Code::InvalidArgument, message).hint(hint);
    let global = global_defaults();
    let _ = Output::new(&global, None, false).print_error(&failure, None);
    2
}

/// The options of a command that could not be read.
fn global_defaults() -> global::GlobalArguments {
    global::GlobalArguments {
        project: None,
        user_space: None,
        json: true,
        verbose: false,
        quiet: false,
        color: None,
    }
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
