//! What the targets share: the shipped extractors, and the laws every parse obeys.

use std::sync::LazyLock;

use rye_item::extractor::Parser;
use rye_item::{
    Extractor, ItemId, ItemType, ParsedItem, SourcePosition, Diagnostic, SignatureFormat, metadata, parse, validate,
};

const EXTRACTORS: [(ItemType, &str); 4] = [
    (
        ItemType::Directive,
        include_str!("../../bundles/core/.ai/tools/rye/core/extractors/directive/directive_extractor.yaml"),
    ),
    (
        ItemType::Tool,
        include_str!("../../bundles/core/.ai/tools/rye/core/extractors/tool/tool_extractor.yaml"),
    ),
    (
        ItemType::Knowledge,
        include_str!("../../bundles/core/.ai/tools/rye/core/extractors/knowledge/knowledge_extractor.yaml"),
    ),
    (
        ItemType::Config,
        include_str!("../../bundles/core/.ai/tools/rye/core/extractors/config/config_extractor.yaml"),
    ),
];

static READ: LazyLock<Vec<Extractor>> = LazyLock::new(|| {
    let read = |(item_type, text): (ItemType, &str)| {
        let document = rye_item::yaml::parse(text).expect("a shipped extractor is YAML");
        Extractor::from_value(item_type, &document.value).expect("a shipped extractor is valid")
    };
    EXTRACTORS.into_iter().map(read).collect()
});

/// The shipped extractor of a type.
pub fn extractor(item_type: ItemType) -> &'static Extractor {
    READ.iter().find(|extractor| extractor.item_type == item_type).expect("every type has an extractor")
}

/// Every type with every signature format it has, each once.
pub fn formats() -> &'static [(ItemType, SignatureFormat)] {
    static FORMATS: LazyLock<Vec<(ItemType, SignatureFormat)>> = LazyLock::new(|| {
        let mut formats = Vec::new();
        for extractor in READ.iter() {
            for format in extractor.extensions.iter().filter_map(|extension| extractor.format_for(extension))
            {
                let entry = (extractor.item_type, format.clone());
                if !formats.contains(&entry) {
                    formats.push(entry);
                }
            }
        }
        formats
    });
    &FORMATS
}

/// Every type with every extension whose files can carry a signature line.
pub fn kinds() -> &'static [(ItemType, String, SignatureFormat)] {
    static KINDS: LazyLock<Vec<(ItemType, String, SignatureFormat)>> = LazyLock::new(|| {
        let kinds = READ.iter().flat_map(|extractor| {
            extractor.extensions.iter().filter_map(|extension| {
                let format = extractor.format_for(extension)?.clone();
                Some((extractor.item_type, extension.clone(), format))
            })
        });
        kinds.collect()
    });
    &KINDS
}

/// What the shipped parser of this type and extension reads.
pub fn parse_as(item_type: ItemType, extension: &str, data: &[u8]) -> ParsedItem {
    let parser = extractor(item_type).parser_for(extension).expect("a shipped extension has a parser");
    parse::parse(parser, extension, data)
}

/// Reads `data` as a file of this type and extension, through everything that looks at it before it is trusted:
/// parser, extractor, validation, what is shown and what is searched.
pub fn read_item(item_type: ItemType, parser: Parser, extension: &str, data: &[u8]) {
    let parsed = parse::parse(parser, extension, data);
    check_places(&parsed, data);
    let id = ItemId::new("demo/a").expect("an id");
    let fields = metadata::extract(extractor(item_type), &parsed, id.name());
    let place = validate::ExpectedPath { name: id.name(), category: id.category() };
    let problems = validate::validate(&extractor(item_type).schema, &fields, &parsed, place);
    check_problems(&problems, data);
    let _ = metadata::display_metadata(item_type, &fields).to_string();
    let _ = metadata::search_text(item_type, &id, &fields, &parsed);
}

/// Positions lie in the text, and problems say something.
fn check_places(parsed: &ParsedItem, data: &[u8]) {
    check_problems(&parsed.problems, data);
    check_problems(&parsed.warnings, data);
    for (field, position) in &parsed.positions {
        assert!(is_in(position, data), "{field} at {position}");
    }
}

fn check_problems(problems: &[Diagnostic], data: &[u8]) {
    for problem in problems {
        assert!(!problem.message.is_empty());
        let has_controls = problem.message.chars().any(|character| character.is_control());
        assert!(!has_controls, "{:?}", problem.message);
        if let Some(position) = &problem.position {
            assert!(is_in(position, data), "{problem}");
        }
    }
}

fn is_in(position: &SourcePosition, data: &[u8]) -> bool {
    // Some parsers take a carriage return, or one of Unicode's line ends, for the end of a line.
    let text = String::from_utf8_lossy(data);
    let is_end = |character: &char| matches!(character, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let lines = text.chars().filter(is_end).count() + 1;
    let (line, column) = (position.line as usize, position.column as usize);
    (1..=lines + 1).contains(&line) && (1..=text.chars().count() + 2).contains(&column)
}

/// A target that reads files of one type and extension.
#[macro_export]
macro_rules! item_target {
    ($item_type:ident, $parser:ident, $($extension:literal),+) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            $($crate::read_item(
                rye_item::ItemType::$item_type,
                rye_item::extractor::Parser::$parser,
                $extension,
                data,
            );)+
        });
    };
}
