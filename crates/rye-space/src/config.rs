//! Layered config: system, then user, then project, merged by the merge law and judged key by key.
//!
//! What an unsigned or unapproved file may not say is left out, and that is said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rye_item::{ItemId, ItemRef, ItemType, SourcePosition, Space, merge};
use rye_trust::verify::{evaluate, is_listed};
use rye_trust::{KeyRing, Subject, TrustBasis, TrustVerdict};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::item_file::ItemFile;
use crate::schema::{self, ConfigSchema, Safety, SettingAccess, flatten};
use crate::spaces::{CandidatePath, Spaces};

/// A key that was left out, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IgnoredSetting {
    /// The key's dotted path.
    pub key: String,
    /// The space of the file.
    pub space: Space,
    /// The file.
    #[serde(serialize_with = "crate::serde_path::path")]
    pub path: PathBuf,
    /// Where in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<SourcePosition>,
    /// Why.
    pub reason: String,
    /// The config that the file is a layer of.
    #[serde(skip)]
    pub item: ItemRef,
}

impl IgnoredSetting {
    /// The command that signs the file.
    #[must_use]
    pub fn sign_command(&self) -> String {
        sign_command(&self.item, &self.space)
    }
}

/// The command that signs an item of a space.
#[must_use]
pub fn sign_command(item: &ItemRef, space: &Space) -> String {
    let only = if *space == Space::User { " --space user" } else { "" };
    format!("rye sign {} {}{only}", item.item_type, item.id)
}

/// A config after all layers.
#[derive(Clone, Debug, Default)]
pub struct MergedConfig {
    /// The settings.
    pub value: Value,
    /// Which space each setting comes from, by its keys from the top.
    pub origins: BTreeMap<Vec<String>, Space>,
    /// What was left out.
    pub ignored: Vec<IgnoredSetting>,
    /// What was taken, but should be signed.
    pub unsigned: Vec<IgnoredSetting>,
    /// Files in the old flat place, read or not.
    pub flat_files: Vec<IgnoredSetting>,
}

impl MergedConfig {
    /// The setting at a dotted path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.value, |value, key| value.get(key))
    }

    /// The setting at these keys, from the top.
    #[must_use]
    pub fn get_path(&self, path: &[String]) -> Option<&Value> {
        path.iter().try_fold(&self.value, |value, key| value.get(key))
    }

    /// The texts of a list setting.
    #[must_use]
    pub fn texts(&self, path: &str) -> Vec<String> {
        let list = self.get(path).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|value| value.as_str().map(str::to_owned)).collect()
    }
}

/// One file of a config, and how far it is trusted.
#[derive(Debug)]
pub struct ConfigLayer {
    /// The file.
    pub located: ItemFile,
    /// How far it is trusted.
    pub trust: LayerTrust,
    /// Whether it lies in the old flat place.
    pub is_flat: bool,
}

/// How far a file is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerTrust {
    /// A key that counts signed it, and its place may say anything.
    Trusted,
    /// It is not signed.
    Unsigned,
    /// It is signed, but not validly, or by a key that is not trusted.
    Invalid(TrustVerdict),
    /// A trusted key signed it, but the project is not approved.
    NotApproved,
    /// It came with a bundle that is installed in this space, as the bundle's signer made it: it may set what lies
    /// within the bundle's categories, below the user's own files.
    FromBundle,
    /// It is a bundle's, and sets what that bundle may not.
    OutOfScope(&'static str),
}

/// Who may say what in this context.
#[derive(Clone, Copy, Debug)]
pub struct TrustContext<'a> {
    /// The keys that count.
    pub keys: &'a KeyRing,
    /// Whether the user approved the project.
    pub is_project_approved: bool,
}

