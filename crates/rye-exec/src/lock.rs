//! Whether a chain is still the one that was pinned. Values in, differences out; where lockfiles lie is the engine's
//! business.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

pub use lillux::lockfile::{LockedElement, LockedFile, LockedPackage, LockedTool, Lockfile};
use serde::Serialize;

/// What a tool resolves to right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedTool {
    /// The tool.
    pub root: LockedTool,
    /// The tool and what it runs on, element by element.
    pub chain: Vec<LockedElement>,
    /// The files the tool may import; `None` is the same as none of them.
    pub verified_deps: Option<Vec<LockedFile>>,
    /// The packages installed for the tool; `None` when nothing was installed yet.
    pub dependencies: Option<Vec<LockedPackage>>,
    /// An element is not verified, but allowed by development mode. Such a chain is never pinned.
    pub uses_dev_mode: bool,
}

impl ResolvedTool {
    /// The space of the tool itself.
    #[must_use]
    pub fn space(&self) -> &str {
        self.chain.first().map_or("", |entry| entry.space.as_str())
    }

    /// The lockfile that pins this chain.
    #[must_use]
    pub fn to_lockfile(&self, generated_at: String, project: Option<String>) -> Lockfile {
        Lockfile {
            lockfile_version: lillux::lockfile::LOCKFILE_VERSION,
            generated_at,
            root: self.root.clone(),
            resolved_chain: self.chain.clone(),
            registry: None,
            verified_deps: self.verified_deps.clone(),
            project,
            dependencies: self.dependencies.clone(),
        }
    }
}

/// A bundle of the system space as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleProvider {
    /// Its space: `system:<bundle>`.
    pub space: String,
    /// Its version.
    pub version: String,
    /// It is inside the binary.
    pub is_embedded: bool,
}

/// Which part of a lockfile something doesn't match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LockfilePart {
    /// The tool itself.
    Root,
    /// An element of the chain.
    Chain,
    /// A file that is verified with the tool.
    File,
    /// An installed package.
    Dependency,
}

/// How something differs from what was pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum DifferenceKind {
    /// Its content is another.
    Hash {
        /// The pinned hash.
        pinned: String,
        /// What was found.
        found: String,
    },
    /// It comes from a space of lower precedence than the pinned one.
    Space {
        /// The pinned space.
        pinned: String,
        /// Where it was found.
        found: String,
    },
    /// A new file in a higher space hides the pinned one.
    Shadowed {
        /// The pinned space.
        pinned: String,
        /// The space of what hides it.
        by: String,
    },
    /// It has another version.
    Version {
        /// The pinned version.
        pinned: String,
        /// What was found.
        found: String,
    },
    /// A newer version is pinned.
    Downgraded {
        /// The pinned version.
        pinned: String,
        /// What was found.
        found: String,
    },
    /// It was pinned, and is not there.
    Missing,
    /// It is there, and was not pinned.
    Added,
}

/// One thing that is not as it was pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockDifference {
    /// The part it is in.
    pub part: LockfilePart,
    /// The element's id, the file's path or the package's name.
    pub element: String,
    /// How it differs.
    #[serde(flatten)]
    pub kind: DifferenceKind,
}

impl fmt::Display for LockDifference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let element = rye_item::text::one_line(&self.element);
        let clean = |text: &str| rye_item::text::one_line(text);
        match self.part {
            LockfilePart::Root | LockfilePart::Chain => write!(formatter, "`{element}`")?,
            LockfilePart::File => write!(formatter, "the file `{element}`")?,
            LockfilePart::Dependency => write!(formatter, "the package `{element}`")?,
        }
        match &self.kind {
            DifferenceKind::Hash { pinned, found } => {
                write!(formatter, " changed: pinned {}, found {}", short_hash(pinned), short_hash(found))
            }
            DifferenceKind::Space { pinned, found } => {
                write!(formatter, " was pinned in {} space, found in {}", clean(pinned), clean(found))
            }
            DifferenceKind::Shadowed { pinned, by } => {
                write!(formatter, " of {} space is hidden by a new one in {} space", clean(pinned), clean(by))
            }
            DifferenceKind::Version { pinned, found } => {
                write!(formatter, " has another version: pinned {}, found {}", clean(pinned), clean(found))
            }
            DifferenceKind::Downgraded { pinned, found } => {
                write!(
                    formatter,
                    " is older than the pinned version: pinned {}, found {}",
                    clean(pinned),
                    clean(found)
                )
            }
            DifferenceKind::Missing => write!(formatter, " was pinned and is not used any more"),
            DifferenceKind::Added => write!(formatter, " is new: it was not pinned"),
        }
    }
}

