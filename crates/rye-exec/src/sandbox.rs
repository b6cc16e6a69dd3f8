//! From policy to confinement: what the settings say, what the signed tool declares, and where things are, become what a
//! process may touch. The settings bound the tool: it can ask for less, and for paths, never for what is hidden.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};

use lillux::process::ProcessLimits;
use lillux::sandbox::placeholders::{PlaceholderContent, PlaceholderGuard, ReservedName};
use lillux::sandbox::{
    Confinement, MissingRulePolicy, NamespaceMode, NetworkAccess, ReadAccess, Replacement, SocketAccess,
};
use lillux::{CanonicalPathCache, canonicalize_existing};
use rye_item::text::one_line;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::native::ToolAccess;

mod explain;
mod git;
mod git_config;
mod git_index;
mod git_leftovers;
mod git_runs;
mod home_dirs;
mod index_watch;
mod limits;
mod links;
mod new_repositories;
mod project_limits;
mod protected;
mod replaced;
mod repositories;
mod repository_snapshot;
mod visible;

pub use home_dirs::HomeDirs;
use limits::LimitSettings;
pub use project_limits::{ProjectLimit, ProjectLimits};
pub use replaced::ProtectedFiles;
use repositories::Repositories;
pub use repositories::{PlantedRepository, RepositoryGuard};

/// Parts of a project's `.ai` that tools read but do not change.
const READ_ONLY_IN_PROJECT: [&str; 4] = ["threads", "config", "lockfiles", "bundles"];

/// The part of a project's `.ai` that tools do not see, once it is there.
const THREADS_FOLDER: &str = "threads";

/// Parts of the user's `.ai` that tools may read.
const VISIBLE_IN_USER_SPACE: [&str; 3] = ["tools", "directives", "knowledge"];

/// How much a process is held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxLevel {
    /// Nothing: only the user's own settings can say so.
    Off,
    /// Writes stay in the project, secrets stay hidden.
    #[default]
    Standard,
    /// Only what is declared.
    Strict,
}

/// The `sandbox` settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxPolicy {
    #[serde(default)]
    level: SandboxLevel,
    #[serde(default = "refuse")]
    on_missing: MissingRulePolicy,
    #[serde(default)]
    network: bool,
    #[serde(default)]
    hidden: Vec<String>,
    #[serde(default)]
    home_read: Vec<String>,
    #[serde(default)]
    read_only: Vec<String>,
    #[serde(default)]
    protected: Vec<String>,
    #[serde(default)]
    allow_sockets: Vec<String>,
    /// What older settings had: sockets to close.
    sockets: Option<Value>,
    #[serde(default)]
    system_read: Vec<String>,
    #[serde(default)]
    allowed_hosts: Vec<String>,
    #[serde(default)]
    limits: LimitSettings,
}

impl SandboxPolicy {
    /// The policy that the settings say.
    ///
    /// # Errors
    /// When they are not understood.
    pub fn from_settings(settings: &Value) -> Result<Self, SandboxError> {
        let policy: Self = parse_object(settings).map_err(|reason| SandboxError::InvalidPolicy { reason })?;
        if policy.sockets.is_some() {
            let reason = "`sockets` listed sockets to close, and all are closed now: remove it, and list those that \
                tools may connect to in `allow_sockets`";
            return Err(SandboxError::InvalidPolicy { reason: reason.to_owned() });
        }
        if let Some(name) = policy.protected.iter().find(|name| !is_absolute_path(&Path::new("/").join(name)))
        {
            let reason = format!("`{}` in `protected` is not a path inside the project", one_line(name));
            return Err(SandboxError::InvalidPolicy { reason });
        }
        Ok(policy)
    }
}

fn refuse() -> MissingRulePolicy {
    MissingRulePolicy::Refuse
}

/// What a signed tool declares.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SandboxDeclaration {
    level: Option<SandboxLevel>,
    network: Option<bool>,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default)]
    write: Vec<String>,
    #[serde(default)]
    allow_sockets: Vec<String>,
    #[serde(default)]
    allowed_hosts: Vec<String>,
    /// What it may ask of `rye` while a thread runs it, of what the thread may do.
    grants: Option<Vec<String>>,
    #[serde(default)]
    limits: LimitSettings,
}

