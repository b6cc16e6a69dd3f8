//! What is to be seen of a thread and those it starts: envelopes and words on their way in, lines out.

use std::collections::BTreeMap;

use anstyle::Style;
use rye_agent::money::Nanos;
use serde_json::Value;

use super::words::{amount, arguments, count, duration, failure, several, short};
use crate::output::{BAD, CAUTION, DIM, GOOD, NAME, paint};

/// The longest arguments, and the longest reason of a failure, on a line.
const LONGEST: usize = 60;

/// How much is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Words of the model are shown as they come; else once they are whole.
    pub streams: bool,
    /// Calls of children are shown too.
    pub shows_inner_calls: bool,
    /// Events that seldom matter are shown too.
    pub is_verbose: bool,
    /// Why the thread itself stopped is told by somebody else.
    pub leaves_reason: bool,
    /// Columns of the terminal; words on their way are broken there.
    pub width: usize,
}

/// What has been seen of some threads.
#[derive(Debug)]
pub struct View {
    manner: Manner,
    root: Option<String>,
    threads: BTreeMap<String, Seen>,
    /// Words of the root's answer so far.
    streamed: String,
    /// Where in them the part begins that is not a line yet.
    line_start: usize,
    /// An answer that may turn out to be the result.
    held: Option<String>,
    /// The last answer that was shown whole.
    shown: Option<String>,
}

/// One thread.
#[derive(Debug, Default)]
struct Seen {
    directive: String,
    depth: usize,
    turns: u64,
    tokens: u64,
    spend: Nanos,
    most_turns: Option<u64>,
    most_spend: Option<Nanos>,
    running: Vec<Call>,
    is_thinking: bool,
    has_ended: bool,
}

/// A call that has not come back.
#[derive(Debug)]
struct Call {
    id: String,
    tool: String,
    arguments: String,
}

impl Call {
    /// As the model made it. A call of a primary action is shown with the item it names.
    fn new(payload: &Value) -> Self {
        let of = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
        let input = payload.get("input").unwrap_or(&Value::Null);
        let tool = short(of("tool"), LONGEST);
        let (tool, input) = match input.get("item_id").and_then(Value::as_str) {
            Some(item) if tool.starts_with("rye_") => {
                let inner = input.get("parameters").filter(|inner| inner.is_object());
                (format!("{tool} {}", short(item, LONGEST)), inner.unwrap_or(&Value::Null))
            }
            _ => (tool, input),
        };
        Self { id: of("call_id").to_owned(), tool, arguments: arguments(input, LONGEST) }
    }
}

impl View {
    /// Nothing seen yet. What `root` is, if it is known, is not a child of anybody.
    pub fn new(manner: Manner) -> Self {
        Self {
            manner,
            root: None,
            threads: BTreeMap::new(),
            streamed: String::new(),
            line_start: 0,
            held: None,
            shown: None,
        }
    }

    /// The thread it is about, and what it had used before.
    pub fn begin(&mut self, thread: &str, turns: u64, tokens: u64, spend: Nanos) {
        self.root = Some(thread.to_owned());
        let seen = self.threads.entry(thread.to_owned()).or_default();
        (seen.turns, seen.tokens, seen.spend) = (turns, tokens, spend);
    }

    /// A thread below it, so many levels down.
    pub fn know(&mut self, child: &str, directive: &str, depth: usize) {
        let seen = self.threads.entry(child.to_owned()).or_default();
        seen.depth = depth;
        directive.clone_into(&mut seen.directive);
    }

    /// Words on their way; lines that are whole by now.
    pub fn words(&mut self, thread: &str, text: &str) -> Vec<String> {
        if !self.manner.streams || self.root.as_deref().is_some_and(|root| root != thread) {
            return Vec::new();
        }
        self.streamed.push_str(text);
        let mut lines = Vec::new();
        while let Some(length) = self.streamed[self.line_start..].find('\n') {
            let end = self.line_start + length;
            lines.extend(self.wrapped(end));
            lines.push(self.shown_part(end));
            self.line_start = end + 1;
        }
        lines.extend(self.wrapped(self.streamed.len()));
        lines
    }

    /// The words between the last line and `end`, safe to show.
    fn shown_part(&self, end: usize) -> String {
        rye_item::text::without_controls(&self.streamed[self.line_start..end]).replace('\t', "    ")
    }

