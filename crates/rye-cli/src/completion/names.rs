//! Names that are no items: clients, codes, bundles, keys, settings, schedules, languages, shells.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;
use rye_agent::schedule::Schedules;
use rye_engine::Engine;
use rye_engine::verbs::complete::{self, NamedChoice};
use rye_engine::verbs::new_item::ToolLanguage;
use rye_item::text::one_line;
use rye_server::clients::ClientApp;

use super::{complete_words, named_candidates, read_settings};

fn with_engine(names: impl Fn(&Engine) -> Vec<NamedChoice>, current: &OsStr) -> Vec<CompletionCandidate> {
    let engine = read_settings().and_then(|settings| settings.engine().ok());
    named_candidates(engine.map(|engine| names(&engine)).unwrap_or_default().into_iter(), current)
}

/// MCP clients.
pub fn clients(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_words(ClientApp::ALL.into_iter().map(ClientApp::as_str), current)
}

/// Error codes, with their titles.
pub fn error_codes(current: &OsStr) -> Vec<CompletionCandidate> {
    let pages = crate::explain::PAGES.iter().map(|(code, page)| {
        let title = page.lines().next().and_then(|line| line.split_once(": ")).map_or("", |(_, title)| title);
        NamedChoice { name: (*code).to_owned(), about: title.to_owned() }
    });
    named_candidates(pages, current)
}

/// Ids of bundles, with version and space.
pub fn bundles(current: &OsStr) -> Vec<CompletionCandidate> {
    let list = |engine: &Engine| {
        let rows = rye_engine::verbs::bundles::list(engine).into_iter();
        let named = rows.map(|row| NamedChoice {
            name: one_line(&row.bundle_id),
            about: one_line(&format!("{} {}", row.version, row.space)),
        });
        named.collect()
    };
    with_engine(list, current)
}

/// Fingerprints of keys, with their owners.
pub fn keys(current: &OsStr) -> Vec<CompletionCandidate> {
    let list = |engine: &Engine| {
        let rows = rye_engine::verbs::keys::list(engine).keys.into_iter();
        let named =
            rows.map(|row| NamedChoice { name: row.fingerprint.to_string(), about: one_line(&row.owner) });
        named.collect()
    };
    with_engine(list, current)
}

/// Names of settings, with their values.
pub fn setting_names(current: &OsStr) -> Vec<CompletionCandidate> {
    with_engine(complete::settings, current)
}

/// Names of schedules, with their directives.
pub fn schedules(current: &OsStr) -> Vec<CompletionCandidate> {
    let list = |engine: &Engine| {
        let schedules = Schedules::load(&engine.workspace).map(|found| found.list).unwrap_or_default();
        let named = schedules.iter().map(|schedule| NamedChoice {
            name: one_line(&schedule.id),
            about: one_line(&schedule.directive),
        });
        named.collect()
    };
    with_engine(list, current)
}

/// Languages of new tools.
pub fn languages(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_words(ToolLanguage::ALL.into_iter().map(ToolLanguage::as_str), current)
}

/// Shells that completions are made for.
pub fn shells(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_words(["bash", "elvish", "fish", "powershell", "zsh"].into_iter(), current)
}