/// Where things are on this machine. All absolute.
#[derive(Clone, Debug)]
pub struct SandboxPaths {
    /// The project's folder.
    pub project: PathBuf,
    /// Its `.ai`.
    pub project_ai: PathBuf,
    /// The user's `.ai`.
    pub user_ai: PathBuf,
    /// The user's home.
    pub home: PathBuf,
    /// All homes on this machine.
    pub homes: HomeDirs,
    /// Projects that the user approved, this one or others.
    pub approved_projects: Vec<PathBuf>,
    /// The folders programs are looked for in.
    pub program_folders: Vec<PathBuf>,
    /// The cache folder.
    pub cache: PathBuf,
    /// The folder of the signing key, and a file with its passphrase.
    pub key_files: Vec<PathBuf>,
    /// The run's own temporary folder, which exists; what is not a process has none. The folder it lies in holds those of other
    /// runs, and is closed.
    pub temporary: Option<PathBuf>,
    /// What the run itself must be able to read: the tool's folder, its interpreter, its dependencies.
    pub required: Vec<PathBuf>,
}

/// What a run may do.
#[derive(Clone, Debug)]
pub struct SandboxPlan {
    /// How much it is held to.
    pub level: SandboxLevel,
    /// Its bounds.
    pub limits: ProcessLimits,
    /// What it may touch.
    pub access: ToolAccess,
    /// What it may ask of `rye` while a thread runs it; all the thread may do, if it declares nothing.
    pub grants: Option<Vec<String>>,
    read: ReadAccess,
    homes: Vec<PathBuf>,
    visible: Vec<PathBuf>,
    visible_links: Vec<Replacement>,
    reserved: Vec<ReservedName>,
    project: PathBuf,
    repositories: Repositories,
    cache: PathBuf,
    sockets: SocketAccess,
    on_missing: MissingRulePolicy,
}

/// What a process may touch, with what exists for as long as it runs.
#[derive(Debug)]
pub struct ActiveConfinement {
    /// What it may touch.
    pub confinement: Confinement,
    /// Names that are reserved meanwhile.
    pub placeholders: PlaceholderGuard,
    /// What is protected, as it was before.
    pub protected: ProtectedFiles,
    /// Looks at the repositories when the run is over.
    pub repositories: RepositoryGuard,
}

impl SandboxPlan {
    /// For a process. `None` when the policy is off.
    ///
    /// # Errors
    /// When a reserved name cannot be protected.
    pub fn confine(&self) -> std::io::Result<Option<ActiveConfinement>> {
        let Some(mut confinement) = self.confine_new_folder() else { return Ok(None) };
        let is_writable = |path: &Path| self.access.write.iter().any(|root| path.starts_with(root));
        let mut reserved = self.reserved.clone();
        reserved.retain(|name| is_writable(&name.path));
        let records = self.cache.join("placeholders");
        let placeholders = PlaceholderGuard::acquire(&records, &self.project, &reserved)?;
        confinement.read_only.extend(placeholders.existing.iter().cloned());
        confinement.placeholders.clone_from(&placeholders.placeholders);
        if let Some(layout) = &self.repositories.own {
            let exclude = protected::git_exclude(&placeholders.placeholders, layout, &self.cache);
            confinement.replacements.extend(exclude);
        }
        let links =
            self.repositories.layouts().filter_map(|layout| protected::link_file(layout, &self.cache));
        confinement.replacements.extend(links);
        let repositories =
            RepositoryGuard::begin(&self.repositories, &self.access.write, &self.cache, &self.project);
        let protected = ProtectedFiles::before_run(&confinement);
        Ok(Some(ActiveConfinement { confinement, placeholders, protected, repositories }))
    }

    /// For a process that works in a folder that was just made: no name in it is reserved.
    #[must_use]
    pub fn confine_new_folder(&self) -> Option<Confinement> {
        if self.level == SandboxLevel::Off {
            return None;
        }
        let ToolAccess { write, hidden, read_only, protected: _, network, allowed_hosts: _ } = &self.access;
        let is_writable = |path: &Path| write.iter().any(|root| path.starts_with(root));
        // What is not there need not be hidden, unless the run could make it.
        let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
        let hidden = hidden.iter().filter(|path| is_there(path) || is_writable(path));
        // Everything else is read-only anyway.
        let reserved: HashSet<&Path> = self.reserved.iter().map(|name| name.path.as_path()).collect();
        let is_reserved = |path: &Path| reserved.contains(path);
        // In a git folder a process may write: what must stay as it is there is reserved.
        let is_git_dir = |path: &Path| self.repositories.git_dirs().any(|folder| folder == path);
        let read_only =
            read_only.iter().filter(|path| is_writable(path) && !is_reserved(path) && !is_git_dir(path));
        Some(Confinement {
            read: self.read.clone(),
            write: write.clone(),
            read_only: read_only.cloned().collect(),
            placeholders: Vec::new(),
            replacements: Vec::new(),
            hidden: hidden.cloned().collect(),
            homes: self.homes.clone(),
            visible: self.visible.clone(),
            visible_links: self.visible_links.clone(),
            sockets: self.sockets.clone(),
            network: if *network { NetworkAccess::Open } else { NetworkAccess::Closed },
            on_missing: self.on_missing,
            namespaces: NamespaceMode::Auto,
        })
    }

