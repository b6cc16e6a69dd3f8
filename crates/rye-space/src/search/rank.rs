//! Rows of the index, best first. Scoring takes time for each row, so that only so many are scored: of a word that
//! very many items have, those that have it in their name come first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rusqlite::Connection;

use super::plan::count_up_to;
use super::row_sets::RowSets;

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
    /// The parts of the expression, if it is just all of them.
    pub(super) terms: &'a [String],
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
    sets: RowSets,
}

impl Rankings {
    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.sets.clear();
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
        let ranking = Arc::new(rank(connection, &mut self.sets, request)?);
        if self.known.len() >= MAX_RANKINGS {
            self.known.clear();
        }
        self.known.insert(key, Arc::clone(&ranking));
        Ok(ranking)
    }
}

fn rank(connection: &Connection, sets: &mut RowSets, request: &RankRequest<'_>) -> rusqlite::Result<Ranking> {
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
        let count = match request.terms {
            [] => count_up_to(connection, &named, MAX_SCORED_ROWS + 1)?,
            _ => count_terms(connection, sets, request, "{title name} : ")?,
        };
        rows.extend(match count {
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
    let counted = match request.terms {
        [] => connection
            .prepare_cached("SELECT count(*) FROM words WHERE words MATCH ?1")?
            .query_row([&whole], |row| row.get(0))?,
        _ => count_terms(connection, sets, request, "")?,
    };
    let counted_hidden = connection
        .prepare_cached(
            "SELECT rowid FROM words WHERE words MATCH ?1
             AND rowid IN (SELECT id FROM items WHERE hidden_by IS NOT NULL)",
        )?
        .query_map([&whole], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(Ranking { rows, counted: Some(counted), counted_hidden })
}

/// How many rows match every term, each in these columns, and the facets.
fn count_terms(
    connection: &Connection,
    sets: &mut RowSets,
    request: &RankRequest<'_>,
    columns: &str,
) -> rusqlite::Result<usize> {
    let terms = request.terms.iter().map(|term| format!("({columns}({term}))"));
    let facets = request.facets.strip_prefix(" AND ").map(|facets| format!("({facets})"));
    sets.count_common(connection, terms.chain(facets))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// More rows than are scored: `b` is in two of three contents, and in the titles of the first and of every 1,000th row.
    fn index() -> Connection {
        let connection = Connection::open_in_memory().expect("a database");
        connection
            .execute_batch("CREATE VIRTUAL TABLE words USING fts5 (title, name, description, category, content, facets, content = '');
                            CREATE TABLE items (id INTEGER PRIMARY KEY, hidden_by TEXT);")
            .expect("tables");
        for row in 1..=9_000 {
            let title = if row == 1 || row % 1_000 == 0 { "a b" } else { "a" };
            let content = if row % 3 == 0 { "a" } else { "a b c" };
            let facet = if row % 2 == 0 { "even" } else { "odd" };
            let insert = "INSERT INTO words (rowid, title, content, facets) VALUES (?1, ?2, ?3, ?4)";
            connection.execute(insert, rusqlite::params![row, title, content, facet]).expect("a row");
        }
        connection
    }

    #[test]
    fn counting_by_sets_changes_no_ranking() {
        let connection = index();
        let terms = |words: &[&str]| words.iter().map(|word| format!("(\"{word}\")")).collect::<Vec<_>>();
        for words in [&["a"][..], &["b"], &["a", "b"], &["c", "b", "a"]] {
            for facets in ["", " AND (facets : \"even\")", " AND (facets : \"even\" OR facets : \"odd\")"] {
                let (terms, mut sets) = (terms(words), RowSets::default());
                let expression = terms.join(" AND ");
                let mut rank_by = |terms: &[String]| {
                    let request = RankRequest {
                        expression: &expression,
                        terms,
                        facets,
                        weights: &[3.0, 3.0, 2.0, 1.0, 1.0],
                        is_everything: false,
                        needs_all: false,
                        limit: 10,
                    };
                    rank(&connection, &mut sets, &request).expect("a ranking")
                };
                let (plain, by_sets, again) = (rank_by(&[]), rank_by(&terms), rank_by(&terms));
                assert!(plain.counted.is_some_and(|count| count > MAX_SCORED_ROWS), "{words:?}{facets}");
                for found in [by_sets, again] {
                    assert_eq!(
                        (found.counted, found.rows),
                        (plain.counted, plain.rows.clone()),
                        "{words:?}{facets}"
                    );
                }
            }
        }
    }
}
