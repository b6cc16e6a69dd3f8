//! Typing errors: words of ids and titles that a word which nothing has was likely meant to be.

use rusqlite::Connection;
use rye_item::text::edit_distance;

/// Words longer than this are not corrected.
const MAX_WORD_BYTES: usize = 40;
/// Shorter words are near too many others.
const MIN_WORD_BYTES: usize = 4;
/// How many words are offered for one.
const MAX_CANDIDATES: usize = 12;

/// A word that another one was likely meant to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CorrectionCandidate {
    /// The word.
    pub(super) word: String,
    /// How many letters differ.
    pub(super) distance: usize,
}

/// The words of ids and titles, read when a word has to be corrected.
#[derive(Debug, Default)]
pub(super) struct NameWords {
    words: Option<Vec<NameWord>>,
}

#[derive(Debug)]
struct NameWord {
    text: String,
    /// How many letters it has.
    length: usize,
    /// The letters it has, one bit each: words that differ in many are never compared.
    letters: u64,
}

impl NameWord {
    fn new(text: String) -> Self {
        Self { length: text.chars().count(), letters: letter_set(&text), text }
    }
}

impl NameWords {
    /// Forgets the words, because the index has changed.
    pub(super) fn clear(&mut self) {
        self.words = None;
    }

    /// The words near `word`, the nearest first. Words of items that are gone may be among them, and the word itself.
    pub(super) fn nearest(
        &mut self,
        connection: &Connection,
        word: &str,
        is_alone: bool,
    ) -> rusqlite::Result<Vec<CorrectionCandidate>> {
        let Some(limit) = max_edits(word, is_alone) else { return Ok(Vec::new()) };
        if self.words.is_none() {
            self.words = Some(read_words(connection)?);
        }
        let letters = letter_set(word);
        let mut nearest: Vec<(usize, bool, usize, &str)> = Vec::new();
        for known in self.words.iter().flatten() {
            // One edit changes the set of letters by two at most, and the length by one character.
            let differing = (known.letters ^ letters).count_ones() as usize;
            if known.length.abs_diff(word.chars().count()) > limit || differing > 2 * limit {
                continue;
            }
            let distance = edit_distance(word, &known.text);
            if distance <= limit {
                // A word that begins the same is the likelier one.
                let begins_otherwise = known.text.chars().next() != word.chars().next();
                nearest.push((distance, begins_otherwise, known.length, &known.text));
            }
        }
        nearest.sort_unstable();
        let nearest = nearest.into_iter().take(MAX_CANDIDATES);
        Ok(nearest
            .map(|(distance, _, _, known)| CorrectionCandidate { word: known.to_owned(), distance })
            .collect())
    }
}

/// How many letters may be wrong. A word beside others that are found is corrected only if it is long: it may well be
/// right, and just not be there.
fn max_edits(word: &str, is_alone: bool) -> Option<usize> {
    let is_word = word.chars().all(char::is_alphabetic) && word.len() <= MAX_WORD_BYTES;
    match word.len() {
        _ if !is_word => None,
        0..MIN_WORD_BYTES => None,
        MIN_WORD_BYTES..=5 => is_alone.then_some(1),
        6..=7 => Some(if is_alone { 2 } else { 1 }),
        _ => Some(2),
    }
}

fn letter_set(word: &str) -> u64 {
    word.chars().fold(0, |set, character| set | 1 << (u32::from(character) % 64))
}

fn read_words(connection: &Connection) -> rusqlite::Result<Vec<NameWord>> {
    let mut statement = connection.prepare_cached("SELECT word FROM names")?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    rows.map(|text| text.map(NameWord::new)).collect()
}

/// Whether a word of an id or a title can be a correction.
pub(super) fn is_name_word(word: &str) -> bool {
    (MIN_WORD_BYTES..=MAX_WORD_BYTES).contains(&word.len()) && word.chars().all(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest(known: &[&str], word: &str, is_alone: bool) -> Vec<String> {
        let words = known.iter().map(|word| NameWord::new((*word).to_owned()));
        let mut names = NameWords { words: Some(words.collect()) };
        let connection = Connection::open_in_memory().expect("a database");
        let found = names.nearest(&connection, word, is_alone).expect("words");
        found.into_iter().map(|candidate| candidate.word).collect()
    }

    #[test]
    fn nearest_words_are_found() {
        let known = ["deploy", "orchestrator", "lockfiles", "show", "read", "deplore"];
        assert_eq!(nearest(&known, "depoly", false), ["deploy"]);
        assert_eq!(nearest(&known, "orchestrater", false), ["orchestrator"]);
        assert_eq!(nearest(&known, "raed", true), ["read"]);
        assert_eq!(nearest(&["deploys", "deploy"], "deployy", true), ["deploy", "deploys"]);
        // A short word beside others is taken as it is.
        assert_eq!(nearest(&known, "shop", false), Vec::<String>::new());
        assert_eq!(nearest(&known, "shop", true), ["show"]);
        assert_eq!(nearest(&known, "kubernetes", true), Vec::<String>::new());
        assert_eq!(nearest(&known, "éé", true), Vec::<String>::new());
    }
}
