//! A tool's chain, built from the workspace; what was admitted once stays admitted while its bytes stay the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lillux::Digest;
use rye_exec::chain::{self, Aliases, Chain, ChainError};
use rye_exec::validate::validate;
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::ItemFile;
use rye_space::file_stamp::{MonitoredSet, WatchSet};
use rye_trust::{Admitted, Subject};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::missing::with_first_hints;
use crate::missing_executor;
use crate::natives;

/// More than any project's tools, runtimes and primitives in use at once.
const MAX_CACHED_ITEMS: usize = 2048;
/// The bytes of their files; what was made of them takes a few times that.
const MAX_CACHED_BYTES: usize = 4 << 20;

/// More tools than are run in one process.
const MAX_CACHED_CHAINS: usize = 256;
/// What a chain is made from; longer ones are few, and are built each time.
const MAX_CHAIN_BYTES: usize = 32 << 10;

/// What a process that stays remembers: items that were admitted, by where they are and what their bytes are, and whole
/// chains, as long as nothing that decided them looks different.
#[derive(Default)]
pub(crate) struct ChainCache {
    items: Mutex<CachedItems>,
    /// Of a tool that was built once there is no chain yet, where the process may end after it.
    chains: Mutex<HashMap<ItemRef, Option<Arc<CachedChain>>>>,
    /// Every tool that runs others, for hints; read when the first chain misses one.
    executors: Mutex<Option<Arc<[ItemRef]>>>,
}

/// A chain, what the validator said of it, and all that it was made from.
struct CachedChain {
    chain: Chain,
    warnings: Vec<String>,
    watch_set: MonitoredSet,
}

#[derive(Default)]
struct CachedItems {
    items: HashMap<(ItemRef, Space), CachedItem>,
    bytes: usize,
}

impl CachedItems {
    fn clear(&mut self) {
        self.items.clear();
        self.bytes = 0;
    }
}

/// The digest of the bytes it was admitted with, and the item.
type CachedItem = (Digest, Arc<Admitted<ItemFile>>);

impl ChainCache {
    /// Forgets everything: keys or settings have changed.
    pub(crate) fn clear(&self) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.chains().clear();
        *self.executors.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The tools that run others, which `find` finds if they are not known yet.
    pub(crate) fn executors(&self, find: impl FnOnce() -> Vec<ItemRef>) -> Arc<[ItemRef]> {
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(executors.get_or_insert_with(|| find().into()))
    }

    fn chains(&self) -> MutexGuard<'_, HashMap<ItemRef, Option<Arc<CachedChain>>>> {
        self.chains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chain of a tool, if nothing has changed since it was built.
    fn get_chain(&self, item: &ItemRef) -> Option<(Chain, Vec<String>)> {
        let cached = self.chains().get(item).cloned().flatten()?;
        if cached.watch_set.is_unchanged() {
            return Some((cached.chain.clone(), cached.warnings.clone()));
        }
        self.chains().remove(item);
        None
    }

    /// Notes that the chain of a tool is built; whether it was built before.
    fn mark_built(&self, item: &ItemRef) -> bool {
        let mut chains = self.chains();
        if chains.contains_key(item) {
            return true;
        }
        if chains.len() < MAX_CACHED_CHAINS {
            chains.insert(item.clone(), None);
        }
        false
    }

    fn insert_chain(&self, item: &ItemRef, chain: &Chain, warnings: &[String], watch_set: WatchSet) {
        let size: usize = chain.elements().iter().map(|element| element.item().bytes().len()).sum();
        if size > MAX_CHAIN_BYTES {
            return;
        }
        let mut chains = self.chains();
        if chains.len() >= MAX_CACHED_CHAINS {
            chains.clear();
        }
        let watch_set = MonitoredSet::new(watch_set);
        let cached = CachedChain { chain: chain.clone(), warnings: warnings.to_vec(), watch_set };
        chains.insert(item.clone(), Some(Arc::new(cached)));
    }
}

impl Engine {
    /// [`Engine::admit`], remembered.
    pub(crate) fn admit_cached(&self, located: ItemFile) -> Result<Arc<Admitted<ItemFile>>> {
        let key = (located.item().clone(), located.space().clone());
        let digest = Digest::of(located.bytes());
        let size = located.bytes().len();
        let lock = || self.chain_cache.items.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, admitted)) = lock().items.get(&key)
            && *known == digest
            && admitted.path == located.path
        {
            return Ok(Arc::clone(admitted));
        }
        // Not held meanwhile: verifying takes time, and others read too.
        let admitted = Arc::new(self.admit(located)?);
        let mut cache = lock();
        if cache.items.len() >= MAX_CACHED_ITEMS || cache.bytes + size > MAX_CACHED_BYTES {
            cache.clear();
        }
        if size <= MAX_CACHED_BYTES {
            cache.bytes += size;
            cache.items.insert(key, (digest, Arc::clone(&admitted)));
        }
        Ok(admitted)
    }
}

