//! `why`: where an item resolves, what it hides, who signed it, and what it runs on.

use std::convert::Infallible;
use std::path::PathBuf;

use rye_exec::chain::{ChainError, MAX_DEPTH, Trail, find_executor};
use rye_item::{ItemRef, ItemType, Space};
use rye_space::ItemFile;
use rye_trust::verify::evaluate;
use rye_trust::{Subject, TrustVerdict};
use serde::Serialize;
use serde_json::{Value, json};

use crate::chain_cache;
use crate::engine::Engine;
use crate::error::Result;
use crate::lockfiles::{self, LockState};
use crate::verbs::load::ItemSigner;

/// A place that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateRow {
    /// The space.
    pub space: Space,
    /// The file there, or the one looked for first.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Whether it is there.
    pub found: bool,
    /// The verdict on it, if it is there.
    pub verdict: Option<TrustVerdict>,
}

/// An element of the chain.
#[derive(Clone, Debug, Serialize)]
pub struct ChainElementRow {
    /// Its id.
    pub item_id: String,
    /// Its space, if it was found.
    pub space: Option<Space>,
    /// The verdict on it, if it was found.
    pub verdict: Option<TrustVerdict>,
    /// The hash its signature names.
    pub hash: Option<String>,
    /// Who signed it.
    pub signer: Option<ItemSigner>,
    /// Whether its lockfiles pin it as it is: `pinned`, `changed`, or nothing without a lockfile.
    pub lock: Option<&'static str>,
    /// What it runs on.
    pub executor_id: Option<String>,
    /// Why the chain ends here without a primitive, if it does.
    pub problem: Option<&'static str>,
}

/// The item itself.
#[derive(Clone, Debug, Serialize)]
pub struct ResolvedItemRow {
    /// Its type.
    #[serde(rename = "type")]
    pub item_type: ItemType,
    /// Its id.
    pub item_id: String,
    /// Its space.
    pub space: Space,
    /// Its file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Its version.
    pub version: Option<String>,
    /// The verdict on it.
    pub verdict: TrustVerdict,
    /// Why the verdict is not good.
    pub reason: Option<String>,
}

/// The answer of a why.
#[derive(Clone, Debug, Serialize)]
pub struct WhyResponse {
    /// The winner.
    pub item: ResolvedItemRow,
    /// Every place that was looked at, highest first.
    pub tiers: Vec<CandidateRow>,
    /// The spaces whose file it hides.
    pub shadows: Vec<Space>,
    /// Who signed it.
    pub signer: Option<ItemSigner>,
    /// How much the signature covers.
    pub coverage: &'static str,
    /// What it runs on, element by element; empty for what does not run.
    pub chain: Vec<ChainElementRow>,
    /// Why the chain cannot run, if it cannot.
    pub chain_problem: Option<String>,
    /// Its lockfile, if there is one.
    pub lock: Option<Value>,
}

/// Explains an item.
///
/// # Errors
/// When no space has it or it cannot be read.
pub fn why(engine: &Engine, item: &ItemRef) -> Result<WhyResponse> {
    let spaces = &engine.workspace.spaces;
    let candidates = spaces.candidate_paths(item);
    let located = engine.locate(item, None)?;
    let winner = evaluate(&located, &engine.workspace.keys);
    let tiers: Vec<CandidateRow> = candidates
        .iter()
        .map(|candidate| {
            let found = candidate.is_found.then(|| spaces.read(item, candidate).ok()).flatten();
            CandidateRow {
                space: candidate.space.clone(),
                path: candidate.path.clone(),
                found: candidate.is_found,
                verdict: found.map(|located| evaluate(&located, &engine.workspace.keys).verdict),
            }
        })
        .collect();
    let shadows = tiers.iter().filter(|tier| tier.found).skip(1).map(|tier| tier.space.clone()).collect();
    let version = located.fields().get("version").and_then(Value::as_str).map(rye_item::text::one_line);
    let (space, path) = (located.space().clone(), located.path.clone());
    let is_tool = item.item_type == ItemType::Tool;
    let chain_problem = is_tool.then(|| chain_cache::build_valid_chain(engine, item, None).err()).flatten();
    let mut chain = if is_tool { trace_chain(engine, located) } else { Vec::new() };
    let lock = if is_tool && chain_problem.is_none() { lock_summary(engine, item, &mut chain) } else { None };
    Ok(WhyResponse {
        item: ResolvedItemRow {
            item_type: item.item_type,
            item_id: item.id.to_string(),
            space: space.clone(),
            path,
            version,
            verdict: winner.verdict,
            reason: winner.reason.clone(),
        },
        shadows,
        signer: ItemSigner::from_report(&winner),
        coverage: winner.coverage.as_str(),
        chain,
        chain_problem: chain_problem.map(|error| error.message),
        lock,
        tiers,
    })
}

