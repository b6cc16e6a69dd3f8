//! Applying a patch to a project: everything is checked before anything is written, and what was written is undone if the rest
//! cannot be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rye_engine::Result;
use rye_item::text::{join_first, one_line};

use super::apply_steps::{ApplySteps, files_below};
use super::content::{FileBytes, FileContent, FoundEntry};
use super::patch::CheckoutPatch;
use super::refused;
use super::repository_shape::RepositoryShape;
use super::rules::CheckoutRules;

/// Conflicts that are named.
const MAX_NAMED: usize = 5;

/// What applying a patch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Files that were written or removed.
    pub changed: Vec<String>,
    /// Files that were as the patch makes them already.
    pub unchanged: Vec<String>,
}

/// What is to be done, by path.
#[derive(Default)]
struct ApplyPlan<'a> {
    removals: BTreeMap<&'a str, FileBytes>,
    writes: BTreeMap<&'a str, FileBytes>,
    unchanged: Vec<String>,
    conflicts: BTreeSet<&'a str>,
}

impl CheckoutPatch {
    /// Applies the patch below `project`. Nothing is written unless each file is as it was for the thread, or as the patch
    /// makes it; and if one cannot be written, those before it are put back.
    ///
    /// # Errors
    /// Which files are not, that the rules refuse one, or that the system refuses.
    pub fn apply(&self, project: &Path, rules: &CheckoutRules) -> Result<ApplyReport> {
        self.check_changes(rules, Some(project))?;
        let plan = self.plan(project)?;
        if !plan.conflicts.is_empty() {
            let conflicts: Vec<String> =
                plan.conflicts.iter().map(|path| format!("`{}`", one_line(path))).collect();
            let message = format!(
                "the patch does not apply: {} changed since the thread had them; nothing was written",
                join_first(&conflicts, MAX_NAMED)
            );
            return Err(refused(message)
                .detail("thread_id", self.thread.as_str())
                .hint(format!("merge it: rye thread patch {} | git apply --reject", self.thread)));
        }
        let mut steps = ApplySteps::new(project);
        if let Err(error) = steps.run(&plan.removals, &plan.writes) {
            let reason = one_line(&error.to_string());
            let left = steps.undo();
            let message = match left.is_empty() {
                true => format!("the patch cannot be applied: {reason}; everything was put back"),
                false => {
                    let left: Vec<String> = left.iter().map(|path| format!("`{}`", one_line(path))).collect();
                    let named = join_first(&left, MAX_NAMED);
                    format!("the patch cannot be applied: {reason}; {named} could not be put back")
                }
            };
            return Err(refused(message).detail("thread_id", self.thread.as_str()));
        }
        let mut changed: Vec<String> =
            plan.removals.keys().chain(plan.writes.keys()).map(|path| (*path).to_owned()).collect();
        changed.sort();
        Ok(ApplyReport { changed, unchanged: plan.unchanged })
    }

    /// Refuses what no patch may change.
    pub(super) fn check_changes(&self, rules: &CheckoutRules, project: Option<&Path>) -> Result<()> {
        let shape = self.repository_shape();
        for change in &self.changes {
            let repository =
                || shape.contains(&change.path, project).then_some(super::rules::Exclusion::Repository);
            if let Some(reason) = rules.change_exclusion(&change.path).or_else(repository) {
                let shown = one_line(&change.path);
                return Err(refused(format!("the patch changes `{shown}`, which {}", reason.reason()))
                    .detail("thread_id", self.thread.as_str()));
            }
        }
        Ok(())
    }

    fn repository_shape(&self) -> RepositoryShape {
        let written = self.changes.iter().filter(|change| change.after.is_some());
        RepositoryShape::new(written.map(|change| change.path.as_str()))
    }

    /// Compares the patch with what is there.
    fn plan(&self, project: &Path) -> Result<ApplyPlan<'_>> {
        let mut plan = ApplyPlan::default();
        let mut folders = Vec::new();
        for change in &self.changes {
            let file = |content: &Option<FileContent>| content.as_ref().map(FileContent::to_file).transpose();
            let (before, after) = (file(&change.before)?, file(&change.after)?);
            let path = change.path.as_str();
            match (FoundEntry::find(project, path), before, after) {
                // A folder where a file is to be gone: it is gone.
                (FoundEntry::Absent | FoundEntry::Folder, _, None) => plan.unchanged.push(path.to_owned()),
                (FoundEntry::Absent, None, Some(after)) => _ = plan.writes.insert(path, after),
                (FoundEntry::Folder, None, Some(after)) => {
                    folders.push(path);
                    plan.writes.insert(path, after);
                }
                (FoundEntry::File(now), _, Some(after)) if now == after => {
                    plan.unchanged.push(path.to_owned());
                }
                (FoundEntry::File(now), Some(before), after) if now == before => match after {
                    Some(after) => _ = plan.writes.insert(path, after),
                    None => _ = plan.removals.insert(path, before),
                },
                (FoundEntry::Absent | FoundEntry::Folder, Some(_), Some(_))
                | (FoundEntry::File(_) | FoundEntry::Other(_), ..) => _ = plan.conflicts.insert(path),
            }
        }
        // A folder gives way to a file when the patch removes all that is in it.
        for folder in folders {
            let is_emptied = files_below(project, folder)
                .is_some_and(|files| files.iter().all(|file| plan.removals.contains_key(file.as_str())));
            if !is_emptied {
                plan.conflicts.insert(folder);
            }
        }
        let blocked: Vec<&str> =
            plan.writes.keys().copied().filter(|path| plan.is_blocked(project, path)).collect();
        plan.conflicts.extend(blocked);
        Ok(plan)
    }
}

impl ApplyPlan<'_> {
    /// Whether a file is on the way to a path that the patch does not remove.
    fn is_blocked(&self, project: &Path, path: &str) -> bool {
        path.match_indices('/').map(|(at, _)| &path[..at]).any(|above| {
            !self.removals.contains_key(above)
                && matches!(FoundEntry::find(project, above), FoundEntry::File(_) | FoundEntry::Other(_))
        })
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
