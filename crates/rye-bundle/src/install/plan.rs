//! What installing would change, file by file, decided from three sides: what the last version brought, what is there
//! now, what the new version brings. Pure: the caller looks, this decides.

use std::collections::{BTreeMap, BTreeSet};

use lillux::Digest;
use rye_item::BundleId;
use serde::Serialize;

use super::transaction::FileChange;
use super::{FileState, InstallError};
use crate::path::BundlePath;

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileAction {
    /// It is new.
    Add,
    /// It takes the place of what the last version brought.
    Replace,
    /// It is there already, to the byte.
    Unchanged,
    /// The new version has it no more.
    Remove,
    /// It was changed here, and stays as it is.
    Keep,
    /// It replaces a file that was made or changed locally; a backup is kept.
    Overwrite,
    /// It was changed here and goes, of which a backup is kept.
    Discard,
}

/// Whose version of a locally changed file stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictPreference {
    /// The one that is there.
    #[default]
    KeepLocal,
    /// The bundle's.
    TakeBundle,
}

/// One file of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanRow {
    /// The file.
    pub path: BundlePath,
    /// What happens to it.
    pub action: FileAction,
    /// What is there now.
    #[serde(skip)]
    pub old: Option<Digest>,
    /// What the bundle brings.
    #[serde(skip)]
    pub new: Option<Digest>,
}

/// What an installation, or an uninstallation, would change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstallPlan {
    /// The files, by path.
    pub rows: Vec<PlanRow>,
}

/// What a plan is made from.
#[derive(Clone, Debug, Default)]
pub struct PlanInputs {
    /// What the new version brings; nothing when it is to be uninstalled.
    pub new: BTreeMap<BundlePath, Digest>,
    /// What the installed version brought: the digest it had is not known, only whether the file still is what it was.
    pub installed: BTreeMap<BundlePath, bool>,
    /// Files of the installed version that were there before it: they do not go with it.
    pub found: BTreeSet<BundlePath>,
    /// What is there now, of both.
    pub present: BTreeMap<BundlePath, FileState>,
    /// Which files other installed bundles brought, by name without case.
    pub owned_by_others: BTreeMap<String, BundleId>,
    /// Files with the id of an item the new version brings, but another extension: only one of the two would be found.
    pub duplicate_items: BTreeMap<BundlePath, DuplicateItem>,
}

/// A file that is there, and the file of the new version that has the same id.
#[derive(Clone, Debug)]
pub struct DuplicateItem {
    /// The file of the new version.
    pub new: BundlePath,
    /// What is there.
    pub present: FileState,
}

