//! The one reader and writer of bundle manifests: `.ai/bundles/<id>/manifest.yaml`, signed like config.
//!
//! A manifest comes from outside: everything wrong with it is collected, and one that has a problem lists nothing.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use lillux::file::ReadError;
use lillux::{Digest, PublicKey};
use rye_item::text::{one_line, quote};
use rye_item::{BundleId, Diagnostic, InvalidId, ItemId, ItemRef, ItemType, SignatureFormat, Space, yaml};
use rye_trust::coverage::{ContentStatus, compare_content};
pub use rye_trust::object::FileHash;
use rye_trust::other_document::has_escaped_letters;
use rye_trust::signature::{FileLayout, SignatureLine, Timestamp};
use rye_trust::{Coverage, Subject};
use semver::Version;
use serde_json::{Map, Value};

use crate::installed::BUNDLES_FOLDER;
use crate::path::BundlePath;
use crate::roots::AI_FOLDER;

/// More files than this are not a bundle but an attack on patience.
pub const MAX_MANIFEST_FILES: usize = 20_000;
/// The largest manifest that is read.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;
const MAX_PROBLEMS: usize = 100;
const TOP_LEVEL_KEYS: [&str; 2] = ["bundle", "files"];
/// The type of a file that is not an item.
pub const ASSET_TYPE: &str = "asset";

/// One file of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestFileEntry {
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
    /// When it is not an id.
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
    pub bundle_type: Option<String>,
    /// Its files.
    pub files: BTreeMap<BundlePath, ManifestFileEntry>,
}

impl Manifest {
    /// Where the manifest of the bundle `id` lies, below the folder that holds `.ai/`.
    #[must_use]
    pub fn path_for(id: &BundleId) -> String {
        format!("{AI_FOLDER}/{BUNDLES_FOLDER}/{id}/manifest.yaml")
    }

    /// Reads a manifest's text.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Vec<Diagnostic>> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| vec![Diagnostic::new("the file is not valid UTF-8")])?;
        let document = yaml::parse(text).map_err(|problem| vec![problem])?;
        let mut reader = ManifestReader { problems: Vec::new() };
        match reader.read_manifest(&document.value) {
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
            quote(self.id.as_str()),
            quote(&self.version.to_string()),
            quote(&entrypoint),
            quote(&self.description),
        );
        if let Some(timestamp) = &self.created_at {
            text.push_str(&format!("  created_at: {}\n", quote(timestamp.as_str())));
        }
        if let Some(bundle_type) = &self.bundle_type {
            text.push_str(&format!("  type: {}\n", quote(bundle_type)));
        }
        if !self.categories.is_empty() {
            text.push_str("  categories:\n");
            self.categories
                .iter()
                .for_each(|category| text.push_str(&format!("    - {}\n", quote(category))));
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
                quote(path.as_str()),
                quote(&hash.to_hex()),
                entry.inline_signed
            ));
            let item_type = entry.item_type.map_or(ASSET_TYPE, ItemType::as_str);
            text.push_str(&format!("    item_type: {item_type}\n"));
        }
        text
    }
}

/// Whether a text could be used as a manifest, whatever else it says: looser than [`Manifest::parse`].
#[must_use]
pub fn may_be_manifest(text: &str) -> bool {
    // Written with escapes, the words need not be there.
    let is_possible = (text.contains("bundle") && text.contains("files")) || has_escaped_letters(text);
    is_possible
        && yaml::parse(text).is_ok_and(|document| {
            let map = document.value.as_object();
            map.is_some_and(|map| {
                TOP_LEVEL_KEYS.iter().all(|key| map.get(*key).is_some_and(Value::is_object))
            })
        })
}

/// Whether a file of a bundle is not installed with it: keys and approvals belong to the user, and lockfiles speak for
/// the system space only. Such files are judged with the bundle; installing leaves them behind.
#[must_use]
pub fn is_never_installed(path: &BundlePath) -> bool {
    [".ai/config/keys/", ".ai/config/trust/", ".ai/lockfiles/"]
        .iter()
        .any(|folder| path.case_folded().starts_with(folder))
}

/// The type the folder of a path makes a file; `None` below no type's folder.
#[must_use]
pub fn item_type_of(path: &BundlePath) -> Option<ItemType> {
    let (folder, _) = path.as_str().strip_prefix(".ai/")?.split_once('/')?;
    ItemType::from_folder(folder)
}

struct ManifestReader {
    problems: Vec<Diagnostic>,
}

