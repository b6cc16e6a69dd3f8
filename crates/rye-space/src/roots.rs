//! Where the spaces begin, and the guards on where they may be.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lillux::CanonicalPathCache;
pub use lillux::canonicalize_existing;

use crate::checkouts::related_checkouts;

/// The folder that holds a space's items.
pub const AI_FOLDER: &str = ".ai";

/// What a file holds that takes the name of a missing one while a tool runs, where an empty file would say something.
pub const RESERVED_FILE_TEXT: &str = "# Reserved while a tool runs.\n";

/// The folders everything else is found from. They come from the command line and the environment, through `rye-cli`.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The project's folder, which holds `.ai/`; `None` outside any project.
    pub project: Option<PathBuf>,
    /// The user space's base, which holds `.ai/`.
    pub user: PathBuf,
    /// The user's home: what `~/` means in settings.
    pub home: PathBuf,
    /// Where indexes and materialised bundles are kept; may be lost at any time.
    pub cache: PathBuf,
    /// Where the own key pair is.
    pub signing_keys: PathBuf,
    /// Folders of bundles named by the environment.
    pub bundle_paths: Vec<PathBuf>,
}

/// Why a set of roots is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootsError {
    /// A stranger's project would be the user's space.
    #[error("the user space `{}` is inside the project `{}`", user.display(), project.display())]
    UserInsideProject {
        /// The user space's base.
        user: PathBuf,
        /// The project.
        project: PathBuf,
    },
    /// A stranger's project would hold the user's key.
    #[error("the key folder `{}` is inside the project `{}`", keys.display(), project.display())]
    KeysInsideProject {
        /// The key folder.
        keys: PathBuf,
        /// The project.
        project: PathBuf,
    },
    /// Another user could change what the project holds.
    #[error("`{}` belongs to another user (uid {owner})", path.display())]
    ForeignOwner {
        /// The project.
        project: PathBuf,
        /// The folder that is another user's.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Another user could change what the user trusts.
    #[error("the user space `{}` belongs to another user (uid {owner})", path.display())]
    ForeignUserSpace {
        /// The file or folder that is another user's.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users could change what the user trusts.
    #[error("other users can change `{}` of the user space (mode {mode:04o})", path.display())]
    OpenUserSpace {
        /// The file or folder that is open.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user could change what is run from the cache.
    #[error("the cache folder `{}` belongs to another user (uid {owner})", path.display())]
    ForeignCache {
        /// The folder or file that is another user's.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users could change what is run from the cache.
    #[error("other users can change the cache folder `{}` (mode {mode:04o})", path.display())]
    OpenCache {
        /// The folder or file that is open.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// What is in a space cannot be seen, so that other items would take its place.
    #[error("the folder `{}` cannot be read: {reason}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The project's `.ai` is a link to somewhere else.
    #[error("`{}` leaves the project through a link", path.display())]
    EscapesProject {
        /// The project's `.ai`.
        path: PathBuf,
    },
}

impl Roots {
    /// The user space's `.ai`.
    #[must_use]
    pub fn user_ai(&self) -> PathBuf {
        self.user.join(AI_FOLDER)
    }

    /// The project's `.ai`.
    #[must_use]
    pub fn project_ai(&self) -> Option<PathBuf> {
        self.project.as_ref().map(|project| project.join(AI_FOLDER))
    }

    /// Where threads are kept: with the project if it has an `.ai` folder, else with the user.
    #[must_use]
    pub fn threads_dir(&self) -> PathBuf {
        let project = self.project_ai().filter(|ai| ai.is_dir());
        project.unwrap_or_else(|| self.user_ai()).join("threads")
    }

    /// The project's real path as text, by which it is approved.
    #[must_use]
    pub fn project_key(&self) -> Option<String> {
        let project = canonicalize_existing(self.project.as_ref()?);
        project.to_str().map(str::to_owned)
    }

    /// The folders of user space that decide whom the user trusts, the base first.
    #[must_use]
    pub fn deciding_folders(&self) -> [PathBuf; 4] {
        let ai = self.user_ai();
        [self.user.clone(), ai.clone(), ai.join("config"), ai.join("config/keys")]
    }

    /// Refuses a user space or key folder inside the project, a user space or cache that others own or may write to, a project that is
    /// linked to elsewhere, and folders of either that cannot be read.
    ///
    /// # Errors
    /// What is wrong with the roots.
    pub fn check(&self) -> Result<(), RootsError> {
        crate::ownership::check_user_space(self)?;
        crate::ownership::check_cache(&self.cache)?;
        let decisions = ["config/keys/trusted", "config/keys/revoked", "config/trust"];
        let own = decisions.iter().map(|name| self.user_ai().join(name));
        for folder in self.project_ai().into_iter().chain([self.user_ai()]).chain(own) {
            refuse_unreadable(&folder)?;
        }
        let Some(project) = &self.project else {
            return Ok(());
        };
        let real_project = canonicalize_existing(project);
        let is_inside = |path: &Path| {
            let path = canonicalize_existing(path);
            is_at_or_below(&path, &real_project) && !is_same_folder(&path, &real_project)
        };
        // The `.ai` may be a link, or the project's own under another path.
        let ai = self.user_ai();
        if is_inside(&self.user) || (ai.exists() && is_at_or_below(&ai, &real_project.join(AI_FOLDER))) {
            return Err(RootsError::UserInsideProject { user: self.user.clone(), project: project.clone() });
        }
        // The default key folder lies in user space, which may be the folder above the project, never below it.
        let keys = canonicalize_existing(&self.signing_keys);
        if is_at_or_below(&keys, &real_project)
            && !canonicalize_existing(&self.signing_keys).starts_with(canonicalize_existing(&self.user_ai()))
        {
            return Err(RootsError::KeysInsideProject {
                keys: self.signing_keys.clone(),
                project: project.clone(),
            });
        }
        let ai = project.join(AI_FOLDER);
        if ai.exists() && !canonicalize_existing(&ai).starts_with(&real_project) {
            return Err(RootsError::EscapesProject { path: ai });
        }
        Ok(())
    }
}

/// Refuses a folder that is there and cannot be looked into: what it holds would be taken for absent.
fn refuse_unreadable(folder: &Path) -> Result<(), RootsError> {
    match crate::scan::unreadable(folder) {
        None => Ok(()),
        Some(invalid) => Err(RootsError::Unreadable { path: invalid.path, reason: invalid.reason }),
    }
}

/// What marks a folder as the root of a checkout, besides an `.ai`.
const CHECKOUT_MARKERS: [&str; 5] = [".git", ".hg", ".jj", ".svn", ".bzr"];

/// The folder at `start` or above it that could have brought `path` along: `path` lies in the working folder, in a
/// project or checkout around it, or is itself one of the folders above. A folder that is or contains `home` brings nothing.
#[must_use]
pub fn find_source_folder(path: &Path, start: &Path, home: &Path) -> Option<PathBuf> {
    let start = canonicalize_existing(start);
    let contains_home = |folder: &Path| is_at_or_below(home, folder);
    let is_project_root = |folder: &Path| {
        let has = |name: &str| folder.join(name).symlink_metadata().is_ok();
        folder == start || has(AI_FOLDER) || CHECKOUT_MARKERS.iter().any(|marker| has(marker))
    };
    let mut candidates = start.ancestors().filter(|folder| !contains_home(folder));
    candidates.find_map(|folder| {
        let is_source =
            is_same_folder(path, folder) || (is_project_root(folder) && is_at_or_below(path, folder));
        if is_source {
            return Some(folder.to_owned());
        }
        // The other checkouts of a repository come from the same author.
        let related = related_checkouts(folder).into_iter();
        related.filter(|other| !contains_home(other)).find(|other| is_at_or_below(path, other))
    })
}

/// The checkout around `start` that a home from the environment lies in, or is. One that only holds `start`, as a home holds
/// projects, is none, unless it is itself a checkout.
#[must_use]
pub fn checkout_of_home(home: &Path, start: &Path) -> Option<PathBuf> {
    let (home, start) = (canonicalize_existing(home), canonicalize_existing(start));
    let has = |folder: &Path, name: &str| folder.join(name).symlink_metadata().is_ok();
    let is_checkout = |folder: &Path| CHECKOUT_MARKERS.iter().any(|mark| has(folder, mark));
    let brings = |folder: &&Path| {
        let is_project = has(folder, AI_FOLDER);
        match is_same_folder(&home, folder) {
            true => is_checkout(folder),
            false => is_at_or_below(&home, folder) && (is_project || is_checkout(folder)),
        }
    };
    start.ancestors().find_map(|folder| {
        if brings(&folder) {
            return Some(folder.to_owned());
        }
        related_checkouts(folder).into_iter().find(|other| is_at_or_below(&home, other))
    })
}

/// Whether `path` is `folder` or lies in it, by whatever path both are reached.
#[must_use]
pub fn is_at_or_below(path: &Path, folder: &Path) -> bool {
    let (path, folder) = (canonicalize_existing(path), canonicalize_existing(folder));
    path.starts_with(&folder) || path.ancestors().any(|above| is_same_folder(above, &folder))
}

/// Folders of programs that belong to the system on every machine: no project lies above them.
const SYSTEM_PROGRAM_FOLDERS: [&str; 8] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/games",
    "/usr/games",
];

/// Whether a folder holds programs of the system on every machine.
#[must_use]
pub fn is_system_program_folder(folder: &Path) -> bool {
    SYSTEM_PROGRAM_FOLDERS.iter().any(|known| folder == Path::new(known))
}

/// The project that `path` lies in, by its name or by where it really is: the nearest folder with an `.ai` that is neither
/// the user space nor holds `home`. Tools of that project can write there.
#[must_use]
pub fn project_above(path: &Path, user: &Path, home: &Path) -> Option<PathBuf> {
    ProjectFinder::new(user, home).project_above(path)
}

/// [`project_above`] for many paths at one moment: each folder is looked at once.
#[derive(Debug)]
pub struct ProjectFinder<'a> {
    user: &'a Path,
    home: &'a Path,
    paths: CanonicalPathCache,
    /// The folders that were looked at, and whether each is a project.
    known: BTreeMap<PathBuf, bool>,
}

impl<'a> ProjectFinder<'a> {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(user: &'a Path, home: &'a Path) -> Self {
        Self { user, home, paths: CanonicalPathCache::default(), known: BTreeMap::new() }
    }

    /// See [`project_above`].
    pub fn project_above(&mut self, path: &Path) -> Option<PathBuf> {
        if is_system_program_folder(path) {
            return None;
        }
        let real = self.real_path(path);
        let found = path.ancestors().find(|folder| self.is_project(folder));
        let found = found.or_else(|| {
            (real != path).then(|| real.ancestors().find(|folder| self.is_project(folder))).flatten()
        });
        found.map(Path::to_owned)
    }

    /// Where a folder really is, as far as it exists.
    pub fn real_path(&mut self, path: &Path) -> PathBuf {
        self.paths.folder(path)
    }

    fn is_project(&mut self, folder: &Path) -> bool {
        if let Some(known) = self.known.get(folder) {
            return *known;
        }
        let found = !self.home.starts_with(folder)
            && fs_err::symlink_metadata(folder.join(AI_FOLDER)).is_ok()
            && !is_same_folder(folder, self.user)
            && !is_same_folder(folder, self.home);
        self.known.insert(folder.to_owned(), found);
        found
    }
}

/// Whether both paths lead to one folder: the same path, or the same device and inode.
#[must_use]
pub fn is_same_folder(left: &Path, right: &Path) -> bool {
    let id = |path: &Path| fs_err::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    left == right || id(left).is_some_and(|left| Some(left) == id(right))
}
