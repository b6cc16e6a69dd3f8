//! Landlock: which paths may be read and changed, and which ports and scopes are closed.
//!
//! Landlock only allows; it cannot except. So where something below an allowed folder is protected, and no mount
//! protects it, the folder's other entries are allowed one by one and the folder itself is not.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope, make_bitflags,
};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::{Confinement, IsolationState, Mechanism, NetworkAccess, ReadAccess, ReceiptRow, SandboxRule};
use crate::canonicalize::{CanonicalPathCache, canonicalize_existing};

/// The newest version whose rights are asked for; older kernels give what they have.
const LATEST_ABI: ABI = ABI::V9;

/// Devices everybody needs, none of which reaches data of others.
const ALLOWED_DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Terminals, where they are the run's own.
const PTS_DEVICES: [&str; 3] = ["/dev/tty", "/dev/pts", "/dev/ptmx"];

/// Whether every path is one the rules can be made for.
pub(crate) fn validate_paths(confinement: &Confinement) -> Result<(), String> {
    let lists = [
        confinement.read.paths(),
        &confinement.write,
        &confinement.read_only,
        &confinement.placeholders,
        &confinement.hidden,
        &confinement.homes,
        &confinement.visible,
        &confinement.sockets.own,
        &confinement.sockets.allowed,
    ];
    for path in lists.into_iter().flatten() {
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            return Err(format!("`{}` is not an absolute path without `..`", path.display()));
        }
    }
    Ok(())
}

/// Whether `path` is `other` or lies below it.
pub(crate) fn is_at_or_below(path: &Path, other: &Path) -> bool {
    path.starts_with(other)
}

/// Where a path really is: what it leads to, and, if its last part is a link, the link.
pub(crate) fn resolve_link_and_target(path: &Path, cache: &mut CanonicalPathCache) -> Vec<PathBuf> {
    let mut resolved = vec![cache.canonicalize(path)];
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        let link = cache.canonicalize(parent).join(name);
        if !resolved.contains(&link) {
            resolved.push(link);
        }
    }
    resolved
}

/// What may be allowed of `root` so that nothing `protected` is.
fn collect_unprotected(root: &Path, protected: &[PathBuf], allowed: &mut Vec<PathBuf>) {
    if protected.iter().any(|protected| is_at_or_below(root, protected)) {
        return;
    }
    if !protected.iter().any(|protected| is_at_or_below(protected, root)) {
        allowed.push(root.to_owned());
        return;
    }
    // A folder that cannot be listed is not allowed: there is no telling what is in it.
    for entry in root.read_dir().into_iter().flatten().filter_map(Result::ok) {
        // A link needs no rule: the rule of what it leads to counts.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            collect_unprotected(&entry.path(), protected, allowed);
        }
    }
}

struct LandlockPlan {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    /// Whether folders may be listed although something below is hidden.
    can_list_all: bool,
    /// Whether something hidden is in sight but for these rules.
    has_hidden: bool,
    /// Whether every protected path below a folder open for writing is protected, or left out.
    missing: Vec<PathBuf>,
}

