//! What the MCP client needs of the engine: server items that are admitted and filled in, processes and addresses under
//! the policy of tools, and where pins lie.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lillux::Digest;
use lillux::process::{self, Command};
use rye_exec::environment::{self, Contribution, Environment};
use rye_exec::native::Access;
use rye_exec::{NativeCall, NativeError, http, sandbox};
use rye_item::{ItemId, ItemRef, ItemType, Space, text};
use rye_mcp::{Server, ServerCommand, ServerHost, ServerSummary, Started, Stderr};
use rye_space::Located;
use rye_trust::{Admitted, Subject, Verdict, verify};
use serde_json::{Map, Value, json};
use url::Url;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::tiers;
use crate::verbs::execute::{
    Caller, Finder, Mode, Planned, SANDBOX_VARIABLE, Search, context, name_temporary, plan, protect_error,
    temporary,
};

/// How much longer than an exchange its process may take: the exchange ends it in the ordinary case.
const MARGIN: Duration = Duration::from_secs(10);

/// The formats a server item can be in.
const FORMATS: [&str; 3] = [".yaml", ".yml", ".toml"];

/// The servers of one call.
pub(super) struct Servers<'a> {
    engine: &'a Engine,
    caller: Caller,
    /// What was worked out of the items this call has named: config, environment and sandbox are of the same bytes.
    ready: Mutex<BTreeMap<String, Arc<Ready>>>,
    /// Why the engine would not use an item.
    refusal: Mutex<Option<Error>>,
}

/// A server item, admitted, with everything it says filled in.
struct Ready {
    item: Arc<Admitted<Located>>,
    config: Value,
    environment: Environment,
    context: environment::Context,
}

impl<'a> Servers<'a> {
    pub(super) fn new(engine: &'a Engine, caller: Caller) -> Self {
        Self { engine, caller, ready: Mutex::default(), refusal: Mutex::default() }
    }

    /// Why the engine would not use an item, if it would not.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the engine's own error, which says more than a tool's can.
    fn refuse(&self, error: Error) -> NativeError {
        let refused = NativeError::denied(error.message.clone());
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        refused
    }

