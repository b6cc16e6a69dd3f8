//! Directives from a seed, and a model that answers them: nested children, waited for or not, hooks, questions to people, tools
//! that fail or are not granted, and servers that refuse. The same seed gives the same directives and the same answers, in
//! whatever order requests arrive.
//!
//! Each directive runs once in its tree, and a turn makes calls of one item only, which are made one after the other: so a
//! thread's own events have one order.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::fake_model::{FakeReply, FakeRequest};

const WRITE: &str = "rye_file_system_write";
const READ: &str = "rye_file_system_read";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";
const ASK: &str = "rye_agent_threads_human_approval";

/// The model that is asked: one that takes the settings of generated directives.
pub const GENERATED_MODEL: &str = "gpt-4.1";

/// How deep children are nested.
const MAX_DEPTH: u64 = 3;

/// What a thread does in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GeneratedTurn {
    /// Writes files, this many.
    Write(u64),
    /// Reads a file that is not there.
    FailingCall,
    /// Calls a tool that was not offered.
    UnknownCall,
    /// Starts a child, and waits for it unless it runs on its own.
    Spawn { child: String, is_async: bool },
    /// Waits for the children that run on their own.
    Wait,
    /// Asks a person.
    Ask,
    /// The server refuses the first attempt.
    RateLimited,
}

/// A directive that was generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedDirective {
    /// Its name, without its category `gen`.
    pub name: String,
    /// Its file.
    pub text: String,
    /// Whether it is started by a person; the others are children.
    pub is_root: bool,
    turns: Vec<GeneratedTurn>,
    /// Whether the server refuses its last request for good.
    fails: bool,
}

/// Directives, and the model that answers them.
#[derive(Debug)]
pub struct GeneratedProject {
    /// The directives, children after the thread that starts them.
    pub directives: Vec<GeneratedDirective>,
    /// Requests that were refused once.
    refused: Mutex<HashSet<(String, usize)>>,
}

/// SplitMix64.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

impl GeneratedProject {
    /// This many directives.
    #[must_use]
    pub fn new(seed: u64, count: usize) -> Self {
        let mut rng = SeededRng(seed ^ 0x5851_f42d_4c95_7f2d);
        let mut project = Self { directives: Vec::new(), refused: Mutex::default() };
        while project.directives.len() < count {
            project.generate(&mut rng, 0, count);
        }
        project
    }

    /// One directive and those it starts; its name.
    fn generate(&mut self, rng: &mut SeededRng, depth: u64, count: usize) -> String {
        let at = self.directives.len();
        let name = format!("n{at:03}");
        let placeholder = GeneratedDirective {
            name: name.clone(),
            text: String::new(),
            is_root: depth == 0,
            turns: Vec::new(),
            fails: false,
        };
        self.directives.push(placeholder);
        let mut turns = Vec::new();
        let mut has_async = false;
        for _ in 0..rng.below(4) {
            let can_spawn = depth < MAX_DEPTH && self.directives.len() < count;
            turns.push(match rng.below(8) {
                0 | 1 => GeneratedTurn::Write(1 + rng.below(3)),
                2 => GeneratedTurn::FailingCall,
                3 => GeneratedTurn::UnknownCall,
                4 if depth == 0 => GeneratedTurn::Ask,
                5 => GeneratedTurn::RateLimited,
                _ if can_spawn => {
                    let is_async = rng.chance(30);
                    has_async |= is_async;
                    let child = self.generate(rng, depth + 1, count);
                    GeneratedTurn::Spawn { child, is_async }
                }
                _ => GeneratedTurn::Write(1),
            });
        }
        if has_async {
            turns.push(GeneratedTurn::Wait);
        }
        let fails = rng.chance(12);
        let text = directive_text(&name, rng);
        self.directives[at] =
            GeneratedDirective { name: name.clone(), text, is_root: depth == 0, turns, fails };
        name
    }

