//! Layered config: system, then user, then project, merged by the merge law and judged key by key.
//!
//! What an unsigned or unapproved file may not say is left out, and that is said.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rye_item::{ItemId, ItemRef, ItemType, Position, Space, merge};
use rye_trust::verify::{is_listed, report};
use rye_trust::{KeyRing, Subject, Verdict, Vouch};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::located::Located;
use crate::schema::{self, Mark, Safety, Schema, flatten};
use crate::spaces::{Place, Spaces};

/// A key that was left out, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ignored {
    /// The key's dotted path.
    pub key: String,
    /// The space of the file.
    pub space: Space,
    /// The file.
    #[serde(serialize_with = "crate::shown::path")]
    pub path: PathBuf,
    /// Where in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Why.
    pub reason: String,
}

/// A config after all layers.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The settings.
    pub value: Value,
    /// Which space each setting comes from, by its keys from the top.
    pub origins: BTreeMap<Vec<String>, Space>,
    /// What was left out.
    pub ignored: Vec<Ignored>,
    /// What was taken, but should be signed.
    pub unsigned: Vec<Ignored>,
    /// Files in the old flat place, read or not.
    pub flat: Vec<Ignored>,
}

impl Merged {
    /// The setting at a dotted path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.value, |value, key| value.get(key))
    }

    /// The setting at these keys, from the top.
    #[must_use]
    pub fn at(&self, path: &[String]) -> Option<&Value> {
        path.iter().try_fold(&self.value, |value, key| value.get(key))
    }

    /// The texts of a list setting.
    #[must_use]
    pub fn texts(&self, path: &str) -> Vec<String> {
        let list = self.get(path).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(|value| value.as_str().map(str::to_owned)).collect()
    }
}

/// One file of a config, and how far it is believed.
#[derive(Debug)]
pub struct Layer {
    /// The file.
    pub located: Located,
    /// How far it is believed.
    pub standing: Standing,
    /// Whether it lies in the old flat place.
    pub is_flat: bool,
}

/// How far a file is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A key that counts signed it, and its place may say anything.
    Vouched,
    /// Nobody signed it.
    Unsigned,
    /// It is signed, but not validly, or by a key that does not count.
    Doubtful(Verdict),
    /// A trusted key signed it, but the project is not approved.
    NotApproved,
    /// It came with a bundle that is installed in this space, as the bundle's signer made it: it may set what lies
    /// within the bundle's categories, below the user's own files.
    Installed,
    /// It is a bundle's, and sets what that bundle may not.
    OutOfScope(&'static str),
}

/// Who may say what in this context.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
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
    bootstrap: &[Located],
    schema: Option<&Schema>,
    judge: Judge<'_>,
) -> (Merged, Vec<Layer>) {
    let mut merged = Merged { value: Value::Object(Map::new()), ..Merged::default() };
    for layer in bootstrap {
        apply(&mut merged, layer, schema, Standing::Vouched);
    }
    let (layers, unread) = layers(spaces, item, judge);
    merged.ignored.extend(unread);
    for layer in &layers {
        if let Standing::OutOfScope(reason) = layer.standing {
            merged.ignored.push(whole(layer.located.space(), &layer.located.path, reason.to_owned()));
            continue;
        }
        apply(&mut merged, &layer.located, schema, layer.standing);
        if layer.is_flat {
            let extension = &layer.located.extension;
            let reason =
                format!("it is read, but this place is old: move it to `.ai/config/{}{extension}`", item.id);
            merged.flat.push(whole(layer.located.space(), &layer.located.path, reason));
        }
    }
    if let Some((_, place)) = flat_place(spaces, item, &Space::User) {
        let reason =
            format!("it is not read in user space: move it to `.ai/config/{}{}`", item.id, place.extension);
        merged.flat.push(whole(&place.space, &place.path, reason));
    }
    (merged, layers)
}

/// The files of one config, farthest first, and those that could not be read. Every reader of config asks here: this
/// decides which files are layers and how far each is trusted.
#[must_use]
pub fn layers(spaces: &Spaces, item: &ItemRef, judge: Judge<'_>) -> (Vec<Layer>, Vec<Ignored>) {
    let mut places: Vec<(ItemRef, Place)> =
        spaces.places(item).into_iter().map(|place| (item.clone(), place)).collect();
    places.reverse();
    if let Some(flat) = flat_place(spaces, item, &Space::Project) {
        // Below the project's own file, which stands last.
        let own = places.iter().position(|(_, place)| place.space == Space::Project).unwrap_or(places.len());
        places.insert(own, flat);
    }
    let (mut layers, mut unread) = (Vec::new(), Vec::new());
    for (found, place) in places.iter().filter(|(_, place)| place.is_found) {
        match spaces.read(found, place) {
            Ok(located) => {
                let standing = standing(&located, spaces, judge);
                layers.push(Layer { located, standing, is_flat: found != item });
            }
            Err(error) => unread.push(whole(&place.space, &place.path, error.to_string())),
        }
    }
    // What a bundle brought into project or user space never overrides what the user set.
    layers.sort_by_key(|layer| match (layer.located.space(), layer.standing) {
        (Space::System(_), _) => 0,
        (_, Standing::Installed) => 1,
        (_, _) => 2,
    });
    (layers, unread)
}

/// A word about a file as a whole.
fn whole(space: &Space, path: &Path, reason: String) -> Ignored {
    Ignored { key: "*".to_owned(), space: space.clone(), path: path.to_owned(), position: None, reason }
}

