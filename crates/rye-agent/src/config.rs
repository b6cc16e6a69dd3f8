//! Reading the configuration of threads from a workspace.
//!
//! Files merge system → user → project, judged key by key like every config (`rye_space::config`). What counts is checked
//! whole before it is used: every mistake of every file at once, with its place. The types are `rye_thread::config`'s.

mod check;
mod hook_origins;
#[cfg(test)]
mod key_coverage;
#[cfg(test)]
pub(crate) mod tests;
mod watched;

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, Space};
use rye_space::Workspace;
use rye_space::config::{ConfigLayer, IgnoredSetting, LayerTrust, invalid_reason, sign_command};
use rye_trust::Subject;
use serde_json::{Map, Value};

pub use check::check;
pub use rye_thread::config::*;
pub(crate) use watched::WatchedConfig;

/// Reads the configuration of a workspace.
///
/// # Errors
/// Every mistake in every file that counts, with its place.
pub fn load(workspace: &Workspace) -> Result<ThreadConfig> {
    read(workspace, true)
}

/// The same for those who only end, wait for or look at threads: files that cannot be read are left out.
///
/// # Errors
/// The other mistakes.
pub fn load_lenient(workspace: &Workspace) -> Result<ThreadConfig> {
    read(workspace, false)
}

fn read(workspace: &Workspace, is_strict: bool) -> Result<ThreadConfig> {
    let mut values = Map::new();
    let mut notices = Vec::new();
    let mut mistakes = Vec::new();
    for name in CONFIG_NAMES {
        let id = ItemId::new(format!("agent/{name}"))?;
        let (merged, layers) = workspace.config_with_layers(&id);
        // A file that cannot be read may have said less, or guarded something: nothing is run as if it were not there.
        // A bundle that is not approved says nothing either way.
        let is_unread = |ignored_key: &&IgnoredSetting| {
            is_strict && ignored_key.key == "*" && !matches!(ignored_key.space, Space::System(_))
        };
        let (unread, ignored): (Vec<_>, Vec<_>) = merged.ignored.iter().partition(is_unread);
        mistakes.extend(unread.into_iter().map(|ignored_key| ConfigDiagnostic {
            file: ignored_key.path.display().to_string(),
            position: ignored_key.position,
            key: String::new(),
            message: ignored_key.reason.clone(),
        }));
        if is_strict {
            mistakes.extend(layers.iter().filter_map(changed_since_signed));
        }
        for ignored_key in ignored.into_iter().chain(&merged.unsigned).chain(&merged.flat_files) {
            let place = ignored_key.position.map(|position| format!(":{position}")).unwrap_or_default();
            notices.push(format!(
                "{}{place}: {}: {}",
                ignored_key.path.display(),
                ignored_key.key,
                ignored_key.reason
            ));
        }
        let effective: Vec<&ConfigLayer> = layers.iter().filter(|layer| is_effective(layer)).collect();
        if let Some(schema) = workspace.schema_for(&id) {
            // The binary's own files are held by tests.
            let is_user_file = |layer: &&&ConfigLayer| !matches!(layer.located.space(), Space::System(_));
            for layer in effective.iter().filter(is_user_file) {
                let text = String::from_utf8_lossy(layer.located.bytes()).into_owned();
                let fields = &layer.located.parsed().fields;
                mistakes.extend(check::check_file(name, fields, schema, &layer.located.path, &text));
            }
        }
        let value = match name {
            "hooks" => hook_origins::concatenated(&effective, &mut notices),
            "hook_conditions" => hook_origins::with_origins(merged.value, &effective, &mut notices),
            _ => merged.value,
        };
        values.insert(name.to_owned(), value);
    }
    if !mistakes.is_empty() {
        return Err(check::diagnostics_error(&mistakes));
    }
    let mut config = from_values(&values)?;
    config.notices = notices;
    Ok(config)
}

fn from_values(values: &Map<String, Value>) -> Result<ThreadConfig> {
    ThreadConfig::from_values(values).map_err(|errors| check::diagnostics_error(&errors.0))
}

/// The mistake of a user's own file with an invalid signature, which may have set a limit or a guard.
fn changed_since_signed(layer: &ConfigLayer) -> Option<ConfigDiagnostic> {
    let LayerTrust::Invalid(verdict) = layer.trust else { return None };
    let space = layer.located.space();
    (*space == Space::User).then(|| ConfigDiagnostic {
        file: layer.located.path.display().to_string(),
        position: None,
        key: String::new(),
        message: format!(
            "{}; sign it again: {}",
            invalid_reason(verdict),
            sign_command(layer.located.item_ref(), space)
        ),
    })
}

/// Whether a file counts as a whole. (Of others only keys marked safe do, and those are checked when they are merged.)
fn is_effective(layer: &ConfigLayer) -> bool {
    match (layer.trust, layer.located.space()) {
        (LayerTrust::Trusted, _) | (LayerTrust::Unsigned, Space::User) => true,
        // Nothing that decides about threads is taken from a bundle that is installed among other items.
        (
            LayerTrust::Unsigned
            | LayerTrust::Invalid(_)
            | LayerTrust::NotApproved
            | LayerTrust::FromBundle
            | LayerTrust::OutOfScope(_),
            _,
        ) => false,
    }
}

/// The configuration of a warm process: read again when a file that could say something has changed, come or gone, or
/// the workspace was opened again.
#[derive(Debug, Default)]
pub struct ConfigCache(WatchedConfig<ThreadConfig>);

impl ConfigCache {
    /// The configuration of this workspace.
    ///
    /// # Errors
    /// As [`load`].
    pub fn load(&self, workspace: &Workspace) -> Result<Arc<ThreadConfig>> {
        self.0.current(workspace, load)
    }
}

fn config_error(message: String) -> Error {
    Error::new(Code::ThreadConfig, message).hint("rye config show")
}
