//! How many tokens a text has, estimated from its kinds of characters.
//!
//! A tokenizer would be exact for one family of models, and takes some hundred milliseconds to load: too long for a
//! request that waits. A [`TokenProfile`] is a table of weights instead, one for each kind of character run, fitted to a
//! tokenizer's counts of English, German, Chinese, code, JSON and base64 (`tests/estimates.rs` holds the error against
//! it). What no kind covers counts a token for each byte, which no tokenizer exceeds.

/// Weights of one family of tokenizers, in thousandths of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenProfile {
    /// A word, or a part of one that starts with a capital.
    word: u64,
    /// Each letter of a word from the seventh to the sixteenth.
    long: u64,
    /// Each letter after the sixteenth.
    longer: u64,
    /// Each letter of a word that cannot be pronounced.
    rough: u64,
    /// A letter with an accent, beside its word.
    accent: u64,
    /// Each letter of a run of capitals.
    capital: u64,
    /// Three digits, or what is left of them.
    digits: u64,
    /// A punctuation character.
    punctuation: u64,
    /// A run of punctuation characters.
    punctuation_run: u64,
    /// A run of line breaks.
    line_break: u64,
    /// A run of several spaces.
    spaces: u64,
    /// A Chinese character or Japanese syllable.
    ideograph: u64,
    /// A punctuation character of such a script.
    wide_punctuation: u64,
    /// Each character of a run that looks random: base64, hashes.
    dense: u64,
    /// What the sum is multiplied by until a provider's own counts are known, in thousandths.
    pub allowance: u64,
}

/// OpenAI's `o200k_base`.
const O200K: TokenProfile = TokenProfile {
    word: 1105,
    long: 275,
    longer: 500,
    rough: 1000,
    accent: 1300,
    capital: 450,
    digits: 1600,
    punctuation: 420,
    punctuation_run: 370,
    line_break: 620,
    spaces: 350,
    ideograph: 860,
    wide_punctuation: 500,
    dense: 760,
    allowance: 1000,
};

/// OpenAI's `cl100k_base`, whose smaller vocabulary splits more.
const CL100K: TokenProfile = TokenProfile {
    word: 1035,
    long: 450,
    longer: 700,
    rough: 1000,
    accent: 2300,
    capital: 450,
    digits: 1420,
    punctuation: 420,
    punctuation_run: 360,
    line_break: 800,
    spaces: 380,
    ideograph: 1225,
    wide_punctuation: 1700,
    dense: 800,
    allowance: 1000,
};

/// A tokenizer that is not public: no vocabulary in use splits a quarter more than `cl100k_base`.
const UNKNOWN: TokenProfile = TokenProfile { allowance: 1250, ..CL100K };

/// A run of letters and digits that changes its class this often (in hundredths of its length) looks random.
const DENSE_CHANGES: u64 = 42;
/// How long such a run is at least, with a digit in it and without.
const MIN_DENSE: [u64; 2] = [8, 24];

