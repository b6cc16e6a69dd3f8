//! The engine of each project that clients name: which projects may be opened, and what is reported when one is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rye_agent::redact::{Redactor, RedactorCache};
use rye_engine::{
    Code, Engine, EngineOptions, EngineOrigin, EnginePool, Error, NativeTools, PooledEngine, Result,
};
use rye_space::{Roots, roots};
use tokio::sync::Notify;

use crate::ServerSetup;
use crate::redaction;

/// Projects that stay warm; the one not used for longest is forgotten first.
const MAX_ENGINES: usize = 16;

/// The engines of this process.
pub(crate) struct ProjectEngines {
    setup: Arc<ServerSetup>,
    pool: EnginePool<Option<PathBuf>>,
    redactors: RedactorCache,
    /// Told when the engine of the server's own project was opened again.
    pub(crate) on_reopen: Notify,
}

/// An engine, and what its user should know if it was opened just now.
pub(crate) struct EngineHandle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) notices: Vec<String>,
}

impl ProjectEngines {
    pub(crate) fn new(mut setup: ServerSetup) -> Self {
        // One project, one engine, however its path is written.
        setup.roots.project = setup.roots.project.as_deref().map(roots::canonicalize_existing);
        let setup = Arc::new(setup);
        let opener = Arc::clone(&setup);
        let pool = EnginePool::new(MAX_ENGINES, move |project: &Option<PathBuf>| {
            open_engine(&opener, project.clone())
        });
        Self { setup, pool, redactors: RedactorCache::default(), on_reopen: Notify::new() }
    }

    /// The redactor for what an engine answers.
    ///
    /// # Errors
    /// When its settings cannot be read.
    pub(crate) fn redactor(&self, engine: &Engine) -> Result<Arc<Redactor>> {
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
        Ok(self.open_cached(&None)?.engine.workspace.settings.texts("mcp.accepting_clients"))
    }

    /// Patterns of the tools that clients see by their own names. Only the user's config counts.
    ///
    /// # Errors
    /// When the user space cannot be opened.
    pub(crate) fn exposed_patterns(&self) -> Result<Vec<String>> {
        let mut patterns = self.setup.expose.clone();
        patterns.extend(self.open_cached(&None)?.engine.workspace.settings.texts("mcp.expose"));
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
        self.open_cached(&self.named_project(project_path)?)
    }

    /// The engine of a project that was opened before, as long as the user approves of it.
    ///
    /// # Errors
    /// When it is not approved any more, or cannot be opened again.
    pub(crate) fn project_engine(&self, project: &Option<PathBuf>) -> Result<Arc<Engine>> {
        project.as_deref().map_or(Ok(()), |project| self.check_approved(project))?;
        Ok(self.open_cached(project)?.engine)
    }

    /// The engine of the project a client names, if it is open and nothing has changed since. Nothing is opened.
    pub(crate) fn current_engine(&self, project_path: Option<&str>) -> Option<Arc<Engine>> {
        if project_path.is_some() {
            // What the user approves is asked of this one.
            self.pool.current(&None)?;
        }
        self.pool.current(&self.named_project(project_path).ok()?)
    }

    fn named_project(&self, project_path: Option<&str>) -> Result<Option<PathBuf>> {
        match project_path {
            Some(path) => self.resolve_project(path),
            None => Ok(self.setup.roots.project.clone()),
        }
    }

    fn open_cached(&self, project: &Option<PathBuf>) -> Result<EngineHandle> {
        let PooledEngine { engine, origin } = self.pool.engine(project)?;
        if origin == EngineOrigin::Cached {
            return Ok(EngineHandle { engine, notices: Vec::new() });
        }
        if origin == EngineOrigin::Reopened && *project == self.setup.roots.project {
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
        self.check_approved(&path)?;
        Ok(Some(path))
    }

    /// Refuses a project, by its real path, that the user has not approved. The server's own was chosen at its start.
    fn check_approved(&self, project: &Path) -> Result<()> {
        if Some(project) == self.setup.roots.project.as_deref() {
            return Ok(());
        }
        let base = self.open_cached(&None)?.engine;
        if base.workspace.approvals.has_project(project.to_str()) {
            return Ok(());
        }
        let display = rye_item::text::one_line(&project.display().to_string());
        let word = rye_item::text::shell_word(&display);
        Err(Error::new(Code::ProjectNotApproved, format!("the project `{display}` is not approved"))
            .hint(format!("ask the user to run: rye trust {word}"))
            .hint(format!(
                "if others made it, ask the user to look at who signed it first: rye join --project {word}"
            ))
            .hint("leave project_path out to work in the server's own project"))
    }
}

fn open_engine(setup: &ServerSetup, project: Option<PathBuf>) -> Result<Engine> {
    let roots = Roots { project, ..setup.roots.clone() };
    // Development mode never applies here: an agent's client is not the developer at the terminal.
    let options = EngineOptions {
        wants_dev_mode: false,
        is_warm: true,
        host: setup.host.clone(),
        natives: NativeTools(rye_agent::thread_tools::native_tools()),
    };
    Engine::open(roots, options, (setup.clock)())
}

fn collect_notices(engine: &Engine) -> Vec<String> {
    let workspace = &engine.workspace;
    let ignored = workspace.settings.ignored.iter().map(|ignored| {
        format!("`{}` in {} config is ignored: {}", ignored.key, ignored.space, ignored.reason)
    });
    workspace.notices.iter().cloned().chain(ignored).map(|notice| rye_item::text::one_line(&notice)).collect()
}
