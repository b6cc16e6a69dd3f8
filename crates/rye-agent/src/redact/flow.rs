//! Words on their way, without secrets: what may be the beginning of one is held back until it is known.

use std::sync::Arc;

use super::{KEY_BEGINS, KEY_ENDS, LONGEST_KEY, LONGEST_VALUE, Redactor};

/// A secret has at most so many words: `Authorization : Basic …`.
const MOST_WORDS: usize = 4;
/// How much is held back at most.
const MOST_HELD: usize = 64 << 10;
/// How long the first line of a key is at most.
const LONGEST_HEADER: usize = 80;

/// A text that comes in pieces.
#[derive(Debug)]
pub struct Flow {
    redactor: Arc<Redactor>,
    held: String,
    /// The rest of a secret that is longer than any is not shown.
    is_swallowing: bool,
}

impl Flow {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(redactor: Arc<Redactor>) -> Self {
        Self { redactor, held: String::new(), is_swallowing: false }
    }

    /// Takes a piece, and gives what can be shown by now.
    pub fn push(&mut self, piece: &str) -> String {
        let piece = match self.is_swallowing {
            true => piece.trim_start_matches(|letter: char| letter.is_ascii_graphic()),
            false => piece,
        };
        self.is_swallowing &= piece.is_empty();
        self.held.push_str(piece);
        let known = self.known();
        if self.held.len() - known > MOST_HELD {
            self.is_swallowing = true;
            return self.finish();
        }
        let shown = self.redactor.redact_text(&self.held[..known]).into_owned();
        self.held.drain(..known);
        shown
    }

    /// Gives the rest: nothing more comes.
    pub fn finish(&mut self) -> String {
        self.redactor.cleaned(std::mem::take(&mut self.held))
    }

    /// How much of what is held cannot be part of a secret that goes on.
    fn known(&self) -> usize {
        let held = self.held.as_str();
        let mut known = self.last_words();
        for value in self.redactor.values.keys() {
            known = known.min(held.len() - overlap(held, value));
        }
        // A key is whole when its end has come, and its first line when it is closed.
        for (start, _) in held.match_indices(KEY_BEGINS) {
            let rest = &held[start..];
            let is_open = match rest[KEY_BEGINS.len()..].split_once("-----") {
                None => rest.len() <= LONGEST_HEADER,
                Some((name, body)) => {
                    let has_end = || KEY_ENDS.as_ref().is_some_and(|ends| ends.is_match(body));
                    name.contains("PRIVATE KEY") && rest.len() <= LONGEST_KEY && !has_end()
                }
            };
            if is_open {
                known = known.min(start);
                break;
            }
        }
        // Nothing is cut in two that is one secret.
        let mut secrets = self.redactor.secrets(held).take_while(|(start, _)| *start < known);
        secrets.find(|(_, end)| known < *end).map_or(known, |(start, _)| start)
    }

    /// Where the last words begin. A word ends at white space, and at letters that no secret has.
    fn last_words(&self) -> usize {
        let (mut words, mut start, mut is_word) = (0, self.held.len(), false);
        for (place, letter) in self.held.char_indices().rev() {
            if self.held.len() - place > LONGEST_VALUE {
                break;
            }
            if letter.is_ascii_graphic() {
                words += usize::from(!is_word);
                if words > MOST_WORDS {
                    break;
                }
                (is_word, start) = (true, place);
            } else if letter.is_whitespace() {
                is_word = false;
            } else {
                break;
            }
        }
        start
    }
}

/// How much of the end of `text` is the beginning of `value`.
fn overlap(text: &str, value: &str) -> usize {
    let longest = text.len().min(value.len());
    let lengths = (1..=longest).rev().filter(|length| value.is_char_boundary(*length));
    lengths.into_iter().find(|length| text.ends_with(&value[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn redactor() -> Arc<Redactor> {
        let environment = [
            ("DB_PASSWORD", "correct horse battery"),
            ("A_TOKEN", "tökén-with-ümlauts"),
            ("B_KEY", "plain-value-1"),
        ];
        let environment: BTreeMap<_, _> =
            environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Arc::new(Redactor::new(&environment, |_| true))
    }

    #[test]
    fn ordinary_words_are_shown_soon() {
        let mut flow = Flow::new(redactor());
        assert_eq!(flow.push("one two three four five six "), "one two ");
        assert_eq!(flow.push("seven"), "three ");
        assert_eq!(flow.finish(), "four five six seven");
        assert_eq!(flow.push("\u{4f60}\u{597d}\u{4e16}"), "\u{4f60}\u{597d}\u{4e16}");
    }

    #[test]
    fn a_secret_without_an_end_is_not_held_for_ever() {
        let word = "abcdefgh".repeat(8);
        let mut plain = Flow::new(redactor());
        let mut told: String = (0..2_000).map(|_| plain.push(&word)).collect();
        told.push_str(&plain.finish());
        assert_eq!(told, word.repeat(2_000), "what is no secret comes whole, however long");
        let mut flow = Flow::new(redactor());
        let mut shown = flow.push("sk-");
        for _ in 0..2_000 {
            shown.push_str(&flow.push(&word));
            assert!(flow.held.len() <= MOST_HELD + 64);
        }
        shown.push_str(&flow.push("abc and more"));
        shown.push_str(&flow.finish());
        assert_eq!(shown, "[redacted:api-key] and more");
    }

    proptest! {
        /// However a text is cut, no part of a secret is shown that is out of the whole.
        #[test]
        fn pieces_are_as_clean_as_the_whole(
            parts in prop::collection::vec(prop::sample::select(vec![
                "correct horse battery", "correct horse", " ", "\n", "tökén-with-ümlauts", "plain-value-1", "word", "ö",
                "sk-ant-abcdefghijklmnopqrstuv", "Bearer abcdefghijklmnopqrst", "Authorization : Basic abcdefghijkl",
                "-----BEGIN RSA PRIVATE KEY-----\n", "> MIIEabcdefghijklmnopqrstuvwxyz0123456789AB\n",
                "-----END RSA PRIVATE KEY-----", "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key = ", "-----BEGIN ",
            ]), 0..12),
            cuts in prop::collection::vec(1_usize..9, 1..200),
        ) {
            let whole = parts.concat();
            let redactor = redactor();
            let mut flow = Flow::new(Arc::clone(&redactor));
            let (mut shown, mut letters) = (String::new(), whole.chars());
            for cut in cuts.iter().cycle() {
                let piece: String = letters.by_ref().take(*cut).collect();
                if piece.is_empty() {
                    break;
                }
                shown.push_str(&flow.push(&piece));
            }
            shown.push_str(&flow.finish());
            let clean = redactor.redact_text(&whole).into_owned();
            for (start, end) in redactor.secrets(&whole) {
                for part in whole.as_bytes()[start..end].windows(12) {
                    let holds = |text: &str| text.as_bytes().windows(12).any(|window| window == part);
                    prop_assert!(!holds(&shown) || holds(&clean), "{shown}\n{clean}");
                }
            }
            // Nothing is lost but secrets.
            prop_assert_eq!(shown.matches("word").count(), clean.matches("word").count());
        }
    }
}
