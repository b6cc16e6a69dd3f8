//! Completion with live ids: the shell asks `rye` itself.

mod names;
mod typed_line;

use std::ffi::OsStr;

use clap::Parser as _;
use clap_complete::engine::CompletionCandidate;
use rye_agent::limits::LIMIT_NAMES;
use rye_agent::status::ThreadStatus;
use rye_agent::store::{ThreadFilter, ThreadRow};
use rye_engine::verbs::complete::{self, NamedChoice};
use rye_engine::verbs::{search, sync};
use rye_item::ItemType;

use crate::commands::ThreadIndex;
use crate::global::GlobalArguments;
use crate::settings::Settings;
use typed_line::TypedLine;

pub use names::{bundles, clients, error_codes, keys, languages, schedules, setting_names, shells};

/// Threads that are offered.
const MAX_THREADS: u64 = 50;

/// Where threads stand that have not ended.
const UNFINISHED: [ThreadStatus; 3] = [ThreadStatus::Created, ThreadStatus::Running, ThreadStatus::Suspended];

#[derive(clap::Parser)]
struct GlobalOnly {
    #[command(flatten)]
    global: GlobalArguments,
}

/// An item of any type: a type or an id; after a type, its ids.
pub fn items(current: &OsStr) -> Vec<CompletionCandidate> {
    match TypedLine::read().item_type() {
        Some(item_type) => complete_ids(Some(item_type), current),
        None => types(current).into_iter().chain(ids(current)).collect(),
    }
}

/// What `rye execute` takes: a tool, or a type and an id; then the parameters.
pub fn executable_words(current: &OsStr) -> Vec<CompletionCandidate> {
    let line = TypedLine::read();
    match (line.item_type(), line.item()) {
        (Some(item_type), None) => complete_ids(Some(item_type), current),
        (None, None) => tools(current).into_iter().chain(types(current)).collect(),
        (_, Some((item_type, id))) => complete_parameters(item_type.or(Some(ItemType::Tool)), &id, current),
    }
}

/// The inputs of the directive that was typed.
pub fn inputs(current: &OsStr) -> Vec<CompletionCandidate> {
    match TypedLine::read().item() {
        Some((_, id)) => complete_parameters(Some(ItemType::Directive), &id, current),
        None => Vec::new(),
    }
}

/// `NAME=` for each parameter of an item.
fn complete_parameters(item_type: Option<ItemType>, id: &str, current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(engine) = read_settings().and_then(|settings| settings.engine().ok()) else {
        return Vec::new();
    };
    let item = match item_type {
        Some(item_type) => rye_item::ItemRef::parse(Some(item_type.as_str()), id).ok(),
        None => complete::item_of_id(&engine, id),
    };
    let choices = item.map(|item| complete::parameters(&engine, &item)).unwrap_or_default();
    let choices =
        choices.into_iter().map(|choice| NamedChoice { name: format!("{}=", choice.name), ..choice });
    named_candidates(choices, current)
}

/// Choices that begin as the word does, with what they are as help.
fn named_candidates(choices: impl Iterator<Item = NamedChoice>, current: &OsStr) -> Vec<CompletionCandidate> {
    let start = current.to_str().unwrap_or_default();
    let fitting = choices.filter(|choice| choice.name.starts_with(start));
    fitting
        .map(|choice| {
            let help = (!choice.about.is_empty()).then(|| choice.about.clone().into());
            CompletionCandidate::new(choice.name).help(help)
        })
        .collect()
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
    complete_threads(current, &[], |_, _| true)
}

/// The same of those that have not ended.
pub fn unfinished_threads(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_threads(current, &UNFINISHED, |_, _| true)
}

/// The same of those that can be resumed: suspended ones, and those whose process is gone.
pub fn resumable_threads(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_threads(current, &UNFINISHED, |index, row| {
        row.status == ThreadStatus::Suspended || index.is_interrupted(row)
    })
}

fn complete_threads(
    current: &OsStr,
    statuses: &[ThreadStatus],
    is_offered: impl Fn(&ThreadIndex, &ThreadRow) -> bool,
) -> Vec<CompletionCandidate> {
    let Some(start) = current.to_str() else {
        return Vec::new();
    };
    let Some(index) = read_settings().and_then(|settings| ThreadIndex::open(&settings).ok().flatten()) else {
        return Vec::new();
    };
    let filter =
        ThreadFilter { statuses: statuses.to_vec(), limit: Some(MAX_THREADS), ..ThreadFilter::default() };
    let rows = index.store.threads(&filter).unwrap_or_default();
    rows.iter()
        .filter(|row| is_offered(&index, row))
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