/// The old flat place of a config: `.ai/config/<file>.yaml` for `<category>/<file>`.
fn flat_place(spaces: &Spaces, item: &ItemRef, space: &Space) -> Option<(ItemRef, Place)> {
    if !item.id.as_str().contains('/') || item.id.name() == "config" {
        return None;
    }
    let flat = ItemRef::new(ItemType::Config, ItemId::new(item.id.name()).ok()?);
    let place = spaces.places(&flat).into_iter().find(|place| place.space == *space && place.is_found)?;
    Some((flat, place))
}

/// The configs that the project's flat file `id` is read as: those of its name below a category, in any space. None when it
/// is a config of its own.
#[must_use]
pub fn read_as(spaces: &Spaces, id: &ItemId) -> Vec<ItemId> {
    if id.as_str().contains('/') || id.as_str() == "config" {
        return Vec::new();
    }
    let mut named: Vec<ItemId> = spaces
        .order()
        .flat_map(|space| spaces.walk(&space, &[ItemType::Config]).entries)
        .map(|entry| entry.item.id)
        .filter(|known| known.as_str().contains('/') && known.name() == id.as_str())
        .filter(|known| !known.is_within("keys") && !known.is_within("trust"))
        .collect();
    named.sort();
    named.dedup();
    named
}

fn apply(merged: &mut Merged, layer: &Located, rules: Option<&Schema>, standing: Standing) {
    let space = layer.space().clone();
    let parsed = layer.parsed();
    let ignore = |key: String, position: Option<Position>, reason: String| Ignored {
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
    settings.retain(|key, _| !schema::is_description(key));
    let mut accepted = Value::Object(Map::new());
    for (path, value) in flatten(&Value::Object(settings), rules) {
        let key = path.join(".");
        let position = parsed.positions.get(&key).copied();
        match judge_key(&path, &value, &space, standing, rules, merged) {
            Ok(should_be_signed) => {
                if should_be_signed {
                    let reason = "this should be signed: read it, then `rye sign config ID`".to_owned();
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

fn standing(layer: &Located, spaces: &Spaces, judge: Judge<'_>) -> Standing {
    let report = report(layer, judge.keys);
    match (report.verdict, layer.space()) {
        (Verdict::Full, space @ Space::System(_)) => {
            let is_general = report.vouch == Some(Vouch::User);
            let bundle = spaces.bundle(space);
            let refusal = bundle.and_then(|bundle| bundle.config_refusal(&layer.item_ref().id, is_general));
            refusal.map_or(Standing::Vouched, Standing::OutOfScope)
        }
        (Verdict::Full, Space::Project) if !judge.is_project_approved => Standing::NotApproved,
        (Verdict::Full, Space::Project | Space::User) if is_listed(layer, judge.keys) => Standing::Installed,
        (Verdict::Full, Space::Project | Space::User) => Standing::Vouched,
        (Verdict::Unsigned, _) => Standing::Unsigned,
        (other, _) => Standing::Doubtful(other),
    }
}

/// Whether a key counts; `Ok(true)` when it counts but should be signed.
fn judge_key(
    path: &[String],
    value: &Value,
    space: &Space,
    standing: Standing,
    schema: Option<&Schema>,
    merged: &Merged,
) -> Result<bool, String> {
    let mark = match schema {
        Some(schema) => schema.mark(path).ok_or_else(|| "there is no such setting".to_owned())?,
        None => Mark::default(),
    };
    if let Some(schema) = schema {
        schema.check(path, value)?;
    }
    let is_safe = match mark.safety {
        Safety::Safe => true,
        Safety::Tighter => is_tighter(value, merged.at(path)),
        Safety::Unsafe => false,
    };
    match (space, standing) {
        (Space::System(_), Standing::Vouched) => Ok(false),
        (Space::System(_), _) => Err("the bundle's signature does not vouch for it".to_owned()),
        (_, Standing::OutOfScope(reason)) => Err(reason.to_owned()),
        (Space::Project, _) | (_, Standing::Installed) if mark.is_user_only => {
            Err("only user space may set this".to_owned())
        }
        (_, Standing::Vouched | Standing::Installed) => Ok(false),
        (_, _) if is_safe => Ok(false),
        (Space::User, Standing::Unsigned) if mark.must_be_signed => {
            Err("this counts only in a signed file: read it, then `rye sign config ID`".to_owned())
        }
        (Space::User, Standing::Unsigned) => Ok(true),
        (_, Standing::NotApproved) => Err("the project is not approved: `rye trust`".to_owned()),
        (_, Standing::Unsigned) => Err("this counts only in a file signed by a key you trust".to_owned()),
        (_, Standing::Doubtful(verdict)) => Err(format!("the file is {}", verdict.as_str())),
    }
}

fn is_tighter(value: &Value, current: Option<&Value>) -> bool {
    match (value.as_f64(), current.and_then(Value::as_f64)) {
        (Some(wanted), Some(current)) => wanted <= current,
        _ => false,
    }
}

fn insert(document: &mut Value, path: &[String], value: Value) {
    let mut place = document;
    for key in path {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(map) = place else { return };
        place = map.entry(key.clone()).or_insert(Value::Null);
    }
    *place = value;
}

/// The item that `config.yaml` is.
///
/// # Errors
/// Never: the id is valid.
pub fn main_config() -> Result<ItemRef, rye_item::InvalidId> {
    Ok(ItemRef::new(ItemType::Config, ItemId::new("config")?))
}
