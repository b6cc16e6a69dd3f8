//! `config set` and `config get`: one setting, checked against its schema. A file that the user signed is signed again;
//! any other file is signed only with consent, because signing vouches for all of it.

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::schema::ConfigSchema;
use rye_trust::TrustVerdict;
use rye_trust::verify::evaluate;
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::config::{self, Setting};
use crate::verbs::{new_item, sign, yaml_edit};

/// The largest config that is changed.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A setting by name: its config, and its keys from the top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingName {
    /// The config it belongs to.
    pub config: ItemId,
    /// Its keys from the top.
    pub path: Vec<String>,
}

impl SettingName {
    /// The name as users write it: `search.limit`, `agent/resilience:limits.defaults.turns`.
    #[must_use]
    pub fn display(&self) -> String {
        let key = self.path.join(".");
        if self.config.as_str() == "config" { key } else { format!("{}:{key}", self.config) }
    }

    fn schema<'a>(&self, engine: &'a Engine) -> Option<&'a ConfigSchema> {
        engine.workspace.schema_for(&self.config)
    }
}

/// Reads the name of a setting. Without a config it is the one that has the setting, `config` before all others.
///
/// # Errors
/// When there is no such setting, or several configs have it.
pub fn parse_name(engine: &Engine, text: &str) -> Result<SettingName> {
    let split = |key: &str| key.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (config, key) = match text.split_once(':') {
        Some((config, key)) => (Some(ItemId::new(config)?), key),
        None => (None, text),
    };
    let path = split(key);
    if path.iter().any(String::is_empty) {
        let text = rye_item::text::one_line(text);
        return Err(Error::new(Code::InvalidArgument, format!("invalid setting `{text}`"))
            .hint("a setting is written as search.limit, or agent/agent:provider.default"));
    }
    let ids: Vec<ItemId> = match config {
        Some(config) => vec![config],
        None => {
            let ids = engine.workspace.all_schemas().filter_map(ConfigSchema::config_id);
            ids.filter_map(|id| ItemId::new(id).ok()).collect()
        }
    };
    let has_key =
        |id: &ItemId| engine.workspace.schema_for(id).is_some_and(|schema| schema.access(&path).is_some());
    let mut holders: Vec<ItemId> = ids.iter().filter(|id| has_key(id)).cloned().collect();
    if let Some(main) = holders.iter().position(|id| id.as_str() == "config") {
        holders = vec![holders.swap_remove(main)];
    }
    match holders.len() {
        0 => Err(unknown_setting(engine, text, key, &ids)),
        1 => Ok(SettingName { config: holders.remove(0), path }),
        _ => {
            let names = holders.iter().map(|id| format!("{id}:{key}")).collect::<Vec<_>>().join(", ");
            let message = format!("several configs have the setting `{}`", rye_item::text::one_line(key));
            Err(Error::new(Code::Ambiguous, message).hint(format!("name one of: {names}")))
        }
    }
}

fn unknown_setting(engine: &Engine, text: &str, key: &str, ids: &[ItemId]) -> Error {
    let mut known: Vec<String> = Vec::new();
    for id in ids {
        let keys = engine.workspace.schema_for(id).map(ConfigSchema::keys).unwrap_or_default();
        let is_main = id.as_str() == "config";
        known.extend(keys.into_iter().map(|key| if is_main { key } else { format!("{id}:{key}") }));
    }
    let error = Error::new(Code::NotFound, format!("unknown setting `{}`", rye_item::text::one_line(text)));
    let keys = |name: &str| name.rsplit(':').next().unwrap_or_default().to_owned();
    let wanted: Vec<String> = known.iter().map(|name| keys(name)).collect();
    let near = rye_item::text::nearest(key, wanted.iter().map(String::as_str));
    let near = near.and_then(|near| known.iter().find(|name| keys(name) == near));
    let below = known.iter().filter(|name| keys(name).starts_with(&format!("{key}."))).take(5);
    let below: Vec<&str> = below.map(String::as_str).collect();
    match near {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None if !below.is_empty() => error.hint(format!("settings below it: {}", below.join(", "))),
        None => error,
    }
    .hint("rye config show lists all settings")
}

/// The settings at a name: one, or all below it.
///
/// # Errors
/// When there is no such setting.
pub fn get(engine: &Engine, text: &str) -> Result<Vec<Setting>> {
    let is_below = |setting: &Setting, path: &[String]| {
        let key = path.join(".");
        setting.key == key || setting.key.strip_prefix(&key).is_some_and(|rest| rest.starts_with('.'))
    };
    let name = parse_name(engine, text)?;
    let mut found = config::show(engine, Some(&name.config))?.settings;
    found.retain(|setting| is_below(setting, &name.path));
    if found.is_empty() {
        return Err(Error::new(Code::NotFound, format!("`{}` is not set", name.display()))
            .hint(format!("set it: rye config set {} VALUE", name.display())));
    }
    Ok(found)
}

/// What will be set, checked; nothing is written yet.
#[derive(Debug)]
pub struct ConfigChange {
    name: SettingName,
    value: Value,
    tier: SpaceTier,
    path: PathBuf,
    before: Option<Vec<u8>>,
    after: String,
    /// Why the file is not signed without consent: what its signature is now.
    pub needs_consent: Option<&'static str>,
}