impl ManifestReader {
    fn push_problem(&mut self, field: &str, why: &dyn std::fmt::Display) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems
                .push(Diagnostic::new(format!("{field}: {}", one_line(&why.to_string()))).with_field(field));
        }
    }

    fn read_manifest(&mut self, document: &Value) -> Option<Manifest> {
        let empty = Map::new();
        // A text that was signed as something else, such as a tool, says more than a manifest does.
        for key in document
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
            .filter(|key| !TOP_LEVEL_KEYS.contains(&key.as_str()))
        {
            self.push_problem(&one_line(key), &"a manifest has `bundle` and `files` only");
        }
        let metadata = document.get("bundle").and_then(Value::as_object).unwrap_or_else(|| {
            self.push_problem("bundle", &"it is missing, or no map");
            &empty
        });
        let id = self.required_text(metadata, "bundle.id", "id").and_then(|text| {
            BundleId::new(text).map_err(|error| self.push_problem("bundle.id", &error)).ok()
        });
        let version = self.required_text(metadata, "bundle.version", "version").and_then(|text| {
            Version::parse(&text).map_err(|error| self.push_problem("bundle.version", &error)).ok()
        });
        let entrypoint = self.optional_text(metadata, "bundle.entrypoint", "entrypoint").and_then(|text| {
            Entrypoint::new(&text).map_err(|error| self.push_problem("bundle.entrypoint", &error)).ok()
        });
        let description =
            self.optional_text(metadata, "bundle.description", "description").unwrap_or_default();
        let created_at = self.optional_text(metadata, "bundle.created_at", "created_at").and_then(|text| {
            let timestamp = Timestamp::new(&text);
            if timestamp.is_none() {
                self.push_problem("bundle.created_at", &"not a timestamp such as 2026-01-02T03:04:05Z");
            }
            timestamp
        });
        let kind = self.optional_text(metadata, "bundle.type", "type");
        let categories = self.read_categories(metadata);
        let files = self.read_files(document);
        Some(Manifest {
            id: id?,
            version: version?,
            entrypoint,
            description,
            created_at,
            categories,
            bundle_type: kind,
            files,
        })
    }

    fn required_text(&mut self, map: &Map<String, Value>, field: &str, key: &str) -> Option<String> {
        let text = map.get(key).and_then(Value::as_str);
        if text.is_none() {
            self.push_problem(field, &"it is missing, or no text");
        }
        text.map(str::to_owned)
    }

    /// A text that may be missing; an empty one counts as missing.
    fn optional_text(&mut self, map: &Map<String, Value>, field: &str, key: &str) -> Option<String> {
        match map.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()).filter(|text| !text.is_empty()),
            Some(_) => {
                self.push_problem(field, &"not a string");
                None
            }
        }
    }

    fn read_categories(&mut self, about: &Map<String, Value>) -> Vec<String> {
        let field = "bundle.categories";
        let list = match about.get("categories") {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(list)) => list,
            Some(_) => {
                self.push_problem(field, &"not a list");
                return Vec::new();
            }
        };
        let mut categories = Vec::new();
        for category in list {
            match category.as_str().map(ItemId::new) {
                Some(Ok(category)) => categories.push(category.to_string()),
                Some(Err(error)) => self.push_problem(field, &error),
                None => self.push_problem(field, &"it has an entry that is not a string"),
            }
        }
        categories
    }

    fn read_files(&mut self, document: &Value) -> BTreeMap<BundlePath, ManifestFileEntry> {
        let mut files = BTreeMap::new();
        let Some(listed) = document.get("files").and_then(Value::as_object) else {
            self.push_problem("files", &"it is missing, or no map");
            return files;
        };
        if listed.len() > MAX_MANIFEST_FILES {
            self.push_problem(
                "files",
                &format!("it lists {} files, more than {MAX_MANIFEST_FILES}", listed.len()),
            );
            return files;
        }
        let mut folded: BTreeMap<String, &str> = BTreeMap::new();
        for (path, about) in listed {
            let checked = match BundlePath::new(path.as_str()) {
                Ok(checked) => checked,
                Err(error) => {
                    self.push_problem("files", &error);
                    continue;
                }
            };
            if checked.as_str().starts_with(".ai/bundles/") {
                self.push_problem(
                    "files",
                    &format!("`{path}`: manifests and lockfiles cannot be files of a bundle"),
                );
            }
            if let Some(other) = folded.insert(checked.case_folded(), path) {
                self.push_problem(
                    "files",
                    &format!("`{path}` and `{other}` are one file where case is ignored"),
                );
            }
            if let Some(entry) = self.read_file_entry(path, &checked, about) {
                files.insert(checked, entry);
            }
        }
        // A file cannot be the folder of another one.
        for path in folded.keys() {
            let mut above = path.as_str();
            while let Some((parent, _)) = above.rsplit_once('/') {
                if let Some(file) = folded.get(parent) {
                    self.push_problem("files", &format!("`{file}` is listed as a file and as a folder"));
                }
                above = parent;
            }
        }
        files
    }

    fn read_file_entry(
        &mut self,
        path: &str,
        checked: &BundlePath,
        about: &Value,
    ) -> Option<ManifestFileEntry> {
        let mut push_problem =
            |why: &dyn std::fmt::Display| self.push_problem("files", &format!("`{path}`: {why}"));
        let digest = |key: &str| about.get(key).and_then(Value::as_str).map(str::parse::<Digest>);
        let hash = match (digest("object_hash"), digest("sha256")) {
            (Some(Ok(hash)), _) => Some(FileHash::Object(hash)),
            (None, Some(Ok(hash))) => Some(FileHash::Bytes(hash)),
            (Some(Err(error)), _) | (None, Some(Err(error))) => {
                push_problem(&error);
                None
            }
            (None, None) => {
                push_problem(&"it has neither `object_hash` nor `sha256`");
                None
            }
        };
        let inline_signed = match about.get("inline_signed") {
            None => false,
            Some(Value::Bool(inline_signed)) => *inline_signed,
            Some(_) => {
                push_problem(&"`inline_signed` is neither true nor false");
                false
            }
        };
        let actual = item_type_of(checked);
        let item_type = match about.get("item_type") {
            None | Some(Value::Null) => actual,
            // An asset may lie among tools.
            Some(Value::String(stated)) if stated == ASSET_TYPE => None,
            Some(stated) => {
                let stated = stated.as_str().unwrap_or_default();
                if Some(stated) != actual.map(ItemType::as_str) {
                    let folder = actual.map_or("files of no type", ItemType::folder);
                    push_problem(&format!("it says `{}`, but is in {folder}", one_line(stated)));
                }
                actual
            }
        };
        Some(ManifestFileEntry { hash: hash?, inline_signed, item_type })
    }
}