    /// Lets a process see more of the homes: paths that are the user's own to name.
    pub fn add_visible(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let mut known = CanonicalPathCache::default();
        for path in paths {
            visible::see(&path, &mut known, &mut self.visible, &mut self.visible_links);
        }
    }

    /// For what touches nothing: it may not.
    #[must_use]
    pub fn deny_all() -> Self {
        Self {
            level: SandboxLevel::Strict,
            limits: ProcessLimits::default(),
            access: ToolAccess::default(),
            grants: Some(Vec::new()),
            read: ReadAccess::Only(Vec::new()),
            homes: Vec::new(),
            visible: Vec::new(),
            visible_links: Vec::new(),
            reserved: Vec::new(),
            project: PathBuf::new(),
            repositories: Repositories::default(),
            cache: PathBuf::new(),
            sockets: SocketAccess::default(),
            on_missing: MissingRulePolicy::Refuse,
        }
    }
}

/// Why no plan could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The settings are not understood.
    #[error("the `sandbox` settings are not understood: {reason}; correct execution/sandbox.yaml")]
    InvalidPolicy {
        /// What is wrong.
        reason: String,
    },
    /// The tool's declaration is not understood.
    #[error("the tool's `sandbox` is not understood: {reason}; correct the tool and sign it again")]
    InvalidDeclaration {
        /// What is wrong.
        reason: String,
    },
    /// The tool asks for what it may not have.
    #[error("the tool asks for `{path}`, {reason}")]
    Denied {
        /// What it asks for.
        path: String,
        /// Why it may not.
        reason: &'static str,
    },
}

