//! A file that claims to be an item: read once; the same bytes are hashed, verified and parsed.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rye_item::extractor::Parser;
use rye_item::{
    Diagnostic, ExtractorSet, ItemRef, ItemType, ParsedItem, SignatureFormat, Space, metadata, parse,
    validate,
};
use rye_trust::Subject;
use serde_json::{Map, Value};

use crate::roots::AI_FOLDER;

/// What a text states that is a tool.
const TOOL_KEYS: [&str; 4] = ["executor_id", "tool_type", "__executor_id__", "__tool_type__"];

/// A language that a tool may be written in.
struct OtherLanguage {
    name: &'static str,
    parser: Parser,
    extension: &'static str,
    /// What stands between a key and its value.
    sign: char,
}

/// The languages of tools whose signature a comment can carry.
const OTHER_LANGUAGES: [OtherLanguage; 5] = [
    OtherLanguage { name: "a Python tool", parser: Parser::Python, extension: ".py", sign: '=' },
    OtherLanguage { name: "a JavaScript tool", parser: Parser::JavaScript, extension: ".js", sign: '=' },
    OtherLanguage { name: "a shell tool", parser: Parser::Shell, extension: ".sh", sign: ':' },
    OtherLanguage { name: "a YAML tool", parser: Parser::Yaml, extension: ".yaml", sign: ':' },
    OtherLanguage { name: "a TOML tool", parser: Parser::Toml, extension: ".toml", sign: '=' },
];

impl OtherLanguage {
    /// Whether this parser reads the language already.
    fn is_read_by(&self, parser: Parser) -> bool {
        parser == self.parser || (parser == Parser::TypeScript && self.parser == Parser::JavaScript)
    }

    /// Whether a line names a key of a tool the way the language does. Without one, the text need not be parsed.
    fn may_be(&self, text: &str) -> bool {
        let mut lines = text.lines().filter(|line| TOOL_KEYS[..2].iter().any(|key| line.contains(key)));
        let is_declared = || ["const", "let", "var"].iter().any(|word| text.contains(word));
        lines.any(|line| line.contains(self.sign)) && (self.parser != Parser::JavaScript || is_declared())
    }
}

/// Statements of Python that are one word and a colon.
const PYTHON_BLOCKS: [&str; 3] = ["try", "else", "finally"];

/// Whether what was read without a problem holds one of these keys.
fn states(parsed: &ParsedItem, keys: &[&str]) -> bool {
    parsed.problems.is_empty() && keys.iter().any(|key| parsed.fields.contains_key(*key))
}

/// An item's file, found and read.
#[derive(Debug)]
pub struct ItemFile {
    item: ItemRef,
    space: Space,
    /// Where it is, for showing; an embedded item has a path inside the binary.
    pub path: PathBuf,
    /// Its extension with the dot.
    pub extension: String,
    bytes: Cow<'static, [u8]>,
    extractors: Arc<ExtractorSet>,
    /// What the build read from it, in JSON.
    prepared: Option<&'static str>,
    parsed: OnceLock<(ParsedItem, Map<String, Value>)>,
}

impl ItemFile {
    /// The file at `path` with these bytes.
    #[must_use]
    pub fn new(
        item: ItemRef,
        space: Space,
        path: PathBuf,
        extension: String,
        bytes: Cow<'static, [u8]>,
        extractors: Arc<ExtractorSet>,
    ) -> Self {
        Self { item, space, path, extension, bytes, extractors, prepared: None, parsed: OnceLock::new() }
    }

    /// The same, for a file inside the binary that the build has read already.
    #[must_use]
    pub fn prepared(self, fields: Option<&'static str>) -> Self {
        Self { prepared: fields, ..self }
    }

    /// Which item it claims to be.
    #[must_use]
    pub fn item_ref(&self) -> &ItemRef {
        &self.item
    }

    /// What its parser reads from it.
    #[must_use]
    pub fn parsed(&self) -> &ParsedItem {
        &self.parse_once().0
    }

    /// Its fields, by the extractor's rules.
    #[must_use]
    pub fn fields(&self) -> &Map<String, Value> {
        &self.parse_once().1
    }

