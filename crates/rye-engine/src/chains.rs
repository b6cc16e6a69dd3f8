//! A tool's chain, built from the workspace; what was admitted once stays admitted while its bytes stay the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lillux::Digest;
use rye_exec::chain::{self, Aliases, Chain, ChainError};
use rye_exec::validate::validate;
use rye_item::space::Tier;
use rye_item::{ItemRef, Space};
use rye_space::Located;
use rye_space::stamp::Watched;
use rye_trust::{Admitted, Subject};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// More than any project's tools, runtimes and primitives in use at once.
const MOST_KEPT: usize = 2048;
/// The bytes of their files; what was made of them takes a few times that.
const MOST_BYTES: usize = 4 << 20;

/// More tools than are run in one process.
const MOST_CHAINS: usize = 256;
/// What a chain is made from; longer ones are few, and are built each time.
const MOST_CHAIN_BYTES: usize = 32 << 10;

/// What a process that stays remembers: items that were admitted, by where they are and what their bytes are, and whole
/// chains, as long as nothing that decided them looks different.
#[derive(Default)]
pub(crate) struct Kept {
    items: Mutex<KeptItems>,
    chains: Mutex<HashMap<ItemRef, Arc<KeptChain>>>,
}

/// A chain, what the validator said of it, and all that it was made from.
struct KeptChain {
    chain: Chain,
    warnings: Vec<String>,
    watched: Watched,
}

#[derive(Default)]
struct KeptItems {
    items: HashMap<(ItemRef, Space), KeptItem>,
    bytes: usize,
}

impl KeptItems {
    fn clear(&mut self) {
        self.items.clear();
        self.bytes = 0;
    }
}

/// The digest of the bytes it was admitted with, and the item.
type KeptItem = (Digest, Arc<Admitted<Located>>);

impl Kept {
    /// Forgets everything: keys or settings have changed.
    pub(crate) fn clear(&self) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.chains().clear();
    }

    fn chains(&self) -> MutexGuard<'_, HashMap<ItemRef, Arc<KeptChain>>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chain of a tool, if nothing has changed since it was built.
    fn chain(&self, item: &ItemRef) -> Option<(Chain, Vec<String>)> {
        let kept = self.chains().get(item).map(Arc::clone)?;
        if kept.watched.is_unchanged() {
            return Some((kept.chain.clone(), kept.warnings.clone()));
        }
        self.chains().remove(item);
        None
    }

    fn keep_chain(&self, item: &ItemRef, chain: &Chain, warnings: &[String], watched: Watched) {
        let size: usize = chain.elements().iter().map(|element| element.item().bytes().len()).sum();
        if size > MOST_CHAIN_BYTES {
            return;
        }
        let mut chains = self.chains();
        if chains.len() >= MOST_CHAINS {
            chains.clear();
        }
        let kept = KeptChain { chain: chain.clone(), warnings: warnings.to_vec(), watched };
        chains.insert(item.clone(), Arc::new(kept));
    }
}

impl Engine {
    /// [`Engine::admit`], remembered.
    pub(crate) fn admit_kept(&self, located: Located) -> Result<Arc<Admitted<Located>>> {
        let key = (located.item().clone(), located.space().clone());
        let digest = Digest::of(located.bytes());
        let size = located.bytes().len();
        let lock = || self.kept.items.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, admitted)) = lock().items.get(&key)
            && *known == digest
            && admitted.path == located.path
        {
            return Ok(Arc::clone(admitted));
        }
        // Not held meanwhile: verifying takes time, and others read too.
        let admitted = Arc::new(self.admit(located)?);
        let mut kept = lock();
        if kept.items.len() >= MOST_KEPT || kept.bytes + size > MOST_BYTES {
            kept.clear();
        }
        if size <= MOST_BYTES {
            kept.bytes += size;
            kept.items.insert(key, (digest, Arc::clone(&admitted)));
        }
        Ok(admitted)
    }
}

/// Builds the chain of a tool, looked for in one tier only if that is given: every element found, admitted, and in reach of the one that names it.
///
/// # Errors
/// When the tool is not found, an element is refused, or the chain is not one.
pub fn build(engine: &Engine, item: &ItemRef, tier: Option<Tier>) -> Result<Chain> {
    let spaces = &engine.workspace.spaces;
    let tool = spaces.locate(item, tier)?;
    chain::build(tool, spaces, &aliases(engine), &|located| engine.admit_kept(located))
        .map_err(|error| chain_error(error, item))
}

pub(crate) fn aliases(engine: &Engine) -> Aliases {
    let setting = |name: &str| engine.workspace.settings.get(name);
    Aliases::from_settings(setting("execution.aliases"), setting("execution.function_aliases"))
}

/// Builds and validates.
///
/// # Errors
/// As [`build`], and when a rule between two elements is broken.
pub fn build_valid(engine: &Engine, item: &ItemRef, tier: Option<Tier>) -> Result<(Chain, Vec<String>)> {
    let is_kept = engine.is_warm() && tier.is_none();
    if is_kept && let Some(kept) = engine.kept.chain(item) {
        return Ok(kept);
    }
    let began = engine.unix_nanoseconds();
    let chain = build(engine, item, tier)?;
    let validation = validate(&chain.links());
    if validation.is_valid() {
        // What changed since then was not there to be read, perhaps.
        if is_kept
            && let Some(watched) = chain.watched(&engine.workspace.spaces, &aliases(engine))
            && watched.is_settled(began)
        {
            engine.kept.keep_chain(item, &chain, &validation.warnings, watched);
        }
        return Ok((chain, validation.warnings));
    }
    let message = format!("Chain validation failed: {}", validation.issues.join("; "));
    Err(Error::new(Code::ChainInvalid, message)
        .of(item)
        .detail("issues", validation.issues)
        .hint(format!("see each element: rye why tool {}", item.id)))
}

fn chain_error(error: ChainError<Error>, item: &ItemRef) -> Error {
    let message = error.to_string();
    let (code, trail, hint) = match error {
        ChainError::Locate(error) => return error.into(),
        ChainError::Refused(error) => return error,
        ChainError::Missing { trail, executor } => {
            let hint = format!("look for it: rye search {}", executor.rsplit('/').next().unwrap_or_default());
            (Code::ExecutorMissing, trail, hint)
        }
        ChainError::Space { trail, .. } => {
            let hint =
                "an element sees its own space and those below: move the executor down, or the tool up";
            (Code::ChainInvalid, trail, hint.to_owned())
        }
        ChainError::Circular { trail } => {
            (Code::ChainCircular, trail, "let one of them run on a runtime instead".to_owned())
        }
        ChainError::TooDeep { trail } => (
            Code::ChainTooDeep,
            trail,
            "let a tool run on a runtime, and a runtime on a primitive".to_owned(),
        ),
        ChainError::UnknownPrimitive { trail, .. } => (
            Code::UnknownPrimitive,
            trail,
            "it states no executor_id, and is nothing the engine can do".to_owned(),
        ),
        ChainError::InvalidExecutor { trail, .. } => (
            Code::ChainInvalid,
            trail,
            "an executor_id is an item id, such as `rye/core/runtimes/python/function`".to_owned(),
        ),
    };
    Error::new(code, message).of(item).detail("trail", trail.0).hint(hint)
}
