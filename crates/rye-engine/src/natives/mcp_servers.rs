//! What the MCP client needs of the engine: server items that are admitted and filled in, processes and addresses under
//! the policy of tools, and where pins lie.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lillux::Digest;
use lillux::process::{self, ProcessCommand};
use rye_exec::environment::{self, Contribution, Environment};
use rye_exec::native::ToolAccess;
use rye_exec::{NativeCall, NativeError, http, sandbox};
use rye_item::{ItemId, ItemRef, ItemType, Space, text};
use rye_mcp::{McpServer, ServerCommand, ServerHost, ServerProcess, ServerSummary, StderrSource};
use rye_space::ItemFile;
use rye_trust::{Admitted, Subject, TrustVerdict, verify};
use serde_json::{Map, Value, json};
use url::Url;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::locations;
use crate::verbs::execute::{
    Caller, ExecuteMode, FinderInputs, SANDBOX_VARIABLE, SandboxSubject, SandboxedFinder, placeholder_error,
    plan_sandbox, set_temporary_variables, template_context, temporary_folder,
};

/// How much longer than an exchange its process may take: the exchange ends it in the ordinary case.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(10);

/// The formats a server item can be in.
const SERVER_EXTENSIONS: [&str; 3] = [".yaml", ".yml", ".toml"];

/// The servers of one call.
pub(super) struct McpServers<'a> {
    engine: &'a Engine,
    caller: Caller,
    /// What was worked out of the items this call has named: config, environment and sandbox are of the same bytes.
    prepared_server: Mutex<BTreeMap<String, Arc<PreparedServer>>>,
    /// Why the engine would not use an item.
    refusal: Mutex<Option<Error>>,
}

/// A server item, admitted, with everything it says filled in.
struct PreparedServer {
    item: Arc<Admitted<ItemFile>>,
    config: Value,
    environment: Environment,
    context: environment::TemplateContext,
}

impl<'a> McpServers<'a> {
    pub(super) fn new(engine: &'a Engine, caller: Caller) -> Self {
        Self { engine, caller, prepared_server: Mutex::default(), refusal: Mutex::default() }
    }

    /// Why the engine would not use an item, if it would not.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the engine's own error, which says more than a tool's can.
    fn record_refusal(&self, error: Error) -> NativeError {
        let refused = NativeError::denied(error.message.clone());
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        refused
    }

    fn prepared_server(&self, call: &NativeCall<'_>, id: &str) -> Result<Arc<PreparedServer>> {
        let cached = |servers: &Self| {
            servers.prepared_server.lock().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)
        };
        if let Some(ready) = cached(self) {
            return Ok(ready);
        }
        let ready = Arc::new(self.prepare(call, &ItemId::new(id)?)?);
        self.prepared_server
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id.to_owned(), Arc::clone(&ready));
        Ok(ready)
    }

    fn prepare(&self, call: &NativeCall<'_>, id: &ItemId) -> Result<PreparedServer> {
        let engine = self.engine;
        let item = ItemRef::new(ItemType::Tool, id.clone());
        let located = engine.workspace.spaces.locate_visible_from(&item, visible_from(call))?;
        let admitted = engine.admit_cached(located)?;
        let fields = admitted.fields();
        if !is_server_item(fields) {
            return Err(Error::new(Code::InvalidInvocation, format!("tool {id} is not an MCP server"))
                .for_item(&item)
                .hint("a server item says `tool_type: mcp-server`"));
        }
        let none = Value::Null;
        let config = fields.get("config").unwrap_or(&none);
        let env_config = env_config(fields, config);
        let contribution = Contribution {
            item_id: id.as_str(),
            is_project: *admitted.space() == Space::Project,
            env_config: Some(&env_config),
        };
        let policies = engine.policies()?;
        let inputs = environment::EnvironmentInputs {
            host_variables: &engine.host.variables,
            project: engine.workspace.roots.project.as_deref(),
            user_space: &engine.workspace.roots.user,
            is_project_approved: engine.workspace.is_project_approved,
            policy: &policies.environment,
            allows_project_programs: true,
        };
        let context = template_context(engine, &admitted.path);
        let search = FinderInputs {
            policies: &policies,
            subject: SandboxSubject { item: &item, declared: fields.get("sandbox") },
            context: &context,
            mode: ExecuteMode::Run,
            cancel: call.cancel,
        };
        let mut finder = SandboxedFinder::new(engine, search);
        finder.network = call.access.network;
        let resolved = environment::resolve_with_config(&[contribution], &context, &inputs, &finder, config);
        let resolved = resolved.map_err(|error| {
            Error::new(Code::InvalidInvocation, format!("MCP server {id}: {error}")).for_item(&item)
        })?;
        if let Some(first) = resolved.unset.first() {
            return Err(unset_error(id, first, &resolved.unset).for_item(&item));
        }
        let environment::ResolvedConfig { environment, config, .. } = resolved;
        Ok(PreparedServer { item: admitted, config, environment, context })
    }

    /// What the server may touch. A tool that may not use the network has no server that may.
    fn plan(
        &self,
        call: &NativeCall<'_>,
        prepared: &PreparedServer,
        temporary: Option<&lillux::file::LockedTempDir>,
    ) -> Result<sandbox::SandboxPlan> {
        let planned = SandboxSubject {
            item: prepared.item.item_ref(),
            declared: prepared.item.fields().get("sandbox"),
        };
        let policies = self.engine.policies()?;
        let mut plan = plan_sandbox(
            self.engine,
            &policies,
            &planned,
            &prepared.context,
            &prepared.environment,
            temporary,
        )?;
        if !call.access.network {
            plan.access.network = false;
        }
        Ok(plan)
    }

    fn http_client(
        &self,
        call: &NativeCall<'_>,
        server: &McpServer,
    ) -> std::result::Result<lillux::http::HttpClient, String> {
        let message = |error: Error| error.message;
        let prepared = self.prepared_server(call, &server.id).map_err(message)?;
        let plan = self.plan(call, &prepared, None).map_err(message)?;
        let allowed_hosts = [plan.access.allowed_hosts.clone(), call.access.allowed_hosts.clone()].concat();
        http::build_client(&prepared.environment.variables, &ToolAccess { allowed_hosts, ..plan.access })
    }

    fn list_servers(&self) -> Vec<ServerSummary> {
        let spaces = &self.engine.workspace.spaces;
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for space in spaces.order() {
            for entry in spaces.scan(&space, &[ItemType::Tool]).entries {
                // What a higher space has of this name is what counts.
                if !SERVER_EXTENSIONS.contains(&entry.extension.as_str())
                    || !seen.insert(entry.item.id.clone())
                {
                    continue;
                }
                let candidate =
                    spaces.candidate_paths(&entry.item).into_iter().find(|candidate| candidate.is_found);
                let located = candidate.and_then(|candidate| spaces.read(&entry.item, &candidate).ok());
                let Some(located) = located.filter(|located| is_server_item(located.fields())) else {
                    continue;
                };
                let description = located.fields().get("description").and_then(Value::as_str);
                found.push(ServerSummary {
                    id: entry.item.id,
                    space: located.space().to_string(),
                    description: text::one_line(description.unwrap_or_default()),
                    state: match verify::evaluate(&located, &self.engine.workspace.keys).verdict {
                        TrustVerdict::Full => "verified".to_owned(),
                        other => other.as_str().to_owned(),
                    },
                });
            }
        }
        found.sort_by(|left, right| left.id.cmp(&right.id));
        found
    }
}

