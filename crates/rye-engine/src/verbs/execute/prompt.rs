//! Executing what has no chain: a directive gives its prompt, a knowledge entry its body.

use std::sync::Arc;

use rye_item::interpolate::interpolate_inputs;
use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType, inputs, metadata, parse};
use rye_space::ItemFile;
use rye_trust::Admitted;
use serde_json::{Map, Value, json};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// An item that may be used as instructions: admitted, and covered as a whole unless signed config allows less.
///
/// # Errors
/// When it is not trusted, only partly covered, or does not parse.
pub(super) fn admit_instructions(
    engine: &Engine,
    item: &ItemRef,
    source: Option<SpaceTier>,
) -> Result<Arc<Admitted<ItemFile>>> {
    let located = engine.locate(item, source)?;
    let admitted = engine.admit_cached(located)?;
    if !admitted.is_forgiven() && !admitted.is_fully_covered() && !engine.allows_partial_coverage() {
        let uncovered: Vec<Value> =
            admitted.report().uncovered.iter().map(|range| json!([range.start, range.end])).collect();
        return Err(Error::new(Code::Partial, format!("{item} is only partly covered by its signature"))
            .for_item(item)
            .detail("path", admitted.path.display().to_string())
            .detail("uncovered", uncovered)
            .hint(format!("read all of it, then sign it again: rye sign {} {}", item.item_type, item.id)));
    }
    if !admitted.parsed().problems.is_empty() {
        return Err(Error::invalid(item, &admitted.path, &admitted.parsed().problems));
    }
    Ok(admitted)
}

/// What a directive asks for, its inputs checked and filled in.
///
/// # Errors
/// When it may not be used, or its inputs do not fit.
pub(super) fn directive_data(
    engine: &Engine,
    item: &ItemRef,
    source: Option<SpaceTier>,
    inputs: &Map<String, Value>,
) -> Result<Value> {
    fill_directive(&*admit_instructions(engine, item, source)?, item, inputs)
}

/// A directive as a thread needs it: everything its author wrote, and its prompt filled in.
#[derive(Clone, Debug)]
pub struct LoadedDirective {
    /// What the file says, field by field.
    pub fields: Map<String, Value>,
    /// What `execute` answers: prompt, actions and inputs, filled in.
    pub data: Value,
    /// The hash of the file.
    pub hash: lillux::Digest,
}

/// A directive to be run in a thread.
///
/// # Errors
/// As executing it.
pub fn load_directive(
    engine: &Engine,
    item: &ItemRef,
    inputs: &Map<String, Value>,
) -> Result<LoadedDirective> {
    let admitted = admit_instructions(engine, item, None)?;
    let data = fill_directive(&admitted, item, inputs)?;
    let mut fields = admitted.parsed().fields.clone();
    fields.extend(admitted.fields().clone());
    Ok(LoadedDirective { fields, data, hash: lillux::Digest::of(admitted.text().as_bytes()) })
}

/// What a directive's file says, field by field; its inputs are not asked for.
///
/// # Errors
/// When it may not be used.
pub fn directive_fields(engine: &Engine, item: &ItemRef) -> Result<Map<String, Value>> {
    let admitted = admit_instructions(engine, item, None)?;
    let mut fields = admitted.parsed().fields.clone();
    fields.extend(admitted.fields().clone());
    Ok(fields)
}

/// The body of a knowledge entry.
///
/// # Errors
/// When it may not be used.
pub fn knowledge_text(engine: &Engine, item: &ItemRef) -> Result<String> {
    let admitted = admit_instructions(engine, item, None)?;
    Ok(admitted.parsed().text("body").unwrap_or_default().trim().to_owned())
}

fn fill_directive(
    admitted: &Admitted<ItemFile>,
    item: &ItemRef,
    provided: &Map<String, Value>,
) -> Result<Value> {
    let fields = admitted.fields();
    let declared = fields.get("inputs").and_then(Value::as_array).cloned().unwrap_or_default();
    let inputs = inputs::check_inputs(&declared, provided).map_err(|problems| {
        let error = Error::new(Code::InvalidInputs, problems.to_string()).for_item(item);
        let error = error.detail("declared_inputs", declared_inputs(item, fields));
        let error = error.detail("unknown", problems.unknown.clone());
        let error = error.detail("missing", problems.missing.clone());
        let names: Vec<&str> = problems.declared.iter().map(String::as_str).collect();
        let error = crate::missing::hint_misspelled(error, &problems.unknown, &names);
        error.hint(format!("see what it takes: rye load directive {}", item.id))
    })?;
    let parsed = &admitted.parsed().fields;
    let fill = |text: &str| interpolate_inputs(text, &inputs);
    let text = |key: &str| parsed.get(key).and_then(Value::as_str).unwrap_or_default();
    let actions =
        parsed.get("actions").map(|actions| fill_inputs(actions, &inputs)).unwrap_or_else(|| json!([]));
    let mut data = match metadata::display_metadata(ItemType::Directive, fields) {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    data.insert("body".to_owned(), json!(fill(parse::directive::prompt(parsed))));
    data.insert("preamble".to_owned(), json!(fill(text("preamble"))));
    data.insert("content".to_owned(), json!(fill(text("content"))));
    data.insert("actions".to_owned(), actions);
    data.insert("given_inputs".to_owned(), Value::Object(inputs.clone()));
    Ok(Value::Object(data))
}

fn declared_inputs(item: &ItemRef, fields: &Map<String, Value>) -> Value {
    metadata::display_metadata(item.item_type, fields).get("inputs").cloned().unwrap_or_default()
}

fn fill_inputs(value: &Value, inputs: &Map<String, Value>) -> Value {
    match value {
        Value::String(text) => Value::String(interpolate_inputs(text, inputs)),
        Value::Array(list) => Value::Array(list.iter().map(|value| fill_inputs(value, inputs)).collect()),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), fill_inputs(value, inputs))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A knowledge entry's body, with its metadata.
///
/// # Errors
/// When it may not be used.
pub(super) fn knowledge_data(engine: &Engine, item: &ItemRef, source: Option<SpaceTier>) -> Result<Value> {
    let admitted = admit_instructions(engine, item, source)?;
    let mut data = match metadata::display_metadata(ItemType::Knowledge, admitted.fields()) {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let body = admitted.parsed().text("body").unwrap_or_default();
    data.insert("content".to_owned(), json!(body));
    data.insert("body".to_owned(), json!(body));
    if data.get("name").is_none_or(Value::is_null) {
        data.insert("name".to_owned(), json!(item.id.to_string()));
    }
    Ok(Value::Object(data))
}
