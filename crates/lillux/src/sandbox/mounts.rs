//! Mounts of the run's own: hidden paths are masked, paths that must stay as they are become read-only.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::mount::MountFlags;

use super::landlock::is_at_or_below;
use super::{Confinement, IsolationState, Mechanism, ReceiptRow, Replacement, ResolvedPaths, SandboxRule};
use crate::process::raw::{self, MountScope};

const SAFE_MOUNT_FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Lays every mount of the confinement, and notes what each now protects.
pub(crate) fn apply_mounts(state: &mut IsolationState, confinement: &Confinement) -> Result<(), String> {
    let resolved = state.paths.clone();
    // Opened before anything covers them.
    let replaced: Vec<(&Path, OwnedFd)> = confinement
        .replacements
        .iter()
        .filter_map(|replacement| Some((replacement.path.as_path(), open_path(&replacement.with).ok()?)))
        .collect();
    hide_homes(state, confinement, &resolved);
    for path in confinement.write.iter().filter(|path| path.exists()) {
        bind_to_self(path).map_err(|error| {
            format!("`{}` cannot be opened for writing without following a link: {error}", path.display())
        })?;
    }
    let mut mask = None;
    // A link is hidden by what covers the file it leads to.
    let hidden: Vec<PathBuf> = resolved.hidden.iter().filter(|path| !path.is_symlink()).cloned().collect();
    let hidden = cover_all(&hidden, &[], &mut |path| {
        // What lies below and is needed would vanish with it: there, Landlock hides the rest alone.
        if needed_paths(confinement).any(|needed| is_at_or_below(needed, path)) {
            return Err(io::Error::other("something below is needed"));
        }
        mask_path(path, &mut mask)
    });
    report(state, SandboxRule::Hidden, hidden);
    state.has_own_shm = state.has_own_shm || mount_shm().is_ok();
    state.has_own_pts = state.has_own_pts || mount_pts().is_ok();
    let detail = if state.has_own_pts { "a `/dev/pts` of its own" } else { "not allowed here" };
    state.rows.push(ReceiptRow::new(
        SandboxRule::Terminals,
        Mechanism::MountNamespace,
        state.has_own_pts,
        detail,
    ));
    make_root_read_only(state, confinement)?;
    let movable = bind_ancestors(confinement, &resolved);
    let nested_writable: Vec<PathBuf> = confinement
        .write
        .iter()
        .filter(|path| resolved.read_only.iter().any(|other| is_at_or_below(path, other)))
        .cloned()
        .collect();
    let unbound: Vec<&PathBuf> = nested_writable.iter().filter(|path| bind_to_self(path).is_err()).collect();
    let table = MountTable::read();
    let read_only = cover_all(&resolved.read_only, &movable, &mut |path| {
        if unbound.iter().any(|nested_writable| is_at_or_below(nested_writable, path)) {
            return Err(io::Error::other("a folder below that is open for writing could not be kept apart"));
        }
        if path.is_symlink() {
            return mask_link(path);
        }
        match &table {
            Ok(table) => table.make_read_only(path, &nested_writable),
            Err(error) => Err(io::Error::other(format!("the mount table cannot be read: {error}"))),
        }
    });
    report(state, SandboxRule::ReadOnly, read_only);
    mount_replacements(&replaced)
}

/// What was covered, and what was not and why.
struct CoverReport {
    paths: Vec<PathBuf>,
    failures: Vec<String>,
}

/// Covers each path that exists, but none below a folder that could be moved away.
fn cover_all(
    paths: &[PathBuf],
    movable: &[PathBuf],
    cover: &mut dyn FnMut(&Path) -> io::Result<()>,
) -> CoverReport {
    let mut all = CoverReport { paths: Vec::new(), failures: Vec::new() };
    for path in paths.iter().filter(|path| path.symlink_metadata().is_ok()) {
        let covered = match movable.iter().any(|movable| is_at_or_below(path, movable)) {
            true => Err(io::Error::other("a folder above could be moved away")),
            false => cover(path),
        };
        match covered {
            Ok(()) => all.paths.push(path.clone()),
            Err(error) => all.failures.push(format!("`{}`: {error}", path.display())),
        }
    }
    all
}

