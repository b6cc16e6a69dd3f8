//! Bundles installed into project or user space: the lockfile that says which files they brought, and for which of
//! these files the bundle's signer counts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lillux::{Digest, Fingerprint, PublicKey};
use rye_item::text::one_line;
use rye_item::{BundleId, ItemId, ItemType, Space};
use rye_trust::object::FileHash;
use rye_trust::signature::Timestamp;
use rye_trust::{Identity, KeyRing};
use semver::Version;
use serde::Serialize;
use serde_json::Value;

use crate::approvals::Approvals;
use crate::file_stamp::WatchSet;
use crate::manifest::{ManifestFile, is_never_installed};
use crate::path::BundlePath;
use crate::scan::split_extension;
use crate::scope;

/// Below a space's `.ai/`: one folder for each installed bundle.
pub const BUNDLES_FOLDER: &str = "bundles";
/// The lockfile's name in its bundle's folder.
pub const LOCKFILE_NAME: &str = ".bundle-lock.json";

/// Beside the lockfile: the identity document of the manifest's signer, so that a user who clones the project can approve
/// them. It counts for nothing until then.
pub const SIGNER_FILE: &str = "signer.toml";

/// `.ai/bundles/<id>/.bundle-lock.json`: what an installation wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BundleLockfile {
    /// The bundle.
    pub bundle_id: BundleId,
    /// Its version.
    #[serde(serialize_with = "serialize_version")]
    pub version: Version,
    /// The digest of the manifest's bytes.
    pub manifest_hash: Digest,
    /// When it was installed.
    #[serde(serialize_with = "serialize_timestamp")]
    pub installed_at: Timestamp,
    /// The files it brought, manifest and lockfile aside.
    pub files: Vec<BundlePath>,
    /// Those of them that were there before it, with the same bytes: they stay when it goes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<BundlePath>,
    /// Where it came from, as the user named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The digest the source is known by: `sha256:…` of a registry's manifest or of an archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<String>,
    /// Who signed the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signer: Option<Fingerprint>,
    /// Whether the project's `bundles.toml` asked for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub managed: bool,
}

fn serialize_version<S: serde::Serializer>(version: &Version, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(version)
}

fn serialize_timestamp<S: serde::Serializer>(
    timestamp: &Timestamp,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(timestamp)
}

impl BundleLockfile {
    /// Reads a lockfile. Unknown fields are ignored.
    ///
    /// # Errors
    /// Everything that is wrong with it, in words.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}"))?;
        let mut problems = Vec::new();
        let lock = parse_lock(&value, &mut problems);
        match lock {
            Some(lock) if problems.is_empty() => Ok(lock),
            Some(_) | None => Err(problems.join("; ")),
        }
    }

    /// The lockfile's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Nothing in it can fail to be JSON: texts, and lists of texts.
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text.into_bytes()
    }
}

fn parse_lock(value: &Value, problems: &mut Vec<String>) -> Option<BundleLockfile> {
    let mut field = |key: &str| {
        let text = value.get(key).and_then(Value::as_str);
        if text.is_none() {
            problems.push(format!("`{key}` is missing or no text"));
        }
        text
    };
    let (id, version) = (field("bundle_id"), field("version"));
    let (hash, timestamp) = (field("manifest_hash"), field("installed_at"));
    let mut push_problem = |key: &str, why: &dyn std::fmt::Display| {
        problems.push(format!("`{key}`: {}", one_line(&why.to_string())));
    };
    let id = id.and_then(|id| BundleId::new(id).map_err(|error| push_problem("bundle_id", &error)).ok());
    let version =
        version.and_then(|text| Version::parse(text).map_err(|error| push_problem("version", &error)).ok());
    let hash: Option<Digest> =
        hash.and_then(|text| text.parse().map_err(|error| push_problem("manifest_hash", &error)).ok());
    let timestamp = timestamp.and_then(|text| {
        let timestamp = Timestamp::new(text);
        if timestamp.is_none() {
            push_problem("installed_at", &"not a timestamp such as 2026-01-02T03:04:05Z");
        }
        timestamp
    });
    let mut paths = |key: &str, is_required: bool| {
        let mut paths = Vec::new();
        match value.get(key) {
            None if !is_required => {}
            Some(Value::Array(list)) => {
                for path in list {
                    match path.as_str().map(BundlePath::new) {
                        Some(Ok(path)) => paths.push(path),
                        Some(Err(error)) => problems.push(error.to_string()),
                        None => problems.push(format!("`{key}` has an entry that is not a string")),
                    }
                }
            }
            None | Some(_) => problems.push(format!("`{key}` is missing or no list")),
        }
        paths
    };
    let (files, found) = (paths("files", true), paths("found", false));
    let optional = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(BundleLockfile {
        bundle_id: id?,
        version: version?,
        manifest_hash: hash?,
        installed_at: timestamp?,
        files,
        found,
        source: optional("source"),
        source_digest: optional("source_digest"),
        signer: optional("signer").and_then(|text| text.parse().ok()),
        managed: value.get("managed") == Some(&Value::Bool(true)),
    })
}

