//! Finding items by words: ranked by BM25 with the extractors' field weights, one row per id.

mod index;
mod query;
mod shadow;
mod suggest;
mod watch;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use lillux::Digest;
use rusqlite::Connection;
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};

/// What the database says when it fails.
pub use rusqlite::Error as IndexError;

pub use index::{IndexProgress, RefreshStats, SearchIndex};
use query::FACET_PREFIX;
pub use query::{Query, QueryError};
pub use watch::SpaceWatcher;

use crate::roots::{Roots, canonicalize_existing};
use crate::spaces::Spaces;

/// What to search for.
#[derive(Clone, Debug)]
pub struct SearchRequest {
    /// The query.
    pub query: Query,
    /// Only these types; all findable ones if empty.
    pub types: Vec<ItemType>,
    /// Only this tier.
    pub tier: Option<SpaceTier>,
    /// Only ids within this prefix.
    pub prefix: String,
    /// How many rows at most.
    pub limit: usize,
    /// A row for every file, shadowed ones too.
    pub include_shadowed: bool,
}

/// One item that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchHit {
    /// The item.
    pub item: ItemRef,
    /// The space's label.
    pub space: String,
    /// The file's extension.
    pub extension: String,
    /// Higher is better.
    pub score: f64,
    /// Its title.
    pub title: String,
    /// Its description.
    pub description: String,
    /// Its version.
    pub version: String,
    /// The labels of the spaces whose file of this id it hides.
    pub shadows: Vec<String>,
    /// The label of the space that hides it.
    pub shadowed_by: Option<String>,
}

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchResults {
    /// The best rows.
    pub hits: Vec<SearchHit>,
    /// How many there are in all.
    pub total: usize,
    /// Ids that look like what was asked for, when nothing was found.
    pub suggestions: Vec<String>,
}

/// The path of the index for these roots.
#[must_use]
pub fn index_path(roots: &Roots) -> PathBuf {
    let project = roots.project.as_deref().map(canonicalize_existing).unwrap_or_default();
    let user = canonicalize_existing(&roots.user);
    let pieces = [project.as_os_str().as_encoded_bytes(), b"\0", user.as_os_str().as_encoded_bytes()];
    roots.cache.join("index").join(format!("{}.db", Digest::of_pieces(pieces).short()))
}

/// Searches the index, which is brought up to date first unless `is_fresh`. An index that fails is made anew once.
///
/// # Errors
/// When the database fails twice.
pub fn search(
    index: &mut SearchIndex,
    path: &std::path::Path,
    spaces: &Spaces,
    request: &SearchRequest,
    is_fresh: bool,
    progress: IndexProgress<'_>,
) -> rusqlite::Result<SearchResults> {
    let first = try_search(index, spaces, request, is_fresh, progress);
    match first {
        Ok(found) => Ok(found),
        Err(error) => {
            // Closed before another takes its place: closing removes the log by its name.
            *index = SearchIndex::in_memory()?;
            *index = SearchIndex::recover(&error, path)?;
            try_search(index, spaces, request, false, progress)
        }
    }
}

fn try_search(
    index: &mut SearchIndex,
    spaces: &Spaces,
    request: &SearchRequest,
    is_fresh: bool,
    progress: IndexProgress<'_>,
) -> rusqlite::Result<SearchResults> {
    if !is_fresh {
        index.refresh(spaces, progress)?;
    }
    run_query(index, spaces, request)
}

/// Where a space stands: lower is higher precedence.
fn space_ranks(spaces: &Spaces) -> HashMap<String, usize> {
    spaces.order().enumerate().map(|(rank, space)| (space.to_string(), rank)).collect()
}

fn run_query(
    index: &mut SearchIndex,
    spaces: &Spaces,
    request: &SearchRequest,
) -> rusqlite::Result<SearchResults> {
    index.drop_stale_rankings()?;
    let (connection, rankings) = index.connection_and_rankings();
    // One view of the index, whatever another process writes meanwhile.
    let connection = &*connection.unchecked_transaction()?;
    let types: Vec<ItemType> = ItemType::SEARCHABLE
        .into_iter()
        .filter(|item_type| request.types.is_empty() || request.types.contains(item_type))
        .collect();
    let mut hits = Vec::new();
    // Types whose fields weigh the same are searched together.
    let mut groups: Vec<([f64; 5], Vec<ItemType>)> = Vec::new();
    for item_type in types {
        let weights = weights(spaces, item_type);
        match groups.iter_mut().find(|(known, _)| *known == weights) {
            Some((_, group)) => group.push(item_type),
            None => groups.push((weights, vec![item_type])),
        }
    }
    let mut total = 0;
    for (weights, group) in &groups {
        let (mut found, count) = query_group(connection, rankings, spaces, request, group, weights)?;
        hits.append(&mut found);
        total += count;
    }
    hits.sort_by(|left: &SearchHit, right: &SearchHit| {
        right
            .score
            .total_cmp(&left.score)
            .then_with(|| left.item.cmp(&right.item))
            .then_with(|| left.space.cmp(&right.space))
    });
    hits.truncate(request.limit);
    let suggestions = if total == 0 { suggest::suggest(connection, request)? } else { Vec::new() };
    Ok(SearchResults { hits, total, suggestions })
}

