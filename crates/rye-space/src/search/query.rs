//! The query language: words, `"phrases"`, `prefix*`, `AND OR NOT`, parentheses. `OR` binds least, words side by
//! side mean `AND`. A text without any of these is a question: plain words. Translated to the index's own language with
//! every word quoted, so no input is an error there.

use std::fmt::Write as _;

use super::word_stems::{self, StemCache};

/// What begins every facet. No language has words like that, so a word need not be kept out of the facets' column,
/// which would cost as much as finding it.
pub(super) const FACET_PREFIX: &str = "qqxq";
/// A facet that every item has, for "everything but …".
pub(super) const MATCH_ALL: &str = "facets : \"qqxqany\"";
const MAX_DEPTH: usize = 32;
const MAX_TERMS: usize = 64;

/// A query, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Every item.
    All,
    /// The words of a question.
    Plain(Vec<String>),
    /// A word in any of its forms.
    Word(String),
    /// A phrase as it is written.
    Words(String),
    /// Words that begin so.
    Prefix(String),
    /// All of these.
    And(Vec<Query>),
    /// Any of these.
    Or(Vec<Query>),
    /// None of this.
    Not(Box<Query>),
}

/// Why a query is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A parenthesis is missing or too many.
    #[error("unbalanced parentheses in the query")]
    Unbalanced,
    /// It is too long or too deep.
    #[error("the query is too large")]
    TooLarge,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    And,
    Or,
    Not,
    Phrase(String),
    Word(String),
}

fn tokenize(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let consumed = match first {
            '(' => {
                tokens.push(Token::Open);
                1
            }
            ')' => {
                tokens.push(Token::Close);
                1
            }
            '"' => {
                let end = rest[1..].find('"').map_or(rest.len(), |end| end + 1);
                tokens.push(Token::Phrase(rest[1..end].to_owned()));
                (end + 1).min(rest.len())
            }
            _ => {
                let end =
                    rest.find(|character: char| character.is_whitespace() || "()\"".contains(character));
                let end = end.unwrap_or(rest.len());
                tokens.push(match &rest[..end] {
                    word if word.eq_ignore_ascii_case("and") => Token::And,
                    word if word.eq_ignore_ascii_case("or") => Token::Or,
                    word if word.eq_ignore_ascii_case("not") => Token::Not,
                    word => Token::Word(word.to_owned()),
                });
                end
            }
        };
        rest = rest[consumed..].trim_start();
    }
    tokens
}

impl Query {
    /// Reads a query. An empty one means everything.
    ///
    /// # Errors
    /// When parentheses do not match or it is too large.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        if let Some(words) = plain_words(text) {
            return match words.len() {
                0 => Ok(Self::All),
                count if count > MAX_TERMS * 4 => Err(QueryError::TooLarge),
                _ => Ok(Self::Plain(words)),
            };
        }
        let tokens = tokenize(text);
        if tokens.len() > MAX_TERMS * 4 {
            return Err(QueryError::TooLarge);
        }
        let mut reader = QueryParser { tokens: &tokens, next: 0 };
        let query = reader.parse_or(0)?;
        if reader.next < tokens.len() {
            return Err(QueryError::Unbalanced);
        }
        Ok(query.unwrap_or(Self::All))
    }

    /// The words to suggest near misses for.
    #[must_use]
    pub fn words(&self) -> Vec<&str> {
        match self {
            Self::All | Self::Not(_) => Vec::new(),
            Self::Plain(words) => words.iter().map(String::as_str).collect(),
            Self::Word(text) | Self::Words(text) | Self::Prefix(text) => vec![text],
            Self::And(parts) | Self::Or(parts) => parts.iter().flat_map(Self::words).collect(),
        }
    }

    /// The query in the language of the index.
    pub(super) fn to_match(&self, stems: &mut StemCache) -> String {
        let mut out = String::new();
        self.write_match(stems, &mut out);
        out
    }

    fn write_match(&self, stems: &mut StemCache, out: &mut String) {
        match self {
            Self::All => out.push_str(MATCH_ALL),
            Self::Plain(words) => {
                let words: Vec<String> = words.iter().map(|word| word_expression(word, stems)).collect();
                let _ = write!(out, "({})", words.join(" AND "));
            }
            Self::Word(text) => out.push_str(&word_expression(text, stems)),
            Self::Words(text) => write_words(text, "", out),
            Self::Prefix(text) => write_words(text, " *", out),
            Self::Not(part) => {
                let _ = write!(out, "({MATCH_ALL} NOT ");
                part.write_match(stems, out);
                out.push(')');
            }
            Self::Or(parts) => write_joined(parts.iter(), " OR ", stems, out),
            Self::And(parts) => {
                let (excluded, included): (Vec<_>, Vec<_>) =
                    parts.iter().partition(|part| matches!(part, Self::Not(_)));
                out.push('(');
                if included.is_empty() {
                    out.push_str(MATCH_ALL);
                } else {
                    write_joined(included.into_iter(), " AND ", stems, out);
                }
                for part in excluded {
                    out.push_str(" NOT ");
                    if let Self::Not(inner) = part {
                        inner.write_match(stems, out);
                    }
                }
                out.push(')');
            }
        }
    }
}