fn report(state: &mut IsolationState, rule: SandboxRule, covered: CoverReport) {
    state.mount_protected.extend(covered.paths);
    let is_enforced = covered.failures.is_empty();
    let detail = if is_enforced { "mounted over".to_owned() } else { covered.failures.join("; ") };
    state.rows.push(ReceiptRow::new(rule, Mechanism::MountNamespace, is_enforced, detail));
}

/// Puts an empty folder over each home, with what stays visible mounted into it.
fn hide_homes(state: &mut IsolationState, confinement: &Confinement, resolved: &ResolvedPaths) {
    // Opened before anything covers them.
    let mut visible: Vec<(PathBuf, OwnedFd)> = Vec::new();
    let paths = resolved.visible.iter().chain(&confinement.write).chain(confinement.read.paths());
    for path in paths.filter(|path| !path.is_symlink()) {
        visible.extend(open_path(path).ok().map(|source| (path.clone(), source)));
    }
    for Replacement { path, with } in confinement.visible_links.iter().filter(|link| !link.with.is_symlink())
    {
        visible.extend(open_path(with).ok().map(|source| (path.clone(), source)));
    }
    visible.sort_by(|left, right| left.0.cmp(&right.0));
    let homes = cover_all(&resolved.homes, &[], &mut |home| {
        let below: Vec<&(PathBuf, OwnedFd)> =
            visible.iter().filter(|(path, _)| path.starts_with(home)).collect();
        hide_home(home, &below)
    });
    if !resolved.homes.is_empty() {
        report(state, SandboxRule::Hidden, homes);
    }
}

fn hide_home(home: &Path, visible: &[&(PathBuf, OwnedFd)]) -> io::Result<()> {
    let target = open_path(home)?;
    let options = Some(c"mode=0755,size=4m,nr_inodes=8192");
    rustix::mount::mount("tmpfs", fd_path(&target), "tmpfs", SAFE_MOUNT_FLAGS, options)?;
    let mut mounted: Vec<&Path> = Vec::new();
    for (path, source) in visible {
        if mounted.iter().any(|above| path.starts_with(above)) {
            continue;
        }
        // Swapped for a link since: nothing can be mounted from it.
        if FileType::from_raw_mode(rustix::fs::fstat(source)?.st_mode) == FileType::Symlink {
            continue;
        }
        let is_folder = FileType::from_raw_mode(rustix::fs::fstat(source)?.st_mode) == FileType::Directory;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        if is_folder {
            std::fs::create_dir_all(path)?;
        } else {
            std::fs::OpenOptions::new().write(true).create_new(true).open(path)?;
        }
        rustix::mount::mount_bind_recursive(fd_path(source), path)?;
        mounted.push(path);
    }
    Ok(())
}

/// Makes everything read-only and without set-id bits, apart from what is open for writing.
fn make_root_read_only(state: &mut IsolationState, confinement: &Confinement) -> Result<(), String> {
    let table = MountTable::read().map_err(|error| format!("the mount table cannot be read: {error}"))?;
    let remounted = raw::set_mount_attributes(
        Path::new("/"),
        raw::MOUNT_READ_ONLY | raw::MOUNT_NO_SUID,
        0,
        MountScope::Tree,
    );
    let detail = match &remounted {
        Ok(()) => "everything else is mounted read-only".to_owned(),
        Err(error) => format!("nothing can be mounted read-only: {error}"),
    };
    for rule in [SandboxRule::Writes, SandboxRule::Metadata] {
        state.rows.push(ReceiptRow::new(rule, Mechanism::MountNamespace, remounted.is_ok(), detail.clone()));
    }
    if remounted.is_err() {
        return Ok(());
    }
    let mut open: Vec<&Path> =
        confinement.write.iter().filter(|path| path.exists()).map(PathBuf::as_path).collect();
    let own =
        [(state.has_own_proc, "/proc"), (state.has_own_shm, "/dev/shm"), (state.has_own_pts, "/dev/pts")];
    open.extend(own.iter().filter(|(is_own, _)| *is_own).map(|(_, path)| Path::new(*path)));
    for path in open {
        for mount_point in table.writable_mounts(path) {
            raw::set_mount_attributes(&mount_point, 0, raw::MOUNT_READ_ONLY, MountScope::Mount).map_err(
                |error| format!("`{}` cannot be opened for writing: {error}", mount_point.display()),
            )?;
        }
    }
    Ok(())
}

