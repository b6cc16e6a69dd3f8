//! Pins of other versions of a tool: of newer ones, beside which an older version, however well it is signed, does not run, and
//! of the user's own tool that a project's tool of another version hides.

use std::cmp::Ordering;
use std::path::Path;

use lillux::lockfile::Lockfile;
use rye_exec::lock::{DifferenceKind, LockDifference, LockfilePart, ResolvedTool};
use rye_item::ItemId;
use rye_item::space::SpaceTier;
use rye_space::bundle::BundleTrust;
use rye_space::file_stamp::WatchSet;
use semver::Version;

use super::{
    EffectiveLockfile, LockfileDir, ScannedLockfile, current_project, is_shadowed_pin, pinned_space,
    project_dir, tool_id, user_dir, user_suffix,
};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::file_name;

/// The lockfiles of project and user scope that pin a newer version of the tool, or are damaged and say so by their name; and
/// those of a tool of the user's that the project's tool hides, whatever their version. `current` are those of the version
/// that would run.
pub(super) fn find(
    engine: &Engine,
    resolved: &ResolvedTool,
    current: &[EffectiveLockfile],
    watched: &mut WatchSet,
) -> Result<Vec<ScannedLockfile>> {
    let (id, here) = (tool_id(resolved)?, current_project(engine));
    let is_here = |lockfile: &Lockfile| lockfile.project.is_some() && lockfile.project == here;
    // The pin of a tool that is hidden here has no effect once the one that hides it is pinned.
    let is_pinned_here =
        current.iter().any(|found| found.tier == SpaceTier::User && is_here(&found.lockfile));
    let dirs = project_dir(engine).into_iter().chain([user_dir(engine)]);
    let found: Vec<(Age, ScannedLockfile)> =
        dirs.flat_map(|dir| read_other_versions(&dir, &id, resolved, watched)).collect();
    // A new version of what was accepted here is a new pin.
    let was_pinned_here = is_pinned_here
        || found.iter().any(|(_, scanned)| {
            scanned.tier == SpaceTier::User && scanned.lockfile.as_ref().is_ok_and(is_here)
        });
    let counts = |age: Age, scanned: &ScannedLockfile| match (&scanned.lockfile, scanned.tier) {
        (Err(_), _) if age == Age::Older => false,
        (Err(_), SpaceTier::User) => !is_marked_for_another(engine, &scanned.name),
        (Err(_), SpaceTier::Project | SpaceTier::System) => true,
        (Ok(lockfile), SpaceTier::User)
            if age == Age::Older && is_shadowed_pin(lockfile, resolved) && is_in_user_space(lockfile) =>
        {
            !was_pinned_here
        }
        (Ok(lockfile), _) if !is_newer(&lockfile.root.version, &resolved.root.version) => false,
        (Ok(_), SpaceTier::Project | SpaceTier::System) => true,
        (Ok(lockfile), SpaceTier::User) if lockfile.project.is_some() => is_here(lockfile),
        (Ok(lockfile), SpaceTier::User) if is_shadowed_pin(lockfile, resolved) => !is_pinned_here,
        (Ok(lockfile), SpaceTier::User) => !is_of_binary(engine, lockfile, resolved),
    };
    let effective = found.into_iter().filter(|(age, scanned)| counts(*age, scanned));
    Ok(effective.map(|(_, scanned)| scanned).collect())
}

/// What the name of a lockfile says of its version, beside the tool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    Newer,
    Older,
}

/// Whether it pins a tool that lies in user space.
fn is_in_user_space(lockfile: &Lockfile) -> bool {
    pinned_space(lockfile) == SpaceTier::User.as_str()
}

/// The lockfiles of a folder whose names say that they pin another version of the tool; older ones only for a project's tool,
/// which may hide one of the user's.
fn read_other_versions(
    dir: &LockfileDir,
    id: &ItemId,
    resolved: &ResolvedTool,
    watched: &mut WatchSet,
) -> Vec<(Age, ScannedLockfile)> {
    let folder = dir.path(Path::new(id.category()));
    watched.add(folder.clone());
    let prefix = format!("{}@", id.name());
    // A folder that is not there holds none; one that cannot be read keeps the tool's own lockfile from being read too.
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let version = resolved.root.version.as_str();
    let with_age = |file: String| {
        let stated = file.strip_prefix(&prefix)?.strip_suffix(file_name::LOCKFILE_EXTENSION)?;
        if is_newer(stated, version) {
            return Some((file, Age::Newer));
        }
        (stated != version && resolved.space() == "project").then_some((file, Age::Older))
    };
    let mut names: Vec<(String, Age)> = names.filter_map(with_age).collect();
    names.sort();
    let read = |(file, age): (String, Age)| {
        let relative = Path::new(id.category()).join(file);
        let path = dir.path(&relative);
        watched.add(path.clone());
        let lockfile = match dir.read(&relative) {
            Ok(Some(lockfile)) => named_truly(&path, id, lockfile),
            // It went away meanwhile.
            Ok(None) => return None,
            Err(error) => Err(error),
        };
        let name = relative.display().to_string();
        Some((age, ScannedLockfile { tier: dir.tier, path, name, lockfile }))
    };
    names.into_iter().filter_map(read).collect()
}

