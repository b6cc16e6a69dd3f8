//! `sign` and `verify`.

use std::path::{Path, PathBuf};

use rye_engine::verbs::sign::{self, OthersItems, SignResponse as SignAnswer, SignedItem};
use rye_engine::verbs::verify::{self, VerifyReport as VerifyAnswer};
use rye_engine::{Code, Error};
use rye_item::space::SpaceTier;
use rye_item::text::{counted, quote_name};
use rye_item::{ItemRef, ItemType};

use super::{CommandContext, CommandError, CommandResult, error_with_data, sign_watch};
use crate::arguments::{SignArguments, VerifyArguments, WritableSpace};
use crate::output::{DIM, ERROR, NAME, SUCCESS, WARNING, display_path, paint};

/// What the words of a command name.
enum Target {
    /// Files.
    Paths(Vec<PathBuf>),
    /// An item or a pattern of a type; of any type, if none is said.
    Item(Option<ItemType>, String),
}

/// `TYPE ID`, `type:id`, paths, or `ID`. A word that is a type is a type, not a path; one that is a path is not an id.
fn parse_target(words: &[String]) -> Result<Target, Error> {
    match words {
        [item_type, id] if item_type.parse::<ItemType>().is_ok() => {
            let item_type = item_type.parse()?;
            let id = match ItemRef::split_canonical(id) {
                Some((stated, rest)) if stated == item_type => rest,
                _ => id,
            };
            Ok(Target::Item(Some(item_type), id.to_owned()))
        }
        [one] if !Path::new(one).exists() && ItemRef::split_canonical(one).is_some() => {
            let (item_type, id) = ItemRef::split_canonical(one).unwrap_or((ItemType::Tool, one));
            Ok(Target::Item(Some(item_type), id.to_owned()))
        }
        [item_type] if !Path::new(item_type).exists() && item_type.parse::<ItemType>().is_ok() => {
            let error = Error::new(Code::InvalidArgument, format!("no {item_type} id given"));
            Err(error.hint(format!("{item_type} ID, such as {item_type} team/deploy; or a quoted pattern")))
        }
        [item_type, _, _, ..] if item_type.parse::<ItemType>().is_ok() => {
            let error = Error::new(Code::InvalidArgument, format!("more than one {item_type} given"));
            Err(error
                .hint(format!("quote the pattern to keep the shell from expanding it: {item_type} 'team/*'")))
        }
        [one] if !Path::new(one).exists() && is_id_or_glob(one) => Ok(Target::Item(None, one.clone())),
        [first, ..] if !Path::new(first).exists() && !first.contains(['/', '.']) => {
            Err(rye_item::id::UnknownItemType(first.clone()).into())
        }
        paths => Ok(Target::Paths(paths.iter().map(PathBuf::from).collect())),
    }
}

/// Whether a word that is not a path can be an id or a pattern of ids: a missing file is reported as such.
fn is_id_or_glob(word: &str) -> bool {
    let has_extension = Path::new(word).extension().is_some_and(|extension| {
        ["py", "yaml", "yml", "toml", "md", "js", "ts", "mjs", "cjs", "sh"]
            .iter()
            .any(|known| extension == *known)
    });
    !has_extension && (sign::is_glob(word) || rye_item::ItemId::new(word).is_ok())
}

/// What a pattern does with items that others signed.
fn others_items(arguments: &SignArguments) -> OthersItems {
    if arguments.take_over { OthersItems::TakeOver } else { OthersItems::Leave }
}

/// Signs every item whose id matches, of one type or of all.
fn sign_matching(
    context: &CommandContext,
    item_type: Option<ItemType>,
    pattern: &str,
    (tier, others): (Option<SpaceTier>, OthersItems),
    progress: sign::SignProgress<'_>,
) -> Result<SignAnswer, Error> {
    let Some(item_type) = item_type else {
        let mut report = SignAnswer::default();
        let mut nothing = None;
        for item_type in ItemType::SEARCHABLE {
            match sign::sign_glob(&context.engine, item_type, pattern, tier, others, progress) {
                Ok(mut one) => {
                    report.signed.append(&mut one.signed);
                    report.failed.append(&mut one.failed);
                    report.left.append(&mut one.left);
                }
                Err(error) if error.code == Code::NotFound => nothing = Some(error),
                Err(error) => return Err(error),
            }
        }
        return match nothing {
            Some(error) if report.signed.is_empty() && report.failed.is_empty() && report.left.is_empty() => {
                let pattern = rye_item::text::one_line(pattern);
                let message = format!("no directive, tool or knowledge matches `{pattern}`");
                Err(Error { message, ..error })
            }
            _ => Ok(report),
        };
    };
    sign::sign_glob(&context.engine, item_type, pattern, tier, others, progress)
}

