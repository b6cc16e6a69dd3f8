//! `sign` and `verify`.

use std::path::{Path, PathBuf};

use rye_engine::verbs::sign::{
    self, ItemSignState, OthersItems, SignCandidate, SignChoice, SignGate, SignResponse as SignAnswer,
    SignedItem,
};
use rye_engine::verbs::verify::{self, VerifyReport as VerifyAnswer};
use rye_engine::{Code, Error};
use rye_item::space::SpaceTier;
use rye_item::text::{counted, quote_name};
use rye_item::{ItemRef, ItemType};

use super::{CommandContext, CommandError, CommandResult, confirm, error_with_data, sign_watch};
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
fn parse_target(context: &CommandContext, words: &[String]) -> Result<Target, Error> {
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
        [word, ids @ ..] if ids.len() > 1 && word.parse::<ItemType>().is_ok() => {
            let item_type = word.parse::<ItemType>()?;
            let paths = ids.iter().map(|id| path_of_type(context, item_type, id));
            if let Some(paths) = paths.collect::<Option<Vec<_>>>() {
                return Ok(Target::Paths(paths));
            }
            let error = Error::new(Code::InvalidArgument, format!("more than one {item_type} given"));
            Err(error
                .hint(format!("quote the pattern to keep the shell from expanding it: {item_type} 'team/*'")))
        }
        [one] if !Path::new(one).exists() && is_id_or_glob(one) => Ok(Target::Item(None, one.clone())),
        [first, ..] if !Path::new(first).exists() && !first.contains(['/', '.']) => {
            Err(rye_item::id::UnknownItemType(first.clone()).into())
        }
        several => {
            let paths = several.iter().map(|word| file_of_word(context, word));
            Ok(Target::Paths(paths.collect::<Result<_, _>>()?))
        }
    }
}

/// The file of an item of this type; `None` if a shell may have made the word of a pattern.
fn path_of_type(context: &CommandContext, item_type: ItemType, word: &str) -> Option<PathBuf> {
    if sign::is_glob(word) || !is_id_or_glob(word) {
        return None;
    }
    let item = ItemRef::parse(Some(item_type.as_str()), word).ok()?;
    Some(context.engine.locate(&item, None).ok()?.path)
}

/// The file that one of several words names: a path, or the id of an item.
fn file_of_word(context: &CommandContext, word: &str) -> Result<PathBuf, Error> {
    let canonical = ItemRef::split_canonical(word);
    if Path::new(word).exists() || (canonical.is_none() && (sign::is_glob(word) || !is_id_or_glob(word))) {
        return Ok(PathBuf::from(word));
    }
    let (item_type, id) = match canonical {
        Some((item_type, id)) => (Some(item_type), id),
        None => (None, word),
    };
    let item = named_item(context, item_type, id, None)?;
    Ok(context.engine.locate(&item, None)?.path)
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

/// Decides about the items that a pattern names: what the user never signed, or what asks for more than when they did,
/// needs a yes. Without anyone to ask, only what asks for nothing beyond the default is signed unseen.
struct PatternGate<'a> {
    context: &'a CommandContext,
    is_agreed: bool,
    can_ask: bool,
}

impl<'a> PatternGate<'a> {
    fn new(context: &'a CommandContext, arguments: &SignArguments) -> Self {
        let can_ask = context.settings.is_interactive && !context.output.is_json;
        Self { context, is_agreed: arguments.yes, can_ask }
    }
}

impl SignGate for PatternGate<'_> {
    fn admits(&mut self, candidate: &SignCandidate) -> bool {
        let is_plain = candidate.state == ItemSignState::New && candidate.requests.is_empty();
        self.is_agreed || candidate.is_agreed() || (is_plain && !self.can_ask)
    }

    fn confirms(&mut self, held: &[SignCandidate]) -> bool {
        if !self.can_ask {
            return false;
        }
        let output = &self.context.output;
        for candidate in held {
            output.ask(format_args!(
                "{} {} {}",
                paint(NAME, &candidate.item),
                paint(DIM, display_path(&candidate.path)),
                paint(WARNING, candidate.reason())
            ));
            candidate.requests.iter().for_each(|request| output.ask(format_args!("  asks for {request}")));
        }
        output.ask(format_args!("sign {} with your key? [y/N]", counted(held.len(), "item")));
        // Without an answer it is a no.
        confirm().unwrap_or(false)
    }
}