fn build_plan(confinement: &Confinement, state: &IsolationState) -> LandlockPlan {
    let hidden = &state.paths.hidden;
    // What is mounted over is not there to be read, as long as no other process's view of the files is.
    let is_out_of_sight = |path: &PathBuf| {
        state.has_own_proc && (state.mount_protected.contains(path) || path.symlink_metadata().is_err())
    };
    let homes: Vec<PathBuf> =
        state.paths.homes.iter().filter(|path| !is_out_of_sight(path)).cloned().collect();
    let mut unreadable: Vec<PathBuf> = hidden.iter().filter(|path| !is_out_of_sight(path)).cloned().collect();
    let hides = !unreadable.is_empty() || !homes.is_empty();
    // Disks, memory and the like: access to those is access to every file.
    unreadable.push(PathBuf::from("/dev"));
    let mut plan = LandlockPlan {
        read: Vec::new(),
        write: Vec::new(),
        can_list_all: false,
        has_hidden: hides,
        missing: Vec::new(),
    };
    match &confinement.read {
        ReadAccess::Everything => {
            let closed = [unreadable.clone(), homes.clone()].concat();
            collect_unprotected(Path::new("/"), &closed, &mut plan.read);
            let links = confinement.visible_links.iter().map(|link| &link.with);
            let visible = state.paths.visible.iter().chain(links);
            for path in visible.filter(|path| homes.iter().any(|home| path.starts_with(home))) {
                collect_unprotected(path, &unreadable, &mut plan.read);
            }
            let is_covered =
                |path: &PathBuf| state.mount_protected.contains(path) || path.symlink_metadata().is_err();
            plan.can_list_all = hidden.iter().chain(&state.paths.homes).all(is_covered);
        }
        ReadAccess::Only(paths) => {
            for path in paths.iter().map(|path| canonicalize_existing(path)) {
                collect_unprotected(&path, &unreadable, &mut plan.read);
            }
        }
    }
    // With mounts, placeholders are protected by them, and may not be there yet.
    let placeholders: &[PathBuf] = if state.has_mount_namespace { &[] } else { &confinement.placeholders };
    let read_only: Vec<&PathBuf> = state
        .paths
        .read_only
        .iter()
        .chain(placeholders)
        .filter(|path| path.symlink_metadata().is_ok())
        .collect();
    for root in &confinement.write {
        let mut protected: Vec<PathBuf> =
            hidden.iter().filter(|path| !state.mount_protected.contains(path.as_path())).cloned().collect();
        protected.push(PathBuf::from("/dev"));
        // A folder that is open for writing inside one that is not was meant to be.
        let is_open = |path: &PathBuf| state.mount_protected.contains(path) || is_at_or_below(root, path);
        protected.extend(read_only.iter().filter(|path| !is_open(path)).map(|path| (*path).clone()));
        match root.symlink_metadata() {
            Ok(_) => collect_unprotected(root, &protected, &mut plan.write),
            Err(_) => plan.missing.push(root.clone()),
        }
    }
    plan
}

/// What is in force of Landlock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LandlockState {
    /// Its version; 0 if there is none.
    pub(crate) abi: u32,
}

/// Restricts this process for good.
pub(crate) fn lock_down(
    confinement: &Confinement,
    state: &IsolationState,
    rows: &mut Vec<ReceiptRow>,
) -> Result<LandlockState, String> {
    let plan = build_plan(confinement, state);
    let status = apply_ruleset(confinement, state, &plan)?;
    let (abi, unavailable) = match status {
        LandlockStatus::Available { effective_abi, .. } => (effective_abi as u32, None),
        LandlockStatus::NotEnabled => (0, Some("Landlock is not enabled; boot with `lsm=landlock,…`")),
        LandlockStatus::NotImplemented => (0, Some("this kernel has no Landlock; 5.13 or newer has")),
    };
    let mut push_row = |rule, min_abi: u32, detail: String| {
        let is_enforced = abi >= min_abi;
        let detail = match unavailable {
            Some(unavailable) => unavailable.to_owned(),
            None if is_enforced => detail,
            None => format!("needs Landlock {min_abi}, this kernel has {abi}"),
        };
        rows.push(
            ReceiptRow::new(rule, Mechanism::Landlock, is_enforced, detail).abi((abi > 0).then_some(abi)),
        );
    };
    let mut detail = format!("only below {} paths", plan.write.len());
    if !plan.missing.is_empty() {
        let absent: Vec<String> = plan.missing.iter().map(|path| format!("`{}`", path.display())).collect();
        detail = format!("{detail}; not there: {}", absent.join(", "));
    }
    // Before version 3, files elsewhere could still be emptied.
    push_row(SandboxRule::Writes, 3, detail);
    if plan.has_hidden {
        push_row(SandboxRule::Hidden, 1, format!("{} paths around them are readable", plan.read.len()));
    }
    let is_covered = state.rows.iter().any(|row| row.rule == SandboxRule::ReadOnly && row.is_enforced);
    if !is_covered {
        push_row(SandboxRule::ReadOnly, 3, "everything around them is open instead".to_owned());
    }
    if confinement.network == NetworkAccess::Closed {
        push_row(SandboxRule::Network, 4, "TCP only".to_owned());
    }
    if !state.has_own_pts {
        push_row(SandboxRule::Terminals, 1, "no terminal can be opened".to_owned());
    }
    push_row(SandboxRule::OtherProcesses, 6, "no tracing, no signals, no abstract sockets".to_owned());
    Ok(LandlockState { abi })
}

