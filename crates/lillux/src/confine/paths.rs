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

use super::{Confinement, Mechanism, Network, Reading, Row, Rule, Stage};
use crate::real::{RealPaths, real};

/// The newest version whose rights are asked for; older kernels give what they have.
const NEWEST: ABI = ABI::V9;

/// Devices everybody needs, none of which reaches data of others.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// Terminals, where they are the run's own.
const OWN_TERMINALS: [&str; 3] = ["/dev/tty", "/dev/pts", "/dev/ptmx"];

/// Whether every path is one the rules can be made for.
pub(crate) fn check(confinement: &Confinement) -> Result<(), String> {
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
pub(crate) fn places(path: &Path, known: &mut RealPaths) -> Vec<PathBuf> {
    let mut places = vec![known.real(path)];
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        let link = known.real(parent).join(name);
        if !places.contains(&link) {
            places.push(link);
        }
    }
    places
}

/// What may be allowed of `root` so that nothing `protected` is.
fn around(root: &Path, protected: &[PathBuf], allowed: &mut Vec<PathBuf>) {
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
            around(&entry.path(), protected, allowed);
        }
    }
}

struct Plan {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    /// Whether folders may be listed although something below is hidden.
    lists_everything: bool,
    /// Whether something hidden is in sight but for these rules.
    hides: bool,
    /// Whether every protected path below a folder open for writing is protected, or left out.
    absent: Vec<PathBuf>,
}

fn plan(confinement: &Confinement, stage: &Stage) -> Plan {
    let hidden = &stage.real.hidden;
    // What is mounted over is not there to be read, as long as no other process's view of the files is.
    let is_out_of_sight = |path: &PathBuf| {
        stage.has_own_proc && (stage.covered.contains(path) || path.symlink_metadata().is_err())
    };
    let homes: Vec<PathBuf> =
        stage.real.homes.iter().filter(|path| !is_out_of_sight(path)).cloned().collect();
    let mut unreadable: Vec<PathBuf> = hidden.iter().filter(|path| !is_out_of_sight(path)).cloned().collect();
    let hides = !unreadable.is_empty() || !homes.is_empty();
    // Disks, memory and the like: whoever may read those may read every file.
    unreadable.push(PathBuf::from("/dev"));
    let mut plan =
        Plan { read: Vec::new(), write: Vec::new(), lists_everything: false, hides, absent: Vec::new() };
    match &confinement.read {
        Reading::Everything => {
            let closed = [unreadable.clone(), homes.clone()].concat();
            around(Path::new("/"), &closed, &mut plan.read);
            let links = confinement.visible_links.iter().map(|link| &link.with);
            let visible = stage.real.visible.iter().chain(links);
            for path in visible.filter(|path| homes.iter().any(|home| path.starts_with(home))) {
                around(path, &unreadable, &mut plan.read);
            }
            let is_covered =
                |path: &PathBuf| stage.covered.contains(path) || path.symlink_metadata().is_err();
            plan.lists_everything = hidden.iter().chain(&stage.real.homes).all(is_covered);
        }
        Reading::Only(paths) => {
            for path in paths.iter().map(|path| real(path)) {
                around(&path, &unreadable, &mut plan.read);
            }
        }
    }
    // With mounts, placeholders are protected by them, and may not be there yet.
    let placeholders: &[PathBuf] = if stage.has_mount_namespace { &[] } else { &confinement.placeholders };
    let read_only: Vec<&PathBuf> = stage
        .real
        .read_only
        .iter()
        .chain(placeholders)
        .filter(|path| path.symlink_metadata().is_ok())
        .collect();
    for root in &confinement.write {
        let mut protected: Vec<PathBuf> =
            hidden.iter().filter(|path| !stage.covered.contains(path)).cloned().collect();
        protected.push(PathBuf::from("/dev"));
        // A folder that is open for writing inside one that is not was meant to be.
        let is_open = |path: &PathBuf| stage.covered.contains(path) || is_at_or_below(root, path);
        protected.extend(read_only.iter().filter(|path| !is_open(path)).map(|path| (*path).clone()));
        match root.symlink_metadata() {
            Ok(_) => around(root, &protected, &mut plan.write),
            Err(_) => plan.absent.push(root.clone()),
        }
    }
    plan
}

/// What is in force of Landlock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InForce {
    /// Its version; 0 if there is none.
    pub(crate) abi: u32,
}

