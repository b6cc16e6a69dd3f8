//! `rye add`, `rye remove`, `rye sync`, `rye outdated` and `rye bundle upgrade`: everything is worked out and shown first,
//! then the user is asked if there is something to agree to.

use std::sync::Mutex;

use lillux::{CancelToken, Fingerprint};
use rye_engine::verbs::install::InstallPreview;
use rye_engine::verbs::sync::{
    self, AddRequest, FetchContext, OutdatedBundle, PreparedSync, SourceFields, SyncOptions, SyncResponse,
};
use rye_engine::{Code, Error};
use rye_item::BundleId;
use rye_item::text::{counted, one_line, shell_word};
use serde_json::Value;

use super::install::{MAX_ROWS, print_install, print_plan, print_uninstall, update_progress};
use super::{CommandContext, CommandError, CommandResult, confirm, declined};
use crate::arguments::{
    AddArguments, ConflictArguments, OutdatedArguments, RemoveArguments, SyncArguments, SyncInstallArguments,
    UpgradeArguments,
};
use crate::output::{DIM, NAME, SUCCESS, WARNING, paint};
use crate::settings;

/// `rye add`
pub fn add(context: &CommandContext, arguments: &AddArguments) -> CommandResult {
    let signer = arguments.signer.as_deref().map(parse_fingerprint).transpose()?;
    let request = AddRequest {
        source: &arguments.source,
        fields: SourceFields {
            sha256: arguments.sha256.clone(),
            rev: arguments.rev.clone(),
            path: arguments.path.clone(),
        },
        folder: &context.settings.working_dir,
        range: arguments.version.as_deref(),
        signer,
    };
    let prepared = with_fetch(context, &mut |fetch| {
        sync::prepare_add(&context.engine, &request, sync_options(&arguments.install, false), fetch)
    })?;
    let command = |fingerprint: Option<Fingerprint>| {
        let mut command = format!("rye add {}", shell_word(&arguments.source));
        for (flag, value) in [
            ("--version", &arguments.version),
            ("--sha256", &arguments.sha256),
            ("--rev", &arguments.rev),
            ("--path", &arguments.path),
        ] {
            if let Some(value) = value {
                command.push_str(&format!(" {flag} {}", shell_word(value)));
            }
        }
        if let Some(fingerprint) = fingerprint.or(signer) {
            command.push_str(&format!(" --signer {fingerprint}"));
        }
        command + &install_flags(&arguments.install) + " --yes"
    };
    finish(context, prepared, &arguments.install, &command)
}

/// Adds a bundle of a git repository at a commit, for another command that shows what was done.
pub(super) fn add_commit(
    context: &CommandContext,
    source: &str,
    fields: &SourceFields,
    yes: bool,
) -> Result<SyncResponse, CommandError> {
    let install = SyncInstallArguments {
        yes,
        dry_run: false,
        force: false,
        conflict: ConflictArguments { theirs: false, ours: false },
        allow_downgrade: false,
    };
    let request = AddRequest {
        source,
        fields: fields.clone(),
        folder: &context.settings.working_dir,
        range: None,
        signer: None,
    };
    let prepared = with_fetch(context, &mut |fetch| {
        sync::prepare_add(&context.engine, &request, sync_options(&install, false), fetch)
    })?;
    let command = |fingerprint: Option<Fingerprint>| {
        let signer = fingerprint.map(|fingerprint| format!(" --signer {fingerprint}")).unwrap_or_default();
        format!("{}{signer} --yes", add_command(source, fields))
    };
    require_consent(context, &prepared, &install, &command)?;
    let mut done = sync::apply(&context.engine, prepared, &|_, _| {})?;
    if !done.installed.is_empty() {
        done.refresh_lockfiles(&context.settings.engine()?);
    }
    Ok(done)
}

