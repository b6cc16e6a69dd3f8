//! `.ai/bundles.toml`: which bundles a project asks for. People write it, so changes keep comments and order.

use lillux::Fingerprint;
use rye_item::{BundleId, Diagnostic};
use semver::{Version, VersionReq};
use toml_edit::{DocumentMut, Item, RawString, Table, TableLike, value};

use super::MAX_PROJECT_BUNDLES;
use super::source::{RequirementSource, SourceFields};
use super::table_reader::TableReader;

const BUNDLES_KEY: &str = "bundles";
const ENTRY_KEYS: [&str; 6] = ["source", "version", "signer", "sha256", "rev", "path"];
const NEW_MANIFEST: &str = "\
# The bundles of this project. `rye add` and `rye remove` change this file, `rye sync` installs what it asks for.
# Commit it together with bundles.lock.
";

/// One bundle that a project asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleRequirement {
    /// The bundle.
    pub id: BundleId,
    /// Where it comes from.
    pub source: RequirementSource,
    /// What is written beside the source.
    pub fields: SourceFields,
    /// Which versions are wanted; without one, any.
    pub range: Option<VersionReq>,
    /// The key that must have signed it.
    pub signer: Fingerprint,
}

impl BundleRequirement {
    /// The range as it is written.
    #[must_use]
    pub fn range_text(&self) -> Option<String> {
        self.range.as_ref().map(ToString::to_string)
    }

    /// Whether a version is wanted.
    #[must_use]
    pub fn allows(&self, version: &Version) -> bool {
        self.range.as_ref().is_none_or(|range| range.matches(version))
    }
}

/// `.ai/bundles.toml`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectManifest {
    text: String,
    bundles: Vec<BundleRequirement>,
}

impl ProjectManifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Vec<Diagnostic>> {
        let (mut reader, document) = TableReader::parse(bytes)?;
        let root = document.as_table();
        reader.check_keys(root, &[BUNDLES_KEY]);
        let mut bundles = Vec::new();
        match root.get(BUNDLES_KEY) {
            None => {}
            Some(item) => match item.as_table_like() {
                None => reader.problem(item.span(), "`bundles` is not a table"),
                Some(table) => {
                    for (name, entry) in table.iter() {
                        let span = table.key(name).and_then(toml_edit::Key::span).or_else(|| entry.span());
                        bundles.extend(read_entry(&mut reader, name, entry, span));
                    }
                }
            },
        }
        if bundles.len() > MAX_PROJECT_BUNDLES {
            reader.problem(None, format!("it asks for more than {MAX_PROJECT_BUNDLES} bundles"));
        }
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }
        Ok(Self { text: String::from_utf8_lossy(bytes).into_owned(), bundles })
    }

    /// The bundles in the order of the file.
    #[must_use]
    pub fn bundles(&self) -> &[BundleRequirement] {
        &self.bundles
    }

    /// What is asked of the bundle `id`.
    #[must_use]
    pub fn find(&self, id: &BundleId) -> Option<&BundleRequirement> {
        self.bundles.iter().find(|bundle| bundle.id == *id)
    }

    /// The file's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.text.clone().into_bytes()
    }

    /// The manifest with `requirement` in it, in place of what it asked of that bundle before.
    ///
    /// # Errors
    /// When the text cannot be changed; it was read before, so it can.
    pub fn with(&self, requirement: &BundleRequirement) -> Result<Self, Vec<Diagnostic>> {
        // Comments alone would end up behind the first table.
        let (lead, mut document) = match self.document()? {
            document if document.as_table().is_empty() => {
                let lead = if self.text.trim().is_empty() { NEW_MANIFEST } else { &self.text };
                (format!("{}\n\n", lead.trim_end()), DocumentMut::new())
            }
            document => (String::new(), document),
        };
        let bundles = document.entry(BUNDLES_KEY).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        let not_a_table = || vec![Diagnostic::new("`bundles` is not a table")];
        let bundles = bundles.as_table_like_mut().ok_or_else(not_a_table)?;
        let entry = bundles.entry(requirement.id.as_str()).or_insert_with(|| Item::Table(Table::new()));
        let entry = entry.as_table_like_mut().ok_or_else(not_a_table)?;
        for (key, text) in [
            ("source", Some(requirement.source.to_string())),
            ("version", requirement.range_text()),
            ("rev", requirement.fields.rev.clone()),
            ("path", requirement.fields.path.clone()),
            ("sha256", requirement.fields.sha256.clone()),
            ("signer", Some(requirement.signer.to_string())),
        ] {
            set_text(entry, key, text);
        }
        Self::parse(format!("{lead}{document}").as_bytes())
    }

    /// The manifest without the bundle `id`.
    ///
    /// # Errors
    /// When the text cannot be changed; it was read before, so it can.
    pub fn without(&self, id: &BundleId) -> Result<Self, Vec<Diagnostic>> {
        let mut document = self.document()?;
        let mut comments = String::new();
        if let Some(bundles) = document.get_mut(BUNDLES_KEY).and_then(Item::as_table_like_mut) {
            let names: Vec<String> = bundles.iter().map(|(name, _)| name.to_owned()).collect();
            let next = names.iter().skip_while(|name| *name != id.as_str()).nth(1);
            comments = bundles.remove(id.as_str()).map(|entry| comments_above(&entry)).unwrap_or_default();
            if let Some(table) = next.and_then(|name| bundles.get_mut(name)).and_then(Item::as_table_mut) {
                let own = table.decor().prefix().and_then(RawString::as_str).unwrap_or_default();
                let all = format!("{comments}{}", own.trim_start_matches('\n'));
                table.decor_mut().set_prefix(all);
                comments.clear();
            }
        }
        let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
        document.set_trailing(format!("{comments}{trailing}"));
        Self::parse(document.to_string().as_bytes())
    }

    fn document(&self) -> Result<DocumentMut, Vec<Diagnostic>> {
        self.text.parse().map_err(|error: toml_edit::TomlError| vec![Diagnostic::new(error.message())])
    }
}

