//! Python modules as authors write them, and as attackers do.

use serde_json::json;

use super::*;
use crate::diagnostic::SourcePosition;

fn fields(text: &str) -> Value {
    let parsed = parse(text);
    assert_eq!(parsed.problems, [], "{text:?}");
    Value::Object(parsed.fields)
}

fn value(expression: &str) -> Option<Value> {
    fields(&format!("X = {expression}\n")).get("X").cloned()
}

fn problems(text: &str) -> Vec<String> {
    parse(text).problems.iter().map(ToString::to_string).collect()
}

#[test]
fn tool_metadata_docstring_and_positions_are_read() {
    let text = "# comment\n'''\n Doc. \n'''\nimport os\n\n__version__ = \"1.0.0\"\n__executor_id__ = None\n\
                CONFIG_SCHEMA = {\"type\": \"object\", 'required': ['a'], # why\n  \"n\": -1, }\n";
    let parsed = parse(text);
    assert_eq!(parsed.problems, []);
    assert_eq!(
        Value::Object(parsed.fields),
        json!({
            "__docstring__": "Doc.",
            "__version__": "1.0.0",
            "__executor_id__": null,
            "CONFIG_SCHEMA": {"type": "object", "required": ["a"], "n": -1},
        })
    );
    let positions: Vec<_> =
        parsed.positions.iter().map(|(name, position)| format!("{name} {position}")).collect();
    assert_eq!(
        positions,
        ["CONFIG_SCHEMA 9:1", "__docstring__ 2:1", "__executor_id__ 8:1", "__version__ 7:1"]
    );
}

