//! Items, bundles, keys, settings, the doctor, and running a tool: each is the verb of that name.

use axum::extract::{Path, Request, State};
use axum::response::Response;
use lillux::CancelToken;
use rye_agent::capability::Capabilities;
use rye_agent::definitions::{self, PreloadOptions, ToolBinding};
use rye_agent::prepare::ThreadRequest;
use rye_agent::views::ThreadsPlace;
use rye_engine::verbs::execute::{self, ExecuteRequest};
use rye_engine::verbs::load::{self, LoadOptions};
use rye_engine::verbs::search::{self, SearchOptions};
use rye_engine::verbs::sync::{self, FetchContext, SyncOptions};
use rye_engine::verbs::{bundles, config, doctor, keys, list, source, why};
use rye_engine::{Code, Engine, Error, Result};
use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::answers::{Parameters, read_json, respond, success};
use super::{UiInner, UiState};
use crate::worker_pool::Lane;

/// Items of a list unless more are asked for, and at most.
const DEFAULT_ITEMS: usize = 100;
const MAX_ITEMS: usize = 1000;
/// Room for the description of one tool.
const MAX_DEFINITION_TOKENS: usize = 20_000;

fn parse_tier(parameters: &Parameters) -> Result<Option<SpaceTier>> {
    match parameters.text("space") {
        None => Ok(None),
        Some("project") => Ok(Some(SpaceTier::Project)),
        Some("user") => Ok(Some(SpaceTier::User)),
        Some("system") => Ok(Some(SpaceTier::System)),
        Some(_) => Err(Error::new(Code::InvalidArgument, "invalid space").hint("project, user or system")),
    }
}

fn to_value(value: impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::new(Code::Serving, error.to_string()))
}

/// Asks the engine of the place something quick.
async fn with_engine(
    state: UiState,
    work: impl FnOnce(&UiInner, &Engine) -> Result<Response> + Send + 'static,
) -> Response {
    let inner = state.clone();
    let done = state.run_quick(move || {
        let engine = inner.shared.engines.engine(None)?.engine;
        work(&inner, &engine)
    });
    respond(done.await)
}

/// `GET /api/v1/items`
pub(super) async fn items(State(state): State<UiState>, request: Request) -> Response {
    let query = request.uri().query().map(str::to_owned);
    with_engine(state, move |_, engine| {
        let parameters = Parameters::parse(query.as_deref(), &["q", "type", "space", "all", "limit"])?;
        let item_type =
            parameters.text("type").map(str::parse::<ItemType>).transpose().map_err(Error::from)?;
        let tier = parse_tier(&parameters)?;
        let limit = parameters.number("limit", DEFAULT_ITEMS, MAX_ITEMS)?;
        let all = parameters.flag("all", false)?;
        let Some(words) = parameters.text("q") else {
            let every = [SpaceTier::Project, SpaceTier::User, SpaceTier::System];
            let tiers = tier.map_or_else(|| every.to_vec(), |tier| vec![tier]);
            let mut found = list::list(engine, &list::ListOptions { item_type, pattern: None, tiers })?.items;
            found.retain(|item| all || item.shadowed_by.is_none());
            let total = found.len();
            found.truncate(limit);
            let data = json!({"query": "", "total": total, "results": found, "suggestions": []});
            return Ok(success(None, None, data));
        };
        let options = SearchOptions {
            query: words.to_owned(),
            item_type,
            tier,
            prefix: String::new(),
            limit: Some(limit),
            all,
        };
        let found = search::search(engine, &options, &mut |_, _| {})?;
        Ok(success(None, None, to_value(found)?))
    })
    .await
}

/// `GET /api/v1/items/{type}/{item}`
pub(super) async fn item(
    State(state): State<UiState>,
    Path((item_type, id)): Path<(String, String)>,
    request: Request,
) -> Response {
    let query = request.uri().query().map(str::to_owned);
    with_engine(state, move |state, engine| {
        let parameters = Parameters::parse(query.as_deref(), &["space"])?;
        let from = parse_tier(&parameters)?;
        let item = ItemRef::parse(Some(&item_type), &id).map_err(Error::from)?;
        let explained = why::why(engine, &item)?;
        let loaded = load::load(engine, &item, LoadOptions { from, unverified: true })?;
        let parameters = match item.item_type {
            ItemType::Tool => tool_schema(engine, &item),
            ItemType::Directive => directive_schema(&loaded.inputs),
            ItemType::Knowledge | ItemType::Config => Value::Null,
        };
        let is_runnable = matches!(item.item_type, ItemType::Tool | ItemType::Directive)
            && explained.chain_problem.is_none()
            && load::load(engine, &item, LoadOptions { from, unverified: false }).is_ok();
        let data = json!({
            "type": item.item_type.to_string(),
            "item_id": item.id.to_string(),
            "why": to_value(&explained)?,
            "source": to_value(source::source(engine, &item, from)?)?,
            "parameters": parameters,
            "metadata": loaded.metadata,
            "can_run": is_runnable && !state.is_read_only,
        });
        Ok(success(Some(&item_type), Some(&id), data))
    })
    .await
}