    /// Lines that are broken off because they are too wide.
    fn wrapped(&mut self, end: usize) -> Vec<String> {
        let width = self.manner.width.max(20);
        let mut lines = Vec::new();
        loop {
            let part = &self.streamed[self.line_start..end];
            let Some((limit, _)) = part.char_indices().nth(width) else {
                return lines;
            };
            let at = part[..limit].rfind(' ').map_or(limit, |blank| blank + 1);
            let broken = self.line_start + at;
            lines.push(self.shown_part(broken).trim_end().to_owned());
            self.line_start = broken;
        }
    }

    /// The words that are no line yet.
    pub fn partial(&self) -> String {
        self.shown_part(self.streamed.len())
    }

    /// An event; lines that follow from it.
    pub fn event(&mut self, envelope: &Value) -> Vec<String> {
        let text = |key: &str| envelope.get(key).and_then(Value::as_str).unwrap_or_default();
        let (kind, thread) = (text("event_type"), text("thread_id").to_owned());
        let payload = envelope.get("payload").unwrap_or(&Value::Null);
        if self.root.is_none() {
            self.root = Some(thread.clone());
        }
        let is_root = self.root.as_deref() == Some(thread.as_str());
        let of = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| payload.get(key).and_then(Value::as_u64).unwrap_or(0);
        let mut lines = Vec::new();
        match kind {
            "thread_started" | "thread_resumed" | "thread_continued" => {
                let seen = self.threads.entry(thread.clone()).or_default();
                of("directive").clone_into(&mut seen.directive);
                let limits = payload.get("limits");
                seen.most_turns = limits.and_then(|limits| limits.get("turns")).and_then(Value::as_u64);
                seen.most_spend = limits.and_then(|limits| limits.get("spend")).and_then(Nanos::from_value);
                if is_root {
                    let mut parts = vec![short(of("directive"), LONGEST)];
                    parts.extend(["provider", "model"].map(of).iter().map(|part| short(part, LONGEST)));
                    parts.push(thread);
                    parts.retain(|part| !part.is_empty());
                    // A provider with one model is often named as it is.
                    parts.dedup();
                    let word = if kind == "thread_resumed" { "goes on · " } else { "" };
                    lines.push(paint(DIM, format_args!("▶ {word}{}", parts.join(" · "))));
                }
            }
            "cognition_out" => lines.extend(self.answered(&thread, is_root, payload)),
            "cognition_in" => {
                lines.extend(self.unheld());
                let seen = self.threads.entry(thread).or_default();
                seen.is_thinking = true;
            }
            "tool_call_start" => {
                lines.extend(self.unheld());
                let call = Call::new(payload);
                self.threads.entry(thread).or_default().running.push(call);
            }
            "tool_call_result" => {
                if let Some(line) = self.called(&thread, payload)
                    && (is_root || self.manner.shows_inner_calls)
                {
                    lines.push(line);
                }
            }
            // What the model itself was refused is told with its call.
            "permission_denied" if of("asker") == "tool" && (is_root || self.manner.shows_inner_calls) => {
                let depth = self.threads.get(&thread).map_or(0, |seen| seen.depth) + 1;
                let why = short(of("error"), 2 * LONGEST);
                lines.push(format!("{}{} its tool: {why}", "  ".repeat(depth), paint(BAD, "✗")));
            }
            "child_thread_started" => {
                let depth = self.threads.get(&thread).map_or(0, |seen| seen.depth) + 1;
                self.know(of("child_thread_id"), of("child_directive"), depth);
                let name = short(of("child_directive"), LONGEST);
                let id = short(of("child_thread_id"), LONGEST);
                lines.push(format!(
                    "{}↳ {} {}",
                    "  ".repeat(depth),
                    paint(NAME, name),
                    paint(DIM, format_args!("· {id}"))
                ));
            }
            "thread_completed" | "thread_error" | "thread_cancelled" | "thread_killed"
            | "thread_suspended" => {
                lines.extend(self.ended(&thread, is_root, kind, payload));
            }
            "retry_scheduled" => {
                if is_root {
                    lines.extend(self.broken_off());
                }
                let seen = self.threads.entry(thread).or_default();
                lines.push(format!(
                    "{}{} attempt {} of {} in {}: {}",
                    "  ".repeat(seen.depth),
                    paint(CAUTION, "↻"),
                    number("attempt"),
                    number("of"),
                    duration(number("delay_ms")),
                    short(of("error"), LONGEST)
                ));
            }
            "human_approval_requested" => {
                let depth = self.threads.get(&thread).map_or(0, |seen| seen.depth);
                lines.push(format!(
                    "{}{} {} {}",
                    "  ".repeat(depth),
                    paint(CAUTION, "?"),
                    short(of("prompt"), 2 * LONGEST),
                    paint(DIM, format_args!("· rye thread approve {thread}"))
                ));
            }
            "hook_failed" => {
                let (hook, error) = (short(of("hook"), LONGEST), short(of("error"), 2 * LONGEST));
                lines.push(format!("{} hook {hook} failed: {error}", paint(CAUTION, "!")));
            }
            "context_compacted" => {
                let removed = several(number("messages_removed"), "message");
                lines.push(paint(DIM, format_args!("… the conversation was shortened by {removed}")));
            }
            other
                if self.manner.is_verbose
                    && !matches!(other, "cognition_out_delta" | "cognition_reasoning") =>
            {
                lines.push(paint(DIM, format_args!("· {}", short(other, LONGEST))));
            }
            _ => {}
        }
        lines
    }

