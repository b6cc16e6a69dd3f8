//! The threads of this place, as the settings say where it is.

use std::path::PathBuf;
use std::sync::Arc;

use rye_agent::store::ThreadRow;
use rye_engine::{Engine, Result};
use rye_space::Roots;

use crate::live::format;
use crate::settings::{self, Settings};

use rye_agent::views::ThreadsPlace;
pub use rye_agent::views::{INTERRUPTED, ThreadIndex, WAITING};

impl ThreadsPlace for Settings {
    fn roots(&self) -> &Roots {
        &self.roots
    }

    fn engine(&self) -> Result<Arc<Engine>> {
        Settings::engine(self).map(Arc::new)
    }
}

/// Where threads live.
pub fn threads_dir(settings: &Settings) -> PathBuf {
    settings.roots.threads_dir()
}

/// How long ago a thread was made.
pub fn thread_age(row: &ThreadRow) -> String {
    let created = format::parse_timestamp_ms(&row.created_at);
    let now = settings::now_ms();
    created.map(|created| format::format_age(now.saturating_sub(created))).unwrap_or_default()
}
