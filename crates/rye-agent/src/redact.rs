//! Secrets are taken out before anything is written: keys by their shape, and the values of variables that look secret.
//!
//! One pass, in time that grows with the text alone. What is taken out leaves its name: `[redacted:OPENAI_API_KEY]`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, OnceLock};

use regex::Regex;
use rye_engine::Engine;
use serde_json::{Map, Value};

pub use cache::RedactorCache;
pub use stream::RedactStream;

mod cache;
mod encodings;
mod file_values;
mod stream;

/// A value shorter than this is not a secret worth hiding: it would turn up everywhere.
const MIN_VALUE_LEN: usize = 8;
/// With more values than this, in all their encodings, everything is taken out: the expression must stay small, and a file full of values must not
/// keep others from being known. A value that is longer is left to the patterns.
const MAX_VALUES: usize = 2000;
const MAX_VALUE_LEN: usize = 4096;
/// How deep JSON is looked into; below it, everything is taken out.
const MAX_DEPTH: usize = 128;
/// How far from its beginning the end of a private key is looked for.
const MAX_KEY_BYTES: usize = 32 << 10;
/// A line with so many letters of base64 in a row belongs to a key whose end is missing.
const MIN_KEY_LINE_LEN: usize = 24;
/// How many lines of another kind may stand between those: its headers, and an empty one.
const MAX_OTHER_LINES: usize = 6;

/// How large a compiled expression may be.
const MAX_SEARCH_BYTES: usize = 64 << 20;

const KEY_BEGIN: &str = "-----BEGIN ";

/// The end of a private key. What is in between may have numbers or marks before each line.
static KEY_END: LazyLock<Option<Regex>> =
    LazyLock::new(|| compile_regex(r"-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"));

