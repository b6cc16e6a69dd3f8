//! Names and texts stay with the words of STYLE.md: these tests parse every source of the workspace and have no
//! exceptions list.

mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use syn::visit::{self, Visit};

use words::{BANNED_BOUNDS, BANNED_PHRASES, BANNED_SEGMENTS, COMPARISONS, PER_CRATE_TYPES};

const MIN_TEXT_WORDS: usize = 3;
const MAX_TEST_NAME_WORDS: usize = 9;
const MAX_SUBJECT_CHARS: usize = 72;
const COMMITS_CHECKED: &str = "50";

/// What the tests ask about one source file.
#[derive(Default)]
struct SourceFacts {
    path: String,
    /// In `src` and not compiled for tests only.
    is_shipped: bool,
    /// How many `#[cfg(test)]` items the visitor is inside of.
    test_depth: usize,
    names: Vec<String>,
    texts: Vec<String>,
    comments: Vec<String>,
    constants: Vec<String>,
    public_types: Vec<String>,
    tests: Vec<String>,
}

static SOURCES: LazyLock<Vec<SourceFacts>> = LazyLock::new(parse_workspace);

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "fixtures") {
                collect_sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Parses all sources, on all processors: an unoptimised parser takes seconds for them.
fn parse_workspace() -> Vec<SourceFacts> {
    let root = workspace().canonicalize().expect("the workspace");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).expect("the crates") {
        let folder = entry.expect("an entry").path();
        for part in ["src", "tests", "benches", "examples"].map(|name| folder.join(name)) {
            if part.is_dir() {
                collect_sources(&part, &mut files);
            }
        }
        files.extend(Some(folder.join("build.rs")).filter(|path| path.is_file()));
    }
    collect_sources(&root.join("fuzz/fuzz_targets"), &mut files);
    files.sort();
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let chunk = files.len().div_ceil(workers * 8).max(1);
    let queue = std::sync::Mutex::new(files.chunks(chunk));
    std::thread::scope(|scope| {
        let parse_queued = || {
            let mut facts = Vec::new();
            loop {
                let next = queue.lock().expect("the queue").next();
                let Some(paths) = next else { return facts };
                facts.extend(paths.iter().map(|path| parse_source(&root, path)));
            }
        };
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(parse_queued)).collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("a parser")).collect()
    })
}

fn parse_source(root: &Path, path: &Path) -> SourceFacts {
    let relative = path.strip_prefix(root).expect("a path below the workspace");
    let text = std::fs::read_to_string(path).expect("a source");
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", relative.display()));
    let is_test_file = relative.iter().any(|part| {
        let name = part.to_str().expect("a name").trim_end_matches(".rs");
        ["tests", "benches", "examples", "fuzz", "build", "rye-test"].contains(&name)
            || name.starts_with("test_")
            || name.ends_with("_tests")
    });
    let mut facts = SourceFacts {
        path: relative.display().to_string(),
        is_shipped: !is_test_file,
        ..SourceFacts::default()
    };
    let stem = path.file_stem().expect("a name").to_str().expect("UTF-8");
    facts.names.push(stem.to_owned());
    facts.comments = comments_of(&text);
    facts.visit_file(&file);
    facts
}

/// The comments of a source, each with all its lines. A comment behind code is one of its own.
fn comments_of(text: &str) -> Vec<String> {
    let mut comments: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        let whole = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
        if let Some(rest) = whole {
            match comments.last_mut().filter(|_| is_open) {
                Some(comment) => {
                    comment.push('\n');
                    comment.push_str(rest.trim_start());
                }
                None => comments.push(rest.trim_start().to_owned()),
            }
            is_open = true;
            continue;
        }
        is_open = false;
        // Two slashes within a string have an odd number of quotes before them.
        let behind = line.split_once(" // ").filter(|(code, _)| code.matches('"').count() % 2 == 0);
        comments.extend(behind.map(|(_, comment)| comment.to_owned()));
    }
    comments
}

/// The banned phrases in a text.
fn banned_phrases(text: &str) -> Vec<String> {
    let spaced = words_of(text);
    let has_phrase = |phrase: &&&str| spaced.contains(&format!(" {phrase} "));
    let mut found: Vec<String> =
        BANNED_PHRASES.iter().filter(has_phrase).map(|phrase| (*phrase).to_owned()).collect();
    let words: Vec<&str> = spaced.split_whitespace().collect();
    for (index, window) in words.windows(3).enumerate() {
        if let [verb @ ("is" | "was"), "no", next] = window
            && !COMPARISONS.contains(next)
            && !(index > 0 && words[index - 1] == "there")
        {
            found.push(format!("{verb} no {next}"));
        }
    }
    found
}

