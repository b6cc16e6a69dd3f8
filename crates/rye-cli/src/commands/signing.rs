//! `sign` and `verify`.

use std::path::{Path, PathBuf};

use rye_engine::verbs::sign::{self, Answer as SignAnswer, SignedItem};
use rye_engine::verbs::verify::{self, Answer as VerifyAnswer};
use rye_engine::{Code, Error};
use rye_item::text::counted;
use rye_item::{ItemRef, ItemType};

use super::{Context, Failure, Outcome, failed_with};
use crate::arguments::{SignArguments, VerifyArguments, WritableSpace};
use crate::output::{BAD, CAUTION, DIM, GOOD, NAME, paint, shown_path};

/// What the words of a command name.
enum Named {
    /// Files.
    Paths(Vec<PathBuf>),
    /// An item or a pattern of a type.
    Item(ItemType, String),
}

/// `TYPE ID`, `type:id`, or paths. A word that is a type is a type, not a path.
fn named(words: &[String]) -> Result<Named, Error> {
    match words {
        [item_type, id] if item_type.parse::<ItemType>().is_ok() => {
            let item_type = item_type.parse()?;
            let id = match ItemRef::split_canonical(id) {
                Some((stated, rest)) if stated == item_type => rest,
                _ => id,
            };
            Ok(Named::Item(item_type, id.to_owned()))
        }
        [one] if !Path::new(one).exists() && ItemRef::split_canonical(one).is_some() => {
            let (item_type, id) = ItemRef::split_canonical(one).unwrap_or((ItemType::Tool, one));
            Ok(Named::Item(item_type, id.to_owned()))
        }
        [item_type] if !Path::new(item_type).exists() && item_type.parse::<ItemType>().is_ok() => {
            let error = Error::new(Code::InvalidArgument, format!("which {item_type}? an id is missing"));
            Err(error.hint(format!("{item_type} ID, such as {item_type} team/deploy; or a quoted pattern")))
        }
        [item_type, _, _, ..] if item_type.parse::<ItemType>().is_ok() => {
            let error = Error::new(Code::InvalidArgument, format!("more than one {item_type} is named"));
            Err(error
                .hint(format!("quote the pattern, so that the shell leaves it alone: {item_type} 'team/*'")))
        }
        [first, ..] if !Path::new(first).exists() && !first.contains(['/', '.']) => {
            Err(rye_item::id::UnknownType(first.clone()).into())
        }
        paths => Ok(Named::Paths(paths.iter().map(PathBuf::from).collect())),
    }
}

/// `rye sign`
pub fn sign(context: &Context, arguments: &SignArguments) -> Outcome {
    let tier = arguments.space.map(WritableSpace::tier);
    let mut bar = context.output.progress("signing");
    let mut progress = |done, total| bar.update(done, total);
    let mut answer = match named(&arguments.what)? {
        Named::Item(item_type, id) if sign::is_glob(&id) => {
            sign::sign_glob(&context.engine, item_type, &id, tier, &mut progress)?
        }
        Named::Item(item_type, id) => {
            let item = sign::parse_item(Some(item_type.as_str()), &id)?;
            let mut signed = sign::sign_item(&context.engine, &item, tier)?;
            refresh_lockfile(context, &mut signed);
            return show_signed_one(context, &signed);
        }
        Named::Paths(paths) => {
            let mut answer = sign::sign_paths(&context.engine, &paths, &mut progress)?;
            if paths.len() == 1 {
                match (answer.signed.pop(), answer.failed.pop()) {
                    (Some(mut signed), _) => {
                        refresh_lockfile(context, &mut signed);
                        return show_signed_one(context, &signed);
                    }
                    (None, Some(failed)) => return Err(failed.error.into()),
                    (None, None) => {}
                }
            }
            answer
        }
    };
    drop(bar);
    answer.signed.iter_mut().for_each(|signed| refresh_lockfile(context, signed));
    show_signed(context, &answer)
}

/// Signing here is consent: the user's own lockfile of the tool follows. A lockfile that cannot does not undo it.
fn refresh_lockfile(context: &Context, signed: &mut SignedItem) {
    if let Err(error) = signed.refresh_lockfile(&context.engine) {
        context.output.warn(format_args!(
            "{} is signed, but its lockfile was left as it is: {}",
            signed.item_id,
            rye_item::text::one_line(&error.message)
        ));
    }
    if let Some(path) = &signed.lockfile {
        context.output.note(format_args!("pinned as signed: {}", paint(DIM, shown_path(path))));
    }
}

fn show_signed_one(context: &Context, signed: &SignedItem) -> Outcome {
    for warning in &signed.warnings {
        context.output.warn(format_args!(
            "{}:{}",
            shown_path(&signed.path),
            rye_item::text::one_line(&warning.to_string())
        ));
    }
    if context.answered(Some(signed.item_type.as_str()), Some(&signed.item_id), signed)? {
        return Ok(());
    }
    let word = if signed.unchanged { paint(DIM, "unchanged") } else { paint(GOOD, "signed") };
    context.output.result(format_args!(
        "{word} {}:{} {}",
        signed.item_type,
        paint(NAME, &signed.item_id),
        paint(DIM, shown_path(&signed.path))
    ))?;
    Ok(())
}

