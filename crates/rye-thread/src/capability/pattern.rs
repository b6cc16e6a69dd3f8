//! One grant: a text in which `*` stands for anything.

use rye_item::text::one_line;

use crate::action::PrimaryAction;

/// The longest grant.
const MAX_GRANT_LEN: usize = 600;

/// A grant, as it counts: dots for slashes, `fetch` taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    text: String,
}

impl Pattern {
    /// Reads a grant of a directive, a configuration or a parent.
    ///
    /// # Errors
    /// When it is none; the message names it.
    pub(super) fn parse(grant: &str) -> Result<Vec<Self>, String> {
        let reject = |why: &str| {
            let excerpt: String = one_line(grant).chars().take(80).collect();
            Err(format!("`{excerpt}` is not a capability: {why}"))
        };
        if grant.len() > MAX_GRANT_LEN {
            return reject("it is longer than 600 bytes");
        }
        let text = grant.trim().replace('/', ".");
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-*".contains(&byte)) {
            return reject("only letters, digits, `.`, `_`, `-`, `/` and `*` are allowed");
        }
        if text.split('.').any(str::is_empty) {
            return reject("a part is empty");
        }
        let Some(rest) = text.strip_prefix("rye.") else {
            return reject("it begins with `rye.`");
        };
        if rest == "*" {
            return Ok(vec![Self { text }]);
        }
        let (word, below) = rest.split_once('.').map_or((rest, None), |(word, below)| (word, Some(below)));
        let Ok(primary) = word.parse::<PrimaryAction>() else {
            return reject("after `rye.` comes execute, search, load, fetch, sign or `*`");
        };
        let of = |word: &str| Self {
            text: below.map_or_else(|| format!("rye.{word}"), |below| format!("rye.{word}.{below}")),
        };
        Ok(match primary {
            PrimaryAction::Fetch => vec![of("search"), of("load")],
            _ => vec![of(primary.as_str())],
        })
    }

    /// A text of our own making.
    pub(super) fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// `x` in `x.*`, which stands for it too.
    fn base(&self) -> Option<&str> {
        self.text.strip_suffix(".*")
    }

    /// Whether this stands for all that `other` stands for.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.matches_glob(&other.text) && other.base().is_none_or(|base| self.matches_glob(base))
    }

    /// Whether every text that `glob` matches is one of this. A `*` in it is only matched by a `*` here.
    fn matches_glob(&self, glob: &str) -> bool {
        matches(&self.text, glob) || self.base().is_some_and(|base| matches(base, glob))
    }

    /// Whether some text is one of both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let both = |pattern: &Self| {
            let base = pattern.base().map(str::to_owned);
            std::iter::once(pattern.text.clone()).chain(base).collect::<Vec<_>>()
        };
        let others = both(other);
        both(self).iter().any(|own| others.iter().any(|theirs| intersect(own, theirs)))
    }
}

/// Whether `pattern` matches `text`; in time that grows with the product of their lengths at most.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut pattern_at, mut text_at) = (0, 0);
    // The last `*`, and where what it stands for ends so far.
    let mut star: Option<(usize, usize)> = None;
    while text_at < text.len() {
        match pattern.get(pattern_at) {
            Some(b'*') => {
                star = Some((pattern_at, text_at));
                pattern_at += 1;
            }
            Some(byte) if *byte == text[text_at] => {
                pattern_at += 1;
                text_at += 1;
            }
            _ => match star {
                Some((star_at, end)) => {
                    star = Some((star_at, end + 1));
                    pattern_at = star_at + 1;
                    text_at = end + 1;
                }
                None => return false,
            },
        }
    }
    pattern[pattern_at..].iter().all(|byte| *byte == b'*')
}

/// Whether some text is matched by both.
fn intersect(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    // `reachable[j]`: what is read of `one` so far and `j` bytes of `other` can match the same text.
    let mut reachable = vec![false; other.len() + 1];
    for i in 0..=one.len() {
        let previous = std::mem::replace(&mut reachable, vec![false; other.len() + 1]);
        for j in 0..=other.len() {
            let mine = i.checked_sub(1).map(|i| one[i]);
            let theirs = j.checked_sub(1).map(|j| other[j]);
            reachable[j] = match (mine, theirs) {
                (None, None) => true,
                (None, Some(theirs)) => theirs == b'*' && reachable[j - 1],
                (Some(mine), None) => mine == b'*' && previous[j],
                (Some(mine), Some(theirs)) => {
                    ((mine == b'*' || theirs == b'*') && (previous[j] || reachable[j - 1]))
                        || (mine == theirs && previous[j - 1])
                }
            };
        }
    }
    reachable[other.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_star_is_a_wildcard() {
        let cases = [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "a.b.c", true),
            ("a*c", "abcd", false),
            ("a?c", "abc", false),
            ("a[b]c", "abc", false),
            ("A", "a", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    fn text() -> impl Strategy<Value = String> {
        "[ab.]{0,6}"
    }

    fn glob() -> impl Strategy<Value = String> {
        "[ab.*]{0,6}"
    }

    proptest! {
        #[test]
        fn covering_pattern_matches_everything_covered(one in glob(), other in glob(), text in text()) {
            let (one, other, text) = (Pattern::new(&one), Pattern::new(&other), Pattern::new(&text));
            if one.covers(&other) && other.covers(&text) {
                prop_assert!(one.covers(&text));
            }
        }

        #[test]
        fn patterns_matching_same_text_overlap(one in glob(), other in glob(), text in text()) {
            let (one, other) = (Pattern::new(&one), Pattern::new(&other));
            let text = Pattern { text };
            if one.matches_glob(&text.text) && other.matches_glob(&text.text) {
                prop_assert!(one.overlaps(&other) && other.overlaps(&one));
            }
            // A pattern without `*` is one text: then meeting is matching.
            prop_assert_eq!(one.overlaps(&text) , one.matches_glob(&text.text));
        }
    }
}
