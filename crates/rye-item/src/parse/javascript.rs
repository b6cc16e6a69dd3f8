//! JavaScript and TypeScript source to fields: every top-level `const`, `let` or `var` whose value is a literal,
//! exported or not.
//!
//! The source is never run. What the names mean is decided by those who read the fields.

use serde_json::{Map, Value};
use tree_sitter::{Language, Node};

use super::syntax::{self, FieldCollector, LiteralError};
use crate::diagnostic::ParsedItem;

/// Integers up to here are exact in JavaScript.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Reads the metadata of a JavaScript module.
#[must_use]
pub fn parse_javascript(text: &str) -> ParsedItem {
    parse(text, &Language::new(tree_sitter_javascript::LANGUAGE))
}

/// Reads the metadata of a TypeScript module.
#[must_use]
pub fn parse_typescript(text: &str) -> ParsedItem {
    parse(text, &Language::new(tree_sitter_typescript::LANGUAGE_TYPESCRIPT))
}

fn parse(text: &str, language: &Language) -> ParsedItem {
    let tree = match syntax::parse_tree(text, language) {
        Ok(tree) => tree,
        Err(problem) => return ParsedItem::from_problem(problem),
    };
    let root = tree.root_node();
    let reader = JavaScriptReader { text };
    let mut collector = FieldCollector::new(text, root);
    for statement in syntax::valid_statements(root) {
        let declaration = match statement.kind() {
            "export_statement" => statement.child_by_field_name("declaration"),
            _ => Some(statement),
        };
        let is_declaration =
            |node: &Node<'_>| matches!(node.kind(), "lexical_declaration" | "variable_declaration");
        let Some(declaration) = declaration.filter(is_declaration) else {
            continue;
        };
        for declarator in syntax::children(declaration) {
            let name = declarator.child_by_field_name("name").filter(|name| name.kind() == "identifier");
            let (Some(name), Some(value)) = (name, declarator.child_by_field_name("value")) else {
                continue;
            };
            if let Ok(text_name) = reader.name(name) {
                collector.record(text_name, name.start_byte(), reader.literal(value, 0));
            }
        }
    }
    collector.finish()
}

/// Whether the module exports a function or value of this name: `export function`, `export const`, `export { name }`,
/// `exports.name =`, or `module.exports = { name }`.
#[must_use]
pub fn exports_function(text: &str, is_typed: bool, name: &str) -> bool {
    let language = match is_typed {
        true => Language::new(tree_sitter_typescript::LANGUAGE_TYPESCRIPT),
        false => Language::new(tree_sitter_javascript::LANGUAGE),
    };
    let Ok(tree) = syntax::parse_tree(text, &language) else { return false };
    syntax::valid_statements(tree.root_node()).into_iter().any(|statement| match statement.kind() {
        "export_statement" => exported_names(statement, text).contains(&name),
        "expression_statement" => {
            let assignment = syntax::children(statement).into_iter().next();
            assignment.is_some_and(|assignment| assigns_export(assignment, text, name))
        }
        _ => false,
    })
}

/// Whether what a module exports is decided elsewhere, so that a name may be among it.
#[must_use]
pub fn may_export(text: &str, name: &str) -> bool {
    let words: String = text.split_whitespace().collect();
    let is_passed_on = words.contains("export*")
        || words.contains("module.exports=require(")
        || words.contains("Object.assign(exports")
        || words.contains("Object.assign(module.exports");
    is_passed_on
        || words.contains(&format!("exports[\"{name}\"]"))
        || words.contains(&format!("exports['{name}']"))
}

fn exported_names<'text>(statement: Node<'_>, text: &'text str) -> Vec<&'text str> {
    let name_of =
        |node: Node<'_>, field: &str| node.child_by_field_name(field).map(|name| syntax::text_of(name, text));
    let Some(declaration) = statement.child_by_field_name("declaration") else {
        let clauses = syntax::children(statement).into_iter().filter(|node| node.kind() == "export_clause");
        let specifiers = clauses.flat_map(|clause| syntax::children(clause));
        return specifiers.filter_map(|one| name_of(one, "alias").or_else(|| name_of(one, "name"))).collect();
    };
    match name_of(declaration, "name") {
        Some(name) => vec![name],
        None => syntax::children(declaration).into_iter().filter_map(|one| name_of(one, "name")).collect(),
    }
}