/// The beginning of a hash, for showing.
#[must_use]
pub fn short_hash(hash: &str) -> String {
    let clean = rye_item::text::one_line(hash);
    match clean.char_indices().nth(16) {
        Some((cut, _)) => format!("{}…", &clean[..cut]),
        None => clean,
    }
}

/// How a lockfile stands to a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockComparison {
    /// Everything is as it was pinned.
    Matches,
    /// Everything that differs belongs to a bundle that was upgraded.
    Stale {
        /// Which, in words.
        why: String,
    },
    /// Something else than what was pinned would run; the first difference is the one to tell.
    Differs(Vec<LockDifference>),
}

/// Compares a lockfile with what the tool resolves to now. An upgraded bundle excuses its own elements and what they
/// run on, which is system space by the law of precedence; it excuses nothing before them.
#[must_use]
pub fn compare(pinned: &Lockfile, found: &ResolvedTool, providers: &[BundleProvider]) -> LockComparison {
    let upgraded = pinned.resolved_chain.iter().position(|entry| upgrade_reason(entry, providers).is_some());
    let strict = upgraded.unwrap_or(usize::MAX);
    let why = upgraded.and_then(|index| upgrade_reason(&pinned.resolved_chain[index], providers));
    let tail = found.chain.iter().skip(strict);
    // The excuse holds for system space alone, and only where the pinned element is still the next one.
    let is_excusable = tail.clone().all(|entry| is_system(&entry.space))
        && tail
            .clone()
            .next()
            .zip(pinned.resolved_chain.get(strict))
            .is_some_and(|(now, before)| (&now.item_id, &now.space) == (&before.item_id, &before.space));
    let differences = differences(pinned, found);
    match why {
        _ if differences.is_empty() => LockComparison::Matches,
        Some(why) if is_excusable => {
            let is_strict = |difference: &&(usize, LockDifference)| difference.0 < strict;
            let left: Vec<LockDifference> =
                differences.iter().filter(is_strict).map(|(_, difference)| difference.clone()).collect();
            if left.is_empty() { LockComparison::Stale { why } } else { LockComparison::Differs(left) }
        }
        Some(_) | None => {
            LockComparison::Differs(differences.into_iter().map(|(_, difference)| difference).collect())
        }
    }
}

/// What became of the bundle of a pinned element, if its maker or the binary replaced it since.
fn upgrade_reason(pinned: &LockedElement, providers: &[BundleProvider]) -> Option<String> {
    let provider = providers.iter().find(|provider| provider.space == pinned.space)?;
    let before = pinned.provider_version.as_deref()?;
    let now = provider.version.as_str();
    let order = match (semver::Version::parse(before), semver::Version::parse(now)) {
        (Ok(before), Ok(now)) => Some(now.cmp(&before)),
        (_, _) => None,
    };
    // The binary vouches for whatever it holds. A folder may be put back to what its signer has withdrawn.
    let is_excused = before != now && (provider.is_embedded || order == Some(Ordering::Greater));
    let verb = match order {
        Some(Ordering::Greater) => "was upgraded",
        Some(Ordering::Less) => "was downgraded",
        Some(Ordering::Equal) | None => "changed",
    };
    let bundle = provider.space.strip_prefix("system:").unwrap_or(&provider.space);
    let (before, now) = (rye_item::text::one_line(before), rye_item::text::one_line(now));
    is_excused.then(|| format!("the bundle `{bundle}` {verb} from {before} to {now}"))
}