/// Refuses a lockfile that pins another tool or version than its name says.
fn named_truly(path: &Path, id: &ItemId, lockfile: Lockfile) -> Result<Lockfile> {
    let root = &lockfile.root;
    let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
    let stem = file.strip_suffix(file_name::LOCKFILE_EXTENSION).unwrap_or(file);
    let rest = stem.strip_prefix(&format!("{}@{}", id.name(), root.version));
    if root.tool_id == id.as_str() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('+')) {
        return Ok(lockfile);
    }
    let pinned = rye_item::text::one_line(&format!("{}@{}", root.tool_id, root.version));
    let message = format!("the lockfile `{}` is damaged: it pins `{pinned}`", path.display());
    Err(Error::new(Code::LockCorrupt, message)
        .detail("path", path.display().to_string())
        .hint(format!("if the tool is correct as it is now: rye lock update {id}")))
}

/// Whether a name carries the mark of another project than this one.
fn is_marked_for_another(engine: &Engine, file: &str) -> bool {
    let stem = file.strip_suffix(file_name::LOCKFILE_EXTENSION).unwrap_or(file);
    let Some((_, mark)) = stem.rsplit_once('+') else { return false };
    let is_mark = mark.len() == file_name::MARK_LENGTH && mark.bytes().all(|byte| byte.is_ascii_hexdigit());
    let own = current_project(engine).into_iter().chain([user_suffix(engine)]);
    is_mark && !own.map(|place| file_name::mark(&place)).any(|own| own == mark)
}

/// Whether both are the tool of a bundle inside the binary, which vouches for whatever it holds.
fn is_of_binary(engine: &Engine, lockfile: &Lockfile, resolved: &ResolvedTool) -> bool {
    let mut bundles = engine.workspace.spaces.bundles().iter();
    pinned_space(lockfile) == resolved.space()
        && bundles.any(|bundle| {
            bundle.trust == BundleTrust::Embedded && resolved.space() == format!("system:{}", bundle.id)
        })
}

/// Whether a pinned version is newer than the one found. Where that cannot be said, another version is taken for newer.
fn is_newer(pinned: &str, found: &str) -> bool {
    match (version(pinned), version(found)) {
        (Some(pinned), Some(found)) => pinned.cmp(&found) == Ordering::Greater,
        (_, _) => pinned != found,
    }
}

/// A version; `1` and `1.2` are read as `1.0.0` and `1.2.0`.
fn version(text: &str) -> Option<Version> {
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (core, rest) = text.split_at(end);
    let zeros = 2_usize.saturating_sub(core.matches('.').count());
    Version::parse(&format!("{core}{}{rest}", ".0".repeat(zeros))).ok()
}

/// What differs from a pin of another version.
pub(crate) fn difference(pinned: &Lockfile, found: &ResolvedTool) -> LockDifference {
    let what = match is_newer(&pinned.root.version, &found.root.version) {
        true => DifferenceKind::Downgraded {
            pinned: pinned.root.version.clone(),
            found: found.root.version.clone(),
        },
        false => {
            DifferenceKind::Shadowed { pinned: pinned_space(pinned).to_owned(), by: found.space().to_owned() }
        }
    };
    LockDifference { part: LockfilePart::Root, element: found.root.tool_id.clone(), kind: what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_or_differ() {
        for (pinned, found) in [
            ("2.0.0", "1.9.9"),
            ("1.10.0", "1.9.0"),
            ("1.0.0", "1.0.0-rc.1"),
            ("1.1", "1.0.9"),
            ("2", "1.0.0"),
            ("1.0.0+b", "1.0.0+a"),
            ("dev", "1.0.0"),
            ("1.0.0", "dev"),
        ] {
            assert!(is_newer(pinned, found), "{pinned} {found}");
        }
        for (pinned, found) in [("1.0.0", "1.0.0"), ("1.0.0", "1.0.1"), ("dev", "dev"), ("1.0", "1.0.0")] {
            assert!(!is_newer(pinned, found), "{pinned} {found}");
        }
    }
}