impl InstallPlan {
    /// Decides. `force` lets files that this bundle did not bring be overwritten.
    ///
    /// # Errors
    /// When another bundle has a file, or something is in the way.
    pub fn new(
        inputs: &PlanInputs,
        preference: ConflictPreference,
        force: bool,
    ) -> Result<Self, InstallError> {
        let mut rows = Vec::new();
        let mut occupied = Vec::new();
        let paths: BTreeSet<&BundlePath> = inputs.new.keys().chain(inputs.installed.keys()).collect();
        for path in paths {
            let new = inputs.new.get(path).copied();
            let keep = || PlanRow { path: path.clone(), action: FileAction::Keep, old: None, new: None };
            match inputs.owned_by_others.get(&path.case_folded()) {
                Some(owner) if new.is_some() => {
                    return Err(InstallError::OwnedByBundle { path: path.clone(), owner: owner.clone() });
                }
                // Another bundle has it now: it does not go with this one.
                Some(_) => {
                    rows.push(keep());
                    continue;
                }
                None => {}
            }
            let old = match inputs.present.get(path) {
                None | Some(FileState::Absent) => None,
                Some(FileState::File(digest)) => Some(*digest),
                // What was brought and is not a file any more was changed here: it stays when the bundle goes.
                Some(FileState::Other) if new.is_none() => {
                    rows.push(keep());
                    continue;
                }
                Some(FileState::Other) => return Err(InstallError::NotAFile { path: path.clone() }),
            };
            let is_unmodified = inputs.installed.get(path).copied();
            let action = match (old, new, is_unmodified) {
                (None, None, _) => continue,
                (Some(_), None, _) if inputs.found.contains(path) => FileAction::Keep,
                (None, Some(_), _) => FileAction::Add,
                (Some(old), Some(new), _) if old == new => FileAction::Unchanged,
                (Some(_), Some(_), Some(true)) => FileAction::Replace,
                (Some(_), None, Some(true)) => FileAction::Remove,
                (Some(_), Some(_), Some(false)) if preference == ConflictPreference::TakeBundle => {
                    FileAction::Overwrite
                }
                (Some(_), None, Some(false)) if preference == ConflictPreference::TakeBundle => {
                    FileAction::Discard
                }
                (Some(_), _, Some(false)) => FileAction::Keep,
                (Some(_), Some(_), None) if force => FileAction::Overwrite,
                (Some(_), _, None) => {
                    occupied.push(path.clone());
                    continue;
                }
            };
            rows.push(PlanRow { path: path.clone(), action, old, new });
        }
        if !occupied.is_empty() {
            return Err(InstallError::Occupied { paths: occupied });
        }
        let mut shadowed = Vec::new();
        for (path, same) in &inputs.duplicate_items {
            if let Some(owner) = inputs.owned_by_others.get(&path.case_folded()) {
                return Err(InstallError::OwnedByBundle { path: path.clone(), owner: owner.clone() });
            }
            let planned = rows.iter().position(|row| row.path == *path);
            match (planned.map(|index| rows[index].action), &same.present) {
                (Some(FileAction::Remove | FileAction::Discard), _) | (None, FileState::Absent) => {}
                (None | Some(FileAction::Keep), FileState::File(digest)) if force => {
                    rows.retain(|row| row.path != *path);
                    rows.push(PlanRow {
                        path: path.clone(),
                        action: FileAction::Discard,
                        old: Some(*digest),
                        new: None,
                    });
                }
                (_, _) => shadowed.push((path.clone(), same.new.clone())),
            }
        }
        if !shadowed.is_empty() {
            return Err(InstallError::DuplicateItems { files: shadowed });
        }
        rows.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self { rows })
    }

    /// How many files have this fate.
    #[must_use]
    pub fn count(&self, action: FileAction) -> usize {
        self.rows.iter().filter(|row| row.action == action).count()
    }

    /// The changes to make.
    #[must_use]
    pub fn changes(&self) -> Vec<FileChange> {
        let change = |row: &PlanRow, new: Option<Digest>, keeps_backup: bool| FileChange {
            path: row.path.clone(),
            old: row.old,
            new,
            keeps_backup,
        };
        self.rows
            .iter()
            .filter_map(|row| match row.action {
                FileAction::Unchanged | FileAction::Keep => None,
                FileAction::Add | FileAction::Replace => Some(change(row, row.new, false)),
                FileAction::Remove => Some(change(row, None, false)),
                FileAction::Overwrite => Some(change(row, row.new, true)),
                FileAction::Discard => Some(change(row, None, true)),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> BundlePath {
        BundlePath::new(format!(".ai/tools/team/{name}")).expect("a path")
    }

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    /// One file: what the last version left (`Some(true)`: untouched), what is there, what the new one brings.
    fn plan_inputs(installed: Option<bool>, present: Option<&str>, new: Option<&str>) -> PlanInputs {
        let mut inputs = PlanInputs::default();
        if let Some(installed) = installed {
            inputs.installed.insert(path("a"), installed);
        }
        let there = present.map_or(FileState::Absent, |text| FileState::File(digest(text)));
        inputs.present.insert(path("a"), there);
        if let Some(new) = new {
            inputs.new.insert(path("a"), digest(new));
        }
        inputs
    }

    fn planned_action(
        inputs: &PlanInputs,
        preference: ConflictPreference,
        force: bool,
    ) -> Option<FileAction> {
        let plan = InstallPlan::new(inputs, preference, force).expect("a plan");
        assert!(plan.rows.len() < 2);
        plan.rows.first().map(|row| row.action)
    }

    #[test]
    fn action_depends_on_installed_present_and_new() {
        use ConflictPreference::*;
        use FileAction::*;
        for (brought, present, new, ours, theirs) in [
            (None, None, Some("n"), Some(Add), Some(Add)),
            (None, Some("n"), Some("n"), Some(Unchanged), Some(Unchanged)),
            (Some(true), Some("o"), Some("n"), Some(Replace), Some(Replace)),
            (Some(true), Some("n"), Some("n"), Some(Unchanged), Some(Unchanged)),
            (Some(true), None, Some("n"), Some(Add), Some(Add)),
            (Some(false), Some("x"), Some("n"), Some(Keep), Some(Overwrite)),
            (Some(false), Some("n"), Some("n"), Some(Unchanged), Some(Unchanged)),
            (Some(true), Some("o"), None, Some(Remove), Some(Remove)),
            (Some(false), Some("x"), None, Some(Keep), Some(Discard)),
            (Some(true), None, None, None, None),
        ] {
            let inputs = plan_inputs(brought, present, new);
            assert_eq!(planned_action(&inputs, KeepLocal, false), ours, "{brought:?} {present:?} {new:?}");
            assert_eq!(planned_action(&inputs, TakeBundle, false), theirs, "{brought:?} {present:?} {new:?}");
        }
    }

    #[test]
    fn duplicate_item_is_discarded_only_by_force() {
        for (brought, is_refused) in [(None, true), (Some(false), true), (Some(true), false)] {
            let mut inputs = plan_inputs(brought, Some("x"), None);
            inputs.new.insert(path("a.py"), digest("n"));
            let same = DuplicateItem { new: path("a.py"), present: FileState::File(digest("x")) };
            inputs.duplicate_items.insert(path("a"), same);
            let refused = InstallPlan::new(&inputs, ConflictPreference::KeepLocal, false);
            assert_eq!(
                matches!(refused, Err(InstallError::DuplicateItems { .. })),
                is_refused,
                "{brought:?}"
            );
            let forced = InstallPlan::new(&inputs, ConflictPreference::KeepLocal, true).expect("a plan");
            let gone = forced.count(FileAction::Discard) + forced.count(FileAction::Remove);
            assert_eq!((gone, forced.count(FileAction::Add), forced.rows.len()), (1, 1, 2), "{brought:?}");
            let owner = BundleId::new("other").expect("an id");
            inputs.owned_by_others.insert(path("a").case_folded(), owner);
            let claimed = InstallPlan::new(&inputs, ConflictPreference::KeepLocal, true);
            assert!(matches!(claimed, Err(InstallError::OwnedByBundle { .. })), "{brought:?}");
        }
    }

    #[test]
    fn unowned_file_is_overwritten_only_by_force() {
        let strange = plan_inputs(None, Some("x"), Some("n"));
        for preference in [ConflictPreference::KeepLocal, ConflictPreference::TakeBundle] {
            let refused = InstallPlan::new(&strange, preference, false);
            assert!(matches!(refused, Err(InstallError::Occupied { paths }) if paths == [path("a")]));
            assert_eq!(planned_action(&strange, preference, true), Some(FileAction::Overwrite));
        }
        let changes =
            InstallPlan::new(&strange, ConflictPreference::KeepLocal, true).expect("a plan").changes();
        assert!(changes[0].keeps_backup);
    }

    #[test]
    fn non_files_are_never_overwritten() {
        let mut linked = plan_inputs(None, None, Some("n"));
        linked.present.insert(path("a"), FileState::Other);
        assert!(matches!(
            InstallPlan::new(&linked, ConflictPreference::TakeBundle, true),
            Err(InstallError::NotAFile { .. })
        ));
        // It is only left alone when the bundle goes.
        let mut gone = plan_inputs(Some(false), None, None);
        gone.present.insert(path("a"), FileState::Other);
        assert_eq!(planned_action(&gone, ConflictPreference::TakeBundle, true), Some(FileAction::Keep));
    }

    #[test]
    fn another_bundles_file_is_refused_even_by_force() {
        let mut claimed = plan_inputs(None, Some("n"), Some("n"));
        claimed.owned_by_others.insert(path("A").case_folded(), BundleId::new("other").expect("an id"));
        let refused = InstallPlan::new(&claimed, ConflictPreference::TakeBundle, true);
        assert!(
            matches!(refused, Err(InstallError::OwnedByBundle { owner, .. }) if owner.as_str() == "other")
        );
        // What another bundle has taken over since does not keep this one from going.
        let mut gone = plan_inputs(Some(true), Some("o"), None);
        gone.owned_by_others.insert(path("a").case_folded(), BundleId::new("other").expect("an id"));
        assert_eq!(planned_action(&gone, ConflictPreference::KeepLocal, false), Some(FileAction::Keep));
    }
}