fn assigns_export(assignment: Node<'_>, text: &str, name: &str) -> bool {
    let side = |field: &str| assignment.child_by_field_name(field);
    let (Some(left), Some(right)) = (side("left"), side("right")) else { return false };
    let target: String =
        syntax::text_of(left, text).chars().filter(|letter| !letter.is_whitespace()).collect();
    if target == format!("exports.{name}") || target == format!("module.exports.{name}") {
        return true;
    }
    target == "module.exports"
        && right.kind() == "object"
        && syntax::children(right).into_iter().any(|member| {
            let key =
                ["key", "name"].iter().find_map(|field| member.child_by_field_name(field)).unwrap_or(member);
            syntax::text_of(key, text) == name
        })
}

struct JavaScriptReader<'text> {
    text: &'text str,
}

impl JavaScriptReader<'_> {
    /// The value of an expression that stands in `depth` others.
    fn literal(&self, node: Node<'_>, depth: usize) -> Result<Value, LiteralError> {
        let node = strip_types(node);
        match node.kind() {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::Null),
            "number" => json_number(self.number(node)?),
            "string" | "template_string" => self.string(node).map(Value::String),
            compound => {
                syntax::check_depth(node, depth)?;
                match compound {
                    "parenthesized_expression" => match syntax::children(node).as_slice() {
                        [inner] => self.literal(*inner, depth + 1),
                        _ => Err(LiteralError::NotLiteral),
                    },
                    "unary_expression" => self.unary(node, depth),
                    "binary_expression" => self.concatenation(node, depth),
                    "array" => self.array(node, depth),
                    "object" => self.object(node, depth),
                    _ => Err(LiteralError::NotLiteral),
                }
            }
        }
    }

    /// An array; a place left empty between commas is not a value.
    fn array(&self, node: Node<'_>, depth: usize) -> Result<Value, LiteralError> {
        let mut items = Vec::new();
        let mut commas = 0;
        let mut cursor = node.walk();
        for child in node.children(&mut cursor).filter(|child| !child.is_extra()) {
            match child.kind() {
                "[" | "]" => {}
                "," => {
                    commas += 1;
                    if commas > items.len() {
                        return Err(LiteralError::NotLiteral);
                    }
                }
                _ => items.push(self.literal(child, depth + 1)?),
            }
        }
        Ok(Value::Array(items))
    }

    fn object(&self, node: Node<'_>, depth: usize) -> Result<Value, LiteralError> {
        let mut entries = Map::new();
        for pair in syntax::children(node) {
            let (Some(key), Some(value)) =
                (pair.child_by_field_name("key"), pair.child_by_field_name("value"))
            else {
                return Err(LiteralError::NotLiteral);
            };
            let key = match key.kind() {
                "property_identifier" => self.name(key)?.to_owned(),
                "string" => self.string(key)?,
                "number" => number_key(self.number(key)?)?,
                _ => return Err(LiteralError::NotLiteral),
            };
            // This one sets the prototype instead of a property.
            if key == "__proto__" {
                return Err(LiteralError::NotLiteral);
            }
            entries.insert(key, self.literal(value, depth + 1)?);
        }
        Ok(Value::Object(entries))
    }

    fn unary(&self, node: Node<'_>, depth: usize) -> Result<Value, LiteralError> {
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
        match self.literal(argument, depth + 1)?.as_f64() {
            Some(number) => json_number(if is_negative { -number } else { number }),
            None => Err(LiteralError::NotLiteral),
        }
    }

    /// A chain of `+` leans to the left and may be of any length, so it is walked, not descended.
    fn concatenation(&self, node: Node<'_>, depth: usize) -> Result<Value, LiteralError> {
        let mut parts = Vec::new();
        let mut leftmost = node;
        while leftmost.kind() == "binary_expression" {
            let field = |name| leftmost.child_by_field_name(name).ok_or(LiteralError::NotLiteral);
            if field("operator")?.kind() != "+" {
                return Err(LiteralError::NotLiteral);
            }
            parts.push(field("right")?);
            leftmost = field("left")?;
        }
        parts.push(leftmost);
        let mut whole = String::new();
        for part in parts.into_iter().rev() {
            match self.literal(part, depth + 1)? {
                Value::String(part) => whole.push_str(&part),
                _ => return Err(LiteralError::NotLiteral),
            }
        }
        Ok(Value::String(whole))
    }

    /// A name as it is written; one that holds escapes would have to be decoded first.
    fn name(&self, node: Node<'_>) -> Result<&str, LiteralError> {
        let name = syntax::text_of(node, self.text);
        if name.contains('\\') { Err(LiteralError::NotLiteral) } else { Ok(name) }
    }

    fn number(&self, node: Node<'_>) -> Result<f64, LiteralError> {
        let text = syntax::text_of(node, self.text).replace('_', "").to_ascii_lowercase();
        let radix = match text.get(..2) {
            Some("0x") => 16,
            Some("0o") => 8,
            Some("0b") => 2,
            _ => 10,
        };
        let is_old_octal = radix == 10 && text.len() > 1 && text.starts_with('0') && !text.starts_with("0.");
        let is_zero_with_exponent = text.starts_with("0e");
        if (is_old_octal && !is_zero_with_exponent) || text.ends_with('n') {
            return Err(LiteralError::NotLiteral);
        }
        if radix == 10 {
            return text.parse().map_err(|_| LiteralError::NotLiteral);
        }
        // Beyond 64 bits nothing would be exact any more.
        let number = u64::from_str_radix(&text[2..], radix).map_err(|_| LiteralError::NotLiteral)?;
        if number <= 1 << 53 { Ok(number as f64) } else { Err(LiteralError::NotLiteral) }
    }

    fn string(&self, node: Node<'_>) -> Result<String, LiteralError> {
        let is_template = node.kind() == "template_string";
        if is_template && syntax::children(node).iter().any(|part| part.kind() == "template_substitution") {
            return Err(LiteralError::NotLiteral);
        }
        let start = node.start_byte() + 1;
        let content =
            self.text.get(start..node.end_byte().saturating_sub(1)).ok_or(LiteralError::NotLiteral)?;
        decode(content, start, is_template)
    }
}

