//! `why`: where an item resolves, what it hides, who signed it, and what it runs on.

use std::path::PathBuf;

use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::Located;
use rye_trust::verify::report;
use rye_trust::{Subject, Verdict};
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::load::Signer;

const MAX_CHAIN: usize = 10;

/// A place that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct TierRow {
    /// The space.
    pub space: Space,
    /// The file there, or the one looked for first.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// Whether it is there.
    pub found: bool,
    /// The verdict on it, if it is there.
    pub verdict: Option<Verdict>,
}

/// An element of the chain.
#[derive(Clone, Debug, Serialize)]
pub struct Element {
    /// Its id.
    pub item_id: String,
    /// Its space, if it was found.
    pub space: Option<Space>,
    /// The verdict on it, if it was found.
    pub verdict: Option<Verdict>,
    /// The hash its signature names.
    pub hash: Option<String>,
    /// What it runs on.
    pub executor_id: Option<String>,
}

/// The item itself.
#[derive(Clone, Debug, Serialize)]
pub struct ItemRow {
    /// Its type.
    #[serde(rename = "type")]
    pub item_type: ItemType,
    /// Its id.
    pub item_id: String,
    /// Its space.
    pub space: Space,
    /// Its file.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// Its version.
    pub version: Option<String>,
    /// The verdict on it.
    pub verdict: Verdict,
    /// Why the verdict is not good.
    pub reason: Option<String>,
}

/// The answer of a why.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The winner.
    pub item: ItemRow,
    /// Every place that was looked at, highest first.
    pub tiers: Vec<TierRow>,
    /// The spaces whose file it hides.
    pub shadows: Vec<Space>,
    /// Who signed it.
    pub signer: Option<Signer>,
    /// How much the signature covers.
    pub coverage: &'static str,
    /// What it runs on, element by element; empty for what does not run.
    pub chain: Vec<Element>,
    /// Its lockfile, if there is one.
    pub lock: Option<Value>,
}

/// Explains an item.
///
/// # Errors
/// When no space has it or it cannot be read.
pub fn why(engine: &Engine, item: &ItemRef) -> Result<Answer> {
    let spaces = &engine.workspace.spaces;
    let places = spaces.places(item);
    let located = spaces.locate(item, None)?;
    let winner = report(&located, &engine.workspace.keys);
    let tiers: Vec<TierRow> = places
        .iter()
        .map(|place| {
            let found = place.is_found.then(|| spaces.read(item, place).ok()).flatten();
            TierRow {
                space: place.space.clone(),
                path: place.path.clone(),
                found: place.is_found,
                verdict: found.map(|located| report(&located, &engine.workspace.keys).verdict),
            }
        })
        .collect();
    let shadows = tiers.iter().filter(|tier| tier.found).skip(1).map(|tier| tier.space.clone()).collect();
    let version = located.fields().get("version").and_then(Value::as_str).map(rye_item::text::one_line);
    Ok(Answer {
        item: ItemRow {
            item_type: item.item_type,
            item_id: item.id.to_string(),
            space: located.space().clone(),
            path: located.path.clone(),
            version,
            verdict: winner.verdict,
            reason: winner.reason.clone(),
        },
        shadows,
        signer: Signer::of(&winner),
        coverage: winner.coverage.as_str(),
        chain: if item.item_type == ItemType::Tool { chain(engine, located) } else { Vec::new() },
        lock: None,
        tiers,
    })
}

/// Follows `executor_id` from element to element as far as they can be found.
fn chain(engine: &Engine, tool: Located) -> Vec<Element> {
    let mut elements: Vec<Element> = Vec::new();
    let mut next = Some(tool);
    while let Some(located) = next.take() {
        let report = report(&located, &engine.workspace.keys);
        let space = located.space().clone();
        let executor =
            located.fields().get("executor_id").and_then(Value::as_str).map(rye_item::text::one_line);
        elements.push(Element {
            item_id: located.item().id.to_string(),
            space: Some(space.clone()),
            verdict: Some(report.verdict),
            hash: report.signature.map(|line| line.hash.to_hex()),
            executor_id: executor.clone(),
        });
        let Some(executor) = executor else { break };
        let is_circular = elements.iter().any(|element| element.item_id == executor);
        let found = ItemId::new(executor.clone())
            .ok()
            .filter(|_| !is_circular && elements.len() < MAX_CHAIN)
            .and_then(|id| {
                engine.workspace.spaces.locate_below(&ItemRef::new(ItemType::Tool, id), &space).ok()
            });
        match found {
            Some(located) => next = Some(located),
            None => {
                let absent =
                    Element { item_id: executor, space: None, verdict: None, hash: None, executor_id: None };
                elements.push(absent);
            }
        }
    }
    elements
}
