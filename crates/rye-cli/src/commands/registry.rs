//! `rye bundle push`, `rye bundle pull`, and the other commands where they are given a reference to a registry.

use std::path::Path;

use lillux::Cancel;
use rye_engine::Error;
use rye_engine::verbs::bundles::Found;
use rye_engine::verbs::install::{Options, Prepared};
use rye_engine::verbs::registry::{self, Transfer};

use super::{Context, Failure, Outcome};
use crate::output::{CAUTION, DIM, GOOD, NAME, paint, shell_path, shown_path};
use crate::settings;

/// A request to stop that the terminal's interrupt makes.
fn cancel() -> Result<Cancel, Error> {
    let cancel = Cancel::new()?;
    settings::cancel_on_signals(&cancel);
    Ok(cancel)
}

/// Whether a word is a reference to a registry.
pub fn is_reference(word: &str) -> bool {
    registry::is_reference(word)
}

/// `rye install oci://…`, as far as its plan.
pub fn prepare(
    context: &Context,
    reference: &str,
    allows_plain_http: bool,
    options: Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Prepared, Failure> {
    let reference = registry::reference(reference)?;
    let cancel = cancel()?;
    let mut bar = context.output.progress_of_bytes("pulling");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = Transfer { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    Ok(registry::prepare(&context.engine, &reference, options, &mut transfer, progress)?)
}

/// `rye bundle inspect oci://…`: what the signed manifest says, without the archive.
pub fn inspect(context: &Context, reference: &str, allows_plain_http: bool) -> Outcome {
    let reference = registry::reference(reference)?;
    let cancel = cancel()?;
    let mut transfer = Transfer { allows_plain_http, cancel: &cancel, on_bytes: &mut |_, _| {} };
    let looked = registry::look(&context.engine, &reference, &mut transfer)?;
    if context.answered(Some("bundle"), Some(&looked.bundle_id), &looked)? {
        return Ok(());
    }
    let output = &context.output;
    output.result(format_args!("{} {}", paint(NAME, &looked.bundle_id), looked.version))?;
    if !looked.description.is_empty() {
        output.result(format_args!("  {}", looked.description))?;
    }
    output.result(format_args!(
        "  {}; {} packed",
        rye_item::text::counted(looked.files.len(), "file"),
        rye_item::text::counted(looked.archive_bytes, "byte")
    ))?;
    let standing = match looked.approved {
        true => paint(GOOD, "approved"),
        false => paint(CAUTION, "not checked: its key is not known here"),
    };
    output.result(format_args!("  {} {}, {standing}", paint(DIM, "signed by"), looked.signer))?;
    output.result(format_args!("  {} {}", paint(DIM, "pin"), looked.pinned))?;
    for file in &looked.files {
        output.result(format_args!("  {file}"))?;
    }
    Ok(())
}

/// The bundle that a reference names, pulled to be looked at.
pub fn find(context: &Context, reference: &str, allows_plain_http: bool) -> Result<Found, Failure> {
    let reference = registry::reference(reference)?;
    let cancel = cancel()?;
    let mut bar = context.output.progress_of_bytes("pulling");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = Transfer { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    Ok(registry::find(&context.engine, &reference, &mut transfer)?)
}

/// `rye bundle push`
pub fn push(context: &Context, bundle: &str, reference: &str, allows_plain_http: bool) -> Outcome {
    let reference = registry::reference(reference)?;
    let cancel = cancel()?;
    let mut bar = context.output.progress_of_bytes("pushing");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = Transfer { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    let pushed =
        registry::push(&context.engine, bundle, &context.settings.folder, &reference, &mut transfer)?;
    drop(bar);
    if context.answered(Some("bundle"), Some(&pushed.bundle_id), &pushed)? {
        return Ok(());
    }
    context.output.result(format_args!(
        "{} {} {} to {}, signed by {}",
        paint(GOOD, "pushed"),
        paint(NAME, &pushed.bundle_id),
        pushed.version,
        pushed.reference,
        pushed.signer
    ))?;
    context.output.result(format_args!("  {} {}", paint(DIM, "pin"), pushed.pinned))?;
    let reused = match pushed.bytes_reused {
        0 => String::new(),
        reused => format!(", {reused} of them there already"),
    };
    context.output.note(format_args!("{} bytes{reused}", pushed.bytes));
    Ok(())
}

/// `rye bundle pull`
pub fn pull(context: &Context, reference: &str, out: Option<&Path>, allows_plain_http: bool) -> Outcome {
    let reference = registry::reference(reference)?;
    let cancel = cancel()?;
    let mut bar = context.output.progress_of_bytes("pulling");
    let mut on_bytes = |done, total| bar.update_bytes(done, total);
    let mut transfer = Transfer { allows_plain_http, cancel: &cancel, on_bytes: &mut on_bytes };
    let kept = registry::keep(&context.engine, &reference, out, &context.settings.folder, &mut transfer)?;
    drop(bar);
    if context.answered(Some("bundle"), Some(&kept.bundle_id), &kept)? {
        return Ok(());
    }
    context.output.result(format_args!(
        "{} {} {} into {}",
        paint(GOOD, "pulled"),
        paint(NAME, &kept.bundle_id),
        kept.version,
        shown_path(&kept.path)
    ))?;
    let standing = match kept.verification.approved {
        true => paint(GOOD, "approved"),
        false => paint(CAUTION, "not approved"),
    };
    let signer = registry::signer_words(&kept.verification.report);
    context.output.result(format_args!("  {} {signer}, {standing}", paint(DIM, "signed by")))?;
    context.output.result(format_args!("  {} {}", paint(DIM, "pin"), kept.pinned))?;
    context.output.note(format_args!("install it with: rye install {}", shell_path(&kept.path)));
    Ok(())
}
