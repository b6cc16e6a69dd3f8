//! Python source to fields: every module-level `NAME = <literal>`, and the module's docstring.
//!
//! The source is never run. A literal is what `ast.literal_eval` takes and JSON can hold, and beyond that sums of
//! numbers, of strings and of lists. What the names mean is decided by those who read the fields. `returned` reads a
//! little more: what one small function returns.

mod indentation;
mod return_literal;
mod string_literal;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::{Map, Value};
use tree_sitter::{Language, Node};

use super::syntax::{self, FieldCollector, LiteralError};
use crate::diagnostic::ParsedItem;

pub use indentation::indentation_problem;
pub use return_literal::{ModuleContext, ReturnLiteral, read_return_literal};

/// Reads the metadata of a Python module.
#[must_use]
pub fn parse(text: &str) -> ParsedItem {
    let text = normalize_line_ends(text);
    let tree = match syntax::parse_tree(&text, &Language::new(tree_sitter_python::LANGUAGE)) {
        Ok(tree) => tree,
        Err(problem) => return ParsedItem::from_problem(problem),
    };
    let root = tree.root_node();
    let reader = PythonReader { text: &text, context: None };
    let mut collector = FieldCollector::new(&text, root);

    if let Some(first) = syntax::children(root).first()
        && let Some(documentation) = reader.docstring(*first)
    {
        let is_space = |character: char| character.is_whitespace() || matches!(character, '\x1c'..='\x1f');
        let documentation = documentation.trim_matches(is_space).to_owned();
        collector.record("__docstring__", first.start_byte(), Ok(Value::String(documentation)));
    }
    for statement in syntax::valid_statements(root) {
        if statement.kind() != "expression_statement" {
            continue;
        }
        let Some(assignment) = only_child(statement).filter(|child| child.kind() == "assignment") else {
            continue;
        };
        let name = assignment.child_by_field_name("left").filter(|left| left.kind() == "identifier");
        if let (Some(name), Some(value)) = (name, assignment.child_by_field_name("right")) {
            let result = reader.literal(value, 0).map(Literal::into_value);
            collector.record(syntax::text_of(name, &text), name.start_byte(), result);
        }
    }
    collector.finish()
}

/// Whether the module defines a function of this name at its top level.
#[must_use]
pub fn defines_function(text: &str, name: &str) -> bool {
    let text = normalize_line_ends(text);
    let Ok(tree) = syntax::parse_tree(&text, &Language::new(tree_sitter_python::LANGUAGE)) else {
        return false;
    };
    syntax::valid_statements(tree.root_node()).into_iter().any(|statement| {
        let definition = match statement.kind() {
            "decorated_definition" => statement.child_by_field_name("definition"),
            _ => Some(statement),
        };
        let definition = definition.filter(|definition| definition.kind() == "function_definition");
        let defined = definition.and_then(|definition| definition.child_by_field_name("name"));
        defined.is_some_and(|defined| syntax::text_of(defined, &text) == name)
    })
}

/// Whether the module may have an attribute of this name once it is loaded: the name is used outside functions and
/// classes, or something is there that makes names at run time.
#[must_use]
pub fn may_bind(text: &str, name: &str) -> bool {
    const NAME_MAKERS: [&str; 6] = ["__getattr__", "exec", "globals", "locals", "setattr", "vars"];
    let text = normalize_line_ends(text);
    let Ok(tree) = syntax::parse_tree(&text, &Language::new(tree_sitter_python::LANGUAGE)) else {
        return true;
    };
    let is_name = |node: Node<'_>| {
        let word = syntax::text_of(node, &text);
        word == name || NAME_MAKERS.contains(&word)
    };
    let mut pending = vec![tree.root_node()];
    while let Some(node) = pending.pop() {
        match node.kind() {
            "wildcard_import" => return true,
            "identifier" if is_name(node) => return true,
            "function_definition" | "class_definition" => pending.extend(node.child_by_field_name("name")),
            _ => pending.extend(syntax::children(node)),
        }
    }
    false
}

/// A carriage return alone ends a line for Python but not for the grammar, which would take the next line for more of
/// a comment. Replaced byte for byte, so that places stay.
fn normalize_line_ends(text: &str) -> Cow<'_, str> {
    if !text.contains('\r') {
        return Cow::Borrowed(text);
    }
    let mut lines = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(index) = rest.find('\r') {
        let (before, from) = rest.split_at(index);
        lines.push_str(before);
        lines.push(if from.starts_with("\r\n") { '\r' } else { '\n' });
        rest = &from[1..];
    }
    lines.push_str(rest);
    Cow::Owned(lines)
}

