//! The one reader and writer of bundle manifests: `.ai/bundles/<id>/manifest.yaml`, signed like config.
//!
//! A manifest comes from outside: everything wrong with it is collected, and one that has a problem lists nothing.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use lillux::file::ReadError;
use lillux::{Digest, PublicKey};
use rye_item::text::{one_line, quoted};
use rye_item::{BundleId, InvalidId, ItemId, ItemRef, ItemType, Problem, SignatureFormat, Space, yaml};
use rye_trust::coverage::{Content, compare};
use rye_trust::signature::{Layout, SignatureLine, Timestamp};
pub use rye_trust::source::FileHash;
use rye_trust::{Coverage, Subject};
use semver::Version;
use serde_json::{Map, Value};

use crate::installed::BUNDLES_FOLDER;
use crate::path::FilePath;
use crate::roots::AI_FOLDER;

/// More files than this are not a bundle but an attack on patience.
pub const MAX_FILES: usize = 20_000;
/// The largest manifest that is read.
pub const MAX_BYTES: u64 = 16 << 20;
const MAX_PROBLEMS: usize = 100;
/// The type of a file that is no item.
pub const ASSET: &str = "asset";

/// One file of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its content.
    pub hash: FileHash,
    /// Whether the file carries its own signature, which must then hold too.
    pub inline_signed: bool,
    /// The type of the item it is; `None` for an asset.
    pub item_type: Option<ItemType>,
}

/// The item a bundle is run by: `id`, or `type:id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrypoint {
    /// Its type, if the manifest says.
    pub item_type: Option<ItemType>,
    /// Its id.
    pub id: ItemId,
}

impl Entrypoint {
    /// Reads `id` or `type:id`.
    ///
    /// # Errors
    /// When it is no id.
    pub fn new(text: &str) -> Result<Self, InvalidId> {
        let (item_type, id) = match ItemRef::split_canonical(text) {
            Some((item_type, id)) => (Some(item_type), id),
            None => (None, text),
        };
        Ok(Self { item_type, id: ItemId::new(id)? })
    }
}

impl std::fmt::Display for Entrypoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.item_type {
            Some(item_type) => write!(formatter, "{item_type}:{}", self.id),
            None => write!(formatter, "{}", self.id),
        }
    }
}

/// What a bundle says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Its id.
    pub id: BundleId,
    /// Its version.
    pub version: Version,
    /// What `rye bundle run` executes.
    pub entrypoint: Option<Entrypoint>,
    /// What it is for.
    pub description: String,
    /// When it was made.
    pub created_at: Option<Timestamp>,
    /// The id prefixes its items have; none means all.
    pub categories: Vec<String>,
    /// `type`, as other implementations write it (`package`).
    pub kind: Option<String>,
    /// Its files.
    pub files: BTreeMap<FilePath, Entry>,
}

impl Manifest {
    /// Where the manifest of the bundle `id` lies, below the folder that holds `.ai/`.
    #[must_use]
    pub fn location(id: &BundleId) -> String {
        format!("{AI_FOLDER}/{BUNDLES_FOLDER}/{id}/manifest.yaml")
    }