/// The command that adds a source.
pub(super) fn add_command(source: &str, fields: &SourceFields) -> String {
    let mut command = format!("rye add {}", shell_word(source));
    for (flag, value) in [("--rev", &fields.rev), ("--path", &fields.path)] {
        if let Some(value) = value {
            command.push_str(&format!(" {flag} {}", shell_word(value)));
        }
    }
    command
}

/// `rye remove`: naming the bundle is the consent.
pub fn remove(context: &CommandContext, arguments: &RemoveArguments) -> CommandResult {
    let id = parse_bundle_id(&arguments.id)?;
    let prepared = sync::prepare_remove(&context.engine, &id, arguments.force)?;
    let done = sync::apply(&context.engine, prepared, &|_, _| {})?;
    if context.print_if_json(Some("bundle"), Some(id.as_str()), &done)? {
        return Ok(());
    }
    for removed in &done.removed {
        print_uninstall(context, removed)?;
    }
    context.output.print(format_args!(
        "{} {} from .ai/bundles.toml",
        paint(SUCCESS, "removed"),
        paint(NAME, &id)
    ))?;
    Ok(())
}

/// The id of a bundle; for the name of an item, how that is removed.
pub(super) fn parse_bundle_id(text: &str) -> Result<BundleId, Error> {
    BundleId::new(text).map_err(|error| {
        let mut error = Error::from(error);
        if text.contains('/') {
            let id = shell_word(&one_line(text));
            error.hints.insert(0, format!("an item is removed by removing its file: rye why {id} names it"));
        }
        error
    })
}

/// `rye sync`
pub fn sync(context: &CommandContext, arguments: &SyncArguments) -> CommandResult {
    let options = sync_options(&arguments.install, arguments.locked);
    let prepared = with_fetch(context, &mut |fetch| sync::prepare_sync(&context.engine, options, fetch))?;
    let locked = if arguments.locked { " --locked" } else { "" };
    let command = |_| format!("rye sync{locked}{} --yes", install_flags(&arguments.install));
    finish(context, prepared, &arguments.install, &command)
}

/// `rye bundle upgrade`
pub fn upgrade(context: &CommandContext, arguments: &UpgradeArguments) -> CommandResult {
    let id = arguments.id.as_deref().map(BundleId::new).transpose().map_err(Error::from)?;
    let options = sync_options(&arguments.install, false);
    let prepared = with_fetch(context, &mut |fetch| {
        sync::prepare_upgrade(&context.engine, id.as_ref(), options, fetch)
    })?;
    let command = |_| {
        let id = id.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
        format!("rye bundle upgrade{id}{} --yes", install_flags(&arguments.install))
    };
    finish(context, prepared, &arguments.install, &command)
}

/// `rye outdated`
pub fn outdated(context: &CommandContext, arguments: &OutdatedArguments) -> CommandResult {
    let id = arguments.id.as_deref().map(BundleId::new).transpose().map_err(Error::from)?;
    let report = with_fetch(context, &mut |fetch| sync::outdated(&context.engine, id.as_ref(), fetch))?;
    if !context.output.is_json {
        let mut table = context.output.table(&["bundle", "installed", "wanted", "latest", "source"]);
        let cell = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        for row in &report.bundles {
            let cells = [cell(&row.installed), cell(&row.wanted), cell(&row.latest)];
            let [installed, wanted, latest] = cells;
            table.add_row([row.bundle_id.clone(), installed, wanted, latest, one_line(&row.source)]);
        }
        match report.bundles.is_empty() {
            true => context.output.print("the manifest asks for no bundles; add one: rye add SOURCE")?,
            false => context.output.print(table.trim_fmt())?,
        }
        print_outdated_notes(context, &report.bundles);
    }
    match report.failure() {
        None => {
            context.print_if_json(None, None, &report)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(&report).map_err(std::io::Error::from)?;
            Err(CommandError::Engine(error.clone(), Some(Box::new(data))))
        }
    }
}