/// The only child of a node, anonymous ones counted.
fn only_child(node: Node<'_>) -> Option<Node<'_>> {
    let mut cursor = node.walk();
    let mut children = node.children(&mut cursor).filter(|child| !child.is_extra());
    let first = children.next()?;
    if children.next().is_none() { Some(first) } else { None }
}

/// A literal that still knows which kind of sequence it is.
enum Literal {
    Value(Value),
    Tuple(Vec<Value>),
    Set(Vec<Value>),
    /// A path, where paths are known.
    Path(PathBuf),
}

impl Literal {
    fn into_value(self) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Tuple(items) | Self::Set(items) => Value::Array(items),
            Self::Path(path) => Value::String(path.to_string_lossy().into_owned()),
        }
    }

    /// `self + other`, or `self - other` if `is_difference`.
    fn combine(self, other: Self, is_difference: bool) -> Result<Self, LiteralError> {
        match (self, other) {
            (Self::Value(Value::Number(left)), Self::Value(Value::Number(right))) => {
                combine_numbers(&left, &right, is_difference).map(Self::Value)
            }
            _ if is_difference => Err(LiteralError::NotLiteral),
            (Self::Value(Value::String(left)), Self::Value(Value::String(right))) => {
                Ok(Self::Value(Value::String(left + &right)))
            }
            (Self::Value(Value::Array(mut left)), Self::Value(Value::Array(right))) => {
                left.extend(right);
                Ok(Self::Value(Value::Array(left)))
            }
            (Self::Tuple(mut left), Self::Tuple(right)) => {
                left.extend(right);
                Ok(Self::Tuple(left))
            }
            _ => Err(LiteralError::NotLiteral),
        }
    }
}

fn combine_numbers(
    left: &serde_json::Number,
    right: &serde_json::Number,
    is_difference: bool,
) -> Result<Value, LiteralError> {
    if let (Some(left), Some(right)) = (left.as_i128(), right.as_i128()) {
        return syntax::integer(if is_difference { left - right } else { left + right });
    }
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => syntax::float(if is_difference { left - right } else { left + right }),
        _ => Err(LiteralError::NotLiteral),
    }
}

struct PythonReader<'text> {
    text: &'text str,
    /// What is known beyond literals, where something is.
    context: Option<&'text ModuleContext<'text>>,
}