/// Makes placeholders read-only. One that is a mount already is left from a run beside this one.
pub(crate) fn protect_placeholders(paths: &[PathBuf]) -> Result<(), String> {
    for path in paths.iter().filter(|path| !is_mount(path)) {
        bind_to_self(path)
            .and_then(|()| raw::set_mount_attributes(path, raw::MOUNT_READ_ONLY, 0, MountScope::Mount))
            .map_err(|error| format!("`{}` cannot be protected: {error}", path.display()))?;
    }
    Ok(())
}

fn mount_replacements(replaced: &[(&Path, OwnedFd)]) -> Result<(), String> {
    // A link has been covered by an empty device.
    for (path, with) in replaced.iter().filter(|(path, _)| path.exists() && !path.is_dir()) {
        let mount = || -> io::Result<()> {
            rustix::mount::mount_bind(fd_path(with), fd_path(&open_path(path)?))?;
            raw::set_mount_attributes(path, raw::MOUNT_READ_ONLY, 0, MountScope::Mount)
        };
        mount().map_err(|error| format!("`{}` cannot be replaced: {error}", path.display()))?;
    }
    Ok(())
}

/// Whether something is mounted at just this path.
pub(crate) fn is_mount(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(CWD, path, flags, StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// A `/dev/shm` of the run's own.
pub(crate) fn mount_shm() -> io::Result<()> {
    Ok(rustix::mount::mount("tmpfs", "/dev/shm", "tmpfs", SAFE_MOUNT_FLAGS, Some(c"mode=1777,size=256m"))?)
}

/// A new `/dev/shm` in the place of the old one.
pub(crate) fn remount_shm() -> io::Result<()> {
    rustix::mount::unmount("/dev/shm", rustix::mount::UnmountFlags::DETACH)?;
    mount_shm()
}

/// Terminals of the run's own: no other one can be opened, and programs can make theirs.
pub(crate) fn mount_pts() -> io::Result<()> {
    let options = Some(c"newinstance,ptmxmode=0666,mode=0620");
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, options)?)
}

/// New terminals in the place of the old ones.
pub(crate) fn remount_pts() -> io::Result<()> {
    rustix::mount::unmount("/dev/pts", rustix::mount::UnmountFlags::DETACH)?;
    mount_pts()
}

/// A `/proc` of the run's own processes.
pub(crate) fn mount_proc() -> io::Result<()> {
    Ok(rustix::mount::mount("proc", "/proc", "proc", SAFE_MOUNT_FLAGS, None::<&std::ffi::CStr>)?)
}

fn needed_paths(confinement: &Confinement) -> impl Iterator<Item = &PathBuf> {
    confinement.write.iter().chain(confinement.read.paths())
}

/// Keeps the folders between one that is open for writing and what is protected below from being renamed: with them, a
/// tool could move what is protected aside and put its own in its place. A mount point cannot be renamed. Says which
/// could not be kept.
fn bind_ancestors(confinement: &Confinement, resolved: &ResolvedPaths) -> Vec<PathBuf> {
    let replaced = confinement.replacements.iter().map(|replacement| &replacement.path);
    let mut between: Vec<PathBuf> = resolved
        .hidden
        .iter()
        .chain(&resolved.read_only)
        .filter(|path| path.exists())
        // What is a placeholder now, or will be, has its folders kept as well.
        .chain(&confinement.placeholders)
        .chain(replaced)
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
    between.retain(|path| path.exists() && bind_to_self(path).is_err());
    between
}

/// Opens a path for mounting on it. No link is followed, so none can be swapped in; if the path is a link, it is opened
/// itself.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