    /// The answer to a request, which depends on nothing but the conversation in it and whether it was refused before.
    ///
    /// # Panics
    /// When the request is of none of the directives.
    pub fn reply(&self, request: &FakeRequest<'_>) -> FakeReply {
        let body = request.body.to_string();
        let is_own =
            |directive: &&GeneratedDirective| body.contains(&format!("Begin {} now.", directive.name));
        let directive = self.directives.iter().find(is_own).expect("a generated directive");
        let messages = request.body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let turn = messages.iter().filter(|message| message["role"] == "assistant").count();
        let name = &directive.name;
        let reply = match directive.turns.get(turn) {
            None if directive.fails => {
                let error =
                    json!({"error": {"type": "invalid_request_error", "message": format!("not {name}")}});
                return FakeReply::status(400, &error, &[]);
            }
            None => FakeReply::text(&format!("{name} is done.")),
            Some(GeneratedTurn::Write(files)) => FakeReply::calls((0..*files).map(|file| {
                (WRITE, json!({"path": format!("{name}-{turn}-{file}.txt"), "content": format!("by {name}")}))
            })),
            Some(GeneratedTurn::FailingCall) => {
                FakeReply::calls([(READ, json!({"path": format!("missing-{name}.txt")}))])
            }
            Some(GeneratedTurn::UnknownCall) => FakeReply::calls([("rye_bash", json!({"command": "true"}))]),
            Some(GeneratedTurn::Spawn { child, is_async }) => {
                let directive = format!("gen/{child}");
                let call =
                    json!({"directive_name": directive, "async_exec": is_async, "model": GENERATED_MODEL});
                FakeReply::calls([(SPAWN, call)])
            }
            Some(GeneratedTurn::Wait) => {
                let wait = json!({"operation": "wait_threads", "thread_ids": running_children(request)});
                FakeReply::calls([(ORCHESTRATE, wait)])
            }
            Some(GeneratedTurn::Ask) => {
                FakeReply::calls([(ASK, json!({"prompt": format!("May {name} go on?")}))])
            }
            Some(GeneratedTurn::RateLimited) => {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                if refused.insert((name.clone(), turn)) {
                    let error = json!({"error": {"type": "rate_limit_error", "message": "slow down"}});
                    return FakeReply::status(429, &error, &[("retry-after-ms", "1")]);
                }
                FakeReply::calls([(WRITE, json!({"path": format!("{name}-late.txt"), "content": "late"}))])
            }
        };
        reply.with_usage(100 + u64::try_from(messages.len()).unwrap_or(0), 0, 10)
    }

    /// Whether a person says yes to what is asked.
    #[must_use]
    pub fn approves(prompt: &str) -> bool {
        prompt.bytes().map(u64::from).sum::<u64>() % 3 != 0
    }
}

/// The children that were started and not waited for, as the conversation tells.
fn running_children(request: &FakeRequest<'_>) -> Vec<Value> {
    let results = request.tool_result_texts();
    let results = results.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    results.filter(|result| result["status"] == "running").map(|result| result["thread_id"].clone()).collect()
}

fn directive_text(name: &str, rng: &mut SeededRng) -> String {
    let mut hooks = String::new();
    if rng.chance(40) {
        hooks.push_str(
            "<hook id=\"note\" event=\"after_step\"><action primary=\"execute\" item_type=\"tool\" \
             item_id=\"rye/agent/threads/internal/emitter\"><event_type>generated_step</event_type></action></hook>",
        );
    }
    if rng.chance(30) {
        let _ = write!(
            hooks,
            "<hook id=\"remark\" event=\"before_tool\"><condition path=\"item\" op=\"eq\" value=\"rye/file-system/write\"/>\
             <action primary=\"execute\" item_type=\"tool\" item_id=\"rye/agent/threads/internal/control\">\
             <param name=\"action\">continue</param><param name=\"note\">seen by {name}</param></action></hook>"
        );
    }
    let model = if rng.chance(30) { "<model temperature=\"0\" max_output_tokens=\"900\"/>" } else { "" };
    format!(
        "# {name}\n\n```xml\n<directive name=\"{name}\" version=\"1.0.0\">\n<metadata>\n<description>Generated</description>\n\
         <category>gen</category>\n<author>test</author>\n{model}\n<limits turns=\"20\"/>\n<permissions><execute>\
         <tool>rye.file-system.*</tool><tool>rye.agent.threads.*</tool><directive>gen.*</directive></execute></permissions>\n\
         <hooks>{hooks}</hooks>\n</metadata>\n</directive>\n```\n\nBegin {name} now.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_directives() {
        let (first, again) = (GeneratedProject::new(7, 100), GeneratedProject::new(7, 100));
        assert_eq!(first.directives, again.directives);
        assert_ne!(first.directives, GeneratedProject::new(8, 100).directives);
        assert!(first.directives.len() >= 100);
        let has = |wanted: fn(&GeneratedTurn) -> bool| {
            first.directives.iter().any(|one| one.turns.iter().any(wanted))
        };
        assert!(has(|turn| matches!(turn, GeneratedTurn::Spawn { is_async: false, .. })));
        assert!(has(|turn| matches!(turn, GeneratedTurn::Spawn { is_async: true, .. })));
        assert!(has(|turn| *turn == GeneratedTurn::Ask) && has(|turn| *turn == GeneratedTurn::RateLimited));
        assert!(first.directives.iter().any(|one| one.fails));
        assert!(first.directives.iter().any(|one| one.text.contains("<hook id=")));
    }
}