    /// Reads a manifest's text.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| vec![Problem::new("the file is not valid UTF-8")])?;
        let document = yaml::parse(text).map_err(|problem| vec![problem])?;
        let mut reader = Reader { problems: Vec::new() };
        match reader.manifest(&document.value) {
            Some(manifest) if reader.problems.is_empty() => Ok(manifest),
            Some(_) | None => Err(reader.problems),
        }
    }

    /// The manifest's text, unsigned.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let entrypoint = self.entrypoint.as_ref().map(ToString::to_string).unwrap_or_default();
        let mut text = format!(
            "bundle:\n  id: {}\n  version: {}\n  entrypoint: {}\n  description: {}\n",
            quoted(self.id.as_str()),
            quoted(&self.version.to_string()),
            quoted(&entrypoint),
            quoted(&self.description),
        );
        if let Some(moment) = &self.created_at {
            text.push_str(&format!("  created_at: {}\n", quoted(moment.as_str())));
        }
        if let Some(kind) = &self.kind {
            text.push_str(&format!("  type: {}\n", quoted(kind)));
        }
        if !self.categories.is_empty() {
            text.push_str("  categories:\n");
            self.categories
                .iter()
                .for_each(|category| text.push_str(&format!("    - {}\n", quoted(category))));
        }
        text.push_str(if self.files.is_empty() { "files: {}\n" } else { "files:\n" });
        for (path, entry) in &self.files {
            let (key, hash) = match &entry.hash {
                FileHash::Object(hash) => ("object_hash", hash),
                FileHash::Bytes(hash) => ("sha256", hash),
            };
            // The digest is quoted: sixty-four digits with one `e` would be a number.
            text.push_str(&format!(
                "  {}:\n    {key}: {}\n    inline_signed: {}\n",
                quoted(path.as_str()),
                quoted(&hash.to_hex()),
                entry.inline_signed
            ));
            let item_type = entry.item_type.map_or(ASSET, ItemType::as_str);
            text.push_str(&format!("    item_type: {item_type}\n"));
        }
        text
    }
}

/// Whether a file of a bundle is not installed with it: keys and approvals belong to the user, and lockfiles speak for
/// the system space only. Such files are judged with the bundle; installing leaves them behind.
#[must_use]
pub fn is_left_behind(path: &FilePath) -> bool {
    [".ai/config/keys/", ".ai/config/trust/", ".ai/lockfiles/"]
        .iter()
        .any(|folder| path.folded().starts_with(folder))
}

/// The type the folder of a path makes a file; `None` below no type's folder.
#[must_use]
pub fn type_of(path: &FilePath) -> Option<ItemType> {
    let (folder, _) = path.as_str().strip_prefix(".ai/")?.split_once('/')?;
    ItemType::of_folder(folder)
}

struct Reader {
    problems: Vec<Problem>,
}