/// A bundle in project or user space.
#[derive(Clone, Debug)]
pub struct BundleInstallation {
    /// Its id.
    pub id: BundleId,
    /// The space it is installed in.
    pub space: Space,
    /// That space's `.ai`.
    pub ai: PathBuf,
    /// Its manifest, or why it cannot be read.
    pub manifest: Result<ManifestFile, String>,
    /// Its lockfile, or why it cannot be read.
    pub lock: Result<BundleLockfile, String>,
}

/// The ids of everything that has a lockfile in the space `ai`, sorted.
#[must_use]
pub fn installed_ids(ai: &Path) -> Vec<BundleId> {
    let Ok(entries) = fs_err::read_dir(ai.join(BUNDLES_FOLDER)) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ids: Vec<BundleId> = names
        .filter_map(|name| BundleId::new(name).ok())
        .filter(|id| ai.join(BUNDLES_FOLDER).join(id.as_str()).join(LOCKFILE_NAME).exists())
        .collect();
    ids.sort();
    ids
}

impl BundleInstallation {
    /// Reads lockfile and manifest of the bundle `id` in the space `ai`. No link is followed.
    #[must_use]
    pub fn read(ai: &Path, space: &Space, id: &BundleId) -> Self {
        let relative = Path::new(BUNDLES_FOLDER).join(id.as_str()).join(LOCKFILE_NAME);
        let lock = lillux::file::read_beneath_no_symlinks(ai, &relative, crate::manifest::MAX_MANIFEST_BYTES)
            .map_err(|error| error.to_string())
            .and_then(|(bytes, _)| BundleLockfile::parse(&bytes));
        Self {
            id: id.clone(),
            space: space.clone(),
            ai: ai.to_owned(),
            manifest: ManifestFile::read(ai, id).map_err(|error| error.to_string()),
            lock,
        }
    }

    /// Who signed the manifest, if the document beside it says so truly.
    #[must_use]
    pub fn signer(&self) -> Option<Identity> {
        let relative = Path::new(BUNDLES_FOLDER).join(self.id.as_str()).join(SIGNER_FILE);
        let (bytes, _) = lillux::file::read_beneath_no_symlinks(&self.ai, &relative, 64 << 10).ok()?;
        let identity = Identity::parse(&bytes).ok()?;
        let is_signer = self.manifest.as_ref().is_ok_and(|manifest| manifest.is_signed_by(&identity.key));
        (identity.is_self_signed() && is_signer).then_some(identity)
    }

    /// The files `key` counts for: those that lockfile and manifest both name, if `key` signed the manifest. Of config,
    /// only what lies within the bundle's categories and is not read by rye itself.
    ///
    /// # Errors
    /// Why it counts for none.
    pub fn trusted_files(&self, key: &PublicKey) -> Result<Vec<(BundlePath, FileHash)>, String> {
        let lock = self.lock.as_ref().map_err(|why| format!("its lockfile: {why}"))?;
        let file = self.manifest.as_ref().map_err(|why| format!("its manifest: {why}"))?;
        let manifest = file.manifest().map_err(|problems| {
            let first = problems.first().map(ToString::to_string).unwrap_or_default();
            format!("its manifest: {}", one_line(&first))
        })?;
        if !file.is_signed_by(key) {
            return Err("its manifest is not signed by the key you approved".to_owned());
        }
        if lock.bundle_id != self.id {
            return Err(format!("its lockfile is that of `{}`", lock.bundle_id));
        }
        if lock.manifest_hash != file.hash() {
            return Err("its lockfile was written for another manifest".to_owned());
        }
        let installed: BTreeSet<&BundlePath> = lock.files.iter().collect();
        let listed = manifest.files.iter().filter(|(path, _)| installed.contains(path));
        let trusted = listed.filter(|(path, entry)| {
            !is_never_installed(path)
                && match entry.item_type {
                    None => false,
                    Some(ItemType::Config) => config_id(path)
                        .is_some_and(|id| scope::config_refusal(&id, &manifest.categories, false).is_none()),
                    Some(ItemType::Directive | ItemType::Tool | ItemType::Knowledge) => true,
                }
        });
        Ok(trusted.map(|(path, entry)| (path.clone(), entry.hash)).collect())
    }
}