fn show_signed(context: &Context, answer: &SignAnswer) -> Outcome {
    if !context.output.is_json {
        for signed in &answer.signed {
            for warning in &signed.warnings {
                context.output.warn(format_args!(
                    "{}:{}",
                    shown_path(&signed.path),
                    rye_item::text::one_line(&warning.to_string())
                ));
            }
        }
        for failed in &answer.failed {
            context.output.failure(&failed.error, None)?;
        }
        context.output.result(answer.summary())?;
    }
    match answer.failure() {
        Some(error) => Err(Failure::Verb(error, Some(Box::new(answer.to_value())))),
        None => {
            context.answered(None, None, &answer.to_value())?;
            Ok(())
        }
    }
}

/// `rye verify`
pub fn verify(context: &Context, arguments: &VerifyArguments) -> Outcome {
    let options = verify::Options { metadata: arguments.metadata };
    let mut bar = context.output.progress("verifying");
    let mut progress = |done, total| bar.update(done, total);
    let engine = &context.engine;
    let answer = match (&arguments.root, arguments.what.as_slice()) {
        (Some(root), _) => verify::verify_root(engine, root, options, &mut progress)?,
        (None, []) => verify::verify_all(engine, options, &mut progress),
        (None, words) => match named(words)? {
            Named::Item(item_type, id) => {
                let item = sign::parse_item(Some(item_type.as_str()), &id)?;
                verify::verify_item(engine, &item, options)?
            }
            Named::Paths(paths) => verify::verify_paths(engine, &paths, options, &mut progress)?,
        },
    };
    drop(bar);
    show_verified(context, &answer)
}

fn show_verified(context: &Context, answer: &VerifyAnswer) -> Outcome {
    if !context.output.is_json {
        draw_verified(context, answer)?;
    }
    if answer.is_all_full() && answer.invalid == 0 {
        context.answered(None, None, answer)?;
        return Ok(());
    }
    let data = serde_json::to_value(answer).map_err(std::io::Error::from)?;
    let (code, message) = if answer.is_all_full() {
        (Code::Invalid, format!("{} of {} cannot be parsed", answer.invalid, counted(answer.checked, "file")))
    } else {
        (
            worst_code(answer),
            format!(
                "{} of {} not fully signed and trusted",
                answer.checked - answer.full,
                counted(answer.checked, "file")
            ),
        )
    };
    Err(failed_with(
        code,
        message,
        "rye sign covers what you have read; rye why TYPE ID shows one item",
        data,
    ))
}

fn worst_code(answer: &VerifyAnswer) -> Code {
    let counts = [
        (answer.tampered, Code::Tampered),
        (answer.revoked, Code::Revoked),
        (answer.untrusted, Code::Untrusted),
        (answer.misplaced, Code::Misplaced),
        (answer.unsigned, Code::Unsigned),
        (answer.partial, Code::Partial),
    ];
    // Nobody vouches for what cannot be read.
    counts.into_iter().find(|(count, _)| *count > 0).map_or(Code::Unsigned, |(_, code)| code)
}

fn draw_verified(context: &Context, answer: &VerifyAnswer) -> std::io::Result<()> {
    let output = &context.output;
    for row in &answer.items {
        let verdict = row.verdict.as_str();
        if verdict == "full" && row.problems.is_empty() {
            output.detail(format_args!("{} {}", paint(GOOD, "full"), shown_path(&row.path)));
            continue;
        }
        let style = if verdict == "partial" {
            CAUTION
        } else if verdict == "full" {
            GOOD
        } else {
            BAD
        };
        let reason = row
            .reason
            .as_deref()
            .map(|reason| format!(": {}", rye_item::text::one_line(reason)))
            .unwrap_or_default();
        output.result(format_args!(
            "{} {}{reason}",
            paint(style, format_args!("{verdict:9}")),
            shown_path(&row.path)
        ))?;
        for problem in &row.problems {
            output.result(format_args!(
                "  {} {}",
                paint(BAD, "•"),
                rye_item::text::one_line(&problem.to_string())
            ))?;
        }
    }
    for unreadable in &answer.unreadable {
        let reason = rye_item::text::one_line(&unreadable.reason);
        output.result(format_args!(
            "{} {}: {reason}",
            paint(BAD, "unread   "),
            shown_path(&unreadable.path)
        ))?;
    }
    let parts = [
        ("full", answer.full),
        ("partial", answer.partial),
        ("unsigned", answer.unsigned),
        ("tampered", answer.tampered),
        ("misplaced", answer.misplaced),
        ("untrusted", answer.untrusted),
        ("revoked", answer.revoked),
        ("unreadable", answer.unreadable.len()),
    ];
    let parts = parts.iter().filter(|(word, count)| *count > 0 || *word == "full");
    let parts = parts.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ");
    output.result(format_args!("{} checked: {parts}", answer.checked))?;
    for signer in answer.signers.iter().flatten() {
        let style = if signer.approved { GOOD } else { CAUTION };
        let standing = paint(style, signer.trust.as_str());
        output.result(format_args!("signer {} ({}): {standing}", signer.fingerprint, signer.owner))?;
    }
    Ok(())
}