/// Merges all layers of one config, and answers with them, farthest first; `bootstrap` holds the binary's own defaults,
/// verified, below every space.
#[must_use]
pub fn load(
    spaces: &Spaces,
    item: &ItemRef,
    bootstrap: &[ItemFile],
    schema: Option<&ConfigSchema>,
    context: TrustContext<'_>,
) -> (MergedConfig, Vec<ConfigLayer>) {
    let mut merged = MergedConfig { value: Value::Object(Map::new()), ..MergedConfig::default() };
    for layer in bootstrap {
        apply(&mut merged, layer, schema, LayerTrust::Trusted);
    }
    let (layers, unreadable) = layers(spaces, item, context);
    merged.ignored.extend(unreadable);
    for layer in &layers {
        if let LayerTrust::OutOfScope(reason) = layer.trust {
            merged.ignored.push(whole_file(
                item,
                layer.located.space(),
                &layer.located.path,
                reason.to_owned(),
            ));
            continue;
        }
        apply(&mut merged, &layer.located, schema, layer.trust);
        if layer.is_flat {
            let extension = &layer.located.extension;
            let reason =
                format!("it is read, but this place is old: move it to `.ai/config/{}{extension}`", item.id);
            merged.flat_files.push(whole_file(item, layer.located.space(), &layer.located.path, reason));
        }
    }
    if let Some((_, candidate)) = flat_candidate(spaces, item, &Space::User) {
        let reason = format!(
            "it is not read in user space: move it to `.ai/config/{}{}`",
            item.id, candidate.extension
        );
        merged.flat_files.push(whole_file(item, &candidate.space, &candidate.path, reason));
    }
    (merged, layers)
}

/// The files of one config, farthest first, and those that could not be read. Every reader of config asks here: this
/// decides which files are layers and how far each is trusted.
#[must_use]
pub fn layers(
    spaces: &Spaces,
    item: &ItemRef,
    context: TrustContext<'_>,
) -> (Vec<ConfigLayer>, Vec<IgnoredSetting>) {
    let mut candidates: Vec<(ItemRef, CandidatePath)> =
        spaces.candidate_paths(item).into_iter().map(|candidate| (item.clone(), candidate)).collect();
    candidates.reverse();
    if let Some(flat) = flat_candidate(spaces, item, &Space::Project) {
        // Below the project's own file, which stands last.
        let own = candidates
            .iter()
            .position(|(_, candidate)| candidate.space == Space::Project)
            .unwrap_or(candidates.len());
        candidates.insert(own, flat);
    }
    let (mut layers, mut unreadable) = (Vec::new(), Vec::new());
    for (config_item, candidate) in candidates.iter().filter(|(_, candidate)| candidate.is_found) {
        match spaces.read(config_item, candidate) {
            Ok(located) => {
                let trust = layer_trust(&located, spaces, context);
                layers.push(ConfigLayer { located, trust, is_flat: config_item != item });
            }
            Err(error) => {
                unreadable.push(whole_file(item, &candidate.space, &candidate.path, error.to_string()));
            }
        }
    }
    // What a bundle brought into project or user space never overrides what the user set.
    layers.sort_by_key(|layer| match (layer.located.space(), layer.trust) {
        (Space::System(_), _) => 0,
        (_, LayerTrust::FromBundle) => 1,
        (_, _) => 2,
    });
    (layers, unreadable)
}

/// A word about a file as a whole.
fn whole_file(item: &ItemRef, space: &Space, path: &Path, reason: String) -> IgnoredSetting {
    IgnoredSetting {
        item: item.clone(),
        key: "*".to_owned(),
        space: space.clone(),
        path: path.to_owned(),
        position: None,
        reason,
    }
}

/// The old flat place of a config: `.ai/config/<file>.yaml` for `<category>/<file>`.
fn flat_candidate(spaces: &Spaces, item: &ItemRef, space: &Space) -> Option<(ItemRef, CandidatePath)> {
    if !item.id.as_str().contains('/') || item.id.name() == "config" {
        return None;
    }
    let flat = ItemRef::new(ItemType::Config, ItemId::new(item.id.name()).ok()?);
    let candidate = spaces
        .candidate_paths(&flat)
        .into_iter()
        .find(|candidate| candidate.space == *space && candidate.is_found)?;
    Some((flat, candidate))
}

