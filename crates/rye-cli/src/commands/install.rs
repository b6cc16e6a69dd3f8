//! `install`, `uninstall` and `bundle rollback`: the plan is shown first, then the user is asked.

use std::path::Path;
use std::sync::Mutex;

use rye_engine::verbs::bundles::plural;
use rye_engine::verbs::install::{
    self, Action, Installed, Options, Preference, Prepared, Row, Shown, Source, Uninstalled,
};
use rye_engine::{Code, Error};
use rye_item::BundleId;
use rye_item::space::Tier;

use super::{Context, Failure, Outcome, registry, says_yes};
use crate::arguments::{InstallArguments, RollbackArguments, Sides, UninstallArguments, WritableSpace};
use crate::output::{CAUTION, DIM, GOOD, NAME, Progress, STRONG, paint, shown_path};

/// How many files are listed before the question; `--dry-run` lists all.
const MOST_ROWS: usize = 30;

/// `rye install`
pub fn install(context: &Context, arguments: &InstallArguments) -> Outcome {
    let trust = arguments.trust.as_deref().map(|text| {
        text.parse().map_err(|_| {
            Error::new(
                Code::InvalidArgument,
                format!("`{}` is no fingerprint", rye_item::text::one_line(text)),
            )
            .hint("a fingerprint is 16 hex characters, such as 5423d3b7c06f7594")
        })
    });
    let options = Options {
        space: arguments.space.map_or(Tier::Project, WritableSpace::tier),
        force: arguments.force,
        preference: preference(&arguments.sides),
        trust: trust.transpose()?,
        allows_downgrade: arguments.allow_downgrade,
    };
    let prepared = prepare(context, arguments, options)?;
    if arguments.dry_run {
        if !context.answered(Some("bundle"), Some(&prepared.shown.bundle_id), &prepared.shown)? {
            draw(&prepared.shown, usize::MAX, &mut |line| context.output.result(line))?;
            context.output.note("nothing was changed: --dry-run");
        }
        return Ok(());
    }
    if !context.output.is_json {
        draw(&prepared.shown, MOST_ROWS, &mut |line| {
            context.output.note(line);
            Ok(())
        })?;
    }
    agree(context, &prepared, arguments)?;
    finish(context, &prepared)
}

/// Brings the bundle from where it is and works out what would change.
fn prepare(context: &Context, arguments: &InstallArguments, options: Options) -> Result<Prepared, Failure> {
    let bar = Mutex::new(context.output.progress("verifying"));
    let progress = |done, total| update(&bar, done, total);
    if registry::is_reference(&arguments.source) {
        return registry::prepare(context, &arguments.source, arguments.plain_http, options, &progress);
    }
    let source = Source {
        path: context.settings.folder.join(&arguments.source),
        name: arguments.source.clone(),
        digest: None,
    };
    Ok(install::prepare(&context.engine, source, options, &progress)?)
}

/// `rye bundle rollback`: naming the bundle is the consent.
pub fn rollback(context: &Context, arguments: &RollbackArguments) -> Outcome {
    let id = BundleId::new(arguments.id.as_str()).map_err(Error::from)?;
    let bar = Mutex::new(context.output.progress("verifying"));
    let prepared = install::prepare_rollback(
        &context.engine,
        &id,
        arguments.space.map(WritableSpace::tier),
        preference(&arguments.sides),
        &|done, total| update(&bar, done, total),
    )?;
    drop(bar);
    if !context.output.is_json {
        draw(&prepared.shown, MOST_ROWS, &mut |line| {
            context.output.note(line);
            Ok(())
        })?;
    }
    finish(context, &prepared)
}

fn finish(context: &Context, prepared: &Prepared) -> Outcome {
    let bar = Mutex::new(context.output.progress("installing"));
    let mut done = install::install(&context.engine, prepared, &|done, total| update(&bar, done, total))?;
    drop(bar);
    // The signer counts only for an engine that has seen what is installed now.
    done.refresh_lockfiles(&context.settings.engine()?);
    if context.answered(Some("bundle"), Some(&done.bundle_id), &done)? {
        return Ok(());
    }
    draw_installed(context, &done)
}

