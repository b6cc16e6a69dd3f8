//! Folders that tools never get as a writable root: the root of the file system, homes, and what holds the user space or
//! the signing key. The command line, MCP, threads and the file tools all ask here.

use std::collections::HashMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::accounts::{Account, Accounts};
use crate::roots::{Roots, canonicalize_existing};

/// Each folder directly below these is a home, whether its account is listed or comes from a directory service.
const HOME_PARENTS: [&str; 1] = ["/home"];

/// Why a folder is not a writable root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteRefusal {
    /// It is `/`.
    FileSystemRoot,
    /// It is this home.
    Home(PathBuf),
    /// It contains this home.
    ContainsHome(PathBuf),
    /// It is, contains or lies in the user space.
    UserSpace(PathBuf),
    /// It is, contains or lies in the folder of the signing key.
    Keys(PathBuf),
}

impl fmt::Display for WriteRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystemRoot => formatter.write_str("it is the root of the file system"),
            Self::Home(_) => formatter.write_str("it is a home folder"),
            Self::ContainsHome(home) => write!(formatter, "it contains the home folder `{}`", home.display()),
            Self::UserSpace(path) => write!(formatter, "it holds the user space `{}`", path.display()),
            Self::Keys(path) => write!(formatter, "it holds the key folder `{}`", path.display()),
        }
    }
}

/// Device and inode: the same folder, by whatever path it is reached.
type FileId = (u64, u64);

/// The folders that are not writable roots, read once.
#[derive(Clone, Debug)]
pub struct ProtectedFolders {
    by_id: HashMap<FileId, WriteRefusal>,
    by_path: HashMap<PathBuf, WriteRefusal>,
    /// What is refused with everything in it.
    trees: Vec<(PathBuf, WriteRefusal)>,
}

impl ProtectedFolders {
    /// Those of this machine, for a user whose spaces begin at `roots` and whose home is `home`.
    #[must_use]
    pub fn read(roots: &Roots, home: &Path) -> Self {
        let mut homes = vec![Home::for_person(home.to_owned()), Home::for_person(PathBuf::from("/root"))];
        homes.extend(Accounts::read().iter().map(Home::of_account));
        for folder in HOME_PARENTS {
            let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
            homes.extend(entries.map(|entry| Home::for_person(entry.path())));
        }
        Self::new(roots, homes)
    }

    fn new(roots: &Roots, mut homes: Vec<Home>) -> Self {
        let mut protected = Self { by_id: HashMap::new(), by_path: HashMap::new(), trees: Vec::new() };
        protected.add(Path::new("/"), &WriteRefusal::FileSystemRoot);
        for (path, refusal) in [
            (roots.signing_keys.clone(), WriteRefusal::Keys as fn(PathBuf) -> WriteRefusal),
            (roots.user_ai(), WriteRefusal::UserSpace),
        ] {
            let path = canonicalize_existing(&path);
            let refusal = refusal(path.clone());
            path.ancestors().for_each(|folder| protected.add(folder, &refusal));
            protected.trees.push((path, refusal));
        }
        homes.retain(|home| home.path.is_absolute() && home.path.is_dir());
        homes.iter_mut().for_each(|home| home.path = canonicalize_existing(&home.path));
        for home in &homes {
            protected.add(&home.path, &WriteRefusal::Home(home.path.clone()));
        }
        for home in homes.iter().filter(|home| home.is_person) {
            let refusal = WriteRefusal::ContainsHome(home.path.clone());
            home.path.ancestors().skip(1).for_each(|folder| protected.add(folder, &refusal));
        }
        protected
    }

    /// The first reason counts.
    fn add(&mut self, folder: &Path, refusal: &WriteRefusal) {
        if self.by_path.contains_key(folder) {
            return;
        }
        if let Some(id) = file_id(folder) {
            self.by_id.entry(id).or_insert_with(|| refusal.clone());
        }
        self.by_path.insert(folder.to_owned(), refusal.clone());
    }

    /// Why tools may not write below `folder`; `None` if they may.
    #[must_use]
    pub fn refusal(&self, folder: &Path) -> Option<&WriteRefusal> {
        let folder = canonicalize_existing(folder);
        let tree = self.trees.iter().find(|(tree, _)| folder.starts_with(tree)).map(|(_, refusal)| refusal);
        tree.or_else(|| self.by_path.get(&folder)).or_else(|| self.by_id.get(&file_id(&folder)?))
    }
}

