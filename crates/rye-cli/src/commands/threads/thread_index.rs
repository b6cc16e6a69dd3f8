//! The threads of this place, as the settings say where it is.

use std::path::PathBuf;

use rye_agent::store::ThreadRow;
use rye_space::Roots;

use crate::live::format;
use crate::settings::{self, Settings};

pub use rye_agent::views::{INTERRUPTED, ThreadIndex, WAITING, resume_command};

impl AsRef<Roots> for Settings {
    fn as_ref(&self) -> &Roots {
        &self.roots
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
