//! What is to be seen of a thread and those it starts: envelopes and words on their way in, lines out.

use std::collections::BTreeMap;

use anstyle::Style;
use rye_agent::models::OFFLINE_PROVIDER;
use rye_agent::money::Nanos;
use rye_agent::threads::NO_MODEL_NOTE;
use serde_json::Value;

use self::calls::Calls;
use self::refusals::Refusals;
use super::format::{format_count, format_duration, format_money, pluralize, truncate};
use crate::output::{DIM, ERROR, NAME, SUCCESS, WARNING, paint};

mod budgets;
mod calls;
mod refusals;

/// The longest arguments, and the longest reason of a failure, on a line.
const MAX_TEXT_LENGTH: usize = 60;

/// How much is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct ViewOptions {
    /// Words of the model are shown as they come; else once they are whole.
    pub stream: bool,
    /// Calls of children are shown too.
    pub show_inner_calls: bool,
    /// Events that seldom matter are shown too.
    pub is_verbose: bool,
    /// The caller prints why the thread itself stopped.
    pub omit_reason: bool,
    /// Columns of the terminal; words on their way are broken there.
    pub width: usize,
}

/// What has been seen of some threads.
#[derive(Debug)]
pub struct ThreadView {
    options: ViewOptions,
    root: Option<String>,
    threads: BTreeMap<String, ThreadProgress>,
    /// Words of the root's answer so far.
    stream_text: String,
    /// Where in them the part begins that is not a line yet.
    line_start: usize,
    /// An answer that may turn out to be the result.
    pending: Option<String>,
    /// The last answer that was shown whole.
    last_printed: Option<String>,
    /// What was refused to calls of the root.
    refusals: Refusals,
}

/// One thread.
#[derive(Debug, Default)]
struct ThreadProgress {
    directive: String,
    depth: usize,
    turns: u64,
    tokens: u64,
    spend: Nanos,
    max_turns: Option<u64>,
    max_spend: Option<Nanos>,
    calls: Calls,
    is_thinking: bool,
    has_ended: bool,
}

impl ThreadView {
    /// Nothing seen yet. `root`, if it is known, is not a child.
    pub fn new(options: ViewOptions) -> Self {
        Self {
            options,
            root: None,
            threads: BTreeMap::new(),
            stream_text: String::new(),
            line_start: 0,
            pending: None,
            last_printed: None,
            refusals: Refusals::default(),
        }
    }

    /// The thread it is about, and what it had used before.
    pub fn set_root(&mut self, thread: &str, turns: u64, tokens: u64, spend: Nanos) {
        self.root = Some(thread.to_owned());
        let progress = self.threads.entry(thread.to_owned()).or_default();
        (progress.turns, progress.tokens, progress.spend) = (turns, tokens, spend);
    }

