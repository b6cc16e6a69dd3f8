//! Extractors: the data that says which extensions an item type has, how they are parsed, where the signature line
//! goes, which fields an item has, what they weigh in a search and what is valid.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::diagnostic::Diagnostic;
use crate::id::ItemType;
use crate::validate::FieldRule;

/// Which parser reads a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parser {
    /// A directive: markdown with an XML fence.
    MarkdownXml,
    /// Knowledge: markdown with YAML front matter.
    MarkdownFrontmatter,
    /// Python source.
    Python,
    /// JavaScript source.
    JavaScript,
    /// TypeScript source.
    TypeScript,
    /// A shell script with leading `# key: value` lines.
    Shell,
    /// A YAML document.
    Yaml,
    /// A TOML document.
    Toml,
    /// A JSON document.
    Json,
}

impl Parser {
    const NAMES: [(&'static str, Self); 9] = [
        ("markdown/xml", Self::MarkdownXml),
        ("markdown/frontmatter", Self::MarkdownFrontmatter),
        ("python/ast", Self::Python),
        ("javascript/javascript", Self::JavaScript),
        ("javascript/typescript", Self::TypeScript),
        ("shell/comments", Self::Shell),
        ("yaml/yaml", Self::Yaml),
        ("toml/toml", Self::Toml),
        ("json/json", Self::Json),
    ];

    fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, parser)| *parser)
    }
}

/// How a signature line is written in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureFormat {
    /// What opens the comment: `#`, `//`, `<!--`.
    pub prefix: String,
    /// What closes it, if anything does: `-->`.
    pub suffix: Option<String>,
    /// Whether a `#!/…` line may stand before it.
    pub after_shebang: bool,
}

/// Where a field's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtractionRule {
    /// The file's name without its extension.
    Filename,
    /// A parsed field.
    Path(String),
}

/// The extractor of one item type.
#[derive(Clone, Debug)]
pub struct Extractor {
    /// The type it describes.
    pub item_type: ItemType,
    /// Extensions with their dot, in the order they are tried.
    pub extensions: Vec<String>,
    parser: Option<Parser>,
    parsers: BTreeMap<String, Parser>,
    signature_format: Option<SignatureFormat>,
    signature_formats: BTreeMap<String, Option<SignatureFormat>>,
    /// Where each field comes from.
    pub rules: Vec<(String, ExtractionRule)>,
    /// What each field weighs in a search.
    pub search_weights: Vec<(String, f64)>,
    /// What a valid item looks like.
    pub schema: Vec<(String, FieldRule)>,
}

/// Formats that may follow `#` or `//` or `<!--`; anything else in an extractor is refused.
fn is_comment_opener(prefix: &str) -> bool {
    !prefix.is_empty() && prefix.len() <= 8 && prefix.bytes().all(|byte| byte.is_ascii_punctuation())
}

impl Extractor {
    /// Reads an extractor from its YAML value.
    ///
    /// # Errors
    /// Every problem of the document.
    pub fn from_value(item_type: ItemType, value: &Value) -> Result<Self, Vec<Diagnostic>> {
        let mut problems = Vec::new();
        let extensions = parse_extensions(value, &mut problems);
        let parser = value.get("parser").and_then(|name| parse_parser(name, "parser", &mut problems));
        let parsers = object_entries(value, "parsers")
            .filter_map(|(extension, name)| {
                Some((extension.clone(), parse_parser(name, &format!("parsers.{extension}"), &mut problems)?))
            })
            .collect();
        let signature_format = value
            .get("signature_format")
            .and_then(|format| parse_format(format, "signature_format", &mut problems));
        let mut signature_formats = BTreeMap::new();
        for (extension, format) in object_entries(value, "signature_formats") {
            let format = match format {
                Value::Null => None,
                other => parse_format(other, &format!("signature_formats.{extension}"), &mut problems),
            };
            signature_formats.insert(extension.clone(), format);
        }
        let rules = object_entries(value, "extraction_rules")
            .filter_map(|(field, rule)| parse_rule(field, rule))
            .collect();
        let search_weights = object_entries(value, "search_fields")
            .filter_map(|(field, weight)| Some((field.clone(), weight.as_f64()?)))
            .collect();
        let schema = value.get("validation_schema").map_or_else(Vec::new, |schema| {
            FieldRule::parse_fields(schema.get("fields"), "validation_schema.fields", &mut problems)
        });
        if problems.is_empty() {
            Ok(Self {
                item_type,
                extensions,
                parser,
                parsers,
                signature_format,
                signature_formats,
                rules,
                search_weights,
                schema,
            })
        } else {
            Err(problems)
        }
    }

    /// The parser for files with `extension`.
    #[must_use]
    pub fn parser_for(&self, extension: &str) -> Option<Parser> {
        if !self.extensions.iter().any(|known| known == extension) {
            return None;
        }
        if !self.parsers.is_empty() {
            return self.parsers.get(extension).copied();
        }
        match (self.parser, extension) {
            (Some(Parser::Yaml), ".toml") => Some(Parser::Toml),
            (parser, _) => parser,
        }
    }