/// A home of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Home {
    path: PathBuf,
    /// A person's: the folders above it are protected too. A service may have its home in any folder.
    is_person: bool,
}

impl Home {
    fn for_person(path: PathBuf) -> Self {
        Self { path, is_person: true }
    }

    fn of_account(account: &Account) -> Self {
        Self { path: account.home.clone(), is_person: account.user >= MIN_PERSON_UID }
    }
}

/// Whether `home` is where the account of `user` has its home, or a folder in which homes lie: nothing from the environment
/// can have invented it.
#[must_use]
pub fn is_account_home(home: &Path, user: u32) -> bool {
    let home = canonicalize_existing(home);
    if home.parent().is_some_and(|parent| {
        HOME_PARENTS.iter().any(|homes| parent == canonicalize_existing(Path::new(homes)))
    }) {
        return true;
    }
    let is_own = |account: &Account| account.user == user && account.home != Path::new("/");
    Accounts::read().iter().any(|account| is_own(account) && canonicalize_existing(&account.home) == home)
}

/// Accounts of people have at least this number.
const MIN_PERSON_UID: u32 = 1000;

fn file_id(path: &Path) -> Option<FileId> {
    let metadata = fs_err::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(base: &Path) -> Roots {
        Roots {
            project: None,
            user: base.join("space"),
            home: base.join("space"),
            cache: base.join("cache"),
            signing_keys: base.join("elsewhere/keys"),
            bundle_paths: Vec::new(),
        }
    }

    fn protected(base: &Path) -> ProtectedFolders {
        for folder in [
            "space/.ai",
            "elsewhere/keys",
            "homes/one",
            "homes/two",
            "project/sub",
            "elsewhere/x",
            "srv/service",
        ] {
            lillux::file::create_dirs(&base.join(folder), false).expect("a folder");
        }
        ProtectedFolders::new(
            &roots(base),
            vec![
                Home::for_person(base.join("homes/one")),
                Home::for_person(base.join("homes/two")),
                Home { path: base.join("srv/service"), is_person: false },
            ],
        )
    }

    #[test]
    fn homes_and_key_folders_are_protected() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().canonicalize().expect("a folder");
        let protected = protected(&base);
        for (path, is_refused) in [
            ("homes/one", true),
            ("homes/two", true),
            ("homes", true),
            ("", true),
            ("space", true),
            ("space/.ai", true),
            ("space/.ai/tools", true),
            ("elsewhere", true),
            ("elsewhere/keys", true),
            ("elsewhere/keys/new", true),
            ("srv/service", true),
            ("srv", false),
            ("elsewhere/x", false),
            ("homes/one/project", false),
            ("space/project", false),
            ("project", false),
            ("project/sub", false),
            ("project/absent", false),
        ] {
            assert_eq!(protected.refusal(&base.join(path)).is_some(), is_refused, "{path}");
        }
        for path in ["/", "/..", "//"] {
            assert_eq!(protected.refusal(Path::new(path)), Some(&WriteRefusal::FileSystemRoot), "{path}");
        }
    }

    #[test]
    fn links_and_dots_are_refused_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let base = folder.path().canonicalize().expect("a folder");
        let protected = protected(&base);
        std::os::unix::fs::symlink(base.join("homes/one"), base.join("project/link")).expect("a link");
        std::os::unix::fs::symlink("/", base.join("project/root")).expect("a link");
        for path in ["project/link", "project/link/", "project/../homes/one/.", "project/root"] {
            assert!(protected.refusal(&base.join(path)).is_some(), "{path}");
        }
    }

    #[test]
    fn accounts_name_their_homes() {
        let accounts = "root:x:0:0:root:/root:/bin/bash\n# note\nbroken\nann:x:1000:1000::/srv/ann:/bin/sh\nnone:x:1:1:::\n";
        let homes: Vec<Home> = Accounts::parse(accounts).iter().map(Home::of_account).collect();
        let root = Home { path: PathBuf::from("/root"), is_person: false };
        assert_eq!(homes, [root, Home::for_person(PathBuf::from("/srv/ann"))]);
    }
}