fn print_outdated_notes(context: &CommandContext, rows: &[OutdatedBundle]) {
    let has_problem = rows.iter().any(|row| row.problem.is_some());
    if rows.iter().any(|row| row.wanted.is_some() && row.wanted != row.installed) {
        context.output.note("move to the wanted versions: rye bundle upgrade");
    } else if rows.iter().any(|row| row.problem.is_none() && row.is_outdated()) {
        context.output.note("the latest versions are outside the ranges in .ai/bundles.toml");
    } else if !rows.is_empty() && !has_problem {
        context.output.note("everything is up to date");
    }
}

fn parse_fingerprint(text: &str) -> Result<Fingerprint, Error> {
    text.parse().map_err(|_| {
        Error::new(Code::InvalidArgument, format!("invalid fingerprint `{}`", one_line(text)))
            .hint("a fingerprint is 16 hex characters, such as 5423d3b7c06f7594")
    })
}

fn sync_options(arguments: &SyncInstallArguments, is_locked: bool) -> SyncOptions {
    SyncOptions {
        is_locked,
        theirs: arguments.conflict.theirs,
        force: arguments.force,
        allows_downgrade: arguments.allow_downgrade,
    }
}

fn install_flags(arguments: &SyncInstallArguments) -> String {
    let flags = [
        (arguments.force, " --force"),
        (arguments.conflict.theirs, " --theirs"),
        (arguments.allow_downgrade, " --allow-downgrade"),
    ];
    flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| *flag).collect()
}