/// From where a server is looked for. One that the tool's own config names may not be replaced by a space above the tool's; one
/// that the caller names is wherever the caller's items are.
fn visible_from<'c>(call: &NativeCall<'c>) -> &'c Space {
    if call.config.contains_key("server") { call.space } else { &Space::Project }
}

/// A server whose command or address would have a hole in it is not started.
fn unset_error(id: &ItemId, first: &str, unset: &BTreeSet<String>) -> Error {
    let names = unset.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let message = format!("MCP server {id} needs variables of the environment that are not set: {names}");
    Error::new(Code::InvalidInvocation, message)
        .hint(format!("export {first}=…; or put it into the `.env` of the project"))
        .hint(format!("if it may be empty, write ${{{first}:-}} in the server's item and sign it"))
}

pub(crate) fn is_server_item(fields: &Map<String, Value>) -> bool {
    matches!(fields.get("tool_type").and_then(Value::as_str), Some("mcp-server" | "mcp_server"))
}

/// What the item adds to the environment of its process: its `env_config`, and over it the `env` of its `config`.
fn env_config(fields: &Map<String, Value>, config: &Value) -> Value {
    let mut whole = match fields.get("env_config") {
        None | Some(Value::Null) => json!({}),
        Some(own) => own.clone(),
    };
    let Some(env) = config.get("env").and_then(Value::as_object) else { return whole };
    if let Some(map) = whole.as_object_mut() {
        match map.entry("env").or_insert_with(|| json!({})) {
            Value::Object(own) => own.extend(env.clone()),
            // Anything else is wrong, and said to be where it is read.
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
        }
    }
    whole
}