/// The words of a question; `None` for a text in the query language. Operators are words unless they are in capitals.
fn plain_words(text: &str) -> Option<Vec<String>> {
    let is_operator = |word: &str| matches!(word, "AND" | "OR" | "NOT");
    if text.contains(['(', ')', '"', '*']) || text.split_whitespace().any(is_operator) {
        return None;
    }
    let words = text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric));
    Some(words.map(str::to_owned).collect())
}

/// A word in the language of the index: as it is, or in another of its forms. One with separators in it means its parts
/// next to each other, or at least all of them.
pub(super) fn word_expression(text: &str, stems: &mut StemCache) -> String {
    let parts = word_stems::parts(text);
    let forms = |part: &String, stems: &mut StemCache| match stems.stem(part) {
        Some(stem) => format!("(\"{part}\" OR \"{stem}\")"),
        None => format!("(\"{part}\")"),
    };
    match parts.as_slice() {
        [] => MATCH_ALL.to_owned(),
        [one] => forms(one, stems),
        many => {
            let all: Vec<String> = many.iter().map(|part| forms(part, stems)).collect();
            format!("(\"{}\" OR ({}))", many.join(" "), all.join(" AND "))
        }
    }
}

fn write_words(text: &str, suffix: &str, out: &mut String) {
    // A word without a letter or digit has no token in the index: it restricts nothing.
    if text.chars().any(char::is_alphanumeric) {
        let _ = write!(out, "(\"{}\"{suffix})", text.replace(['"', '\0'], " "));
    } else {
        out.push_str(MATCH_ALL);
    }
}

fn write_joined<'a>(
    parts: impl Iterator<Item = &'a Query>,
    joint: &str,
    stems: &mut StemCache,
    out: &mut String,
) {
    out.push('(');
    for (index, part) in parts.enumerate() {
        if index > 0 {
            out.push_str(joint);
        }
        part.write_match(stems, out);
    }
    out.push(')');
}

struct QueryParser<'a> {
    tokens: &'a [Token],
    next: usize,
}