/// `rye uninstall`: naming the bundle is the consent.
pub fn uninstall(context: &Context, arguments: &UninstallArguments) -> Outcome {
    let id = BundleId::new(arguments.id.as_str()).map_err(Error::from)?;
    let space = arguments.space.map(WritableSpace::tier);
    let done = install::uninstall(&context.engine, &id, space, arguments.force, &|_, _| {})?;
    if context.answered(Some("bundle"), Some(&done.bundle_id), &done)? {
        return Ok(());
    }
    draw_uninstalled(context, &done)
}

fn preference(sides: &Sides) -> Preference {
    if sides.theirs { Preference::Theirs } else { Preference::Ours }
}

fn update(bar: &Mutex<Progress>, done: usize, total: usize) {
    // A bar that another thread broke is not drawn any more.
    if let Ok(mut bar) = bar.lock() {
        bar.update(done, total);
    }
}

/// Gets the user's word, or refuses: for an unknown signer by name, for the rest by a yes.
fn agree(context: &Context, prepared: &Prepared, arguments: &InstallArguments) -> Outcome {
    let (shown, output) = (&prepared.shown, &context.output);
    let signer = &shown.signer;
    let refused = |error: Error| -> Outcome {
        let data = serde_json::to_value(shown).map_err(std::io::Error::from)?;
        Err(Failure::Verb(error, Some(Box::new(data))))
    };
    let is_interactive = context.settings.is_interactive && !output.is_json;
    if signer.needs_trust {
        let unknown = || {
            Error::new(
                Code::UnknownSigner,
                format!(
                    "`{}` is signed by {}, whom you do not trust yet",
                    shown.bundle_id, signer.fingerprint
                ),
            )
            .detail("fingerprint", signer.fingerprint.as_str())
            .hint("compare the fingerprint with what its maker publishes elsewhere")
            .hint(format!("if it is theirs: {}", agreeing(arguments, shown)))
        };
        if !is_interactive {
            return refused(unknown());
        }
        output.note(format_args!(
            "let {} ({}) vouch for this bundle, and for nothing else? Compare the fingerprint first. [y/N]",
            paint(NAME, signer.fingerprint),
            signer.owner
        ));
        if !says_yes()? {
            return refused(unknown());
        }
    }
    if arguments.yes || prepared.changes_nothing() {
        return Ok(());
    }
    let consent = || {
        Error::new(Code::InstallConsent, format!("`{}` was not installed: nobody agreed", shown.bundle_id))
            .hint(format!("if you agree to the plan: {}", agreeing(arguments, shown)))
            .hint("rye install … --dry-run shows every file")
    };
    if !is_interactive {
        return refused(consent());
    }
    output.note("install it? [y/N]");
    if says_yes()? { Ok(()) } else { refused(consent()) }
}

/// The command that agrees to the plan.
fn agreeing(arguments: &InstallArguments, shown: &Shown) -> String {
    let source = rye_item::text::shell_word(&arguments.source);
    let mut command = format!("rye install {source}");
    if arguments.space == Some(WritableSpace::User) {
        command.push_str(" --space user");
    }
    if !shown.signer.trusted && !shown.signer.approved {
        command.push_str(&format!(" --trust {}", shown.signer.fingerprint));
    }
    for (is_given, flag) in [
        (arguments.force, " --force"),
        (arguments.sides.theirs, " --theirs"),
        (arguments.allow_downgrade, " --allow-downgrade"),
    ] {
        command.push_str(if is_given { flag } else { "" });
    }
    command + " --yes"
}

