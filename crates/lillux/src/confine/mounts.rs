//! Mounts of the run's own: hidden paths are masked, paths that must stay as they are become read-only.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::mount::MountFlags;

use super::paths::is_at_or_below;
use super::{Confinement, Mechanism, RealPlaces, Replacement, Row, Rule, Stage};
use crate::process::raw::{self, Reach};

const HARMLESS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Lays every mount of the confinement, and notes what each now protects.
pub(crate) fn lay(stage: &mut Stage, confinement: &Confinement) -> Result<(), String> {
    let real = stage.real.clone();
    // Opened before anything covers them.
    let replaced: Vec<(&Path, OwnedFd)> = confinement
        .replaced
        .iter()
        .filter_map(|replacement| Some((replacement.path.as_path(), pin(&replacement.with).ok()?)))
        .collect();
    close_homes(stage, confinement, &real);
    for path in confinement.write.iter().filter(|path| path.exists()) {
        bind_onto_itself(path).map_err(|error| {
            format!("`{}` cannot be opened for writing without following a link: {error}", path.display())
        })?;
    }
    let mut mask = None;
    // A link is hidden by what covers the file it leads to.
    let hidden: Vec<PathBuf> = real.hidden.iter().filter(|path| !path.is_symlink()).cloned().collect();
    let hidden = cover_all(&hidden, &[], &mut |path| {
        // What lies below and is needed would vanish with it: there, Landlock hides the rest alone.
        if needed(confinement).any(|needed| is_at_or_below(needed, path)) {
            return Err(io::Error::other("something below is needed"));
        }
        cover(path, &mut mask)
    });
    report(stage, Rule::Hidden, hidden);
    stage.has_own_memory_folder = stage.has_own_memory_folder || mount_memory_folder().is_ok();
    stage.has_own_terminals = stage.has_own_terminals || mount_terminals().is_ok();
    let detail = if stage.has_own_terminals { "a `/dev/pts` of its own" } else { "not allowed here" };
    stage.rows.push(Row::new(Rule::Terminals, Mechanism::MountNamespace, stage.has_own_terminals, detail));
    close_everything(stage, confinement)?;
    let loose = pin_ancestors(confinement, &real);
    let kept: Vec<PathBuf> = confinement
        .write
        .iter()
        .filter(|path| real.read_only.iter().any(|other| is_at_or_below(path, other)))
        .cloned()
        .collect();
    let unsplit: Vec<&PathBuf> = kept.iter().filter(|path| bind_onto_itself(path).is_err()).collect();
    let table = MountTable::read();
    let read_only = cover_all(&real.read_only, &loose, &mut |path| {
        if unsplit.iter().any(|kept| is_at_or_below(kept, path)) {
            return Err(io::Error::other("a folder below that is open for writing could not be kept apart"));
        }
        if path.is_symlink() {
            return cover_link(path);
        }
        match &table {
            Ok(table) => table.make_read_only(path, &kept),
            Err(error) => Err(io::Error::other(format!("the mount table cannot be read: {error}"))),
        }
    });
    report(stage, Rule::ReadOnly, read_only);
    replace(&replaced)
}

/// What was covered, and what was not and why.
struct Covered {
    paths: Vec<PathBuf>,
    failures: Vec<String>,
}

