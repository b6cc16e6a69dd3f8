//! What surrounds a tool's run: its verified files staged, its environment, its folder, its sandbox, and from all that
//! what exactly is run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::file::LockedTempDir;
use lillux::lockfile::LockedFile;
use rye_exec::anchor::{self, Anchor};
use rye_exec::environment::{self, Contribution, Environment, TemplateContext};
use rye_exec::invocation::{self, InvocationInputs};
use rye_exec::staging::{self, ImportRules, StagingError, StagingRequest};
use rye_exec::{Chain, Element, Invocation, Primitive, sandbox};
use rye_item::{ItemRef, ItemType, Space};
use rye_space::AI_FOLDER;
use rye_space::bundle::BundleOrigin;
use serde_json::{Map, Value, json};

use super::ExecuteRequest;
use super::importable::{Importable, tools_folder, verified_file};
use super::missing_program;
use super::packages::{self, InstalledPackages, PackageRequest};
use super::program_finder::{FinderInputs, SandboxedFinder};
use super::run_dirs;
use super::timeout_source::MAX_TIMEOUT_SETTING;
use super::tool::RunMessages;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::policies::RunPolicies;
use crate::programs::ProgramCollector;

/// A tool's files, verified and where they are run from.
#[derive(Debug)]
pub(super) struct StagedRun {
    pub(super) context: TemplateContext,
    pub(super) anchor: Option<Anchor>,
    pub(super) verified_deps: Option<Vec<LockedFile>>,
    package_request: Option<PackageRequest>,
}

/// What one call gives to a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallInputs<'a> {
    pub(super) request: &'a ExecuteRequest,
    pub(super) parameters: &'a Map<String, Value>,
    pub(super) config: Option<&'a Value>,
}

/// Everything around a run.
#[derive(Debug)]
pub(super) struct RunPlan {
    pub(super) invocation: Invocation,
    pub(super) environment: Environment,
    pub(super) sandbox: sandbox::SandboxPlan,
    /// The folder the tool works in.
    pub(super) cwd: PathBuf,
    /// The tool's own temporary folder.
    pub(super) temporary: Option<LockedTempDir>,
    /// The packages the tool asks for.
    pub(super) packages: Option<InstalledPackages>,
}

impl RunPlan {
    pub(super) fn sandbox_summary(&self) -> Value {
        let is_confined = self.sandbox.level != sandbox::SandboxLevel::Off;
        json!({
            "level": self.sandbox.level,
            "network": self.sandbox.access.network,
            "write": is_confined.then(|| display_paths(&self.sandbox.access.write)),
        })
    }
}