/// Which installed bundle each file of a space belongs to; the others are the user's own.
#[derive(Clone, Debug, Default)]
pub struct FileOwners(BTreeMap<String, FileOwner>);

/// The bundle that has a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FileOwner {
    /// Lockfile and manifest of this bundle name it.
    Bundle(BundleId),
    /// A lockfile names it, and nothing confirms that: it goes with no other file.
    Unclear,
}

impl FileOwners {
    /// Reads the lockfiles of all bundles in the space `ai`, whether their signers are approved or not.
    ///
    /// # Errors
    /// When a lockfile cannot be read: then it is not known which files are the user's own.
    pub fn read(ai: &Path, space: &Space) -> Result<Self, String> {
        let mut owners = BTreeMap::new();
        for id in installed_ids(ai) {
            let installed = BundleInstallation::read(ai, space, &id);
            let lock = installed.lock.map_err(|why| format!("the lockfile of the bundle `{id}`: {why}"))?;
            let manifest = installed.manifest.as_ref().ok().and_then(|file| file.manifest().ok());
            for path in &lock.files {
                let is_listed = manifest.is_some_and(|manifest| manifest.files.contains_key(path));
                let owner = if is_listed { FileOwner::Bundle(id.clone()) } else { FileOwner::Unclear };
                // What two bundles claim belongs to neither.
                owners
                    .entry(path.to_string())
                    .and_modify(|owner| *owner = FileOwner::Unclear)
                    .or_insert(owner);
            }
        }
        Ok(Self(owners))
    }

    /// Whether two files, from `.ai/` on, belong together: to the same bundle, or both to the user.
    #[must_use]
    pub fn are_together(&self, one: &str, other: &str) -> bool {
        match (self.0.get(one), self.0.get(other)) {
            (None, None) => true,
            (Some(FileOwner::Bundle(one)), Some(FileOwner::Bundle(other))) => one == other,
            (_, _) => false,
        }
    }

    /// Whether a lockfile names the file, from `.ai/` on.
    #[must_use]
    pub fn is_of_bundle(&self, file: &str) -> bool {
        self.0.contains_key(file)
    }

    /// Whether every file that bundles brought below `folder` belongs together with `file`.
    #[must_use]
    pub fn is_folder_together(&self, file: &str, folder: &str) -> bool {
        let inside = format!("{folder}/");
        let mut below = self.0.keys().filter(|path| path.starts_with(&inside));
        below.all(|path| self.are_together(file, path))
    }
}

/// The id of the config at `path`, if it can be one.
fn config_id(path: &BundlePath) -> Option<ItemId> {
    let (stem, _) = split_extension(path.as_str().strip_prefix(".ai/config/")?)?;
    ItemId::new(stem).ok()
}

/// What to say of approved bundles in a project that is not approved: their items are not used there.
#[must_use]
pub fn unapproved_notices(ai: &Path, approvals: &Approvals) -> Vec<String> {
    let ids: BTreeSet<&BundleId> = approvals.pins.iter().map(|pin| &pin.bundle).collect();
    let installed =
        ids.into_iter().filter(|id| ai.join(BUNDLES_FOLDER).join(id.as_str()).join(LOCKFILE_NAME).exists());
    installed
        .map(|id| {
            format!("the bundle `{id}` in this project is not used until you approve the project: rye join")
        })
        .collect()
}