fn apply_ruleset(
    confinement: &Confinement,
    state: &IsolationState,
    plan: &LandlockPlan,
) -> Result<LandlockStatus, String> {
    let to_message = |error: landlock::RulesetError| format!("Landlock: {error}");
    let read = AccessFs::from_read(LATEST_ABI);
    // No rule allows making device nodes.
    let write = AccessFs::from_all(LATEST_ABI) & !make_bitflags!(AccessFs::{MakeChar | MakeBlock | IoctlDev});
    // Sockets are made in the run's own folders only.
    let makes_sockets = |path: &PathBuf| {
        confinement.sockets.own.iter().any(|own| path.starts_with(canonicalize_existing(own)))
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LATEST_ABI))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(LATEST_ABI)))
        .map_err(to_message)?;
    if confinement.network == NetworkAccess::Closed {
        ruleset = ruleset.handle_access(AccessNet::from_all(LATEST_ABI)).map_err(to_message)?;
    }
    let mut ruleset = ruleset.create().map_err(to_message)?;
    for path in &plan.read {
        ruleset = allow_path(ruleset, path, read, IfMissing::Skip)?;
    }
    if plan.can_list_all {
        ruleset = allow_path(ruleset, Path::new("/"), AccessFs::ReadDir.into(), IfMissing::Skip)?;
    }
    for path in &plan.write {
        let access = if makes_sockets(path) { write } else { write & !AccessFs::MakeSock };
        ruleset = allow_path(ruleset, path, access, IfMissing::Fail)?;
    }
    let device = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate | IoctlDev});
    let terminals = PTS_DEVICES.into_iter().filter(|_| state.has_own_pts);
    for path in ALLOWED_DEVICES.into_iter().chain(terminals) {
        ruleset = allow_path(ruleset, Path::new(path), device, IfMissing::Skip)?;
    }
    if state.has_own_shm {
        ruleset = allow_path(ruleset, Path::new("/dev/shm"), write, IfMissing::Skip)?;
    }
    Ok(ruleset.restrict_self().map_err(to_message)?.landlock)
}

/// What it means that a path cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    /// It has gone meanwhile, or this user may not reach it anyway: no rule is needed.
    Skip,
    /// A folder that is to be open for writing is not what it was.
    Fail,
}

fn allow_path(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    missing: IfMissing,
) -> Result<RulesetCreated, String> {
    match open_no_symlinks(path) {
        Ok(descriptor) => ruleset
            .add_rule(PathBeneath::new(descriptor, access))
            .map_err(|error| format!("Landlock: `{}`: {error}", path.display())),
        Err(error) if missing == IfMissing::Fail && error.kind() != io::ErrorKind::NotFound => Err(format!(
            "`{}` cannot be opened for writing without following a link: {error}",
            path.display()
        )),
        Err(_) => Ok(ruleset),
    }
}

/// No link is followed, so that a rule cannot be redirected.
fn open_no_symlinks(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_protected_paths_are_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("real");
        for path in ["a/secret", "a/open", "b"] {
            std::fs::create_dir_all(root.join(path)).expect("folders");
        }
        std::os::unix::fs::symlink("/etc", root.join("link")).expect("a link");
        let allowed = |protected: &[&str]| {
            let protected: Vec<PathBuf> = protected.iter().map(|path| root.join(path)).collect();
            let mut allowed = Vec::new();
            collect_unprotected(&root, &protected, &mut allowed);
            allowed.sort();
            allowed
                .iter()
                .map(|path| path.strip_prefix(&root).expect("below").display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(allowed(&[]), [""]);
        assert_eq!(allowed(&["a/secret"]), ["a/open", "b"]);
        assert_eq!(allowed(&["a/absent/deeper"]), ["a/open", "a/secret", "b"]);
        assert_eq!(allowed(&[""]), Vec::<String>::new());
    }

    #[test]
    fn link_and_target_are_both_resolved() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("real");
        std::fs::create_dir(root.join("real")).expect("a folder");
        std::os::unix::fs::symlink("real", root.join("link")).expect("a link");
        let resolve =
            |path: &str| resolve_link_and_target(&root.join(path), &mut CanonicalPathCache::default());
        assert_eq!(resolve("link"), [root.join("real"), root.join("link")]);
        assert_eq!(resolve("link/absent"), [root.join("real/absent")]);
    }
}