impl TokenProfile {
    /// The profile of a model, by its name.
    #[must_use]
    pub fn for_model(model: &str) -> &'static Self {
        let name = model.rsplit('/').next().unwrap_or(model).to_ascii_lowercase();
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if starts(&["gpt-4o", "gpt-4.1", "gpt-4.5", "gpt-5", "gpt-oss", "chatgpt-4o", "o1", "o3", "o4"]) {
            return &O200K;
        }
        if starts(&["gpt-4", "gpt-3.5"]) { &CL100K } else { &UNKNOWN }
    }

    /// Thousandths of tokens of a text, without the allowance.
    #[must_use]
    pub fn milli_tokens(&self, text: &str) -> u64 {
        let bytes = text.as_bytes();
        let (mut at, mut sum) = (0, 0_u64);
        while let Some(byte) = bytes.get(at).copied() {
            let from = at;
            if byte.is_ascii_alphanumeric() || is_accented(byte) {
                at = run_end(bytes, at, |byte| byte.is_ascii_alphanumeric() || is_accented(byte));
                sum += self.alphanumeric(&bytes[from..at]);
            } else if byte == b' ' || byte == b'\t' {
                at = run_end(bytes, at, |byte| byte == b' ' || byte == b'\t');
                sum += if at - from > 1 { self.spaces } else { 0 };
            } else if byte == b'\n' || byte == b'\r' {
                at = run_end(bytes, at, |byte| byte == b'\n' || byte == b'\r');
                sum += self.line_break;
            } else if byte.is_ascii_punctuation() {
                at = run_end(bytes, at, |byte| byte.is_ascii_punctuation());
                sum += self.punctuation * (at - from) as u64 + self.punctuation_run;
            } else {
                let character = text.get(at..).and_then(|rest| rest.chars().next());
                let length = character.map_or(1, char::len_utf8);
                at += length;
                sum += match character.map_or(0, u32::from) {
                    0x3040..=0x30ff | 0x4e00..=0x9fff => self.ideograph,
                    0x2010..=0x2027 | 0x3000..=0x303f | 0xff00..=0xffef => self.wide_punctuation,
                    _ => 1000 * length as u64,
                };
            }
        }
        sum
    }

    /// A run of letters and digits.
    fn alphanumeric(&self, run: &[u8]) -> u64 {
        let is_word = run.split_first().is_some_and(|(first, rest)| {
            first.is_ascii_alphabetic() && rest.iter().all(u8::is_ascii_lowercase)
        });
        if is_word {
            return self.word(run);
        }
        let (mut changes, mut length, mut has_digit, mut last) = (0, 0_u64, false, ByteClass::Lower);
        for byte in run.iter().filter(|byte| !is_continuation(**byte)) {
            let class = ByteClass::of(*byte);
            changes += u64::from(length > 0 && class != last);
            has_digit |= class == ByteClass::Digit;
            length += 1;
            last = class;
        }
        let min_length = if has_digit { MIN_DENSE[0] } else { MIN_DENSE[1] };
        if length >= min_length && changes * 100 >= length * DENSE_CHANGES {
            return self.dense * length;
        }
        let (mut at, mut sum) = (0, 0);
        while let Some(byte) = run.get(at) {
            let from = at;
            if byte.is_ascii_digit() {
                at = run_end(run, at, |byte| byte.is_ascii_digit());
                sum += self.digits * ((at - from) as u64).div_ceil(3);
                continue;
            }
            if byte.is_ascii_uppercase() {
                let mut end = run_end(run, at, |byte| byte.is_ascii_uppercase());
                // The last capital starts the next word.
                if run.get(end).is_some_and(|next| !next.is_ascii_digit()) {
                    end -= 1;
                }
                if end - at >= 2 {
                    sum += self.capital * (end - at) as u64;
                    at = end;
                    continue;
                }
                at += 1;
            }
            at = run_end(run, at, |byte| byte.is_ascii_lowercase() || !byte.is_ascii());
            sum += self.word(&run[from..at]);
        }
        sum
    }

    /// One word, of which only the first letter may be a capital.
    fn word(&self, word: &[u8]) -> u64 {
        let (mut length, mut accents, mut vowels, mut consonants, mut max_consonants) = (0_u64, 0, 0, 0, 0);
        for byte in word.iter().filter(|byte| !is_continuation(**byte)) {
            length += 1;
            accents += u64::from(!byte.is_ascii());
            if !byte.is_ascii() || matches!(byte | 0x20, b'a' | b'e' | b'i' | b'o' | b'u' | b'y') {
                vowels += 1;
                consonants = 0;
            } else {
                consonants += 1;
                max_consonants = consonants.max(max_consonants);
            }
        }
        let accents = self.accent * accents;
        if (length >= 4 && vowels == 0) || max_consonants >= 6 {
            return self.rough * length + accents;
        }
        let long = length.saturating_sub(6).min(10);
        self.word + self.long * long + self.longer * length.saturating_sub(16) + accents
    }
}

/// What a run's characters are told apart by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    Lower,
    Upper,
    Digit,
}

impl ByteClass {
    fn of(byte: u8) -> Self {
        match byte {
            b'0'..=b'9' => Self::Digit,
            b'A'..=b'Z' => Self::Upper,
            _ => Self::Lower,
        }
    }
}

/// The first byte of a Latin letter with an accent, or the byte after it.
fn is_accented(byte: u8) -> bool {
    (0xc3..=0xc9).contains(&byte) || is_continuation(byte)
}

/// A byte that continues a character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

fn run_end(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    bytes[from..].iter().position(|byte| !belongs(*byte)).map_or(bytes.len(), |length| from + length)
}