/// Lets the signers the user approved count for what their bundles brought into the space `ai`. A bundle whose id has
/// no approved signer is not even read. Gives what is worth knowing.
pub fn trust_installed(
    ai: &Path,
    space: &Space,
    approvals: &Approvals,
    ring: &mut KeyRing,
    watch_set: &mut WatchSet,
) -> Vec<String> {
    let mut notices = Vec::new();
    let ids: BTreeSet<&BundleId> = approvals.pins.iter().map(|pin| &pin.bundle).collect();
    for id in ids {
        let folder = ai.join(BUNDLES_FOLDER).join(id.as_str());
        // Absent ones too: a warm process has to notice an installation.
        watch_set.add(folder.join(LOCKFILE_NAME));
        watch_set.add(folder.join("manifest.yaml"));
        if !folder.join(LOCKFILE_NAME).exists() {
            continue;
        }
        let installed = BundleInstallation::read(ai, space, id);
        let mut pins = approvals.pins_in(id, space);
        let mut reason = None;
        let is_trusted = pins.any(|pin| match installed.trusted_files(&pin.key) {
            Ok(files) => {
                let signer = Identity::new(pin.key.clone(), id.as_str());
                ring.add_manifest_entries(
                    space,
                    &signer,
                    files.into_iter().map(|(path, hash)| (path.to_string(), hash)),
                );
                true
            }
            Err(why) => {
                reason = Some(why);
                false
            }
        });
        if let (false, Some(reason)) = (is_trusted, reason) {
            notices.push(format!("the bundle `{id}` in {space} space is ignored: {reason}"));
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = r#"{
  "bundle_id": "my-bundle",
  "version": "1.0.0",
  "manifest_hash": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
  "installed_at": "2026-03-15T12:00:00Z",
  "files": [
    ".ai/tools/utilities/web-scraper.py",
    ".ai/directives/utilities/setup.md"
  ]
}
"#;

    #[test]
    fn lockfile_round_trips() {
        let lock = BundleLockfile::parse(SEED.as_bytes()).expect("a lockfile");
        assert_eq!(String::from_utf8(lock.to_bytes()).expect("text"), SEED);
        let more = BundleLockfile {
            source: Some("registry.example/a/b:1".to_owned()),
            source_digest: Some("sha256:00".to_owned()),
            signer: "0123456789abcdef".parse().ok(),
            ..lock
        };
        assert_eq!(BundleLockfile::parse(&more.to_bytes()), Ok(more));
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = SEED.replace("\"version\"", "\"colour\": {\"x\": 1},\n  \"version\"");
        assert_eq!(BundleLockfile::parse(text.as_bytes()), BundleLockfile::parse(SEED.as_bytes()));
    }

    #[test]
    fn files_of_one_bundle_belong_together() {
        let bundle = |id: &str| FileOwner::Bundle(BundleId::new(id).expect("an id"));
        let owners = FileOwners(BTreeMap::from([
            (".ai/tools/t/a.py".to_owned(), bundle("one")),
            (".ai/tools/t/b.py".to_owned(), bundle("one")),
            (".ai/tools/t/c.py".to_owned(), bundle("two")),
            (".ai/tools/t/node_modules/x/index.js".to_owned(), bundle("one")),
            (".ai/tools/t/unclear.py".to_owned(), FileOwner::Unclear),
        ]));
        let together = |one: &str, other: &str| {
            owners.are_together(&format!(".ai/tools/t/{one}.py"), &format!(".ai/tools/t/{other}.py"))
        };
        assert!(together("a", "b") && together("mine", "my_own"));
        for (one, other) in [("a", "c"), ("a", "mine"), ("unclear", "a"), ("unclear", "mine")] {
            assert!(!together(one, other) && !together(other, one), "{one} {other}");
        }
        assert!(!together("unclear", "unclear"));
        let folder = |file: &str, name: &str| {
            owners.is_folder_together(&format!(".ai/tools/t/{file}.py"), &format!(".ai/tools/t/{name}"))
        };
        assert!(folder("a", "node_modules") && folder("mine", "node") && folder("mine", "other"));
        assert!(!folder("c", "node_modules") && !folder("mine", "node_modules"));
    }

    #[test]
    fn all_problems_are_reported_together() {
        let bad = SEED
            .replace("my-bundle", "../up")
            .replace("1.0.0", "one")
            .replace("e3b0", "E3B0")
            .replace("12:00", "99:00")
            .replace(".ai/tools/utilities", ".ai/../..");
        let problems = BundleLockfile::parse(bad.as_bytes()).expect_err("refused");
        for part in ["bundle_id", "version", "manifest_hash", "installed_at", "`.` or `..`"] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        for none in ["", "[]", "{}", "null", "{\"files\": 1}"] {
            assert!(BundleLockfile::parse(none.as_bytes()).is_err(), "{none}");
        }
    }
}