fn display_paths(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// The folder tools work in: the project's, else the current one.
fn working_folder(engine: &Engine) -> PathBuf {
    engine.workspace.roots.project.clone().unwrap_or_else(|| engine.host.current_dir.clone())
}

/// The places of a tool at `tool`.
pub(crate) fn template_context(engine: &Engine, tool: &Path) -> TemplateContext {
    let text = |path: &Path| path.display().to_string();
    let folder = tool.parent().unwrap_or(tool);
    TemplateContext {
        tool_path: text(tool),
        tool_dir: text(folder),
        tool_parent: text(folder.parent().unwrap_or(folder)),
        anchor_path: text(folder),
        runtime_lib: String::new(),
        project_path: text(&working_folder(engine)),
        user_space: text(&engine.workspace.roots.user),
        system_space: system_space(engine),
    }
}

/// The first bundle that is a folder; those inside the binary have no place of their own.
fn system_space(engine: &Engine) -> String {
    let bundles = engine.workspace.spaces.bundles().iter();
    let mut folders = bundles.filter_map(|bundle| match &bundle.origin {
        BundleOrigin::Folder(path) => Some(path.display().to_string()),
        BundleOrigin::Embedded(_) => None,
    });
    folders.next().unwrap_or_default()
}

/// Stages what a process will run: the tool, and what it may import, as verified.
///
/// # Errors
/// When a file it may import is not verified, or the cache cannot be written.
pub(super) fn stage(
    engine: &Engine,
    chain: &Chain,
    package_request: Option<PackageRequest>,
    messages: &mut RunMessages,
) -> Result<StagedRun> {
    let tool = chain.tool();
    if chain.primitive() != Primitive::Subprocess {
        return Ok(StagedRun {
            context: template_context(engine, &tool.item().path),
            anchor: None,
            verified_deps: None,
            package_request: None,
        });
    }
    let (anchor_of, anchor_config) = match chain.first_field("anchor") {
        Some((element, config)) => (element, Some(config)),
        None => (tool, None),
    };
    let real = tool_file_path(engine, tool, anchor_config)?;
    let declared_in = element_folder(anchor_of);
    let project = engine.workspace.roots.project.as_deref();
    let invalid = |error: &dyn std::fmt::Display| {
        Error::new(Code::InvalidInvocation, format!("tool {}: {error}", tool.id()))
            .for_item(tool.item().item_ref())
    };
    let own = Importable::of(engine, tool, &real, anchor_config)?;
    let is_own_file = |path: &Path| own.is_file_of_element(path);
    let anchor = anchor::resolve(anchor_config, &declared_in, &real, project, &is_own_file)
        .map_err(|error| invalid(&error))?;
    // A runtime's library is vouched for where the runtime lies, which need not be where the tool lies.
    let is_library = |path: &Path| anchor.lib.as_ref().is_some_and(|lib| path.starts_with(lib));
    let library = match &anchor.lib {
        Some(_) => Some(Importable::of(engine, anchor_of, &anchor_of.item().path, anchor_config)?),
        None => None,
    };
    let is_importable = |path: &Path| match &library {
        Some(library) if is_library(path) => library.is_file_of_element(path),
        Some(_) | None => own.is_file_of_element(path),
    };
    let verify_deps = chain.first_field("verify_deps").map(|(_, config)| config);
    let dependencies = ImportRules::from_config(verify_deps).map_err(|error| invalid(&error))?;
    let verify =
        |path: &Path, _: &str| verified_file(engine, if is_library(path) { anchor_of } else { tool }, path);
    let is_own = *tool.space() == Space::Project && engine.workspace.is_project_approved;
    let modules = anchor.root.join("node_modules");
    let uses_project_modules =
        is_own && anchor.is_active && modules.is_dir() && own.is_folder_of_element(&modules);
    let installed = package_request.as_ref().and_then(PackageRequest::modules);
    let package =
        if anchor.is_active { anchor.package(&tools_folder(engine, tool)?, &is_own_file) } else { None };
    let covered = tool.item().covered_form();
    let request = StagingRequest {
        cache: &engine.workspace.roots.cache,
        now: engine.unix_seconds(),
        tool: &real,
        bytes: &covered,
        anchor: &anchor,
        dependencies: &dependencies,
        package,
        is_importable: &is_importable,
        verify: &verify,
        copies_package_files: uses_project_modules || (installed.is_some() && is_own && anchor.is_active),
        pins_package_files: is_own,
        node_modules: installed.or_else(|| uses_project_modules.then_some(modules)),
    };
    let staged = staging::stage(&request).map_err(|error| {
        let code = match &error {
            StagingError::Unverified { .. } => Code::Unsigned,
            StagingError::TooLarge { .. } | StagingError::InvalidPath { .. } => Code::InvalidInvocation,
            StagingError::Cache(_) => Code::Io,
        };
        let hint = match &error {
            StagingError::Unverified { .. } => {
                "read the files beside the tool that it may import; sign the ones you trust (rye sign PATH…) and remove the others".to_owned()
            }
            StagingError::TooLarge { .. } | StagingError::InvalidPath { .. } => {
                "see `verify_deps` and `anchor` in docs/writing-runtimes.md".to_owned()
            }
            StagingError::Cache(_) => format!(
                "verified files are copied to `{}`: make it writable, or name another folder with XDG_CACHE_HOME",
                engine.workspace.roots.cache.display()
            ),
        };
        Error::new(code, error.to_string()).for_item(tool.item().item_ref()).hint(hint)
    })?;
    messages.notes.extend(staged.notices);
    let text = |path: &Path| path.display().to_string();
    let context = TemplateContext {
        tool_path: text(&staged.tool_path),
        tool_dir: text(&staged.tool_dir),
        tool_parent: text(&staged.tool_parent),
        anchor_path: text(&staged.anchor_path),
        runtime_lib: staged.runtime_lib.as_deref().map(text).unwrap_or_default(),
        ..template_context(engine, &real)
    };
    let deps = staged.verified_deps.into_iter();
    let deps: Vec<_> = deps.map(|file| LockedFile { path: file.path, integrity: file.integrity }).collect();
    Ok(StagedRun {
        context,
        anchor: Some(anchor),
        verified_deps: (!deps.is_empty()).then_some(deps),
        package_request,
    })
}

fn element_folder(element: &Element) -> PathBuf {
    element.item().path.parent().map(Path::to_owned).unwrap_or_default()
}

/// Where the tool's file lies; a bundle inside the binary is laid out as files only if the tool has company there.
fn tool_file_path(engine: &Engine, tool: &Element, anchor: Option<&Value>) -> Result<PathBuf> {
    let located = tool.item();
    let Space::System(id) = tool.space() else {
        return Ok(located.path.clone());
    };
    let bundle = engine.workspace.spaces.bundles().iter().find(|bundle| bundle.id == *id);
    let Some(BundleOrigin::Embedded(embedded)) = bundle.map(|bundle| &bundle.origin) else {
        return Ok(located.path.clone());
    };
    let relative = format!("{}/{}{}", ItemType::Tool.folder(), tool.id(), located.extension);
    let folder = Path::new(&relative).parent().unwrap_or(Path::new("")).display().to_string();
    let markers = anchor.and_then(|anchor| anchor.get("markers_any")).and_then(Value::as_array);
    let is_marked = markers
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .any(|marker| embedded.file(&format!("{AI_FOLDER}/{folder}/{marker}")).is_some());
    if !is_marked {
        return Ok(located.path.clone());
    }
    Ok(embedded.materialise(&engine.workspace.roots.cache)?.join(AI_FOLDER).join(relative))
}

/// Whether the chain ends in a function that touches nothing.
pub(super) fn needs_no_access(engine: &Engine, chain: &Chain) -> bool {
    let native = invocation::native_config(chain);
    native.is_some_and(|(function, config)| {
        let mut known = engine.natives.iter();
        known.find(|tool| tool.name() == function).is_some_and(|tool| tool.needs_no_access(&config))
    })
}

/// The surroundings of a function that touches nothing; `None` if the chain ends in anything else.
fn plan_run_without_access(
    engine: &Engine,
    chain: &Chain,
    staged: &StagedRun,
    call: &CallInputs<'_>,
) -> Option<RunPlan> {
    if !needs_no_access(engine, chain) {
        return None;
    }
    let environment = Environment::default();
    let inputs = InvocationInputs {
        environment: &environment.variables,
        context: &staged.context,
        parameters: call.parameters,
        resolved_config: call.config,
        max_timeout: Duration::ZERO,
    };
    let Ok(Invocation::Native(native)) = invocation::build_invocation(chain, &inputs) else {
        return None;
    };
    Some(RunPlan {
        invocation: Invocation::Native(native),
        environment,
        sandbox: sandbox::SandboxPlan::deny_all(),
        cwd: working_folder(engine),
        temporary: None,
        packages: None,
    })
}

/// Works out environment, sandbox and invocation.
///
/// # Errors
/// When what the signed items say cannot be run.
pub(super) fn plan_run(
    engine: &Engine,
    chain: &Chain,
    staged: &StagedRun,
    call: &CallInputs<'_>,
    messages: &mut RunMessages,
) -> Result<RunPlan> {
    if let Some(around) = plan_run_without_access(engine, chain, staged, call) {
        return Ok(around);
    }
    let tool = chain.tool();
    let workspace = &engine.workspace;
    let folder = working_folder(engine);
    let invalid = |message: String| {
        Error::new(Code::InvalidInvocation, format!("tool {}: {message}", tool.id()))
            .for_item(tool.item().item_ref())
    };
    let policies = engine.policies()?;
    let policy = staged
        .package_request
        .as_ref()
        .map_or(&policies.environment, |package_request| &package_request.policy);
    let contributions = contributions(chain);
    let around = environment::EnvironmentInputs {
        host_variables: &engine.host.variables,
        project: workspace.roots.project.as_deref(),
        user_space: &workspace.roots.user,
        is_project_approved: workspace.is_project_approved,
        policy,
        allows_project_programs: !staged
            .package_request
            .as_ref()
            .is_some_and(PackageRequest::has_own_interpreter),
    };
    let subject = SandboxSubject {
        item: tool.item().item_ref(),
        declared: chain.first_field("sandbox").map(|(_, declared)| declared),
    };
    let search = FinderInputs {
        policies: &policies,
        subject,
        context: &staged.context,
        mode: call.request.mode,
        cancel: &call.request.cancel,
    };
    let finder = SandboxedFinder::new(engine, search);
    let mut environment = environment::resolve(&contributions, &staged.context, &around, &finder)
        .map_err(|error| invalid(error.to_string()))?;
    messages.helpers.extend(finder.helper_runs.take());
    messages.warnings.append(&mut environment.notices);
    let packages = match &staged.package_request {
        Some(package_request) => Some(packages::ensure_installed(
            engine,
            chain,
            package_request,
            &mut environment,
            call.request,
            messages,
        )?),
        None => None,
    };
    let mut anchor_cwd = None;
    if let Some(anchor) = staged.anchor.as_ref().filter(|anchor| anchor.is_active) {
        environment::apply_search_paths(
            tool.id().as_str(),
            &anchor.env_paths,
            &staged.context,
            policy,
            &mut environment.variables,
        )
        .map_err(|error| invalid(error.to_string()))?;
        anchor_cwd = anchor.cwd.clone();
    }
    let max =
        workspace.settings.get("execution.max_timeout_seconds").and_then(Value::as_f64).unwrap_or(3600.0);
    let invocation_inputs = InvocationInputs {
        environment: &environment.variables,
        context: &staged.context,
        parameters: call.parameters,
        resolved_config: call.config,
        max_timeout: Duration::from_secs_f64(max.clamp(1.0, MAX_TIMEOUT_SETTING)),
    };
    let mut invocation = invocation::build_invocation(chain, &invocation_inputs).map_err(|error| {
        missing_program::interpreter_error(chain, &environment, &error)
            .unwrap_or_else(|| invalid(error.to_string()))
    })?;
    if let (Invocation::Process(process), Some(cwd)) = (&mut invocation, anchor_cwd)
        && process.cwd.is_none()
    {
        process.cwd = Some(cwd.replace("{anchor_path}", &staged.context.anchor_path));
    }
    if let Invocation::Process(process) = &mut invocation {
        let work_dir = process.cwd.as_ref().map_or(folder.as_path(), Path::new);
        let is_own = *tool.space() == Space::Project;
        let variables = &environment.variables;
        let program =
            environment::check_command(&process.command, work_dir, is_own, variables, &around, &finder)
                .map_err(|reason| unrecorded_program_error(tool.item().item_ref(), reason))?;
        messages.warnings.extend(program.notice);
        process.command = program.command;
    }
    let temporary = match &invocation {
        Invocation::Process(_) => Some(run_dirs::temporary_folder(engine)?),
        Invocation::Http(_) | Invocation::Native(_) => None,
    };
    let plan = plan_sandbox(engine, &policies, &subject, &staged.context, &environment, temporary.as_ref())?;
    if plan.level == sandbox::SandboxLevel::Standard {
        messages.warnings.extend(unwritable_project_warning(engine));
    }
    Ok(RunPlan { invocation, environment, sandbox: plan, cwd: folder, temporary, packages })
}

pub(super) fn contributions(chain: &Chain) -> Vec<Contribution<'_>> {
    let elements = chain.elements().iter().rev();
    elements
        .map(|element| Contribution {
            item_id: element.id().as_str(),
            is_project: *element.space() == Space::Project,
            env_config: element.field("env_config"),
        })
        .collect()
}