    /// The calls that had not come back when it stopped, of what its transcript says before the first event that is shown.
    pub fn add_running_calls<'a>(
        &mut self,
        thread: &str,
        events: impl IntoIterator<Item = (&'a str, &'a Value)>,
    ) {
        let calls = &mut self.threads.entry(thread.to_owned()).or_default().calls;
        for (kind, payload) in events {
            match kind {
                "tool_call_start" => calls.start(payload),
                "tool_call_result" => drop(calls.finish(payload)),
                "tool_call_changed" => drop(calls.change_arguments(payload)),
                _ => {}
            }
        }
    }

    /// A thread below it, so many levels down.
    pub fn add_child(&mut self, child: &str, directive: &str, depth: usize) {
        let progress = self.threads.entry(child.to_owned()).or_default();
        progress.depth = depth;
        directive.clone_into(&mut progress.directive);
    }

    /// Words on their way; lines that are whole now.
    pub fn push_text(&mut self, thread: &str, text: &str) -> Vec<String> {
        if !self.options.stream || self.root.as_deref().is_some_and(|root| root != thread) {
            return Vec::new();
        }
        self.stream_text.push_str(text);
        let mut lines = Vec::new();
        while let Some(length) = self.stream_text[self.line_start..].find('\n') {
            let end = self.line_start + length;
            lines.extend(self.wrap_lines(end));
            lines.push(self.format_part(end));
            self.line_start = end + 1;
        }
        lines.extend(self.wrap_lines(self.stream_text.len()));
        lines
    }

    /// The words between the last line and `end`, safe to show.
    fn format_part(&self, end: usize) -> String {
        rye_item::text::strip_controls(&self.stream_text[self.line_start..end]).replace('\t', "    ")
    }

    /// Lines that are broken off because they are too wide.
    fn wrap_lines(&mut self, end: usize) -> Vec<String> {
        let width = self.options.width.max(20);
        let mut lines = Vec::new();
        loop {
            let part = &self.stream_text[self.line_start..end];
            let Some((limit, _)) = part.char_indices().nth(width) else {
                return lines;
            };
            let at = part[..limit].rfind(' ').map_or(limit, |blank| blank + 1);
            let line_end = self.line_start + at;
            lines.push(self.format_part(line_end).trim_end().to_owned());
            self.line_start = line_end;
        }
    }

    /// The words that are not a line yet.
    pub fn partial_line(&self) -> String {
        self.format_part(self.stream_text.len())
    }

    /// An event; lines that follow from it.
    pub fn handle_event(&mut self, envelope: &Value) -> Vec<String> {
        let text = |key: &str| envelope.get(key).and_then(Value::as_str).unwrap_or_default();
        let (kind, thread) = (text("event_type"), text("thread_id").to_owned());
        let payload = envelope.get("payload").unwrap_or(&Value::Null);
        if self.root.is_none() {
            self.root = Some(thread.clone());
        }
        let is_root = self.root.as_deref() == Some(thread.as_str());
        let of = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| payload.get(key).and_then(Value::as_u64).unwrap_or(0);
        match kind {
            "tool_call_result" if is_root => self.refusals.add_result(payload),
            // Only what the model asked for is the directive's to grant.
            "permission_denied" if is_root && of("asker").is_empty() => self.refusals.add_denial(payload),
            _ => {}
        }
        let mut lines = Vec::new();
        match kind {
            "thread_started" | "thread_resumed" => {
                let progress = self.threads.entry(thread.clone()).or_default();
                progress.has_ended = false;
                of("directive").clone_into(&mut progress.directive);
                let limits = payload.get("limits");
                progress.max_turns = limits.and_then(|limits| limits.get("turns")).and_then(Value::as_u64);
                progress.max_spend =
                    limits.and_then(|limits| limits.get("spend")).and_then(Nanos::from_value);
                if is_root {
                    let mut parts = vec![truncate(of("directive"), MAX_TEXT_LENGTH)];
                    let candidates: Vec<&str> = payload
                        .get("candidates")
                        .and_then(Value::as_array)
                        .into_iter()
                        .flatten()
                        .filter_map(Value::as_str)
                        .collect();
                    let provider = match candidates.is_empty() {
                        true => of("provider").to_owned(),
                        false => format!("{} (first of {})", of("provider"), candidates.join(", ")),
                    };
                    parts
                        .extend([provider.as_str(), of("model")].map(|part| truncate(part, MAX_TEXT_LENGTH)));
                    if of("provider") == OFFLINE_PROVIDER {
                        parts.push(NO_MODEL_NOTE.to_owned());
                    }
                    parts.push(thread);
                    parts.retain(|part| !part.is_empty());
                    // A provider with one model is often named as it is.
                    parts.dedup();
                    let word = if kind == "thread_resumed" { "resumed · " } else { "" };
                    lines.push(paint(DIM, format_args!("▶ {word}{}", parts.join(" · "))));
                }
            }
            "thread_continued" if is_root => {
                let previous = truncate(of("previous_thread_id"), MAX_TEXT_LENGTH);
                lines.push(paint(DIM, format_args!("  continues {previous}")));
            }
            "thread_forked" if is_root => {
                let source = truncate(of("source_thread_id"), MAX_TEXT_LENGTH);
                let turn = number("source_turn");
                lines.push(paint(DIM, format_args!("  forked from {source} at turn {turn}")));
            }
            "cognition_out" => lines.extend(self.on_response(&thread, is_root, payload)),
            "cognition_in" => {
                lines.extend(self.flush_pending());
                let progress = self.threads.entry(thread).or_default();
                progress.is_thinking = true;
            }
            "tool_call_start" => {
                lines.extend(self.flush_pending());
                self.threads.entry(thread).or_default().calls.start(payload);
            }
            "tool_call_result" => {
                let progress = self.threads.entry(thread).or_default();
                let line = progress.calls.finish(payload);
                if is_root || self.options.show_inner_calls {
                    lines.push(format!("{}{line}", "  ".repeat(progress.depth)));
                }
            }
            "tool_call_changed" | "tool_result_changed" => {
                let progress = self.threads.entry(thread).or_default();
                let line = match kind {
                    "tool_call_changed" => progress.calls.change_arguments(payload),
                    _ => progress.calls.change_result(payload),
                };
                if is_root || self.options.show_inner_calls {
                    lines.push(format!("{}{line}", "  ".repeat(progress.depth)));
                }
            }
            "budget_waiting" => {
                if is_root {
                    lines.extend(self.flush_stream());
                }
                let depth = self.threads.get(&thread).map_or(0, |progress| progress.depth);
                lines.push(format!("{}{}", "  ".repeat(depth), budgets::wait_line(&thread, payload)));
            }
            // What the model itself was refused is reported with its call.
            "permission_denied" if of("asker") == "tool" && (is_root || self.options.show_inner_calls) => {
                let depth = self.threads.get(&thread).map_or(0, |progress| progress.depth) + 1;
                let reason = truncate(of("error"), 2 * MAX_TEXT_LENGTH);
                lines.push(format!("{}{} its tool: {reason}", "  ".repeat(depth), paint(ERROR, "✗")));
            }
            "child_thread_started" => {
                let depth = self.threads.get(&thread).map_or(0, |progress| progress.depth) + 1;
                self.add_child(of("child_thread_id"), of("child_directive"), depth);
                let name = truncate(of("child_directive"), MAX_TEXT_LENGTH);
                let id = truncate(of("child_thread_id"), MAX_TEXT_LENGTH);
                lines.push(format!(
                    "{}↳ {} {}",
                    "  ".repeat(depth),
                    paint(NAME, name),
                    paint(DIM, format_args!("· {id}"))
                ));
            }
            "thread_completed" | "thread_error" | "thread_cancelled" | "thread_killed"
            | "thread_suspended" => {
                lines.extend(self.on_thread_end(&thread, is_root, kind, payload));
            }
            "retry_scheduled" => {
                if is_root {
                    lines.extend(self.flush_stream());
                }
                let progress = self.threads.entry(thread).or_default();
                lines.push(format!(
                    "{}{} retry {} of {} in {}: {}",
                    "  ".repeat(progress.depth),
                    paint(WARNING, "↻"),
                    number("attempt"),
                    number("of"),
                    format_duration(number("delay_ms")),
                    truncate(of("error"), MAX_TEXT_LENGTH)
                ));
            }
            "human_approval_requested" => {
                let depth = self.threads.get(&thread).map_or(0, |progress| progress.depth);
                lines.push(format!(
                    "{}{} {} {}",
                    "  ".repeat(depth),
                    paint(WARNING, "?"),
                    truncate(of("prompt"), 2 * MAX_TEXT_LENGTH),
                    paint(DIM, format_args!("· rye thread approve {thread}"))
                ));
            }
            "provider_fallback" => {
                if is_root {
                    lines.extend(self.flush_stream());
                }
                let progress = self.threads.entry(thread).or_default();
                let name =
                    |provider: &str, model: &str| truncate(&format!("{provider}/{model}"), MAX_TEXT_LENGTH);
                lines.push(format!(
                    "{}{} {} failed: {}; asking {}",
                    "  ".repeat(progress.depth),
                    paint(WARNING, "↻"),
                    name(of("failed_provider"), of("failed_model")),
                    truncate(of("error"), 2 * MAX_TEXT_LENGTH),
                    name(of("provider"), of("model"))
                ));
            }
            "hook_failed" => {
                let (hook, error) =
                    (truncate(of("hook"), MAX_TEXT_LENGTH), truncate(of("error"), 2 * MAX_TEXT_LENGTH));
                lines.push(format!("{} hook {hook} failed: {error}", paint(WARNING, "!")));
            }
            "impossible_usage" => {
                let provider = truncate(of("provider"), MAX_TEXT_LENGTH);
                lines.push(format!(
                    "{} {provider} says it used {} and {} tokens: more than can be; counted are {} and {}",
                    paint(WARNING, "!"),
                    number("reported_input_tokens"),
                    number("reported_output_tokens"),
                    number("input_tokens"),
                    number("output_tokens"),
                ));
            }
            "context_compacted" => {
                let removed = pluralize(number("messages_removed"), "message");
                lines.push(paint(DIM, format_args!("… the conversation was shortened by {removed}")));
            }
            other
                if self.options.is_verbose
                    && !matches!(other, "cognition_out_delta" | "cognition_reasoning") =>
            {
                lines.push(paint(DIM, format_args!("· {}", truncate(other, MAX_TEXT_LENGTH))));
            }
            _ => {}
        }
        lines
    }

    /// The model has answered.
    fn on_response(&mut self, thread: &str, is_root: bool, payload: &Value) -> Vec<String> {
        let number = |key: &str| payload.get(key).and_then(Value::as_u64).unwrap_or(0);
        let is_partial = payload.get("is_partial").and_then(Value::as_bool).unwrap_or(false);
        let progress = self.threads.entry(thread.to_owned()).or_default();
        progress.is_thinking = false;
        progress.calls.forget_finished();
        progress.turns += u64::from(!is_partial);
        progress.tokens =
            progress.tokens.saturating_add(number("input_tokens")).saturating_add(number("output_tokens"));
        progress.spend =
            progress.spend.plus(payload.get("spend").and_then(Nanos::from_value).unwrap_or_default());
        let text = payload.get("text").and_then(Value::as_str).unwrap_or_default();
        let mut lines = Vec::new();
        if !is_root {
            return lines;
        }
        lines.extend(self.flush_pending());
        if self.stream_text.is_empty() {
            self.pending = Some(text.to_owned()).filter(|text| !text.trim().is_empty());
            return lines;
        }
        // Words on their way may be lost: then this was not all of it.
        self.last_printed = (self.stream_text == text).then(|| text.to_owned());
        lines.extend(self.flush_stream());
        lines
    }

    /// An answer that is not the result after all.
    fn flush_pending(&mut self) -> Vec<String> {
        let Some(text) = self.pending.take() else {
            return Vec::new();
        };
        let lines = rye_item::text::strip_controls(&text).lines().map(str::to_owned).collect();
        self.last_printed = Some(text);
        lines
    }

    /// Words of an answer that does not come any more.
    fn flush_stream(&mut self) -> Option<String> {
        let rest = Some(self.partial_line()).filter(|rest| !rest.is_empty());
        self.stream_text.clear();
        self.line_start = 0;
        rest
    }

    /// A thread has ended or stopped.
    fn on_thread_end(
        &mut self,
        thread: &str,
        is_root: bool,
        event_type: &str,
        payload: &Value,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        if is_root {
            lines.extend(self.flush_stream());
        }
        let progress = self.threads.entry(thread.to_owned()).or_default();
        progress.has_ended = true;
        // The calls of a suspended thread wait for an answer, and end once it is resumed.
        if event_type != "thread_suspended" {
            progress.calls.clear();
        }
        let status = event_type.strip_prefix("thread_").unwrap_or(event_type);
        let (mark, style) = status_mark(status);
        let cost = payload.get("cost");
        let used = |key: &str, default: u64| {
            cost.and_then(|cost| cost.get(key)).and_then(Value::as_u64).unwrap_or(default)
        };
        let tokens = used("input_tokens", progress.tokens).saturating_add(used("output_tokens", 0));
        let spend =
            cost.and_then(|cost| cost.get("spend")).and_then(Nanos::from_value).unwrap_or(progress.spend);
        let mut parts = vec![paint(style, format_args!("{mark} {}", status_label(status)))];
        if !is_root {
            parts.push(truncate(&progress.directive, MAX_TEXT_LENGTH));
        }
        parts.push(pluralize(used("turns", progress.turns), "turn"));
        parts.push(pluralize(tokens, "token"));
        parts.push(format_money(spend));
        parts.extend(elapsed_time(payload));
        let reason = ["error", "reason"].iter().find_map(|key| payload.get(key)).and_then(Value::as_str);
        if let Some(reason) = reason.filter(|_| !is_root) {
            parts.push(paint(WARNING, truncate(reason, 2 * MAX_TEXT_LENGTH)));
        }
        lines.push(format!("{}{}", "  ".repeat(progress.depth), parts.join(" · ")));
        if let Some(reason) = reason.filter(|_| is_root && !self.options.omit_reason) {
            lines.push(format!("  {}", paint(style, truncate(reason, 10 * MAX_TEXT_LENGTH))));
        }
        lines
    }

    /// What is still to be shown when nothing more comes.
    pub fn flush(&mut self) -> Vec<String> {
        let mut lines = self.flush_pending();
        lines.extend(self.flush_stream());
        lines
    }

    /// What to do about the calls of the thread itself that were refused.
    pub fn refusal_hints(&self) -> &[String] {
        self.refusals.hints()
    }

    /// Whether this text has been shown already, whole.
    pub fn has_printed(&self, text: &str) -> bool {
        self.last_printed.as_deref() == Some(text)
    }

    /// Where it stands, in one line: turns, tokens, money, time, and what is running.
    pub fn status_line(&self, elapsed_ms: u64) -> String {
        let root = self.root.as_ref().and_then(|root| self.threads.get(root));
        let of_limit = |limit: Option<String>| limit.map(|limit| format!("/{limit}")).unwrap_or_default();
        let turn = root.map_or(0, |root| root.turns) + 1;
        let max_turns = of_limit(root.and_then(|root| root.max_turns).map(format_count));
        let tokens = self.threads.values().fold(0_u64, |sum, progress| sum.saturating_add(progress.tokens));
        let spend = self.threads.values().fold(Nanos(0), |sum, progress| sum.plus(progress.spend));
        let max_spend = of_limit(root.and_then(|root| root.max_spend).map(format_money));
        let mut parts = vec![
            format!("turn {turn}{max_turns}"),
            pluralize(tokens, "token"),
            format!("{}{max_spend}", format_money(spend)),
            format_duration(elapsed_ms),
        ];
        let running: Vec<&str> = self
            .threads
            .values()
            .filter(|progress| !progress.has_ended)
            .flat_map(|progress| progress.calls.running_tools())
            .collect();
        match running.as_slice() {
            [] if root.is_some_and(|root| root.is_thinking) => parts.push("the model answers".to_owned()),
            [] => {}
            [one] => parts.push((*one).to_owned()),
            [first, rest @ ..] => parts.push(format!("{first} and {} more", rest.len())),
        }
        parts.join(" · ")
    }
}

/// The running time of a thread that ended or stopped, from a second on.
fn elapsed_time(payload: &Value) -> Option<String> {
    let exact = payload.get("elapsed_ms").and_then(Value::as_u64);
    // Threads of older releases recorded whole seconds only.
    let whole =
        || payload.get("cost")?.get("elapsed_seconds")?.as_u64().map(|seconds| seconds.saturating_mul(1000));
    exact.or_else(whole).filter(|elapsed| *elapsed >= 1000).map(format_duration)
}

/// A status in words of people.
pub fn status_label(status: &str) -> &str {
    match status {
        "error" => "failed",
        other => other,
    }
}

/// A status's mark and how it looks.
pub fn status_mark(status: &str) -> (&'static str, Style) {
    match status {
        "completed" => ("✓", SUCCESS),
        "running" | "created" | "waiting" => ("●", NAME),
        "suspended" => ("◼", WARNING),
        "continued" => ("→", DIM),
        "interrupted" => ("!", WARNING),
        _ => ("✗", ERROR),
    }
}

#[cfg(test)]
mod tests;