fn is_system(space: &str) -> bool {
    space.starts_with("system:")
}

/// The precedence of a space by its label; an unknown label is below all.
fn precedence(space: &str) -> u8 {
    match space {
        "project" => 3,
        "user" => 2,
        system if is_system(system) => 1,
        _ => 0,
    }
}

/// Everything that differs, with its position in the chain.
fn differences(pinned: &Lockfile, found: &ResolvedTool) -> Vec<(usize, LockDifference)> {
    let mut all = Vec::new();
    let mut note = |position: usize, part: LockfilePart, element: &str, kind: DifferenceKind| {
        all.push((position, LockDifference { part, element: element.to_owned(), kind }));
    };
    let root = &pinned.root;
    if root.tool_id != found.root.tool_id {
        note(0, LockfilePart::Root, &root.tool_id, DifferenceKind::Missing);
    }
    if root.version != found.root.version {
        let kind =
            DifferenceKind::Version { pinned: root.version.clone(), found: found.root.version.clone() };
        note(0, LockfilePart::Root, &root.tool_id, kind);
    }
    let (before, now) = (&pinned.resolved_chain, &found.chain);
    let mut is_root_reported = false;
    for position in 0..before.len().max(now.len()) {
        let kind = match (before.get(position), now.get(position)) {
            (Some(old), Some(new)) if old.item_id == new.item_id => element_difference(old, new),
            (Some(old), Some(new)) => {
                if !before.iter().any(|entry| entry.item_id == new.item_id) {
                    note(position, LockfilePart::Chain, &new.item_id, DifferenceKind::Added);
                }
                if !now.iter().any(|entry| entry.item_id == old.item_id) {
                    note(position, LockfilePart::Chain, &old.item_id, DifferenceKind::Missing);
                }
                // Both are there, in another order: the first that is out of place is reported.
                (now.iter().any(|entry| entry.item_id == old.item_id)
                    && before.iter().any(|entry| entry.item_id == new.item_id))
                .then_some(DifferenceKind::Missing)
            }
            (Some(_), None) => Some(DifferenceKind::Missing),
            (None, Some(_)) => Some(DifferenceKind::Added),
            (None, None) => None,
        };
        if let Some(kind) = kind {
            is_root_reported |= position == 0;
            let element = before.get(position).or_else(|| now.get(position));
            note(position, LockfilePart::Chain, element.map_or("", |entry| entry.item_id.as_str()), kind);
        }
    }
    if root.integrity != found.root.integrity && !is_root_reported {
        let kind =
            DifferenceKind::Hash { pinned: root.integrity.clone(), found: found.root.integrity.clone() };
        note(0, LockfilePart::Root, &root.tool_id, kind);
    }
    let files = |list: &[LockedFile]| {
        list.iter().map(|file| (file.path.clone(), file.integrity.clone())).collect::<Vec<_>>()
    };
    let packages = |list: &[LockedPackage]| {
        list.iter()
            .map(|package| (format!("{} {}", package.name, package.version), package.integrity.clone()))
            .collect::<Vec<_>>()
    };
    // A lockfile without the field pins a tool that imports nothing: a file that appears is a change like any other.
    let (old, new) = (
        pinned.verified_deps.as_deref().unwrap_or_default(),
        found.verified_deps.as_deref().unwrap_or_default(),
    );
    for (element, kind) in list_differences(&files(old), &files(new)) {
        note(0, LockfilePart::File, &element, kind);
    }
    // Packages are unknown until they are installed.
    if let (Some(old), Some(new)) = (&pinned.dependencies, &found.dependencies) {
        for (element, kind) in list_differences(&packages(old), &packages(new)) {
            note(0, LockfilePart::Dependency, &element, kind);
        }
    }
    all
}

