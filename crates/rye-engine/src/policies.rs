//! The settings every run rests on, read once and again when a file that says them changes.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rye_exec::{environment, sandbox};
use rye_item::ItemId;
use rye_item::space::Space;
use rye_item::text::one_line;
use rye_space::AI_FOLDER;
use rye_space::config::{LayerTrust, MergedConfig};
use rye_space::file_stamp::{self, MonitoredSet};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::execute::home_dirs;

/// What of the surroundings reaches a process, and what a process may touch.
#[derive(Clone, Debug)]
pub(crate) struct RunPolicies {
    /// `execution/environment`.
    pub(crate) environment: Arc<environment::EnvironmentPolicy>,
    /// `execution/sandbox`.
    pub(crate) sandbox: Arc<sandbox::SandboxPolicy>,
}

/// The policies as they were read last, and what they were read from.
#[derive(Default)]
pub(crate) struct PolicyCache {
    last: Mutex<Option<(MonitoredSet, RunPolicies)>>,
}

impl PolicyCache {
    /// Forgets everything: keys or settings have changed.
    pub(crate) fn clear(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Engine {
    /// The policies of this workspace.
    ///
    /// # Errors
    /// When a setting is not what it must be.
    pub(crate) fn policies(&self) -> Result<RunPolicies> {
        let mut last = self.policy_cache.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((watched, policies)) = last.as_ref()
            && watched.is_unchanged()
        {
            return Ok(policies.clone());
        }
        let (policies, watched) = file_stamp::record_reads(|| self.read_policies());
        let policies = policies?;
        *last = Some((MonitoredSet::new(watched), policies.clone()));
        Ok(policies)
    }

    fn read_policies(&self) -> Result<RunPolicies> {
        let settings = self.policy_settings("execution/environment")?;
        let environment =
            environment::EnvironmentPolicy::from_settings(&settings.value).map_err(|error| {
                Error::new(Code::Invalid, error.to_string()).hint("rye config show execution/environment")
            })?;
        let settings = self.policy_settings("execution/sandbox")?;
        let sandbox = sandbox::SandboxPolicy::from_settings(&settings.value).map_err(|error| {
            Error::new(Code::Invalid, error.to_string()).hint("settings: rye config show execution/sandbox")
        })?;
        Ok(RunPolicies { environment: Arc::new(environment), sandbox: Arc::new(sandbox) })
    }

    /// The merged settings `id`. What the user has set is never left out: without it, tools could do more than the user
    /// allowed.
    fn policy_settings(&self, id: &str) -> Result<MergedConfig> {
        let (settings, layers) = self.workspace.config_with_layers(&ItemId::new(id)?);
        let is_from_bundle = |path: &Path| {
            layers
                .iter()
                .any(|layer| layer.located.path == *path && matches!(layer.trust, LayerTrust::FromBundle))
        };
        let mut ignored = settings.ignored.iter().filter(|ignored| ignored.space == Space::User);
        let Some(ignored) = ignored.find(|ignored| !is_from_bundle(&ignored.path)) else {
            return Ok(settings);
        };
        let path = one_line(&ignored.path.display().to_string());
        let subject = match ignored.key.as_str() {
            "*" => format!("your settings `{path}` cannot be used"),
            key => format!("`{}` of your settings `{path}` cannot be used", one_line(key)),
        };
        let message = format!("{subject}: {}; nothing runs without them", one_line(&ignored.reason));
        Err(Error::new(Code::Invalid, message)
            .hint(format!("correct the file, then sign it: rye sign config {id}"))
            .hint(format!("see what counts: rye config show {id}")))
    }

    /// What in this project no tool may change or see: for changes that were made on another machine.
    ///
    /// # Errors
    /// When a setting is not what it must be.
    pub fn project_limits(&self) -> Result<sandbox::ProjectLimits> {
        let roots = &self.workspace.roots;
        let project = roots.project.clone().unwrap_or_else(|| roots.cache.join("none"));
        let paths = sandbox::SandboxPaths {
            project_ai: project.join(AI_FOLDER),
            project,
            user_ai: roots.user_ai(),
            home: self.host.home.clone(),
            homes: home_dirs(self),
            approved_projects: Vec::new(),
            program_folders: Vec::new(),
            cache: roots.cache.clone(),
            key_files: self.key_files(),
            temporary: None,
            required: Vec::new(),
        };
        let policy = self.policies()?.sandbox;
        sandbox::ProjectLimits::new(&policy, &paths, &self.host.variables).map_err(|error| {
            Error::new(Code::Invalid, error.to_string()).hint("settings: rye config show execution/sandbox")
        })
    }

    /// Which variables may reach a tool, and which look like secrets.
    ///
    /// # Errors
    /// When a setting is not what it must be.
    pub fn environment_policy(&self) -> Result<Arc<environment::EnvironmentPolicy>> {
        Ok(self.policies()?.environment)
    }
}