fn fd_path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Puts an empty folder over a folder, and nothing over anything else.
fn mask_path(path: &Path, mask: &mut Option<OwnedFd>) -> io::Result<()> {
    let target = open_path(path)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode) != FileType::Directory {
        return Ok(rustix::mount::mount_bind("/dev/null", fd_path(&target))?);
    }
    // One empty file system serves all.
    if let Some(mask) = mask {
        return Ok(rustix::mount::mount_bind(fd_path(mask), fd_path(&target))?);
    }
    let flags = SAFE_MOUNT_FLAGS | MountFlags::RDONLY;
    rustix::mount::mount("tmpfs", fd_path(&target), "tmpfs", flags, Some(c"mode=0555,size=4k,nr_inodes=2"))?;
    *mask = Some(open_path(path)?);
    Ok(())
}

/// Puts the file that a link leads to over the link, so that the link cannot be replaced. In the place of a folder, or of
/// nothing, an empty device is seen.
fn mask_link(link: &Path) -> io::Result<()> {
    let target =
        link.canonicalize().ok().filter(|target| target.is_file()).and_then(|target| open_path(&target).ok());
    let source = target.map_or_else(|| open_path(Path::new("/dev/null")), Ok)?;
    rustix::mount::mount_bind(fd_path(&source), fd_path(&open_path(link)?))?;
    raw::set_mount_attributes(link, raw::MOUNT_READ_ONLY, 0, MountScope::Mount)
}

fn bind_to_self(path: &Path) -> io::Result<()> {
    let target = open_path(path)?;
    Ok(rustix::mount::mount_bind_recursive(fd_path(&target), fd_path(&target))?)
}

/// The mounts there are, in the order they were laid: a later one at a place hides an earlier one.
struct MountTable(Vec<(PathBuf, MountFlags)>);

/// Whether a mount forbids writing.
fn is_read_only(flags: MountFlags) -> bool {
    flags.contains(MountFlags::RDONLY)
}

impl MountTable {
    fn read() -> io::Result<Self> {
        let path = Path::new("/proc/self/mountinfo");
        let (table, _) = crate::file::read_bounded(path, 64 << 20).map_err(io::Error::other)?;
        let table = String::from_utf8_lossy(&table).into_owned();
        let mounts = table.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(4);
            Some((PathBuf::from(unescape(fields.next()?)), parse_flags(fields.next()?)))
        });
        Ok(Self(mounts.collect()))
    }

    /// The mounts at and below `path` that can be written to. The last one at a place counts.
    fn writable_mounts(&self, path: &Path) -> Vec<PathBuf> {
        let mut mounts: Vec<(&PathBuf, MountFlags)> = Vec::new();
        for (mount_point, flags) in self.0.iter().filter(|(mount_point, _)| is_at_or_below(mount_point, path))
        {
            mounts.retain(|(known, _)| *known != mount_point);
            mounts.push((mount_point, *flags));
        }
        mounts
            .into_iter()
            .filter(|(_, flags)| !is_read_only(*flags))
            .map(|(mount_point, _)| mount_point.clone())
            .collect()
    }

    /// Makes everything at and below `path` read-only, apart from what is at or below `kept`. What a mount forbids
    /// already it must keep forbidding, or the kernel refuses.
    fn make_read_only(&self, path: &Path, nested_writable: &[PathBuf]) -> io::Result<()> {
        bind_to_self(path)?;
        let above = self.0.iter().filter(|(mount_point, _)| path.starts_with(mount_point));
        let own =
            above.max_by_key(|(mount_point, _)| mount_point.components().count()).map(|(_, flags)| *flags);
        let below =
            self.0.iter().filter(|(mount_point, _)| mount_point != path && is_at_or_below(mount_point, path));
        let below = below.filter(|(mount_point, _)| {
            !nested_writable.iter().any(|nested_writable| is_at_or_below(mount_point, nested_writable))
        });
        let all = [(path.to_owned(), own.unwrap_or(MountFlags::empty()))].into_iter().chain(below.cloned());
        for (mount_point, flags) in all {
            rustix::mount::mount_remount(&mount_point, flags | MountFlags::BIND | MountFlags::RDONLY, c"")?;
        }
        Ok(())
    }
}

fn parse_flags(options: &str) -> MountFlags {
    options.split(',').fold(MountFlags::empty(), |flags, option| {
        flags
            | match option {
                "ro" => MountFlags::RDONLY,
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