impl Reader {
    fn wrong(&mut self, field: &str, why: &dyn std::fmt::Display) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem::new(format!("{field}: {}", one_line(&why.to_string()))).of(field));
        }
    }

    fn manifest(&mut self, document: &Value) -> Option<Manifest> {
        let nothing = Map::new();
        let about = document.get("bundle").and_then(Value::as_object).unwrap_or_else(|| {
            self.wrong("bundle", &"it is missing, or no map");
            &nothing
        });
        let id = self
            .text(about, "bundle.id", "id")
            .and_then(|text| BundleId::new(text).map_err(|error| self.wrong("bundle.id", &error)).ok());
        let version = self.text(about, "bundle.version", "version").and_then(|text| {
            Version::parse(&text).map_err(|error| self.wrong("bundle.version", &error)).ok()
        });
        let entrypoint = self.optional(about, "bundle.entrypoint", "entrypoint").and_then(|text| {
            Entrypoint::new(&text).map_err(|error| self.wrong("bundle.entrypoint", &error)).ok()
        });
        let description = self.optional(about, "bundle.description", "description").unwrap_or_default();
        let created_at = self.optional(about, "bundle.created_at", "created_at").and_then(|text| {
            let moment = Timestamp::new(&text);
            if moment.is_none() {
                self.wrong("bundle.created_at", &"it is no moment such as 2026-01-02T03:04:05Z");
            }
            moment
        });
        let kind = self.optional(about, "bundle.type", "type");
        let categories = self.categories(about);
        let files = self.files(document);
        Some(Manifest {
            id: id?,
            version: version?,
            entrypoint,
            description,
            created_at,
            categories,
            kind,
            files,
        })
    }

    fn text(&mut self, map: &Map<String, Value>, field: &str, key: &str) -> Option<String> {
        let text = map.get(key).and_then(Value::as_str);
        if text.is_none() {
            self.wrong(field, &"it is missing, or no text");
        }
        text.map(str::to_owned)
    }

    /// A text that may be missing; an empty one counts as missing.
    fn optional(&mut self, map: &Map<String, Value>, field: &str, key: &str) -> Option<String> {
        match map.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
            Some(_) => {
                self.wrong(field, &"it is no text");
                None
            }
        }
    }

    fn categories(&mut self, about: &Map<String, Value>) -> Vec<String> {
        let field = "bundle.categories";
        let list = match about.get("categories") {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.wrong(field, &"it is no list");
                return Vec::new();
            }
        };
        let mut categories = Vec::new();
        for category in list {
            match category.as_str().map(ItemId::new) {
                Some(Ok(category)) => categories.push(category.to_string()),
                Some(Err(error)) => self.wrong(field, &error),
                None => self.wrong(field, &"it holds something that is no text"),
            }
        }
        categories
    }

    fn files(&mut self, document: &Value) -> BTreeMap<FilePath, Entry> {
        let mut files = BTreeMap::new();
        let Some(listed) = document.get("files").and_then(Value::as_object) else {
            self.wrong("files", &"it is missing, or no map");
            return files;
        };
        if listed.len() > MAX_FILES {
            self.wrong("files", &format!("it lists {} files, more than {MAX_FILES}", listed.len()));
            return files;
        }
        let mut folded: BTreeMap<String, &str> = BTreeMap::new();
        for (path, about) in listed {
            let checked = match FilePath::new(path.as_str()) {
                Ok(checked) => checked,
                Err(error) => {
                    self.wrong("files", &error);
                    continue;
                }
            };
            if checked.as_str().starts_with(".ai/bundles/") {
                self.wrong("files", &format!("`{path}`: manifests and lockfiles are no files of a bundle"));
            }
            if let Some(other) = folded.insert(checked.folded(), path) {
                self.wrong(
                    "files",
                    &format!("`{path}` and `{other}` are one file where case does not count"),
                );
            }
            if let Some(entry) = self.entry(path, &checked, about) {
                files.insert(checked, entry);
            }
        }
        // A file cannot be the folder of another one.
        for path in folded.keys() {
            let mut above = path.as_str();
            while let Some((parent, _)) = above.rsplit_once('/') {
                if let Some(file) = folded.get(parent) {
                    self.wrong("files", &format!("`{file}` is listed as a file and as a folder"));
                }
                above = parent;
            }
        }
        files
    }

    fn entry(&mut self, path: &str, checked: &FilePath, about: &Value) -> Option<Entry> {
        let mut wrong = |why: &dyn std::fmt::Display| self.wrong("files", &format!("`{path}`: {why}"));
        let digest = |key: &str| about.get(key).and_then(Value::as_str).map(str::parse::<Digest>);
        let hash = match (digest("object_hash"), digest("sha256")) {
            (Some(Ok(hash)), _) => Some(FileHash::Object(hash)),
            (None, Some(Ok(hash))) => Some(FileHash::Bytes(hash)),
            (Some(Err(error)), _) | (None, Some(Err(error))) => {
                wrong(&error);
                None
            }
            (None, None) => {
                wrong(&"it has neither `object_hash` nor `sha256`");
                None
            }
        };
        let inline_signed = match about.get("inline_signed") {
            None => false,
            Some(Value::Bool(inline_signed)) => *inline_signed,
            Some(_) => {
                wrong(&"`inline_signed` is neither true nor false");
                false
            }
        };
        let actual = type_of(checked);
        let item_type = match about.get("item_type") {
            None | Some(Value::Null) => actual,
            // An asset may lie among tools.
            Some(Value::String(stated)) if stated == ASSET => None,
            Some(stated) => {
                let stated = stated.as_str().unwrap_or_default();
                if Some(stated) != actual.map(ItemType::as_str) {
                    let folder = actual.map_or("files of no type", ItemType::folder);
                    wrong(&format!("it says `{}`, but lies among {folder}", one_line(stated)));
                }
                actual
            }
        };
        Some(Entry { hash: hash?, inline_signed, item_type })
    }
}