impl PythonReader<'_> {
    /// The docstring, if `statement` is one.
    fn docstring(&self, statement: Node<'_>) -> Option<String> {
        if statement.kind() != "expression_statement" || statement.has_error() {
            return None;
        }
        let mut expression = only_child(statement)?;
        while expression.kind() == "parenthesized_expression" {
            expression = *syntax::children(expression).first()?;
        }
        self.any_string(expression).ok()
    }

    /// The value of an expression that stands in `depth` others.
    fn literal(&self, node: Node<'_>, depth: usize) -> Result<Literal, LiteralError> {
        let value = match node.kind() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "none" => Value::Null,
            "integer" => self.integer(node)?,
            "float" => self.float(node)?,
            "string" | "concatenated_string" => Value::String(self.any_string(node)?),
            compound => {
                syntax::check_depth(node, depth)?;
                return match compound {
                    "parenthesized_expression" => match syntax::children(node).as_slice() {
                        [inner] => self.literal(*inner, depth + 1),
                        _ => Err(LiteralError::NotLiteral),
                    },
                    "unary_operator" => self.unary(node, depth),
                    "binary_operator" if self.is_path_join(node) => self.join_path(node, depth),
                    "binary_operator" => self.sum(node, depth),
                    "call" | "attribute" | "subscript" => self.known_expression(node, depth),
                    "list" => Ok(Literal::Value(Value::Array(self.items(node, depth)?))),
                    "tuple" | "expression_list" => Ok(Literal::Tuple(self.items(node, depth)?)),
                    "set" => self.set(node, depth),
                    "dictionary" => self.dictionary(node, depth),
                    _ => Err(LiteralError::NotLiteral),
                };
            }
        };
        Ok(Literal::Value(value))
    }

    /// Whether this is `path / "name"`, where paths are known.
    fn is_path_join(&self, node: Node<'_>) -> bool {
        self.context.is_some()
            && node.child_by_field_name("operator").is_some_and(|operator| operator.kind() == "/")
    }

    fn items(&self, node: Node<'_>, depth: usize) -> Result<Vec<Value>, LiteralError> {
        let items = syntax::children(node).into_iter();
        items.map(|item| self.literal(item, depth + 1).map(Literal::into_value)).collect()
    }

    /// A set as a list without repetitions. Lists, dictionaries and sets cannot be in a set.
    fn set(&self, node: Node<'_>, depth: usize) -> Result<Literal, LiteralError> {
        let mut seen = HashSet::new();
        let mut items = Vec::new();
        for item in syntax::children(node) {
            let item = match self.literal(item, depth + 1)? {
                Literal::Value(Value::Array(_) | Value::Object(_)) | Literal::Set(_) => {
                    return Err(LiteralError::NotLiteral);
                }
                hashable => hashable.into_value(),
            };
            if seen.insert(item.to_string()) {
                items.push(item);
            }
        }
        Ok(Literal::Set(items))
    }

    fn dictionary(&self, node: Node<'_>, depth: usize) -> Result<Literal, LiteralError> {
        let mut entries = Map::new();
        for pair in syntax::children(node) {
            let (Some(key), Some(value)) =
                (pair.child_by_field_name("key"), pair.child_by_field_name("value"))
            else {
                return Err(LiteralError::NotLiteral);
            };
            let key = match self.literal(key, depth + 1)? {
                Literal::Value(Value::String(key)) => key,
                Literal::Value(Value::Number(key)) if !key.is_f64() => key.to_string(),
                _ => return Err(LiteralError::NotLiteral),
            };
            entries.insert(key, self.literal(value, depth + 1)?.into_value());
        }
        Ok(Literal::Value(Value::Object(entries)))
    }

    fn unary(&self, node: Node<'_>, depth: usize) -> Result<Literal, LiteralError> {
        let (Some(operator), Some(argument)) =
            (node.child_by_field_name("operator"), node.child_by_field_name("argument"))
        else {
            return Err(LiteralError::NotLiteral);
        };
        let is_negative = match operator.kind() {
            "-" => true,
            "+" => false,
            _ => return Err(LiteralError::NotLiteral),
        };
        let Literal::Value(Value::Number(number)) = self.literal(argument, depth + 1)? else {
            return Err(LiteralError::NotLiteral);
        };
        let value = match (number.as_i128(), number.as_f64()) {
            (Some(number), _) => syntax::integer(if is_negative { -number } else { number })?,
            (None, Some(number)) => syntax::float(if is_negative { -number } else { number })?,
            (None, None) => return Err(LiteralError::NotLiteral),
        };
        Ok(Literal::Value(value))
    }

    /// A chain of sums and differences leans to the left and may be of any length, so it is walked, not descended.
    fn sum(&self, node: Node<'_>, depth: usize) -> Result<Literal, LiteralError> {
        let mut terms = Vec::new();
        let mut leftmost = node;
        while leftmost.kind() == "binary_operator" {
            let field = |name| leftmost.child_by_field_name(name).ok_or(LiteralError::NotLiteral);
            let is_difference = match field("operator")?.kind() {
                "-" => true,
                "+" => false,
                _ => return Err(LiteralError::NotLiteral),
            };
            terms.push((is_difference, field("right")?));
            leftmost = field("left")?;
        }
        let mut sum = self.literal(leftmost, depth + 1)?;
        for (is_difference, term) in terms.into_iter().rev() {
            sum = sum.combine(self.literal(term, depth + 1)?, is_difference)?;
        }
        Ok(sum)
    }

    fn integer(&self, node: Node<'_>) -> Result<Value, LiteralError> {
        let text = syntax::text_of(node, self.text).to_ascii_lowercase();
        let malformed = |reason| Err(LiteralError::Malformed(node.start_byte(), reason));
        let (digits, radix) = match text.get(..2) {
            Some("0x") => (&text[2..], 16),
            Some("0o") => (&text[2..], 8),
            Some("0b") => (&text[2..], 2),
            _ => (text.as_str(), 10),
        };
        if digits.ends_with('j') {
            return Err(LiteralError::NotLiteral);
        }
        if digits.ends_with(['l', '_']) {
            return malformed("invalid number");
        }
        let digits = digits.replace('_', "");
        if radix == 10
            && digits.len() > 1
            && digits.starts_with('0')
            && digits.bytes().any(|digit| digit != b'0')
        {
            return malformed("leading zeros in a decimal number");
        }
        let number = u64::from_str_radix(&digits, radix).map_err(|_| LiteralError::NotLiteral)?;
        syntax::integer(i128::from(number))
    }

    fn float(&self, node: Node<'_>) -> Result<Value, LiteralError> {
        let text = syntax::text_of(node, self.text).replace('_', "");
        syntax::float(text.parse().map_err(|_| LiteralError::NotLiteral)?)
    }

    /// A string, or several that stand side by side.
    fn any_string(&self, node: Node<'_>) -> Result<String, LiteralError> {
        match node.kind() {
            "string" => self.string(node),
            "concatenated_string" => {
                syntax::children(node).into_iter().map(|part| self.any_string(part)).collect()
            }
            _ => Err(LiteralError::NotLiteral),
        }
    }

    fn string(&self, node: Node<'_>) -> Result<String, LiteralError> {
        let Some(open) = node.named_child(0) else {
            return Err(LiteralError::NotLiteral);
        };
        let opening = syntax::text_of(open, self.text);
        let prefix = opening.trim_end_matches(['\'', '"']);
        let is_raw = match prefix.to_ascii_lowercase().as_str() {
            "" | "u" => false,
            "r" => true,
            _ => return Err(LiteralError::NotLiteral),
        };
        let quotes = opening.len() - prefix.len();
        // Not from the node of the closing quotes: in raw strings it may hold escapes before them.
        let (start, end) = (open.end_byte(), node.end_byte().saturating_sub(quotes));
        let content = self.text.get(start..end).ok_or(LiteralError::NotLiteral)?;
        let is_triple = quotes == 3;
        string_literal::decode(content, start, is_raw, is_triple)
    }
}

#[cfg(test)]
mod tests;
