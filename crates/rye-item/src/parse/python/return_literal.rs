//! What a small function returns, read from its source: literals, the path of its own file, the version of a package.
//!
//! Only a function whose body is one `return` is read; anything else is a problem with its place. Nothing is run.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tree_sitter::{Language, Node};

use super::{Literal, PythonReader, normalize_line_ends, only_child};
use crate::diagnostic::{Diagnostic, SourcePosition};
use crate::parse::syntax::{self, LiteralError};

/// What a function sees around itself.
pub struct ModuleContext<'a> {
    /// `__file__`.
    pub file: &'a Path,
    /// `importlib.metadata.version(name)`, if there is such a package.
    pub version: &'a dyn Fn(&str) -> Option<String>,
}

/// A value that was returned under a key, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnLiteral {
    /// The dictionary.
    pub entries: Map<String, Value>,
    /// Where the value of a key stands.
    pub positions: Vec<(String, SourcePosition)>,
}

/// The dictionary that `function` of the module `text` returns.
///
/// # Errors
/// When it cannot be told without running it: what is not understood, and where.
pub fn read_return_literal(
    text: &str,
    function: &str,
    context: &ModuleContext<'_>,
) -> Result<ReturnLiteral, Diagnostic> {
    let text = normalize_line_ends(text);
    let tree = syntax::parse_tree(&text, &Language::new(tree_sitter_python::LANGUAGE))?;
    let root = tree.root_node();
    let problem = |message: &str, offset: usize| {
        Diagnostic::new(message.to_owned()).with_position(SourcePosition::from_offset(&text, offset))
    };
    if root.has_error() {
        return Err(problem("Syntax error", syntax::first_error(root)));
    }
    let reader = PythonReader { text: &text, context: Some(context) };
    let mut definitions =
        syntax::children(root).into_iter().filter(|statement| reader.binds(*statement, function));
    let (Some(definition), None) = (definitions.next(), definitions.next()) else {
        return Err(problem(&format!("`{function}` is not defined exactly once"), 0));
    };
    let at = definition.start_byte();
    if definition.kind() != "function_definition" || syntax::text_of(definition, &text).starts_with("async") {
        return Err(problem(&format!("`{function}` is not a plain function"), at));
    }
    let body = definition.child_by_field_name("body").map(syntax::children).unwrap_or_default();
    let body = match body.split_first() {
        Some((first, rest)) if reader.docstring(*first).is_some() => rest,
        _ => body.as_slice(),
    };
    let dictionary = match body {
        [only] if only.kind() == "return_statement" => syntax::children(*only),
        [other, ..] => {
            return Err(problem(
                "only a single `return` of a dictionary is understood here",
                other.start_byte(),
            ));
        }
        [] => return Err(problem("nothing is returned here", at)),
    };
    let [dictionary] = dictionary.as_slice() else {
        return Err(problem("only a dictionary is understood here", body[0].start_byte()));
    };
    if dictionary.kind() != "dictionary" {
        return Err(problem("only a dictionary is understood here", dictionary.start_byte()));
    }
    let mut literal = ReturnLiteral { entries: Map::new(), positions: Vec::new() };
    for pair in syntax::children(*dictionary) {
        let start = pair.start_byte();
        let (key, value) = (pair.child_by_field_name("key"), pair.child_by_field_name("value"));
        let key = key.filter(|_| pair.kind() == "pair").map(|key| reader.literal(key, 1));
        let (Some(Ok(Literal::Value(Value::String(key)))), Some(value)) = (key, value) else {
            return Err(problem("only keys that are plain strings are understood here", start));
        };
        let value_start = value.start_byte();
        let value = reader.literal(value, 1).map_err(|refusal| match refusal {
            LiteralError::NotLiteral => {
                problem(&format!("the value of `{key}` is not understood"), value_start)
            }
            LiteralError::TooDeep(value_start) => {
                problem(&format!("the value of `{key}` is nested too deep"), value_start)
            }
            LiteralError::Malformed(value_start, reason) => {
                problem(&format!("Syntax error: {reason}"), value_start)
            }
        })?;
        literal.positions.push((key.clone(), SourcePosition::from_offset(&text, value_start)));
        if literal.entries.insert(key.clone(), value.into_value()).is_some() {
            return Err(problem(&format!("duplicate key `{key}`"), start));
        }
    }
    Ok(literal)
}

