//! Words on their way, without secrets: what may be the beginning of one is held back until it is known.

use std::sync::Arc;

use super::{KEY_BEGIN, KEY_END, MAX_KEY_BYTES, MAX_VALUE_LEN, Redactor};

/// A secret has at most so many words: `Authorization : Basic …`.
const MAX_SECRET_WORDS: usize = 4;
/// How much is held back at most.
const MAX_PENDING_BYTES: usize = 64 << 10;
/// How long the first line of a key is at most.
const MAX_HEADER_LEN: usize = 80;

/// A text that comes in pieces.
#[derive(Debug)]
pub struct RedactStream {
    redactor: Arc<Redactor>,
    pending: String,
    /// The rest of a secret that is longer than any is not shown.
    is_skipping: bool,
}

impl RedactStream {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(redactor: Arc<Redactor>) -> Self {
        Self { redactor, pending: String::new(), is_skipping: false }
    }

    /// Takes a piece, and gives what can be shown now.
    pub fn push(&mut self, piece: &str) -> String {
        let piece = match self.is_skipping {
            true => piece.trim_start_matches(|letter: char| letter.is_ascii_graphic()),
            false => piece,
        };
        self.is_skipping &= piece.is_empty();
        self.pending.push_str(piece);
        let safe_len = self.safe_len();
        if self.pending.len() - safe_len > MAX_PENDING_BYTES {
            self.is_skipping = true;
            return self.finish();
        }
        let redacted = self.redactor.redact_text(&self.pending[..safe_len]).into_owned();
        self.pending.drain(..safe_len);
        redacted
    }

    /// Gives the rest: nothing more comes.
    pub fn finish(&mut self) -> String {
        self.redactor.redact(std::mem::take(&mut self.pending))
    }

    /// How much of what is held cannot be part of an unfinished secret.
    fn safe_len(&self) -> usize {
        let pending = self.pending.as_str();
        let mut safe_len = self.last_words_start();
        for value in self.redactor.values.keys() {
            safe_len = safe_len.min(pending.len() - overlap(pending, value));
        }
        // A key is whole when its end has come, and its first line when it is closed.
        for (start, _) in pending.match_indices(KEY_BEGIN) {
            let rest = &pending[start..];
            let is_open = match rest[KEY_BEGIN.len()..].split_once("-----") {
                None => rest.len() <= MAX_HEADER_LEN,
                Some((name, body)) => {
                    let has_end = || KEY_END.as_ref().is_some_and(|ends| ends.is_match(body));
                    name.contains("PRIVATE KEY") && rest.len() <= MAX_KEY_BYTES && !has_end()
                }
            };
            if is_open {
                safe_len = safe_len.min(start);
                break;
            }
        }
        // Nothing is cut in two that is one secret.
        let mut secrets = self.redactor.find_secrets(pending).take_while(|(start, _)| *start < safe_len);
        secrets.find(|(_, end)| safe_len < *end).map_or(safe_len, |(start, _)| start)
    }

    /// Where the last words begin. A word ends at white space, and at letters that no secret has.
    fn last_words_start(&self) -> usize {
        let (mut words, mut start, mut is_word) = (0, self.pending.len(), false);
        for (index, letter) in self.pending.char_indices().rev() {
            if self.pending.len() - index > MAX_VALUE_LEN {
                break;
            }
            if letter.is_ascii_graphic() {
                words += usize::from(!is_word);
                if words > MAX_SECRET_WORDS {
                    break;
                }
                (is_word, start) = (true, index);
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
    fn ordinary_words_are_emitted_promptly() {
        let mut flow = RedactStream::new(redactor());
        assert_eq!(flow.push("one two three four five six "), "one two ");
        assert_eq!(flow.push("seven"), "three ");
        assert_eq!(flow.finish(), "four five six seven");
        assert_eq!(flow.push("\u{4f60}\u{597d}\u{4e16}"), "\u{4f60}\u{597d}\u{4e16}");
    }

    #[test]
    fn endless_secret_buffer_is_bounded() {
        let word = "abcdefgh".repeat(8);
        let mut plain = RedactStream::new(redactor());
        let mut output: String = (0..2_000).map(|_| plain.push(&word)).collect();
        output.push_str(&plain.finish());
        assert_eq!(output, word.repeat(2_000), "what is not a secret comes whole, however long");
        let mut flow = RedactStream::new(redactor());
        let mut streamed = flow.push("sk-");
        for _ in 0..2_000 {
            streamed.push_str(&flow.push(&word));
            assert!(flow.pending.len() <= MAX_PENDING_BYTES + 64);
        }
        streamed.push_str(&flow.push("abc and more"));
        streamed.push_str(&flow.finish());
        assert_eq!(streamed, "[redacted:api-key] and more");
    }

    proptest! {
        /// However a text is cut, no part of a secret is shown that is out of the whole.
        #[test]
        fn streamed_redaction_equals_whole_redaction(
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
            let mut flow = RedactStream::new(Arc::clone(&redactor));
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
            for (start, end) in redactor.find_secrets(&whole) {
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