fn weights(spaces: &Spaces, item_type: ItemType) -> [f64; 5] {
    let declared = &spaces.extractors().for_type(item_type).search_weights;
    ["title", "name", "description", "category", "content"]
        .map(|field| declared.iter().find(|(known, _)| known == field).map_or(0.0, |(_, weight)| *weight))
}

/// One row of the ranking: the item's row number and its score.
type RankedRow = (i64, f64);

/// Rankings that were worked out since the index last changed, by query.
type Rankings = HashMap<String, Arc<[RankedRow]>>;

/// How many rankings are remembered.
const MAX_RANKINGS: usize = 64;

fn query_group(
    connection: &Connection,
    rankings: &mut Rankings,
    spaces: &Spaces,
    request: &SearchRequest,
    types: &[ItemType],
    weights: &[f64; 5],
) -> rusqlite::Result<(Vec<SearchHit>, usize)> {
    let expression = with_facets(&request.query, types, request.tier);
    let key = format!("{weights:?} {expression}");
    let ranked = match rankings.get(&key) {
        Some(ranked) => Arc::clone(ranked),
        None => {
            let ranked = rank(connection, &expression, request.query == Query::All, weights)?;
            if rankings.len() >= MAX_RANKINGS {
                rankings.clear();
            }
            Arc::clone(rankings.entry(key).or_insert(ranked))
        }
    };
    let ranks = space_ranks(spaces);
    let hidden = shadow::hidden_rows(connection)?;
    let mut select = connection.prepare_cached(
        "SELECT type, item_id, space, extension, title, description, version FROM items WHERE id = ?1",
    )?;
    let mut hits = Vec::new();
    let mut total = 0;
    for (row, score) in ranked.iter().copied() {
        let shadow = hidden.get(&row);
        // Within one space asked for, only a file of that space hides another.
        let is_hidden = shadow.is_some_and(|shadow| request.tier.is_none() || shadow.by == shadow.space);
        if is_hidden && !request.include_shadowed {
            continue;
        }
        if hits.len() >= request.limit && request.prefix.is_empty() {
            total += 1;
            continue;
        }
        let hit = select.query_row([row], |row| {
            let texts: [String; 7] = [0, 1, 2, 3, 4, 5, 6].map(|column| row.get(column).unwrap_or_default());
            Ok(texts)
        })?;
        let [item_type, item_id, space, extension, title, description, version] = hit;
        let (Ok(item_type), Ok(id)) = (item_type.parse(), ItemId::new(item_id)) else {
            continue;
        };
        if !id.is_within(&request.prefix) {
            continue;
        }
        total += 1;
        if hits.len() < request.limit {
            hits.push(SearchHit {
                item: ItemRef::new(item_type, id),
                space,
                extension,
                score,
                title,
                description,
                version,
                shadows: Vec::new(),
                shadowed_by: shadow.map(|shadow| shadow.by.clone()),
            });
        }
    }
    for hit in &mut hits {
        hit.shadows = shadows_of(connection, hit, &ranks)?;
    }
    Ok((hits, total))
}

/// The query, narrowed to types and tier. Every indexed item has a findable type, so all of them need no narrowing.
fn with_facets(query: &Query, types: &[ItemType], tier: Option<SpaceTier>) -> String {
    let mut expression = format!("({})", query.to_match());
    if types.len() < ItemType::SEARCHABLE.len() {
        let types = types
            .iter()
            .map(|item_type| format!("facets : \"{FACET_PREFIX}type{item_type}\""))
            .collect::<Vec<_>>();
        expression.push_str(&format!(" AND ({})", types.join(" OR ")));
    }
    if let Some(tier) = tier {
        expression.push_str(&format!(" AND facets : \"{FACET_PREFIX}tier{tier}\""));
    }
    expression
}

/// All matching rows, best first.
fn rank(
    connection: &Connection,
    expression: &str,
    is_everything: bool,
    weights: &[f64; 5],
) -> rusqlite::Result<Arc<[RankedRow]>> {
    let score = if is_everything {
        "0.0".to_owned()
    } else {
        format!("-bm25(words, {}, 0.0)", weights.map(|weight| format!("{weight:?}")).join(", "))
    };
    let mut statement =
        connection.prepare_cached(&format!("SELECT rowid, {score} FROM words WHERE words MATCH ?1"))?;
    let mut ranked: Vec<RankedRow> =
        statement.query_map([expression], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    ranked.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
    Ok(ranked.into())
}

fn shadows_of(
    connection: &Connection,
    hit: &SearchHit,
    ranks: &HashMap<String, usize>,
) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare_cached("SELECT space FROM items WHERE type = ?1 AND item_id = ?2")?;
    let own = ranks.get(&hit.space).copied().unwrap_or(usize::MAX);
    let mut spaces: Vec<String> = statement
        .query_map([hit.item.item_type.as_str(), hit.item.id.as_str()], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    spaces.retain(|space| ranks.get(space).copied().unwrap_or(usize::MAX) > own);
    spaces.sort_by_key(|space| ranks.get(space).copied().unwrap_or(usize::MAX));
    spaces.dedup();
    Ok(spaces)
}