/// Fetches with bars for bytes and files; Ctrl-C ends it.
pub(super) fn with_fetch<T>(
    context: &CommandContext,
    action: &mut dyn FnMut(&mut FetchContext<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let cancel = CancelToken::new()?;
    settings::cancel_on_signals(&cancel);
    let mut bytes = context.output.byte_progress("fetching");
    let files = Mutex::new(context.output.progress("verifying"));
    action(&mut FetchContext {
        cancel: &cancel,
        on_bytes: &mut |done, total| bytes.update_bytes(done, total),
        on_files: &|done, total| update_progress(&files, done, total),
    })
}

/// Shows what would change, asks where that is needed, and changes it.
fn finish(
    context: &CommandContext,
    prepared: PreparedSync,
    arguments: &SyncInstallArguments,
    command: &dyn Fn(Option<Fingerprint>) -> String,
) -> CommandResult {
    let output = &context.output;
    if arguments.dry_run {
        if output.is_json {
            let data = plan_value(&prepared)?;
            output.print_json(&rye_engine::success_response(None, None, data))?;
            return Ok(());
        }
        for bundle in &prepared.installs {
            print_plan(&bundle.install.preview, usize::MAX, &mut |line| output.print(line))?;
        }
        for id in &prepared.removals {
            output.print(format_args!("{} {id}", paint(WARNING, "remove")))?;
        }
        output.note(if prepared.is_noop() { "nothing to do" } else { "dry run: nothing was changed" });
        return Ok(());
    }
    if !output.is_json {
        for bundle in &prepared.installs {
            print_plan(&bundle.install.preview, MAX_ROWS, &mut |line| {
                output.note(line);
                Ok(())
            })?;
        }
    }
    require_consent(context, &prepared, arguments, command)?;
    let bar = Mutex::new(output.progress("installing"));
    let mut done = sync::apply(&context.engine, prepared, &|done, total| update_progress(&bar, done, total))?;
    drop(bar);
    if !done.installed.is_empty() {
        // The signers count only for an engine that has seen what is installed now.
        done.refresh_lockfiles(&context.settings.engine()?);
    }
    if context.print_if_json(None, None, &done)? {
        return Ok(());
    }
    print_response(context, &done)
}

/// What would change, for programs.
fn plan_value(prepared: &PreparedSync) -> Result<Value, CommandError> {
    Ok(serde_json::to_value(prepared.preview()).map_err(std::io::Error::from)?)
}

/// Gets the user's word for what the lock did not name, or refuses. What it names, of a signer the user trusts, was agreed
/// to when the project was joined.
fn require_consent(
    context: &CommandContext,
    prepared: &PreparedSync,
    arguments: &SyncInstallArguments,
    command: &dyn Fn(Option<Fingerprint>) -> String,
) -> CommandResult {
    let output = &context.output;
    let is_interactive = context.settings.is_interactive && !output.is_json;
    let refuse = |error: Error| -> CommandResult {
        Err(CommandError::Engine(error, Some(Box::new(plan_value(prepared)?))))
    };
    for bundle in &prepared.installs {
        let plan = &bundle.install.preview;
        let signer = &plan.signer;
        if !signer.needs_trust {
            continue;
        }
        let unknown_signer = || {
            let message = format!(
                "`{}` is signed by {}, which you do not trust yet",
                plan.bundle_id, signer.fingerprint
            );
            Error::new(Code::UnknownSigner, message)
                .detail("fingerprint", signer.fingerprint.as_str())
                .hint("compare the fingerprint with what its maker publishes elsewhere")
                .hint(format!("if it is theirs: {}", trust_command(bundle, signer.fingerprint, command)))
        };
        if !is_interactive {
            return refuse(unknown_signer());
        }
        output.ask(format_args!(
            "trust {} for the bundle {} only? Its owner's name is given as {}. Compare the fingerprint first. [y/N]",
            paint(NAME, signer.fingerprint),
            plan.bundle_id,
            rye_item::text::quote_name(&signer.owner)
        ));
        if !confirm()? {
            return Err(declined(output, Code::UnknownSigner));
        }
    }
    // What takes the place of another item, or asks for more than a runtime, is seen before it is installed.
    let is_plain = |plan: &InstallPreview| {
        plan.hides.is_empty()
            && plan.capabilities_added.iter().all(|asked| asked.starts_with("executor rye/"))
    };
    let is_agreed = prepared
        .installs
        .iter()
        .all(|bundle| bundle.install.is_noop() || (bundle.is_locked && is_plain(&bundle.install.preview)));
    if arguments.yes || is_agreed {
        return Ok(());
    }
    let not_confirmed = || {
        Error::new(Code::InstallConsent, "nothing was changed: the plan was not confirmed")
            .hint(format!("if you agree to the plan: {}", command(None)))
            .hint("--dry-run shows every file")
    };
    if !is_interactive {
        return refuse(not_confirmed());
    }
    output.ask("install it? [y/N]");
    if confirm()? { Ok(()) } else { Err(declined(output, Code::InstallConsent)) }
}

/// The command that trusts the signer of a bundle: adding it again with the signer named.
fn trust_command(
    bundle: &sync::PreparedBundle,
    signer: Fingerprint,
    command: &dyn Fn(Option<Fingerprint>) -> String,
) -> String {
    let own = command(Some(signer));
    match own.starts_with("rye add") {
        true => own,
        false => format!("rye add {} --signer {signer} --yes", bundle.add_words()),
    }
}

fn print_response(context: &CommandContext, done: &SyncResponse) -> CommandResult {
    for removed in &done.removed {
        print_uninstall(context, removed)?;
    }
    for installed in &done.installed {
        print_install(context, installed)?;
    }
    for bundle in &done.unchanged {
        for path in &bundle.kept {
            context.output.note(format_args!("{} {path}: it was changed locally", paint(WARNING, "kept")));
        }
    }
    for (is_changed, name) in
        [(done.manifest_changed, ".ai/bundles.toml"), (done.lock_changed, ".ai/bundles.lock")]
    {
        if is_changed {
            context.output.note(format_args!("{} {name}", paint(DIM, "wrote")));
        }
    }
    if done.status == "unchanged" && done.unchanged.is_empty() {
        context.output.print("the project asks for no bundles; add one: rye add SOURCE")?;
    } else if done.installed.is_empty() && done.removed.is_empty() {
        let count = counted(done.unchanged.len(), "bundle");
        context.output.print(format_args!("{} {count} up to date", paint(SUCCESS, "✓")))?;
    }
    Ok(())
}