impl QueryParser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn parse_or(&mut self, depth: usize) -> Result<Option<Query>, QueryError> {
        let mut parts: Vec<Query> = self.parse_and(depth)?.into_iter().collect();
        while self.peek() == Some(&Token::Or) {
            self.next += 1;
            parts.extend(self.parse_and(depth)?);
        }
        Ok(single_or(parts, Query::Or))
    }

    fn parse_and(&mut self, depth: usize) -> Result<Option<Query>, QueryError> {
        let mut parts = Vec::new();
        loop {
            match self.peek() {
                None | Some(Token::Or | Token::Close) => break,
                Some(Token::And) => self.next += 1,
                Some(Token::Open | Token::Not | Token::Phrase(_) | Token::Word(_)) => {
                    parts.extend(self.parse_term(depth)?);
                }
            }
        }
        Ok(single_or(parts, Query::And))
    }

    fn parse_term(&mut self, depth: usize) -> Result<Option<Query>, QueryError> {
        if depth > MAX_DEPTH {
            return Err(QueryError::TooLarge);
        }
        let Some(token) = self.tokens.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        match token {
            Token::Open => {
                let inner = self.parse_or(depth + 1)?;
                if self.peek() != Some(&Token::Close) {
                    return Err(QueryError::Unbalanced);
                }
                self.next += 1;
                Ok(inner)
            }
            Token::Not => match self.peek() {
                None | Some(Token::Or | Token::Close | Token::And) => Ok(None),
                Some(_) => Ok(self.parse_term(depth + 1)?.map(|inner| Query::Not(Box::new(inner)))),
            },
            Token::Phrase(text) => Ok(Some(Query::Words(text.clone()))),
            Token::Word(word) => Ok(Some(match word.trim_end_matches('*') {
                "" => Query::All,
                stem if stem.len() < word.len() => Query::Prefix(stem.to_owned()),
                _ => Query::Word(word.clone()),
            })),
            Token::Close | Token::And | Token::Or => Ok(None),
        }
    }
}

fn single_or(mut parts: Vec<Query>, join: fn(Vec<Query>) -> Query) -> Option<Query> {
    match parts.len() {
        0 => None,
        1 => parts.pop(),
        _ => Some(join(parts)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Query {
        Query::Word(text.to_owned())
    }

    fn phrase(text: &str) -> Query {
        Query::Words(text.to_owned())
    }

    fn to_match(query: &Query) -> String {
        query.to_match(&mut StemCache::new())
    }

    #[test]
    fn or_binds_less_than_and() {
        assert_eq!(
            Query::parse("a b OR c and not d"),
            Ok(Query::Or(vec![
                Query::And(vec![word("a"), word("b")]),
                Query::And(vec![word("c"), Query::Not(Box::new(word("d")))]),
            ]))
        );
        assert_eq!(
            Query::parse("(a OR b) \"c d\" e*"),
            Ok(Query::And(vec![
                Query::Or(vec![word("a"), word("b")]),
                phrase("c d"),
                Query::Prefix("e".to_owned()),
            ]))
        );
    }

    #[test]
    fn odd_input_is_parsed_or_refused() {
        assert_eq!(Query::parse(""), Ok(Query::All));
        assert_eq!(Query::parse("*"), Ok(Query::All));
        assert_eq!(Query::parse("AND OR NOT"), Ok(Query::All));
        assert_eq!(Query::parse("(a"), Err(QueryError::Unbalanced));
        assert_eq!(Query::parse("a)"), Err(QueryError::Unbalanced));
        assert_eq!(Query::parse("\"open phrase"), Ok(phrase("open phrase")));
        assert_eq!(Query::parse(&"(".repeat(100)), Err(QueryError::TooLarge));
        assert_eq!(Query::parse(&"a ".repeat(1000)), Err(QueryError::TooLarge));
        assert_eq!(to_match(&phrase("a\" OR facets:x")), "(\"a  OR facets:x\")");
    }

    #[test]
    fn negation_alone_means_everything_else() {
        assert_eq!(to_match(&Query::parse("NOT a").expect("query")), format!("({MATCH_ALL} NOT (\"a\"))"));
    }

    #[test]
    fn text_without_operators_is_a_question() {
        let plain = |words: &[&str]| Ok(Query::Plain(words.iter().map(|word| (*word).to_owned()).collect()));
        assert_eq!(Query::parse("why is it not found?"), plain(&["why", "is", "it", "not", "found?"]));
        assert_eq!(Query::parse("a ; b"), plain(&["a", "b"]));
        assert_eq!(
            Query::parse("deploys NOT x").map(|query| to_match(&query)),
            Ok("(((\"deploys\" OR \"deploy\")) NOT (\"x\"))".to_owned())
        );
        assert_eq!(
            to_match(&word("create_items")),
            "(\"create items\" OR ((\"create\" OR \"creat\") AND (\"items\" OR \"item\")))"
        );
    }
}
