//! `install`, `uninstall` and `bundle rollback`: the plan is shown first, then the user is asked.

use std::path::Path;
use std::sync::Mutex;

use rye_engine::verbs::bundles::pluralize;
use rye_engine::verbs::install::{
    self, ConflictPreference, FileAction, InstallOptions, InstallPreview, InstallResponse, InstallSource,
    PlanRow, PreparedInstall, UninstallResponse,
};
use rye_engine::verbs::sync;
use rye_engine::{Code, Error};
use rye_item::BundleId;
use rye_item::space::SpaceTier;
use rye_item::text::{quote_description, quote_name};

use super::given_command::given_command_with;
use super::project_bundles::parse_bundle_id;
use super::{CommandContext, CommandError, CommandResult, confirm, declined, registry};
use crate::arguments::{
    ConflictArguments, InstallArguments, RollbackArguments, UninstallArguments, WritableSpace,
};
use crate::output::{DIM, HEADING, NAME, ProgressReporter, SUCCESS, WARNING, display_path, paint};

/// How many files are listed before the question; `--dry-run` lists all.
pub(super) const MAX_ROWS: usize = 30;

/// `rye install`
pub fn install(context: &CommandContext, arguments: &InstallArguments) -> CommandResult {
    let trust = arguments.trust.as_deref().map(|text| {
        text.parse().map_err(|_| {
            Error::new(
                Code::InvalidArgument,
                format!("invalid fingerprint `{}`", rye_item::text::one_line(text)),
            )
            .hint("a fingerprint is 16 hex characters, such as 5423d3b7c06f7594")
        })
    });
    let options = InstallOptions {
        space: arguments.space.map_or(SpaceTier::Project, WritableSpace::tier),
        force: arguments.force,
        preference: conflict_preference(&arguments.conflict),
        trust: trust.transpose()?,
        allows_downgrade: arguments.allow_downgrade,
    };
    let prepared = prepare(context, arguments, options)?;
    if arguments.dry_run {
        if !context.print_if_json(Some("bundle"), Some(&prepared.preview.bundle_id), &prepared.preview)? {
            print_plan(&prepared.preview, usize::MAX, &mut |line| context.output.print(line))?;
            context.output.note("dry run: nothing was changed");
        }
        return Ok(());
    }
    if !context.output.is_json {
        print_plan(&prepared.preview, MAX_ROWS, &mut |line| {
            context.output.note(line);
            Ok(())
        })?;
    }
    require_consent(context, &prepared, arguments)?;
    apply(context, &prepared)
}

/// Brings the bundle from where it is and works out what would change.
fn prepare(
    context: &CommandContext,
    arguments: &InstallArguments,
    options: InstallOptions,
) -> Result<PreparedInstall, CommandError> {
    let bar = Mutex::new(context.output.progress("verifying"));
    let progress = |done, total| update_progress(&bar, done, total);
    if registry::is_reference(&arguments.source) {
        return registry::prepare(context, &arguments.source, arguments.plain_http, options, &progress);
    }
    let source = InstallSource {
        path: context.settings.working_dir.join(&arguments.source),
        name: arguments.source.clone(),
        digest: None,
    };
    Ok(install::prepare(&context.engine, source, options, &progress)?)
}

/// `rye bundle rollback`: naming the bundle is the consent.
pub fn rollback(context: &CommandContext, arguments: &RollbackArguments) -> CommandResult {
    let id = BundleId::new(arguments.id.as_str()).map_err(Error::from)?;
    let bar = Mutex::new(context.output.progress("verifying"));
    let prepared = install::prepare_rollback(
        &context.engine,
        &id,
        arguments.space.map(WritableSpace::tier),
        conflict_preference(&arguments.conflict),
        &|done, total| update_progress(&bar, done, total),
    )?;
    drop(bar);
    if !context.output.is_json {
        print_plan(&prepared.preview, MAX_ROWS, &mut |line| {
            context.output.note(line);
            Ok(())
        })?;
    }
    apply(context, &prepared)
}

fn apply(context: &CommandContext, prepared: &PreparedInstall) -> CommandResult {
    let bar = Mutex::new(context.output.progress("installing"));
    let mut done =
        install::install(&context.engine, prepared, &|done, total| update_progress(&bar, done, total))?;
    drop(bar);
    // The signer counts only for an engine that has seen what is installed now.
    done.refresh_lockfiles(&context.settings.engine()?);
    if context.print_if_json(Some("bundle"), Some(&done.bundle_id), &done)? {
        return Ok(());
    }
    print_install(context, &done)?;
    if done.space == SpaceTier::Project && sync::is_managed(&context.engine, &done.bundle_id) {
        context.output.warn(format_args!(
            "`{}` is in .ai/bundles.toml, which does not know of this: rye sync brings back what its lock names; to \
             change that, install it with rye add",
            done.bundle_id
        ));
    }
    Ok(())
}