impl PythonReader<'_> {
    /// Whether a statement of a module may give `name` a meaning: it defines or assigns it, imports everything, or is a
    /// block that mentions it.
    fn binds(&self, statement: Node<'_>, name: &str) -> bool {
        let source = syntax::text_of(statement, self.text);
        match statement.kind() {
            "function_definition" | "class_definition" => self.field(statement, "name") == Some(name),
            "decorated_definition" => {
                let inner = statement.child_by_field_name("definition");
                inner.is_some_and(|inner| self.field(inner, "name") == Some(name))
            }
            "import_from_statement" if source.trim_end().ends_with('*') => true,
            "expression_statement" if self.docstring(statement).is_some() => false,
            "expression_statement" => {
                let left = only_child(statement).and_then(|child| child.child_by_field_name("left"));
                mentions(left.map_or(source, |left| syntax::text_of(left, self.text)), name)
            }
            _ => mentions(source, name),
        }
    }

    fn field(&self, node: Node<'_>, name: &str) -> Option<&str> {
        node.child_by_field_name(name).map(|node| syntax::text_of(node, self.text))
    }

    /// A call, an attribute or a subscript that is known by name.
    pub(super) fn known_expression(&self, node: Node<'_>, depth: usize) -> Result<Literal, LiteralError> {
        let context = self.context.ok_or(LiteralError::NotLiteral)?;
        let child = |name: &str| node.child_by_field_name(name).ok_or(LiteralError::NotLiteral);
        match node.kind() {
            "attribute" if self.field(node, "attribute") == Some("parent") => {
                Ok(Literal::Path(parent(&self.path_literal(child("object")?, depth)?)?))
            }
            "subscript" => {
                let value = child("value")?;
                let is_parents =
                    value.kind() == "attribute" && self.field(value, "attribute") == Some("parents");
                let object = value.child_by_field_name("object").filter(|_| is_parents);
                let mut path = self.path_literal(object.ok_or(LiteralError::NotLiteral)?, depth)?;
                let Literal::Value(Value::Number(steps)) = self.literal(child("subscript")?, depth + 1)?
                else {
                    return Err(LiteralError::NotLiteral);
                };
                for _ in 0..=steps.as_u64().filter(|steps| *steps < 32).ok_or(LiteralError::NotLiteral)? {
                    path = parent(&path)?;
                }
                Ok(Literal::Path(path))
            }
            "call" => {
                let callee = child("function")?;
                let arguments = syntax::children(child("arguments")?);
                let name = syntax::text_of(callee, self.text);
                match (name, arguments.as_slice()) {
                    ("Path" | "pathlib.Path", [file]) if syntax::text_of(*file, self.text) == "__file__" => {
                        Ok(Literal::Path(context.file.to_owned()))
                    }
                    ("str", [path]) => {
                        let path = self.path_literal(*path, depth)?;
                        Ok(Literal::Value(Value::String(
                            path.to_str().ok_or(LiteralError::NotLiteral)?.to_owned(),
                        )))
                    }
                    ("version" | "metadata.version" | "importlib.metadata.version", [package]) => {
                        let Literal::Value(Value::String(package)) = self.literal(*package, depth + 1)?
                        else {
                            return Err(LiteralError::NotLiteral);
                        };
                        let version = (context.version)(&package).ok_or(LiteralError::NotLiteral)?;
                        Ok(Literal::Value(Value::String(version)))
                    }
                    // Where links lead is looked at by those who open the path.
                    _ if callee.kind() == "attribute"
                        && arguments.is_empty()
                        && matches!(self.field(callee, "attribute"), Some("resolve" | "absolute")) =>
                    {
                        let object = callee.child_by_field_name("object").ok_or(LiteralError::NotLiteral)?;
                        Ok(Literal::Path(self.path_literal(object, depth)?))
                    }
                    _ => Err(LiteralError::NotLiteral),
                }
            }
            _ => Err(LiteralError::NotLiteral),
        }
    }

    /// `path / "name"`.
    pub(super) fn join_path(&self, node: Node<'_>, depth: usize) -> Result<Literal, LiteralError> {
        let child = |name: &str| node.child_by_field_name(name).ok_or(LiteralError::NotLiteral);
        let path = self.path_literal(child("left")?, depth)?;
        let Literal::Value(Value::String(name)) = self.literal(child("right")?, depth + 1)? else {
            return Err(LiteralError::NotLiteral);
        };
        let is_plain = name.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
        if is_plain { Ok(Literal::Path(path.join(name))) } else { Err(LiteralError::NotLiteral) }
    }

    fn path_literal(&self, node: Node<'_>, depth: usize) -> Result<PathBuf, LiteralError> {
        match self.literal(node, depth + 1)? {
            Literal::Path(path) => Ok(path),
            Literal::Value(_) | Literal::Tuple(_) | Literal::Set(_) => Err(LiteralError::NotLiteral),
        }
    }
}