/// Signs what the words of a command name, once. One item that is named by its id or its file is signed as it is; what
/// a pattern or several paths name is up to `gate`, unless it decides about one item too.
pub(super) fn sign_target(
    context: &CommandContext,
    arguments: &SignArguments,
    gate: &mut dyn SignGate,
    progress: sign::SignProgress<'_>,
) -> Result<SignAnswer, Error> {
    let tier = arguments.space.map(WritableSpace::tier);
    let mut report = match parse_target(context, &arguments.what)? {
        Target::Item(item_type, id) if sign::is_glob(&id) => {
            let others = if arguments.take_over { OthersItems::TakeOver } else { OthersItems::Leave };
            let choice = SignChoice { others, gate: Some(gate) };
            let types = item_type.as_ref().map_or(&ItemType::SEARCHABLE[..], std::slice::from_ref);
            sign::sign_glob(&context.engine, types, &id, tier, choice, progress)?
        }
        Target::Item(item_type, id) => {
            let item = named_item(context, item_type, &id, tier)?;
            sign::sign_named(&context.engine, &item, tier, Some(gate))?
        }
        Target::Paths(paths) => sign::sign_paths(&context.engine, &paths, Some(gate), progress)?,
    };
    report.signed.iter_mut().for_each(|signed| refresh_lockfile(context, signed));
    if report.signed.iter().any(|signed| signed.space.tier() == SpaceTier::Project) {
        note_unpublished(context);
    }
    Ok(report)
}

/// `rye sign`
pub fn sign(context: &CommandContext, arguments: &SignArguments) -> CommandResult {
    if arguments.watch {
        return sign_watch::watch(context, arguments);
    }
    let mut bar = context.output.progress("signing");
    let mut progress = |done, total| bar.update(done, total);
    if let Some(item) = single_target(context, arguments)? {
        let mut signed = match item {
            SingleTarget::Item(item) => {
                sign::sign_item(&context.engine, &item, arguments.space.map(WritableSpace::tier))?
            }
            SingleTarget::File(path) => {
                let mut report = sign::sign_paths(&context.engine, &[path], None, &mut progress)?;
                match (report.signed.pop(), report.failed.pop()) {
                    (Some(signed), _) => signed,
                    (None, Some(failed)) => return Err(failed.error.into()),
                    (None, None) => return show_sign_report(context, &report),
                }
            }
        };
        drop(bar);
        refresh_lockfile(context, &mut signed);
        if signed.space.tier() == SpaceTier::Project {
            note_unpublished(context);
        }
        return show_signed_item(context, &signed);
    }
    let mut gate = PatternGate::new(context, arguments);
    let report = sign_target(context, arguments, &mut gate, &mut progress)?;
    drop(bar);
    show_sign_report(context, &report)
}

/// The first round of `--watch`: as `rye sign` would sign.
pub(super) fn sign_first(context: &CommandContext, arguments: &SignArguments) -> Result<SignAnswer, Error> {
    let mut gate = PatternGate::new(context, arguments);
    if single_target(context, arguments)?.is_some() {
        // The user named it.
        gate.is_agreed = true;
    }
    sign_target(context, arguments, &mut gate, &mut |_, _| {})
}

/// One item, named by its id or its file.
enum SingleTarget {
    Item(ItemRef),
    File(PathBuf),
}

