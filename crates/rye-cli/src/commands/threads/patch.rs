//! `thread patch`: what a submitted thread changed in its project files, and the user's act of applying it.

use rye_agent::cluster::{CheckoutPatch, CheckoutRules, PatchSummary, read_patch};
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
    let rules = CheckoutRules::from_engine(&context.settings.engine()?)?;
    let patch = read_patch(&index.store, &row.id, &rules)?;
    if arguments.apply {
        return apply(context, &patch, &rules, arguments.accept_incomplete);
    }
    if context.output.is_json {
        let files: Vec<_> =
            patch.files().map(|(path, change)| json!({"path": path, "change": change})).collect();
        let left_out: Vec<_> =
            patch.left_out.iter().map(|(path, reason)| json!({"path": path, "reason": reason})).collect();
        let data = json!({
            "thread_id": row.id,
            "source": patch.source,
            "sha256": PatchSummary::of_row(&row).and_then(|summary| summary.digest),
            "incomplete": patch.is_incomplete,
            "outdated": patch.is_outdated,
            "files": files,
            "left_out": left_out,
            "left_out_more": patch.left_out_more,
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
    if patch.is_outdated {
        context.output.warn("the thread runs: this is what it had changed when it last stopped");
    }
    for (path, reason) in patch.left_out.iter().take(MAX_NAMED) {
        let (path, reason) = (rye_item::text::one_line(path), rye_item::text::one_line(reason));
        context.output.warn(format_args!("not in the patch: `{path}`: {reason}"));
    }
    let more = (patch.left_out.len().saturating_sub(MAX_NAMED) as u64).saturating_add(patch.left_out_more);
    if more > 0 {
        context.output.warn(format_args!("not in the patch: {}", pluralize(more, "further file")));
    }
}

fn apply(
    context: &CommandContext,
    patch: &CheckoutPatch,
    rules: &CheckoutRules,
    accepts_incomplete: bool,
) -> CommandResult {
    let project = context.settings.roots.project.as_deref().ok_or_else(|| {
        Error::new(Code::CheckoutRefused, "no project here: the patch cannot be applied")
            .hint("run this in the project the thread was submitted from, or: --project DIR")
    })?;
    if (patch.is_incomplete || patch.is_outdated) && !accepts_incomplete {
        let message = match patch.is_outdated {
            true => "the patch is incomplete: the thread has run since; nothing was changed",
            false => "the patch is incomplete: a worker died on the way; nothing was changed",
        };
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
    let report = patch.apply(project, rules)?;
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
