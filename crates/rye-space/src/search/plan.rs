//! What the index is asked for a query: first for every word, then for any of them. Words that no item has are taken
//! for typing errors, or left out.

use rusqlite::Connection;
use serde::Serialize;

use super::correct::NameWords;
use super::query::{Query, word_expression};
use super::word_stems::{self, StemCache};

/// How many words of a question are used.
const MAX_QUESTION_WORDS: usize = 24;
/// How many words may stand for one that no item has.
const MAX_CORRECTIONS: usize = 4;
/// A word that more items have does not decide which of them is meant, if another word does.
const MAX_DECIDING_ROWS: usize = 2_000;

/// A word that was taken for a typing error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Correction {
    /// The word as it was given.
    pub word: String,
    /// The words that were searched for instead.
    pub searched: Vec<String>,
}

/// What the index is asked.
#[derive(Debug)]
pub(super) struct QueryPlan {
    /// Items that match it all.
    pub(super) all: String,
    /// The words of a question, each as an expression; empty where only `all` is asked for.
    pub(super) terms: Vec<String>,
    /// The words that were taken for typing errors.
    pub(super) corrections: Vec<Correction>,
}

impl QueryPlan {
    /// Plans a query.
    pub(super) fn new(
        connection: &Connection,
        query: &Query,
        stems: &mut StemCache,
        names: &mut NameWords,
    ) -> rusqlite::Result<Self> {
        let Query::Plain(given) = query else {
            return Ok(Self { all: query.to_match(stems), terms: Vec::new(), corrections: Vec::new() });
        };
        let mut terms = Vec::new();
        let mut missing = Vec::new();
        for word in significant(given) {
            let expression = word_expression(&word, stems);
            if has_match(connection, &expression)? {
                terms.push(expression);
            } else {
                missing.push(word);
            }
        }
        let is_alone = terms.is_empty();
        let mut corrections = Vec::new();
        for word in &missing {
            let name_expression = |word: &String| format!("({{title name category}} : \"{word}\")");
            let mut found: Vec<String> = Vec::new();
            let mut least = usize::MAX;
            for candidate in names.nearest(connection, word, is_alone)? {
                if candidate.distance > least || found.len() == MAX_CORRECTIONS {
                    break;
                }
                // The words of items that are gone stay in the list.
                if has_match(connection, &name_expression(&candidate.word))? {
                    least = candidate.distance;
                    found.push(candidate.word);
                }
            }
            if !found.is_empty() {
                terms.push(format!(
                    "({})",
                    found.iter().map(name_expression).collect::<Vec<_>>().join(" OR ")
                ));
                corrections.push(Correction { word: word.clone(), searched: found });
            }
        }
        let all = if terms.is_empty() { query.to_match(stems) } else { format!("({})", terms.join(" AND ")) };
        Ok(Self { all, terms, corrections })
    }

    /// Items that match any word that tells items apart; none if there is but one word.
    pub(super) fn any(&self, connection: &Connection) -> rusqlite::Result<Option<String>> {
        if self.terms.len() < 2 {
            return Ok(None);
        }
        let mut deciding = Vec::new();
        for term in &self.terms {
            if count_up_to(connection, term, MAX_DECIDING_ROWS + 1)? <= MAX_DECIDING_ROWS {
                deciding.push(term.as_str());
            }
        }
        if deciding.is_empty() {
            deciding = self.terms.iter().map(String::as_str).collect();
        }
        Ok(Some(format!("({})", deciding.join(" OR "))))
    }
}

/// The words that say what is looked for; all of them, if none does.
fn significant(given: &[String]) -> Vec<String> {
    let mut lower: Vec<String> = Vec::new();
    for word in given.iter().map(|word| word.to_lowercase()) {
        let word = word_stems::parts(&word).join(" ");
        if !word.is_empty() && !lower.contains(&word) {
            lower.push(word);
        }
    }
    let mut kept: Vec<String> =
        lower.iter().filter(|word| !word_stems::is_stop_word(word)).cloned().collect();
    if kept.is_empty() {
        kept = lower;
    }
    kept.truncate(MAX_QUESTION_WORDS);
    kept
}

fn has_match(connection: &Connection, expression: &str) -> rusqlite::Result<bool> {
    Ok(count_up_to(connection, expression, 1)? > 0)
}

/// How many rows match, counted up to a bound.
pub(super) fn count_up_to(
    connection: &Connection,
    expression: &str,
    bound: usize,
) -> rusqlite::Result<usize> {
    let mut statement = connection
        .prepare_cached("SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ?1 LIMIT ?2)")?;
    statement.query_row(rusqlite::params![expression, bound], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn questions_are_reduced_to_their_words() {
        let words = significant(&given("How do I deploy the shop to production? Deploy!"));
        assert_eq!(words, ["deploy", "shop", "production"]);
        assert_eq!(significant(&given("who are you")), ["who", "are", "you"]);
    }
}