/// The comments above a table that are not its own: those with an empty line between.
fn comments_above(entry: &Item) -> String {
    let prefix = entry.as_table().and_then(|table| table.decor().prefix()).and_then(RawString::as_str);
    let kept = prefix.and_then(|prefix| Some(prefix.split_at(prefix.rfind("\n\n")? + 2).0));
    kept.filter(|kept| !kept.trim().is_empty()).unwrap_or_default().to_owned()
}

/// Sets or removes a key; one that is the same already keeps its comment.
fn set_text(table: &mut dyn TableLike, key: &str, text: Option<String>) {
    let current = table.get(key).and_then(Item::as_str);
    match text {
        Some(text) if current == Some(text.as_str()) => {}
        Some(text) => match table.get_mut(key).and_then(Item::as_value_mut) {
            Some(old) => {
                let decor = old.decor().clone();
                *old = text.into();
                *old.decor_mut() = decor;
            }
            None => {
                table.insert(key, value(text));
            }
        },
        None => {
            table.remove(key);
        }
    }
}

fn read_entry(
    reader: &mut TableReader<'_>,
    name: &str,
    entry: &Item,
    span: Option<std::ops::Range<usize>>,
) -> Option<BundleRequirement> {
    let id = match BundleId::new(name) {
        Ok(id) => id,
        Err(error) => {
            reader.problem(span, error.to_string());
            return None;
        }
    };
    let Some(table) = entry.as_table_like() else {
        reader.problem(span, format!("`{name}` is not a table with `source` and `signer`"));
        return None;
    };
    reader.check_keys(table, &ENTRY_KEYS);
    let fields = reader.source_fields(table);
    let required_at = span.or(Some(0..0));
    let source =
        reader.parsed(table, "source", required_at.clone(), |text| RequirementSource::parse(text, &fields));
    let range = reader.parsed(table, "version", None, VersionReq::parse);
    let signer = reader.parsed(table, "signer", required_at, str::parse);
    Some(BundleRequirement { id, source: source?, fields, range, signer: signer? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Ours.
[bundles.gifts] # the team's
source = \"vendor/gifts\" # a folder
signer = \"5423d3b7c06f7594\"

# Theirs.
[bundles.web]
source = \"oci://ghcr.io/team/web\"
version = \"^1.2\"
signer = \"5423d3b7c06f7594\"
";

    fn problems(text: &str) -> Vec<String> {
        let problems = ProjectManifest::parse(text.as_bytes()).expect_err("problems");
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn changes_keep_comments_and_order() {
        let manifest = ProjectManifest::parse(TEXT.as_bytes()).expect("a manifest");
        let ids: Vec<&str> = manifest.bundles().iter().map(|bundle| bundle.id.as_str()).collect();
        assert_eq!(ids, ["gifts", "web"]);
        let mut gifts = manifest.bundles()[0].clone();
        gifts.source = RequirementSource::parse("vendor/other", &gifts.fields).expect("a source");
        gifts.range = Some(VersionReq::parse("^2").expect("a range"));
        let changed = manifest.with(&gifts).expect("changed");
        let text = String::from_utf8(changed.to_bytes()).expect("text");
        assert!(text.contains("source = \"vendor/other\" # a folder"), "{text}");
        assert!(
            text.contains("# Ours.\n[bundles.gifts] # the team's") && text.contains("# Theirs."),
            "{text}"
        );
        assert_eq!(changed.find(&gifts.id), Some(&gifts));
        let without = changed.without(&gifts.id).expect("changed");
        assert_eq!((without.bundles().len(), without.find(&gifts.id)), (1, None));
        let text = String::from_utf8(without.to_bytes()).expect("text");
        assert!(text.starts_with("# Theirs.\n[bundles.web]"), "{text}");
        let titled = ProjectManifest::parse(format!("# Title.\n\n{TEXT}").as_bytes()).expect("a manifest");
        for (id, expected) in
            [("gifts", "# Title.\n\n# Theirs.\n[bundles.web]"), ("web", "# Title.\n\n# Ours.")]
        {
            let without = titled.without(&BundleId::new(id).expect("an id")).expect("changed");
            let text = String::from_utf8(without.to_bytes()).expect("text");
            assert!(text.starts_with(expected), "{text}");
        }
        assert_eq!(manifest.with(&manifest.bundles()[1]).expect("the same").to_bytes(), TEXT.as_bytes());
    }

    #[test]
    fn new_manifest_has_one_table_per_bundle() {
        let parsed = ProjectManifest::parse(TEXT.as_bytes()).expect("a manifest");
        let made = parsed.bundles().iter().try_fold(ProjectManifest::default(), |made, one| made.with(one));
        let made = made.expect("a manifest");
        let text = String::from_utf8(made.to_bytes()).expect("text");
        assert!(text.starts_with("# The bundles of this project."), "{text}");
        assert!(text.contains("\n[bundles.gifts]\nsource = \"vendor/gifts\"\n"), "{text}");
        assert_eq!(made.bundles(), parsed.bundles());
        let emptied =
            parsed.bundles().iter().try_fold(made, |made, one| made.without(&one.id)).expect("empty");
        let again = emptied.with(&parsed.bundles()[0]).expect("a manifest");
        let text = String::from_utf8(again.to_bytes()).expect("text");
        assert!(text.starts_with("# The bundles of this project.") && text.ends_with("7594\"\n"), "{text}");
    }

    #[test]
    fn problems_name_their_lines() {
        for (text, expected) in [
            (
                "[bundles.a]\nsource = \"x\"\nsigner = \"5423d3b7c06f7594\"\nrun = \"y\"\n",
                "4:1: unknown key `run`",
            ),
            ("[tools]\n", "1:2: unknown key `tools`"),
            ("[bundles.a]\nsource = \"x\"\n", "1:10: `signer` is missing"),
            ("[bundles.a]\nsigner = \"5423d3b7c06f7594\"\n", "1:10: `source` is missing"),
            (
                "[bundles.a]\nsource = \"../x\"\nsigner = \"5423d3b7c06f7594\"\n",
                "2:10: `source`: invalid source",
            ),
            ("[bundles.a]\nsource = 1\nsigner = \"5423d3b7c06f7594\"\n", "2:10: `source` is not a text"),
            ("[bundles.a]\nsource = \"x\"\nsigner = \"me\"\n", "3:10: `signer`"),
            (
                "[bundles.a]\nsource = \"x\"\nversion = \"new\"\nsigner = \"5423d3b7c06f7594\"\n",
                "3:11: `version`",
            ),
            ("[bundles.'../a']\nsource = \"x\"\nsigner = \"5423d3b7c06f7594\"\n", "1:10: invalid bundle id"),
            ("bundles = 1\n", "1:11: `bundles` is not a table"),
            ("[bundles.a]\n[bundles.a]\n", "2:"),
            ("[bundles", "1:"),
        ] {
            let found = problems(text);
            assert!(found.iter().any(|problem| problem.contains(expected)), "{text}: {found:?}");
        }
        assert!(ProjectManifest::parse(b"\xff").is_err());
        assert!(ProjectManifest::parse(b"").expect("empty").bundles().is_empty());
    }
}
