//! `thread patch`: what a submitted thread changed in its project files, and the user's act of applying it.

use rye_agent::cluster::{CheckoutPatch, read_patch};
use rye_engine::{Code, Error};
use serde_json::json;

use super::thread_index::ThreadIndex;
use crate::arguments::PatchArguments;
use crate::commands::{CommandContext, CommandError, CommandResult};
use crate::live::format::pluralize;
use crate::output::{DIM, SUCCESS, paint};

/// Files that are named.
const MAX_NAMED: usize = 5;

/// `rye thread patch`
pub fn patch(context: &CommandContext, arguments: &PatchArguments) -> CommandResult {
    let (index, row) = ThreadIndex::open_thread(&context.settings, &arguments.id)?;
    let patch = read_patch(&index.store, &row.id)?;
    if arguments.apply {
        return apply(context, &patch, arguments.accept_incomplete);
    }
    if context.output.is_json {
        let files: Vec<_> =
            patch.files().map(|(path, change)| json!({"path": path, "change": change})).collect();
        let left_out: Vec<_> =
            patch.left_out.iter().map(|(path, reason)| json!({"path": path, "reason": reason})).collect();
        let data = json!({
            "thread_id": row.id,
            "source": patch.source,
            "incomplete": patch.is_incomplete,
            "files": files,
            "left_out": left_out,
            "patch": patch.to_diff()?,
        });
        context.print_if_json(Some("thread"), Some(row.id.as_str()), &data)?;
        return Ok(());
    }
    note_gaps(context, &patch);
    if patch.file_count() == 0 {
        context.output.note("no file was changed");
    } else {
        context.output.print_raw(&patch.to_diff()?)?;
        let count = pluralize(patch.file_count() as u64, "file");
        context.output.note(paint(
            DIM,
            format_args!(
                "{count}, against {}; apply it here: rye thread patch {} --apply",
                patch.source, row.id
            ),
        ));
    }
    Ok(())
}

/// Says what is not in the patch.
fn note_gaps(context: &CommandContext, patch: &CheckoutPatch) {
    if patch.is_incomplete {
        context.output.warn("this patch is incomplete: a worker died, and its earlier changes are lost");
    }
    for (path, reason) in patch.left_out.iter().take(MAX_NAMED) {
        let (path, reason) = (rye_item::text::one_line(path), rye_item::text::one_line(reason));
        context.output.warn(format_args!("not in the patch: `{path}`: {reason}"));
    }
    let more = patch.left_out.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        context.output.warn(format_args!("not in the patch: {}", pluralize(more as u64, "further file")));
    }
}

fn apply(context: &CommandContext, patch: &CheckoutPatch, accepts_incomplete: bool) -> CommandResult {
    let project = context.settings.roots.project.as_deref().ok_or_else(|| {
        Error::new(Code::CheckoutRefused, "no project here: the patch cannot be applied")
            .hint("run this in the project the thread was submitted from, or: --project DIR")
    })?;
    if patch.is_incomplete && !accepts_incomplete {
        let message = "the patch is incomplete: a worker died on the way; nothing was changed";
        return Err(CommandError::from(
            Error::new(Code::CheckoutRefused, message)
                .detail("thread_id", patch.thread.as_str())
                .hint(format!("read it: rye thread patch {}", patch.thread))
                .hint(format!(
                    "apply what there is: rye thread patch {} --apply --accept-incomplete",
                    patch.thread
                )),
        ));
    }
    let report = patch.apply(project)?;
    if context.output.is_json {
        let data = json!({
            "thread_id": patch.thread,
            "changed": report.changed,
            "unchanged": report.unchanged,
        });
        context.print_if_json(Some("thread"), Some(patch.thread.as_str()), &data)?;
        return Ok(());
    }
    note_gaps(context, patch);
    for path in &report.changed {
        context.output.print(rye_item::text::one_line(path))?;
    }
    let changed = pluralize(report.changed.len() as u64, "file");
    let same = match report.unchanged.len() {
        0 => String::new(),
        count => format!(", {} already up to date", pluralize(count as u64, "file")),
    };
    context.output.note(paint(SUCCESS, format_args!("{changed} changed{same}")));
    Ok(())
}
