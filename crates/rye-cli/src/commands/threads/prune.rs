//! `thread prune`: forgetting trees of threads that have ended.

use rye_agent::store::{FolderDisposal, PruneOptions, PruneReport};
use rye_engine::{Code, Error};
use serde_json::json;

use super::thread_index::ThreadIndex;
use crate::arguments::PruneArguments;
use crate::commands::given_command::given_command_with;
use crate::commands::{CommandContext, CommandResult, confirm, declined};
use crate::live::format::pluralize;
use crate::output::{DIM, paint};
use crate::settings;

/// Threads that are named.
const MAX_PRINTED: usize = 20;

/// `rye thread prune`
pub fn prune(context: &CommandContext, arguments: &PruneArguments) -> CommandResult {
    let options = prune_options(context, arguments)?;
    let index = ThreadIndex::open(&context.settings)?;
    let prunable = match &index {
        Some(index) => index.store.prune_candidates(&options)?,
        None => Vec::new(),
    };
    let what = pluralize(prunable.len() as u64, "thread");
    if arguments.dry_run {
        let data = json!({"would_prune": prunable, "after_days": options.after_days});
        if !context.print_if_json(Some("thread"), None, &data)? {
            for id in prunable.iter().take(MAX_PRINTED) {
                context.output.print(id)?;
            }
            if prunable.len() > MAX_PRINTED {
                context.output.note(paint(DIM, format_args!("and {} more", prunable.len() - MAX_PRINTED)));
            }
            context.output.note(format_args!("{what} would be pruned"));
        }
        return Ok(());
    }
    // Where nothing can be forgotten there is nothing to confirm.
    let is_harmless = prunable.is_empty() && options.max_bytes.is_none() && !arguments.delete;
    if !arguments.yes && !is_harmless {
        require_consent(context, &options, &what)?;
    }
    let pruned = match &index {
        Some(index) => index.store.prune(&options)?,
        None => PruneReport::default(),
    };
    let data = json!({
        "pruned": pruned.threads, "after_days": options.after_days, "archived_removed": pruned.archived,
        "is_vacuumed": pruned.is_vacuumed, "stored_bytes": pruned.stored_bytes,
    });
    if !context.print_if_json(Some("thread"), None, &data)? {
        context.output.print(format_args!("forgot {}", pluralize(pruned.threads.len() as u64, "thread")))?;
        if let (Some(max), Some(stored)) = (options.max_bytes, pruned.stored_bytes)
            && stored > max
        {
            let stored = stored.div_ceil(1 << 20);
            context.output.warn(format_args!(
                "{stored} MB are left: what is left belongs to threads that are in use, or to the database itself"
            ));
        }
    }
    Ok(())
}

/// What was asked for; what the settings say, if nothing was.
fn prune_options(context: &CommandContext, arguments: &PruneArguments) -> Result<PruneOptions, Error> {
    let settings = rye_agent::config::load(&context.engine.workspace)?.ledger;
    let mut options = PruneOptions::of_settings(&settings, settings::now_ms());
    let PruneArguments { older_than, keep, max_megabytes, delete, .. } = arguments;
    if older_than.is_some() || keep.is_some() || max_megabytes.is_some() {
        options.after_days = *older_than;
        options.keep_trees = *keep;
        options.max_bytes = max_megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20));
    }
    if *delete {
        options.disposal = FolderDisposal::Remove;
    }
    Ok(options)
}

fn require_consent(context: &CommandContext, options: &PruneOptions, what: &str) -> CommandResult {
    let refuse = || {
        Error::new(Code::ConsentNeeded, format!("nothing was pruned: pruning {what} was not confirmed"))
            .hint(format!("if you agree: {}", given_command_with(&["--yes"])))
            .hint(format!("to see which: {}", given_command_with(&["--dry-run"])))
    };
    if !context.settings.is_interactive || context.output.is_json {
        return Err(refuse().into());
    }
    let folders = match options.disposal {
        FolderDisposal::Archive => "their folders move to archive/",
        FolderDisposal::Remove => "their transcripts are removed",
    };
    context.output.note(format_args!("prune {what}? {folders} [y/N]"));
    if confirm()? { Ok(()) } else { Err(declined(&context.output, Code::ConsentNeeded)) }
}