/// A manifest's file: its bytes, its signer, and its content if it can be read.
#[derive(Clone, Debug)]
pub struct ManifestFile {
    item: ItemRef,
    space: Space,
    bytes: Vec<u8>,
    format: SignatureFormat,
    id: BundleId,
    /// What it says, or everything that is wrong with it.
    pub parsed: Result<Manifest, Vec<Diagnostic>>,
}

impl ManifestFile {
    /// Reads the manifest of the bundle `id` below the folder `ai`. No link is followed.
    ///
    /// # Errors
    /// When it is missing or cannot be read.
    pub fn read(ai: &Path, id: &BundleId) -> Result<Self, ReadError> {
        let relative = Path::new(BUNDLES_FOLDER).join(id.as_str()).join("manifest.yaml");
        let (bytes, _) = lillux::file::read_beneath_no_symlinks(ai, &relative, MAX_MANIFEST_BYTES)?;
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
            format: rye_trust::identity::signature_format(),
            id: id.clone(),
        }
    }

    /// The same file, judged as one of `space`.
    #[must_use]
    pub fn with_space(self, space: Space) -> Self {
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
        let layout = FileLayout::parse(&self.bytes, &self.format);
        let content = compare_content(ItemType::Config, &self.bytes, &layout);
        let is_intact = matches!(content, ContentStatus::Intact { coverage: Coverage::Full, .. });
        layout.signature.filter(|_| is_intact)
    }

    /// The files it lists; none if it cannot be read.
    #[must_use]
    pub fn listed_files(&self) -> HashSet<String> {
        let files = self.manifest().map(|manifest| manifest.files.keys());
        files.into_iter().flatten().map(ToString::to_string).collect()
    }

    /// Whether `key` signed it as it is.
    #[must_use]
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.signature().is_some_and(|line| key.verify(&line.hash, &line.signature))
    }

    /// What it says, if that is the manifest of the bundle whose folder it lies in.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn manifest(&self) -> Result<&Manifest, Vec<Diagnostic>> {
        match (&self.parsed, self.misplacement()) {
            (Err(problems), _) => Err(problems.clone()),
            (Ok(_), Some(reason)) => Err(vec![Diagnostic::new(reason)]),
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

/// The ids of the bundles that have a manifest below the folder `ai`, sorted. Names that are not ids are left out.
#[must_use]
pub fn manifest_ids(ai: &Path) -> Vec<BundleId> {
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