/// The schema of a tool's parameters, if it would run.
fn tool_schema(engine: &Engine, item: &ItemRef) -> Value {
    let grant = format!("rye.execute.tool.{}", item.id.as_str().replace('/', "."));
    let Ok(capabilities) = Capabilities::parse([grant]) else { return Value::Null };
    let preload = PreloadOptions { enabled: true, max_tokens: MAX_DEFINITION_TOKENS };
    let offered = definitions::build(engine, &capabilities, &[], preload);
    let own = offered.tools.iter().find(
        |tool| matches!(offered.names.get(&tool.name), Some(ToolBinding::Tool(id)) if id == item.id.as_str()),
    );
    own.map_or(Value::Null, |tool| tool.schema.clone())
}

/// The inputs of a directive as a schema.
fn directive_schema(inputs: &[Value]) -> Value {
    let text = |input: &Value, key: &str| input.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut properties = Map::new();
    let mut required = Vec::new();
    for input in inputs {
        let Some(name) = text(input, "name") else { continue };
        let mut schema = Map::new();
        let kind = match text(input, "type").as_deref() {
            Some("integer" | "int") => "integer",
            Some("number" | "float") => "number",
            Some("boolean" | "bool") => "boolean",
            Some("array" | "list") => "array",
            Some("object" | "map") => "object",
            Some(_) | None => "string",
        };
        schema.insert("type".to_owned(), json!(kind));
        for key in ["description", "default"] {
            if let Some(value) = input.get(key).filter(|value| !value.is_null()) {
                schema.insert(key.to_owned(), value.clone());
            }
        }
        let is_required =
            input.get("required").is_some_and(|word| *word == json!(true) || *word == json!("true"));
        if is_required {
            required.push(json!(name));
        }
        properties.insert(name, Value::Object(schema));
    }
    json!({"type": "object", "properties": properties, "required": required})
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunRequest {
    #[serde(rename = "type")]
    item_type: String,
    item_id: String,
    #[serde(default)]
    parameters: Map<String, Value>,
    #[serde(default)]
    dry_run: bool,
    limits: Option<Map<String, Value>>,
    model: Option<String>,
}

/// `POST /api/v1/run`
pub(super) async fn run(State(state): State<UiState>, request: Request) -> Response {
    let work = async || {
        let body: RunRequest = read_json(request).await?;
        let item = ItemRef::parse(Some(&body.item_type), &body.item_id).map_err(Error::from)?;
        match item.item_type {
            ItemType::Tool => run_tool(&state, item, body).await,
            ItemType::Directive => start_directive(&state, item, body).await,
            ItemType::Knowledge | ItemType::Config => {
                Err(Error::new(Code::NotExecutable, "only tools and directives run").for_item(&item))
            }
        }
    };
    respond(work().await)
}

async fn run_tool(state: &UiState, item: ItemRef, body: RunRequest) -> Result<Response> {
    // A page that is closed no longer wants the result: the run is cancelled.
    let wanted = CancellationToken::new();
    let _guard = wanted.clone().drop_guard();
    let cancel = CancelToken::new()?;
    let (ending, stop, unwanted) = (cancel.clone(), state.stop.clone(), wanted);
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = unwanted.cancelled() => {}
        }
        ending.cancel();
    });
    let inner = state.clone();
    let work = move || {
        let engine = inner.shared.engines.engine(None)?.engine;
        let request = ExecuteRequest::new(item.clone(), cancel)
            .with_parameters(body.parameters)
            .with_dry_run(body.dry_run);
        let mut value = execute::execute(&engine, &request)?.into_value();
        inner.shared.engines.redactor(&engine)?.redact_value(&mut value);
        let data = value.get_mut("data").map(Value::take).unwrap_or_default();
        Ok(success(Some("tool"), Some(item.id.as_str()), data))
    };
    state.shared.pool.run(Lane::Long, work).await
}

