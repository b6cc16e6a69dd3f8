//! What an import would make of a source: items and files, what is lost, what is asked for, what is refused.

use std::collections::BTreeMap;

use rye_item::ItemRef;
use rye_item::text::reveal_hidden;
use serde::Serialize;

use crate::detect::{SourceFormat, SourceUnit};
use crate::formats;
use crate::provenance::Provenance;
use crate::tree::{SourceListing, SourcePath, SourceTree};

/// How an import is to be done.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The first segment of every id: the bundle it will be.
    pub prefix: Option<String>,
    /// Whether scripts of skills become tools.
    pub with_scripts: bool,
    /// Whether texts with hidden characters are imported all the same.
    pub allow_hidden: bool,
    /// The author that directives name.
    pub author: String,
}

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// Something of the source has no place here.
    Lost,
    /// A grant that comes in denied.
    Denied,
    /// Something the user has to provide.
    AsksFor,
    /// A hook, which is never imported.
    Hook,
    /// A script.
    Script,
    /// Addresses that are named.
    Address,
    /// Hidden characters.
    HiddenText,
    /// Something to look at.
    Warning,
}

impl NoteKind {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Denied => "denied",
            Self::AsksFor => "asks for",
            Self::Hook => "hook",
            Self::Script => "script",
            Self::Address => "network",
            Self::HiddenText => "hidden",
            Self::Warning => "warning",
        }
    }
}

/// Something to know about a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportNote {
    /// What it is about.
    pub kind: NoteKind,
    /// In words.
    pub text: String,
}

impl ImportNote {
    /// A note; what is hidden in its words is shown.
    pub(crate) fn new(kind: NoteKind, text: impl AsRef<str>) -> Self {
        let text = rye_item::text::one_line(text.as_ref());
        let text: String = text.chars().take(400).collect();
        Self { kind, text: reveal_hidden(&text).into_owned() }
    }
}

/// A source that is not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedSource {
    /// Where it lies.
    pub source: String,
    /// Why.
    pub reason: String,
}

/// An item to be made.
#[derive(Clone, Debug)]
pub struct PlannedItem {
    /// The item.
    pub item: ItemRef,
    /// The extension of its file, with the dot.
    pub extension: &'static str,
    /// Its text, not signed yet.
    pub text: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// What to know about it.
    pub notes: Vec<ImportNote>,
}

/// A file that is kept as it is, beside the item that names its digest.
#[derive(Clone, Debug)]
pub struct PlannedAsset {
    /// The item it belongs to.
    pub owner: ItemRef,
    /// Its path below `.ai/`.
    pub path: String,
    /// Its path in the source.
    pub source: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether its owner may run it.
    pub is_executable: bool,
}

/// An import that was not done yet.
#[derive(Clone, Debug, Default)]
pub struct ImportPlan {
    /// The items.
    pub items: Vec<PlannedItem>,
    /// The files beside them.
    pub assets: Vec<PlannedAsset>,
    /// Notes that belong to no item, with the source they are about.
    pub notes: Vec<(String, ImportNote)>,
    /// What is not imported.
    pub refused: Vec<RefusedSource>,
    /// Plugins by their name, with their version.
    pub plugins: BTreeMap<String, String>,
    /// Plugins and packages that lie in other repositories.
    pub remotes: Vec<RemoteSource>,
}

/// A plugin or a package that a marketplace or a manifest names, in a repository of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemoteSource {
    /// What it is called there.
    pub name: String,
    /// Where it is named.
    pub source: String,
    /// Its repository: `git+https://…`.
    pub address: String,
    /// The tag, branch or commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rev: Option<String>,
    /// The folder in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// What one unit comes to.
#[derive(Debug, Default)]
pub(crate) struct UnitPlan {
    pub items: Vec<PlannedItem>,
    pub assets: Vec<PlannedAsset>,
    pub notes: Vec<ImportNote>,
    pub refused: Vec<RefusedSource>,
    pub remotes: Vec<RemoteSource>,
}

/// What the reader of a unit works with.
pub(crate) struct UnitContext<'a> {
    pub listing: &'a SourceListing,
    pub tree: &'a SourceTree,
    pub unit: &'a SourceUnit,
    pub options: &'a ImportOptions,
}

impl UnitContext<'_> {
    /// The unit's own file as text, or why it is not imported.
    pub(crate) fn text(&self) -> Result<&str, String> {
        self.text_of(&self.unit.path)
    }

    /// A file as text, or why the unit is not imported.
    pub(crate) fn text_of(&self, path: &SourcePath) -> Result<&str, String> {
        let bytes =
            self.tree.bytes(path).ok_or_else(|| format!("`{path}` is too large or could not be read"))?;
        let text = std::str::from_utf8(bytes).map_err(|_| format!("`{path}` is not UTF-8"))?;
        if text.contains('\0') {
            return Err(format!("`{path}` has a NUL byte"));
        }
        if !self.options.allow_hidden
            && let Some(found) = crate::findings::describe_hidden(text)
        {
            return Err(format!("`{path}` has a {found}"));
        }
        Ok(text)
    }

    /// The category for items of a kind: `skills`, or `PLUGIN/skills`.
    pub(crate) fn category(&self, kind: &str) -> String {
        let prefix = self.options.prefix.as_deref().or(self.unit.plugin.as_deref());
        match prefix {
            Some(prefix) => format!("{}/{kind}", crate::names::segment(prefix)),
            None => kind.to_owned(),
        }
    }

    /// The provenance of a file of the unit.
    pub(crate) fn provenance(
        &self,
        format: SourceFormat,
        name: &str,
        path: &SourcePath,
        bytes: &[u8],
    ) -> Provenance {
        Provenance {
            format,
            name: name.to_owned(),
            source: self.listing.display_path(path.as_str()),
            origin: self.listing.origin.as_ref().map(|origin| origin.address.clone()),
            revision: self.listing.origin.as_ref().map(|origin| origin.revision.clone()),
            plugin: self.unit.plugin.clone(),
            sha256: lillux_hash::Digest::of(bytes).to_hex(),
            rendered: String::new(),
            head: String::new(),
            intro: String::new(),
            outro: String::new(),
            original: String::new(),
            inputs: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }
}