fn single_target(context: &CommandContext, arguments: &SignArguments) -> Result<Option<SingleTarget>, Error> {
    Ok(match parse_target(context, &arguments.what)? {
        Target::Item(_, id) if sign::is_glob(&id) => None,
        Target::Item(item_type, id) => {
            let tier = arguments.space.map(WritableSpace::tier);
            Some(SingleTarget::Item(named_item(context, item_type, &id, tier)?))
        }
        Target::Paths(mut paths) if paths.len() == 1 => paths.pop().map(SingleTarget::File),
        Target::Paths(_) => None,
    })
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
    if signed.outdated_lockfile.is_some() {
        context.output.note(format_args!(
            "the team's lockfile still pins the version before; to pin this one: rye lock update {}",
            signed.item_id
        ));
    }
}

/// Says that colleagues refuse what was signed as long as they do not know by whom.
fn note_unpublished(context: &CommandContext) {
    if rye_engine::verbs::keys::is_unpublished_member(&context.engine) {
        context.output.note(
            "your identity is not in this project: colleagues refuse this until you run: rye keys publish",
        );
    }
}

fn show_signed_item(context: &CommandContext, signed: &SignedItem) -> CommandResult {
    for warning in &signed.warnings {
        context.output.warn_diagnostic(&signed.path, warning);
    }
    if context.print_if_json(Some(signed.item_type.as_str()), Some(&signed.item_id), signed)? {
        return Ok(());
    }
    print_signed(context, signed)?;
    Ok(())
}

/// The item, and what it asks for beyond the default: to sign it is to agree to that.
pub(super) fn print_signed(context: &CommandContext, signed: &SignedItem) -> std::io::Result<()> {
    let word = if signed.unchanged { paint(DIM, "unchanged") } else { paint(SUCCESS, "signed") };
    context.output.print(format_args!(
        "{word} {}:{} {}",
        signed.item_type,
        paint(NAME, &signed.item_id),
        paint(DIM, display_path(&signed.path))
    ))?;
    show_signature(context, signed);
    if let Some(replaced) = &signed.replaced {
        context.output.note(format_args!("  in place of the signature of {}", paint(NAME, replaced)));
    }
    signed.asks.iter().try_for_each(|request| context.output.print(format_args!("  asks for {request}")))
}

/// For `--verbose`: the key, and what it signed.
fn show_signature(context: &CommandContext, signed: &SignedItem) {
    let line = format!(
        "{}:{} by key {}, sha256 {}",
        signed.item_type, signed.item_id, signed.fingerprint, signed.hash
    );
    context.output.detail(paint(DIM, line));
}

fn show_sign_report(context: &CommandContext, report: &SignAnswer) -> CommandResult {
    if !context.output.is_json {
        for signed in &report.signed {
            for warning in &signed.warnings {
                context.output.warn_diagnostic(&signed.path, warning);
            }
            if !signed.unchanged {
                print_signed(context, signed)?;
            }
        }
        report.held.iter().for_each(|held| show_held(context, held));
        for failed in &report.failed {
            context.output.print_error(&failed.error, None)?;
        }
        for left in &report.left {
            let signer = paint(NAME, left.fingerprint);
            let reason = match left.is_changed {
                true => format!("changed since {signer} signed it; read it before you sign it by its id"),
                false => format!("{signer} signed it; to sign it yourself, name it or add --take-over"),
            };
            context.output.note(format_args!("{} {}: {reason}", paint(WARNING, "left"), left.item));
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

/// Names an item that was not signed, why, and what signs it.
pub(super) fn show_held(context: &CommandContext, held: &SignCandidate) {
    let output = &context.output;
    output.warn(format_args!("{} is not signed: {}", paint(NAME, &held.item), held.reason()));
    let requests = if held.state == ItemSignState::Changed { &held.added } else { &held.requests };
    requests.iter().for_each(|request| output.alert(format_args!("  asks for {request}")));
    output.alert(format_args!("  read it, then: {}", held.command()));
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
        (None, words) => match parse_target(context, words)? {
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
    let hint = match report.untrusted {
        0 => "read and sign them with rye sign; rye why TYPE ID shows one item",
        _ => {
            "see who signed them, and trust them in this project only: rye join; rye why TYPE ID shows one item"
        }
    };
    Err(error_with_data(code, message, hint, data))
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