    /// The model has answered.
    fn answered(&mut self, thread: &str, is_root: bool, payload: &Value) -> Vec<String> {
        let number = |key: &str| payload.get(key).and_then(Value::as_u64).unwrap_or(0);
        let is_partial = payload.get("is_partial").and_then(Value::as_bool).unwrap_or(false);
        let seen = self.threads.entry(thread.to_owned()).or_default();
        seen.is_thinking = false;
        seen.turns += u64::from(!is_partial);
        seen.tokens =
            seen.tokens.saturating_add(number("input_tokens")).saturating_add(number("output_tokens"));
        seen.spend = seen.spend.plus(payload.get("spend").and_then(Nanos::from_value).unwrap_or_default());
        let text = payload.get("text").and_then(Value::as_str).unwrap_or_default();
        let mut lines = Vec::new();
        if !is_root {
            return lines;
        }
        lines.extend(self.unheld());
        if self.streamed.is_empty() {
            self.held = Some(text.to_owned()).filter(|text| !text.trim().is_empty());
            return lines;
        }
        // Words on their way may be lost: then this was not all of it.
        self.shown = (self.streamed == text).then(|| text.to_owned());
        lines.extend(self.broken_off());
        lines
    }

    /// An answer that is not the result after all.
    fn unheld(&mut self) -> Vec<String> {
        let Some(text) = self.held.take() else {
            return Vec::new();
        };
        let lines = rye_item::text::without_controls(&text).lines().map(str::to_owned).collect();
        self.shown = Some(text);
        lines
    }

    /// Words of an answer that does not come any more.
    fn broken_off(&mut self) -> Option<String> {
        let rest = Some(self.partial()).filter(|rest| !rest.is_empty());
        self.streamed.clear();
        self.line_start = 0;
        rest
    }

    /// A call has come back.
    fn called(&mut self, thread: &str, payload: &Value) -> Option<String> {
        let seen = self.threads.get_mut(thread)?;
        let id = payload.get("call_id").and_then(Value::as_str).unwrap_or_default();
        let call = match seen.running.iter().position(|call| call.id == id) {
            Some(place) => seen.running.remove(place),
            // It was begun before a crash, by another process.
            None => {
                Call { id: id.to_owned(), tool: "a call begun before".to_owned(), arguments: String::new() }
            }
        };
        let took = duration(payload.get("duration_ms").and_then(Value::as_u64).unwrap_or(0));
        let failed = payload.get("error").map(|error| match error {
            Value::String(text) => failure(text, 2 * LONGEST),
            other => short(&other.to_string(), 2 * LONGEST),
        });
        let mark = if failed.is_some() { paint(BAD, "✗") } else { paint(GOOD, "✓") };
        let mut parts = vec![paint(NAME, &call.tool)];
        parts.extend(Some(call.arguments).filter(|arguments| !arguments.is_empty()));
        parts.push(paint(DIM, took));
        parts.extend(failed.map(|failed| paint(CAUTION, failed)));
        Some(format!("{}{mark} {}", "  ".repeat(seen.depth), parts.join(" · ")))
    }

