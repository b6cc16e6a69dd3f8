//! What a thread may read of others: their transcripts, if those are what was written.

use rye_engine::{Code, Error, Result};
use serde_json::{Map, Value, json};

use super::records::RecordReader;
use crate::config::{ThreadConfig, TranscriptIntegrity};
use crate::store::ThreadRow;
use crate::thread_id::ThreadId;
use crate::transcript::{self, TranscriptStatus};

/// Events a search looks at.
const SEARCHED_EVENTS: [&str; 4] = ["cognition_in", "cognition_out", "tool_call_start", "tool_call_result"];

/// Events of one transcript that are read at most.
const MAX_EVENTS: usize = 100_000;

impl RecordReader {
    /// What is wrong with a transcript, where that may be read all the same.
    fn check_transcript(&self, config: &ThreadConfig, row: &ThreadRow) -> Result<Option<String>> {
        // What cannot be written again is reported as it stands.
        let now = self.clock.now_ms();
        let folder = self.readable_folder(&row.id)?;
        let _ = super::rebuild_files(&self.store, &folder, &row.id, &self.signer, now);
        let path = transcript::path(&folder, &row.id);
        let keys = |fingerprint: &lillux::Fingerprint| self.transcript_key(fingerprint);
        let report = transcript::verify(&path, &row.id, row.transcript_head, &keys)?;
        let problem = match report.status {
            TranscriptStatus::Valid => return Ok(None),
            // It is still being written.
            TranscriptStatus::UnsignedTail | TranscriptStatus::Unsigned if !row.status.is_terminal() => {
                return Ok(None);
            }
            TranscriptStatus::Tampered => "was changed",
            TranscriptStatus::Truncated => "was cut",
            TranscriptStatus::UnsignedTail | TranscriptStatus::Unsigned => "is not signed to its end",
        };
        let message = format!("the transcript of {} {problem}", row.id);
        match config.coordination.transcript_integrity {
            TranscriptIntegrity::Lenient => Ok(Some(message)),
            TranscriptIntegrity::Strict => Err(Error::new(Code::TranscriptTampered, message)
                .detail("thread_id", row.id.as_str())
                .hint(format!("rye thread verify {}", row.id))),
        }
    }

    pub(super) fn read_transcript(
        &self,
        config: &ThreadConfig,
        row: &ThreadRow,
        tail: Option<u64>,
    ) -> Result<Value> {
        let warning = self.check_transcript(config, row)?;
        let mut response =
            json!({"success": true, "thread_id": row.id, "content": self.markdown(row, tail)?});
        if let Some(warning) = warning {
            response["warning"] = json!(warning);
        }
        Ok(response)
    }

    pub(super) fn chain_search(
        &self,
        config: &ThreadConfig,
        row: &ThreadRow,
        params: &Map<String, Value>,
    ) -> Result<Value> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let query = params.get("query").and_then(Value::as_str).unwrap_or_default();
        if query.is_empty() {
            return Err(invalid("`query` is missing".to_owned()));
        }
        let is_regex = params.get("search_type").and_then(Value::as_str) == Some("regex");
        let pattern = if is_regex { query.to_owned() } else { regex::escape(query) };
        let pattern = regex::RegexBuilder::new(&pattern)
            .case_insensitive(!is_regex)
            .size_limit(1 << 20)
            .build()
            .map_err(|error| invalid(format!("`query` is not a regular expression: {error}")))?;
        let max = params.get("max_results").and_then(Value::as_u64).unwrap_or(50).min(500);
        let chain = self.store.chain(row)?;
        let mut hits = Vec::new();
        let mut warnings = Vec::new();
        for row in &chain {
            warnings.extend(self.check_transcript(config, row)?);
            for event in self
                .events(&row.id)?
                .iter()
                .filter(|event| SEARCHED_EVENTS.contains(&event.event_type.as_str()))
            {
                let text = event.payload.to_string();
                let matches: Vec<&str> =
                    pattern.find_iter(&text).take(5).map(|found| found.as_str()).collect();
                if !matches.is_empty() {
                    let snippet: String = text.chars().take(500).collect();
                    hits.push(json!({
                        "thread_id": row.id, "event_type": event.event_type, "line_no": event.line,
                        "snippet": snippet, "matches": matches,
                    }));
                }
            }
        }
        let is_truncated = u64::try_from(hits.len()).unwrap_or(u64::MAX) > max;
        hits.truncate(usize::try_from(max).unwrap_or(usize::MAX));
        Ok(json!({
            "success": true,
            "warnings": warnings,
            "chain_length": chain.len(),
            "chain_threads": chain.iter().map(|row| &row.id).collect::<Vec<_>>(),
            "truncated": is_truncated,
            "results": hits,
        }))
    }

    /// All events of a thread's transcript.
    fn events(&self, id: &ThreadId) -> Result<Vec<transcript::TranscriptEvent>> {
        let path = transcript::path(&self.readable_folder(id)?, id);
        Ok(transcript::read(&path, transcript::TranscriptPosition::default(), MAX_EVENTS)?.events)
    }

    fn markdown(&self, row: &ThreadRow, tail: Option<u64>) -> Result<String> {
        let header = transcript::PageHeader { directive: &row.directive, status: row.status, cost: row.cost };
        let page = transcript::render_markdown(&header, &self.events(&row.id)?);
        let Some(tail) = tail.and_then(|tail| usize::try_from(tail).ok()) else { return Ok(page) };
        let lines: Vec<&str> = page.lines().collect();
        Ok(lines[lines.len().saturating_sub(tail)..].join("\n"))
    }
}