/// Draws a plan, line by line.
fn draw(
    shown: &Shown,
    most: usize,
    line: &mut dyn FnMut(String) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let version = match &shown.previous_version {
        Some(previous) if *previous != shown.version => format!("{previous} → {}", shown.version),
        Some(_) | None => shown.version.clone(),
    };
    line(format!(
        "{} {version} into {} space{}",
        paint(STRONG, &shown.bundle_id),
        shown.space,
        if shown.description.is_empty() { String::new() } else { format!(": {}", shown.description) }
    ))?;
    let signer = &shown.signer;
    let standing = match (signer.trusted, signer.approved) {
        (true, _) => paint(GOOD, "you trust this key"),
        (false, true) => paint(GOOD, "you approved it for this bundle"),
        (false, false) => paint(CAUTION, "you do not know this key"),
    };
    line(format!("signed by {} {}: {standing}", signer.owner, paint(NAME, signer.fingerprint)))?;
    let items: Vec<String> = shown.items.iter().map(|(kind, count)| plural(kind, *count)).collect();
    line(format!("holds {}", if items.is_empty() { "nothing".to_owned() } else { items.join(", ") }))?;
    let rows: Vec<&Row> = shown.files.iter().filter(|row| row.action != Action::Unchanged).collect();
    for row in rows.iter().take(most) {
        let word = match row.action {
            Action::Add => paint(GOOD, "add      "),
            Action::Replace => paint(GOOD, "replace  "),
            Action::Unchanged => paint(DIM, "unchanged"),
            Action::Remove => paint(CAUTION, "remove   "),
            Action::Keep => paint(CAUTION, "keep     "),
            Action::Overwrite => paint(CAUTION, "overwrite"),
            Action::Discard => paint(CAUTION, "discard  "),
        };
        let why = match row.action {
            Action::Keep => " (changed here)",
            Action::Overwrite | Action::Discard => " (a backup is kept)",
            Action::Add | Action::Replace | Action::Unchanged | Action::Remove => "",
        };
        line(format!("  {word} {}{}", row.path, paint(DIM, why)))?;
    }
    if rows.len() > most {
        line(format!("  … and {} more; --dry-run shows all", rows.len() - most))?;
    }
    if shown.counts.unchanged > 0 {
        line(format!("  {} {}", paint(DIM, "unchanged"), plural("file", shown.counts.unchanged)))?;
    }
    for added in &shown.capabilities_added {
        line(format!("{} asks for {added}", paint(CAUTION, "+")))?;
    }
    for removed in &shown.capabilities_removed {
        line(format!("{} no longer asks for {removed}", paint(DIM, "-")))?;
    }
    for hidden in &shown.hides {
        line(format!("{} hides {hidden}", paint(CAUTION, "!")))?;
    }
    for hidden in &shown.hidden_by {
        line(format!("{} is hidden by {hidden}", paint(CAUTION, "!")))?;
    }
    for warning in &shown.warnings {
        line(format!("{} {warning}", paint(CAUTION, "!")))?;
    }
    Ok(())
}

fn draw_installed(context: &Context, done: &Installed) -> Outcome {
    let from = match &done.previous_version {
        Some(previous) if *previous != done.version => format!(" (was {previous})"),
        Some(_) | None => String::new(),
    };
    context.output.result(format_args!(
        "{} {} {}{from} in {} space",
        paint(GOOD, done.status),
        paint(NAME, &done.bundle_id),
        done.version,
        done.space
    ))?;
    for lockfile in &done.lockfiles {
        let path = paint(DIM, shown_path(Path::new(lockfile)));
        context.output.note(format_args!("pinned as installed: {path}"));
    }
    tell_left(context, &done.kept, done.backups.as_deref());
    Ok(())
}

fn draw_uninstalled(context: &Context, done: &Uninstalled) -> Outcome {
    context.output.result(format_args!(
        "{} {} {} from {} space: {} removed",
        paint(GOOD, done.status),
        paint(NAME, &done.bundle_id),
        done.version,
        done.space,
        plural("file", done.files_removed)
    ))?;
    for lockfile in &done.lockfiles {
        let path = paint(DIM, shown_path(Path::new(lockfile)));
        context.output.note(format_args!("{} {path}", paint(CAUTION, "removed your lockfile")));
    }
    for lockfile in &done.lockfiles_left {
        let path = paint(DIM, shown_path(Path::new(lockfile)));
        context.output.note(format_args!(
            "{} {path}: it is the team's; remove it with: rye lock remove ID --scope project",
            paint(CAUTION, "kept")
        ));
    }
    tell_left(context, &done.kept, done.backups.as_deref());
    for signer in &done.approved_signers {
        context.output.note(format_args!(
            "{} {} is still approved for the bundle {}; withdraw that: {}",
            paint(CAUTION, "signer"),
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

fn tell_left(context: &Context, kept: &[impl std::fmt::Display], backups: Option<&str>) {
    for path in kept {
        context.output.note(format_args!("{} {path}: it was changed here", paint(CAUTION, "kept")));
    }
    if let Some(backups) = backups {
        context.output.note(format_args!("backups are in {}", paint(DIM, shown_path(Path::new(backups)))));
    }
}