/// The configs that the project's flat file `id` is read as: those of its name below a category, in any space. None when it
/// is a config of its own.
#[must_use]
pub fn configs_for_flat_file(spaces: &Spaces, id: &ItemId) -> Vec<ItemId> {
    if id.as_str().contains('/') || id.as_str() == "config" {
        return Vec::new();
    }
    let mut ids: Vec<ItemId> = spaces
        .order()
        .flat_map(|space| spaces.scan(&space, &[ItemType::Config]).entries)
        .map(|entry| entry.item.id)
        .filter(|known| known.as_str().contains('/') && known.name() == id.as_str())
        .filter(|known| !known.is_within("keys") && !known.is_within("trust"))
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

fn apply(merged: &mut MergedConfig, layer: &ItemFile, rules: Option<&ConfigSchema>, trust: LayerTrust) {
    let space = layer.space().clone();
    let parsed = layer.parsed();
    let item = layer.item_ref();
    let ignore = |key: String, position: Option<SourcePosition>, reason: String| IgnoredSetting {
        item: item.clone(),
        key,
        space: space.clone(),
        path: layer.path.clone(),
        position,
        reason,
    };
    for problem in &parsed.problems {
        merged.ignored.push(ignore("*".to_owned(), problem.position, problem.message.clone()));
    }
    let mut settings = parsed.fields.clone();
    settings.retain(|key, _| !schema::is_description_key(key));
    let mut accepted = Value::Object(Map::new());
    for (path, value) in flatten(&Value::Object(settings), rules) {
        let key = path.join(".");
        let position = parsed.positions.get(&key).copied();
        match check_key(&path, &value, layer, trust, rules, merged) {
            Ok(should_be_signed) => {
                if should_be_signed {
                    let reason =
                        format!("this should be signed: read it, then `{}`", sign_command(item, &space));
                    merged.unsigned.push(ignore(key.clone(), position, reason));
                }
                merged.origins.retain(|known, _| !known.starts_with(&path));
                merged.origins.insert(path.clone(), space.clone());
                insert(&mut accepted, &path, value);
            }
            Err(reason) => merged.ignored.push(ignore(key, position, reason)),
        }
    }
    merged.value = merge::merge(&merged.value, &accepted);
}

fn layer_trust(layer: &ItemFile, spaces: &Spaces, context: TrustContext<'_>) -> LayerTrust {
    let report = evaluate(layer, context.keys);
    match (report.verdict, layer.space()) {
        (TrustVerdict::Full, space @ Space::System(_)) => {
            let is_general = report.basis == Some(TrustBasis::User);
            let bundle = spaces.bundle(space);
            let reason = bundle.and_then(|bundle| bundle.config_refusal(&layer.item_ref().id, is_general));
            reason.map_or(LayerTrust::Trusted, LayerTrust::OutOfScope)
        }
        (TrustVerdict::Full, Space::Project) if !context.is_project_approved => LayerTrust::NotApproved,
        (TrustVerdict::Full, Space::Project | Space::User) if is_listed(layer, context.keys) => {
            LayerTrust::FromBundle
        }
        (TrustVerdict::Full, Space::Project | Space::User) => LayerTrust::Trusted,
        (TrustVerdict::Unsigned, _) => LayerTrust::Unsigned,
        (other, _) => LayerTrust::Invalid(other),
    }
}

/// Whether a key counts; `Ok(true)` when it counts but should be signed.
fn check_key(
    path: &[String],
    value: &Value,
    layer: &ItemFile,
    trust: LayerTrust,
    schema: Option<&ConfigSchema>,
    merged: &MergedConfig,
) -> Result<bool, String> {
    let space = layer.space();
    let sign_command = || sign_command(layer.item_ref(), space);
    let access = match schema {
        Some(schema) => schema.access(path).ok_or_else(|| "unknown setting".to_owned())?,
        None => SettingAccess::default(),
    };
    if let Some(schema) = schema {
        schema.check(path, value)?;
    }
    let is_safe = match access.safety {
        Safety::Safe => true,
        Safety::Tighter => is_tighter(value, merged.get_path(path)),
        Safety::Unsafe => false,
    };
    match (space, trust) {
        (Space::System(_), LayerTrust::Trusted) => Ok(false),
        (Space::System(_), _) => Err("the bundle's signature does not cover it".to_owned()),
        (_, LayerTrust::OutOfScope(reason)) => Err(reason.to_owned()),
        (Space::Project, _) | (_, LayerTrust::FromBundle) if access.is_user_only => {
            Err("only user space may set this".to_owned())
        }
        (Space::Project, _) | (_, LayerTrust::FromBundle) if access.project_narrows => {
            match is_lower(value, merged.get_path(path)) {
                true => Ok(false),
                false => Err("a project may only lower this".to_owned()),
            }
        }
        (_, LayerTrust::Trusted | LayerTrust::FromBundle) => Ok(false),
        (_, _) if is_safe => Ok(false),
        (Space::User, LayerTrust::Unsigned) if access.must_be_signed => {
            Err(format!("only used in a signed file: read it, then `{}`", sign_command()))
        }
        (Space::User, LayerTrust::Unsigned) => Ok(true),
        (_, LayerTrust::NotApproved) => {
            Err("the project is not approved: `rye join` shows who signed it".to_owned())
        }
        (_, LayerTrust::Unsigned) => Err("only used in a file signed by a key you trust".to_owned()),
        (Space::Project, LayerTrust::Invalid(verdict @ TrustVerdict::Untrusted)) => {
            Err(format!("{}: `rye join` shows who signed it", invalid_reason(verdict)))
        }
        (Space::User, LayerTrust::Invalid(verdict)) => {
            Err(format!("{}: read it, then `{}`", invalid_reason(verdict), sign_command()))
        }
        (_, LayerTrust::Invalid(verdict)) => Err(invalid_reason(verdict).to_owned()),
    }
}

/// Why a file's signature is not accepted.
#[must_use]
pub fn invalid_reason(verdict: TrustVerdict) -> &'static str {
    match verdict {
        TrustVerdict::Tampered => "the file was changed since it was signed",
        TrustVerdict::Misplaced => "the file was signed as another item",
        TrustVerdict::Untrusted => "the file is signed by a key you do not trust",
        TrustVerdict::Revoked => "the key that signed the file is revoked",
        TrustVerdict::Partial => "the signature covers only a part of the file",
        TrustVerdict::Unsigned | TrustVerdict::Full => "the file's signature is not accepted here",
    }
}

fn is_tighter(value: &Value, current: Option<&Value>) -> bool {
    match (value.as_f64(), current.and_then(Value::as_f64)) {
        (Some(new_value), Some(current)) => new_value <= current,
        _ => false,
    }
}

/// Whether a value limits at least as much as the present one; where there is none, any number does.
fn is_lower(value: &Value, current: Option<&Value>) -> bool {
    match current {
        None | Some(Value::Null) => value.is_number(),
        current => is_tighter(value, current),
    }
}

fn insert(document: &mut Value, path: &[String], value: Value) {
    let mut node = document;
    for key in path {
        if !node.is_object() {
            *node = Value::Object(Map::new());
        }
        let Value::Object(map) = node else { return };
        node = map.entry(key.clone()).or_insert(Value::Null);
    }
    *node = value;
}

/// The item that `config.yaml` is.
///
/// # Errors
/// Never: the id is valid.
pub fn main_config() -> Result<ItemRef, rye_item::InvalidId> {
    Ok(ItemRef::new(ItemType::Config, ItemId::new("config")?))
}