    fn parse_once(&self) -> &(ParsedItem, Map<String, Value>) {
        self.parsed.get_or_init(|| {
            let extractor = self.extractors.for_type(self.item.item_type);
            let prepared = self.prepared.and_then(|fields| serde_json::from_str(fields).ok());
            let mut parsed = match (prepared, extractor.parser_for(&self.extension)) {
                (Some(fields), _) => ParsedItem { fields, ..ParsedItem::default() },
                (None, Some(parser)) => parse::parse(parser, &self.extension, &self.covered_form()),
                (None, None) => ParsedItem::from_problem(Diagnostic::new(format!(
                    "No parser registered for extension: {}",
                    self.extension
                ))),
            };
            metadata::add_field_positions(extractor, &mut parsed);
            let fields = metadata::extract(extractor, &parsed, self.item.id.name());
            (parsed, fields)
        })
    }

    /// Everything that keeps it from being signed: what its parser and its schema say.
    #[must_use]
    pub fn problems(&self) -> Vec<Diagnostic> {
        let (parsed, fields) = self.parse_once();
        let mut problems = parsed.problems.clone();
        // Fields of a text that could not be read are not missing: they are unreadable.
        if parsed.problems.is_empty() || parsed.is_complete {
            let expected =
                validate::ExpectedPath { name: self.item.id.name(), category: self.item.id.category() };
            let schema = &self.extractors.for_type(self.item.item_type).schema;
            problems.extend(validate::validate(schema, fields, parsed, expected));
        }
        problems
    }

    /// The first line whose indentation its language refuses, if that language is Python.
    #[must_use]
    pub fn indentation_problem(&self) -> Option<Diagnostic> {
        let parser = self.extractors.for_type(self.item.item_type).parser_for(&self.extension)?;
        parse::indentation_problem(parser, &self.covered_form())
    }

    /// Whether its fields are variables of a program, where `name` may be any variable.
    fn is_source_code(&self) -> bool {
        let parser = self.extractors.for_type(self.item.item_type).parser_for(&self.extension);
        matches!(parser, Some(Parser::Python | Parser::JavaScript | Parser::TypeScript))
    }

    /// The name that the text of a tool or config states.
    fn own_name(&self) -> Option<&str> {
        let key = if self.is_source_code() { "__tool_name__" } else { "name" };
        self.parsed().fields.get(key).map(|name| name.as_str().unwrap_or_default())
    }

    /// The line that would state its name, if it is a tool whose text states none.
    #[must_use]
    pub fn missing_name_line(&self) -> Option<String> {
        if self.item.item_type != ItemType::Tool || self.own_name().is_some() {
            return None;
        }
        let name = self.item.id.name();
        let parser = self.extractors.for_type(self.item.item_type).parser_for(&self.extension)?;
        Some(match parser {
            Parser::Python => format!("__tool_name__ = \"{name}\""),
            Parser::JavaScript | Parser::TypeScript => format!("const __tool_name__ = \"{name}\";"),
            Parser::Shell => format!("# name: {name}"),
            Parser::Toml => format!("name = \"{name}\""),
            Parser::Yaml => format!("name: \"{name}\""),
            Parser::Json => format!("\"name\": \"{name}\","),
            Parser::MarkdownXml | Parser::MarkdownFrontmatter => return None,
        })
    }

    /// Whether it was read as what it is, and says nothing of its place: other implementations sign tools with a
    /// version only, and knowledge without a category. `rye sign` does not.
    fn has_no_location(&self) -> bool {
        // A package holds such items where its maker put them; in project and user space they may have been moved.
        if !matches!(self.space, Space::System(_)) {
            return false;
        }
        let (parsed, fields) = self.parse_once();
        let has_value = |field: &str| fields.get(field).is_some_and(|value| !value.is_null());
        let states_its_type = match self.item.item_type {
            ItemType::Tool => has_value("version") && !has_value("tool_type") && !has_value("executor_id"),
            ItemType::Knowledge => has_value("name"),
            ItemType::Directive | ItemType::Config => false,
        };
        parsed.problems.is_empty() && states_its_type && !has_value("category")
    }