/// Builds the chain of a tool, looked for in one tier only if that is given: every element found, admitted, and in reach of the one that names it.
///
/// # Errors
/// When the tool is not found, an element is refused, or the chain is not one.
pub fn build(engine: &Engine, item: &ItemRef, tier: Option<SpaceTier>) -> Result<Chain> {
    let spaces = &engine.workspace.spaces;
    let tool = engine.locate(item, tier)?;
    chain::build(tool, spaces, &executor_aliases(engine), &|located| engine.admit_cached(located)).map_err(
        |error| {
            let is_server =
                matches!(error, ChainError::UnknownPrimitive { .. }) && is_server(engine, item, tier);
            let meant = match &error {
                ChainError::ExecutorNotFound { executor, .. } => engine.meant_executor(executor),
                _ => None,
            };
            let last = match &error {
                ChainError::UnknownPrimitive { id, .. } if !is_server => {
                    unrunnable_hint(engine, item, id, tier)
                }
                _ => None,
            };
            let error = chain_error(error, item, is_server);
            let meant = meant.or(last);
            match meant {
                Some(meant) => with_first_hints(error, vec![meant]),
                None => error,
            }
        },
    )
}

/// What to say of the last element of a chain that ends in nothing.
fn unrunnable_hint(engine: &Engine, item: &ItemRef, last: &str, tier: Option<SpaceTier>) -> Option<String> {
    let is_tool = item.id.as_str() == last;
    let element = ItemRef::new(ItemType::Tool, ItemId::new(last).ok()?);
    let located = engine.locate(&element, tier.filter(|_| is_tool)).ok()?;
    Some(missing_executor::hint(&located))
}

/// Whether a tool describes an MCP server, whose tools are items of their own.
fn is_server(engine: &Engine, item: &ItemRef, tier: Option<SpaceTier>) -> bool {
    engine.locate(item, tier).is_ok_and(|located| natives::is_server_item(located.fields()))
}

pub(crate) fn executor_aliases(engine: &Engine) -> Aliases {
    let setting = |name: &str| engine.workspace.settings.get(name);
    Aliases::from_settings(setting("execution.aliases"), setting("execution.function_aliases"))
}

/// Builds and validates.
///
/// # Errors
/// As [`build`], and when a rule between two elements is broken.
pub fn build_valid_chain(
    engine: &Engine,
    item: &ItemRef,
    tier: Option<SpaceTier>,
) -> Result<(Chain, Vec<String>)> {
    if tier.is_none()
        && let Some(cached) = engine.chain_cache.get_chain(item)
    {
        return Ok(cached);
    }
    // Where a process may end after one run, a chain is worth remembering from its second use on.
    let is_cacheable = tier.is_none() && (engine.chain_cache.mark_built(item) || engine.is_warm());
    let started_at = engine.unix_nanoseconds();
    let chain = build(engine, item, tier)?;
    let validation = validate(&chain.links());
    if validation.is_valid() {
        // What changed since then was not there to be read, perhaps.
        if is_cacheable
            && let Some(watch_set) = chain.watch_set(&engine.workspace.spaces, &executor_aliases(engine))
            && watch_set.is_settled(started_at)
        {
            engine.chain_cache.insert_chain(item, &chain, &validation.warnings, watch_set);
        }
        return Ok((chain, validation.warnings));
    }
    let message = format!("Chain validation failed: {}", validation.issues.join("; "));
    Err(Error::new(Code::ChainInvalid, message)
        .for_item(item)
        .detail("issues", validation.issues)
        .hint(format!("see each element: rye why tool {}", item.id)))
}

fn chain_error(error: ChainError<Error>, item: &ItemRef, is_server: bool) -> Error {
    let message = error.to_string();
    let (code, trail, hint) = match error {
        ChainError::Locate(error) => return error.into(),
        ChainError::Refused(error) => return error,
        ChainError::ExecutorNotFound { trail, executor } => {
            let hint = format!("look for it: rye search {}", executor.rsplit('/').next().unwrap_or_default());
            (Code::ExecutorMissing, trail, hint)
        }
        ChainError::SpaceViolation { trail, .. } => {
            let hint =
                "an element can use its own space and lower ones: move the executor down, or the tool up";
            (Code::ChainInvalid, trail, hint.to_owned())
        }
        ChainError::Circular { trail } => {
            (Code::ChainCircular, trail, "make one of them run on a runtime instead".to_owned())
        }
        ChainError::TooDeep { trail } => {
            (Code::ChainTooDeep, trail, "a tool runs on a runtime, and a runtime on a primitive".to_owned())
        }
        ChainError::UnknownPrimitive { trail, .. } if is_server => {
            let call = format!("rye execute rye/mcp/manager action=refresh server={}", item.id);
            let hint =
                format!("it is an MCP server and cannot be run itself; to make items of its tools: {call}");
            (Code::UnknownPrimitive, trail, hint)
        }
        ChainError::UnknownPrimitive { trail, .. } => {
            let hint = "a chain ends in a primitive: name one, or a runtime, as its executor_id";
            (Code::UnknownPrimitive, trail, hint.to_owned())
        }
        ChainError::InvalidExecutor { trail, .. } => (
            Code::ChainInvalid,
            trail,
            "an executor_id is an item id, such as `rye/core/runtimes/python/function`".to_owned(),
        ),
    };
    Error::new(code, message).for_item(item).detail("trail", trail.0).hint(hint)
}
