//! What the user has approved: project folders, signers of bundles, and opt-in bundles. Signed records in user space.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::file::Lock;
use lillux::{Digest, PublicKey, SecretKey};
use rye_item::{BundleId, Space};
use rye_trust::KeyRing;
use rye_trust::signature::Timestamp;
use semver::Version;
use serde_json::Value;

use crate::keys;

/// Below the user's `.ai/`: approved projects.
pub const PROJECTS_FILE: &str = "config/trust/projects.yaml";
/// Below the user's `.ai/`: approved bundle signers and enabled opt-in bundles.
pub const BUNDLES_FILE: &str = "config/trust/bundles.yaml";

/// A signer pinned for a bundle id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerPin {
    /// The bundle.
    pub bundle: BundleId,
    /// The signer's whole key.
    pub key: PublicKey,
    /// The real path of the only project it counts in; none if it counts in all of the user's projects.
    pub project: Option<String>,
    /// What was seen of the bundle under this key.
    pub seen_version: Option<SeenVersion>,
}

/// The highest version of a bundle that was installed under a pinned key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenVersion {
    /// The version.
    pub version: Version,
    /// The digest of its manifest's bytes.
    pub manifest_hash: Digest,
}

/// All approvals.
#[derive(Clone, Debug, Default)]
pub struct Approvals {
    /// Real paths of approved projects.
    pub projects: Vec<String>,
    /// Of an approved project, the other users it may belong to.
    pub owners: BTreeMap<String, Vec<u32>>,
    /// Pinned signers.
    pub pins: Vec<SignerPin>,
    /// Opt-in bundles inside the binary that the user has enabled.
    pub enabled: Vec<BundleId>,
    /// Records that are not valid, and why.
    pub problems: Vec<String>,
    /// The real path of the project they are read for.
    pub current_project: Option<String>,
}

impl Approvals {
    /// Reads the records below the user's `.ai/`. A record counts if a key the user trusts everywhere signed it.
    #[must_use]
    pub fn read(user_ai: &Path, ring: &KeyRing) -> Self {
        let mut approvals = Self::default();
        let mut read = |file: &str| match keys::read_record(user_ai, file, ring) {
            Ok(value) => value,
            Err(problem) => {
                approvals.problems.push(problem);
                Value::Null
            }
        };
        let (projects, bundles) = (read(PROJECTS_FILE), read(BUNDLES_FILE));
        approvals.projects = list_entries(&projects, "projects")
            .filter_map(|project| Some(project.get("path")?.as_str()?.to_owned()))
            .collect();
        approvals.owners = list_entries(&projects, "projects")
            .filter_map(|project| {
                let owners =
                    list_entries(project, "owners").filter_map(|owner| u32::try_from(owner.as_u64()?).ok());
                Some((project.get("path")?.as_str()?.to_owned(), owners.collect::<Vec<u32>>()))
            })
            .filter(|(_, owners): &(String, Vec<u32>)| !owners.is_empty())
            .collect();
        approvals.pins = list_entries(&bundles, "bundles")
            .filter_map(|pin| {
                // A pin whose project cannot be read counts nowhere.
                let project = match pin.get("project") {
                    None => None,
                    Some(project) => Some(project.as_str()?.to_owned()),
                };
                Some(SignerPin {
                    project,
                    bundle: BundleId::new(pin.get("id")?.as_str()?).ok()?,
                    key: PublicKey::from_pem(pin.get("public_key")?.as_str()?).ok()?,
                    seen_version: parse_seen_version(pin),
                })
            })
            .collect();
        approvals.enabled = list_entries(&bundles, "enabled")
            .filter_map(|bundle| BundleId::new(bundle.get("id")?.as_str()?).ok())
            .collect();
        approvals
    }

    /// As [`Approvals::read`], with the lock under which the records may be written: without it, one of two
    /// processes that approve at once would take back what the other approved.
    ///
    /// # Errors
    /// When the folder of the records cannot be made or locked.
    pub fn read_locked(user_ai: &Path, ring: &KeyRing) -> std::io::Result<(Self, Lock)> {
        let lock = keys::lock_records(user_ai)?;
        Ok((Self::read(user_ai, ring), lock))
    }

    /// Whether the project with this real path is approved.
    #[must_use]
    pub fn has_project(&self, project: Option<&str>) -> bool {
        project.is_some_and(|project| self.projects.iter().any(|known| known == project))
    }

    /// The other users that the project with this real path may belong to.
    #[must_use]
    pub fn owners_of(&self, project: Option<&str>) -> &[u32] {
        project.and_then(|project| self.owners.get(project)).map_or(&[], Vec::as_slice)
    }