/// `rye uninstall`: naming the bundle is the consent.
pub fn uninstall(context: &CommandContext, arguments: &UninstallArguments) -> CommandResult {
    let id = parse_bundle_id(&arguments.id)?;
    let space = arguments.space.map(WritableSpace::tier);
    let done = install::uninstall(&context.engine, &id, space, arguments.force, &|_, _| {})?;
    if context.print_if_json(Some("bundle"), Some(&done.bundle_id), &done)? {
        return Ok(());
    }
    print_uninstall(context, &done)
}

fn conflict_preference(conflict: &ConflictArguments) -> ConflictPreference {
    if conflict.theirs { ConflictPreference::TakeBundle } else { ConflictPreference::KeepLocal }
}

pub(super) fn update_progress(bar: &Mutex<ProgressReporter>, done: usize, total: usize) {
    // A bar that another thread broke is not drawn any more.
    if let Ok(mut bar) = bar.lock() {
        bar.update(done, total);
    }
}

/// Gets the user's word, or refuses: for an unknown signer by name, for the rest by a yes.
fn require_consent(
    context: &CommandContext,
    prepared: &PreparedInstall,
    arguments: &InstallArguments,
) -> CommandResult {
    let (plan, output) = (&prepared.preview, &context.output);
    let signer = &plan.signer;
    let refuse = |error: Error| -> CommandResult {
        let data = serde_json::to_value(plan).map_err(std::io::Error::from)?;
        Err(CommandError::Engine(error, Some(Box::new(data))))
    };
    let is_interactive = context.settings.is_interactive && !output.is_json;
    if signer.needs_trust {
        let unknown_signer = || {
            Error::new(
                Code::UnknownSigner,
                format!(
                    "`{}` is signed by {}, which you do not trust yet",
                    plan.bundle_id, signer.fingerprint
                ),
            )
            .detail("fingerprint", signer.fingerprint.as_str())
            .hint("compare the fingerprint with what its maker publishes elsewhere")
            .hint(format!("if it is theirs: {}", consent_command(arguments, plan)))
        };
        if !is_interactive {
            return refuse(unknown_signer());
        }
        output.note(format_args!(
            "trust {} for this bundle only? Its owner's name is given as {}. Compare the fingerprint first. [y/N]",
            paint(NAME, signer.fingerprint),
            quote_name(&signer.owner)
        ));
        if !confirm()? {
            return Err(declined(output, Code::UnknownSigner));
        }
    }
    if arguments.yes || prepared.is_noop() {
        return Ok(());
    }
    let not_confirmed = || {
        Error::new(
            Code::InstallConsent,
            format!("`{}` was not installed: the installation was not confirmed", plan.bundle_id),
        )
        .hint(format!("if you agree to the plan: {}", consent_command(arguments, plan)))
        .hint("the same command with --dry-run shows every file")
    };
    if !is_interactive {
        return refuse(not_confirmed());
    }
    output.note("install it? [y/N]");
    if confirm()? { Ok(()) } else { Err(declined(output, Code::InstallConsent)) }
}

/// The command that agrees to the plan.
fn consent_command(arguments: &InstallArguments, plan: &InstallPreview) -> String {
    let names_signer = arguments.trust.is_none() && !plan.signer.trusted && !plan.signer.approved;
    match names_signer {
        true => given_command_with(&["--trust", plan.signer.fingerprint.as_str(), "--yes"]),
        false => given_command_with(&["--yes"]),
    }
}

