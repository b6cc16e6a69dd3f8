//! Protected paths that were replaced while a tool ran. The kernel takes a mount away with the file it lies on, so a name that
//! another program replaces is not protected from then on; the run is over when that is noticed, and the receipt says so.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lillux::dir::owner_rights::OwnerRights;
use lillux::sandbox::Confinement;

/// Device, inode, and when it was made where the file system knows: an inode's number is given away again.
type FileId = (u64, u64, Option<SystemTime>);

/// Paths that a confinement protects, as they were before the run.
#[derive(Debug)]
pub struct ProtectedFiles {
    files: Vec<(PathBuf, FileId)>,
    /// In the folders they lie in.
    rights: OwnerRights,
}

impl ProtectedFiles {
    /// The paths that exist now.
    pub(super) fn before_run(confinement: &Confinement) -> Self {
        let Confinement { read_only, placeholders, hidden, homes, visible, write, .. } = confinement;
        // What is hidden in a home is covered with the whole home, unless a part of it is shown.
        let is_shown = |path: &Path| {
            let lies_in = |folders: &[PathBuf]| folders.iter().any(|folder| path.starts_with(folder));
            !lies_in(homes) || lies_in(visible) || lies_in(write)
        };
        let hidden = hidden.iter().filter(|path| is_shown(path));
        let paths = read_only.iter().chain(placeholders).chain(hidden);
        let files: Vec<(PathBuf, FileId)> =
            paths.filter_map(|path| Some((path.clone(), file_id(path)?))).collect();
        let rights = OwnerRights::above(files.iter().map(|(path, _)| path.as_path()));
        Self { files, rights }
    }

    /// Those that are another file now, or gone. Folders that the run closed are opened again.
    #[must_use]
    pub fn replaced(&self) -> Vec<PathBuf> {
        self.rights.restore();
        let is_other = |(path, id): &&(PathBuf, FileId)| file_id(path) != Some(*id);
        self.files.iter().filter(is_other).map(|(path, _)| path.clone()).collect()
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    let metadata = path.symlink_metadata().ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.created().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_and_removed_paths_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        let file = |name: &str| {
            let path = root.join(name);
            lillux::file::replace_unsynced(&path, b"old").expect("a file");
            path
        };
        let (kept, edited, other, gone) = (file("kept"), file("edited"), file("other"), file("gone"));
        let secret = file("secret");
        let confinement = Confinement {
            read_only: vec![kept, edited.clone(), other.clone()],
            placeholders: vec![gone.clone(), root.join("absent")],
            hidden: vec![secret.clone(), root.join("home/hidden")],
            homes: vec![root.join("home")],
            ..Confinement::new()
        };
        lillux::file::create_dirs(&root.join("home"), false).expect("a folder");
        file("home/hidden");
        let files = ProtectedFiles::before_run(&confinement);
        assert_eq!(files.replaced(), Vec::<PathBuf>::new());
        // The same file with another content is still under its mount.
        std::fs::OpenOptions::new()
            .append(true)
            .open(&edited)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"new"))
            .expect("written");
        for path in [&other, &secret, &root.join("home/hidden")] {
            // Written aside, then renamed.
            lillux::file::write_atomic(path, b"new", lillux::file::FileMode::Private).expect("replaced");
        }
        lillux::file::remove_unsynced(&gone).expect("removed");
        assert_eq!(files.replaced(), [other, gone, secret]);
    }
}
