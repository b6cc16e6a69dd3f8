//! The query language: words, `"phrases"`, `prefix*`, `AND OR NOT`, parentheses. `OR` binds least, words side by
//! side mean `AND`. Translated to the index's own language with every word quoted, so no input is an error there.

use std::fmt::Write as _;

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
    /// A word or a phrase.
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
            Self::Words(text) | Self::Prefix(text) => vec![text],
            Self::And(parts) | Self::Or(parts) => parts.iter().flat_map(Self::words).collect(),
        }
    }

    /// The query in the language of the index.
    #[must_use]
    pub fn to_match(&self) -> String {
        let mut out = String::new();
        self.write_match(&mut out);
        out
    }

    fn write_match(&self, out: &mut String) {
        match self {
            Self::All => out.push_str(MATCH_ALL),
            Self::Words(text) => write_words(text, "", out),
            Self::Prefix(text) => write_words(text, " *", out),
            Self::Not(part) => {
                let _ = write!(out, "({MATCH_ALL} NOT ");
                part.write_match(out);
                out.push(')');
            }
            Self::Or(parts) => write_joined(parts.iter(), " OR ", out),
            Self::And(parts) => {
                let (excluded, included): (Vec<_>, Vec<_>) =
                    parts.iter().partition(|part| matches!(part, Self::Not(_)));
                out.push('(');
                if included.is_empty() {
                    out.push_str(MATCH_ALL);
                } else {
                    write_joined(included.into_iter(), " AND ", out);
                }
                for part in excluded {
                    out.push_str(" NOT ");
                    if let Self::Not(inner) = part {
                        inner.write_match(out);
                    }
                }
                out.push(')');
            }
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

fn write_joined<'a>(parts: impl Iterator<Item = &'a Query>, joint: &str, out: &mut String) {
    out.push('(');
    for (index, part) in parts.enumerate() {
        if index > 0 {
            out.push_str(joint);
        }
        part.write_match(out);
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
                _ => Query::Words(word.clone()),
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

    fn words(text: &str) -> Query {
        Query::Words(text.to_owned())
    }

    #[test]
    fn or_binds_less_than_and() {
        assert_eq!(
            Query::parse("a b OR c and not d"),
            Ok(Query::Or(vec![
                Query::And(vec![words("a"), words("b")]),
                Query::And(vec![words("c"), Query::Not(Box::new(words("d")))]),
            ]))
        );
        assert_eq!(
            Query::parse("(a OR b) \"c d\" e*"),
            Ok(Query::And(vec![
                Query::Or(vec![words("a"), words("b")]),
                words("c d"),
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
        assert_eq!(Query::parse("\"open phrase"), Ok(words("open phrase")));
        assert_eq!(Query::parse(&"(".repeat(100)), Err(QueryError::TooLarge));
        assert_eq!(Query::parse(&"a ".repeat(1000)), Err(QueryError::TooLarge));
        assert_eq!(words("a\" OR facets:x").to_match(), "(\"a  OR facets:x\")");
    }

    #[test]
    fn negation_alone_means_everything_else() {
        assert_eq!(Query::parse("NOT a").expect("query").to_match(), format!("({MATCH_ALL} NOT (\"a\"))"));
    }
}
