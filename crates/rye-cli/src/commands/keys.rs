//! `rye keys`.

use rye_engine::verbs::keys::{self, TrustOptions};
use rye_engine::{Code, Error, PASSPHRASE_FILE_VAR};
use rye_item::text::{counted, quote_name};
use serde_json::json;

use super::{CommandContext, CommandError, CommandResult, error_with_data};
use crate::arguments::{KeysCommand, WritableSpace};
use crate::output::{DIM, ERROR, NAME, SUCCESS, display_path, paint};

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
                    "{} {} {scope}, owner {}",
                    paint(SUCCESS, "trusted"),
                    paint(NAME, trusted.fingerprint),
                    quote_name(&trusted.owner)
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
        KeysCommand::Rotate { resume } => rotate(context, *resume),
        KeysCommand::Encrypt => {
            let passphrase = new_passphrase(context)?;
            show_encryption(context, &keys::encrypt(engine, &passphrase)?)
        }
        KeysCommand::Decrypt => show_encryption(context, &keys::decrypt(engine)?),
        KeysCommand::Publish { owner } => {
            let published = keys::publish(engine, owner.as_deref())?;
            if !context.print_if_json(Some("key"), Some(published.fingerprint.as_str()), &published)? {
                let word = if published.changed { paint(SUCCESS, "wrote") } else { paint(DIM, "unchanged") };
                context.output.print(format_args!("{word} {}", display_path(&published.path)))?;
                context.output.note("commit it; others see it with: rye join");
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

/// A passphrase for a key that has none: from the file that the environment names, or typed twice.
fn new_passphrase(context: &CommandContext) -> Result<String, CommandError> {
    let first = context.engine.read_passphrase()?.ok_or_else(|| {
        Error::new(Code::ConsentNeeded, "there is no terminal to ask for a passphrase")
            .hint("name a file with it: RYE_KEY_PASSPHRASE_FILE=FILE rye keys encrypt")
    })?;
    let is_file = context.engine.host.variables.contains_key(PASSPHRASE_FILE_VAR);
    if !is_file && context.engine.read_passphrase()?.as_ref() != Some(&first) {
        let error = Error::new(Code::InvalidArgument, "the passphrases differ; nothing was changed");
        return Err(error.hint("type the same one twice").into());
    }
    Ok(first)
}

fn show_encryption(context: &CommandContext, changed: &keys::KeyEncryption) -> CommandResult {
    if context.print_if_json(Some("key"), Some(changed.fingerprint.as_str()), changed)? {
        return Ok(());
    }
    let state = if changed.encrypted { "encrypted" } else { "not encrypted" };
    context.output.print(format_args!("your key {} is {state}", paint(NAME, changed.fingerprint)))?;
    if changed.encrypted {
        context
            .output
            .note("without the passphrase the key is lost; backups made before hold it unencrypted");
    }
    Ok(())
}

fn rotate(context: &CommandContext, resume: bool) -> CommandResult {
    let old = if resume { None } else { Some(keys::replace_own_key(&context.engine)?) };
    // The new key counts from here on.
    let engine = context.settings.engine()?;
    let rotated = keys::RotatedKey { old, ..keys::resign(&engine)? };
    let failed = &rotated.resigned.failed;
    if !context.output.is_json {
        if let Some(old) = old {
            let new = paint(NAME, rotated.fingerprint);
            context.output.print(format_args!("{} {old} by {new}", paint(SUCCESS, "replaced")))?;
        }
        let (items, records) = (rotated.resigned.items.len(), rotated.resigned.records.len());
        context.output.print(format_args!(
            "signed {} and {} again",
            counted(items, "item"),
            counted(records, "record")
        ))?;
        for failed in failed {
            context.output.warn(format_args!("not signed again: {}", rye_item::text::one_line(failed)));
        }
        if !rotated.resigned.handovers.is_empty() || rotated.resigned.identity.is_some() {
            context
                .output
                .note("commit .ai: colleagues who trust the old key trust the new one after a pull");
        }
        if old.is_some() {
            context.output.note("in each of your other projects: rye keys rotate --continue");
            context.output.note("back up the new key; the old private key is gone");
        }
    }
    if failed.is_empty() {
        context.print_if_json(Some("key"), Some(rotated.fingerprint.as_str()), &rotated)?;
        return Ok(());
    }
    let message = format!("{} not signed again", counted(failed.len(), "item"));
    let data = serde_json::to_value(&rotated).map_err(std::io::Error::from)?;
    let hint = "correct them and sign them: rye sign TYPE ID, then: rye keys rotate --continue";
    Err(error_with_data(Code::Invalid, message, hint, data))
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
    let mut table = context.output.table(&["fingerprint", "trust", "owner", "note"]);
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
            key.trust.to_owned(),
            quote_name(&key.owner),
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
        let hint = match fingerprint {
            Some(_) => "rye keys list shows the fingerprints",
            None => "make one: rye init",
        };
        return Err(Error::new(Code::UnknownKey, message).hint(hint).into());
    };
    if context.print_if_json(Some("key"), Some(key.fingerprint.as_str()), key)? {
        return Ok(());
    }
    let own = if key.own { " (yours)" } else { "" };
    context.output.print(format_args!(
        "{}{own}\n  trust: {}\n  owner: {}\n  document: {}",
        paint(NAME, key.fingerprint),
        key.trust,
        quote_name(&key.owner),
        display_path(&key.path)
    ))?;
    if let Some(reason) = &key.reason {
        context.output.print(format_args!("  note: {reason}"))?;
    }
    Ok(())
}