    /// What parsers and interpreters read: its bytes with the lines replaced that no signature covers.
    #[must_use]
    pub fn covered_form(&self) -> Cow<'_, [u8]> {
        match self.format() {
            Some(format) => rye_trust::covered_form(&self.bytes, format),
            None => Cow::Borrowed(&self.bytes),
        }
    }

    /// What else the text states that it is. A signature covers neither the type nor the extension of a file, so one that
    /// reads as two things could be moved from the one to the other.
    fn conflicting_type(&self) -> Option<&'static str> {
        // The binary's own are where the build has put them.
        if self.is_sealed() {
            return None;
        }
        let covered = self.covered_form();
        if let Some(document) = self.conflicting_document(&covered) {
            return Some(document);
        }
        match self.item.item_type {
            ItemType::Knowledge | ItemType::Config => return None,
            ItemType::Directive | ItemType::Tool => {}
        }
        let is_entry = self.parsed().fields.contains_key("entry_type");
        let as_entry = || parse::parse(Parser::MarkdownFrontmatter, ".md", &covered);
        if is_entry || states(&as_entry(), &["entry_type"]) {
            return Some("a knowledge entry");
        }
        let extractor = self.extractors.for_type(self.item.item_type);
        let parser = extractor.parser_for(&self.extension)?;
        let text = std::str::from_utf8(&covered).ok()?;
        let others = OTHER_LANGUAGES.iter().filter(|other| {
            self.item.item_type == ItemType::Tool && !other.is_read_by(parser) && other.may_be(text)
        });
        for other in others {
            let parsed = parse::parse(other.parser, other.extension, &covered);
            // One that says the same in both languages runs the same.
            let mismatch = || {
                let mut fields = metadata::extract(extractor, &parsed, self.item.id.name());
                let mut own = self.fields().clone();
                fields.remove("docstring");
                own.remove("docstring");
                fields != own
            };
            if states(&parsed, &TOOL_KEYS) && mismatch() {
                return Some(other.name);
            }
        }
        None
    }

    /// The document that decides about trust which the text could be used as, in another folder.
    fn conflicting_document(&self, covered: &[u8]) -> Option<&'static str> {
        // The two kinds in the folder of keys are read strictly there.
        if self.item.is_key_document() {
            return None;
        }
        let text = std::str::from_utf8(covered).ok()?;
        let manifest = || crate::manifest::may_be_manifest(text).then_some("a bundle's manifest");
        rye_trust::signed_document(text).or_else(manifest)
    }

    /// Whether a tool's text could be used as a config: a map in YAML, in a file whose own language is another one.
    #[must_use]
    pub fn reads_as_config(&self) -> bool {
        let parser = self.extractors.for_type(self.item.item_type).parser_for(&self.extension);
        if self.item.item_type != ItemType::Tool || matches!(parser, None | Some(Parser::Yaml)) {
            return false;
        }
        let parsed = parse::parse(Parser::Yaml, ".yaml", &self.covered_form());
        // A line such as `echo '{"a": 1}'` is a key and a value as well, but not of any config.
        let is_setting = |key: &String| {
            let is_word = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
            key.chars().all(is_word) && !PYTHON_BLOCKS.contains(&key.as_str())
        };
        parsed.problems.is_empty() && parsed.fields.keys().any(is_setting)
    }

    /// Why the extension decides what the text means, although no signature covers it.
    fn extension_ambiguity(&self) -> Option<&'static str> {
        let parser = self.extractors.for_type(self.item.item_type).parser_for(&self.extension)?;
        let is_script = matches!(parser, Parser::JavaScript | Parser::TypeScript);
        if self.item.item_type != ItemType::Tool || !is_script || self.is_sealed() {
            return None;
        }
        parse::dialects::ambiguity(std::str::from_utf8(&self.covered_form()).ok()?)
    }

    /// Whether it is source that defines a function `execute`.
    #[must_use]
    pub fn defines_execute(&self) -> bool {
        let parser = self.extractors.for_type(self.item.item_type).parser_for(&self.extension);
        parser.is_some_and(|parser| parse::defines_execute(parser, &self.extension, &self.covered_form()))
    }

    /// Whether a function runtime may find `execute` in it, however it is bound there.
    #[must_use]
    pub fn may_define_execute(&self) -> bool {
        let parser = self.extractors.for_type(self.item.item_type).parser_for(&self.extension);
        parser.is_some_and(|parser| parse::may_define_execute(parser, &self.extension, &self.covered_form()))
    }

    /// The text to show, with invalid parts replaced and without the words that no signature covers.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        let bytes = match self.format() {
            Some(format) => rye_trust::display_form(&self.bytes, format),
            None => Cow::Borrowed(&*self.bytes),
        };
        match bytes {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }
}

