//! Mounts of the run's own: hidden paths are masked, paths that must stay as they are become read-only.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::mount::MountFlags;

use super::paths::is_at_or_below;
use super::{Confinement, Mechanism, RealPlaces, Row, Rule, Stage};

const HARMLESS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Lays every mount of the confinement, and notes what each now protects.
pub(crate) fn lay(stage: &mut Stage, confinement: &Confinement) {
    let real = stage.real.clone();
    let loose = pin_ancestors(confinement, &real);
    let mut mask = None;
    let mut report = |rule, paths: &[PathBuf], cover: &mut dyn FnMut(&Path) -> io::Result<()>| {
        let mut failures = Vec::new();
        let is_there = |path: &&PathBuf| path.symlink_metadata().is_ok_and(|found| !found.is_symlink());
        for path in paths.iter().filter(is_there) {
            let covered = match loose.iter().any(|loose| is_at_or_below(path, loose)) {
                true => Err(io::Error::other("a folder above could be moved away")),
                false => cover(path),
            };
            match covered {
                Ok(()) => stage.covered.push(path.clone()),
                Err(error) => failures.push(format!("`{}`: {error}", path.display())),
            }
        }
        let detail = if failures.is_empty() { "mounted over".to_owned() } else { failures.join("; ") };
        stage.rows.push(Row::new(rule, Mechanism::MountNamespace, failures.is_empty(), detail));
    };
    report(Rule::Hidden, &real.hidden, &mut |path| {
        // What lies below and is needed would vanish with it: there, Landlock hides the rest alone.
        if needed(confinement).any(|needed| is_at_or_below(needed, path)) {
            return Err(io::Error::other("something below is needed"));
        }
        cover(path, &mut mask)
    });
    report(Rule::AgentSockets, &real.sockets, &mut |path| cover(path, &mut mask));
    let kept: Vec<PathBuf> = confinement
        .write
        .iter()
        .filter(|path| real.read_only.iter().any(|other| is_at_or_below(path, other)))
        .cloned()
        .collect();
    let unsplit: Vec<&PathBuf> = kept.iter().filter(|path| bind_onto_itself(path).is_err()).collect();
    let table = MountTable::read();
    report(Rule::ReadOnly, &real.read_only, &mut |path| {
        if unsplit.iter().any(|kept| is_at_or_below(kept, path)) {
            return Err(io::Error::other("a folder below that is open for writing could not be kept apart"));
        }
        match &table {
            Ok(table) => table.make_read_only(path, &kept),
            Err(error) => Err(io::Error::other(format!("the mount table cannot be read: {error}"))),
        }
    });
    stage.has_own_memory_folder = stage.has_own_memory_folder || mount_memory_folder().is_ok();
}

/// Whether something is mounted at just this path.
pub(crate) fn is_mount(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(CWD, path, flags, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// A `/dev/shm` of the run's own.
pub(crate) fn mount_memory_folder() -> io::Result<()> {
    Ok(rustix::mount::mount("tmpfs", "/dev/shm", "tmpfs", HARMLESS, Some(c"mode=1777,size=256m"))?)
}

/// A new `/dev/shm` in the place of the old one.
pub(crate) fn renew_memory_folder() -> io::Result<()> {
    rustix::mount::unmount("/dev/shm", rustix::mount::UnmountFlags::DETACH)?;
    mount_memory_folder()
}

/// A `/proc` of the run's own processes.
pub(crate) fn mount_proc() -> io::Result<()> {
    Ok(rustix::mount::mount("proc", "/proc", "proc", HARMLESS, None::<&std::ffi::CStr>)?)
}

fn needed(confinement: &Confinement) -> impl Iterator<Item = &PathBuf> {
    confinement.write.iter().chain(confinement.read.paths())
}

/// Keeps the folders between one that is open for writing and what is protected below from being renamed: with them, a
/// tool could move what is protected aside and put its own in its place. A mount point cannot be renamed. Says which
/// could not be kept.
fn pin_ancestors(confinement: &Confinement, real: &RealPlaces) -> Vec<PathBuf> {
    let mut between: Vec<PathBuf> = real
        .hidden
        .iter()
        .chain(&real.read_only)
        .filter(|path| path.exists())
        .flat_map(|path| {
            let roots = confinement.write.iter().filter(|root| path.starts_with(root) && path != *root);
            // The outermost root decides.
            let root = roots.min_by_key(|root| root.components().count()).cloned();
            let above: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_owned).collect();
            above.into_iter().take_while(move |above| {
                root.as_ref().is_some_and(|root| above != root && above.starts_with(root))
            })
        })
        .collect();
    between.sort_by_key(|path| path.components().count());
    between.dedup();
    between.retain(|path| bind_onto_itself(path).is_err());
    between
}

/// Opens a path for mounting on it. No link is followed, so nobody can swap one in.
fn pin(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

fn handle(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Puts an empty folder over a folder, and nothing over anything else.
fn cover(path: &Path, mask: &mut Option<OwnedFd>) -> io::Result<()> {
    let target = pin(path)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode) != FileType::Directory {
        return Ok(rustix::mount::mount_bind("/dev/null", handle(&target))?);
    }
    // One empty file system serves all.
    if let Some(mask) = mask {
        return Ok(rustix::mount::mount_bind(handle(mask), handle(&target))?);
    }
    let flags = HARMLESS | MountFlags::RDONLY;
    rustix::mount::mount("tmpfs", handle(&target), "tmpfs", flags, Some(c"mode=0555,size=4k,nr_inodes=2"))?;
    *mask = Some(pin(path)?);
    Ok(())
}

fn bind_onto_itself(path: &Path) -> io::Result<()> {
    let target = pin(path)?;
    Ok(rustix::mount::mount_bind_recursive(handle(&target), handle(&target))?)
}

/// The mounts there are, in the order they were laid: a later one at a place hides an earlier one.
struct MountTable(Vec<(PathBuf, MountFlags)>);

impl MountTable {
    fn read() -> io::Result<Self> {
        let path = Path::new("/proc/self/mountinfo");
        let (table, _) = crate::file::read_bounded(path, 64 << 20).map_err(io::Error::other)?;
        let table = String::from_utf8_lossy(&table).into_owned();
        let mounts = table.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(4);
            Some((PathBuf::from(unescape(fields.next()?)), flags_of(fields.next()?)))
        });
        Ok(Self(mounts.collect()))
    }

    /// Makes everything at and below `path` read-only, apart from what is at or below `kept`. What a mount forbids
    /// already it must go on forbidding, or the kernel refuses.
    fn make_read_only(&self, path: &Path, kept: &[PathBuf]) -> io::Result<()> {
        bind_onto_itself(path)?;
        let above = self.0.iter().filter(|(place, _)| path.starts_with(place));
        let own = above.max_by_key(|(place, _)| place.components().count()).map(|(_, flags)| *flags);
        let below = self.0.iter().filter(|(place, _)| place != path && is_at_or_below(place, path));
        let below = below.filter(|(place, _)| !kept.iter().any(|kept| is_at_or_below(place, kept)));
        let all = [(path.to_owned(), own.unwrap_or(MountFlags::empty()))].into_iter().chain(below.cloned());
        for (place, flags) in all {
            rustix::mount::mount_remount(&place, flags | MountFlags::BIND | MountFlags::RDONLY, c"")?;
        }
        Ok(())
    }
}

fn flags_of(options: &str) -> MountFlags {
    options.split(',').fold(MountFlags::empty(), |flags, option| {
        flags
            | match option {
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                "relatime" => MountFlags::RELATIME,
                _ => MountFlags::empty(),
            }
    })
}

/// The mount table writes blanks and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}