impl SourceFacts {
    /// Where a name or text of this file is first written. The parser is quicker if it keeps no positions.
    fn locate(&self, wanted: &str) -> String {
        let text = std::fs::read_to_string(workspace().join(&self.path)).expect("a source");
        let line = text.lines().position(|line| line.contains(wanted)).map_or(1, |index| index + 1);
        format!("{}:{line}", self.path)
    }

    fn define(&mut self, name: &syn::Ident) {
        self.names.push(name.to_string());
    }

    fn define_constant(&mut self, name: &syn::Ident) {
        self.define(name);
        self.constants.push(name.to_string());
    }

    fn define_type(&mut self, visibility: &syn::Visibility, name: &syn::Ident) {
        self.define(name);
        if matches!(visibility, syn::Visibility::Public(_)) && self.is_shipped && self.test_depth == 0 {
            self.public_types.push(name.to_string());
        }
    }

    fn define_function(&mut self, attributes: &[syn::Attribute], name: &syn::Ident) {
        self.define(name);
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().segments.last().is_some_and(|segment| segment.ident == "test")
        };
        if attributes.iter().any(is_test) {
            self.tests.push(name.to_string());
        }
    }

    fn add_text(&mut self, literal: &syn::LitStr) {
        let text = literal.value();
        if self.is_shipped && self.test_depth == 0 && text.split_whitespace().count() >= MIN_TEXT_WORDS {
            self.texts.push(text);
        }
    }

    /// Macro bodies are not parsed: their string literals are texts as any other.
    fn add_macro_texts(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) if is_doc(&group) => {}
                TokenTree::Group(group) => self.add_macro_texts(group.stream()),
                TokenTree::Literal(literal) => {
                    if let syn::Lit::Str(text) = syn::Lit::new(literal) {
                        self.add_text(&text);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }

    /// `proptest!` holds test functions: `fn name(…) { … }`.
    fn add_proptests(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for window in tokens.windows(3) {
            if let [TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Group(group)] = window
                && *keyword == "fn"
                && group.delimiter() == Delimiter::Parenthesis
            {
                self.define(name);
                self.tests.push(name.to_string());
            }
        }
    }
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether this is the `[doc = "…"]` that a comment becomes inside a macro.
fn is_doc(group: &Group) -> bool {
    matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let path = attribute.path();
    path.segments.last().is_some_and(|segment| segment.ident == "test")
        || (path.is_ident("cfg")
            && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test"))
}

impl<'ast> Visit<'ast> for SourceFacts {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let is_test_item = attributes_of(item).iter().any(is_for_tests);
        self.test_depth += usize::from(is_test_item);
        visit::visit_item(self, item);
        self.test_depth -= usize::from(is_test_item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.define_function(&item.attrs, &item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    /// Methods of a trait are named where it is declared.
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            for member in &item.items {
                match member {
                    syn::ImplItem::Fn(function) => self.define(&function.sig.ident),
                    syn::ImplItem::Const(constant) => self.define_constant(&constant.ident),
                    _ => {}
                }
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.define(&item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.define_type(&item.vis, &item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.define_type(&item.vis, &item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.define_type(&item.vis, &item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.define_type(&item.vis, &item.ident);
        visit::visit_item_type(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.define_constant(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.define_constant(&item.ident);
        visit::visit_item_static(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.define(&item.ident);
        visit::visit_item_mod(self, item);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.define(&variant.ident);
        visit::visit_variant(self, variant);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.define(name);
        }
        visit::visit_field(self, field);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.define(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        self.add_text(literal);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        match &attribute.meta {
            syn::Meta::List(list) => self.add_macro_texts(list.tokens.clone()),
            syn::Meta::NameValue(pair) if !attribute.path().is_ident("doc") => self.visit_expr(&pair.value),
            _ => {}
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_macro_texts(call.tokens.clone());
        if call.path.segments.last().is_some_and(|segment| segment.ident == "proptest") {
            self.add_proptests(call.tokens.clone());
        }
    }
}

/// `MAX_CallDepth` gives `max`, `call`, `depth`.
fn segments(name: &str) -> Vec<String> {
    let mut segments = Vec::new();
    let mut was_lower = false;
    for character in name.trim_start_matches("r#").chars() {
        if character == '_' {
            segments.push(String::new());
            was_lower = false;
            continue;
        }
        if segments.is_empty() || (character.is_uppercase() && was_lower) {
            segments.push(String::new());
        }
        was_lower = !character.is_uppercase();
        let last = segments.last_mut().expect("a segment");
        last.extend(character.to_lowercase());
    }
    segments.retain(|segment| !segment.is_empty());
    segments
}

fn assert_none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule} (STYLE.md):\n{}\n{} in all", found.join("\n"), found.len());
}

#[test]
fn names_have_no_banned_segment() {
    let mut found = Vec::new();
    for facts in SOURCES.iter() {
        for name in &facts.names {
            for segment in segments(name) {
                if BANNED_SEGMENTS.contains(&segment.as_str()) {
                    found.push(format!("{}: `{name}` has `{segment}`", facts.locate(name)));
                }
            }
        }
    }
    assert!(SOURCES.len() > 300, "the sources were not found");
    assert_none("these names use a banned word", &found);
}

#[test]
fn texts_have_no_banned_phrase() {
    let mut found = Vec::new();
    for facts in SOURCES.iter() {
        for text in &facts.texts {
            for phrase in banned_phrases(text) {
                found.push(format!("{}: `{phrase}` in {text:?}", facts.locate(text)));
            }
        }
    }
    assert_none("write these texts as uv or cargo would", &found);
}

#[test]
fn comments_have_no_banned_phrase() {
    let mut found = Vec::new();
    for facts in SOURCES.iter() {
        for comment in &facts.comments {
            let first = comment.lines().next().unwrap_or_default();
            for phrase in banned_phrases(comment) {
                found.push(format!("{}: `{phrase}` in {comment:?}", facts.locate(first)));
            }
        }
    }
    assert!(
        SOURCES.iter().map(|facts| facts.comments.len()).sum::<usize>() > 5000,
        "comments were not found"
    );
    assert_none("say these comments in one plain sentence", &found);
}

fn collect_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { collect_files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn bundles_have_no_banned_phrase() {
    let root = workspace().canonicalize().expect("the workspace");
    let mut files = Vec::new();
    collect_files(&root.join("bundles"), &mut files);
    let mut found = Vec::new();
    for path in &files {
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        for phrase in banned_phrases(&text) {
            found.push(format!("{}: `{phrase}`", path.strip_prefix(&root).expect("below").display()));
        }
    }
    assert!(files.len() > 100, "the bundles were not found");
    assert_none("write the items of bundles as uv or cargo would", &found);
}

#[test]
fn phrases_are_found_across_lines() {
    let comments = comments_of("code(); // one\n/// what goes\n/// on\nlet a = \" // text\";\n");
    assert_eq!(comments, ["one", "what goes\non"]);
    assert_eq!(banned_phrases(&comments[1]), ["goes on"]);
    assert_eq!(banned_phrases("There is no `x`, it is no longer here; `y` is no limit."), ["is no limit"]);
}

/// The words of a text in lower case, with one space around each.
fn words_of(text: &str) -> String {
    let mut words = " ".to_owned();
    for word in text.split(|character: char| !character.is_alphanumeric() && !"'_{}`".contains(character)) {
        if !word.is_empty() {
            words.push_str(&word.to_lowercase());
            words.push(' ');
        }
    }
    words
}

#[test]
fn public_type_names_are_unique() {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for facts in SOURCES.iter() {
        for name in &facts.public_types {
            if !PER_CRATE_TYPES.contains(&name.as_str()) {
                places.entry(name).or_default().push(facts.path.clone());
            }
        }
    }
    let found: Vec<_> = places
        .iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(name, places)| format!("`{name}`: {}", places.join(", ")))
        .collect();
    assert_none("qualify these public types by their noun", &found);
}

#[test]
fn bounds_are_named_max_or_min() {
    let mut found = Vec::new();
    for facts in SOURCES.iter() {
        for name in &facts.constants {
            let segments = segments(name);
            let ends = [segments.first(), segments.last()];
            if ends.into_iter().flatten().any(|segment| BANNED_BOUNDS.contains(&segment.as_str())) {
                found.push(format!("{}: `{name}`", facts.locate(name)));
            }
        }
    }
    assert_none("a bound is called MAX_ or MIN_", &found);
}

#[test]
fn test_names_are_short() {
    let mut found = Vec::new();
    for facts in SOURCES.iter() {
        for name in &facts.tests {
            let count = segments(name).len();
            if count > MAX_TEST_NAME_WORDS {
                found.push(format!("{}: `{name}` has {count} words", facts.locate(name)));
            }
        }
    }
    assert_none("name these tests by their behaviour, in fewer words", &found);
}

#[test]
fn commit_subjects_are_short() {
    let root = workspace();
    if !root.join(".git").exists() {
        return;
    }
    let output = Command::new("git")
        .args(["log", "--no-merges", "--format=%s", "-n", COMMITS_CHECKED])
        .current_dir(root)
        .output()
        .expect("git");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let subjects = String::from_utf8(output.stdout).expect("UTF-8");
    let found: Vec<String> =
        subjects.lines().filter(|line| line.chars().count() > MAX_SUBJECT_CHARS).map(str::to_owned).collect();
    assert_none("a commit's subject has at most 72 characters", &found);
}
