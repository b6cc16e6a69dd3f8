//! `rye keys`.

use rye_engine::verbs::keys::{self, TrustOptions};
use rye_engine::{Code, Error};
use serde_json::json;

use super::{Context, Outcome};
use crate::arguments::{KeysCommand, WritableSpace};
use crate::output::{BAD, GOOD, NAME, paint, shown_path};

/// Runs a command of `rye keys`.
pub fn run(context: &Context, command: &KeysCommand) -> Outcome {
    let engine = &context.engine;
    let owner = |given: &Option<String>| given.clone().unwrap_or_else(|| context.settings.owner.clone());
    match command {
        KeysCommand::Generate { owner: name } => {
            let generated = keys::generate(engine, &owner(name))?;
            told_key(context, "made", &generated)
        }
        KeysCommand::Import { file, owner: name } => {
            let imported = keys::import(engine, file, &owner(name))?;
            told_key(context, "imported", &imported)
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
            if !context.answered(Some("key"), Some(trusted.fingerprint.as_str()), &trusted)? {
                let place = match &trusted.projects {
                    None => "everywhere".to_owned(),
                    Some(projects) => rye_item::text::one_line(&format!("in {}", projects.join(", "))),
                };
                context.output.result(format_args!(
                    "{} {} ({}) {place}",
                    paint(GOOD, "trusted"),
                    paint(NAME, trusted.fingerprint),
                    trusted.owner
                ))?;
            }
            Ok(())
        }
        KeysCommand::Revoke { fingerprint, reason } => {
            let revoked = keys::revoke(engine, fingerprint, reason)?;
            if !context.answered(Some("key"), Some(revoked.fingerprint.as_str()), &revoked)? {
                context.output.result(format_args!(
                    "{} {}: nothing it signed verifies any more",
                    paint(BAD, "revoked"),
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
            if context.answered(Some("key"), Some(fingerprint.as_str()), &data)? {
                return Ok(());
            }
            match output {
                Some(path) => {
                    context.output.result(format_args!("{} {}", paint(GOOD, "wrote"), shown_path(path)))?
                }
                None => context.output.raw(&text)?,
            }
            Ok(())
        }
    }
}

fn told_key(context: &Context, word: &str, generated: &keys::Generated) -> Outcome {
    if !context.answered(Some("key"), Some(generated.fingerprint.as_str()), generated)? {
        context.output.result(format_args!(
            "{} the key {} in {}",
            paint(GOOD, word),
            paint(NAME, generated.fingerprint),
            shown_path(&generated.folder)
        ))?;
    }
    Ok(())
}

fn list(context: &Context) -> Outcome {
    let listing = keys::list(&context.engine);
    for broken in &listing.broken {
        context.output.warn(rye_item::text::one_line(broken));
    }
    if context.answered(None, None, &listing)? {
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
    context.output.result(table.trim_fmt())?;
    Ok(())
}

fn show(context: &Context, fingerprint: Option<&str>) -> Outcome {
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
    if context.answered(Some("key"), Some(key.fingerprint.as_str()), key)? {
        return Ok(());
    }
    let own = if key.own { " (yours)" } else { "" };
    context.output.result(format_args!(
        "{}{own}\n  owner: {}\n  trust: {}\n  document: {}",
        paint(NAME, key.fingerprint),
        key.owner,
        key.trust,
        shown_path(&key.path)
    ))?;
    if let Some(reason) = &key.reason {
        context.output.result(format_args!("  note: {reason}"))?;
    }
    Ok(())
}
