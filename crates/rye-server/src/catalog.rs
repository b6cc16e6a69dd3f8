//! What a client's user can pick: directives as prompts, knowledge as resources, and completion for both.
//!
//! Only what may be used is listed: signed by a trusted key, and covered as a whole. Secrets are taken out of everything
//! by `Session::quick`, which is the only caller.

use rmcp::ErrorData;
use rmcp::model::{
    CompleteRequestParams, CompletionInfo, ErrorCode, GetPromptResult, Prompt, PromptArgument, PromptMessage,
    ReadResourceResult, Reference, Resource, ResourceContents, ResourceTemplate, Role,
};
use rye_agent::store::ThreadStoreError;
use rye_agent::thread_id::ThreadId;
use rye_agent::views::{ScheduleRow, ThreadIndex, resource_value, schedule_rows};
use rye_engine::verbs::execute::{self, ExecuteRequest, ExecuteResponse};
use rye_engine::verbs::load::{self, LoadedItem};
use rye_engine::verbs::search;
use rye_engine::{Code, Engine, Error, ErrorKind, Result, agent_actions};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How resources are named.
const SCHEME: &str = "rye://knowledge/";
/// How the results of threads are named.
const THREADS_SCHEME: &str = "rye://threads/";
/// What starts by itself in the project.
const SCHEDULES_URI: &str = "rye://schedules";
/// How many items a page of a list holds.
const PAGE_SIZE: usize = 200;
const MARKDOWN: &str = "text/markdown";
const JSON: &str = "application/json";

/// A page of a list, and where the next one begins.
#[derive(Serialize, Deserialize)]
pub(crate) struct CatalogPage<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<String>,
}

/// The items of a type after `cursor`, an id, that may be used. Rye's own directives are for rye.
fn list_page<T>(
    engine: &Engine,
    item_type: ItemType,
    cursor: Option<&str>,
    render: impl Fn(&ItemRef, LoadedItem) -> T,
) -> CatalogPage<T> {
    let mut items: Vec<T> = Vec::new();
    let ids = search::complete_ids(engine, Some(item_type), "");
    let mut rest = ids.iter().skip_while(|item| cursor.is_some_and(|cursor| item.id.as_str() <= cursor));
    while let Some(item) = rest.next() {
        let Ok(loaded) = load::load(engine, item, load::LoadOptions::default()) else {
            continue;
        };
        let is_internal = item_type == ItemType::Directive && loaded.space.tier() == SpaceTier::System;
        if is_usable(engine, &loaded) && !is_internal {
            items.push(render(item, loaded));
        }
        if items.len() == PAGE_SIZE {
            let next = rest.next().map(|_| item.id.to_string());
            return CatalogPage { items, next };
        }
    }
    CatalogPage { items, next: None }
}

fn is_usable(engine: &Engine, loaded: &LoadedItem) -> bool {
    loaded.coverage == "full" || engine.allows_partial_coverage()
}

/// Directives.
pub(crate) fn prompts(engine: &Engine, cursor: Option<&str>) -> CatalogPage<Prompt> {
    list_page(engine, ItemType::Directive, cursor, |item, loaded| {
        let arguments: Vec<PromptArgument> = loaded.inputs.iter().filter_map(prompt_argument).collect();
        let arguments = (!arguments.is_empty()).then_some(arguments);
        Prompt::new(item.id.to_string(), loaded.description, arguments).with_title(item.id.name())
    })
}

fn prompt_argument(input: &Value) -> Option<PromptArgument> {
    let name = input.get("name").and_then(Value::as_str)?;
    let type_name = text(input, "type").filter(|type_name| type_name != "string");
    let about = [text(input, "description"), type_name.map(|type_name| format!("({type_name})"))];
    let about = about.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let is_required = input.get("required").and_then(Value::as_bool).unwrap_or(false);
    let argument = PromptArgument::new(name).with_required(is_required);
    Some(if about.is_empty() { argument } else { argument.with_description(about) })
}

fn text(object: &Value, key: &str) -> Option<String> {
    object.get(key).and_then(Value::as_str).map(rye_item::text::one_line).filter(|text| !text.is_empty())
}

/// A directive's prompt with its inputs filled in.
///
/// # Errors
/// When it may not be used, or its inputs do not fit.
pub(crate) fn render_prompt(
    engine: &Engine,
    name: &str,
    inputs: Map<String, Value>,
) -> Result<GetPromptResult> {
    let item = ItemRef::new(ItemType::Directive, ItemId::new(name)?);
    let response = execute_item(engine, item, inputs)?;
    let body = response.data.get("body").and_then(Value::as_str).unwrap_or_default();
    let result = GetPromptResult::new(vec![PromptMessage::new_text(Role::User, body)]);
    Ok(match text(&response.data, "description") {
        Some(description) => result.with_description(description),
        None => result,
    })
}