/// Shapes of secrets, by name. `\b` keeps `task-…` from being read as `sk-…`.
const SECRET_PATTERNS: [(&str, &str); 15] = [
    // Only how it begins: see `KeyEndFinder`.
    ("private-key", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    ("url-password", r"://[A-Za-z0-9._~%!$&'()*+,;=-]*:[A-Za-z0-9._~%!$&'()*+,;=:-]+@"),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    ("anthropic-key", r"\bsk-ant-[A-Za-z0-9_-]{16,}"),
    ("api-key", r"\bsk-[A-Za-z0-9_-]{20,}"),
    ("github-token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})"),
    ("gitlab-token", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("aws-key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("aws-secret", r#"(?i:aws_secret_access_key)["']?\s{0,4}[=:]\s{0,4}["']?[A-Za-z0-9/+=]{40}"#),
    ("google-key", r"\b(?:AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,})"),
    ("slack-token", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    ("payment-key", r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    (
        "service-key",
        r"\b(?:npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{30,}|xai-[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{40,})",
    ),
    ("bearer", r"\b(?i:bearer)\s{1,4}[A-Za-z0-9._~+/=-]{16,}"),
    (
        "authorization",
        r#"\b(?i:authorization)["']?\s{0,4}[:=]\s{0,4}["']?(?i:basic|token)\s{1,4}[A-Za-z0-9._~+/=:-]{8,}"#,
    ),
];

/// What was taken out of a text or value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedactionTally {
    /// How many secrets.
    pub count: u64,
    /// The variables or shapes they were known by.
    pub names: BTreeSet<String>,
}

impl RedactionTally {
    fn add(&mut self, name: &str) {
        self.count += 1;
        if !self.names.contains(name) {
            self.names.insert(name.to_owned());
        }
    }

    /// Adds what another found.
    pub fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.names.extend(other.names);
    }
}

/// Takes secrets out of texts.
#[derive(Clone, Debug)]
pub struct Redactor {
    combined: Option<Regex>,
    /// Compiled when the first shape is found: few texts hold any.
    patterns: OnceLock<Vec<(&'static str, Regex)>>,
    /// The values alone, compiled when files are looked through.
    value_search: OnceLock<Option<regex::bytes::Regex>>,
    values: BTreeMap<String, String>,
}

impl Redactor {
    /// Knows the default shapes, and the values in `environment` whose name `is_secret`.
    #[must_use]
    pub fn new(environment: &BTreeMap<String, String>, is_secret: impl Fn(&str) -> bool) -> Self {
        Self::from_variables(environment.iter(), is_secret)
    }

    fn from_variables<'a>(
        variables: impl Iterator<Item = (&'a String, &'a String)>,
        is_secret: impl Fn(&str) -> bool,
    ) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in variables.filter(|(name, _)| is_secret(name)) {
            for form in encodings::encodings(value.trim()) {
                if (MIN_VALUE_LEN..=MAX_VALUE_LEN).contains(&form.len()) {
                    values.insert(form, name.clone());
                }
            }
        }
        Self::from_values(values)
    }

    fn from_values(values: BTreeMap<String, String>) -> Self {
        if values.len() > MAX_VALUES {
            return Self {
                combined: None,
                patterns: OnceLock::new(),
                value_search: OnceLock::from(None),
                values,
            };
        }
        let mut all = file_values::escape_values(&values);
        all.extend(SECRET_PATTERNS.iter().map(|(_, shape)| ascii_pattern(shape)));
        Self {
            combined: compile_regex(&all.join("|")),
            patterns: OnceLock::new(),
            value_search: OnceLock::new(),
            values,
        }
    }

    /// Knows what is around this engine's process, and in the `.env` that its tools are given, by the names that the
    /// settings call secret.
    ///
    /// # Errors
    /// When the settings cannot be read.
    pub fn from_engine(engine: &Engine) -> rye_engine::Result<Self> {
        let policy = engine.environment_policy()?;
        let workspace = &engine.workspace;
        // Tools of a project that is not approved are not given its `.env`, but one may print it.
        let project = workspace.roots.project.as_ref();
        let dotenv = project.map(|project| rye_exec::environment::possible_dotenv_pairs(project));
        // One name may have two values: both are secrets.
        let dotenv = dotenv.iter().flatten().map(|(name, value)| (name, value));
        let known = engine.host.variables.iter().chain(dotenv);
        Ok(Self::from_variables(known, |name| policy.is_redacted(name)))
    }

    /// The same, and all values that `other` knows.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let mut values = self.values.clone();
        for (value, name) in &other.values {
            values.entry(value.clone()).or_insert_with(|| name.clone());
        }
        Self::from_values(values)
    }

    /// The text without secrets; borrowed if it holds none.
    #[must_use]
    pub fn redact_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_text_with(text, &mut RedactionTally::default())
    }

    /// The text without secrets; what it held is added to `tally`.
    pub fn redact_text_with<'a>(&self, text: &'a str, tally: &mut RedactionTally) -> Cow<'a, str> {
        let mut clean = String::new();
        let mut from = 0;
        for (start, end) in self.find_secrets(text) {
            let name = self.secret_name(&text[start..end]);
            clean.push_str(&text[from..start]);
            clean.push_str(rye_item::text::REDACTION_PREFIX);
            clean.push_str(name);
            clean.push(']');
            tally.add(name);
            from = end;
        }
        if from == 0 {
            return Cow::Borrowed(text);
        }
        clean.push_str(&text[from..]);
        Cow::Owned(clean)
    }

    /// Where secrets begin and end.
    fn find_secrets<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
        let mut from = 0;
        let mut key_end = KeyEndFinder::default();
        std::iter::from_fn(move || {
            // The expression is ours, and its size is bounded; were there none, nothing is better than a secret.
            let Some(everything) = &self.combined else {
                return (from < text.len()).then(|| (std::mem::replace(&mut from, text.len()), text.len()));
            };
            let found = everything.find_at(text, from)?;
            let is_key = found.as_str().starts_with(KEY_BEGIN) && !self.values.contains_key(found.as_str());
            from = if is_key { key_end.find(text, &found) } else { found.end() };
            Some((found.start(), from))
        })
    }

    fn secret_name(&self, found: &str) -> &str {
        let name = self.values.get(found).map(String::as_str).or_else(|| {
            let shapes = self.patterns.get_or_init(|| {
                SECRET_PATTERNS
                    .iter()
                    .filter_map(|(name, shape)| Some((*name, compile_regex(&ascii_pattern(shape))?)))
                    .collect()
            });
            shapes.iter().find(|(_, shape)| shape.is_match(found)).map(|(name, _)| *name)
        });
        name.unwrap_or("secret")
    }

    /// The text without secrets, itself if it holds none.
    #[must_use]
    pub fn redact(&self, text: String) -> String {
        self.redact_with(text, &mut RedactionTally::default())
    }

    /// The same; what the text held is added to `tally`.
    #[must_use]
    pub fn redact_with(&self, text: String, tally: &mut RedactionTally) -> String {
        match self.redact_text_with(&text, tally) {
            Cow::Borrowed(_) => text,
            Cow::Owned(clean) => clean,
        }
    }

    /// Takes the secrets out of a value's texts and of the names in it. Whether there were any.
    pub fn redact_value(&self, value: &mut Value) -> bool {
        self.count_redacted(value) > 0
    }

    /// Takes the secrets out of a value's texts and of the names in it. How many there were.
    pub fn count_redacted(&self, value: &mut Value) -> usize {
        let mut tally = RedactionTally::default();
        self.redact_value_with(value, &mut tally);
        usize::try_from(tally.count).unwrap_or(usize::MAX)
    }

    /// The same; what the value held is added to `tally`.
    pub fn redact_value_with(&self, value: &mut Value, tally: &mut RedactionTally) {
        self.redact_nested(value, 0, tally);
    }

    /// Takes the secrets out of a map's texts and of the names in it; what it held is added to `tally`.
    pub fn redact_map_with(&self, map: &mut Map<String, Value>, tally: &mut RedactionTally) {
        self.redact_entries(map, 0, tally);
    }

    fn redact_entries(&self, map: &mut Map<String, Value>, depth: usize, tally: &mut RedactionTally) {
        map.values_mut().for_each(|value| self.redact_nested(value, depth, tally));
        if map.keys().any(|name| matches!(self.redact_text(name), Cow::Owned(_))) {
            let entries = std::mem::take(map).into_iter();
            *map = entries.map(|(name, value)| (self.redact_with(name, tally), value)).collect();
        }
    }

    fn redact_nested(&self, value: &mut Value, depth: usize, tally: &mut RedactionTally) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(clean) = self.redact_text_with(text, tally) {
                    *text = clean;
                }
            }
            Value::Array(_) | Value::Object(_) if depth > MAX_DEPTH => {
                *value = Value::String("[too deep]".to_owned());
                tally.add("too deep");
            }
            Value::Array(list) => {
                list.iter_mut().for_each(|value| self.redact_nested(value, depth + 1, tally));
            }
            Value::Object(map) => self.redact_entries(map, depth + 1, tally),
            Value::Number(number) => {
                let digits = number.to_string();
                if let Cow::Owned(clean) = self.redact_text_with(&digits, tally) {
                    *value = Value::String(clean);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }
}

