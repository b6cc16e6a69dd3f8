//! The formats, one file each: a unit's files to items, notes and refusals.

mod agent;
mod agent_plugin;
mod apm;
mod codex;
mod credentials;
mod hooks;
mod plugin;
mod references;
mod remote;
mod rule;
mod script;
mod server;
mod skill;

use serde_json::Value;

use crate::detect::SourceFormat;
use crate::plan::{UnitContext, UnitPlan};

pub(crate) use hooks::hook_download;
pub(crate) use plugin::plugin_facts;

/// Plans a unit, or says why it is not imported.
pub(crate) fn read_unit(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    match context.unit.format {
        SourceFormat::Skill => skill::read(context),
        SourceFormat::Agent => agent::read_agent(context),
        SourceFormat::Command => agent::read_command(context),
        SourceFormat::CursorRule | SourceFormat::PathRule | SourceFormat::Instructions => rule::read(context),
        SourceFormat::McpServers => server::read(context),
        SourceFormat::CodexAgent => codex::read(context),
        SourceFormat::ClaudePlugin | SourceFormat::AgentPlugin => plugin::read(context),
        SourceFormat::Marketplace => plugin::read_marketplace(context),
        SourceFormat::Hooks => hooks::read(context),
        SourceFormat::ApmManifest => apm::read(context),
        SourceFormat::SkillFile | SourceFormat::SkillScript => Ok(UnitPlan::default()),
    }
}

/// A version of three numbers, or the default.
fn version(text: Option<&str>) -> String {
    let is_number = |part: &str| {
        !part.is_empty()
            && part.len() < 9
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    match text.map(str::trim) {
        Some(text) if text.split('.').count() == 3 && text.split('.').all(is_number) => text.to_owned(),
        _ => crate::render::DEFAULT_VERSION.to_owned(),
    }
}

/// The first heading of a text.
fn heading(body: &str) -> Option<&str> {
    let title = body.lines().find_map(|line| line.strip_prefix("# "))?.trim();
    (!title.is_empty()).then_some(title)
}

/// The first lines of a text that are not a heading, as a description.
fn first_words(body: &str) -> String {
    let lines = body
        .lines()
        .map(str::trim)
        .skip_while(|line| line.is_empty() || line.starts_with(['#', '<', '`', '-']));
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).take(3).collect();
    lines.join(" ").chars().take(200).collect()
}

/// Reads JSON that people write: comments and commas at the end of lists are let through.
fn parse_json(text: &str) -> Result<Value, String> {
    let text = text.trim_start_matches('\u{feff}');
    serde_json::from_str(text)
        .or_else(|error| serde_json::from_str(&plain_json(text)).map_err(|_| error))
        .map_err(|error| format!("it is not JSON: {error}"))
}

/// JSON without comments and without commas before a closing bracket.
fn plain_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    let mut is_in_string = false;
    while let Some(character) = rest.next() {
        match character {
            '\\' if is_in_string => {
                out.push(character);
                out.extend(rest.next());
            }
            '"' => {
                is_in_string = !is_in_string;
                out.push(character);
            }
            '/' if !is_in_string && rest.peek() == Some(&'/') => {
                while rest.next_if(|next| *next != '\n').is_some() {}
            }
            '/' if !is_in_string && rest.peek() == Some(&'*') => {
                let mut previous = ' ';
                for next in rest.by_ref() {
                    if (previous, next) == ('*', '/') {
                        break;
                    }
                    previous = next;
                }
            }
            ']' | '}' if !is_in_string => {
                let kept = out.trim_end().strip_suffix(',').map(str::len);
                if let Some(kept) = kept {
                    out.truncate(kept);
                }
                out.push(character);
            }
            other => out.push(other),
        }
    }
    out
}
