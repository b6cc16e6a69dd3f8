//! `config get` and `config set`.

use rye_engine::verbs::config_set::{self, ConfigChange};
use rye_engine::{Code, Error};
use serde_json::{Value, json};

use super::given_command::given_command_with;
use super::{CommandContext, CommandResult, confirm, declined, setup};
use crate::arguments::{ConfigCommand, WritableSpace};
use crate::output::{DIM, NAME, SUCCESS, display_path, paint};

/// `rye config`
pub fn run(context: &CommandContext, command: &ConfigCommand) -> CommandResult {
    match command {
        ConfigCommand::Show { id, origin } => setup::show_config(context, id.as_deref(), *origin),
        ConfigCommand::Get { key } => get(context, key),
        ConfigCommand::Set { key, value, space, yes } => set(context, key, value, *space, *yes),
    }
}

fn get(context: &CommandContext, key: &str) -> CommandResult {
    let settings = config_set::get(&context.engine, key)?;
    if context.print_if_json(None, None, &json!({ "settings": settings }))? {
        return Ok(());
    }
    match settings.as_slice() {
        [one] => {
            context.output.print(plain(&one.value))?;
            context.output.detail(format_args!("from {}", one.origin));
        }
        many => {
            for setting in many {
                context.output.print(format_args!(
                    "{} {}",
                    paint(NAME, &setting.key),
                    plain(&setting.value)
                ))?;
            }
        }
    }
    Ok(())
}

/// A value as a person writes it.
fn plain(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    rye_item::text::one_line(&text)
}

fn set(
    context: &CommandContext,
    key: &str,
    value: &str,
    space: WritableSpace,
    is_agreed: bool,
) -> CommandResult {
    let change = ConfigChange::new(&context.engine, key, value, space.tier())?;
    if let Some(verdict) = change.needs_consent.filter(|_| !is_agreed && !change.is_unchanged()) {
        let path = display_path(change.path());
        let reason = match verdict {
            "full" => "signed by another key".to_owned(),
            other => other.to_owned(),
        };
        let message = format!("`{path}` is {reason}: your signature would cover all of it");
        if !context.settings.is_interactive {
            return Err(Error::new(Code::ConsentNeeded, message)
                .detail("path", path)
                .hint(format!("read the file; to sign it with your key: {}", given_command_with(&["--yes"])))
                .into());
        }
        context.output.ask(format_args!("{message}. Sign it? [y/N]"));
        if !confirm()? {
            return Err(declined(&context.output, Code::ConsentNeeded));
        }
    }
    let response = change.write(&context.engine)?;
    if context.print_if_json(Some("config"), None, &response)? {
        return Ok(());
    }
    let word = if response.changed { paint(SUCCESS, "set") } else { paint(DIM, "unchanged") };
    context.output.print(format_args!(
        "{word} {} = {} {}",
        paint(NAME, &response.setting),
        plain(&response.value),
        paint(DIM, display_path(&response.path))
    ))?;
    Ok(())
}