/// Where private keys end. The next end is looked for once, however many begin before it.
#[derive(Default)]
struct KeyEndFinder {
    /// Where the next end lies, and from where on that is known.
    next: Option<(usize, usize)>,
}

impl KeyEndFinder {
    fn find(&mut self, text: &str, found: &regex::Match<'_>) -> usize {
        let from = found.start() + KEY_BEGIN.len();
        if self.next.is_none_or(|(_, end)| end < from) {
            let end = KEY_END.as_ref().and_then(|ends| ends.find_at(text, from));
            self.next = Some((from, end.map_or(usize::MAX, |end| end.end())));
        }
        match self.next {
            Some((_, end)) if end.saturating_sub(from) <= MAX_KEY_BYTES => end.max(found.end()),
            _ => unterminated_key_end(text, found.end()),
        }
    }
}

/// As far as lines look like those of a key; a few others may stand between them: headers, and nothing at all.
fn unterminated_key_end(text: &str, from: usize) -> usize {
    let rest = &text[from..text.floor_char_boundary(from + MAX_KEY_BYTES)];
    // The next one is looked at for itself.
    let rest = rest.find(KEY_BEGIN).map_or(rest, |next| &rest[..next]);
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    let (mut end, mut at, mut others) = (from, from, 0);
    for line in rest.split_inclusive('\n') {
        at += line.len();
        let longest = line.as_bytes().split(|byte| !is_letter(*byte)).map(<[u8]>::len).max();
        if longest.is_some_and(|longest| longest >= MIN_KEY_LINE_LEN) {
            (end, others) = (at, 0);
        } else {
            others += 1;
        }
        if others > MAX_OTHER_LINES {
            break;
        }
    }
    end
}

