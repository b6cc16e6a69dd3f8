//! Words as they are indexed and asked for: the parts of names, stems, and words that say nothing about an item.

use std::collections::{HashMap, HashSet};

use rust_stemmers::{Algorithm, Stemmer};

/// Longer runs of letters are not words.
const MAX_WORD_BYTES: usize = 40;
/// Shorter words have no ending that could differ.
const MIN_STEMMED_BYTES: usize = 3;
/// How many stems are remembered while an index is written.
const MAX_KNOWN_STEMS: usize = 50_000;

/// English words that a question is made of and no item is about. Sorted.
const STOP_WORDS: &[&str] = &[
    "a",
    "about",
    "am",
    "an",
    "and",
    "any",
    "are",
    "as",
    "at",
    "be",
    "been",
    "being",
    "but",
    "by",
    "can",
    "could",
    "did",
    "do",
    "does",
    "doing",
    "done",
    "for",
    "from",
    "get",
    "had",
    "has",
    "have",
    "having",
    "here",
    "hers",
    "him",
    "his",
    "how",
    "i",
    "if",
    "in",
    "into",
    "is",
    "it",
    "its",
    "let",
    "may",
    "me",
    "might",
    "must",
    "my",
    "no",
    "nor",
    "not",
    "of",
    "on",
    "or",
    "our",
    "ours",
    "please",
    "shall",
    "she",
    "should",
    "so",
    "some",
    "somebody",
    "someone",
    "something",
    "than",
    "that",
    "the",
    "their",
    "them",
    "then",
    "there",
    "these",
    "they",
    "thing",
    "things",
    "this",
    "those",
    "to",
    "too",
    "us",
    "very",
    "want",
    "was",
    "way",
    "we",
    "were",
    "what",
    "when",
    "where",
    "which",
    "while",
    "who",
    "whom",
    "whose",
    "why",
    "will",
    "with",
    "would",
    "you",
    "your",
    "yours",
];

/// Whether a word, in lower case, says nothing about what is looked for.
pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.binary_search(&word).is_ok()
}

/// The runs of letters and digits of a text, in lower case, without a possessive `s`.
pub(super) fn parts(text: &str) -> Vec<String> {
    let text = text.to_lowercase().replace("'s ", " ").replace('’', "'");
    let text = text.strip_suffix("'s").unwrap_or(&text);
    let runs = text.split(|character: char| !character.is_alphanumeric());
    runs.filter(|run| !run.is_empty()).map(str::to_owned).collect()
}

/// Finds stems, remembering those it has found.
pub(super) struct StemCache {
    stemmer: Stemmer,
    known: HashMap<String, Option<String>>,
}

impl std::fmt::Debug for StemCache {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StemCache").field("known", &self.known.len()).finish()
    }
}

impl StemCache {
    /// Without any stem yet.
    pub(super) fn new() -> Self {
        Self { stemmer: Stemmer::create(Algorithm::English), known: HashMap::new() }
    }

    /// The stem of a word in lower case, if it is another one.
    pub(super) fn stem(&mut self, word: &str) -> Option<String> {
        if !(MIN_STEMMED_BYTES..=MAX_WORD_BYTES).contains(&word.len())
            || !word.bytes().all(|byte| byte.is_ascii_lowercase())
        {
            return None;
        }
        if let Some(known) = self.known.get(word) {
            return known.clone();
        }
        let spelled = american_spelling(word);
        let stem = self.stemmer.stem(&spelled).into_owned();
        let stem = (stem != word).then_some(stem);
        if self.known.len() >= MAX_KNOWN_STEMS {
            self.known.clear();
        }
        self.known.insert(word.to_owned(), stem.clone());
        stem
    }

    /// A text to index: as it is, then the parts of its compound names and the stems of its words, each once.
    pub(super) fn with_stems(&mut self, text: &str) -> String {
        let mut added: HashSet<String> = HashSet::new();
        let mut indexed = text.to_owned();
        let mut add = |word: String| {
            if added.insert(word.clone()) {
                indexed.push(' ');
                indexed.push_str(&word);
            }
        };
        for run in text.split(|character: char| !character.is_alphanumeric()).filter(|run| !run.is_empty()) {
            if run.len() > MAX_WORD_BYTES {
                continue;
            }
            let compound = compound_parts(run);
            for part in &compound {
                add(part.clone());
            }
            for word in compound.iter().cloned().chain([run.to_lowercase()]) {
                if let Some(stem) = self.stem(&word) {
                    add(stem);
                }
            }
        }
        indexed
    }
}

/// `summarise` as `summarize`: the stemmer knows one of the two.
fn american_spelling(word: &str) -> String {
    for (ending, other) in [
        ("isations", "izations"),
        ("isation", "ization"),
        ("ising", "izing"),
        ("ises", "izes"),
        ("ised", "ized"),
        ("ise", "ize"),
    ] {
        if let Some(beginning) = word.strip_suffix(ending).filter(|beginning| beginning.len() > 3) {
            return format!("{beginning}{other}");
        }
    }
    word.to_owned()
}

/// `DirectiveInstruction` as its words, in lower case; none for a word that is one.
fn compound_parts(run: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut was_lower = false;
    for character in run.chars() {
        if parts.is_empty() || (character.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        was_lower = character.is_lowercase() || character.is_numeric();
        if let Some(last) = parts.last_mut() {
            last.extend(character.to_lowercase());
        }
    }
    if parts.len() < 2 { Vec::new() } else { parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_are_sorted() {
        assert!(STOP_WORDS.is_sorted());
        assert!(is_stop_word("how") && is_stop_word("the") && !is_stop_word("deploy"));
    }

    #[test]
    fn forms_of_a_word_share_a_stem() {
        let mut stems = StemCache::new();
        for (forms, stem) in [
            (&["deploying", "deployment", "deploys", "deployed"][..], "deploy"),
            (&["summarise", "summarize", "summarising"], "summar"),
            (&["lockfiles", "lockfile"], "lockfil"),
        ] {
            for form in forms {
                assert_eq!(stems.stem(form).as_deref(), Some(stem), "{form}");
            }
        }
        assert_eq!(stems.stem("deploy"), None);
        assert_eq!((stems.stem("é"), stems.stem("x2"), stems.stem("ls")), (None, None, None));
    }

    #[test]
    fn indexed_text_keeps_its_words() {
        let mut stems = StemCache::new();
        assert_eq!(
            stems.with_stems("Deploys deploys DirectiveInstruction"),
            "Deploys deploys DirectiveInstruction deploy directive instruction direct instruct directiveinstruct"
        );
        assert_eq!(stems.with_stems("plain"), "plain");
    }

    #[test]
    fn questions_are_split_into_words() {
        assert_eq!(parts("What's today's date?"), ["what", "today", "date"]);
        assert_eq!(parts("rye/file-system"), ["rye", "file", "system"]);
    }
}