async fn start_directive(state: &UiState, item: ItemRef, body: RunRequest) -> Result<Response> {
    let mut request = ThreadRequest::new(item.clone(), body.parameters);
    request.model = body.model.filter(|model| !model.is_empty());
    request.limits = body.limits.unwrap_or_default();
    let first = request.clone();
    let is_dry_run = body.dry_run;
    let data = state
        .with_threads_for(Some(first), move |threads| async move {
            if is_dry_run {
                let prepared = threads.prepare(request).await?;
                return Ok(json!({
                    "model": prepared.model_choice.model,
                    "limits": prepared.spec.instance.limits.to_value(),
                    "notices": prepared.notices,
                }));
            }
            threads.start_detached(request, None).await
        })
        .await?;
    Ok(success(Some("directive"), Some(item.id.as_str()), data))
}

/// `GET /api/v1/bundles`
pub(super) async fn bundle_list(State(state): State<UiState>) -> Response {
    with_engine(state, |_, engine| {
        Ok(success(None, None, json!({"bundles": to_value(bundles::list(engine))?})))
    })
    .await
}

/// `GET /api/v1/bundles/{bundle}`
pub(super) async fn bundle(State(state): State<UiState>, Path(id): Path<String>) -> Response {
    with_engine(state, move |_, engine| {
        // An id, and never a path: the page names what is installed.
        let id = rye_item::BundleId::new(id).map_err(Error::from)?;
        let row = bundles::list(engine).into_iter().find(|row| row.bundle_id == id.as_str());
        if row.is_none() {
            let message = format!("no bundle is called `{id}`");
            return Err(Error::new(Code::NoBundle, message).hint("rye bundle list shows them"));
        }
        let folder = engine.workspace.roots.user.clone();
        let found = bundles::find(engine, id.as_str(), &folder)?;
        let inspected = to_value(bundles::inspect(engine, &found)?)?;
        Ok(success(Some("bundle"), Some(id.as_str()), inspected))
    })
    .await
}

/// `GET /api/v1/bundles/outdated`
pub(super) async fn outdated(State(state): State<UiState>, request: Request) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let inner = state.clone();
    let work = move || {
        let parameters = Parameters::parse(query.as_deref(), &["ask"])?;
        // Sources of bundles may be on other computers: they are asked when a person says so.
        if !parameters.flag("ask", false)? || inner.roots().project.is_none() {
            return Ok(success(None, None, json!({"bundles": []})));
        }
        let engine = inner.shared.engines.engine(None)?.engine;
        let cancel = CancelToken::new()?;
        let mut fetch = FetchContext { cancel: &cancel, on_bytes: &mut |_, _| {}, on_files: &|_, _| {} };
        let report = sync::outdated(&engine, None, &mut fetch)?;
        Ok(success(None, None, to_value(report)?))
    };
    respond(state.shared.pool.run(Lane::Long, work).await)
}

/// `GET /api/v1/upgrades`
pub(super) async fn upgrades(State(state): State<UiState>, request: Request) -> Response {
    let query = request.uri().query().map(str::to_owned);
    let inner = state.clone();
    let work = move || {
        let parameters = Parameters::parse(query.as_deref(), &["ask", "bundle"])?;
        let id = parameters.text("bundle").map(rye_item::BundleId::new).transpose().map_err(Error::from)?;
        if !parameters.flag("ask", false)? || inner.roots().project.is_none() {
            return Ok(success(None, None, json!({"plans": [], "removals": [], "unchanged": []})));
        }
        let engine = inner.shared.engines.engine(None)?.engine;
        let cancel = CancelToken::new()?;
        let mut fetch = FetchContext { cancel: &cancel, on_bytes: &mut |_, _| {}, on_files: &|_, _| {} };
        let prepared = sync::prepare_upgrade(&engine, id.as_ref(), SyncOptions::default(), &mut fetch)?;
        Ok(success(Some("bundle"), None, to_value(prepared.preview())?))
    };
    respond(state.shared.pool.run(Lane::Long, work).await)
}

/// `GET /api/v1/keys`
pub(super) async fn key_list(State(state): State<UiState>) -> Response {
    with_engine(state, |_, engine| Ok(success(None, None, to_value(keys::list(engine))?))).await
}

/// `GET /api/v1/config`
pub(super) async fn config_list(State(state): State<UiState>) -> Response {
    with_engine(state, |state, engine| {
        let mut value = to_value(config::show(engine, None)?)?;
        state.shared.engines.redactor(engine)?.redact_value(&mut value);
        Ok(success(Some("config"), None, value))
    })
    .await
}

/// `GET /api/v1/doctor`
pub(super) async fn doctor_report(State(state): State<UiState>) -> Response {
    let inner = state.clone();
    let work = move || {
        let engine = inner.shared.engines.engine(None)?.engine;
        let mut value = to_value(doctor::doctor(&engine, &mut |_, _| {}))?;
        inner.shared.engines.redactor(&engine)?.redact_value(&mut value);
        Ok(success(None, None, value))
    };
    respond(state.shared.pool.run(Lane::Long, work).await)
}