/// `rye sign`
pub fn sign(context: &CommandContext, arguments: &SignArguments) -> CommandResult {
    if arguments.watch {
        return sign_watch::watch(context, || sign_target(context, arguments));
    }
    let tier = arguments.space.map(WritableSpace::tier);
    let mut bar = context.output.progress("signing");
    let mut progress = |done, total| bar.update(done, total);
    let mut report = match parse_target(&arguments.what)? {
        Target::Item(item_type, id) if sign::is_glob(&id) => {
            sign_matching(context, item_type, &id, (tier, others_items(arguments)), &mut progress)?
        }
        Target::Item(item_type, id) => {
            let item = named_item(context, item_type, &id, tier)?;
            let mut signed = sign::sign_item(&context.engine, &item, tier)?;
            refresh_lockfile(context, &mut signed);
            return show_signed_item(context, &signed);
        }
        Target::Paths(paths) => {
            let mut report = sign::sign_paths(&context.engine, &paths, &mut progress)?;
            if paths.len() == 1 {
                match (report.signed.pop(), report.failed.pop()) {
                    (Some(mut signed), _) => {
                        refresh_lockfile(context, &mut signed);
                        return show_signed_item(context, &signed);
                    }
                    (None, Some(failed)) => return Err(failed.error.into()),
                    (None, None) => {}
                }
            }
            report
        }
    };
    drop(bar);
    report.signed.iter_mut().for_each(|signed| refresh_lockfile(context, signed));
    show_sign_report(context, &report)
}

/// Signs what the words of a command name, once.
fn sign_target(context: &CommandContext, arguments: &SignArguments) -> Result<SignAnswer, Error> {
    let tier = arguments.space.map(WritableSpace::tier);
    let mut report = match parse_target(&arguments.what)? {
        Target::Item(item_type, id) if sign::is_glob(&id) => {
            sign_matching(context, item_type, &id, (tier, others_items(arguments)), &mut |_, _| {})?
        }
        Target::Item(item_type, id) => {
            let item = named_item(context, item_type, &id, tier)?;
            match sign::sign_item(&context.engine, &item, tier) {
                Ok(signed) => SignAnswer { signed: vec![signed], ..SignAnswer::default() },
                Err(error) => {
                    let failed = sign::FailedSign { name: item.to_string(), error };
                    SignAnswer { failed: vec![failed], ..SignAnswer::default() }
                }
            }
        }
        Target::Paths(paths) => sign::sign_paths(&context.engine, &paths, &mut |_, _| {})?,
    };
    report.signed.iter_mut().for_each(|signed| refresh_lockfile(context, signed));
    Ok(report)
}

/// The item of a type and an id, or the one item that has the id.
fn named_item(
    context: &CommandContext,
    item_type: Option<ItemType>,
    id: &str,
    tier: Option<SpaceTier>,
) -> Result<ItemRef, Error> {
    match item_type {
        Some(item_type) => Ok(ItemRef::parse(Some(item_type.as_str()), id)?),
        None => rye_engine::verbs::load::find_by_id(&context.engine, id, tier),
    }
}

/// Signing here is consent: the user's own lockfile of the tool follows. A lockfile that cannot does not undo it.
fn refresh_lockfile(context: &CommandContext, signed: &mut SignedItem) {
    if let Err(error) = signed.refresh_lockfile(&context.engine) {
        context.output.warn(format_args!(
            "{} is signed, but its lockfile was not updated: {}",
            signed.item_id,
            rye_item::text::one_line(&error.message)
        ));
    }
    if let Some(path) = &signed.lockfile {
        context.output.note(format_args!("pinned as signed: {}", paint(DIM, display_path(path))));
    }
}

fn show_signed_item(context: &CommandContext, signed: &SignedItem) -> CommandResult {
    for warning in &signed.warnings {
        context.output.warn_diagnostic(&signed.path, warning);
    }
    if context.print_if_json(Some(signed.item_type.as_str()), Some(&signed.item_id), signed)? {
        return Ok(());
    }
    let word = if signed.unchanged { paint(DIM, "unchanged") } else { paint(SUCCESS, "signed") };
    context.output.print(format_args!(
        "{word} {}:{} {}",
        signed.item_type,
        paint(NAME, &signed.item_id),
        paint(DIM, display_path(&signed.path))
    ))?;
    Ok(())
}

