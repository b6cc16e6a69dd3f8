//! One function per command: arguments in, one call of a verb, a picture out.

mod background;
mod bundles;
mod ci;
mod config;
mod dry_run;
mod execute;
mod export;
mod given_command;
mod import;
mod in_sandbox;
mod install;
mod installation;
mod items;
mod join;
mod keys;
mod list;
mod lock;
mod mcp;
mod mcp_clients;
mod new_item;
mod programs;
mod project_bundles;
mod registry;
mod run;
mod schedule;
mod setup;
mod sign_watch;
mod signing;
mod store;
mod test;
mod threads;
mod top;
mod ui;
mod worker;

use std::io;

use clap_complete::env::Shells;
use rye_agent::store::ThreadStoreError;
use rye_engine::{Code, DevMode, Engine, Error};
use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType};
use rye_space::Roots;
use serde::Serialize;
use serde_json::Value;

use crate::arguments::{Arguments, CliCommand, InstallationCommand, ItemArguments, StoreCommand};
use crate::explain;
use crate::global::GlobalArguments;
use crate::output::Output;
use crate::settings::{self, Settings};

pub use threads::ThreadIndex;

/// Why a command did not work.
pub enum CommandError {
    /// The verb failed; the data is shown all the same.
    Engine(Error, Option<Box<Value>>),
    /// The result could not be printed.
    Output(io::Error),
    /// Everything was shown; only the exit code is left to give.
    Exit(u8),
}

impl From<ThreadStoreError> for CommandError {
    fn from(error: ThreadStoreError) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        Self::Engine(error, None)
    }
}