/// Restricts this process for good.
pub(crate) fn restrict(
    confinement: &Confinement,
    stage: &Stage,
    rows: &mut Vec<Row>,
) -> Result<InForce, String> {
    let plan = plan(confinement, stage);
    let status = apply(confinement, stage, &plan)?;
    let (abi, problem) = match status {
        LandlockStatus::Available { effective_abi, .. } => (effective_abi as u32, None),
        LandlockStatus::NotEnabled => (0, Some("Landlock is not enabled; boot with `lsm=landlock,…`")),
        LandlockStatus::NotImplemented => (0, Some("this kernel has no Landlock; 5.13 or newer has")),
    };
    let mut tell = |rule, least: u32, detail: String| {
        let is_enforced = abi >= least;
        let detail = match problem {
            Some(problem) => problem.to_owned(),
            None if is_enforced => detail,
            None => format!("needs Landlock {least}, this kernel has {abi}"),
        };
        rows.push(Row::new(rule, Mechanism::Landlock, is_enforced, detail).abi((abi > 0).then_some(abi)));
    };
    let mut detail = format!("only below {} paths", plan.write.len());
    if !plan.absent.is_empty() {
        let absent: Vec<String> = plan.absent.iter().map(|path| format!("`{}`", path.display())).collect();
        detail = format!("{detail}; not there: {}", absent.join(", "));
    }
    // Before version 3, files elsewhere could still be emptied.
    tell(Rule::Writes, 3, detail);
    if plan.hides {
        tell(Rule::Hidden, 1, format!("{} paths around them are readable", plan.read.len()));
    }
    let is_covered = stage.rows.iter().any(|row| row.rule == Rule::ReadOnly && row.is_enforced);
    if !is_covered {
        tell(Rule::ReadOnly, 3, "everything around them is open instead".to_owned());
    }
    if confinement.network == Network::Closed {
        tell(Rule::Network, 4, "TCP only".to_owned());
    }
    if !stage.has_own_terminals {
        tell(Rule::Terminals, 1, "no terminal can be opened".to_owned());
    }
    tell(Rule::OtherProcesses, 6, "no tracing, no signals, no abstract sockets".to_owned());
    Ok(InForce { abi })
}

fn apply(confinement: &Confinement, stage: &Stage, plan: &Plan) -> Result<LandlockStatus, String> {
    let refused = |error: landlock::RulesetError| format!("Landlock: {error}");
    let read = AccessFs::from_read(NEWEST);
    // Device nodes are nobody's business.
    let write = AccessFs::from_all(NEWEST) & !make_bitflags!(AccessFs::{MakeChar | MakeBlock | IoctlDev});
    // Sockets are made in the run's own folders only.
    let makes_sockets =
        |path: &PathBuf| confinement.sockets.own.iter().any(|own| path.starts_with(real(own)));
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .map_err(refused)?;
    if confinement.network == Network::Closed {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST)).map_err(refused)?;
    }
    let mut ruleset = ruleset.create().map_err(refused)?;
    for path in &plan.read {
        ruleset = allow(ruleset, path, read, Missing::Fine)?;
    }
    if plan.lists_everything {
        ruleset = allow(ruleset, Path::new("/"), AccessFs::ReadDir.into(), Missing::Fine)?;
    }
    for path in &plan.write {
        let access = if makes_sockets(path) { write } else { write & !AccessFs::MakeSock };
        ruleset = allow(ruleset, path, access, Missing::Wrong)?;
    }
    let device = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate | IoctlDev});
    let terminals = OWN_TERMINALS.into_iter().filter(|_| stage.has_own_terminals);
    for path in DEVICES.into_iter().chain(terminals) {
        ruleset = allow(ruleset, Path::new(path), device, Missing::Fine)?;
    }
    if stage.has_own_memory_folder {
        ruleset = allow(ruleset, Path::new("/dev/shm"), write, Missing::Fine)?;
    }
    Ok(ruleset.restrict_self().map_err(refused)?.landlock)
}

/// What it means that a path cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// It has gone meanwhile, or this user may not reach it anyway: no rule is needed.
    Fine,
    /// A folder that is to be open for writing is not what it was.
    Wrong,
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    missing: Missing,
) -> Result<RulesetCreated, String> {
    match open(path) {
        Ok(descriptor) => ruleset
            .add_rule(PathBeneath::new(descriptor, access))
            .map_err(|error| format!("Landlock: `{}`: {error}", path.display())),
        Err(error) if missing == Missing::Wrong && error.kind() != io::ErrorKind::NotFound => Err(format!(
            "`{}` cannot be opened for writing without following a link: {error}",
            path.display()
        )),
        Err(_) => Ok(ruleset),
    }
}

/// No link is followed, so that nobody can lead a rule elsewhere.
fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_protected_is_left_out_and_its_neighbours_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("real");
        for path in ["a/secret", "a/open", "b"] {
            std::fs::create_dir_all(root.join(path)).expect("folders");
        }
        std::os::unix::fs::symlink("/etc", root.join("link")).expect("a link");
        let allowed = |protected: &[&str]| {
            let protected: Vec<PathBuf> = protected.iter().map(|path| root.join(path)).collect();
            let mut allowed = Vec::new();
            around(&root, &protected, &mut allowed);
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
    fn a_link_and_what_it_leads_to_are_both_places() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("real");
        std::fs::create_dir(root.join("real")).expect("a folder");
        std::os::unix::fs::symlink("real", root.join("link")).expect("a link");
        let places = |path: &str| places(&root.join(path), &mut RealPaths::default());
        assert_eq!(places("link"), [root.join("real"), root.join("link")]);
        assert_eq!(places("link/absent"), [root.join("real/absent")]);
    }
}