/// A program of the project that is not started, and why.
fn unrecorded_program_error(item: &ItemRef, reason: String) -> Error {
    Error::new(Code::ProgramNotRecorded, reason)
        .for_item(item)
        .hint(format!("look at the program; if it is yours, record it: rye lock update {}", item.id))
}

/// The programs of the project that a run of this chain would look at, used or not.
///
/// # Errors
/// When the tool's files are not verified.
pub(crate) fn project_programs(engine: &Engine, chain: &Chain) -> Result<BTreeSet<PathBuf>> {
    let workspace = &engine.workspace;
    let tool = chain.tool();
    let is_own = *tool.space() == Space::Project;
    if chain.primitive() != Primitive::Subprocess || !is_own || !workspace.is_project_approved {
        return Ok(BTreeSet::new());
    }
    let staged = stage(engine, chain, None, &mut RunMessages::default())?;
    let policies = engine.policies()?;
    let inputs = environment::EnvironmentInputs {
        host_variables: &engine.host.variables,
        project: workspace.roots.project.as_deref(),
        user_space: &workspace.roots.user,
        is_project_approved: true,
        policy: &policies.environment,
        allows_project_programs: chain.first_field(rye_exec::packages::DEPENDENCIES_FIELD).is_none(),
    };
    let collector = ProgramCollector::default();
    // What cannot be worked out is reported by the run itself.
    if let Ok(environment) = environment::resolve(&contributions(chain), &staged.context, &inputs, &collector)
    {
        let invocation_inputs = InvocationInputs {
            environment: &environment.variables,
            context: &staged.context,
            parameters: &Map::new(),
            resolved_config: None,
            max_timeout: Duration::from_secs(1),
        };
        if let Ok(Invocation::Process(process)) = invocation::build_invocation(chain, &invocation_inputs) {
            let folder = process.cwd.map_or_else(|| working_folder(engine), PathBuf::from);
            let variables = &environment.variables;
            let _ =
                environment::check_command(&process.command, &folder, is_own, variables, &inputs, &collector);
        }
    }
    Ok(collector.programs.take())
}

