//! Rows of the index, best first. Scoring takes time for each row, so that only so many are scored: of a word that
//! very many items have, those that have it in their name come first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::Connection;

use super::plan::count_up_to;

/// More rows than this are not scored, unless all of them are asked for.
const MAX_SCORED_ROWS: usize = 2_000;
/// How many rankings are remembered.
const MAX_RANKINGS: usize = 64;

/// One row of the ranking: the item's row number and its score.
pub(super) type RankedRow = (i64, f64);

/// Rows that match, best first.
#[derive(Debug)]
pub(super) struct Ranking {
    /// The rows; the best of them, if there are more than can be scored.
    pub(super) rows: Vec<RankedRow>,
    /// How many match in all, if not all of them are in `rows`.
    pub(super) counted: Option<usize>,
    /// Matching rows that another file hides, if `counted` counts them too.
    pub(super) counted_hidden: Vec<i64>,
}

impl Ranking {
    /// A ranking of all rows that match.
    fn complete(rows: Vec<RankedRow>) -> Self {
        Self { rows, counted: None, counted_hidden: Vec::new() }
    }
}

/// What to rank.
pub(super) struct RankRequest<'a> {
    /// What items must match.
    pub(super) expression: &'a str,
    /// What narrows them, or nothing.
    pub(super) facets: &'a str,
    /// The weights of title, name, description, category and content.
    pub(super) weights: &'a [f64; 5],
    /// Whether all rows match alike.
    pub(super) is_everything: bool,
    /// Whether every row is needed.
    pub(super) needs_all: bool,
    /// How many rows are needed at least.
    pub(super) limit: usize,
}

/// Rankings that were worked out since the index last changed, by what was asked.
#[derive(Debug, Default)]
pub(super) struct Rankings {
    known: HashMap<String, Arc<Ranking>>,
}

impl Rankings {
    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    /// The ranking for a request.
    pub(super) fn get(
        &mut self,
        connection: &Connection,
        request: &RankRequest<'_>,
    ) -> rusqlite::Result<Arc<Ranking>> {
        let limit = if request.needs_all { usize::MAX } else { request.limit };
        let key = format!("{:?} {limit} {} {}", request.weights, request.expression, request.facets);
        if let Some(known) = self.known.get(&key) {
            return Ok(Arc::clone(known));
        }
        let ranking = Arc::new(rank(connection, request)?);
        if self.known.len() >= MAX_RANKINGS {
            self.known.clear();
        }
        self.known.insert(key, Arc::clone(&ranking));
        Ok(ranking)
    }
}

fn rank(connection: &Connection, request: &RankRequest<'_>) -> rusqlite::Result<Ranking> {
    let whole = format!("({}){}", request.expression, request.facets);
    let is_small =
        request.needs_all || count_up_to(connection, &whole, MAX_SCORED_ROWS + 1)? <= MAX_SCORED_ROWS;
    if is_small && !request.is_everything {
        return Ok(Ranking::complete(score(connection, &whole, request.weights)?));
    }
    if request.needs_all || is_small {
        let rows = first_rows(connection, &whole, usize::MAX)?.into_iter().map(|row| (row, 0.0)).collect();
        return Ok(Ranking::complete(rows));
    }
    let mut rows: Vec<RankedRow> = Vec::new();
    if !request.is_everything {
        let named = format!("({{title name}} : ({})){}", request.expression, request.facets);
        rows.extend(match count_up_to(connection, &named, MAX_SCORED_ROWS + 1)? {
            0 => Vec::new(),
            1..=MAX_SCORED_ROWS => score(connection, &named, request.weights)?,
            _ => first_rows(connection, &named, request.limit)?.into_iter().map(|row| (row, 1.0)).collect(),
        });
    }
    if rows.len() < request.limit {
        let present: HashSet<i64> = rows.iter().map(|(row, _)| *row).collect();
        let more = first_rows(connection, &whole, request.limit.saturating_add(present.len()))?;
        rows.extend(more.into_iter().filter(|row| !present.contains(row)).map(|row| (row, 0.0)));
    }
    let counted = connection
        .prepare_cached("SELECT count(*) FROM words WHERE words MATCH ?1")?
        .query_row([&whole], |row| row.get(0))?;
    let counted_hidden = connection
        .prepare_cached(
            "SELECT rowid FROM words WHERE words MATCH ?1
             AND rowid IN (SELECT id FROM items WHERE hidden_by IS NOT NULL)",
        )?
        .query_map([&whole], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(Ranking { rows, counted: Some(counted), counted_hidden })
}

/// All matching rows with their scores, best first.
fn score(connection: &Connection, expression: &str, weights: &[f64; 5]) -> rusqlite::Result<Vec<RankedRow>> {
    let weights = weights.map(|weight| format!("{weight:?}")).join(", ");
    let mut statement = connection.prepare_cached(&format!(
        "SELECT rowid, -bm25(words, {weights}, 0.0) FROM words WHERE words MATCH ?1"
    ))?;
    let mut ranked: Vec<RankedRow> =
        statement.query_map([expression], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    ranked.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
    Ok(ranked)
}

/// The first matching rows, in the order of the index.
fn first_rows(connection: &Connection, expression: &str, limit: usize) -> rusqlite::Result<Vec<i64>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = connection.prepare_cached("SELECT rowid FROM words WHERE words MATCH ?1 LIMIT ?2")?;
    statement.query_map(rusqlite::params![expression, limit], |row| row.get(0))?.collect()
}