    /// The pinned signers of the bundle `id`, in all projects and in this one.
    pub fn pins_of<'a>(&'a self, id: &'a BundleId) -> impl Iterator<Item = &'a SignerPin> {
        self.pins.iter().filter(move |pin| {
            pin.bundle == *id && (pin.project.is_none() || pin.project == self.current_project)
        })
    }

    /// The pinned signers of the bundle `id` that count for one installed in `space`: what is pinned for a project counts
    /// for what is installed there.
    pub fn pins_in<'a>(&'a self, id: &'a BundleId, space: &'a Space) -> impl Iterator<Item = &'a SignerPin> {
        self.pins_of(id).filter(move |pin| pin.project.is_none() || *space == Space::Project)
    }

    /// Pins `key` for the bundle `id` in this project, or in all of them, unless it is pinned, and remembers what was seen
    /// under it if that is the highest version so far.
    pub fn pin_signer(
        &mut self,
        id: &BundleId,
        key: &PublicKey,
        project: Option<&str>,
        seen_version: Option<SeenVersion>,
    ) {
        let is_same = |pin: &SignerPin| pin.bundle == *id && pin.key == *key;
        let is_wider = |pin: &SignerPin| pin.project.is_none() || pin.project.as_deref() == project;
        let known = self.pins.iter_mut().find(|pin| is_same(pin) && is_wider(pin));
        match known {
            None => self.pins.push(SignerPin {
                bundle: id.clone(),
                key: key.clone(),
                project: project.map(str::to_owned),
                seen_version,
            }),
            Some(pin) => {
                let is_lower = |new: &SeenVersion| {
                    pin.seen_version.as_ref().is_some_and(|old| new.version < old.version)
                };
                if let Some(seen_version) = seen_version.filter(|new| !is_lower(new)) {
                    pin.seen_version = Some(seen_version);
                }
            }
        }
    }

    /// Whether the opt-in bundle `id` is enabled.
    #[must_use]
    pub fn has_enabled(&self, id: &BundleId) -> bool {
        self.enabled.contains(id)
    }

    /// Writes the approved projects.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn write_projects(
        &self,
        user_ai: &Path,
        key: &SecretKey,
        now: &Timestamp,
    ) -> std::io::Result<PathBuf> {
        let mut text = String::from("version: \"1.0.0\"\ncategory: trust\nprojects:\n");
        if self.projects.is_empty() {
            text = text.replace("projects:\n", "projects: []\n");
        }
        for project in &self.projects {
            text.push_str(&format!("  - path: {}\n", rye_item::text::quote(project)));
            let owners: Vec<String> = self.owners_of(Some(project)).iter().map(u32::to_string).collect();
            if !owners.is_empty() {
                text.push_str(&format!("    owners: [{}]\n", owners.join(", ")));
            }
        }
        let path = user_ai.join(PROJECTS_FILE);
        keys::write_signed_document(&path, &text, key, now)?;
        Ok(path)
    }

    /// Writes what concerns bundles: pinned signers and enabled bundles.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn write_bundles(
        &self,
        user_ai: &Path,
        key: &SecretKey,
        now: &Timestamp,
    ) -> std::io::Result<PathBuf> {
        let mut text = String::from("version: \"1.0.0\"\ncategory: trust\nbundles:\n");
        if self.pins.is_empty() {
            text = text.replace("bundles:\n", "bundles: []\n");
        }
        for pin in &self.pins {
            text.push_str(&format!(
                "  - id: {}\n    fingerprint: {}\n    public_key: {}\n",
                rye_item::text::quote(pin.bundle.as_str()),
                rye_item::text::quote(pin.key.fingerprint().as_str()),
                rye_item::text::quote(&pin.key.to_pem())
            ));
            if let Some(project) = &pin.project {
                text.push_str(&format!("    project: {}\n", rye_item::text::quote(project)));
            }
            if let Some(seen_version) = &pin.seen_version {
                text.push_str(&format!(
                    "    version: {}\n    manifest_hash: {}\n",
                    rye_item::text::quote(&seen_version.version.to_string()),
                    rye_item::text::quote(&seen_version.manifest_hash.to_hex())
                ));
            }
        }
        if !self.enabled.is_empty() {
            text.push_str("enabled:\n");
        }
        for bundle in &self.enabled {
            text.push_str(&format!("  - id: {}\n", rye_item::text::quote(bundle.as_str())));
        }
        let path = user_ai.join(BUNDLES_FILE);
        keys::write_signed_document(&path, &text, key, now)?;
        Ok(path)
    }
}

fn parse_seen_version(pin: &Value) -> Option<SeenVersion> {
    Some(SeenVersion {
        version: Version::parse(pin.get("version")?.as_str()?).ok()?,
        manifest_hash: pin.get("manifest_hash")?.as_str()?.parse().ok()?,
    })
}

fn list_entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}