/// A signed item that something is run for.
#[derive(Clone, Copy)]
pub(crate) struct SandboxSubject<'a> {
    /// The item.
    pub(crate) item: &'a ItemRef,
    /// Its `sandbox`.
    pub(crate) declared: Option<&'a Value>,
}

/// What the run may touch: policy, what the signed item declares, and where things are.
pub(crate) fn plan_sandbox(
    engine: &Engine,
    policies: &RunPolicies,
    subject: &SandboxSubject<'_>,
    context: &TemplateContext,
    environment: &Environment,
    temporary: Option<&LockedTempDir>,
) -> Result<sandbox::SandboxPlan> {
    let roots = &engine.workspace.roots;
    let temporary = temporary.map(|folder| folder.path().to_owned());
    // Outside any project a tool writes to its temporary folder only, and to none without one.
    let project = roots.project.clone().or_else(|| temporary.clone());
    let project = project.unwrap_or_else(|| roots.cache.join("none"));
    let mut required: Vec<PathBuf> = environment.interpreters.clone();
    let mut program_folders = run_dirs::program_folders(environment);
    // An interpreter outside the system's folders brings its libraries along: `<prefix>/bin` beside `<prefix>/lib`.
    for interpreter in &environment.interpreters {
        let found = lillux::canonicalize_existing(interpreter);
        // A toolchain is known by its `bin`; of any other folder, the interpreter alone is needed.
        let folder = found.parent().filter(|folder| folder.ends_with("bin"));
        program_folders.extend(folder.map(Path::to_owned));
        required.push(found);
        let prefix = interpreter.parent().and_then(Path::parent).filter(|prefix| prefix.parent().is_some());
        required.extend(prefix.map(|prefix| prefix.join("lib")).filter(|lib| lib.is_dir()));
    }
    required.push(PathBuf::from(&context.tool_dir));
    required.extend(run_dirs::rye_program(engine).map(Path::to_owned));
    required.extend(run_dirs::rye_program_folder(engine));
    if !context.runtime_lib.is_empty() {
        required.push(PathBuf::from(&context.runtime_lib));
    }
    let paths = sandbox::SandboxPaths {
        project_ai: project.join(AI_FOLDER),
        project,
        user_ai: roots.user_ai(),
        home: engine.host.home.clone(),
        homes: run_dirs::home_dirs(engine),
        approved_projects: engine.workspace.approvals.projects.iter().map(PathBuf::from).collect(),
        program_folders,
        cache: roots.cache.clone(),
        key_files: engine.key_files(),
        temporary,
        required,
    };
    let plan = sandbox::plan(&policies.sandbox, subject.declared, &paths, &engine.host.variables)
        .map_err(|error| sandbox_error(subject.item, &error))?;
    restrict_writable(engine, subject, &paths, plan)
}