/// The expression that `as T` and `satisfies T` say something about.
fn strip_types(node: Node<'_>) -> Node<'_> {
    let mut inner = node;
    while matches!(inner.kind(), "as_expression" | "satisfies_expression") {
        match inner.named_child(0) {
            Some(expression) => inner = expression,
            None => break,
        }
    }
    inner
}

/// A JSON integer if the number is whole and exact.
fn json_number(number: f64) -> Result<Value, LiteralError> {
    if number.fract() == 0.0 && number.abs() <= MAX_SAFE_INTEGER {
        syntax::integer(number as i128)
    } else {
        syntax::float(number)
    }
}

/// The name of a property that is written as a number, where it is written alike in both languages.
fn number_key(number: f64) -> Result<String, LiteralError> {
    if number == 0.0 || (1e-6..1e21).contains(&number) {
        Ok(number.to_string())
    } else {
        Err(LiteralError::NotLiteral)
    }
}

/// The value of what stands between the quotes; `start` is where that begins in the source.
fn decode(content: &str, start: usize, is_template: bool) -> Result<String, LiteralError> {
    let mut decoded = String::with_capacity(content.len());
    let mut rest = content;
    while let Some(index) = rest.find(['\\', '\r', '\n']) {
        decoded.push_str(&rest[..index]);
        rest = &rest[index..];
        let offset = start + content.len() - rest.len();
        if let Some(after) = rest.strip_prefix('\\') {
            rest = escape(after, offset, &mut decoded)?;
        } else if is_template {
            rest = rest.strip_prefix("\r\n").unwrap_or(&rest[1..]);
            decoded.push('\n');
        } else {
            return Err(LiteralError::Malformed(offset, "unterminated string"));
        }
    }
    decoded.push_str(rest);
    Ok(decoded)
}

/// Decodes the escape whose backslash stands at `offset`, and gives back what follows it.
fn escape<'text>(after: &'text str, offset: usize, decoded: &mut String) -> Result<&'text str, LiteralError> {
    let malformed = LiteralError::Malformed(offset, "invalid escape in a string");
    if let Some(rest) = after.strip_prefix("\r\n") {
        return Ok(rest);
    }
    let mut characters = after.chars();
    let kind = characters.next().ok_or(malformed)?;
    let rest = characters.as_str();
    let character = match kind {
        '\n' | '\r' | '\u{2028}' | '\u{2029}' => return Ok(rest),
        'x' => {
            let code = syntax::hexadecimal(rest, 2).ok_or(malformed)?;
            decoded.extend(char::from_u32(code));
            return Ok(&rest[2..]);
        }
        'u' => {
            let (character, rest) = unicode_escape(rest, malformed)?;
            decoded.push(character);
            return Ok(rest);
        }
        '0' if !rest.starts_with(|next: char| next.is_ascii_digit()) => '\0',
        // Octal escapes, which modules do not have.
        '0'..='9' => return Err(LiteralError::NotLiteral),
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        other => other,
    };
    decoded.push(character);
    Ok(rest)
}