/// Draws a plan, line by line.
pub(super) fn print_plan(
    plan: &InstallPreview,
    max_rows: usize,
    print: &mut dyn FnMut(String) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let version = match &plan.previous_version {
        Some(previous) if *previous != plan.version => format!("{previous} → {}", plan.version),
        Some(_) | None => plan.version.clone(),
    };
    print(format!(
        "{} {version} into {} space{}",
        paint(HEADING, &plan.bundle_id),
        plan.space,
        if plan.description.is_empty() {
            String::new()
        } else {
            format!(": {}", quote_description(&plan.description))
        }
    ))?;
    let signer = &plan.signer;
    let trust = match (signer.trusted, signer.approved) {
        (true, _) => paint(SUCCESS, "you trust this key"),
        (false, true) => paint(SUCCESS, "you approved it for this bundle"),
        (false, false) => paint(WARNING, "you do not know this key"),
    };
    let owner = quote_name(&signer.owner);
    print(format!("signed by {}: {trust}, owner {owner}", paint(NAME, signer.fingerprint)))?;
    let items: Vec<String> = plan.items.iter().map(|(kind, count)| pluralize(kind, *count)).collect();
    print(format!("holds {}", if items.is_empty() { "nothing".to_owned() } else { items.join(", ") }))?;
    let rows: Vec<&PlanRow> = plan.files.iter().filter(|row| row.action != FileAction::Unchanged).collect();
    for row in rows.iter().take(max_rows) {
        let word = match row.action {
            FileAction::Add => paint(SUCCESS, "add      "),
            FileAction::Replace => paint(SUCCESS, "replace  "),
            FileAction::Unchanged => paint(DIM, "unchanged"),
            FileAction::Remove => paint(WARNING, "remove   "),
            FileAction::Keep => paint(WARNING, "keep     "),
            FileAction::Overwrite => paint(WARNING, "overwrite"),
            FileAction::Discard => paint(WARNING, "discard  "),
        };
        let note = match row.action {
            FileAction::Keep => " (changed here)",
            FileAction::Overwrite | FileAction::Discard => " (a backup is kept)",
            FileAction::Add | FileAction::Replace | FileAction::Unchanged | FileAction::Remove => "",
        };
        print(format!("  {word} {}{}", row.path, paint(DIM, note)))?;
    }
    if rows.len() > max_rows {
        print(format!("  … and {} more; use --dry-run to show all", rows.len() - max_rows))?;
    }
    if plan.counts.unchanged > 0 {
        print(format!("  {} {}", paint(DIM, "unchanged"), pluralize("file", plan.counts.unchanged)))?;
    }
    for added in &plan.capabilities_added {
        print(format!("{} asks for {added}", paint(WARNING, "+")))?;
    }
    for removed in &plan.capabilities_removed {
        print(format!("{} no longer asks for {removed}", paint(DIM, "-")))?;
    }
    for hidden in &plan.hides {
        print(format!("{} hides {hidden}", paint(WARNING, "!")))?;
    }
    for hidden in &plan.hidden_by {
        print(format!("{} is hidden by {hidden}", paint(WARNING, "!")))?;
    }
    for warning in &plan.warnings {
        print(format!("{} {warning}", paint(WARNING, "!")))?;
    }
    Ok(())
}

pub(super) fn print_install(context: &CommandContext, done: &InstallResponse) -> CommandResult {
    let from = match &done.previous_version {
        Some(previous) if *previous != done.version => format!(" (was {previous})"),
        Some(_) | None => String::new(),
    };
    context.output.print(format_args!(
        "{} {} {}{from} in {} space",
        paint(SUCCESS, done.status),
        paint(NAME, &done.bundle_id),
        done.version,
        done.space
    ))?;
    for lockfile in &done.lockfiles {
        let path = paint(DIM, display_path(Path::new(lockfile)));
        context.output.note(format_args!("pinned as installed: {path}"));
    }
    print_leftovers(context, &done.kept, done.backups.as_deref());
    Ok(())
}

pub(super) fn print_uninstall(context: &CommandContext, done: &UninstallResponse) -> CommandResult {
    context.output.print(format_args!(
        "{} {} {} from {} space: {} removed",
        paint(SUCCESS, done.status),
        paint(NAME, &done.bundle_id),
        done.version,
        done.space,
        pluralize("file", done.files_removed)
    ))?;
    for lockfile in &done.lockfiles {
        let path = paint(DIM, display_path(Path::new(lockfile)));
        context.output.note(format_args!("{} {path}", paint(WARNING, "removed your lockfile")));
    }
    for lockfile in &done.lockfiles_left {
        let path = paint(DIM, display_path(Path::new(lockfile)));
        context.output.note(format_args!(
            "{} {path}: it is the team's; remove it with: rye lock remove ID --scope project",
            paint(WARNING, "kept")
        ));
    }
    print_leftovers(context, &done.kept, done.backups.as_deref());
    for path in &done.found {
        context
            .output
            .note(format_args!("{} {path}: it was there before the bundle", paint(WARNING, "kept")));
    }
    for signer in &done.approved_signers {
        context.output.note(format_args!(
            "{} {} is still approved for the bundle {}; withdraw that: {}",
            paint(WARNING, "signer"),
            paint(NAME, signer.fingerprint),
            done.bundle_id,
            signer.revoke
        ));
        if signer.trusted {
            context.output.note(format_args!(
                "  and you trust it everywhere; end that: rye keys revoke {}",
                signer.fingerprint
            ));
        }
    }
    Ok(())
}

fn print_leftovers(context: &CommandContext, kept: &[impl std::fmt::Display], backups: Option<&str>) {
    for path in kept {
        context.output.note(format_args!("{} {path}: it was changed locally", paint(WARNING, "kept")));
    }
    if let Some(backups) = backups {
        context.output.note(format_args!("backups are in {}", paint(DIM, display_path(Path::new(backups)))));
    }
}
