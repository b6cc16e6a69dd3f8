//! Finding items by words: ranked by BM25 with the extractors' field weights, one row per id.

mod correct;
mod index;
mod plan;
mod query;
mod rank;
mod row_sets;
mod shadow;
mod suggest;
mod watch;
mod word_stems;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use lillux::Digest;
use rusqlite::Connection;
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};

/// What the database says when it fails.
pub use rusqlite::Error as IndexError;

pub use index::{IndexProgress, RefreshStats, SearchIndex};
pub use plan::Correction;
use plan::QueryPlan;
use query::FACET_PREFIX;
pub use query::{Query, QueryError};
use rank::{RankRequest, Ranking};
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
    /// Words that were taken for typing errors.
    pub corrections: Vec<Correction>,
}

/// The path of the index for these roots.
#[must_use]
pub fn index_path(roots: &Roots) -> PathBuf {
    let project = roots.project.as_deref().map(canonicalize_existing).unwrap_or_default();
    let user = canonicalize_existing(&roots.user);
    let pieces = [project.as_os_str().as_encoded_bytes(), b"\0", user.as_os_str().as_encoded_bytes()];
    roots.cache.join("index").join(format!("{}.db", Digest::of_pieces(pieces).short()))
}

/// Searches the index, which is brought up to date first unless `is_fresh`. An index that fails is rebuilt once.
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

/// If fewer items match every word of a question, those that match any follow.
const MIN_FULL_MATCHES: usize = 3;

fn run_query(
    index: &mut SearchIndex,
    spaces: &Spaces,
    request: &SearchRequest,
) -> rusqlite::Result<SearchResults> {
    index.drop_stale_rankings()?;
    let (connection, rankings, names, stems) = index.parts();
    // One view of the index, whatever another process writes meanwhile.
    let connection = &*connection.unchecked_transaction()?;
    let plan = QueryPlan::new(connection, &request.query, stems, names)?;
    let searcher = Searcher {
        connection,
        spaces,
        request,
        ranks: space_ranks(spaces),
        hidden: shadow::hidden_rows(connection)?,
    };
    let mut found = searcher.find(rankings, (&plan.all, &plan.terms), &HashSet::new())?;
    if found.total < MIN_FULL_MATCHES
        && let Some(any) = plan.any(connection)?
    {
        let present: HashSet<i64> = found.hits.iter().map(|(row, _)| *row).collect();
        let mut more = searcher.find(rankings, (&any, &[]), &present)?;
        // A score never says that an item with some of the words is better than one with all of them.
        let lowest = found.hits.last().map(|(_, hit)| hit.score);
        let highest = more.hits.first().map(|(_, hit)| hit.score);
        if let (Some(lowest), Some(highest)) = (lowest, highest)
            && highest >= lowest
        {
            more.hits.iter_mut().for_each(|(_, hit)| hit.score *= 0.99 * lowest / highest);
        }
        found.total += more.total;
        found.hits.append(&mut more.hits);
    }
    let mut hits: Vec<SearchHit> = found.hits.into_iter().map(|(_, hit)| hit).take(request.limit).collect();
    for hit in &mut hits {
        hit.shadows = shadows_of(connection, hit, &searcher.ranks)?;
    }
    let suggestions = if found.total == 0 { suggest::suggest(connection, request)? } else { Vec::new() };
    Ok(SearchResults { hits, total: found.total, suggestions, corrections: plan.corrections })
}

fn weights(spaces: &Spaces, item_type: ItemType) -> [f64; 5] {
    let declared = &spaces.extractors().for_type(item_type).search_weights;
    ["title", "name", "description", "category", "content"]
        .map(|field| declared.iter().find(|(known, _)| known == field).map_or(0.0, |(_, weight)| *weight))
}

/// Rows that match an expression, best first, and how many there are.
#[derive(Default)]
struct FoundRows {
    hits: Vec<(i64, SearchHit)>,
    total: usize,
}

/// What finding rows needs.
struct Searcher<'a> {
    connection: &'a Connection,
    spaces: &'a Spaces,
    request: &'a SearchRequest,
    ranks: HashMap<String, usize>,
    hidden: HashMap<i64, shadow::HiddenRow>,
}