/// Covers each path that exists, but none below a folder that could be moved away.
fn cover_all(
    paths: &[PathBuf],
    loose: &[PathBuf],
    cover: &mut dyn FnMut(&Path) -> io::Result<()>,
) -> Covered {
    let mut all = Covered { paths: Vec::new(), failures: Vec::new() };
    for path in paths.iter().filter(|path| path.symlink_metadata().is_ok()) {
        let covered = match loose.iter().any(|loose| is_at_or_below(path, loose)) {
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

fn report(stage: &mut Stage, rule: Rule, covered: Covered) {
    stage.covered.extend(covered.paths);
    let is_enforced = covered.failures.is_empty();
    let detail = if is_enforced { "mounted over".to_owned() } else { covered.failures.join("; ") };
    stage.rows.push(Row::new(rule, Mechanism::MountNamespace, is_enforced, detail));
}

/// Puts an empty folder over each home, with what stays visible mounted into it.
fn close_homes(stage: &mut Stage, confinement: &Confinement, real: &RealPlaces) {
    // Opened before anything covers them.
    let mut seen: Vec<(PathBuf, OwnedFd)> = Vec::new();
    let paths = real.visible.iter().chain(&confinement.write).chain(confinement.read.paths());
    for path in paths.filter(|path| !path.is_symlink()) {
        seen.extend(pin(path).ok().map(|source| (path.clone(), source)));
    }
    for Replacement { path, with } in confinement.visible_links.iter().filter(|link| !link.with.is_symlink())
    {
        seen.extend(pin(with).ok().map(|source| (path.clone(), source)));
    }
    seen.sort_by(|left, right| left.0.cmp(&right.0));
    let homes = cover_all(&real.homes, &[], &mut |home| {
        let below: Vec<&(PathBuf, OwnedFd)> =
            seen.iter().filter(|(path, _)| path.starts_with(home)).collect();
        close_home(home, &below)
    });
    if !real.homes.is_empty() {
        report(stage, Rule::Hidden, homes);
    }
}

fn close_home(home: &Path, seen: &[&(PathBuf, OwnedFd)]) -> io::Result<()> {
    let target = pin(home)?;
    let options = Some(c"mode=0755,size=4m,nr_inodes=8192");
    rustix::mount::mount("tmpfs", handle(&target), "tmpfs", HARMLESS, options)?;
    let mut mounted: Vec<&Path> = Vec::new();
    for (path, source) in seen {
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
        rustix::mount::mount_bind_recursive(handle(source), path)?;
        mounted.push(path);
    }
    Ok(())
}

/// Makes everything read-only and without set-id bits, apart from what is open for writing.
fn close_everything(stage: &mut Stage, confinement: &Confinement) -> Result<(), String> {
    let table = MountTable::read().map_err(|error| format!("the mount table cannot be read: {error}"))?;
    let closed = raw::change_mount(Path::new("/"), raw::READ_ONLY | raw::NO_SET_ID, 0, Reach::Tree);
    let detail = match &closed {
        Ok(()) => "everything else is mounted read-only".to_owned(),
        Err(error) => format!("nothing can be mounted read-only: {error}"),
    };
    for rule in [Rule::Writes, Rule::Metadata] {
        stage.rows.push(Row::new(rule, Mechanism::MountNamespace, closed.is_ok(), detail.clone()));
    }
    if closed.is_err() {
        return Ok(());
    }
    let mut open: Vec<&Path> =
        confinement.write.iter().filter(|path| path.exists()).map(PathBuf::as_path).collect();
    let own = [
        (stage.has_own_proc, "/proc"),
        (stage.has_own_memory_folder, "/dev/shm"),
        (stage.has_own_terminals, "/dev/pts"),
    ];
    open.extend(own.iter().filter(|(is_own, _)| *is_own).map(|(_, path)| Path::new(*path)));
    for path in open {
        for place in table.writable(path) {
            raw::change_mount(&place, 0, raw::READ_ONLY, Reach::Mount)
                .map_err(|error| format!("`{}` cannot be opened for writing: {error}", place.display()))?;
        }
    }
    Ok(())
}

/// Makes placeholders read-only. One that is a mount already is left from a run beside this one.
pub(crate) fn cover_placeholders(paths: &[PathBuf]) -> Result<(), String> {
    for path in paths.iter().filter(|path| !is_mount(path)) {
        bind_onto_itself(path)
            .and_then(|()| raw::change_mount(path, raw::READ_ONLY, 0, Reach::Mount))
            .map_err(|error| format!("`{}` cannot be protected: {error}", path.display()))?;
    }
    Ok(())
}

fn replace(replaced: &[(&Path, OwnedFd)]) -> Result<(), String> {
    // A link has been covered by an empty device.
    for (path, with) in replaced.iter().filter(|(path, _)| path.exists() && !path.is_dir()) {
        let mount = || -> io::Result<()> {
            rustix::mount::mount_bind(handle(with), handle(&pin(path)?))?;
            raw::change_mount(path, raw::READ_ONLY, 0, Reach::Mount)
        };
        mount().map_err(|error| format!("`{}` cannot be replaced: {error}", path.display()))?;
    }
    Ok(())
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

/// Terminals of the run's own: no other one can be opened, and programs can make theirs.
pub(crate) fn mount_terminals() -> io::Result<()> {
    let options = Some(c"newinstance,ptmxmode=0666,mode=0620");
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, options)?)
}

/// New terminals in the place of the old ones.
pub(crate) fn renew_terminals() -> io::Result<()> {
    rustix::mount::unmount("/dev/pts", rustix::mount::UnmountFlags::DETACH)?;
    mount_terminals()
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
    let replaced = confinement.replaced.iter().map(|replacement| &replacement.path);
    let mut between: Vec<PathBuf> = real
        .hidden
        .iter()
        .chain(&real.read_only)
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
    between.retain(|path| path.exists() && bind_onto_itself(path).is_err());
    between
}

/// Opens a path for mounting on it. No link is followed, so none can be swapped in; if the path is a link, it is opened
/// itself.
fn pin(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
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

/// Puts the file that a link leads to over the link, so that the link cannot be replaced. In the place of a folder, or of
/// nothing, an empty device is seen.
fn cover_link(link: &Path) -> io::Result<()> {
    let target =
        link.canonicalize().ok().filter(|target| target.is_file()).and_then(|target| pin(&target).ok());
    let source = target.map_or_else(|| pin(Path::new("/dev/null")), Ok)?;
    rustix::mount::mount_bind(handle(&source), handle(&pin(link)?))?;
    raw::change_mount(link, raw::READ_ONLY, 0, Reach::Mount)
}

fn bind_onto_itself(path: &Path) -> io::Result<()> {
    let target = pin(path)?;
    Ok(rustix::mount::mount_bind_recursive(handle(&target), handle(&target))?)
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
            Some((PathBuf::from(unescape(fields.next()?)), flags_of(fields.next()?)))
        });
        Ok(Self(mounts.collect()))
    }

    /// The mounts at and below `path` that can be written to. The last one at a place counts.
    fn writable(&self, path: &Path) -> Vec<PathBuf> {
        let mut places: Vec<(&PathBuf, MountFlags)> = Vec::new();
        for (place, flags) in self.0.iter().filter(|(place, _)| is_at_or_below(place, path)) {
            places.retain(|(known, _)| *known != place);
            places.push((place, *flags));
        }
        places
            .into_iter()
            .filter(|(_, flags)| !is_read_only(*flags))
            .map(|(place, _)| place.clone())
            .collect()
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
