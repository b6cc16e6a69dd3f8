//! What installing would change, file by file, decided from three sides: what the last version brought, what is there
//! now, what the new version brings. Pure: the caller looks, this decides.

use std::collections::{BTreeMap, BTreeSet};

use lillux::Digest;
use rye_item::BundleId;
use serde::Serialize;

use super::transaction::Change;
use super::{InstallError, Present};
use crate::path::FilePath;

/// What happens to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
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
    /// It takes the place of a file that somebody else made or changed, of which a backup is kept.
    Overwrite,
    /// It was changed here and goes, of which a backup is kept.
    Discard,
}

/// Whose version of a locally changed file stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// The one that is there.
    #[default]
    Ours,
    /// The bundle's.
    Theirs,
}

/// One file of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The file.
    pub path: FilePath,
    /// What happens to it.
    pub action: Action,
    /// What is there now.
    #[serde(skip)]
    pub old: Option<Digest>,
    /// What the bundle brings.
    #[serde(skip)]
    pub new: Option<Digest>,
}

/// What an installation, or an uninstallation, would change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The files, by path.
    pub rows: Vec<Row>,
}

/// What a plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Sides {
    /// What the new version brings; nothing when it is to be uninstalled.
    pub new: BTreeMap<FilePath, Digest>,
    /// What the installed version brought: the digest it had is not known, only whether the file still is what it was.
    pub brought: BTreeMap<FilePath, bool>,
    /// What is there now, of both.
    pub present: BTreeMap<FilePath, Present>,
    /// Which files other installed bundles brought, by name without case.
    pub claimed: BTreeMap<String, BundleId>,
    /// Files with the id of an item the new version brings, but another extension: only one of the two would be found.
    pub same_id: BTreeMap<FilePath, SameId>,
}

/// A file that is there, and the file of the new version that has the same id.
#[derive(Clone, Debug)]
pub struct SameId {
    /// The file of the new version.
    pub new: FilePath,
    /// What is there.
    pub present: Present,
}