/// No shape has letters beyond ASCII, and without them it is made in half the time.
fn ascii_pattern(shape: &str) -> String {
    format!("(?-u:{shape})")
}

fn compile_regex(expression: &str) -> Option<Regex> {
    regex::RegexBuilder::new(expression).size_limit(MAX_SEARCH_BYTES).dfa_size_limit(8 << 20).build().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn redactor() -> &'static Redactor {
        static KNOWN: LazyLock<Redactor> = LazyLock::new(new_redactor);
        &KNOWN
    }

    fn new_redactor() -> Redactor {
        let environment = [
            ("OPENAI_API_KEY", "sk-abcdefghijklmnopqrstuvwxyz"),
            ("DB_PASSWORD", "correct horse"),
            ("DB_PASSWORD_LONG", "correct horse battery"),
            ("SHORT_TOKEN", "abc"),
            ("ODD_SECRET", "a.b*c(d[e"),
            ("HOME", "/home/someone"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Redactor::new(&environment, |name| {
            ["KEY", "PASSWORD", "TOKEN", "SECRET"].iter().any(|word| name.contains(word))
        })
    }

    #[test]
    fn secret_values_are_replaced_by_name() {
        let redactor = redactor();
        let text = "key=sk-abcdefghijklmnopqrstuvwxyz; correct horse battery; correct horse, abc, a.b*c(d[e /home/someone";
        assert_eq!(
            redactor.redact_text(text),
            "key=[redacted:OPENAI_API_KEY]; [redacted:DB_PASSWORD_LONG]; [redacted:DB_PASSWORD], abc, \
             [redacted:ODD_SECRET] /home/someone"
        );
    }

    #[test]
    fn numbers_and_escaped_values_are_redacted() {
        let environment = BTreeMap::from([
            ("DB_PASSWORD".to_owned(), "9182736455".to_owned()),
            ("API_TOKEN".to_owned(), "Zx9\"qw7\\LmN0".to_owned()),
        ]);
        let redactor = Redactor::new(&environment, |_| true);
        let mut value = serde_json::json!({"number": 9_182_736_455_u64, "other": 12, "text": r#"{"t":"Zx9\"qw7\\LmN0"}"#});
        assert_eq!(redactor.count_redacted(&mut value), 2);
        assert_eq!(value["number"], "[redacted:DB_PASSWORD]");
        assert_eq!(
            (&value["other"], &value["text"]),
            (&12.into(), &r#"{"t":"[redacted:API_TOKEN]"}"#.into())
        );
    }

    #[test]
    fn escaped_letters_are_redacted() {
        let environment = BTreeMap::from([("DB_PASSWORD".to_owned(), "éàü-secret-ÿ123".to_owned())]);
        let redactor = Redactor::new(&environment, |_| true);
        let text = r#"{"B": "\u00e9\u00e0\u00fc-secret-\u00ff123"} %C3%A9%C3%A0%C3%BC-secret-%C3%BF123"#;
        assert_eq!(redactor.redact_text(text), r#"{"B": "[redacted:DB_PASSWORD]"} [redacted:DB_PASSWORD]"#);
    }

    #[test]
    fn too_many_values_hide_everything() {
        let many = |count: usize| -> BTreeMap<String, String> {
            let one = |number| (format!("A{number}_TOKEN"), format!("value-{number:06}"));
            (0..count).map(one).chain([("Z_TOKEN".to_owned(), "the-real-one".to_owned())]).collect()
        };
        let text = "plain the-real-one";
        let redactor = Redactor::new(&many(MAX_VALUES - 1), |_| true);
        assert_eq!(redactor.redact_text(text), "plain [redacted:Z_TOKEN]");
        let flooded = Redactor::new(&many(MAX_VALUES), |_| true);
        let merged = Redactor::new(&many(MAX_VALUES - 1), |_| true)
            .merge(&Redactor::new(&BTreeMap::from([("X".to_owned(), "another-one".to_owned())]), |_| true));
        for redactor in [flooded, merged] {
            assert_eq!(redactor.redact_text(text), "[redacted:secret]");
        }
    }

    #[test]
    fn secrets_are_found_by_pattern() {
        let redactor = Redactor::new(&BTreeMap::new(), |_| true);
        let pem =
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nMIIE+/=\n-----END RSA PRIVATE KEY-----";
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N";
        let cases = [
            (format!("sk-ant-api03-{}", "a1-_".repeat(6)), "anthropic-key"),
            (format!("sk-proj-{}", "b".repeat(24)), "api-key"),
            (format!("ghp_{}", "a".repeat(36)), "github-token"),
            (format!("github_pat_{}", "a1_".repeat(10)), "github-token"),
            ("AKIAIOSFODNN7EXAMPLE".to_owned(), "aws-key"),
            (format!("AWS_SECRET_ACCESS_KEY={}", "a".repeat(40)), "aws-secret"),
            (format!("AIza{}", "a".repeat(35)), "google-key"),
            (pem.to_owned(), "private-key"),
            ("-----BEGIN PRIVATE KEY-----\nMIIEv".to_owned(), "private-key"),
            (jwt.to_owned(), "jwt"),
            ("Bearer abcdefghijklmnop1234".to_owned(), "bearer"),
            ("Authorization: Basic dXNlcjpwYXNzd29yZA==".to_owned(), "authorization"),
            ("xoxb-123456789012-abcdef".to_owned(), "slack-token"),
        ];
        for (secret, name) in cases {
            let text = format!("before {secret}\nafter");
            let redacted = redactor.redact_text(&text).into_owned();
            assert!(redacted.starts_with(&format!("before [redacted:{name}]")), "{redacted}");
            assert!(name == "private-key" || redacted.ends_with("\nafter"), "{redacted}");
        }
    }

    #[test]
    fn prefixed_private_key_lines_are_redacted() {
        let redactor = Redactor::new(&BTreeMap::new(), |_| true);
        let body = "MC4CAQAwBQYDK2VwBCIEIHcFQX1vIx0nDq9+5aXtV2cBa1b2c3d4";
        for mark in ["", "> ", "12 Ltwm6ysd|", "\t", "# "] {
            let key = format!("-----BEGIN PRIVATE KEY-----\n{mark}{body}\n{mark}-----END PRIVATE KEY-----");
            let text = format!("{mark}{key}\n{mark}after");
            assert_eq!(redactor.redact_text(&text), format!("{mark}[redacted:private-key]\n{mark}after"));
            // Its end is missing.
            let text =
                format!("{mark}-----BEGIN PRIVATE KEY-----\n{mark}{body}\n{mark}{body}\nafter all that");
            let shown = redactor.redact_text(&text);
            assert!(!shown.contains(&body[..20]) && shown.ends_with("after all that"), "{shown}");
        }
        let mention = "let begin = \"-----BEGIN PRIVATE KEY-----\";\nlet next = 1;\n";
        assert!(redactor.redact_text(mention).ends_with("let next = 1;\n"));
    }

    #[test]
    fn many_key_headers_are_linear() {
        let redactor = Redactor::new(&BTreeMap::new(), |_| true);
        for between in ["\n", " ", ""] {
            let text = format!("-----BEGIN PRIVATE KEY-----{between}").repeat(100_000);
            assert!(!redactor.redact_text(&text).contains("BEGIN"));
        }
    }

    #[test]
    fn unterminated_private_key_is_redacted() {
        let redactor = Redactor::new(&BTreeMap::new(), |_| true);
        let body = "MIIEpAIBAAKCAQEAw7Zb0q3mYkqk3cJr5v0e8Xl1o2p3q4r5s6t7u8v9w0x1y2z3";
        for between in [
            "\r\n",
            "\n\n",
            " \n",
            "\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n",
            "\\n",
            "\nComment: x\n\n",
        ] {
            let text = format!("-----BEGIN RSA PRIVATE KEY-----{between}{body}\r\n{body}\nand so on");
            let shown = redactor.redact_text(&text);
            assert!(!shown.contains(&body[..12]) && shown.ends_with("and so on"), "{shown}");
        }
        let long = format!("-----BEGIN RSA PRIVATE KEY-----{}", body.repeat(1000));
        assert!(!redactor.redact_text(&long[..20_000]).contains(&body[..12]));
        let url = "DATABASE=postgres://app:hunter2@db.example/app and http://example.com:8080/@x";
        let shown = redactor.redact_text(url);
        assert_eq!(
            shown,
            "DATABASE=postgres[redacted:url-password]db.example/app and http://example.com:8080/@x"
        );
    }

    #[test]
    fn ordinary_text_is_unchanged() {
        let redactor = redactor();
        for text in [
            "a task-with-a-name-that-is-rather-long-indeed",
            "the bearer of bad news",
            "disk-aaaaaaaaaaaaaaaaaaaaaaaaaa",
            "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
            "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "[redacted:OPENAI_API_KEY]",
            "",
        ] {
            assert_eq!(redactor.redact_text(text), text);
        }
    }

    #[test]
    fn values_are_redacted_everywhere_and_names_too() {
        let value =
            json!({"correct horse": ["correct horse", {"n": 1, "deep": "x correct horse y"}], "b": true});
        let expected = json!({
            "[redacted:DB_PASSWORD]": ["[redacted:DB_PASSWORD]", {"n": 1, "deep": "x [redacted:DB_PASSWORD] y"}], "b": true
        });
        let mut cleaned = value.clone();
        assert!(redactor().redact_value(&mut cleaned));
        assert_eq!(cleaned, expected);
        assert!(!redactor().redact_value(&mut cleaned), "what is clean stays");
        assert_eq!(cleaned, expected);
        let mut deep = json!("correct horse");
        for _ in 0..1000 {
            deep = json!([deep]);
        }
        assert!(redactor().redact_value(&mut deep));
        assert!(!deep.to_string().contains("correct horse"));
    }

    proptest! {
        #[test]
        fn secret_is_redacted_anywhere(before in ".{0,20}", after in ".{0,20}") {
            let redactor = redactor();
            let redacted = redactor.redact_text(&format!("{before}a.b*c(d[e{after}")).into_owned();
            prop_assert!(!redacted.contains("a.b*c(d[e"), "{redacted}");
            // What was redacted stays as it is.
            prop_assert_eq!(redactor.redact_text(&redacted).into_owned(), redacted.clone());
        }
    }
}
