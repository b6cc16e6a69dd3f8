//! `store migrate`: the threads of a project, moved from one store to another.

use std::sync::Arc;

use rye_agent::store::{
    MigrationReport, MigrationStore, SharedStoreConfig, StoreRole, migrate as migrate_threads,
};
use rye_engine::{Code, Error};
use rye_item::text::one_line;
use serde_json::json;

use super::{CommandContext, CommandResult};
use crate::arguments::MigrateArguments;
use crate::live::format::pluralize;
use crate::output::{DIM, paint};
use crate::settings;

/// `rye store migrate`
pub fn migrate(context: &CommandContext, arguments: &MigrateArguments) -> CommandResult {
    let (from, to) = (arguments.from.as_str(), arguments.to.as_str());
    if from == to {
        let message = format!("`--from` and `--to` are both `{}`", one_line(from));
        return Err(Error::new(Code::InvalidArgument, message)
            .hint("rye store migrate --from local --to NAME")
            .into());
    }
    let clock = Arc::new(settings::now_ms);
    let source = MigrationStore::open(&context.engine, from, StoreRole::Source, clock.clone())?;
    let target = MigrationStore::open(&context.engine, to, StoreRole::Target, clock)?;
    let report = migrate_threads(&source, &target, settings::now_ms())?;
    if context.output.is_json {
        let data = json!({
            "from": from,
            "to": to,
            "migrated": report.migrated,
            "unchanged": report.unchanged,
            "removed": report.removed,
        });
        context.print_if_json(Some("store"), None, &data)?;
        return Ok(());
    }
    print(context, arguments, &report)
}

fn print(context: &CommandContext, arguments: &MigrateArguments, report: &MigrationReport) -> CommandResult {
    let (from, to) = (one_line(&arguments.from), one_line(&arguments.to));
    for root in &report.migrated {
        context.output.print(root)?;
    }
    let trees = |count: usize| pluralize(count as u64, "tree");
    context.output.note(format_args!("{} went from {from} to {to}", trees(report.migrated.len())));
    if !report.unchanged.is_empty() {
        context.output.note(format_args!("{} there already", trees(report.unchanged.len())));
    }
    if !report.removed.is_empty() {
        context.output.note(format_args!("{} not ended: in {to} alone now", trees(report.removed.len())));
    }
    let current =
        SharedStoreConfig::current(&context.engine)?.map_or_else(|| "local".to_owned(), |one| one.name);
    if current != arguments.to {
        let hint = match arguments.to.as_str() {
            "local" => "take threads.store out of your settings".to_owned(),
            _ => format!("rye config set threads.store {to} --space user"),
        };
        context.output.note(paint(
            DIM,
            format_args!("commands look in {}; to look in {to}: {hint}", one_line(&current)),
        ));
    }
    Ok(())
}
