//! `rye bundle push`, `rye bundle pull`, and the other commands where they are given a reference to a registry.

use std::path::Path;

use lillux::CancelToken;
use rye_engine::Error;
use rye_engine::verbs::bundles::LocatedBundle;
use rye_engine::verbs::install::{InstallOptions, PreparedInstall};
use rye_engine::verbs::registry::{self, TransferOptions};

use super::{CommandContext, CommandError, CommandResult};
use crate::output::{DIM, NAME, SUCCESS, WARNING, display_path, paint, shell_path};
use crate::settings;

/// A request to stop that the terminal's interrupt makes.
fn cancel_on_interrupt() -> Result<CancelToken, Error> {
    let cancel = CancelToken::new()?;
    settings::cancel_on_signals(&cancel);
    Ok(cancel)
}

/// Whether a word is a reference to a registry.
pub fn is_reference(word: &str) -> bool {
    registry::is_reference(word)
}

/// `rye install oci://…`, as far as its plan.
pub fn prepare(
    context: &CommandContext,
    reference: &str,
    allows_plain_http: bool,
    options: InstallOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<PreparedInstall, CommandError> {
    let reference = registry::parse_reference(reference)?;
    let cancel = cancel_on_interrupt()?;
    let mut bar = context.output.byte_progress("pulling");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = TransferOptions { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    Ok(registry::prepare(&context.engine, &reference, options, &mut transfer, progress)?)
}

/// `rye bundle inspect oci://…`: what the signed manifest says, without the archive.
pub fn inspect(context: &CommandContext, reference: &str, allows_plain_http: bool) -> CommandResult {
    let reference = registry::parse_reference(reference)?;
    let cancel = cancel_on_interrupt()?;
    let mut transfer = TransferOptions { allows_plain_http, cancel: &cancel, on_bytes: &mut |_, _| {} };
    let manifest = registry::inspect_remote(&context.engine, &reference, &mut transfer)?;
    if context.print_if_json(Some("bundle"), Some(&manifest.bundle_id), &manifest)? {
        return Ok(());
    }
    let output = &context.output;
    output.print(format_args!("{} {}", paint(NAME, &manifest.bundle_id), manifest.version))?;
    if !manifest.description.is_empty() {
        output.print(format_args!("  {}", manifest.description))?;
    }
    output.print(format_args!(
        "  {}; {} packed",
        rye_item::text::counted(manifest.files.len(), "file"),
        rye_item::text::counted(manifest.archive_bytes, "byte")
    ))?;
    let trust = match manifest.approved {
        true => paint(SUCCESS, "approved"),
        false => paint(WARNING, "not checked: its key is unknown"),
    };
    output.print(format_args!("  {} {}, {trust}", paint(DIM, "signed by"), manifest.signer))?;
    output.print(format_args!("  {} {}", paint(DIM, "pin"), manifest.pinned))?;
    for file in &manifest.files {
        output.print(format_args!("  {file}"))?;
    }
    Ok(())
}

/// The bundle that a reference names, pulled to be looked at.
pub fn find(
    context: &CommandContext,
    reference: &str,
    allows_plain_http: bool,
) -> Result<LocatedBundle, CommandError> {
    let reference = registry::parse_reference(reference)?;
    let cancel = cancel_on_interrupt()?;
    let mut bar = context.output.byte_progress("pulling");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = TransferOptions { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    Ok(registry::pull_for_inspection(&context.engine, &reference, &mut transfer)?)
}

/// `rye bundle push`
pub fn push(
    context: &CommandContext,
    bundle: &str,
    reference: &str,
    allows_plain_http: bool,
) -> CommandResult {
    let reference = registry::parse_reference(reference)?;
    let cancel = cancel_on_interrupt()?;
    let mut bar = context.output.byte_progress("pushing");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = TransferOptions { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    let pushed =
        registry::push(&context.engine, bundle, &context.settings.working_dir, &reference, &mut transfer)?;
    drop(bar);
    if context.print_if_json(Some("bundle"), Some(&pushed.bundle_id), &pushed)? {
        return Ok(());
    }
    context.output.print(format_args!(
        "{} {} {} to {}, signed by {}",
        paint(SUCCESS, "pushed"),
        paint(NAME, &pushed.bundle_id),
        pushed.version,
        pushed.reference,
        pushed.signer
    ))?;
    context.output.print(format_args!("  {} {}", paint(DIM, "pin"), pushed.pinned))?;
    let reused = match pushed.bytes_reused {
        0 => String::new(),
        reused => format!(", {reused} of them there already"),
    };
    context.output.note(format_args!("{} bytes{reused}", pushed.bytes));
    Ok(())
}

/// `rye bundle pull`
pub fn pull(
    context: &CommandContext,
    reference: &str,
    out: Option<&Path>,
    allows_plain_http: bool,
) -> CommandResult {
    let reference = registry::parse_reference(reference)?;
    let cancel = cancel_on_interrupt()?;
    let mut bar = context.output.byte_progress("pulling");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = TransferOptions { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    let kept =
        registry::pull_to(&context.engine, &reference, out, &context.settings.working_dir, &mut transfer)?;
    drop(bar);
    if context.print_if_json(Some("bundle"), Some(&kept.bundle_id), &kept)? {
        return Ok(());
    }
    context.output.print(format_args!(
        "{} {} {} into {}",
        paint(SUCCESS, "pulled"),
        paint(NAME, &kept.bundle_id),
        kept.version,
        display_path(&kept.path)
    ))?;
    let trust = match kept.verification.approved {
        true => paint(SUCCESS, "approved"),
        false => paint(WARNING, "not approved"),
    };
    let signer = registry::signer_text(&kept.verification.report);
    context.output.print(format_args!("  {} {signer}, {trust}", paint(DIM, "signed by")))?;
    context.output.print(format_args!("  {} {}", paint(DIM, "pin"), kept.pinned))?;
    context.output.note(format_args!("install it with: rye install {}", shell_path(&kept.path)));
    Ok(())
}