/// Decodes what follows `\u`. Two halves of a surrogate pair are one character; half of one is none.
fn unicode_escape(rest: &str, malformed: LiteralError) -> Result<(char, &str), LiteralError> {
    if let Some(braced) = rest.strip_prefix('{') {
        let (digits, rest) = braced.split_once('}').ok_or(malformed)?;
        let digits = digits.trim_start_matches('0');
        let code = if digits.is_empty() { Some(0) } else { syntax::hexadecimal(digits, digits.len()) };
        return match code {
            Some(code) if code <= 0x0010_ffff => {
                Ok((char::from_u32(code).ok_or(LiteralError::NotLiteral)?, rest))
            }
            _ => Err(malformed),
        };
    }
    let first = syntax::hexadecimal(rest, 4).ok_or(malformed)?;
    let rest = &rest[4..];
    if let Some(character) = char::from_u32(first) {
        return Ok((character, rest));
    }
    let second = rest.strip_prefix("\\u").and_then(|digits| syntax::hexadecimal(digits, 4));
    match (first, second) {
        (0xd800..=0xdbff, Some(second @ 0xdc00..=0xdfff)) => {
            let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            Ok((char::from_u32(code).ok_or(LiteralError::NotLiteral)?, &rest[6..]))
        }
        _ => Err(LiteralError::NotLiteral),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(expression: &str) -> Option<Value> {
        let text = format!("const X = {expression};\n");
        let parsed = parse_javascript(&text);
        let typed = parse_typescript(&text);
        assert_eq!(parsed.problems, [], "{expression:?}");
        assert_eq!(parsed, typed, "{expression:?}");
        parsed.fields.get("X").cloned()
    }

    fn problems(text: &str) -> Vec<String> {
        parse_javascript(text).problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn typescript_metadata_and_positions_are_read() {
        let text = "#!/usr/bin/env node\n// rye\nimport fs from 'fs';\nexport const __version__: string = \"1.0.0\";\n\
                    let __executor_id__ = null, other = call();\n\
                    export const CONFIG_SCHEMA: Record<string, unknown> = {\n  type: 'object', // why\n  /* and */ \
                    \"$id\": \"http://x/*y*/\",\n  3: [1, -2.5, true,],\n} as const satisfies Schema;\nvar B = (\"a\" + `b`) as T;\n\
                    function f() { const inner = 1; }\nif (x) { var nested = 1; }\nexport default 5;\nconst { a } = b;\nlet c, \\u0064 = 1;\n";
        let parsed = parse_typescript(text);
        assert_eq!(parsed.problems, []);
        assert_eq!(
            Value::Object(parsed.fields),
            json!({
                "__version__": "1.0.0",
                "__executor_id__": null,
                "CONFIG_SCHEMA": {"type": "object", "$id": "http://x/*y*/", "3": [1, -2.5, true]},
                "B": "ab",
            })
        );
        let places: Vec<_> = parsed.positions.iter().map(|(name, place)| format!("{name} {place}")).collect();
        assert_eq!(places, ["B 11:5", "CONFIG_SCHEMA 6:14", "__executor_id__ 5:5", "__version__ 4:14"]);
    }

    #[test]
    fn numbers_are_read_in_every_notation() {
        for (source, expected) in [
            ("0", json!(0)),
            ("1_000", json!(1000)),
            ("0xFF", json!(255)),
            ("0o17", json!(15)),
            ("0B1_01", json!(5)),
            ("-3", json!(-3)),
            ("+3", json!(3)),
            ("-0", json!(0)),
            ("1.5", json!(1.5)),
            ("1.", json!(1)),
            (".5", json!(0.5)),
            ("0.5", json!(0.5)),
            ("0e1", json!(0)),
            ("1e3", json!(1000)),
            ("9007199254740992", json!(9_007_199_254_740_992_u64)),
            ("-9007199254740992", json!(-9_007_199_254_740_992_i64)),
            ("1e21", json!(1e21)),
        ] {
            assert_eq!(value(source), Some(expected), "{source}");
        }
    }

    #[test]
    fn strings_are_decoded_like_javascript() {
        for (source, expected) in [
            (r#""a\n\t\\\'\"\`\b\f\v\r\0""#, "a\n\t\\'\"`\x08\x0c\x0b\r\0"),
            (r"'\x41\u00e9\u{1F600}\u{0000041}\ud83d\ude00'", "Aé😀A😀"),
            (r"'\q\ \d'", "q d"),
            ("'a\\\nb\\\r\nc\\\u{2028}d'", "abcd"),
            ("`a\nb\r\nc\\`$ {}`", "a\nb\nc`$ {}"),
            (r"`\${a}`", "${a}"),
            ("''", ""),
            ("'http://x // no /* comment */'", "http://x // no /* comment */"),
            ("'a' + (\"b\" + `c`) + 'd'", "abcd"),
            ("(('a'))", "a"),
        ] {
            assert_eq!(value(source), Some(json!(expected)), "{source}");
        }
    }

    #[test]
    fn containers_become_arrays_and_objects() {
        for (source, expected) in [
            ("[]", json!([])),
            ("[1, 'a', null, [false],]", json!([1, "a", null, [false]])),
            ("{}", json!({})),
            (
                "{b: 1, 'a c': {0x10: [3]}, 1.5: 0, default: 1, b: 4}",
                json!({"b": 4, "a c": {"16": [3]}, "1.5": 0, "default": 1}),
            ),
            ("/* a */ { // b\n a: /* c */ 1 }", json!({"a": 1})),
        ] {
            assert_eq!(value(source), Some(expected), "{source}");
        }
    }

    #[test]
    fn non_literals_are_skipped() {
        let sources = r"
            name | call() | undefined | `a${b}` | tag`a` | {a} | {...a} | {[a]: 1} | {a() {}}
            {get a() { return 1 }} | {__proto__: null} | {\u0061: 1} | [1,,2] | [,] | [...a]
            [undefined] | 1 + 2 | 'a' + 1 | 'a' - 'b' | !0 | -'1' | -null | 1n | 010 | /a/ | () => 1
            (1, 2) | '\01' | '\8' | '\ud800' | '\ude00\ud83d' | 1e999 | 0x20000000000001 | a ? 1 : 2
            new A() | {1e30: 1}";
        for source in sources.split(['|', '\n']).map(str::trim).filter(|source| !source.is_empty()) {
            assert_eq!(value(source), None, "{source}");
        }
    }

    #[test]
    fn metadata_names_must_be_plain_literals() {
        assert_eq!(
            problems(
                "const VERSION = f();\nexport const __version__ = `${a}`;\nlet a = 1, __category__ = undefined;\n"
            ),
            ["2:14: `__version__` must be a plain literal", "3:12: `__category__` must be a plain literal"]
        );
    }

    #[test]
    fn syntax_error_keeps_valid_fields() {
        let parsed = parse_javascript("const A = 1;\nconst B = = 2;\nconst C = 3;\n");
        assert_eq!(
            parsed.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["2:9: Syntax error"]
        );
        assert_eq!(parsed.fields.get("A"), Some(&json!(1)));
        assert_eq!(parsed.fields.get("C"), Some(&json!(3)));
        for text in [
            "const A = 1;\nconst B = [1,\n",
            "const A = 1;\nconst B = `a\n",
            "const A = 1;\nconst B = 'a\nlet c = 2",
        ] {
            assert_eq!(problems(text).len(), 1, "{text:?}");
            assert!(problems(text)[0].starts_with("2:"), "{:?}", problems(text));
        }
        assert_eq!(problems("const A = '\n';"), ["1:12: Syntax error: unterminated string"]);
        assert_eq!(problems(r"const A = '\u{110000}';"), ["1:12: Syntax error: invalid escape in a string"]);
    }

    #[test]
    fn carriage_returns_and_byte_order_marks_work() {
        let text = "\u{feff}// a\nconst A = {\n  b: `c\nd`, // e\n};\nlet __version__ = 'x'\n";
        let parsed = parse_typescript(&text.replace('\n', "\r\n"));
        assert_eq!(parsed.problems, []);
        assert_eq!(Value::Object(parsed.fields), json!({"A": {"b": "c\nd"}, "__version__": "x"}));
        assert_eq!(parsed.positions["__version__"].to_string(), "6:5");
    }

    #[test]
    fn nesting_beyond_limit_is_refused() {
        let nested = |depth: usize| format!("let X = {}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse_javascript(&nested(64)).fields.contains_key("X"));
        assert_eq!(problems(&nested(65)), ["1:73: `X` is nested deeper than 64 levels"]);
    }

    #[test]
    fn excessive_brackets_are_a_problem() {
        let count = 100_000;
        for (open, inner, close) in [
            ("[", "", "]"),
            ("(", "1", ")"),
            ("{a:", "1", "}"),
            ("- ", "1", ""),
            ("[({", "", ""),
            ("", "", "]"),
            ("`${", "", ""),
        ] {
            let text = format!("let X = {}{inner}{}", open.repeat(count), close.repeat(count));
            for parsed in [parse_javascript(&text), parse_typescript(&text)] {
                assert_eq!((parsed.problems.len(), parsed.fields.len()), (1, 0), "{open}");
            }
        }
    }

    #[test]
    fn long_chains_and_strings_are_read() {
        let count = 100_000;
        assert_eq!(value(&format!("''{}", "+'a'".repeat(count))), Some(json!("a".repeat(count))));
        assert_eq!(value(&format!("a{}", ".b()".repeat(count))), None);
        let long = "é\\n".repeat(1 << 18);
        assert_eq!(value(&format!("'{long}'")), Some(json!("é\n".repeat(1 << 18))));
        let chain = format!("let X = 1{};", " as T".repeat(count));
        assert_eq!(parse_typescript(&chain).fields.get("X"), Some(&json!(1)));
        assert_eq!(problems(&format!("let X = '{}", "a".repeat(1 << 20))).len(), 1);
        assert_eq!(Value::Object(parse_javascript(&"var x=1;".repeat(count)).fields), json!({"x": 1}));
    }

    #[test]
    fn nul_bytes_are_refused() {
        assert_eq!(problems("let A = 1;\nlet B = '\0';"), ["2:10: Syntax error: NUL byte"]);
    }
}