/// What the tool's lockfiles say, and of each element whether it is as they pin it.
fn lock_summary(engine: &Engine, item: &ItemRef, chain: &mut [ChainElementRow]) -> Option<Value> {
    let resolved = crate::resolve::resolve_tool(engine, item);
    let state = resolved.and_then(|resolved| lockfiles::check(engine, &resolved));
    let display_paths =
        |paths: &[PathBuf]| -> Vec<String> { paths.iter().map(|path| path.display().to_string()).collect() };
    match state {
        Ok(LockState::None) => None,
        Ok(LockState::Matched { lockfiles }) => {
            chain.iter_mut().for_each(|element| element.lock = Some("pinned"));
            Some(json!({"state": "held", "paths": display_paths(&lockfiles)}))
        }
        Ok(LockState::Stale { path, why }) => {
            Some(json!({"state": "stale", "paths": display_paths(&[path]), "reason": why}))
        }
        Ok(LockState::Mismatch(mismatch)) => {
            for element in chain.iter_mut() {
                let is_changed = mismatch.differences.iter().any(|one| one.element == element.item_id);
                element.lock = Some(if is_changed { "changed" } else { "pinned" });
            }
            let reasons: Vec<String> = mismatch.differences.iter().map(ToString::to_string).collect();
            Some(json!({
                "state": "mismatch",
                "paths": display_paths(std::slice::from_ref(&mismatch.path)),
                "reason": reasons.join("; "),
                "accept": mismatch.accept,
            }))
        }
        Err(error) => Some(json!({"state": "error", "paths": [], "reason": error.message})),
    }
}

/// Follows `executor_id` from element to element as far as they can be found, verified or not.
fn trace_chain(engine: &Engine, tool: ItemFile) -> Vec<ChainElementRow> {
    let aliases = chain_cache::executor_aliases(engine);
    let mut elements: Vec<ChainElementRow> = Vec::new();
    let mut next = Some(tool);
    while let Some(located) = next.take() {
        let report = evaluate(&located, &engine.workspace.keys);
        let space = located.space().clone();
        let executor =
            located.fields().get("executor_id").and_then(Value::as_str).map(rye_item::text::one_line);
        let id = located.item().id.to_string();
        elements.push(ChainElementRow {
            item_id: id.clone(),
            space: Some(space.clone()),
            verdict: Some(report.verdict),
            signer: ItemSigner::from_report(&report),
            hash: report.signature.map(|line| line.hash.to_hex()),
            lock: None,
            executor_id: executor.clone(),
            problem: None,
        });
        let Some(executor) = executor else { break };
        let spaces = &engine.workspace.spaces;
        let found = find_executor::<Infallible>(&executor, &located, spaces, &aliases, &Trail::default());
        let known = |found: &ItemFile| {
            let id = found.item().id.as_str();
            elements
                .iter()
                .find(|element| element.item_id == id && element.space.as_ref() == Some(found.space()))
        };
        let (item_id, space, verdict, problem) = match found {
            Ok(found) if known(&found).is_some() => {
                let verdict = known(&found).and_then(|element| element.verdict);
                (
                    found.item().id.to_string(),
                    Some(found.space().clone()),
                    verdict,
                    "circular: it is in the chain already",
                )
            }
            Ok(found) if elements.len() < MAX_DEPTH => {
                next = Some(found);
                continue;
            }
            Ok(found) => {
                (found.item().id.to_string(), Some(found.space().clone()), None, "the chain is too long")
            }
            Err(ChainError::SpaceViolation { .. }) => {
                (executor, None, None, "only in a space that cannot be used from here")
            }
            Err(ChainError::InvalidExecutor { .. }) => (executor, None, None, "invalid id"),
            Err(ChainError::Locate(_)) => (executor, None, None, "cannot be read"),
            Err(
                ChainError::ExecutorNotFound { .. }
                | ChainError::Circular { .. }
                | ChainError::TooDeep { .. }
                | ChainError::UnknownPrimitive { .. },
            ) => (executor, None, None, "not found"),
            Err(ChainError::Refused(never)) => match never {},
        };
        let problem = Some(problem);
        let (signer, hash, lock, executor_id) = (None, None, None, None);
        elements.push(ChainElementRow { item_id, space, verdict, signer, hash, lock, executor_id, problem });
    }
    elements
}