fn mentions(text: &str, name: &str) -> bool {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).any(|word| word == name)
}

fn parent(path: &Path) -> Result<PathBuf, LiteralError> {
    path.parent().map(Path::to_owned).ok_or(LiteralError::NotLiteral)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const IMPORTS: &str = "from importlib.metadata import version\nfrom pathlib import Path\n\n\n";

    fn read(body: &str) -> Result<Value, String> {
        let version = |name: &str| (name == "my-tools").then(|| "1.2.0".to_owned());
        let around = ModuleContext { file: Path::new("/site/my/bundle.py"), version: &version };
        let text = format!("{IMPORTS}{body}");
        read_return_literal(&text, "get_bundle", &around)
            .map(|literal| Value::Object(literal.entries))
            .map_err(|problem| problem.to_string())
    }

    fn value(expression: &str) -> Result<Value, String> {
        let body = format!(
            "def get_bundle() -> dict:\n    \"\"\"Words.\"\"\"\n    return {{\"x\": {expression}}}\n"
        );
        read(&body).map(|value| value["x"].clone())
    }

    #[test]
    fn literals_paths_and_versions_are_read() {
        for (expression, expected) in [
            ("\"my\" \"-tools\"", json!("my-tools")),
            ("[\"a\", \"b/c\"]", json!(["a", "b/c"])),
            ("{}", json!({})),
            ("None", Value::Null),
            ("version(\"my-tools\")", json!("1.2.0")),
            ("importlib.metadata.version('my-tools')", json!("1.2.0")),
            ("Path(__file__).parent", json!("/site/my")),
            ("Path(__file__).resolve().parent.parent", json!("/site")),
            ("pathlib.Path(__file__).parents[1]", json!("/site")),
            ("(Path(__file__).parent / \"data\" / 'x/y')", json!("/site/my/data/x/y")),
            ("str(Path(__file__).parent)", json!("/site/my")),
        ] {
            assert_eq!(value(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn unknown_expressions_are_reported_with_line() {
        for expression in [
            "os.environ['HOME']",
            "Path('/etc')",
            "Path(__file__)['x']",
            "Path(__file__).parent / '..'",
            "Path(__file__).parent / '/etc'",
            "Path(__file__).parents[-1]",
            "Path(__file__).parents[9]",
            "Path(__file__, 'x')",
            "Path(__file__).parent.parent.parent.parent.parent",
            "version('another')",
            "version(name)",
            "f'{x}'",
            "open('/etc/passwd').read()",
            "__import__('os').system('x')",
            "[x for x in y]",
            "x if y else z",
            "lambda: 1",
        ] {
            assert_eq!(
                value(expression),
                Err("7:18: the value of `x` is not understood".to_owned()),
                "{expression}"
            );
        }
    }

    #[test]
    fn only_single_return_functions_are_read() {
        let good = "def get_bundle():\n    # words\n    return {}\n";
        assert_eq!(read(good), Ok(json!({})));
        let more = "__all__ = ['get_bundle']\ntry:\n    import x\nexcept ImportError:\n    x = None\n\ndef main():\n    get_bundle()\n";
        assert_eq!(read(&format!("{more}{good}")), Ok(json!({})));
        for (body, reason) in [
            ("", "1:1: `get_bundle` is not defined exactly once"),
            (&*format!("{good}{good}"), "1:1: `get_bundle` is not defined exactly once"),
            (&*format!("{good}get_bundle = other\n"), "1:1: `get_bundle` is not defined exactly once"),
            (
                &*format!("{good}if True:\n    get_bundle = other\n"),
                "1:1: `get_bundle` is not defined exactly once",
            ),
            (&*format!("{good}from x import get_bundle\n"), "1:1: `get_bundle` is not defined exactly once"),
            (&*format!("{good}from x import *\n"), "1:1: `get_bundle` is not defined exactly once"),
            (
                &*format!("{good}globals()['get_bundle'] = x\n"),
                "1:1: `get_bundle` is not defined exactly once",
            ),
            (&*format!("@decorated\n{good}"), "5:1: `get_bundle` is not a plain function"),
            (&*format!("async {good}"), "5:1: `get_bundle` is not a plain function"),
            ("class get_bundle:\n    pass\n", "5:1: `get_bundle` is not a plain function"),
            (
                "def get_bundle():\n    x = 1\n    return {}\n",
                "6:5: only a single `return` of a dictionary is understood here",
            ),
            ("def get_bundle():\n    \"\"\"Words.\"\"\"\n", "5:1: nothing is returned here"),
            ("def get_bundle():\n    return\n", "6:5: only a dictionary is understood here"),
            ("def get_bundle():\n    return dict(a=1)\n", "6:12: only a dictionary is understood here"),
            (
                "def get_bundle():\n    return {**x}\n",
                "6:13: only keys that are plain strings are understood here",
            ),
            (
                "def get_bundle():\n    return {1: 2}\n",
                "6:13: only keys that are plain strings are understood here",
            ),
            ("def get_bundle():\n    return {'a': 1, 'a': 2}\n", "6:21: duplicate key `a`"),
            ("def get_bundle(:\n", "5:15: Syntax error"),
        ] {
            let found = read(body);
            let is_syntax = reason.ends_with("Syntax error")
                && found.as_ref().is_err_and(|found| found.ends_with("Syntax error"));
            assert!(is_syntax || found == Err(reason.to_owned()), "{body}: {found:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_a_dictionary_or_a_problem(noise in "\\PC{0,40}", cut in 0_usize..400, put in 0_usize..400) {
            let good = "def get_bundle():\n    return {'a': Path(__file__).parents[0] / 'b', 'c': version('my-tools')}\n";
            let split = |at: usize| (0..=at.min(good.len())).rev().find(|at| good.is_char_boundary(*at)).unwrap_or(0);
            let (cut, put) = (split(cut), split(put));
            for text in [noise.clone(), format!("{}{noise}{}", &good[..put], &good[put..]), good[..cut].to_owned()] {
                let _ = read(&text).map_err(|reason| assert!(!reason.is_empty()));
            }
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        assert!(value(&deep).is_err_and(|reason| reason.ends_with("is nested too deep")));
        let parents = format!("Path(__file__){}", ".parent".repeat(500));
        assert!(value(&parents).is_err());
    }
}