fn element_difference(old: &LockedElement, new: &LockedElement) -> Option<DifferenceKind> {
    if old.space != new.space {
        let (pinned, found) = (old.space.clone(), new.space.clone());
        return Some(if precedence(&found) > precedence(&pinned) {
            DifferenceKind::Shadowed { pinned, by: found }
        } else {
            DifferenceKind::Space { pinned, found }
        });
    }
    (old.integrity != new.integrity)
        .then(|| DifferenceKind::Hash { pinned: old.integrity.clone(), found: new.integrity.clone() })
}

/// Name and hash on both sides, in any order. A name that is listed twice has two hashes, and both must match.
fn list_differences(old: &[(String, String)], new: &[(String, String)]) -> Vec<(String, DifferenceKind)> {
    let (before, now) = (group_by_name(old), group_by_name(new));
    let changed = before.iter().filter_map(|(name, pinned)| match now.get(name) {
        None => Some(((*name).to_owned(), DifferenceKind::Missing)),
        Some(found) if found != pinned => {
            let (pinned, found) = (first_differing_hash(pinned, found), first_differing_hash(found, pinned));
            Some(((*name).to_owned(), DifferenceKind::Hash { pinned, found }))
        }
        Some(_) => None,
    });
    let added = now.keys().filter(|name| !before.contains_key(*name));
    changed.chain(added.map(|name| ((*name).to_owned(), DifferenceKind::Added))).collect()
}

fn group_by_name(list: &[(String, String)]) -> BTreeMap<&str, Vec<&str>> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, hash) in list {
        names.entry(name).or_default().push(hash);
    }
    names.values_mut().for_each(|hashes| hashes.sort_unstable());
    names
}

