//! `rye keys`.

use rye_engine::verbs::keys::{self, TrustOptions};
use rye_engine::{Code, Error};
use serde_json::json;

use super::{CommandContext, CommandResult};
use crate::arguments::{KeysCommand, WritableSpace};
use crate::output::{ERROR, NAME, SUCCESS, display_path, paint};

/// Runs a command of `rye keys`.
pub fn run(context: &CommandContext, command: &KeysCommand) -> CommandResult {
    let engine = &context.engine;
    let owner = |option: &Option<String>| option.clone().unwrap_or_else(|| context.settings.owner.clone());
    match command {
        KeysCommand::Generate { owner: name } => {
            let generated = keys::generate(engine, &owner(name))?;
            print_key(context, "made", &generated)
        }
        KeysCommand::Import { file, owner: name } => {
            let imported = keys::import(engine, file, &owner(name))?;
            print_key(context, "imported", &imported)
        }
        KeysCommand::List => list(context),
        KeysCommand::Show { fingerprint } => show(context, fingerprint.as_deref()),
        KeysCommand::Trust { file, space, owner, may_introduce } => {
            let options = TrustOptions {
                tier: space.map(WritableSpace::tier),
                owner: owner.clone(),
                may_introduce: *may_introduce,
            };
            let trusted = keys::trust(engine, file, &options)?;
            if !context.print_if_json(Some("key"), Some(trusted.fingerprint.as_str()), &trusted)? {
                let scope = match &trusted.projects {
                    None => "everywhere".to_owned(),
                    Some(projects) => rye_item::text::one_line(&format!("in {}", projects.join(", "))),
                };
                context.output.print(format_args!(
                    "{} {} ({}) {scope}",
                    paint(SUCCESS, "trusted"),
                    paint(NAME, trusted.fingerprint),
                    trusted.owner
                ))?;
            }
            Ok(())
        }
        KeysCommand::Revoke { fingerprint, reason } => {
            let revoked = keys::revoke(engine, fingerprint, reason)?;
            if !context.print_if_json(Some("key"), Some(revoked.fingerprint.as_str()), &revoked)? {
                context.output.print(format_args!(
                    "{} {}: nothing it signed is trusted any more",
                    paint(ERROR, "revoked"),
                    revoked.fingerprint
                ))?;
            }
            Ok(())
        }
        KeysCommand::Export { fingerprint, output } => {
            let (fingerprint, text) = keys::export(engine, fingerprint.as_deref())?;
            if let Some(path) = output {
                keys::write_export(path, &text)?;
            }
            let data = json!({ "fingerprint": fingerprint, "document": text, "path": output });
            if context.print_if_json(Some("key"), Some(fingerprint.as_str()), &data)? {
                return Ok(());
            }
            match output {
                Some(path) => context.output.print(format_args!(
                    "{} {}",
                    paint(SUCCESS, "wrote"),
                    display_path(path)
                ))?,
                None => context.output.print_raw(&text)?,
            }
            Ok(())
        }
    }
}

fn print_key(context: &CommandContext, word: &str, generated: &keys::GeneratedKey) -> CommandResult {
    if !context.print_if_json(Some("key"), Some(generated.fingerprint.as_str()), generated)? {
        context.output.print(format_args!(
            "{} the key {} in {}",
            paint(SUCCESS, word),
            paint(NAME, generated.fingerprint),
            display_path(&generated.folder)
        ))?;
    }
    Ok(())
}

fn list(context: &CommandContext) -> CommandResult {
    let listing = keys::list(&context.engine);
    for broken in &listing.broken {
        context.output.warn(rye_item::text::one_line(broken));
    }
    if context.print_if_json(None, None, &listing)? {
        return Ok(());
    }
    if listing.keys.is_empty() {
        context.output.note("no keys yet; make one: rye init");
        return Ok(());
    }
    let mut table = context.output.table(&["fingerprint", "owner", "trust", "note"]);
    for key in &listing.keys {
        let mut notes = Vec::new();
        if key.own {
            notes.push("yours".to_owned());
        }
        if key.may_introduce {
            notes.push("may introduce".to_owned());
        }
        if let Some(projects) = &key.projects {
            notes.push(rye_item::text::one_line(&format!("in {}", projects.join(", "))));
        }
        notes.extend(key.reason.clone());
        table.add_row([
            key.fingerprint.to_string(),
            key.owner.clone(),
            key.trust.to_owned(),
            notes.join("; "),
        ]);
    }
    context.output.print(table.trim_fmt())?;
    Ok(())
}

fn show(context: &CommandContext, fingerprint: Option<&str>) -> CommandResult {
    let listing = keys::list(&context.engine);
    let key = listing.keys.iter().find(|key| match fingerprint {
        Some(wanted) => key.fingerprint.as_str() == wanted,
        None => key.own,
    });
    let Some(key) = key else {
        let message = match fingerprint {
            Some(wanted) => {
                format!("no known key has the fingerprint `{}`", rye_item::text::one_line(wanted))
            }
            None => "you have no key with an identity document".to_owned(),
        };
        return Err(Error::new(Code::UnknownKey, message).hint("rye keys list").into());
    };
    if context.print_if_json(Some("key"), Some(key.fingerprint.as_str()), key)? {
        return Ok(());
    }
    let own = if key.own { " (yours)" } else { "" };
    context.output.print(format_args!(
        "{}{own}\n  owner: {}\n  trust: {}\n  document: {}",
        paint(NAME, key.fingerprint),
        key.owner,
        key.trust,
        display_path(&key.path)
    ))?;
    if let Some(reason) = &key.reason {
        context.output.print(format_args!("  note: {reason}"))?;
    }
    Ok(())
}