impl ServerHost for McpServers<'_> {
    fn server(&self, call: &NativeCall<'_>, id: &ItemId) -> std::result::Result<Value, NativeError> {
        let ready = self.prepared_server(call, id.as_str()).map_err(|error| self.record_refusal(error))?;
        Ok(ready.config.clone())
    }

    fn servers(&self, _: &NativeCall<'_>) -> std::result::Result<Vec<ServerSummary>, NativeError> {
        Ok(self.list_servers())
    }

    fn spawn(
        &self,
        call: &NativeCall<'_>,
        server: &McpServer,
        command: &ServerCommand,
    ) -> std::result::Result<ServerProcess, String> {
        let message = |error: Error| error.message;
        let prepared = self.prepared_server(call, &server.id).map_err(message)?;
        let temporary = temporary_folder(self.engine).map_err(message)?;
        let plan = self.plan(call, &prepared, Some(&temporary)).map_err(message)?;
        let mut environment = prepared.environment.variables.clone();
        set_temporary_variables(self.engine, &plan, temporary.path(), &mut environment);
        let confined = plan.confine().map_err(|error| message(placeholder_error(&error)))?;
        if confined.is_some() {
            environment.insert(SANDBOX_VARIABLE.to_owned(), "1".to_owned());
        }
        let folder =
            command.cwd.as_ref().map_or_else(|| call.project.to_owned(), |cwd| call.project.join(cwd));
        let policies = self.engine.policies().map_err(message)?;
        let inputs = environment::EnvironmentInputs {
            host_variables: &self.engine.host.variables,
            project: self.engine.workspace.roots.project.as_deref(),
            user_space: &self.engine.workspace.roots.user,
            is_project_approved: self.engine.workspace.is_project_approved,
            policy: &policies.environment,
            allows_project_programs: true,
        };
        let search = FinderInputs {
            policies: &policies,
            subject: SandboxSubject { item: prepared.item.item_ref(), declared: None },
            context: &prepared.context,
            mode: ExecuteMode::Run,
            cancel: call.cancel,
        };
        let is_own = *prepared.item.space() == Space::Project;
        let finder = SandboxedFinder::new(self.engine, search);
        let program =
            environment::check_command(&command.command, &folder, is_own, &environment, &inputs, &finder)?;
        let command = ProcessCommand {
            program: program.command.into(),
            arguments: command.args.clone(),
            environment,
            current_dir: folder,
            stdin: Vec::new(),
            timeout: rye_mcp::native::exchange_timeout(server, call.config).saturating_add(TIMEOUT_MARGIN),
            has_result_channel: false,
            limits: plan.limits.clone(),
            log: None,
        };
        let confinement = confined.as_ref().map(|confined| &confined.confinement);
        let process = process::spawn_interactive(&self.engine.host.launcher, &command, confinement)
            .map_err(|error| text::one_line(&error.to_string()))?;
        Ok(ServerProcess {
            stdin: process.stdin,
            stdout: process.stdout,
            stderr: StderrSource::Pipe(process.stderr),
            // In this order: the folder is removed when no process works in it any more.
            guard: Box::new((process.guard, temporary, confined)),
        })
    }

    fn allow(&self, call: &NativeCall<'_>, server: &McpServer, url: &Url) -> std::result::Result<(), String> {
        self.http_client(call, server)?.check_url(url).map_err(|error| error.to_string())
    }

    fn build_client(
        &self,
        call: &NativeCall<'_>,
        server: &McpServer,
        url: &Url,
        builder: reqwest::ClientBuilder,
    ) -> std::result::Result<reqwest::Client, String> {
        self.http_client(call, server)?.build_client(builder, url).map_err(|error| error.to_string())
    }

    fn pin_path(&self, call: &NativeCall<'_>, id: &ItemId) -> PathBuf {
        let candidates =
            self.engine.workspace.spaces.candidate_paths(&ItemRef::new(ItemType::Tool, id.clone()));
        let limit = visible_from(call).precedence();
        let found = candidates
            .into_iter()
            .find(|candidate| candidate.is_found && candidate.space.precedence() <= limit);
        let is_project = found.is_some_and(|candidate| candidate.space == Space::Project);
        let owner = locations::current_project(self.engine).filter(|_| is_project);
        pin_path(&self.engine.workspace.roots.user_ai(), id, owner.as_deref())
    }

    fn may_accept(&self, _: &NativeCall<'_>, id: &ItemId) -> std::result::Result<(), NativeError> {
        match self.caller {
            Caller::Person => Ok(()),
            Caller::Agent | Caller::Test => Err(NativeError::denied(format!(
                "only a person accepts what an MCP server has changed: `rye execute rye/mcp/manager action=accept server={id}`"
            ))),
        }
    }
}

/// Where a pin lies. Servers of projects are told apart by where the project is.
fn pin_path(user_ai: &Path, id: &ItemId, owner: Option<&str>) -> PathBuf {
    let owner = owner.map(|owner| format!("+{}", &Digest::of(owner.as_bytes()).to_hex()[..8]));
    user_ai.join("lockfiles/mcp").join(format!("{id}{}.pin.json", owner.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_of_two_projects_are_two_files() {
        let id = ItemId::new("mcp/servers/x").expect("id");
        let at = |owner| pin_path(Path::new("/u/.ai"), &id, owner);
        assert_eq!(at(None), Path::new("/u/.ai/lockfiles/mcp/mcp/servers/x.pin.json"));
        assert_ne!(at(Some("/one")), at(Some("/two")));
        assert!(at(Some("/one")).to_string_lossy().starts_with("/u/.ai/lockfiles/mcp/mcp/servers/x+"));
    }

    #[test]
    fn config_env_overrides_env_config() {
        let fields = json!({"env_config": {"pass": ["A"], "env": {"B": "1", "C": "2"}}});
        let whole = env_config(fields.as_object().expect("map"), &json!({"env": {"C": "3"}}));
        assert_eq!(whole, json!({"pass": ["A"], "env": {"B": "1", "C": "3"}}));
        assert_eq!(env_config(&Map::new(), &Value::Null), json!({}));
    }
}
