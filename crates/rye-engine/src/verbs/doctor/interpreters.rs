//! Programs that the user's tools run on and that are not there.

use std::collections::{BTreeMap, BTreeSet};

use rye_exec::environment::MissingInterpreter;
use rye_item::text::counted;
use rye_item::{ItemRef, ItemType, Space};

use super::{FindingList, Severity};
use crate::chain_cache;
use crate::engine::Engine;
use crate::verbs::execute::missing_program;

/// Tools at most in one finding.
const MAX_TOOLS: usize = 5;

/// A runtime and a program that it does not find.
type MissingProgram = (String, String);

/// Says which runtimes that tools of project and user space use lack their program. Tools that cannot run for another reason
/// are not looked at: other checks name them.
pub(super) fn check(engine: &Engine, findings: &mut FindingList) {
    let mut missing: BTreeMap<MissingProgram, (MissingInterpreter, Vec<ItemRef>)> = BTreeMap::new();
    for item in own_tools(engine) {
        let Ok(chain) = chain_cache::build(engine, &item, None) else { continue };
        let Some(found) = missing_program(engine, &chain) else { continue };
        let key = (found.element.clone(), found.program.clone());
        missing.entry(key).or_insert_with(|| (found, Vec::new())).1.push(item);
    }
    for (found, tools) in missing.into_values() {
        let names: Vec<String> = tools.iter().take(MAX_TOOLS).map(|tool| tool.id.to_string()).collect();
        let more = if tools.len() > names.len() { ", …" } else { "" };
        let MissingInterpreter { element, program, places, .. } = found;
        let users = format!("{}: {}{more}", counted(tools.len(), "tool"), names.join(", "));
        let message = format!("`{element}` needs {program}, which was not found; it runs {users}");
        findings
            .add("programs", Severity::Warning, message)
            .remedy(format!("install {program}, or add its folder to the PATH; looked for in {places}"));
    }
}

/// The tools of project and user space.
fn own_tools(engine: &Engine) -> BTreeSet<ItemRef> {
    let spaces = &engine.workspace.spaces;
    let own = [Space::Project, Space::User];
    own.iter()
        .flat_map(|space| spaces.scan(space, &[ItemType::Tool]).entries)
        .map(|entry| entry.item)
        .collect()
}
