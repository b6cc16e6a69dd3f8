//! Completion with live ids: the shell asks `rye` itself.

use std::ffi::OsStr;

use clap::Parser as _;
use clap_complete::engine::CompletionCandidate;
use rye_agent::limits::LIMIT_NAMES;
use rye_agent::status::ThreadStatus;
use rye_agent::store::ThreadFilter;
use rye_engine::verbs::{search, sync};
use rye_item::ItemType;

use crate::commands::ThreadIndex;
use crate::global::GlobalArguments;
use crate::settings::Settings;

/// Threads that are offered.
const MAX_THREADS: u64 = 50;

#[derive(clap::Parser)]
struct GlobalOnly {
    #[command(flatten)]
    global: GlobalArguments,
}

/// Item types.
pub fn types(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_words(ItemType::ALL.into_iter().map(ItemType::as_str), current)
}

/// Ids of every type, with the type as help.
pub fn ids(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_ids(None, current)
}

/// Ids of tools.
pub fn tools(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_ids(Some(ItemType::Tool), current)
}

/// Ids of directives.
pub fn directives(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_ids(Some(ItemType::Directive), current)
}

fn complete_ids(item_type: Option<ItemType>, current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = current.to_str() else {
        return Vec::new();
    };
    let Some(engine) = read_settings().and_then(|settings| settings.engine().ok()) else {
        return Vec::new();
    };
    search::complete_ids(&engine, item_type, start)
        .into_iter()
        .map(|item| {
            CompletionCandidate::new(item.id.to_string()).help(Some(item.item_type.to_string().into()))
        })
        .collect()
}

fn read_settings() -> Option<Settings> {
    let arguments = GlobalOnly::try_parse_from(["rye"]).ok()?;
    Settings::read(&arguments.global).ok()
}

/// Names of threads, the newest first, with directive and status as help.
pub fn threads(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = current.to_str() else {
        return Vec::new();
    };
    let Some(index) = read_settings().and_then(|settings| ThreadIndex::open(&settings).ok().flatten()) else {
        return Vec::new();
    };
    let rows = index.store.threads(&ThreadFilter { limit: Some(MAX_THREADS), ..ThreadFilter::default() });
    rows.unwrap_or_default()
        .iter()
        .filter_map(|row| {
            let name = row.id.as_str();
            // A word that begins with the digits is completed by them.
            let name = if start.starts_with('t') || start.is_empty() { name } else { name.get(7..)? };
            let help = format!("{} · {}", row.directive, index.effective_status(row));
            let help = rye_item::text::one_line(&help);
            name.starts_with(start).then(|| CompletionCandidate::new(name.to_owned()).help(Some(help.into())))
        })
        .collect()
}

/// Ids of the bundles in the project's manifest.
pub fn project_bundles(current: &OsStr) -> Vec<CompletionCandidate> {
    let engine = read_settings().and_then(|settings| settings.engine().ok());
    let ids = engine.map(|engine| sync::manifest_ids(&engine)).unwrap_or_default();
    complete_words(ids.iter().map(String::as_str), current)
}

/// Where threads may stand.
pub fn statuses(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = ThreadStatus::ALL.iter().map(|status| status.as_str()).chain(["interrupted"]);
    complete_words(words, current)
}

/// Names of limits.
pub fn limits(current: &OsStr) -> Vec<CompletionCandidate> {
    let names: Vec<String> = LIMIT_NAMES.iter().map(|name| format!("{name}=")).collect();
    complete_words(names.iter().map(String::as_str), current)
}

fn complete_words<'a>(words: impl Iterator<Item = &'a str>, current: &OsStr) -> Vec<CompletionCandidate> {
    let start = current.to_str().unwrap_or_default();
    words.filter(|word| word.starts_with(start)).map(CompletionCandidate::new).collect()
}

/// Types first, then ids; the shell adds paths itself.
pub fn types_or_paths(current: &OsStr) -> Vec<CompletionCandidate> {
    types(current).into_iter().chain(ids(current)).collect()
}