/// Takes away the project as a writable root where it may be none, and refuses a tool that asks for such a folder.
fn restrict_writable(
    engine: &Engine,
    subject: &SandboxSubject<'_>,
    paths: &sandbox::SandboxPaths,
    mut plan: sandbox::SandboxPlan,
) -> Result<sandbox::SandboxPlan> {
    if plan.level == sandbox::SandboxLevel::Off {
        return Ok(plan);
    }
    let protected = engine.protected_folders();
    let (project, temporary) = (
        lillux::canonicalize_existing(&paths.project),
        paths.temporary.as_deref().map(lillux::canonicalize_existing),
    );
    let is_own = |path: &PathBuf| temporary.as_ref() == Some(path);
    let refused = plan.access.write.iter().filter(|path| !is_own(path) && **path != project);
    if let Some((path, refusal)) = refused.filter_map(|path| Some((path, protected.refusal(path)?))).next() {
        let path = rye_item::text::one_line(&path.display().to_string());
        let message = format!("the tool asks to write to `{path}`, which no tool may: {refusal}");
        return Err(Error::new(Code::ToolDenied, message)
            .for_item(subject.item)
            .hint("declare a folder below it in `sandbox.write`, then sign the tool again"));
    }
    if protected.refusal(&project).is_some() {
        let declared = subject.declared.and_then(|declared| declared.get("write")).and_then(Value::as_array);
        let declared = declared.into_iter().flatten().filter_map(Value::as_str);
        let below = declared.filter_map(|text| text.strip_prefix("{project_path}"));
        let below: Vec<PathBuf> = below
            .map(|rest| lillux::canonicalize_existing(&project.join(rest.trim_start_matches('/'))))
            .collect();
        plan.access.write.retain(|path| is_own(path) || (*path != project && !below.contains(path)));
    }
    Ok(plan)
}

/// What to say of a project that tools cannot write to.
fn unwritable_project_warning(engine: &Engine) -> Option<String> {
    let project = engine.workspace.roots.project.as_deref()?;
    let refusal = engine.protected_folders().refusal(project)?;
    let project = rye_item::text::one_line(&project.display().to_string());
    Some(format!("tools do not write to `{project}`: {refusal}; only their temporary folder is writable"))
}

/// Why there is no sandbox for what an item needs.
pub(super) fn sandbox_error(item: &ItemRef, error: &sandbox::SandboxError) -> Error {
    let code = match error {
        sandbox::SandboxError::InvalidPolicy { .. } => Code::Invalid,
        sandbox::SandboxError::InvalidDeclaration { .. } => Code::InvalidInvocation,
        sandbox::SandboxError::Denied { .. } => Code::ToolDenied,
    };
    Error::new(code, error.to_string()).for_item(item).hint("settings: rye config show execution/sandbox")
}