    /// How files with `extension` are signed; `None` when they cannot carry a signature line.
    #[must_use]
    pub fn format_for(&self, extension: &str) -> Option<&SignatureFormat> {
        match self.signature_formats.get(extension) {
            Some(format) => format.as_ref(),
            None => self.signature_format.as_ref(),
        }
    }

    /// Lets the files of `other` be found, parsed and signed as well; what this extractor says already stands.
    fn add_extensions_of(&mut self, other: &Self) {
        for extension in &other.extensions {
            if self.extensions.contains(extension) {
                continue;
            }
            self.extensions.push(extension.clone());
            if let Some(parser) = other.parser_for(extension) {
                self.parsers.insert(extension.clone(), parser);
            }
            self.signature_formats.insert(extension.clone(), other.format_for(extension).cloned());
        }
    }
}

fn object_entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.get(key).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn parse_extensions(value: &Value, problems: &mut Vec<Diagnostic>) -> Vec<String> {
    let Some(list) = value.get("extensions").and_then(Value::as_array) else {
        problems.push(Diagnostic::new("an extractor needs a list of `extensions`").with_field("extensions"));
        return Vec::new();
    };
    let mut extensions = Vec::new();
    for extension in list {
        match extension.as_str() {
            Some(text)
                if text.len() > 1
                    && text.starts_with('.')
                    && text[1..].bytes().all(|byte| byte.is_ascii_alphanumeric()) =>
            {
                extensions.push(text.to_owned());
            }
            _ => problems.push(
                Diagnostic::new(format!("`{extension}` is not an extension such as `.py`"))
                    .with_field("extensions"),
            ),
        }
    }
    extensions
}

fn parse_parser(name: &Value, field: &str, problems: &mut Vec<Diagnostic>) -> Option<Parser> {
    let parser = name.as_str().and_then(Parser::from_name);
    if parser.is_none() {
        problems.push(Diagnostic::new(format!("Parser not found: {name}")).with_field(field));
    }
    parser
}

fn parse_format(format: &Value, field: &str, problems: &mut Vec<Diagnostic>) -> Option<SignatureFormat> {
    let prefix = format.get("prefix").and_then(Value::as_str).unwrap_or("");
    let suffix = match format.get("suffix").and_then(Value::as_str) {
        None if prefix == "<!--" => Some("-->"),
        other => other,
    };
    if !is_comment_opener(prefix) || !suffix.is_none_or(is_comment_opener) {
        problems.push(
            Diagnostic::new("a signature format needs a `prefix` that opens a comment").with_field(field),
        );
        return None;
    }
    Some(SignatureFormat {
        prefix: prefix.to_owned(),
        suffix: suffix.map(str::to_owned),
        after_shebang: format.get("after_shebang").and_then(Value::as_bool).unwrap_or(false),
    })
}

/// Rules of type `constant` name internals of the original; they describe no field of an item.
fn parse_rule(field: &str, rule: &Value) -> Option<(String, ExtractionRule)> {
    let rule = match rule.get("type").and_then(Value::as_str)? {
        "filename" => ExtractionRule::Filename,
        "path" => ExtractionRule::Path(rule.get("key").and_then(Value::as_str).unwrap_or(field).to_owned()),
        _ => return None,
    };
    Some((field.to_owned(), rule))
}

/// One extractor for each item type.
#[derive(Clone, Debug)]
pub struct ExtractorSet {
    directive: Extractor,
    tool: Extractor,
    knowledge: Extractor,
    config: Extractor,
}

impl ExtractorSet {
    /// The set of these four.
    ///
    /// # Errors
    /// The type that has no extractor.
    pub fn new(extractors: impl IntoIterator<Item = Extractor>) -> Result<Self, ItemType> {
        let mut by_type: BTreeMap<ItemType, Extractor> = BTreeMap::new();
        for extractor in extractors {
            by_type.entry(extractor.item_type).or_insert(extractor);
        }
        let mut take = |item_type| by_type.remove(&item_type).ok_or(item_type);
        Ok(Self {
            directive: take(ItemType::Directive)?,
            tool: take(ItemType::Tool)?,
            knowledge: take(ItemType::Knowledge)?,
            config: take(ItemType::Config)?,
        })
    }

    /// The extractor of `item_type`.
    #[must_use]
    pub fn for_type(&self, item_type: ItemType) -> &Extractor {
        match item_type {
            ItemType::Directive => &self.directive,
            ItemType::Tool => &self.tool,
            ItemType::Knowledge => &self.knowledge,
            ItemType::Config => &self.config,
        }
    }

    /// Adds the extensions of an extractor from another space. What the set says already stands, so a later space
    /// can teach a new extension but cannot change how known files are read, signed or validated.
    pub fn add_extensions(&mut self, extractor: &Extractor) {
        let known = match extractor.item_type {
            ItemType::Directive => &mut self.directive,
            ItemType::Tool => &mut self.tool,
            ItemType::Knowledge => &mut self.knowledge,
            ItemType::Config => &mut self.config,
        };
        known.add_extensions_of(extractor);
    }
}
