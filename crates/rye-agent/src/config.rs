//! Reading the configuration of threads from a workspace.
//!
//! Files merge system → user → project, judged key by key like every config (`rye_space::config`). What counts is checked
//! whole before it is used: every mistake of every file at once, with its place. The types are `rye_thread::config`'s.

mod check;
mod hook_origins;
#[cfg(test)]
mod keys_test;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, Space};
use rye_space::Workspace;
use rye_space::config::{Ignored, Layer, Standing};
use rye_space::stamp::Watched;
use rye_trust::Subject;
use serde_json::{Map, Value};

pub use check::check;
pub use rye_thread::config::*;

/// Reads the configuration of a workspace.
///
/// # Errors
/// Every mistake in every file that counts, with its place.
pub fn load(workspace: &Workspace) -> Result<Config> {
    read(workspace, true)
}

/// The same for those who only end, wait for or look at threads: files that cannot be read are left out.
///
/// # Errors
/// The other mistakes.
pub fn load_readable(workspace: &Workspace) -> Result<Config> {
    read(workspace, false)
}

fn read(workspace: &Workspace, is_strict: bool) -> Result<Config> {
    let mut values = Map::new();
    let mut notices = Vec::new();
    let mut mistakes = Vec::new();
    for name in NAMES {
        let id = ItemId::new(format!("agent/{name}"))?;
        let (merged, layers) = workspace.config_with_layers(&id);
        // A file that cannot be read may have said less, or guarded something: nothing is run as if it were not there.
        // A bundle that nobody approved says nothing either way.
        let is_unread =
            |told: &&Ignored| is_strict && told.key == "*" && !matches!(told.space, Space::System(_));
        let (unread, ignored): (Vec<_>, Vec<_>) = merged.ignored.iter().partition(is_unread);
        mistakes.extend(unread.into_iter().map(|told| Mistake {
            file: told.path.display().to_string(),
            position: told.position,
            key: String::new(),
            message: told.reason.clone(),
        }));
        for told in ignored.into_iter().chain(&merged.unsigned).chain(&merged.flat) {
            let place = told.position.map(|position| format!(":{position}")).unwrap_or_default();
            notices.push(format!("{}{place}: {}: {}", told.path.display(), told.key, told.reason));
        }
        let counting: Vec<&Layer> = layers.iter().filter(|layer| counts(layer)).collect();
        if let Some(schema) = workspace.schema_for(&id) {
            // The binary's own files are held by tests.
            let own = |layer: &&&Layer| !matches!(layer.located.space(), Space::System(_));
            for layer in counting.iter().filter(own) {
                let text = String::from_utf8_lossy(layer.located.bytes()).into_owned();
                let fields = &layer.located.parsed().fields;
                mistakes.extend(check::check_file(name, fields, schema, &layer.located.path, &text));
            }
        }
        let value = match name {
            "hooks" => hook_origins::concatenated(&counting, &mut notices),
            "hook_conditions" => hook_origins::with_origins(merged.value, &counting, &mut notices),
            _ => merged.value,
        };
        values.insert(name.to_owned(), value);
    }
    if !mistakes.is_empty() {
        return Err(check::refusal(&mistakes));
    }
    let mut config = from_values(&values)?;
    config.notices = notices;
    Ok(config)
}

fn from_values(values: &Map<String, Value>) -> Result<Config> {
    Config::from_values(values).map_err(|wrong| check::refusal(&wrong.0))
}

/// Whether a file counts as a whole. (Of others only keys marked safe do, and those are checked when they are merged.)
fn counts(layer: &Layer) -> bool {
    match (layer.standing, layer.located.space()) {
        (Standing::Vouched, _) | (Standing::Unsigned, Space::User) => true,
        // Nothing that decides about threads is taken from a bundle that is installed among other items.
        (
            Standing::Unsigned
            | Standing::Doubtful(_)
            | Standing::NotApproved
            | Standing::Installed
            | Standing::OutOfScope(_),
            _,
        ) => false,
    }
}

/// The configuration of a warm process: read again when a file that could say something has changed, come or gone, or
/// the workspace was opened anew.
#[derive(Debug, Default)]
pub struct Cache {
    last: Mutex<Option<Kept>>,
}

#[derive(Debug)]
struct Kept {
    files: Watched,
    opened_from: Watched,
    config: Arc<Config>,
}

impl Cache {
    /// The configuration of this workspace.
    ///
    /// # Errors
    /// As [`load`].
    pub fn load(&self, workspace: &Workspace) -> Result<Arc<Config>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = last.as_ref()
            && kept.opened_from == *workspace.opened_from()
            && kept.files.is_unchanged()
        {
            return Ok(Arc::clone(&kept.config));
        }
        // Watched before it is read: a change in between is noticed next time.
        let ids = NAMES.map(|name| format!("agent/{name}"));
        let files = workspace.watched_configs(&ids.each_ref().map(String::as_str));
        let config = Arc::new(load(workspace)?);
        let opened_from = workspace.opened_from().clone();
        *last = Some(Kept { files, opened_from, config: Arc::clone(&config) });
        Ok(config)
    }
}

fn refused(message: String) -> Error {
    Error::new(Code::ThreadConfig, message).hint("rye config show")
}
