//! Near misses: ids that look like what was asked for, by shared trigrams.

use rusqlite::Connection;

use super::SearchRequest;

/// Ids whose letters come close to the words that found nothing.
pub(super) fn suggest(connection: &Connection, request: &SearchRequest) -> rusqlite::Result<Vec<String>> {
    const MAX_CANDIDATES: usize = 200;
    const MAX_SUGGESTIONS: usize = 5;
    let mut best: Vec<(f64, String)> = Vec::new();
    for word in request.query.words().into_iter().take(8) {
        let grams = trigrams(word);
        if grams.is_empty() {
            continue;
        }
        let any = grams
            .iter()
            .map(|gram| format!("\"{}\"", gram.replace('"', " ")))
            .collect::<Vec<_>>()
            .join(" OR ");
        let mut statement = connection.prepare_cached(&format!(
            "SELECT i.item_id, i.title FROM near JOIN items i ON i.id = near.rowid WHERE near MATCH ?1
             ORDER BY near.rank LIMIT {MAX_CANDIDATES}"
        ))?;
        let rows = statement.query_map([any], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for row in rows {
            let (id, title): (String, String) = row?;
            let score = id
                .split(|character: char| !character.is_alphanumeric())
                .chain(title.split_whitespace())
                .chain([id.as_str()])
                .map(|part| similarity(&grams, &trigrams(part)))
                .fold(0.0, f64::max);
            if score >= 0.25 {
                best.push((score, id));
            }
        }
    }
    best.sort_by(|left, right| right.0.total_cmp(&left.0).then_with(|| left.1.cmp(&right.1)));
    let mut ids: Vec<String> = Vec::new();
    for (_, id) in best {
        if ids.len() < MAX_SUGGESTIONS && !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn trigrams(word: &str) -> Vec<String> {
    let letters: Vec<char> = word.to_lowercase().chars().collect();
    letters.windows(3).take(64).map(|window| window.iter().collect()).collect()
}

/// Shared trigrams over all trigrams.
fn similarity(left: &[String], right: &[String]) -> f64 {
    let shared = left.iter().filter(|gram| right.contains(gram)).count();
    let all = left.len() + right.len() - shared.min(right.len());
    if all == 0 { 0.0 } else { shared as f64 / all as f64 }
}