/// The first hash of one side that the other does not have; where only their number differs, the first.
fn first_differing_hash(own: &[&str], other: &[&str]) -> String {
    let first = own.iter().find(|hash| !other.contains(hash)).or(own.first());
    first.map(|hash| (*hash).to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str) -> String {
        lillux::Digest::of(text.as_bytes()).to_hex()
    }

    fn entry(id: &str, space: &str, content: &str, version: &str) -> LockedElement {
        LockedElement {
            item_id: id.to_owned(),
            space: space.to_owned(),
            tool_type: None,
            executor_id: None,
            integrity: hash(content),
            provider_id: Some(space.trim_start_matches("system:").to_owned()),
            provider_version: Some(version.to_owned()),
        }
    }

    /// A project tool on a runtime and a primitive of the bundle `core` at 1.0.0.
    fn chain() -> ResolvedTool {
        resolved_from(vec![
            entry("team/x", "project", "tool", "1.0.0"),
            entry("rye/runtime", "system:core", "runtime", "1.0.0"),
            entry("rye/primitive", "system:core", "primitive", "1.0.0"),
        ])
    }

    fn resolved_from(chain: Vec<LockedElement>) -> ResolvedTool {
        ResolvedTool {
            root: LockedTool {
                tool_id: chain[0].item_id.clone(),
                version: "1.0.0".to_owned(),
                integrity: chain[0].integrity.clone(),
                provider_id: None,
                provider_version: None,
            },
            chain,
            verified_deps: None,
            dependencies: None,
            uses_dev_mode: false,
        }
    }

    fn core(version: &str, is_embedded: bool) -> Vec<BundleProvider> {
        vec![BundleProvider { space: "system:core".to_owned(), version: version.to_owned(), is_embedded }]
    }

    fn lockfile_of(resolved: &ResolvedTool) -> Lockfile {
        resolved.to_lockfile("2026-01-02T03:04:05.000000+00:00".to_owned(), None)
    }

    fn difference_messages(pinned: &ResolvedTool, found: &ResolvedTool) -> Vec<String> {
        match compare(&lockfile_of(pinned), found, &core("1.0.0", true)) {
            LockComparison::Differs(all) => all.iter().map(ToString::to_string).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn same_chain_matches() {
        assert_eq!(compare(&lockfile_of(&chain()), &chain(), &core("1.0.0", true)), LockComparison::Matches);
        assert_eq!(compare(&lockfile_of(&chain()), &chain(), &[]), LockComparison::Matches);
    }

    #[test]
    fn every_kind_of_difference_is_reported() {
        let mut edited = chain();
        edited.chain[0].integrity = hash("edited");
        edited.root.integrity = hash("edited");
        let (old, new) = (short_hash(&hash("tool")), short_hash(&hash("edited")));
        assert_eq!(
            difference_messages(&chain(), &edited),
            [format!("`team/x` changed: pinned {old}, found {new}")]
        );

        let mut shadowed = chain();
        shadowed.chain[1] = entry("rye/runtime", "project", "evil", "1.0.0");
        let hidden = "`rye/runtime` of system:core space is hidden by a new one in project space";
        assert_eq!(difference_messages(&chain(), &shadowed), [hidden]);
        let back = "`rye/runtime` was pinned in project space, found in system:core";
        assert_eq!(difference_messages(&shadowed, &chain()), [back]);

        let mut longer = chain();
        longer.chain.insert(1, entry("team/wrapper", "project", "wrapper", "1.0.0"));
        assert_eq!(difference_messages(&chain(), &longer)[0], "`team/wrapper` is new: it was not pinned");
        assert_eq!(
            difference_messages(&longer, &chain())[0],
            "`team/wrapper` was pinned and is not used any more"
        );

        let mut swapped = chain();
        swapped.chain.swap(1, 2);
        assert_eq!(
            difference_messages(&chain(), &swapped)[0],
            "`rye/runtime` was pinned and is not used any more"
        );

        let mut newer = chain();
        newer.root.version = "2.0.0".to_owned();
        assert_eq!(
            difference_messages(&chain(), &newer),
            ["`team/x` has another version: pinned 1.0.0, found 2.0.0"]
        );
    }

    #[test]
    fn inconsistent_root_differs() {
        let mut lockfile = lockfile_of(&chain());
        lockfile.root.integrity = hash("other");
        assert!(matches!(compare(&lockfile, &chain(), &[]), LockComparison::Differs(_)));
        lockfile = lockfile_of(&chain());
        lockfile.root.tool_id = "team/y".to_owned();
        assert!(matches!(compare(&lockfile, &chain(), &[]), LockComparison::Differs(_)));
        lockfile = lockfile_of(&chain());
        lockfile.resolved_chain.clear();
        assert!(matches!(compare(&lockfile, &chain(), &[]), LockComparison::Differs(_)));
    }

    #[test]
    fn files_and_packages_are_compared() {
        let file = |path: &str, content: &str| LockedFile { path: path.to_owned(), integrity: hash(content) };
        let package = |integrity: &str| LockedPackage {
            name: "left".to_owned(),
            version: "1".to_owned(),
            integrity: integrity.to_owned(),
        };
        let mut old = chain();
        let mut new = chain();
        old.dependencies = Some(vec![package("one")]);
        assert_eq!(compare(&lockfile_of(&old), &new, &[]), LockComparison::Matches);
        old.verified_deps = Some(vec![file("a.py", "a"), file("b.py", "b")]);
        new.verified_deps = Some(vec![file("c.py", "c"), file("b.py", "changed")]);
        new.dependencies = Some(vec![package("two")]);
        let (pinned, found) = (short_hash(&hash("b")), short_hash(&hash("changed")));
        assert_eq!(
            difference_messages(&old, &new),
            [
                "the file `a.py` was pinned and is not used any more".to_owned(),
                format!("the file `b.py` changed: pinned {pinned}, found {found}"),
                "the file `c.py` is new: it was not pinned".to_owned(),
                "the package `left 1` changed: pinned one, found two".to_owned(),
            ]
        );
    }

    #[test]
    fn imported_files_that_appear_or_vanish_differ() {
        let file = |path: &str, content: &str| LockedFile { path: path.to_owned(), integrity: hash(content) };
        let with = |files: Option<Vec<LockedFile>>| ResolvedTool { verified_deps: files, ..chain() };
        let one = || with(Some(vec![file("json.py", "one")]));
        for none in [with(None), with(Some(Vec::new()))] {
            assert_eq!(difference_messages(&none, &one()), ["the file `json.py` is new: it was not pinned"]);
            assert_eq!(
                difference_messages(&one(), &none),
                ["the file `json.py` was pinned and is not used any more"]
            );
            assert_eq!(compare(&lockfile_of(&none), &chain(), &[]), LockComparison::Matches);
        }
        // The same name twice: neither entry hides the other.
        let twice = |second: &str| with(Some(vec![file("a.py", "one"), file("a.py", second)]));
        assert_eq!(compare(&lockfile_of(&twice("two")), &twice("two"), &[]), LockComparison::Matches);
        assert!(
            difference_messages(&twice("two"), &twice("three"))[0].starts_with("the file `a.py` changed")
        );
        let alone = with(Some(vec![file("a.py", "one")]));
        assert!(difference_messages(&alone, &twice("two"))[0].starts_with("the file `a.py` changed"));
        assert!(difference_messages(&twice("one"), &alone)[0].starts_with("the file `a.py` changed"));
    }

    /// The chain after the bundle was upgraded: another runtime on another primitive.
    fn after_upgrade() -> ResolvedTool {
        resolved_from(vec![
            entry("team/x", "project", "tool", "1.0.0"),
            entry("rye/runtime", "system:core", "runtime 2", "1.1.0"),
            entry("rye/native", "system:core", "native", "1.1.0"),
        ])
    }

    #[test]
    fn an_upgraded_bundle_makes_a_lockfile_stale() {
        let why = "the bundle `core` was upgraded from 1.0.0 to 1.1.0".to_owned();
        for is_embedded in [true, false] {
            let comparison = compare(&lockfile_of(&chain()), &after_upgrade(), &core("1.1.0", is_embedded));
            assert_eq!(comparison, LockComparison::Stale { why: why.clone() });
        }
        assert_eq!(compare(&lockfile_of(&chain()), &chain(), &core("1.1.0", true)), LockComparison::Matches);
        let back = compare(&lockfile_of(&after_upgrade()), &chain(), &core("1.0.0", true));
        let why = "the bundle `core` was downgraded from 1.1.0 to 1.0.0".to_owned();
        assert_eq!(back, LockComparison::Stale { why });
    }

    #[test]
    fn upgrade_excuses_only_its_own_bundle() {
        let differs = |found: &ResolvedTool, providers: &[BundleProvider]| {
            let comparison = compare(&lockfile_of(&chain()), found, providers);
            assert!(matches!(comparison, LockComparison::Differs(_)), "{comparison:?}");
        };
        let mut edited = after_upgrade();
        edited.chain[0].integrity = hash("edited");
        edited.root.integrity = hash("edited");
        differs(&edited, &core("1.1.0", true));
        let mut shadowed = after_upgrade();
        shadowed.chain[1].space = "user".to_owned();
        differs(&shadowed, &core("1.1.0", true));
        let mut elsewhere = after_upgrade();
        elsewhere.chain[1].space = "system:other".to_owned();
        differs(&elsewhere, &core("1.1.0", true));
        let mut inserted = after_upgrade();
        inserted.chain.insert(1, entry("team/wrapper", "system:other", "wrapper", "1.0.0"));
        differs(&inserted, &core("1.1.0", true));
        differs(&after_upgrade(), &core("1.0.0", true));
        differs(&after_upgrade(), &core("0.9.0", false));
        differs(&after_upgrade(), &core("newest", false));
        let mut shorter = chain();
        shorter.chain.truncate(1);
        differs(&shorter, &core("1.1.0", true));
    }
}