impl Searcher<'_> {
    /// Finds the rows that match an expression and are not among `present`. Its terms are those that must all match.
    fn find(
        &self,
        rankings: &mut rank::Rankings,
        (expression, terms): (&str, &[String]),
        present: &HashSet<i64>,
    ) -> rusqlite::Result<FoundRows> {
        let types = ItemType::SEARCHABLE
            .into_iter()
            .filter(|item_type| self.request.types.is_empty() || self.request.types.contains(item_type));
        // Types whose fields weigh the same are searched together.
        let mut groups: Vec<([f64; 5], Vec<ItemType>)> = Vec::new();
        for item_type in types {
            let weights = weights(self.spaces, item_type);
            match groups.iter_mut().find(|(known, _)| *known == weights) {
                Some((_, group)) => group.push(item_type),
                None => groups.push((weights, vec![item_type])),
            }
        }
        let request = self.request;
        let mut found = FoundRows::default();
        for (weights, group) in &groups {
            let ranking = rankings.get(
                self.connection,
                &RankRequest {
                    expression,
                    terms,
                    facets: &facets(group, request.tier),
                    weights,
                    is_everything: request.query == Query::All,
                    needs_all: request.limit > MAX_LIMITED_ROWS || !request.prefix.is_empty(),
                    limit: request.limit.saturating_add(self.hidden.len()).saturating_add(present.len()),
                },
            )?;
            self.collect(&ranking, present, &mut found)?;
        }
        found.hits.sort_by(|(_, left), (_, right)| {
            right
                .score
                .total_cmp(&left.score)
                .then_with(|| left.item.cmp(&right.item))
                .then_with(|| left.space.cmp(&right.space))
        });
        found.hits.truncate(request.limit);
        Ok(found)
    }

    /// Whether a row is not shown because another file hides it. Within one space asked for, only a file of that space
    /// hides another.
    fn is_hidden(&self, row: i64) -> bool {
        let shadow = self.hidden.get(&row);
        let is_hidden = shadow.is_some_and(|shadow| self.request.tier.is_none() || shadow.by == shadow.space);
        is_hidden && !self.request.include_shadowed
    }

    fn collect(
        &self,
        ranking: &Ranking,
        present: &HashSet<i64>,
        found: &mut FoundRows,
    ) -> rusqlite::Result<()> {
        let request = self.request;
        let mut select = self.connection.prepare_cached(
            "SELECT type, item_id, space, extension, title, description, version FROM items WHERE id = ?1",
        )?;
        let mut total = 0;
        let mut hits = 0;
        for (row, score) in ranking.rows.iter().copied() {
            if self.is_hidden(row) || present.contains(&row) {
                continue;
            }
            if hits >= request.limit && request.prefix.is_empty() {
                total += 1;
                continue;
            }
            let texts: [String; 7] = select.query_row([row], |row| {
                Ok([0, 1, 2, 3, 4, 5, 6].map(|column| row.get(column).unwrap_or_default()))
            })?;
            let [item_type, item_id, space, extension, title, description, version] = texts;
            let (Ok(item_type), Ok(id)) = (item_type.parse(), ItemId::new(item_id)) else {
                continue;
            };
            if !id.is_within(&request.prefix) {
                continue;
            }
            total += 1;
            if hits < request.limit {
                hits += 1;
                let hit = SearchHit {
                    item: ItemRef::new(item_type, id),
                    space,
                    extension,
                    score,
                    title,
                    description,
                    version,
                    shadows: Vec::new(),
                    shadowed_by: self.hidden.get(&row).map(|shadow| shadow.by.clone()),
                };
                found.hits.push((row, hit));
            }
        }
        found.total += match ranking.counted {
            None => total,
            Some(counted) => {
                let hidden = ranking.counted_hidden.iter().filter(|row| self.is_hidden(**row)).count();
                counted.saturating_sub(hidden + present.len())
            }
        };
        Ok(())
    }
}

/// More rows than this are looked at one by one.
const MAX_LIMITED_ROWS: usize = 1_000;

/// What narrows an expression to types and tier. Every indexed item has a findable type, so all of them need no
/// narrowing.
fn facets(types: &[ItemType], tier: Option<SpaceTier>) -> String {
    let mut facets = String::new();
    if types.len() < ItemType::SEARCHABLE.len() {
        let types = types
            .iter()
            .map(|item_type| format!("facets : \"{FACET_PREFIX}type{item_type}\""))
            .collect::<Vec<_>>();
        facets.push_str(&format!(" AND ({})", types.join(" OR ")));
    }
    if let Some(tier) = tier {
        facets.push_str(&format!(" AND facets : \"{FACET_PREFIX}tier{tier}\""));
    }
    facets
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