impl From<rye_item::id::ItemRefError> for CommandError {
    fn from(error: rye_item::id::ItemRefError) -> Self {
        Error::from(error).into()
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// What a command comes to.
pub type CommandResult = Result<(), CommandError>;

/// What most commands need.
pub struct CommandContext {
    /// The surroundings.
    pub settings: Settings,
    /// The engine.
    pub engine: Engine,
    /// Where to print.
    pub output: Output,
}

impl CommandContext {
    fn open(global: &GlobalArguments) -> Result<Self, CommandError> {
        Self::with_settings(Settings::read(global)?, global)
    }

    /// As [`CommandContext::open`], without the project's items: for what must work in a project that would be refused.
    fn open_without_project(global: &GlobalArguments) -> Result<Self, CommandError> {
        let settings = Settings::read(global)?;
        let project = settings.roots.project.clone();
        let outside = Roots { project: None, ..settings.roots.clone() };
        let mut context = Self::with_settings(Settings { roots: outside, ..settings }, global)?;
        context.settings.roots.project = project;
        Ok(context)
    }

    /// As [`CommandContext::open`], for a command that probably starts a process: its launcher begins meanwhile.
    fn open_for_run(global: &GlobalArguments) -> Result<Self, CommandError> {
        let settings = Settings::read(global)?;
        settings.launcher.prestart();
        Self::with_settings(settings, global)
    }

    fn with_settings(settings: Settings, global: &GlobalArguments) -> Result<Self, CommandError> {
        if let Some(folder) = settings.roots.project.as_ref().filter(|_| global.project.is_some())
            && !folder.is_dir()
        {
            let error =
                Error::new(Code::PathNotFound, format!("the project `{}` is not a folder", folder.display()));
            return Err(error.hint("name an existing folder with --project").into());
        }
        let engine = settings.engine()?;
        let text = |key: &str| engine.workspace.settings.get(key).and_then(Value::as_str);
        let wants_progress = engine.workspace.settings.get("display.progress") != Some(&Value::Bool(false));
        let output = Output::new(global, text("display.color"), wants_progress);
        let context = Self { settings, engine, output };
        context.print_notices();
        Ok(context)
    }

    /// What the user should know before the result, one line each.
    fn print_notices(&self) {
        let workspace = &self.engine.workspace;
        match self.engine.dev_mode {
            DevMode::Off => {}
            DevMode::On => self.output.warn("development mode is on: unsigned and edited items of this project may run"),
            DevMode::Refused => self.output.warn(
                "RYE_DEV_MODE is ignored: this project is not both approved and listed in `dev_mode.projects` of signed user config",
            ),
        }
        for remark in &workspace.hints {
            self.output.detail(rye_item::text::one_line(remark));
        }
        for notice in &workspace.notices {
            self.output.warn(rye_item::text::one_line(notice));
        }
        for ignored in &workspace.settings.ignored {
            self.output.warn(format_args!(
                "`{}` in {} config is ignored: {}",
                rye_item::text::one_line(&ignored.key),
                ignored.space,
                rye_item::text::one_line(&ignored.reason)
            ));
        }
        if let Some(first) = workspace.settings.unsigned.first() {
            let keys = workspace.settings.unsigned.iter().map(|unsigned| format!("`{}`", unsigned.key));
            let keys = rye_item::text::one_line(&keys.collect::<Vec<_>>().join(", "));
            self.output.warn(format_args!(
                "{keys} in {} config is used, but should be signed: read it, then {}",
                first.space,
                first.sign_command()
            ));
        }
    }

    /// Prints a JSON answer if JSON is wanted; says whether it did.
    fn print_if_json(
        &self,
        item_type: Option<&str>,
        item_id: Option<&str>,
        data: &impl Serialize,
    ) -> io::Result<bool> {
        if self.output.is_json {
            let data = serde_json::to_value(data)?;
            self.output.print_json(&rye_engine::success_response(item_type, item_id, data))?;
        }
        Ok(self.output.is_json)
    }
}

/// The item a command names; without a type it is the one item that has the id.
fn find_item(
    context: &CommandContext,
    arguments: &ItemArguments,
    from: Option<SpaceTier>,
) -> Result<ItemRef, Error> {
    let is_id = arguments.second.is_none()
        && arguments.first.parse::<ItemType>().is_err()
        && ItemRef::split_canonical(&arguments.first).is_none();
    match is_id {
        true => rye_engine::verbs::load::find_by_id(&context.engine, &arguments.first, from),
        false => parse_item_ref(arguments),
    }
}

/// The item that a type and an id name.
fn parse_item_ref(arguments: &ItemArguments) -> Result<ItemRef, Error> {
    match &arguments.second {
        Some(id) => Ok(ItemRef::parse(Some(&arguments.first), id)?),
        None if arguments.first.parse::<ItemType>().is_ok() => {
            let item_type = &arguments.first;
            let error = Error::new(Code::InvalidArgument, format!("no {item_type} id given"));
            Err(error.hint(format!("rye search '*' --type {item_type} lists them")))
        }
        None => Ok(ItemRef::parse(None, &arguments.first)?),
    }
}

/// Runs a command.
pub fn run(arguments: &Arguments) -> CommandResult {
    let global = &arguments.global;
    if let Some(sandbox) = settings::sandbox_context() {
        return in_sandbox::run(arguments, &sandbox);
    }
    match &arguments.command {
        CliCommand::Init(arguments) => setup::init(global, arguments),
        CliCommand::Installation(InstallationCommand::Version) => installation::version(global),
        CliCommand::Explain { code } => explain_code(global, code),
        CliCommand::Completions { shell } => print_completions(global, shell),
        CliCommand::Join(join) => join::join(CommandContext::open(global)?, join),
        CliCommand::Trust(trust) => setup::trust(&CommandContext::open_without_project(global)?, trust),
        CliCommand::Keys(command) => keys::run(&CommandContext::open(global)?, command),
        CliCommand::Search(search) => items::search(&CommandContext::open(global)?, search),
        CliCommand::Load(load) => items::load(&CommandContext::open(global)?, load),
        CliCommand::Fetch(fetch) => items::fetch(&CommandContext::open(global)?, fetch),
        CliCommand::Execute(execute) if execute.dry_run => {
            execute::execute(&CommandContext::open(global)?, execute)
        }
        CliCommand::Execute(execute) => execute::execute(&CommandContext::open_for_run(global)?, execute),
        CliCommand::Run(arguments) => run::run(global, arguments),
        CliCommand::Thread(command) => threads::run(global, command),
        CliCommand::Schedule(command) => schedule::run(global, command),
        CliCommand::Sign(sign) => signing::sign(&CommandContext::open(global)?, sign),
        CliCommand::Verify(verify) => signing::verify(&CommandContext::open(global)?, verify),
        CliCommand::Why(item) => items::why(&CommandContext::open(global)?, item),
        CliCommand::New(arguments) => new_item::new_item(&CommandContext::open(global)?, arguments),
        CliCommand::List(arguments) => list::list(&CommandContext::open(global)?, arguments),
        CliCommand::Test(arguments) => test::test(&CommandContext::open_for_run(global)?, arguments),
        CliCommand::Config(command) => config::run(&CommandContext::open(global)?, command),
        CliCommand::Lock(command) => lock::run(&CommandContext::open(global)?, command),
        CliCommand::Bundle(command) => bundles::run(&CommandContext::open(global)?, command),
        CliCommand::Install(arguments) => install::install(&CommandContext::open(global)?, arguments),
        CliCommand::Uninstall(arguments) => install::uninstall(&CommandContext::open(global)?, arguments),
        CliCommand::Add(arguments) => project_bundles::add(&CommandContext::open(global)?, arguments),
        CliCommand::Remove(arguments) => project_bundles::remove(&CommandContext::open(global)?, arguments),
        CliCommand::Sync(arguments) => project_bundles::sync(&CommandContext::open(global)?, arguments),
        CliCommand::Outdated(arguments) => {
            project_bundles::outdated(&CommandContext::open(global)?, arguments)
        }
        CliCommand::Import(arguments) => import::import(&CommandContext::open(global)?, arguments),
        CliCommand::Export(arguments) => export::export(&CommandContext::open(global)?, arguments),
        CliCommand::Ui(arguments) => ui::run(global, arguments),
        CliCommand::Top(arguments) => top::run(&CommandContext::open_for_run(global)?, arguments),
        CliCommand::Mcp(arguments) => mcp::run(global, arguments),
        CliCommand::Background { keys } => background::run(keys),
        CliCommand::Ci => ci::ci(&CommandContext::open(global)?),
        CliCommand::Worker(arguments) => worker::run(global, arguments),
        CliCommand::Store(StoreCommand::Migrate(arguments)) => {
            store::migrate(&CommandContext::open(global)?, arguments)
        }
        CliCommand::Doctor(doctor) => setup::doctor(&CommandContext::open(global)?, doctor.store),
    }
}

fn explain_code(global: &GlobalArguments, code: &str) -> CommandResult {
    let output = Output::new(global, None, false);
    let Some((code, page)) = explain::find_page(code) else {
        let error =
            Error::new(Code::NotFound, format!("unknown error code `{}`", rye_item::text::one_line(code)));
        return Err(error.hint("a code looks like RYE0402").into());
    };
    if output.is_json {
        output.print_json(&rye_engine::success_response(
            Some("error"),
            Some(code),
            serde_json::json!({ "page": page }),
        ))?;
    } else {
        output.print_raw(page)?;
    }
    Ok(())
}

fn print_completions(global: &GlobalArguments, shell: &str) -> CommandResult {
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(shell) else {
        let known = shells.names().collect::<Vec<_>>().join(", ");
        let error = Error::new(
            Code::InvalidArgument,
            format!("no completions for `{}`", rye_item::text::one_line(shell)),
        );
        return Err(error.hint(format!("shells are: {known}")).into());
    };
    let mut script = Vec::new();
    completer.write_registration("COMPLETE", "rye", "rye", "rye", &mut script)?;
    let script = String::from_utf8_lossy(&script);
    let output = Output::new(global, None, false);
    if output.is_json {
        output.print_json(&rye_engine::success_response(
            None,
            None,
            serde_json::json!({ "script": script }),
        ))?;
    } else {
        output.print_raw(&script)?;
    }
    Ok(())
}

/// An answer that is shown, and still a failure.
fn error_with_data(code: Code, message: String, hint: &str, data: Value) -> CommandError {
    CommandError::Engine(Error::new(code, message).hint(hint), Some(Box::new(data)))
}

/// The end of a command whose question at the terminal was answered with a no: what would do it without asking is not said.
fn declined(output: &Output, code: Code) -> CommandError {
    output.note("nothing was changed");
    CommandError::Exit(code.kind().exit_code())
}

/// Reads the answer to a question; anything but a yes is a no.
fn confirm() -> io::Result<bool> {
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
