//! What a person consents to by signing an item: what it asks for beyond the default, and whether they agreed to that before.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use rye_item::space::SpaceTier;
use rye_item::text::{one_line, shell_word};
use rye_item::{ItemRef, ItemType};
use rye_space::ItemFile;
use rye_trust::verify::evaluate;
use rye_trust::{Subject, TrustVerdict};
use serde::Serialize;
use serde_json::{Value, json};

use super::signers::has_line_of_another;
use crate::agent_actions::review;
use crate::engine::Engine;

/// Runtimes of rye itself: to be run by one of these is what every tool asks for.
const DEFAULT_EXECUTORS: &str = "executor: rye/core/runtimes/";

/// What is known of an item before it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemSignState {
    /// The user's own signature is on it, and fits.
    Signed,
    /// The user signed an earlier version of it.
    Changed,
    /// The user never signed it here.
    New,
    /// It has the signature line of another key, whether that fits or not.
    Other,
}

/// An item that may be signed.
#[derive(Clone, Debug)]
pub struct SignCandidate {
    /// The item.
    pub item: ItemRef,
    /// The file.
    pub path: PathBuf,
    /// The tier of its space.
    pub tier: SpaceTier,
    /// What is known of it.
    pub state: ItemSignState,
    /// What it asks for beyond the default, a line each.
    pub requests: Vec<String>,
    /// Those of them that the version which the user signed last did not ask for.
    pub added: Vec<String>,
}

/// What a pattern does with items that other keys signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OthersItems {
    /// They stay as they are.
    Leave,
    /// They are signed like all others.
    TakeOver,
}

/// What is signed of the items that were found.
pub struct SignChoice<'a> {
    /// Those that other keys signed.
    pub others: OthersItems,
    /// Who decides about the rest; without one all are signed.
    pub gate: Option<&'a mut dyn SignGate>,
}

impl From<OthersItems> for SignChoice<'_> {
    fn from(others: OthersItems) -> Self {
        Self { others, gate: None }
    }
}

/// Decides which of the items that a pattern names are signed.
pub trait SignGate {
    /// Whether this one is signed without a question.
    fn admits(&mut self, candidate: &SignCandidate) -> bool;

    /// Whether those that were not admitted are signed after all.
    fn confirms(&mut self, held: &[SignCandidate]) -> bool;
}

impl SignCandidate {
    pub(super) fn new(engine: &Engine, located: &ItemFile) -> Self {
        let item = located.item_ref().clone();
        let requests = requests_beyond_default(&item, located);
        let previous = review::previous_content(engine, located);
        let state = match (is_signed_by_user(engine, located), &previous) {
            (true, _) => ItemSignState::Signed,
            (false, Some(_)) => ItemSignState::Changed,
            (false, None) if has_line_of_another(engine, located) => ItemSignState::Other,
            (false, None) => ItemSignState::New,
        };
        let known = match (state, previous) {
            (ItemSignState::Signed, _) => requests.clone(),
            (_, Some(content)) => requests_beyond_default(&item, &with_content(engine, located, content)),
            (_, None) => Vec::new(),
        };
        let added = requests.iter().filter(|request| !known.contains(request)).cloned().collect();
        Self { path: located.path.clone(), tier: located.space().tier(), state, requests, added, item }
    }

    /// Whether signing it agrees to nothing that the user has not agreed to before.
    #[must_use]
    pub fn is_agreed(&self) -> bool {
        match self.state {
            ItemSignState::Signed => true,
            ItemSignState::Changed => self.added.is_empty(),
            ItemSignState::New | ItemSignState::Other => false,
        }
    }

    /// What signs this item and no other.
    #[must_use]
    pub fn command(&self) -> String {
        let id = shell_word(&one_line(self.item.id.as_str()));
        let space = if self.tier == SpaceTier::User { " --space user" } else { "" };
        format!("rye sign {} {id}{space}", self.item.item_type)
    }

    /// Why it is not signed with others, in words.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.state {
            ItemSignState::New => "you never signed it here",
            ItemSignState::Other => "another key signed it",
            ItemSignState::Changed | ItemSignState::Signed => "it asks for more than when you signed it",
        }
    }

    pub(super) fn to_value(&self) -> Value {
        json!({
            "item": self.item.to_string(),
            "state": self.state,
            "asks": self.requests,
            "added": self.added,
            "command": self.command(),
        })
    }
}

/// What an item asks for beyond what every item may do, a line each.
pub(crate) fn requests_beyond_default(item: &ItemRef, located: &ItemFile) -> Vec<String> {
    // Config of the user's own is a text to rye: nothing in it is asked of rye.
    if item.item_type == ItemType::Config && !rye_space::scope::is_rye_config(&item.id) {
        return Vec::new();
    }
    let mut requests = review::requested_capabilities(item, located);
    requests.retain(|request| !request.starts_with(DEFAULT_EXECUTORS));
    requests
}

/// The same file with other bytes.
fn with_content(engine: &Engine, located: &ItemFile, content: Vec<u8>) -> ItemFile {
    ItemFile::new(
        located.item_ref().clone(),
        located.space().clone(),
        located.path.clone(),
        located.extension.clone(),
        Cow::Owned(content),
        Arc::clone(engine.workspace.spaces.extractors()),
    )
}

/// Whether the user's own key signed these bytes as this item.
pub(crate) fn is_signed_by_user(engine: &Engine, located: &ItemFile) -> bool {
    let Some(own) = engine.workspace.own_key.as_ref() else { return false };
    let report = evaluate(located, &engine.workspace.keys);
    let is_full = report.verdict == TrustVerdict::Full && report.fingerprint() == Some(own.fingerprint());
    // What another process signed without a name in it is not on this process's record yet.
    is_full || review::is_signed_here(engine, located)
}
