//! One warm engine per project, a bounded number of them, each opened anew when what it was opened from has changed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rye_agent::redact::Redactor;
use rye_engine::{Code, Engine, EngineOptions, Error, NativeTools, Result};
use rye_space::{Roots, roots};
use tokio::sync::Notify;

use crate::ServerSetup;
use crate::redaction::{self, RedactorCache};

/// Projects that stay warm; the one not used for longest is forgotten first.
const MAX_ENGINES: usize = 16;

/// The engines of this process.
pub(crate) struct EnginePool {
    setup: ServerSetup,
    slots: Mutex<Vec<EngineSlot>>,
    redactors: RedactorCache,
    /// Told when the engine of the server's own project was opened anew.
    pub(crate) on_reopen: Notify,
}

/// A project and its engine, once it is opened. The most recently used slot is the last.
struct EngineSlot {
    project: Option<PathBuf>,
    engine: Arc<Mutex<Option<Arc<Engine>>>>,
}

/// An engine, and what its user should know if it was opened just now.
pub(crate) struct EngineHandle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) notices: Vec<String>,
}

impl EnginePool {
    pub(crate) fn new(mut setup: ServerSetup) -> Self {
        // One project, one engine, however its path is written.
        setup.roots.project = setup.roots.project.as_deref().map(roots::canonicalize_existing);
        Self { setup, slots: Mutex::default(), redactors: RedactorCache::default(), on_reopen: Notify::new() }
    }

    /// The redactor for what an engine answers.
    ///
    /// # Errors
    /// When its settings cannot be read.
    pub(crate) fn redactor(&self, engine: &Arc<Engine>) -> Result<Arc<Redactor>> {
        self.redactors.for_engine(engine)
    }

    /// The redactor for what is said of the project a client names, whether it can be opened or not.
    pub(crate) fn redactor_for(&self, named: Option<&str>) -> Arc<Redactor> {
        let known = self.engine(named).and_then(|opened| self.redactor(&opened.engine));
        known.unwrap_or_else(|_| Arc::new(redaction::without_engine(&self.setup.host.variables)))
    }

    /// Names of clients that answer questions by themselves.
    ///
    /// # Errors
    /// When the user space cannot be opened.
    pub(crate) fn accepting_clients(&self) -> Result<Vec<String>> {
        Ok(self.open_cached(None)?.engine.workspace.settings.texts("mcp.accepting_clients"))
    }

    /// Patterns of the tools that clients see by their own names. Only the user's config counts.
    ///
    /// # Errors
    /// When the user space cannot be opened.
    pub(crate) fn exposed_patterns(&self) -> Result<Vec<String>> {
        let mut patterns = self.setup.expose.clone();
        patterns.extend(self.open_cached(None)?.engine.workspace.settings.texts("mcp.expose"));
        Ok(patterns)
    }

    pub(crate) fn setup(&self) -> &ServerSetup {
        &self.setup
    }

    /// The engine of the project a client names, or of the server's own. It blocks: files are looked at.
    ///
    /// # Errors
    /// When there is no such folder, it is not approved, or its roots are refused.
    pub(crate) fn engine(&self, project_path: Option<&str>) -> Result<EngineHandle> {
        let project = match project_path {
            Some(path) => self.resolve_project(path)?,
            None => self.setup.roots.project.clone(),
        };
        self.open_cached(project.as_deref())
    }

    fn open_cached(&self, project: Option<&Path>) -> Result<EngineHandle> {
        let slot = self.slot(project);
        let mut cached = lock(&slot);
        if let Some(engine) = cached.as_ref().filter(|engine| engine.workspace.is_current()) {
            return Ok(EngineHandle { engine: Arc::clone(engine), notices: Vec::new() });
        }
        let is_reopened = cached.is_some();
        let engine = Arc::new(self.open_engine(project.map(Path::to_owned))?);
        *cached = Some(Arc::clone(&engine));
        if is_reopened && project == self.setup.roots.project.as_deref() {
            self.on_reopen.notify_one();
        }
        let notices = match (collect_notices(&engine), self.redactor(&engine)) {
            (notices, Ok(redactor)) => notices.into_iter().map(|text| redactor.redact(text)).collect(),
            // The settings that say what is secret cannot be read: the call itself says so.
            (_, Err(_)) => Vec::new(),
        };
        Ok(EngineHandle { engine, notices })
    }

    fn resolve_project(&self, path: &str) -> Result<Option<PathBuf>> {
        let path = self.setup.host.current_dir.join(path);
        if !path.is_dir() {
            let display = rye_item::text::one_line(&path.display().to_string());
            return Err(Error::new(Code::PathNotFound, format!("the project `{display}` is not a folder"))
                .hint("project_path is the absolute path of the folder that holds `.ai/`"));
        }
        let path = roots::canonicalize_existing(&path);
        // A server that was started in user space has no other project.
        if self.setup.roots.project.is_none() && path == roots::canonicalize_existing(&self.setup.roots.user)
        {
            return Ok(None);
        }
        // The server's own project was chosen at its start; any other one needs the user's approval.
        if Some(&path) != self.setup.roots.project.as_ref() && !self.is_approved(&path)? {
            let display = rye_item::text::one_line(&path.display().to_string());
            let word = rye_item::text::shell_word(&display);
            let message = format!("the project `{display}` is not approved");
            return Err(Error::new(Code::ProjectNotApproved, message)
                .hint(format!("ask the user to run: rye trust {word}"))
                .hint("leave project_path out to work in the server's own project"));
        }
        Ok(Some(path))
    }

    /// Whether the user has approved the project with this real path.
    fn is_approved(&self, project: &Path) -> Result<bool> {
        let base = self.open_cached(None)?.engine;
        Ok(base.workspace.approvals.has_project(project.to_str()))
    }

    /// The slot of a project, now the most recently used one.
    fn slot(&self, project: Option<&Path>) -> Arc<Mutex<Option<Arc<Engine>>>> {
        let mut slots = lock(&self.slots);
        let position = slots.iter().position(|slot| slot.project.as_deref() == project);
        let slot = match position {
            Some(index) => slots.remove(index),
            None => EngineSlot { project: project.map(Path::to_owned), engine: Arc::default() },
        };
        let engine = Arc::clone(&slot.engine);
        if slots.len() >= MAX_ENGINES {
            slots.remove(0);
        }
        slots.push(slot);
        engine
    }

    fn open_engine(&self, project: Option<PathBuf>) -> Result<Engine> {
        let roots = Roots { project, ..self.setup.roots.clone() };
        // Development mode never applies here: an agent's client is not the developer at the terminal.
        let options = EngineOptions {
            wants_dev_mode: false,
            is_warm: true,
            host: self.setup.host.clone(),
            natives: NativeTools(rye_agent::hook_tools::native_tools()),
        };
        Engine::open(roots, options, (self.setup.clock)())
    }
}

fn collect_notices(engine: &Engine) -> Vec<String> {
    let workspace = &engine.workspace;
    let ignored = workspace.settings.ignored.iter().map(|ignored| {
        format!("`{}` in {} config is ignored: {}", ignored.key, ignored.space, ignored.reason)
    });
    workspace.notices.iter().cloned().chain(ignored).map(|notice| rye_item::text::one_line(&notice)).collect()
}

/// A panic while an engine was opened leaves none: it is opened again.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
