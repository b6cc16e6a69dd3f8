//! What a thread was started from, and what each of its turns cost.

use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::journal::JournalHeader;
use crate::spec::ThreadTemplate;
use crate::store::ThreadRow;
use crate::transcript::{self, TranscriptPosition};

/// Turns whose costs are listed.
const MAX_TURNS: usize = 5000;

/// The prompt, inputs, permissions, tools and hooks that are frozen in a thread's journal, as JSON.
///
/// # Errors
/// When the journal cannot be read or was changed.
pub fn start_value(index: &ThreadIndex, row: &ThreadRow) -> Result<Value> {
    let damaged = |what: String| Error::new(Code::StoreDamaged, format!("{}: {what}", row.id));
    let records = index.store.journal(&row.id)?;
    let first = records.first().ok_or_else(|| damaged("its journal is empty".to_owned()))?;
    let header = JournalHeader::parse(&first.body).map_err(|error| damaged(error.to_string()))?;
    let digest = header.template.parse().map_err(|_| damaged("its journal names no template".to_owned()))?;
    let template: ThreadTemplate = serde_json::from_slice(&index.store.blob(&digest)?)
        .map_err(|error| damaged(format!("its frozen configuration cannot be read: {error}")))?;
    let own = header.own;
    let files: Vec<Value> = own.files.iter().map(|file| json!(file)).collect();
    let hooks: Vec<&str> = template.hooks.all().iter().map(|hook| hook.id.as_str()).collect();
    Ok(json!({
        "prompt": own.prompt,
        "system": template.system,
        "inputs": own.inputs,
        "files": files,
        "capabilities": own.capabilities.iter().collect::<Vec<_>>(),
        "tools": template.definitions.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(),
        "directive_hash": template.directive_hash,
        "limits": own.limits.to_value(),
        "hooks": hooks,
        "fallbacks": template.fallbacks.iter().map(|model| model.model.as_str()).collect::<Vec<_>>(),
        "rye": header.rye,
    }))
}

/// The model calls of a thread in order, as its transcript has them: what each used and cost.
#[must_use]
pub fn turn_values(index: &ThreadIndex, row: &ThreadRow) -> Vec<Value> {
    let path = index.transcript_path(&row.id);
    let batch = transcript::read(&path, TranscriptPosition::default(), usize::MAX).unwrap_or_default();
    let calls = batch.events.iter().filter(|event| event.event_type == "cognition_out");
    let turns = calls.take(MAX_TURNS).zip(1_u64..).map(|(event, turn)| {
        let part = |name: &str| event.payload.get(name).filter(|value| value.is_number());
        json!({
            "turn": turn,
            "model": event.payload.get("model").and_then(Value::as_str).unwrap_or_default(),
            "input_tokens": part("input_tokens"),
            "output_tokens": part("output_tokens"),
            "spend": part("spend"),
            "at": event.timestamp,
        })
    });
    turns.collect()
}