/// Knowledge, and the schedules of the project if it has any.
pub(crate) fn resources(engine: &Engine, cursor: Option<&str>) -> CatalogPage<Resource> {
    let mut page = knowledge(engine, cursor);
    if cursor.is_none() && project_schedules(engine).is_ok_and(|schedules| !schedules.is_empty()) {
        let about = "What starts by itself in this project: when next, and what the last runs came to. Only the user changes it: rye schedule";
        let resource =
            Resource::new(SCHEDULES_URI, "schedules").with_title("Schedules").with_description(about);
        page.items.insert(0, resource.with_mime_type(JSON));
    }
    page
}

fn knowledge(engine: &Engine, cursor: Option<&str>) -> CatalogPage<Resource> {
    list_page(engine, ItemType::Knowledge, cursor, |item, loaded| {
        let size = u64::try_from(loaded.content.len()).unwrap_or(u64::MAX);
        let resource = Resource::new(resource_uri(&item.id), item.id.to_string())
            .with_mime_type(MARKDOWN)
            .with_size(size);
        let resource = match loaded.description {
            Some(description) => resource.with_description(description),
            None => resource,
        };
        match loaded.title {
            Some(title) => resource.with_title(title),
            None => resource,
        }
    })
}

/// Any knowledge entry by its id, and any thread by its name.
pub(crate) fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(format!("{SCHEME}{{+id}}"), "knowledge")
            .with_title("Knowledge")
            .with_description("A signed knowledge entry by its id, such as `team/conventions`")
            .with_mime_type(MARKDOWN),
        ResourceTemplate::new(format!("{THREADS_SCHEME}{{id}}"), "threads")
            .with_title("Threads")
            .with_description("How a thread stands: status, result, outputs, cost; by its id, such as `thread-0a1b2c3d4e5f`")
            .with_mime_type(JSON),
    ]
}

/// How a thread is named as a resource.
pub(crate) fn thread_uri(id: &str) -> String {
    format!("{THREADS_SCHEME}{id}")
}

/// A thread as its registry has it, once that is known to be what was written.
fn read_thread(engine: &Engine, uri: &str, id: &str) -> Result<ReadResourceResult> {
    let invalid = |error: String| Error::new(Code::InvalidArgument, error);
    let id = ThreadId::parse(id).map_err(|error| invalid(error.to_string()))?;
    let index = ThreadIndex::open_with(engine)?;
    let no_thread = || Error::from(ThreadStoreError::NoThread(id.clone()));
    let index = index.ok_or_else(no_thread)?;
    let row = index.store.verified_thread(&id)?.ok_or_else(no_thread)?;
    let details = resource_value(&index, &row)?;
    let text = serde_json::to_string_pretty(&details).map_err(|error| invalid(error.to_string()))?;
    Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri).with_mime_type(JSON)]))
}

/// The user's schedules that start in this project. Those of other projects are no business of its clients.
fn project_schedules(engine: &Engine) -> Result<Vec<Value>> {
    let (rows, _) = schedule_rows(&engine.workspace)?;
    let project = engine.workspace.roots.project.as_deref();
    let own = rows.iter().filter(|row| project == Some(row.schedule.project.as_path()));
    Ok(own.map(ScheduleRow::to_value).collect())
}

fn read_schedules(engine: &Engine) -> Result<ReadResourceResult> {
    let schedules = json!({ "schedules": project_schedules(engine)? });
    let text = serde_json::to_string_pretty(&schedules)
        .map_err(|error| Error::new(Code::InvalidArgument, error.to_string()))?;
    Ok(ReadResourceResult::new(vec![ResourceContents::text(text, SCHEDULES_URI).with_mime_type(JSON)]))
}

/// A knowledge entry's body, how a thread stands, or the project's schedules.
///
/// # Errors
/// When there is none, or it may not be used.
pub(crate) fn read_resource(engine: &Engine, uri: &str) -> Result<ReadResourceResult> {
    if let Some(id) = uri.strip_prefix(THREADS_SCHEME) {
        return read_thread(engine, uri, id);
    }
    if uri == SCHEDULES_URI {
        return read_schedules(engine);
    }
    let item = parse_resource_uri(uri)?;
    let response = execute_item(engine, item, Map::new())?;
    let body = response.data.get("body").and_then(Value::as_str).unwrap_or_default();
    Ok(ReadResourceResult::new(vec![ResourceContents::text(body, uri).with_mime_type(MARKDOWN)]))
}

