//! Redactors that were worked out before, one for each project.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rye_engine::{Engine, Result};
use rye_space::file_stamp::{FileGeneration, MonitoredSet, WatchSet, record_reads};

use super::Redactor;

/// Projects whose redactor is kept, and with it every value that was secret in them before.
const MAX_PROJECTS: usize = 1024;

/// One redactor for each project, worked out again when the workspace, its settings or its `.env` have changed. A value
/// that was secret once stays secret: there may be copies of it.
#[derive(Debug, Default)]
pub struct RedactorCache {
    by_project: Mutex<HashMap<Option<PathBuf>, CachedRedactor>>,
}

#[derive(Debug)]
struct CachedRedactor {
    generation: FileGeneration,
    files: MonitoredSet,
    redactor: Arc<Redactor>,
}

impl RedactorCache {
    /// The redactor for what is said of this engine's project.
    ///
    /// # Errors
    /// When its settings cannot be read.
    pub fn for_engine(&self, engine: &Engine) -> Result<Arc<Redactor>> {
        let project = &engine.workspace.roots.project;
        let generation = engine.workspace.generation();
        let mut by_project = self.by_project.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = by_project.get(project);
        if let Some(cached) = previous
            && cached.generation == generation
            && cached.files.is_unchanged()
        {
            return Ok(Arc::clone(&cached.redactor));
        }
        let mut files = WatchSet::default();
        // Stamped before it is read: a change in between is noticed next time.
        files.extend(project.iter().map(|project| project.join(".env")));
        let (redactor, settings) = record_reads(|| Redactor::from_engine(engine));
        files.merge(&settings);
        let redactor = redactor?;
        let redactor = Arc::new(match previous {
            Some(previous) => redactor.merge(&previous.redactor),
            None => redactor,
        });
        if previous.is_some() || by_project.len() < MAX_PROJECTS {
            let files = MonitoredSet::new(files);
            let cached = CachedRedactor { generation, files, redactor: Arc::clone(&redactor) };
            by_project.insert(project.clone(), cached);
        }
        Ok(redactor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{engine, init_world};

    #[test]
    fn changed_dotenv_is_seen_and_old_values_stay() {
        let world = init_world();
        let engine = engine(&world);
        let cache = RedactorCache::default();
        let redact = || {
            let redactor = cache.for_engine(&engine).expect("a redactor");
            redactor.redact_text("first-secret second-secret").into_owned()
        };
        assert_eq!(redact(), "first-secret second-secret");
        world.write("project/.env", "ONE_TOKEN=first-secret\n");
        for _ in 0..4 {
            assert_eq!(redact(), "[redacted:ONE_TOKEN] second-secret");
        }
        world.write("project/.env", "OTHER_TOKEN=second-secret\n");
        assert_eq!(redact(), "[redacted:ONE_TOKEN] [redacted:OTHER_TOKEN]");
    }
}