fn show_sign_report(context: &CommandContext, report: &SignAnswer) -> CommandResult {
    if !context.output.is_json {
        for signed in &report.signed {
            for warning in &signed.warnings {
                context.output.warn_diagnostic(&signed.path, warning);
            }
        }
        for failed in &report.failed {
            context.output.print_error(&failed.error, None)?;
        }
        for left in &report.left {
            context.output.note(format_args!(
                "{} {}: {} signed it; to sign it yourself, name it or add --take-over",
                paint(WARNING, "left"),
                left.item,
                paint(NAME, left.fingerprint)
            ));
        }
        context.output.print(report.summary())?;
    }
    match report.failure() {
        Some(error) => Err(CommandError::Engine(error, Some(Box::new(report.to_value())))),
        None => {
            context.print_if_json(None, None, &report.to_value())?;
            Ok(())
        }
    }
}

/// `rye verify`
pub fn verify(context: &CommandContext, arguments: &VerifyArguments) -> CommandResult {
    let options = verify::VerifyOptions { metadata: arguments.metadata };
    let mut bar = context.output.progress("verifying");
    let mut progress = |done, total| bar.update(done, total);
    let engine = &context.engine;
    let report = match (&arguments.root, arguments.what.as_slice()) {
        (Some(root), _) => verify::verify_root(engine, root, options, &mut progress)?,
        (None, []) => verify::verify_all(engine, options, &mut progress),
        (None, words) => match parse_target(words)? {
            Target::Item(item_type, id) => {
                let item = named_item(context, item_type, &id, None)?;
                verify::verify_item(engine, &item, options)?
            }
            Target::Paths(paths) => verify::verify_paths(engine, &paths, options, &mut progress)?,
        },
    };
    drop(bar);
    show_verify_report(context, &report)
}

fn show_verify_report(context: &CommandContext, report: &VerifyAnswer) -> CommandResult {
    if !context.output.is_json {
        print_verify_report(context, report)?;
    }
    if report.is_fully_verified() && report.invalid == 0 {
        context.print_if_json(None, None, report)?;
        return Ok(());
    }
    let data = serde_json::to_value(report).map_err(std::io::Error::from)?;
    let (code, message) = if report.is_fully_verified() {
        (Code::Invalid, format!("{} of {} cannot be parsed", report.invalid, counted(report.checked, "file")))
    } else {
        (
            report.most_severe_code(),
            format!(
                "{} of {} not fully signed and trusted",
                report.checked - report.full,
                counted(report.checked, "file")
            ),
        )
    };
    Err(error_with_data(
        code,
        message,
        "read and sign them with rye sign; rye why TYPE ID shows one item",
        data,
    ))
}

fn print_verify_report(context: &CommandContext, report: &VerifyAnswer) -> std::io::Result<()> {
    let output = &context.output;
    for row in &report.items {
        let verdict = row.verdict.as_str();
        if verdict == "full" && row.problems.is_empty() {
            output.detail(format_args!("{} {}", paint(SUCCESS, "full"), display_path(&row.path)));
            continue;
        }
        let style = if verdict == "partial" {
            WARNING
        } else if verdict == "full" {
            SUCCESS
        } else {
            ERROR
        };
        let reason = row
            .reason
            .as_deref()
            .map(|reason| format!(": {}", rye_item::text::one_line(reason)))
            .unwrap_or_default();
        output.print(format_args!(
            "{} {}{reason}",
            paint(style, format_args!("{verdict:9}")),
            display_path(&row.path)
        ))?;
        for problem in &row.problems {
            output.print(format_args!(
                "  {} {}",
                paint(ERROR, "•"),
                rye_item::text::one_line(&problem.to_string())
            ))?;
        }
    }
    for unreadable in &report.unreadable {
        let reason = rye_item::text::one_line(&unreadable.reason);
        output.print(format_args!(
            "{} {}: {reason}",
            paint(ERROR, "unread   "),
            display_path(&unreadable.path)
        ))?;
    }
    let parts = [
        ("full", report.full),
        ("partial", report.partial),
        ("unsigned", report.unsigned),
        ("tampered", report.tampered),
        ("misplaced", report.misplaced),
        ("untrusted", report.untrusted),
        ("revoked", report.revoked),
        ("unreadable", report.unreadable.len()),
    ];
    let parts = parts.iter().filter(|(word, count)| *count > 0 || *word == "full");
    let parts = parts.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ");
    output.print(format_args!("{} checked: {parts}", report.checked))?;
    for signer in report.signers.iter().flatten() {
        let style = if signer.approved { SUCCESS } else { WARNING };
        let trust = paint(style, signer.trust.as_str());
        let owner = quote_name(&signer.owner);
        output.print(format_args!("signer {}: {trust}, owner {owner}", signer.fingerprint))?;
    }
    Ok(())
}