/// A manifest's file: its bytes, whoever signed them, and what they say if they can be read.
#[derive(Clone, Debug)]
pub struct ManifestFile {
    item: ItemRef,
    space: Space,
    bytes: Vec<u8>,
    format: SignatureFormat,
    id: BundleId,
    /// What it says, or everything that is wrong with it.
    pub parsed: Result<Manifest, Vec<Problem>>,
}

impl ManifestFile {
    /// Reads the manifest of the bundle `id` below the folder `ai`. No link is followed.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    pub fn read(ai: &Path, id: &BundleId) -> Result<Self, ReadError> {
        let relative = Path::new(BUNDLES_FOLDER).join(id.as_str()).join("manifest.yaml");
        let (bytes, _) = lillux::file::read_beneath_plainly(ai, &relative, MAX_BYTES)?;
        Ok(Self::new(id, bytes))
    }

    /// The manifest of the bundle `id` with these bytes.
    #[must_use]
    pub fn new(id: &BundleId, bytes: Vec<u8>) -> Self {
        Self {
            item: ItemRef::new(ItemType::Config, id.as_item_id().clone()),
            space: Space::System(id.clone()),
            parsed: Manifest::parse(&bytes),
            bytes,
            format: rye_trust::identity::format(),
            id: id.clone(),
        }
    }

    /// The same file, judged as one of `space`.
    #[must_use]
    pub fn in_space(self, space: Space) -> Self {
        Self { space, ..self }
    }

    /// The bundle whose folder it lies in.
    #[must_use]
    pub fn id(&self) -> &BundleId {
        &self.id
    }

    /// The digest of its bytes: the `manifest_hash` of lockfiles.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// Its signature, if the signed hash is that of its content.
    #[must_use]
    pub fn signature(&self) -> Option<SignatureLine> {
        let layout = Layout::of(&self.bytes, &self.format);
        let content = compare(ItemType::Config, &self.bytes, &layout);
        let is_intact = matches!(content, Content::Intact { coverage: Coverage::Full, .. });
        layout.signature.filter(|_| is_intact)
    }

    /// The files it lists; none if it cannot be read.
    #[must_use]
    pub fn listed(&self) -> HashSet<String> {
        let files = self.manifest().map(|manifest| manifest.files.keys());
        files.into_iter().flatten().map(ToString::to_string).collect()
    }

    /// Whether `key` signed it as it is.
    #[must_use]
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.signature().is_some_and(|line| key.verifies(&line.hash, &line.signature))
    }

    /// What it says, if that is the manifest of the bundle whose folder it lies in.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn manifest(&self) -> Result<&Manifest, Vec<Problem>> {
        match (&self.parsed, self.misplacement()) {
            (Err(problems), _) => Err(problems.clone()),
            (Ok(_), Some(reason)) => Err(vec![Problem::new(reason)]),
            (Ok(manifest), None) => Ok(manifest),
        }
    }
}

impl Subject for ManifestFile {
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
        Some(&self.format)
    }

    fn misplacement(&self) -> Option<String> {
        let stated = &self.parsed.as_ref().ok()?.id;
        (*stated != self.id).then(|| format!("it is the manifest of `{stated}`"))
    }
}

/// The ids of the bundles that have a manifest below the folder `ai`, sorted. Names that are no ids are left out.
#[must_use]
pub fn ids_in(ai: &Path) -> Vec<BundleId> {
    let Ok(entries) = fs_err::read_dir(ai.join(BUNDLES_FOLDER)) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ids: Vec<BundleId> = names
        .filter_map(|name| BundleId::new(name).ok())
        .filter(|id| ai.join(BUNDLES_FOLDER).join(id.as_str()).join("manifest.yaml").exists())
        .collect();
    ids.sort();
    ids
}

#[cfg(test)]
mod tests;
