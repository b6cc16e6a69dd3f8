//! Completion with live ids: the shell asks `rye` itself.

use std::ffi::OsStr;

use clap::Parser as _;
use clap_complete::engine::CompletionCandidate;
use rye_engine::verbs::search;
use rye_item::ItemType;

use crate::global::Global;
use crate::settings::Settings;

#[derive(clap::Parser)]
struct Nothing {
    #[command(flatten)]
    global: Global,
}

/// Item types.
pub fn types(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = current.to_str() else {
        return Vec::new();
    };
    let words = ItemType::ALL.into_iter().map(ItemType::as_str).filter(|word| word.starts_with(start));
    words.map(CompletionCandidate::new).collect()
}

/// Ids of every type, with the type as help.
pub fn ids(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(start) = current.to_str() else {
        return Vec::new();
    };
    let Ok(nothing) = Nothing::try_parse_from(["rye"]) else {
        return Vec::new();
    };
    let Ok(settings) = Settings::read(&nothing.global) else {
        return Vec::new();
    };
    let Ok(engine) = settings.engine() else {
        return Vec::new();
    };
    search::ids(&engine, None, start)
        .into_iter()
        .map(|item| {
            CompletionCandidate::new(item.id.to_string()).help(Some(item.item_type.to_string().into()))
        })
        .collect()
}

/// Types first, then ids; the shell adds paths itself.
pub fn types_or_paths(current: &OsStr) -> Vec<CompletionCandidate> {
    types(current).into_iter().chain(ids(current)).collect()
}