/// Plans the import of these units. A unit is imported as a whole or refused as a whole.
#[must_use]
pub fn plan(
    listing: &SourceListing,
    tree: &SourceTree,
    units: &[SourceUnit],
    options: &ImportOptions,
) -> ImportPlan {
    let mut plan = ImportPlan::default();
    for (name, error) in &listing.refused {
        let source = reveal_hidden(&rye_item::text::one_line(name)).into_owned();
        plan.refused.push(RefusedSource { source: listing.display_path(&source), reason: error.to_string() });
    }
    let plugins = PluginSet::read(listing, tree, units, options);
    for unit in units {
        let mut unit = unit.clone();
        let facts = unit.plugin_root.as_ref().and_then(|root| plugins.0.get(root));
        let source = listing.display_path(unit.path.as_str());
        if let Some(facts) = facts {
            unit.plugin = facts.name.clone().or(unit.plugin);
            if let Some(name) = &unit.plugin {
                plan.plugins.entry(name.clone()).or_insert_with(|| facts.version.clone());
            }
        }
        let context = UnitContext { listing, tree, unit: &unit, options };
        let found = match facts.and_then(|facts| facts.refusal.clone()) {
            Some(reason) => Err(reason),
            None => formats::read_unit(&context).and_then(|found| check_ids(&plan, found)),
        };
        match found {
            Ok(found) => {
                plan.items.extend(found.items);
                plan.assets.extend(found.assets);
                plan.notes.extend(found.notes.into_iter().map(|note| (source.clone(), note)));
                plan.refused.extend(found.refused);
                plan.remotes.extend(found.remotes);
            }
            Err(reason) => {
                let reason = reveal_hidden(&rye_item::text::one_line(&reason)).into_owned();
                plan.refused.push(RefusedSource { source, reason });
            }
        }
    }
    plan
}

/// What the manifest and the hooks of a plugin say of everything in it.
#[derive(Debug, Default)]
pub(crate) struct PluginFacts {
    pub name: Option<String>,
    pub version: String,
    /// Why nothing of it is imported.
    pub refusal: Option<String>,
}

/// The plugins of a source, by their folders.
struct PluginSet(BTreeMap<String, PluginFacts>);

impl PluginSet {
    fn read(
        listing: &SourceListing,
        tree: &SourceTree,
        units: &[SourceUnit],
        options: &ImportOptions,
    ) -> Self {
        let mut all: BTreeMap<String, PluginFacts> = BTreeMap::new();
        for unit in units {
            let Some(root) = &unit.plugin_root else { continue };
            let facts = all.entry(root.clone()).or_insert_with(|| PluginFacts {
                version: crate::render::DEFAULT_VERSION.to_owned(),
                ..PluginFacts::default()
            });
            let context = UnitContext { listing, tree, unit, options };
            match unit.format {
                SourceFormat::ClaudePlugin | SourceFormat::AgentPlugin => {
                    formats::plugin_facts(&context, facts)
                }
                SourceFormat::Hooks => {
                    if let Some(command) = formats::hook_download(&context) {
                        facts.refusal =
                            Some(format!("its plugin has a hook that runs a download: {command}"));
                    }
                }
                _ => {}
            }
        }
        Self(all)
    }
}

/// Refuses ids that are ours, and ids that another source of the same import has. The same source twice counts once.
fn check_ids(plan: &ImportPlan, mut found: UnitPlan) -> Result<UnitPlan, String> {
    let mut repeated = Vec::new();
    for (index, item) in found.items.iter().enumerate() {
        if item.item.id.is_within("rye") {
            return Err(format!("`{}` would be named like an item of rye itself", item.item));
        }
        // Ids that differ in case only are one file on some file systems.
        let same = plan.items.iter().find(|other| {
            other.item.item_type == item.item.item_type
                && other.item.id.as_str().eq_ignore_ascii_case(item.item.id.as_str())
        });
        match same {
            Some(other)
                if other.provenance.sha256 == item.provenance.sha256
                    && other.provenance.files == item.provenance.files =>
            {
                repeated.push(index);
            }
            Some(other) => {
                return Err(format!(
                    "`{}` comes from `{}` already; import it on its own with --as bundle ID",
                    item.item, other.provenance.source
                ));
            }
            None => {}
        }
    }
    let paths: Vec<String> = found.assets.iter().map(|asset| asset.path.clone()).collect();
    let is_taken = |path: &String| plan.assets.iter().any(|other| other.path.eq_ignore_ascii_case(path));
    if repeated.is_empty()
        && let Some(path) = paths.into_iter().find(is_taken)
    {
        return Err(format!("`{path}` comes from another source already"));
    }
    if !repeated.is_empty() && repeated.len() == found.items.len() {
        let note =
            ImportNote::new(NoteKind::Warning, "the same as another source of this import: imported once");
        return Ok(UnitPlan { notes: vec![note], ..UnitPlan::default() });
    }
    if !repeated.is_empty() {
        let mut index = 0;
        found.items.retain(|_| {
            index += 1;
            !repeated.contains(&(index - 1))
        });
    }
    Ok(found)
}