/// Makes the plan of a run. `variables` are those of the caller that the settings may name (`$SSH_AUTH_SOCK`).
///
/// # Errors
/// When the settings' paths or the declaration are not understood, or the tool asks for what it may not have.
pub fn plan(
    policy: &SandboxPolicy,
    declared: Option<&Value>,
    paths: &SandboxPaths,
    variables: &BTreeMap<String, String>,
) -> Result<SandboxPlan, SandboxError> {
    let declared: SandboxDeclaration = declared
        .map_or_else(|| Ok(SandboxDeclaration::default()), parse_object)
        .map_err(|reason| SandboxError::InvalidDeclaration { reason })?;
    let paths = &SandboxPaths { home: canonicalize_existing(&paths.home), ..paths.clone() };
    let level = declared.level.map_or(policy.level, |level| level.max(policy.level));
    let limits = policy
        .limits
        .tightened_by(&LimitSettings::default())
        .and_then(|_| policy.limits.tightened_by(&declared.limits))?;
    let allowed_hosts = [policy.allowed_hosts.clone(), declared.allowed_hosts.clone()].concat();
    // A tool that asks for the strict level is not run with less.
    let on_missing =
        if level == SandboxLevel::Strict { MissingRulePolicy::Refuse } else { policy.on_missing };
    if level == SandboxLevel::Off {
        let access = ToolAccess {
            write: vec![PathBuf::from("/")],
            hidden: paths.key_files.clone(),
            read_only: Vec::new(),
            protected: Vec::new(),
            network: true,
            allowed_hosts,
        };
        return Ok(SandboxPlan {
            level,
            limits,
            access,
            grants: declared.grants,
            on_missing,
            ..SandboxPlan::deny_all()
        });
    }
    let mut hidden = resolve_setting_paths(&policy.hidden, paths, variables)?;
    hidden.extend(paths.key_files.iter().cloned());
    // What other threads were told is read through the tools of threads, which look at whose it is.
    let threads = paths.project_ai.join(THREADS_FOLDER);
    hidden.extend(Some(threads).filter(|folder| folder.is_dir()));
    let always_read_only = always_read_only(policy, paths, variables)?;
    let repositories = Repositories::check_and_find(&paths.project, &paths.approved_projects, &paths.cache);
    let inner_threads = repositories.inner_projects.iter().map(|inner| inner.folder.join(".ai/threads"));
    hidden.extend(inner_threads.filter(|folder| folder.is_dir()));
    let hidden_paths: HashSet<&Path> = hidden.iter().map(PathBuf::as_path).collect();
    let mut reserved = protected::reserved_names(&policy.protected, &paths.project, &repositories);
    reserved.retain(|name| !hidden_paths.contains(name.path.as_path()));
    let mut write: Vec<PathBuf> = paths.temporary.iter().map(|path| canonicalize_existing(path)).collect();
    // A home is never open as a whole, and neither is what holds one.
    let project = canonicalize_existing(&paths.project);
    let is_project_open = level == SandboxLevel::Standard && !paths.homes.is_or_contains_home(&project);
    if is_project_open {
        write.push(project);
        write.extend(repositories.writable_folders());
    }
    // A signed tool may ask for a protected path by its name, and not through a link to it.
    let declared_names: Vec<PathBuf> = declared
        .write
        .iter()
        .filter_map(|text| {
            Some(paths.project.join(text.strip_prefix("{project_path}/")?.trim_end_matches('/')))
        })
        .collect();
    reserved.retain(|name| !declared_names.contains(&name.path));
    let mut read_only = always_read_only;
    read_only.retain(|path| !hidden_paths.contains(path.as_path()));
    read_only.extend(reserved.iter().map(|name| name.path.clone()));
    let mut declared_write = Vec::new();
    let settings_folders: Vec<PathBuf> = [paths.project.join(".git"), paths.project_ai.clone()]
        .into_iter()
        .chain(repositories.git_dirs().map(Path::to_owned))
        .chain(read_only.iter().cloned())
        .collect();
    for text in &declared.write {
        let path = resolve_declared_path(text, paths, &hidden, &read_only)?;
        links::check_write(text, &path, paths, &settings_folders)?;
        declared_write.push(path);
    }
    write.extend(declared_write.iter().cloned());
    let mut declared_read = Vec::new();
    for text in &declared.read {
        declared_read.push(resolve_declared_path(text, paths, &hidden, &[])?);
    }
    let read = match level {
        SandboxLevel::Off | SandboxLevel::Standard => ReadAccess::Everything,
        SandboxLevel::Strict => {
            let mut read = resolve_setting_paths(&policy.system_read, paths, variables)?;
            read.extend(paths.required.iter().cloned());
            read.extend(declared_read.iter().cloned());
            ReadAccess::Only(read)
        }
    };
    let mut visible = [declared_write, declared_read].concat();
    let mut visible_links = Vec::new();
    // What is not a process has no temporary folder, and sees no folder by itself.
    if paths.temporary.is_some() {
        let mut known = CanonicalPathCache::default();
        for path in visible::in_homes(policy, paths, variables, is_project_open)? {
            visible::see(&path, &mut known, &mut visible, &mut visible_links);
        }
    }
    let mut allowed = resolve_setting_paths(&policy.allow_sockets, paths, variables)?;
    for text in &declared.allow_sockets {
        allowed.push(resolve_declared_path(text, paths, &hidden, &[])?);
    }
    let sockets = SocketAccess { own: paths.temporary.iter().cloned().collect(), allowed };
    let network = policy.network && declared.network.unwrap_or(level != SandboxLevel::Strict);
    // A native tool has no business in a git folder: git's own files are not text.
    read_only.extend(repositories.git_dirs().map(Path::to_owned));
    let protected = reserved.iter().map(|name| name.path.clone()).collect();
    let access = ToolAccess { write, hidden, read_only, protected, network, allowed_hosts };
    Ok(SandboxPlan {
        level,
        limits,
        access,
        grants: declared.grants,
        read,
        homes: closed_folders(paths),
        visible,
        visible_links,
        // Without a project, a run works in its temporary folder, which is its own.
        reserved: match is_project_open && paths.temporary.as_ref() != Some(&paths.project) {
            true => with_lockfiles_folder(reserved, paths),
            false => Vec::new(),
        },
        project: paths.project.clone(),
        repositories,
        cache: paths.cache.clone(),
        sockets,
        on_missing,
    })
}

/// The homes, and the folder that holds the temporary folders of all runs.
fn closed_folders(paths: &SandboxPaths) -> Vec<PathBuf> {
    let temporary = paths.temporary.as_deref().map(canonicalize_existing);
    let of_runs = temporary.as_deref().and_then(Path::parent).map(Path::to_owned);
    paths.homes.all.iter().cloned().chain(of_runs).collect()
}