    fn ready(&self, call: &NativeCall<'_>, id: &str) -> Result<Arc<Ready>> {
        let known = |servers: &Self| {
            servers.ready.lock().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)
        };
        if let Some(ready) = known(self) {
            return Ok(ready);
        }
        let ready = Arc::new(self.prepare(call, &ItemId::new(id)?)?);
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), Arc::clone(&ready));
        Ok(ready)
    }

    fn prepare(&self, call: &NativeCall<'_>, id: &ItemId) -> Result<Ready> {
        let engine = self.engine;
        let item = ItemRef::new(ItemType::Tool, id.clone());
        let located = engine.workspace.spaces.locate(&item, None)?;
        let admitted = engine.admit_kept(located)?;
        let fields = admitted.fields();
        if !is_server(fields) {
            return Err(Error::new(Code::InvalidInvocation, format!("tool {id} is not an MCP server"))
                .of(&item)
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
        let around = environment::Surroundings {
            process: &engine.host.environment,
            project: engine.workspace.roots.project.as_deref(),
            is_project_approved: engine.workspace.is_project_approved,
            policy: &policies.environment,
            uses_project_programs: true,
        };
        let context = context(engine, &admitted.path);
        let search = Search {
            policies: &policies,
            planned: Planned { item: &item, declared: fields.get("sandbox") },
            context: &context,
            mode: Mode::Run,
            cancel: call.cancel,
        };
        let mut finder = Finder::new(engine, search);
        finder.network = call.access.network;
        let resolved = environment::resolve_with(&[contribution], &context, &around, &finder, config);
        let (environment, config) = resolved.map_err(|error| {
            Error::new(Code::InvalidInvocation, format!("MCP server {id}: {error}")).of(&item)
        })?;
        Ok(Ready { item: admitted, config, environment, context })
    }

    /// What the server may touch. A tool that may not use the network has no server that may.
    fn plan(
        &self,
        call: &NativeCall<'_>,
        ready: &Ready,
        temporary: Option<&lillux::file::TemporaryFolder>,
    ) -> Result<sandbox::Plan> {
        let planned = Planned { item: ready.item.item_ref(), declared: ready.item.fields().get("sandbox") };
        let policies = self.engine.policies()?;
        let mut plan = plan(self.engine, &policies, &planned, &ready.context, &ready.environment, temporary)?;
        if !call.access.network {
            plan.access.network = false;
        }
        Ok(plan)
    }

    fn web(
        &self,
        call: &NativeCall<'_>,
        server: &Server,
    ) -> std::result::Result<lillux::http::Client, String> {
        let told = |error: Error| error.message;
        let ready = self.ready(call, &server.id).map_err(told)?;
        let plan = self.plan(call, &ready, None).map_err(told)?;
        let allowed_hosts = [plan.access.allowed_hosts.clone(), call.access.allowed_hosts.clone()].concat();
        http::client(&ready.environment.variables, &Access { allowed_hosts, ..plan.access })
    }

    fn spaces_with_servers(&self) -> Vec<ServerSummary> {
        let spaces = &self.engine.workspace.spaces;
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        for space in spaces.order() {
            for entry in spaces.walk(&space, &[ItemType::Tool]).entries {
                // What a higher space has of this name is what counts.
                if !FORMATS.contains(&entry.extension.as_str()) || !seen.insert(entry.item.id.clone()) {
                    continue;
                }
                let place = spaces.places(&entry.item).into_iter().find(|place| place.is_found);
                let located = place.and_then(|place| spaces.read(&entry.item, &place).ok());
                let Some(located) = located.filter(|located| is_server(located.fields())) else { continue };
                let description = located.fields().get("description").and_then(Value::as_str);
                found.push(ServerSummary {
                    id: entry.item.id,
                    space: located.space().to_string(),
                    description: text::one_line(description.unwrap_or_default()),
                    state: match verify::report(&located, &self.engine.workspace.keys).verdict {
                        Verdict::Full => "verified".to_owned(),
                        other => other.as_str().to_owned(),
                    },
                });
            }
        }
        found.sort_by(|left, right| left.id.cmp(&right.id));
        found
    }
}

fn is_server(fields: &Map<String, Value>) -> bool {
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

impl ServerHost for Servers<'_> {
    fn server(&self, call: &NativeCall<'_>, id: &ItemId) -> std::result::Result<Value, NativeError> {
        let ready = self.ready(call, id.as_str()).map_err(|error| self.refuse(error))?;
        Ok(ready.config.clone())
    }

    fn servers(&self, _: &NativeCall<'_>) -> std::result::Result<Vec<ServerSummary>, NativeError> {
        Ok(self.spaces_with_servers())
    }

    fn start(
        &self,
        call: &NativeCall<'_>,
        server: &Server,
        command: &ServerCommand,
    ) -> std::result::Result<Started, String> {
        let told = |error: Error| error.message;
        let ready = self.ready(call, &server.id).map_err(told)?;
        let temporary = temporary(self.engine).map_err(told)?;
        let plan = self.plan(call, &ready, Some(&temporary)).map_err(told)?;
        let mut environment = ready.environment.variables.clone();
        name_temporary(self.engine, &plan, temporary.path(), &mut environment);
        let confined = plan.confine().map_err(|error| told(protect_error(&error)))?;
        if confined.is_some() {
            environment.insert(SANDBOX_VARIABLE.to_owned(), "1".to_owned());
        }
        let folder =
            command.cwd.as_ref().map_or_else(|| call.project.to_owned(), |cwd| call.project.join(cwd));
        let policies = self.engine.policies().map_err(told)?;
        let around = environment::Surroundings {
            process: &self.engine.host.environment,
            project: self.engine.workspace.roots.project.as_deref(),
            is_project_approved: self.engine.workspace.is_project_approved,
            policy: &policies.environment,
            uses_project_programs: true,
        };
        let search = Search {
            policies: &policies,
            planned: Planned { item: ready.item.item_ref(), declared: None },
            context: &ready.context,
            mode: Mode::Run,
            cancel: call.cancel,
        };
        let is_own = *ready.item.space() == Space::Project;
        let finder = Finder::new(self.engine, search);
        let program =
            environment::check_command(&command.command, &folder, is_own, &environment, &around, &finder)?;
        let command = Command {
            program: program.command.into(),
            arguments: command.args.clone(),
            environment,
            folder,
            stdin: Vec::new(),
            timeout: rye_mcp::native::timeout(server, call.config).saturating_add(MARGIN),
            has_result_channel: false,
            limits: plan.limits.clone(),
            log: None,
        };
        let confinement = confined.as_ref().map(|confined| &confined.confinement);
        let opened = process::open(&self.engine.host.launcher, &command, confinement)
            .map_err(|error| text::one_line(&error.to_string()))?;
        Ok(Started {
            stdin: opened.stdin,
            stdout: opened.stdout,
            stderr: Stderr::Pipe(opened.stderr),
            // In this order: the folder goes when nobody works in it any more.
            guard: Box::new((opened.guard, temporary, confined)),
        })
    }

    fn allow(&self, call: &NativeCall<'_>, server: &Server, url: &Url) -> std::result::Result<(), String> {
        self.web(call, server)?.check(url).map_err(|error| error.to_string())
    }

    fn client(
        &self,
        call: &NativeCall<'_>,
        server: &Server,
        url: &Url,
        builder: reqwest::ClientBuilder,
    ) -> std::result::Result<reqwest::Client, String> {
        self.web(call, server)?.finish(builder, url).map_err(|error| error.to_string())
    }

    fn pin_path(&self, _: &NativeCall<'_>, id: &ItemId) -> PathBuf {
        let places = self.engine.workspace.spaces.places(&ItemRef::new(ItemType::Tool, id.clone()));
        let found = places.into_iter().find(|place| place.is_found);
        let is_project = found.is_some_and(|place| place.space == Space::Project);
        let owner = tiers::here(self.engine).filter(|_| is_project);
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
    fn the_env_of_the_config_lies_over_the_env_config() {
        let fields = json!({"env_config": {"pass": ["A"], "env": {"B": "1", "C": "2"}}});
        let whole = env_config(fields.as_object().expect("map"), &json!({"env": {"C": "3"}}));
        assert_eq!(whole, json!({"pass": ["A"], "env": {"B": "1", "C": "3"}}));
        assert_eq!(env_config(&Map::new(), &Value::Null), json!({}));
    }
}
