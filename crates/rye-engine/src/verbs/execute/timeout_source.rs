//! Where the time limit came from that ended a run, and how to allow more.

use rye_exec::outcome::RunFailure;
use rye_exec::{Chain, Element, Invocation};
use rye_item::Space;
use serde_json::Value;

use super::refusal_hints::metadata_key;
use super::run::RunOutput;
use super::run_plan::RunPlan;

/// The most that `execution.max_timeout_seconds` may be.
pub(super) const MAX_TIMEOUT_SETTING: f64 = 604_800.0;
/// What a hint suggests, in seconds.
const EXAMPLE_TIMEOUT: u32 = 600;

/// What set the limit, if the run took longer than it had.
pub(super) fn hint(chain: &Chain, plan: &RunPlan, output: &RunOutput) -> Option<String> {
    let is_timed_out = matches!(output.outcome.failure, Some(RunFailure::TimedOut(_)));
    let (true, Invocation::Process(process)) = (is_timed_out, &plan.invocation) else { return None };
    let source = timeout_of(chain);
    let declared = source.and_then(|(_, seconds)| seconds);
    if let Some(declared) = declared.filter(|declared| process.timeout.as_secs_f64() < *declared) {
        return Some(format!(
            "the limit is the setting `execution.max_timeout_seconds`, and the tool asks for more: \
             rye config set execution.max_timeout_seconds {}",
            declared.ceil().min(MAX_TIMEOUT_SETTING)
        ));
    }
    Some(match source {
        Some((element, _)) if element.id() == chain.tool().id() => own_limit(element),
        Some((element, _)) => {
            format!(
                "the limit is `timeout` of its runtime `{}`; {}",
                element.id(),
                tool_setting(chain.tool())
            )
        }
        None => format!("the limit is the default for every tool; {}", tool_setting(chain.tool())),
    })
}

/// The element nearest to the tool that sets a limit, and the limit if it is a number.
fn timeout_of(chain: &Chain) -> Option<(&Element, Option<f64>)> {
    let mut elements = chain.elements().iter();
    elements.find_map(|element| Some((element, element.object("config")?.get("timeout")?.as_f64())))
}

fn own_limit(tool: &Element) -> String {
    let id = tool.id();
    let key = metadata_key(&tool.item().extension, "config");
    let key = key.trim_end_matches([' ', '=', ':']);
    match tool.space() {
        Space::System(_) => {
            format!(
                "the limit is `timeout` in `{key}` of `{id}`; to change it, copy it: rye load tool {id} --to project"
            )
        }
        Space::Project | Space::User => {
            format!(
                "the limit is `timeout` in `{key}` of the tool `{id}` itself: change it there; after the edit: rye sign tool {id}"
            )
        }
    }
}

/// How a tool asks for more time than its runtime gives.
fn tool_setting(tool: &Element) -> String {
    let key = metadata_key(&tool.item().extension, "config");
    let has_config = tool.object("config").is_some_and(|config| !config.values().all(Value::is_null));
    match (tool.space(), has_config) {
        (Space::System(_), _) => {
            format!("to set another, copy the tool: rye load tool {} --to project", tool.id())
        }
        (Space::Project | Space::User, true) => {
            format!("to allow more time, add to `config` of the signed tool: \"timeout\": {EXAMPLE_TIMEOUT}")
        }
        (Space::Project | Space::User, false) => {
            format!("to allow more time, add to the signed tool: {key} {{\"timeout\": {EXAMPLE_TIMEOUT}}}")
        }
    }
}