/// What no tool changes, whatever it asks for.
fn always_read_only(
    policy: &SandboxPolicy,
    paths: &SandboxPaths,
    variables: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, SandboxError> {
    let mut read_only: Vec<PathBuf> =
        READ_ONLY_IN_PROJECT.iter().map(|name| paths.project_ai.join(name)).collect();
    read_only.extend([paths.project.join("lockfiles"), paths.user_ai.clone(), paths.cache.clone()]);
    for text in &policy.read_only {
        read_only.push(match text.strip_prefix("{project_path}/") {
            Some(rest) if is_absolute_path(&Path::new("/").join(rest)) => paths.project.join(rest),
            Some(_) | None => {
                resolve_setting_paths(std::slice::from_ref(text), paths, variables)?.pop().unwrap_or_default()
            }
        });
    }
    read_only.retain(|path| path.is_absolute());
    Ok(read_only)
}

/// The project's folder of lockfiles is reserved as well: one that a tool makes would be read.
fn with_lockfiles_folder(mut reserved: Vec<ReservedName>, paths: &SandboxPaths) -> Vec<ReservedName> {
    reserved
        .push(ReservedName { path: paths.project.join("lockfiles"), content: PlaceholderContent::Folder });
    reserved
}

/// A list would pass for a record of that many fields.
fn parse_object<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    if !value.is_object() {
        return Err("it has no keys".to_owned());
    }
    T::deserialize(value).map_err(|error| one_line(&error.to_string()))
}

/// Paths of the settings: absolute, below home (`~/x`), or in a variable (`$X`). A variable that is not set, or holds no
/// absolute path, names nothing.
fn resolve_setting_paths(
    texts: &[String],
    sandbox_paths: &SandboxPaths,
    variables: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, SandboxError> {
    let mut paths = Vec::new();
    let mut known = HashSet::new();
    for text in texts {
        let own = std::iter::once(&sandbox_paths.home).chain(&sandbox_paths.homes.own);
        let below: Vec<PathBuf> = match text.strip_prefix('$') {
            Some(name) => variables
                .get(name)
                .map(PathBuf::from)
                .filter(|path| is_absolute_path(path))
                .into_iter()
                .collect(),
            None if text == "~" => own.cloned().collect(),
            None => match text.strip_prefix("~/") {
                Some(rest) => own.map(|home| home.join(rest)).collect(),
                None => vec![PathBuf::from(text)],
            },
        };
        if below.iter().any(|path| !is_absolute_path(path)) {
            let reason = format!("`{}` is not an absolute path without `..`", one_line(text));
            return Err(SandboxError::InvalidPolicy { reason });
        }
        paths.extend(below.into_iter().filter(|path| known.insert(path.clone())));
    }
    Ok(paths)
}

/// A path a tool asks for: below the project (`{project_path}/x`), below home (`~/x`), or absolute. A link in the
/// project or the home folder cannot lead it elsewhere.
fn resolve_declared_path(
    text: &str,
    paths: &SandboxPaths,
    hidden: &[PathBuf],
    read_only: &[PathBuf],
) -> Result<PathBuf, SandboxError> {
    let denied = |reason| SandboxError::Denied { path: one_line(text), reason };
    let below = |base: &Path, rest: &str| {
        let rest = rest.trim_start_matches('/');
        if !is_absolute_path(&Path::new("/").join(rest)) {
            return Err(denied("which leads upwards"));
        }
        let (base, path) = (canonicalize_existing(base), canonicalize_existing(&base.join(rest)));
        if path.starts_with(&base) { Ok(path) } else { Err(denied("which a link leads elsewhere")) }
    };
    let starts =
        |prefix: &str| text.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let path = if let Some(rest) = starts("{project_path}") {
        below(&paths.project, rest)?
    } else if let Some(rest) = starts("~") {
        below(&paths.home, rest)?
    } else if is_absolute_path(Path::new(text)) {
        canonicalize_existing(Path::new(text))
    } else {
        return Err(denied("which is neither absolute nor below `{project_path}` or `~`"));
    };
    let lies_in =
        |others: &[PathBuf]| others.iter().any(|other| path.starts_with(canonicalize_existing(other)));
    if lies_in(hidden) {
        return Err(denied("which is hidden from tools"));
    }
    if lies_in(read_only) {
        return Err(denied("which tools do not change"));
    }
    Ok(path)
}

fn is_absolute_path(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| part == Component::ParentDir)
}

#[cfg(test)]
#[path = "sandbox_tests.rs"]
mod tests;