#[test]
fn numbers_are_read_in_every_notation() {
    for (source, expected) in [
        ("0", json!(0)),
        ("00", json!(0)),
        ("1_000", json!(1000)),
        ("0xFF", json!(255)),
        ("0o17", json!(15)),
        ("0B1_01", json!(5)),
        ("-3", json!(-3)),
        ("+3", json!(3)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("18446744073709551615", json!(u64::MAX)),
        ("1.5", json!(1.5)),
        ("1.", json!(1.0)),
        (".5", json!(0.5)),
        ("1e3", json!(1000.0)),
        ("1_0.0_1e-1", json!(1.001)),
        ("60 - 2 + 1", json!(59)),
        ("1 + 0.5", json!(1.5)),
        ("-(1 + 2)", json!(-3)),
    ] {
        assert_eq!(value(source), Some(expected), "{source}");
    }
}

#[test]
fn numbers_json_cannot_represent_are_skipped() {
    let sources = r"
        18446744073709551616 | -9223372036854775809 | 1e999 | 1j | 1.5J | 9223372036854775807 * 2";
    for source in sources.split(['|', '\n']).map(str::trim).filter(|source| !source.is_empty()) {
        assert_eq!(value(source), None, "{source}");
    }
}

#[test]
fn strings_are_decoded_like_python() {
    for (source, expected) in [
        (r#""a\n\t\\\'\"\a\b\f\v\r""#, "a\n\t\\'\"\x07\x08\x0c\x0b\r"),
        (r"'\x41\u00e9\U0001F600'", "Aé😀"),
        (r"'\0\7\101\1011\400\8'", "\0\x07AA1\u{100}\\8"),
        (r"'\q\ \d'", r"\q\ \d"),
        ("'a\\\nb'", "ab"),
        ("'a\\\r\nb'", "ab"),
        ("'''a\nb\r\nc'''", "a\nb\nc"),
        ("'''a'b''c'''", "a'b''c"),
        (r"r'\n\'\\'", r"\n\'\\"),
        ("r'a\\\nb'", "a\\\nb"),
        ("R\"\"\"\\\"\"\"\"", "\\\""),
        (r"r'\\'", r"\\"),
        ("u'é'", "é"),
        ("''", ""),
        ("'a' \"b\" r'\\c'", "ab\\c"),
        ("('a'\n # why\n 'b')", "ab"),
        ("'a' + ('b' + 'c') + 'd'", "abcd"),
        ("'# no comment'", "# no comment"),
    ] {
        assert_eq!(value(source), Some(json!(expected)), "{source}");
    }
}

#[test]
fn strings_json_cannot_represent_are_skipped() {
    let sources = r"
        '\N{DASH}' | '\ud800' | '\ud83d\ude00' | b'a' | Rb'a' | f'a' | f'{a}' | 'a' f'b'
        'a' b'b'";
    for source in sources.split(['|', '\n']).map(str::trim).filter(|source| !source.is_empty()) {
        assert_eq!(parse(&format!("X = {source}")).fields.get("X"), None, "{source}");
    }
}

#[test]
fn containers_become_arrays_and_objects() {
    for (source, expected) in [
        ("[1, 'a', None, True, [False]]", json!([1, "a", null, true, [false]])),
        ("()", json!([])),
        ("(1,)", json!([1])),
        ("1, 2", json!([1, 2])),
        ("1,", json!([1])),
        ("{3, 1, 3}", json!([3, 1])),
        ("{}", json!({})),
        ("{'b': 1, 'a': {2: (3,)}, -1: 0, 'b': 4}", json!({"b": 4, "a": {"2": [3]}, "-1": 0})),
        ("[1] + [2] + [3]", json!([1, 2, 3])),
        ("(1,) + (2,)", json!([1, 2])),
    ] {
        assert_eq!(value(source), Some(expected), "{source}");
    }
}

#[test]
fn non_literals_are_skipped() {
    let sources = r"
        name | call() | [x for x in y] | {**a} | {'a': b} | [*a] | {1.5: 1} | {True: 1}
        {None: 1} | {(1,): 1} | {[1]} | 'a' % 1 | 'a' + 1 | [1] + (1,) | [1] - [1] | -True | ~1
        not 1 | a.b | a[0] | 1 if a else 2 | lambda: 1 | ... | 'a' * 2 | True + 1";
    for source in sources.split(['|', '\n']).map(str::trim).filter(|source| !source.is_empty()) {
        assert_eq!(value(source), None, "{source}");
    }
}

#[test]
fn only_module_level_single_targets_are_read() {
    let text = "a = b = 1\nc, d = 1, 2\ne.f = 1\ng[0] = 1\nh: int = 7\ni: int\nj += 1\nif True:\n    k = 1\n\
                def l():\n    m = 1\nclass N:\n    o = 1\ntry:\n    p = 1\nexcept E:\n    q = 1\nr = 1; s = 2\nr = 3\n";
    assert_eq!(fields(text), json!({"h": 7, "r": 3, "s": 2}));
}

#[test]
fn metadata_names_must_be_plain_literals() {
    assert_eq!(
        problems(
            "VERSION = f'{a}'\n__version__ = f'{a}'\n__category__ = name\nx = 1; __tool_type__ = a = 'b'\n"
        ),
        [
            "2:1: `__version__` must be a plain literal",
            "3:1: `__category__` must be a plain literal",
            "4:8: `__tool_type__` must be a plain literal",
        ]
    );
    assert_eq!(problems("SANDBOX = {'network': NETWORK}\n"), ["1:1: `SANDBOX` must be a plain literal"]);
    let parsed = parse("__version__ = f()");
    assert_eq!(parsed.problems[0].field.as_deref(), Some("__version__"));
}

#[test]
fn docstring_must_be_the_first_statement() {
    assert_eq!(fields("('a' 'b')\n"), json!({"__docstring__": "ab"}));
    for text in ["x = 1\n'a'\n", "f'a'\n", "b'a'\n", "'a', 'b'\n", "'a' + 'b'\n", "'a'.b\n", ""] {
        assert_eq!(parse(text).fields.get("__docstring__"), None, "{text:?}");
    }
}

#[test]
fn syntax_error_keeps_valid_fields() {
    let parsed = parse("A = 1\nB = = 2\nC = 3\n");
    assert_eq!(parsed.problems.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2:5: Syntax error"]);
    assert_eq!(parsed.text("B"), None);
    assert_eq!(parsed.fields.get("A"), Some(&json!(1)));
    assert_eq!(parsed.fields.get("C"), Some(&json!(3)));
    for text in ["A = 1\nB = [1,\n", "A = 1\nB = '''a\n", "A = 1\nB = 'a\nC = 2", "A = 1\ndef f(:\n"] {
        assert_eq!(parse(text).problems.len(), 1, "{text:?}");
        assert_eq!(parse(text).problems[0].position.map(|place| place.line), Some(2), "{text:?}");
    }
}

#[test]
fn python_syntax_errors_are_problems() {
    for (source, message) in [
        (r"'a\x4'", "1:7: Syntax error: invalid escape in a string"),
        (r"'é\u12'", "1:7: Syntax error: invalid escape in a string"),
        (r"'\U00110000'", "1:6: Syntax error: invalid escape in a string"),
        ("012", "1:5: Syntax error: leading zeros in a decimal number"),
        ("10L", "1:5: Syntax error: invalid number"),
        ("'\n'", "1:6: Syntax error: unterminated string"),
    ] {
        assert_eq!(problems(&format!("X = {source}")), [message], "{source}");
    }
}

#[test]
fn line_ends_of_every_kind_work() {
    let text = "#!/x\n'''d\ne'''\nA = [1,\n 2]\n__version__ = 'x'\nB = '''y\nz'''\n";
    let expected = fields(text);
    let crlf = parse(&text.replace('\n', "\r\n"));
    assert_eq!((crlf.problems, Value::Object(crlf.fields)), (Vec::new(), expected.clone()));
    assert_eq!(crlf.positions["__version__"], SourcePosition { line: 6, column: 1 });
    let carriage_returns = parse(&text.replace('\n', "\r"));
    assert_eq!((carriage_returns.problems, Value::Object(carriage_returns.fields)), (Vec::new(), expected));
    assert_eq!(fields("\u{feff}A = 1\n"), json!({"A": 1}));
    assert_eq!(fields("# comment\rA = 1"), json!({"A": 1}));
}

#[test]
fn nesting_beyond_limit_is_refused() {
    let nested = |depth: usize| format!("X = {}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(&nested(64)).fields.contains_key("X"));
    assert_eq!(problems(&nested(65)), ["1:69: `X` is nested deeper than 64 levels"]);
}

#[test]
fn excessive_brackets_are_a_problem() {
    let count = 100_000;
    for (open, inner, close) in [
        ("[", "", "]"),
        ("(", "1", ")"),
        ("{1:", "1", "}"),
        ("-", "1", ""),
        ("[({", "", ""),
        ("", "", "]"),
        ("f'{", "", ""),
    ] {
        let text = format!("X = {}{inner}{}", open.repeat(count), close.repeat(count));
        let parsed = parse(&text);
        assert_eq!((parsed.problems.len(), parsed.fields.len()), (1, 0), "{open}");
    }
}

#[test]
fn long_chains_and_strings_are_read() {
    let count = 100_000;
    assert_eq!(value(&format!("1{}", "+1".repeat(count))), Some(json!(count + 1)));
    assert_eq!(value(&format!("''{}", "+'a'".repeat(count))), Some(json!("a".repeat(count))));
    assert_eq!(value(&format!("''{}", " 'a'".repeat(count))), Some(json!("a".repeat(count))));
    assert_eq!(value(&format!("a{}", ".b()".repeat(count))), None);
    let long = "é\\n".repeat(1 << 18);
    assert_eq!(value(&format!("'{long}'")), Some(json!("é\n".repeat(1 << 18))));
    assert_eq!(fields(&"x = 1;".repeat(count)), json!({"x": 1}));
    assert_eq!(problems(&format!("X = '{}", "a".repeat(1 << 20))).len(), 1);
}

#[test]
fn nul_bytes_are_refused() {
    assert_eq!(problems("A = 1\nB = '\0'\n"), ["2:6: Syntax error: NUL byte"]);
}

#[test]
fn computed_schema_is_ignored_with_warning() {
    let parsed = parse("CONFIG_SCHEMA = {\"a\": 1}\nCONFIG_SCHEMA = build()\nother = build()\n");
    assert_eq!(parsed.fields.get("CONFIG_SCHEMA"), None);
    assert_eq!(parsed.problems, []);
    assert_eq!(parsed.warnings.len(), 1);
    assert_eq!(parsed.warnings[0].position.map(|position| position.line), Some(2));
}