impl Plan {
    /// Decides. `force` lets files that this bundle did not bring be overwritten.
    ///
    /// # Errors
    /// When another bundle has a file, or something is in the way.
    pub fn new(sides: &Sides, preference: Preference, force: bool) -> Result<Self, InstallError> {
        let mut rows = Vec::new();
        let mut occupied = Vec::new();
        let paths: BTreeSet<&FilePath> = sides.new.keys().chain(sides.brought.keys()).collect();
        for path in paths {
            let new = sides.new.get(path).copied();
            let keep = || Row { path: path.clone(), action: Action::Keep, old: None, new: None };
            match sides.claimed.get(&path.folded()) {
                Some(owner) if new.is_some() => {
                    return Err(InstallError::Claimed { path: path.clone(), owner: owner.clone() });
                }
                // Another bundle has it now: it does not go with this one.
                Some(_) => {
                    rows.push(keep());
                    continue;
                }
                None => {}
            }
            let old = match sides.present.get(path) {
                None | Some(Present::Absent) => None,
                Some(Present::File(digest)) => Some(*digest),
                // What was brought and is no file any more was changed here: it stays when the bundle goes.
                Some(Present::Other) if new.is_none() => {
                    rows.push(keep());
                    continue;
                }
                Some(Present::Other) => return Err(InstallError::InTheWay { path: path.clone() }),
            };
            let is_as_brought = sides.brought.get(path).copied();
            let action = match (old, new, is_as_brought) {
                (None, None, _) => continue,
                (None, Some(_), _) => Action::Add,
                (Some(old), Some(new), _) if old == new => Action::Unchanged,
                (Some(_), Some(_), Some(true)) => Action::Replace,
                (Some(_), None, Some(true)) => Action::Remove,
                (Some(_), Some(_), Some(false)) if preference == Preference::Theirs => Action::Overwrite,
                (Some(_), None, Some(false)) if preference == Preference::Theirs => Action::Discard,
                (Some(_), _, Some(false)) => Action::Keep,
                (Some(_), Some(_), None) if force => Action::Overwrite,
                (Some(_), _, None) => {
                    occupied.push(path.clone());
                    continue;
                }
            };
            rows.push(Row { path: path.clone(), action, old, new });
        }
        if !occupied.is_empty() {
            return Err(InstallError::Occupied { paths: occupied });
        }
        let mut shadowed = Vec::new();
        for (path, same) in &sides.same_id {
            if let Some(owner) = sides.claimed.get(&path.folded()) {
                return Err(InstallError::Claimed { path: path.clone(), owner: owner.clone() });
            }
            let planned = rows.iter().position(|row| row.path == *path);
            match (planned.map(|index| rows[index].action), &same.present) {
                (Some(Action::Remove | Action::Discard), _) | (None, Present::Absent) => {}
                (None | Some(Action::Keep), Present::File(digest)) if force => {
                    rows.retain(|row| row.path != *path);
                    rows.push(Row {
                        path: path.clone(),
                        action: Action::Discard,
                        old: Some(*digest),
                        new: None,
                    });
                }
                (_, _) => shadowed.push((path.clone(), same.new.clone())),
            }
        }
        if !shadowed.is_empty() {
            return Err(InstallError::Shadows { files: shadowed });
        }
        rows.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self { rows })
    }

    /// How many files have this fate.
    #[must_use]
    pub fn count(&self, action: Action) -> usize {
        self.rows.iter().filter(|row| row.action == action).count()
    }

    /// The changes to make.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let change = |row: &Row, new: Option<Digest>, keeps_backup: bool| Change {
            path: row.path.clone(),
            old: row.old,
            new,
            keeps_backup,
        };
        self.rows
            .iter()
            .filter_map(|row| match row.action {
                Action::Unchanged | Action::Keep => None,
                Action::Add | Action::Replace => Some(change(row, row.new, false)),
                Action::Remove => Some(change(row, None, false)),
                Action::Overwrite => Some(change(row, row.new, true)),
                Action::Discard => Some(change(row, None, true)),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> FilePath {
        FilePath::new(format!(".ai/tools/team/{name}")).expect("a path")
    }

    fn digest(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    /// One file: what the last version left (`Some(true)`: untouched), what is there, what the new one brings.
    fn sides(brought: Option<bool>, present: Option<&str>, new: Option<&str>) -> Sides {
        let mut sides = Sides::default();
        if let Some(brought) = brought {
            sides.brought.insert(path("a"), brought);
        }
        let there = present.map_or(Present::Absent, |text| Present::File(digest(text)));
        sides.present.insert(path("a"), there);
        if let Some(new) = new {
            sides.new.insert(path("a"), digest(new));
        }
        sides
    }

    fn fate(sides: &Sides, preference: Preference, force: bool) -> Option<Action> {
        let plan = Plan::new(sides, preference, force).expect("a plan");
        assert!(plan.rows.len() < 2);
        plan.rows.first().map(|row| row.action)
    }

    #[test]
    fn three_sides_decide_what_happens() {
        use Action::*;
        use Preference::*;
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
            let sides = sides(brought, present, new);
            assert_eq!(fate(&sides, Ours, false), ours, "{brought:?} {present:?} {new:?}");
            assert_eq!(fate(&sides, Theirs, false), theirs, "{brought:?} {present:?} {new:?}");
        }
    }

    #[test]
    fn same_id_in_another_file_is_discarded_by_force_only() {
        for (brought, is_refused) in [(None, true), (Some(false), true), (Some(true), false)] {
            let mut sides = sides(brought, Some("x"), None);
            sides.new.insert(path("a.py"), digest("n"));
            let same = SameId { new: path("a.py"), present: Present::File(digest("x")) };
            sides.same_id.insert(path("a"), same);
            let refused = Plan::new(&sides, Preference::Ours, false);
            assert_eq!(matches!(refused, Err(InstallError::Shadows { .. })), is_refused, "{brought:?}");
            let forced = Plan::new(&sides, Preference::Ours, true).expect("a plan");
            let gone = forced.count(Action::Discard) + forced.count(Action::Remove);
            assert_eq!((gone, forced.count(Action::Add), forced.rows.len()), (1, 1, 2), "{brought:?}");
            let owner = BundleId::new("other").expect("an id");
            sides.claimed.insert(path("a").folded(), owner);
            let claimed = Plan::new(&sides, Preference::Ours, true);
            assert!(matches!(claimed, Err(InstallError::Claimed { .. })), "{brought:?}");
        }
    }

    #[test]
    fn a_file_nobody_installed_is_overwritten_by_force_only() {
        let strange = sides(None, Some("x"), Some("n"));
        for preference in [Preference::Ours, Preference::Theirs] {
            let refused = Plan::new(&strange, preference, false);
            assert!(matches!(refused, Err(InstallError::Occupied { paths }) if paths == [path("a")]));
            assert_eq!(fate(&strange, preference, true), Some(Action::Overwrite));
        }
        let changes = Plan::new(&strange, Preference::Ours, true).expect("a plan").changes();
        assert!(changes[0].keeps_backup);
    }

    #[test]
    fn what_is_no_file_is_never_overwritten() {
        let mut linked = sides(None, None, Some("n"));
        linked.present.insert(path("a"), Present::Other);
        assert!(matches!(Plan::new(&linked, Preference::Theirs, true), Err(InstallError::InTheWay { .. })));
        // It is only left alone when the bundle goes.
        let mut gone = sides(Some(false), None, None);
        gone.present.insert(path("a"), Present::Other);
        assert_eq!(fate(&gone, Preference::Theirs, true), Some(Action::Keep));
    }

    #[test]
    fn another_bundles_file_is_refused_even_by_force() {
        let mut claimed = sides(None, Some("n"), Some("n"));
        claimed.claimed.insert(path("A").folded(), BundleId::new("other").expect("an id"));
        let refused = Plan::new(&claimed, Preference::Theirs, true);
        assert!(matches!(refused, Err(InstallError::Claimed { owner, .. }) if owner.as_str() == "other"));
        // What another bundle has taken over since does not keep this one from going.
        let mut gone = sides(Some(true), Some("o"), None);
        gone.claimed.insert(path("a").folded(), BundleId::new("other").expect("an id"));
        assert_eq!(fate(&gone, Preference::Ours, false), Some(Action::Keep));
    }
}