/// What was set.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigSetResponse {
    /// The setting.
    pub setting: String,
    /// Its value.
    pub value: Value,
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Whether the file was changed.
    pub changed: bool,
}

impl ConfigChange {
    /// The file that is changed.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks a setting and its value, and works out the new text of the file.
    ///
    /// # Errors
    /// When the setting or the value is not valid, the space may not set it, or the file cannot be changed safely.
    pub fn new(engine: &Engine, text: &str, value: &str, tier: SpaceTier) -> Result<Self> {
        let name = parse_name(engine, text)?;
        let schema = name.schema(engine);
        let value = parse_value(schema, &name, value)?;
        if let Some(schema) = schema {
            if schema.is_object(&name.path) {
                let below = format!("{}.", name.path.join("."));
                let keys: Vec<String> =
                    schema.keys().into_iter().filter(|key| key.starts_with(&below)).take(5).collect();
                return Err(Error::new(
                    Code::InvalidArgument,
                    format!("`{}` is a group of settings", name.display()),
                )
                .hint(format!("set one of: {}", keys.join(", "))));
            }
            schema.check(&name.path, &value).map_err(|reason| {
                Error::new(Code::InvalidArgument, format!("`{}`: {reason}", name.display()))
                    .hint(format!("see its value now: rye config get {}", name.display()))
            })?;
            let access = schema.access(&name.path).unwrap_or_default();
            if tier == SpaceTier::Project && access.is_user_only {
                return Err(Error::new(
                    Code::InvalidArgument,
                    format!("`{}` counts from user space only", name.display()),
                )
                .hint("set it there: --space user"));
            }
        }
        let ai = new_item::space_folder(engine, tier)?;
        let item = ItemRef::new(ItemType::Config, name.config.clone());
        let candidates = engine.workspace.spaces.candidate_paths(&item).into_iter();
        let present = candidates
            .filter(|candidate| candidate.is_found)
            .find(|candidate| candidate.space.tier() == tier);
        let (path, before, needs_consent) = match &present {
            Some(candidate) => {
                let located = engine.workspace.spaces.read(&item, candidate)?;
                let report = evaluate(&located, &engine.workspace.keys);
                let own = engine.workspace.own_key.as_ref().map(|key| key.fingerprint());
                let is_own = report.verdict == TrustVerdict::Full
                    && report.signature.as_ref().is_some_and(|line| Some(line.fingerprint) == own);
                let reason = if is_own { None } else { Some(report.verdict.as_str()) };
                let (bytes, _) = file::read_bounded(&candidate.path, MAX_CONFIG_BYTES)
                    .map_err(|error| Error::read(&error))?;
                (candidate.path.clone(), Some(bytes), reason)
            }
            None => (ai.join(format!("config/{}.yaml", name.config)), None, None),
        };
        let text = match &before {
            Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            None => format!("version: \"1.0.0\"\ncategory: \"{}\"\n\n", name.config.category()),
        };
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let after = Some(text).filter(|_| is_yaml).and_then(|text| yaml_edit::set(&text, &name.path, &value));
        let after = after.ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                format!("`{}` cannot be changed without losing something", path.display()),
            )
            .hint(format!(
                "set `{}` in it yourself, then: rye sign config {}",
                name.path.join("."),
                name.config
            ))
        })?;
        Ok(Self { name, value, tier, path, before, after, needs_consent })
    }

    /// Whether the file has this value already.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.before.as_deref() == Some(self.after.as_bytes())
    }

    /// Writes the file and signs it. The caller has the user's consent where it is needed.
    ///
    /// # Errors
    /// When it cannot be written or signed; the file is then unchanged.
    pub fn write(self, engine: &Engine) -> Result<ConfigSetResponse> {
        let response = ConfigSetResponse {
            setting: self.name.display(),
            value: self.value.clone(),
            path: self.path.clone(),
            changed: !self.is_unchanged(),
        };
        if !response.changed {
            return Ok(response);
        }
        engine.signing_key()?;
        let ai = new_item::space_folder(engine, self.tier)?;
        let relative = self.path.strip_prefix(&ai).unwrap_or(Path::new(""));
        file::create_dirs(&ai, self.tier == SpaceTier::User)?;
        file::create_folders_beneath(&ai, relative.parent().unwrap_or(Path::new("")), false)?;
        file::write_atomic(&self.path, self.after.as_bytes(), FileMode::Preserve)?;
        let item = ItemRef::new(ItemType::Config, self.name.config.clone());
        if let Err(error) = sign::sign_item(engine, &item, Some(self.tier)) {
            match &self.before {
                Some(before) => file::write_atomic(&self.path, before, FileMode::Preserve)?,
                None => file::remove(&self.path)?,
            }
            return Err(error);
        }
        Ok(response)
    }
}

/// The value as the setting's type wants it: `true`, `3` and `[\"a\"]` are what they look like, unless a text is wanted.
fn parse_value(schema: Option<&ConfigSchema>, name: &SettingName, text: &str) -> Result<Value> {
    let types = schema.map(|schema| schema.types(&name.path)).unwrap_or_default();
    let parsed = serde_json::from_str::<Value>(text).ok();
    let is_list = types.contains(&"array");
    Ok(match parsed {
        _ if types == ["string"] => json!(text),
        Some(value) => value,
        None if is_list && !text.trim_start().starts_with('[') => {
            text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
        }
        None => json!(text),
    })
}
