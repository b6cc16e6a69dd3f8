//! `thread prune`: forgetting trees of threads that have ended.

use rye_agent::store::{Kept, Prune, Pruned};
use rye_engine::{Code, Error};
use serde_json::json;

use super::shelf::Shelf;
use crate::arguments::PruneArguments;
use crate::commands::{Context, Outcome, says_yes};
use crate::live::words::several;
use crate::output::{DIM, paint};
use crate::settings;

/// Threads that are named.
const SHOWN: usize = 20;

/// `rye thread prune`
pub fn prune(context: &Context, arguments: &PruneArguments) -> Outcome {
    let wanted = wanted(context, arguments)?;
    let shelf = Shelf::open(&context.settings)?;
    let found = match &shelf {
        Some(shelf) => shelf.store.prunable(&wanted)?,
        None => Vec::new(),
    };
    let what = several(found.len() as u64, "thread");
    if arguments.dry_run {
        let data = json!({"would_prune": found, "after_days": wanted.after_days});
        if !context.answered(Some("thread"), None, &data)? {
            for id in found.iter().take(SHOWN) {
                context.output.result(id)?;
            }
            if found.len() > SHOWN {
                context.output.note(paint(DIM, format_args!("and {} more", found.len() - SHOWN)));
            }
            context.output.note(format_args!("{what} would be forgotten"));
        }
        return Ok(());
    }
    if !arguments.yes {
        agree(context, &wanted, &what)?;
    }
    let pruned = match &shelf {
        Some(shelf) => shelf.store.prune(&wanted)?,
        None => Pruned::default(),
    };
    let data = json!({
        "pruned": pruned.threads, "after_days": wanted.after_days, "archived_removed": pruned.archived,
        "is_vacuumed": pruned.is_vacuumed,
    });
    if !context.answered(Some("thread"), None, &data)? {
        context.output.result(format_args!("forgot {}", several(pruned.threads.len() as u64, "thread")))?;
    }
    Ok(())
}

/// What was asked for; what the settings say, if nothing was.
fn wanted(context: &Context, arguments: &PruneArguments) -> Result<Prune, Error> {
    let settings = rye_agent::config::load(&context.engine.workspace)?.ledger;
    let mut wanted = Prune::of_settings(&settings, settings::now_ms());
    let PruneArguments { older_than, keep, max_megabytes, delete, .. } = arguments;
    if older_than.is_some() || keep.is_some() || max_megabytes.is_some() {
        wanted.after_days = *older_than;
        wanted.keep = *keep;
        wanted.most_bytes = max_megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20));
    }
    if *delete {
        wanted.kept = Kept::Nothing;
    }
    Ok(wanted)
}

fn agree(context: &Context, wanted: &Prune, what: &str) -> Outcome {
    let refused = || {
        Error::new(Code::ConsentNeeded, format!("nothing was forgotten: nobody agreed to forget {what}"))
            .hint("if you agree: rye thread prune --yes; to see which: rye thread prune --dry-run")
    };
    if !context.settings.is_interactive || context.output.is_json {
        return Err(refused().into());
    }
    let folders = match wanted.kept {
        Kept::Archived => "their folders move to archive/",
        Kept::Nothing => "their transcripts are removed",
    };
    context.output.note(format_args!("forget {what}? {folders} [y/N]"));
    if says_yes()? { Ok(()) } else { Err(refused().into()) }
}