    /// A thread has ended or stopped.
    fn ended(&mut self, thread: &str, is_root: bool, kind: &str, payload: &Value) -> Vec<String> {
        let mut lines = Vec::new();
        if is_root {
            lines.extend(self.broken_off());
        }
        let seen = self.threads.entry(thread.to_owned()).or_default();
        seen.has_ended = true;
        seen.running.clear();
        let status = kind.strip_prefix("thread_").unwrap_or(kind);
        let (mark, style) = status_mark(status);
        let cost = payload.get("cost");
        let used = |key: &str, otherwise: u64| {
            cost.and_then(|cost| cost.get(key)).and_then(Value::as_u64).unwrap_or(otherwise)
        };
        let tokens = used("input_tokens", seen.tokens).saturating_add(used("output_tokens", 0));
        let spend = cost.and_then(|cost| cost.get("spend")).and_then(Nanos::from_value).unwrap_or(seen.spend);
        let mut parts = vec![paint(style, format_args!("{mark} {}", status_word(status)))];
        if !is_root {
            parts.push(short(&seen.directive, LONGEST));
        }
        parts.push(several(used("turns", seen.turns), "turn"));
        parts.push(several(tokens, "token"));
        parts.push(amount(spend));
        parts.extend(used_time(cost));
        let reason = ["error", "reason"].iter().find_map(|key| payload.get(key)).and_then(Value::as_str);
        if let Some(reason) = reason.filter(|_| !is_root) {
            parts.push(paint(CAUTION, short(reason, 2 * LONGEST)));
        }
        lines.push(format!("{}{}", "  ".repeat(seen.depth), parts.join(" · ")));
        if let Some(reason) = reason.filter(|_| is_root && !self.manner.leaves_reason) {
            lines.push(format!("  {}", paint(style, short(reason, 10 * LONGEST))));
        }
        lines
    }

    /// What is still to be shown when nothing more comes.
    pub fn rest(&mut self) -> Vec<String> {
        let mut lines = self.unheld();
        lines.extend(self.broken_off());
        lines
    }

    /// Whether this text has been shown already, whole.
    pub fn has_shown(&self, text: &str) -> bool {
        self.shown.as_deref() == Some(text)
    }

    /// Where it stands, in one line: turns, tokens, money, time, and what goes on.
    pub fn status(&self, elapsed_ms: u64) -> String {
        let root = self.root.as_ref().and_then(|root| self.threads.get(root));
        let of_limit = |most: Option<String>| most.map(|most| format!("/{most}")).unwrap_or_default();
        let turn = root.map_or(0, |root| root.turns) + 1;
        let most_turns = of_limit(root.and_then(|root| root.most_turns).map(count));
        let tokens = self.threads.values().fold(0_u64, |sum, seen| sum.saturating_add(seen.tokens));
        let spend = self.threads.values().fold(Nanos(0), |sum, seen| sum.plus(seen.spend));
        let most_spend = of_limit(root.and_then(|root| root.most_spend).map(amount));
        let mut parts = vec![
            format!("turn {turn}{most_turns}"),
            several(tokens, "token"),
            format!("{}{most_spend}", amount(spend)),
            duration(elapsed_ms),
        ];
        let running: Vec<&str> = self
            .threads
            .values()
            .filter(|seen| !seen.has_ended)
            .flat_map(|seen| seen.running.iter().map(|call| call.tool.as_str()))
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

/// Seconds at work, if anybody counted them.
fn used_time(cost: Option<&Value>) -> Option<String> {
    let seconds = cost?.get("elapsed_seconds")?.as_u64()?;
    Some(duration(seconds.saturating_mul(1000))).filter(|_| seconds > 0)
}

/// A status in words of people.
pub fn status_word(status: &str) -> &str {
    match status {
        "error" => "failed",
        other => other,
    }
}

/// A status's mark and how it looks.
pub fn status_mark(status: &str) -> (&'static str, Style) {
    match status {
        "completed" => ("✓", GOOD),
        "running" | "created" => ("●", NAME),
        "suspended" => ("◼", CAUTION),
        "continued" => ("→", DIM),
        "interrupted" => ("!", CAUTION),
        _ => ("✗", BAD),
    }
}

#[cfg(test)]
mod tests;
