//! `search` and `fetch`: ranked items, each with how far it can be trusted right now.

use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType};
use rye_space::CandidatePath;
use rye_space::search::{
    self, Correction, IndexProgress, Query, SearchHit, SearchIndex, SearchRequest, SpaceWatcher,
};
use rye_trust::{TrustVerdict, verify::evaluate};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What to search for.
#[derive(Clone, Debug, Default)]
pub struct SearchOptions {
    /// The query.
    pub query: String,
    /// Only this type.
    pub item_type: Option<ItemType>,
    /// Only this space.
    pub tier: Option<SpaceTier>,
    /// Only ids within this prefix.
    pub prefix: String,
    /// How many at most; the setting `search.limit` if not given.
    pub limit: Option<usize>,
    /// Every file, shadowed ones too, without a limit unless one is given.
    pub all: bool,
}

/// A row of the answer.
#[derive(Clone, Debug, Serialize)]
pub struct SearchRow {
    /// Its type.
    #[serde(rename = "type")]
    pub item_type: ItemType,
    /// Its id.
    pub item_id: String,
    /// Its space.
    pub space: String,
    /// Higher is better.
    pub score: f64,
    /// Its title.
    pub title: String,
    /// Its description.
    pub description: String,
    /// Its version.
    pub version: String,
    /// Whether a key that counts signed it.
    pub signed: bool,
    /// How much that signature covers.
    pub coverage: &'static str,
    /// The verdict in a word.
    pub verdict: &'static str,
    /// The spaces whose file of this id it hides.
    pub shadows: Vec<String>,
    /// The space that hides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadowed_by: Option<String>,
}

/// The answer of a search.
#[derive(Clone, Debug, Serialize)]
pub struct SearchResponse {
    /// The best rows.
    pub results: Vec<SearchRow>,
    /// How many there are in all.
    pub total: usize,
    /// The query as given.
    pub query: String,
    /// Milliseconds it took, the comparing of the index included.
    pub took_ms: f64,
    /// Ids that look like what was asked for, when nothing was found.
    pub suggestions: Vec<String>,
    /// Words that no item has, and the words of ids and titles that were searched for instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub corrections: Vec<Correction>,
}

/// Searches.
///
/// # Errors
/// When the query cannot be read or the index fails.
pub fn search(
    engine: &Engine,
    options: &SearchOptions,
    progress: IndexProgress<'_>,
) -> Result<SearchResponse> {
    let start = std::time::Instant::now();
    let query = Query::parse(&options.query).map_err(|error| {
        Error::new(Code::InvalidQuery, error.to_string())
            .hint("supported: words, \"phrases\", prefix*, AND, OR, NOT and parentheses")
    })?;
    let setting = engine.workspace.settings.get("search.limit").and_then(serde_json::Value::as_u64);
    let default = setting.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(10);
    let request = SearchRequest {
        query,
        types: options.item_type.into_iter().collect(),
        tier: options.tier,
        prefix: options.prefix.clone(),
        limit: options.limit.unwrap_or(if options.all { usize::MAX } else { default }),
        include_shadowed: options.all,
    };
    let failed =
        |error: search::IndexError| Error::new(Code::Index, format!("the search index failed: {error}"));
    let path = engine.index_path();
    let spaces = &engine.workspace.spaces;
    let mut state = engine.search_state();
    let is_fresh = state.watcher.as_ref().is_some_and(|watcher| !watcher.take_dirty());
    if engine.is_warm() && !is_fresh {
        // Again each time: a folder that has just come is watched from now on. What stirs from here is compared next time.
        state.watcher = SpaceWatcher::start(spaces).inspect(|watcher| {
            let _ = watcher.take_dirty();
        });
    }
    let mut index = match state.index.take() {
        Some(index) => index,
        None => SearchIndex::open(&path).map_err(failed)?,
    };
    let found = search::search(&mut index, &path, spaces, &request, is_fresh, progress);
    let unreadable = index.unreadable().first().cloned();
    state.index = Some(index);
    drop(state);
    let found = found.map_err(failed)?;
    if let Some(folder) = unreadable {
        return Err(Error::unreadable_folder(&folder));
    }
    Ok(SearchResponse {
        results: found.hits.into_iter().map(|hit| to_row(engine, hit)).collect(),
        total: found.total,
        query: options.query.clone(),
        took_ms: (start.elapsed().as_secs_f64() * 1e6).round() / 1e3,
        suggestions: found.suggestions,
        corrections: found.corrections,
    })
}

/// A hit with its verdict, judged now: trust may have changed since the file was indexed.
fn to_row(engine: &Engine, hit: SearchHit) -> SearchRow {
    let report = candidate_path(engine, &hit)
        .and_then(|candidate| engine.workspace.spaces.read(&hit.item, &candidate).ok())
        .map(|located| evaluate(&located, &engine.workspace.keys));
    let (verdict, coverage) = match &report {
        Some(report) => (report.verdict.as_str(), report.coverage.as_str()),
        None => ("unreadable", "none"),
    };
    let signed = report
        .as_ref()
        .is_some_and(|report| matches!(report.verdict, TrustVerdict::Full | TrustVerdict::Partial));
    SearchRow {
        item_type: hit.item.item_type,
        item_id: hit.item.id.to_string(),
        space: hit.space,
        score: (hit.score * 1e4).round() / 1e4,
        title: clean_text(&hit.title),
        description: clean_text(&hit.description),
        version: clean_text(&hit.version),
        signed,
        coverage: if signed { coverage } else { "none" },
        verdict,
        shadows: hit.shadows,
        shadowed_by: hit.shadowed_by,
    }
}

fn clean_text(text: &str) -> String {
    rye_item::text::one_line(text)
}

fn candidate_path(engine: &Engine, hit: &SearchHit) -> Option<CandidatePath> {
    let spaces = &engine.workspace.spaces;
    let space = spaces.order().find(|space| space.to_string() == hit.space)?;
    let relative = format!("{}/{}{}", hit.item.item_type.folder(), hit.item.id, hit.extension);
    let path = spaces.folder(&space).unwrap_or_default().join(relative);
    Some(CandidatePath { space, path, extension: hit.extension.clone(), is_found: true })
}

/// Ids of the workspace that begin with `start`, for completion.
#[must_use]
pub fn complete_ids(engine: &Engine, item_type: Option<ItemType>, start: &str) -> Vec<ItemRef> {
    let types: Vec<ItemType> =
        item_type.map_or_else(|| ItemType::SEARCHABLE.to_vec(), |item_type| vec![item_type]);
    let spaces = &engine.workspace.spaces;
    let mut items: Vec<ItemRef> = spaces
        .order()
        .flat_map(|space| spaces.scan(&space, &types).entries)
        .map(|entry| entry.item)
        .filter(|item| item.id.as_str().starts_with(start))
        .collect();
    items.sort();
    items.dedup();
    items
}

/// Reads a scope: `tool`, or dotted with a wildcard, `tool.rye.core.*`, also as `rye.fetch.tool.rye.core.*`.
///
/// # Errors
/// When it names no type.
pub fn parse_scope(scope: &str) -> Result<(ItemType, String)> {
    rye_item::scope::parse_scope(scope).map_err(|error| {
        Error::new(Code::InvalidArgument, error.to_string())
            .hint("write it as `tool`, or as `tool.rye.core.*`")
    })
}
