//! Placeholders that a killed run left in the project.

use lillux::sandbox::placeholders;
use rye_item::text::{counted, shell_word};

use super::{FindingList, Severity};
use crate::engine::Engine;

/// Names at most in one finding.
const MAX_NAMES: usize = 10;

/// Says which are left: the next run removes them, unless it cannot reach them.
pub(super) fn check(engine: &Engine, findings: &mut FindingList) {
    let roots = &engine.workspace.roots;
    let Some(project) = &roots.project else { return };
    let left = placeholders::leftovers(&roots.cache.join("placeholders"), project);
    if left.is_empty() {
        return;
    }
    let names: Vec<String> =
        left.iter().take(MAX_NAMES).map(|path| shell_word(&path.display().to_string())).collect();
    let message = format!(
        "a run that was killed left {}, which keep names from tools: {}",
        counted(left.len(), "placeholder"),
        names.join(", ")
    );
    findings
        .add("project", Severity::Warning, message)
        .path(project)
        .remedy("the next run of a tool removes them; if it cannot, open their folders to yourself: chmod u+rwx FOLDER");
}