impl Subject for ItemFile {
    fn item(&self) -> &ItemRef {
        &self.item
    }

    fn space(&self) -> &Space {
        &self.space
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn format(&self) -> Option<&SignatureFormat> {
        self.extractors.for_type(self.item.item_type).format_for(&self.extension)
    }

    fn has_name(&self) -> bool {
        match self.item.item_type {
            ItemType::Directive | ItemType::Knowledge => true,
            // An identity document belongs to its key.
            ItemType::Config if self.item.id.category() == "keys/trusted" => true,
            ItemType::Tool | ItemType::Config => self.own_name().is_some(),
        }
    }

    fn manifest_path(&self) -> Option<String> {
        let folder = self.item.item_type.folder();
        Some(format!("{AI_FOLDER}/{folder}/{}{}", self.item.id, self.extension))
    }

    fn is_sealed(&self) -> bool {
        // Bytes that live as long as the program are the program's own; files are read into owned bytes.
        matches!(self.bytes, Cow::Borrowed(_))
    }

    fn misplacement(&self) -> Option<String> {
        if let Some(other) = self.conflicting_type() {
            let own = self.item.item_type;
            return Some(format!(
                "it is {other} as well, and cannot be a {own}{}: write them as two files",
                self.extension
            ));
        }
        if let Some(why) = self.extension_ambiguity() {
            return Some(format!("its extension decides what it means, and no signature covers that: {why}"));
        }
        let fields = self.fields();
        let item = &self.item;
        let text = |field: &str| fields.get(field).and_then(Value::as_str);
        // What tells the types apart: a tool says its type, a config has nothing to run on.
        let parsed = &self.parsed().fields;
        let is_tool = text("tool_type").is_some();
        let has_executor = parsed.contains_key("executor_id") || parsed.contains_key("__executor_id__");
        let has_no_location = self.has_no_location();
        match item.item_type {
            ItemType::Tool if !is_tool && !has_no_location => {
                return Some("it does not say that it is a tool".to_owned());
            }
            ItemType::Config if has_executor => return Some("it is a tool, not a config".to_owned()),
            ItemType::Tool | ItemType::Config | ItemType::Directive | ItemType::Knowledge => {}
        }
        let to_text = |text: &str| rye_item::text::one_line(text);
        let id = &item.id;
        // An identity document belongs to its key.
        if item.item_type == ItemType::Config && id.category() == "keys/trusted" {
            let stated = parsed.get("fingerprint").and_then(Value::as_str).unwrap_or_default();
            return (stated != id.name()).then(|| format!("it is the document of `{}`", to_text(stated)));
        }
        // Anything else that states no category belongs to the root, and to nowhere else.
        let category = text("category").unwrap_or_default();
        if category.trim_matches('/') != id.category() && !has_no_location {
            return Some(format!(
                "its category is `{}`, but it is in `{}`",
                to_text(category),
                id.category()
            ));
        }
        // A tool or a config need not say its name; if it does, that must be true.
        let name = match item.item_type {
            ItemType::Directive | ItemType::Knowledge => Some(text("name").unwrap_or_default()),
            ItemType::Tool | ItemType::Config => self.own_name(),
        };
        name.filter(|name| *name != id.name())
            .map(|name| format!("it says name `{}`, but is called `{}`", to_text(name), id.name()))
    }
}