/// How a knowledge entry is named as a resource.
pub(crate) fn resource_uri(id: &ItemId) -> String {
    format!("{SCHEME}{id}")
}

/// The knowledge entry a name stands for.
///
/// # Errors
/// When it stands for none.
pub(crate) fn parse_resource_uri(uri: &str) -> Result<ItemRef> {
    let id = uri.strip_prefix(SCHEME).ok_or_else(|| {
        Error::new(Code::InvalidArgument, format!("unknown resource `{}`", rye_item::text::one_line(uri)))
            .hint(format!("resources are named {SCHEME}<id>"))
    })?;
    // Some clients write a template's slashes encoded; nothing else in an id needs to be.
    let id = id.replace("%2F", "/").replace("%2f", "/");
    Ok(ItemRef::new(ItemType::Knowledge, ItemId::new(id)?))
}

fn execute_item(engine: &Engine, item: ItemRef, parameters: Map<String, Value>) -> Result<ExecuteResponse> {
    let request = ExecuteRequest::new(item, lillux::CancelToken::new()?).with_parameters(parameters);
    execute::execute(engine, &request)
}

/// Values that an argument could have.
pub(crate) fn completions(engine: &Engine, request: &CompleteRequestParams) -> CompletionInfo {
    let start = request.argument.value.as_str();
    let values = match &request.r#ref {
        Reference::Resource(resource) if resource.uri.starts_with(SCHEME) => {
            let items = search::complete_ids(engine, Some(ItemType::Knowledge), start);
            items.into_iter().map(|item| item.id.to_string()).collect()
        }
        Reference::Prompt(prompt) => input_values(engine, &prompt.name, &request.argument.name, start),
        _ => Vec::new(),
    };
    let total = u32::try_from(values.len()).ok();
    let has_more = values.len() > CompletionInfo::MAX_VALUES;
    let values = values.into_iter().take(CompletionInfo::MAX_VALUES).collect();
    CompletionInfo::with_pagination(values, total, has_more).unwrap_or_default()
}

/// What a directive says an input may be: its default, or either truth.
fn input_values(engine: &Engine, directive: &str, input: &str, start: &str) -> Vec<String> {
    let Ok(id) = ItemId::new(directive) else {
        return Vec::new();
    };
    let Ok(loaded) = load::load(engine, &ItemRef::new(ItemType::Directive, id), load::LoadOptions::default())
    else {
        return Vec::new();
    };
    let Some(declared) =
        loaded.inputs.iter().find(|declared| text(declared, "name").as_deref() == Some(input))
    else {
        return Vec::new();
    };
    let default = declared.get("default").filter(|default| !default.is_null());
    let default = default.map(|default| default.as_str().map_or_else(|| default.to_string(), str::to_owned));
    let is_boolean = text(declared, "type").is_some_and(|kind| kind.starts_with("bool"));
    let mut values: Vec<String> = default.into_iter().collect();
    if is_boolean {
        values.extend(["true".to_owned(), "false".to_owned()]);
    }
    let mut seen_values = std::collections::BTreeSet::new();
    values.retain(|value| value.starts_with(start) && seen_values.insert(value.clone()));
    values
}

/// A failure where the protocol has no place for an answer: the whole error goes along as data.
pub(crate) fn protocol_error(error: &Error) -> ErrorData {
    let error = &agent_actions::with_agent_hints(error.clone());
    let code = match (error.code, error.code.kind()) {
        (Code::NotFound, _) => ErrorCode::RESOURCE_NOT_FOUND,
        (_, ErrorKind::Usage | ErrorKind::NotFound) => ErrorCode::INVALID_PARAMS,
        (
            _,
            ErrorKind::Integrity
            | ErrorKind::Denied
            | ErrorKind::Limit
            | ErrorKind::Lock
            | ErrorKind::Validation,
        ) => ErrorCode::INVALID_REQUEST,
        (_, ErrorKind::Failed | ErrorKind::Cancelled) => ErrorCode::INTERNAL_ERROR,
    };
    ErrorData::new(code, error.to_string(), Some(error.to_value(None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_uri_cannot_escape() {
        assert_eq!(
            parse_resource_uri("rye://knowledge/team/rules").expect("an item").id.as_str(),
            "team/rules"
        );
        assert_eq!(
            parse_resource_uri("rye://knowledge/team%2Frules").expect("an item").id.as_str(),
            "team/rules"
        );
        for wrong in [
            "rye://knowledge/",
            "rye://knowledge/../keys/x",
            "rye://knowledge/..%2Fkeys",
            "rye://knowledge//etc/passwd",
            "rye://tool/a",
            "file:///etc/passwd",
            "",
        ] {
            assert!(parse_resource_uri(wrong).is_err(), "{wrong}");
        }
    }
}
