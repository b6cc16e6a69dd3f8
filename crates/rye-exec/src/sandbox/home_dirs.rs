//! Homes: which folders are the homes of people, and what a tool may see in them all the same.

use std::path::{Path, PathBuf};

use rye_space::accounts::{Account, Accounts};

/// Folders that hold the homes of people on most systems, and root's.
const COMMON_HOME_DIRS: [&str; 2] = ["/home", "/root"];

/// Folders of the system. What holds one of them is not a home, whatever the account says.
const SYSTEM_DIRS: [&str; 13] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys", "/run", "/var", "/tmp",
    "/opt",
];

/// The accounts of people, and root's: the numbers most systems give to them.
const MIN_USER_UID: u32 = 1000;
const MAX_USER_UID: u32 = 60_000;

/// Parts of a toolchain that lie beside its `bin`.
const TOOLCHAIN_PARTS: [&str; 5] = ["lib", "lib64", "libexec", "include", "pyvenv.cfg"];

/// Names of folders that hold the programs of a toolchain.
const PROGRAM_FOLDERS: [&str; 4] = ["bin", "sbin", "shims", "scripts"];

/// The homes on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HomeDirs {
    /// The user's own: `$HOME`, and the account's if that is another one.
    pub own: Vec<PathBuf>,
    /// All folders that are closed to tools, those that hold homes included.
    pub all: Vec<PathBuf>,
}

impl HomeDirs {
    /// The homes of this machine: `home` is the user's, `user` the user's number.
    #[must_use]
    pub fn new(home: &Path, accounts: &Accounts, user: u32) -> Self {
        let mut homes = Self::default();
        homes.add_own(home);
        let mut all: Vec<PathBuf> = COMMON_HOME_DIRS.iter().map(PathBuf::from).collect();
        for Account { user: number, home: folder, .. } in accounts.iter() {
            if *number == user {
                homes.add_own(folder);
            }
            if (*number == 0 || (MIN_USER_UID..MAX_USER_UID).contains(number)) && !is_below_system(folder) {
                all.push(folder.clone());
            }
        }
        all.extend(homes.own.iter().cloned());
        all.retain(|folder| is_home(folder));
        all.sort();
        all.dedup();
        homes.all = all;
        homes
    }

    fn add_own(&mut self, folder: &Path) {
        if is_home(folder) && !self.own.iter().any(|own| own == folder) {
            self.own.push(folder.to_owned());
        }
    }

    /// Whether a folder is a home, or holds one.
    #[must_use]
    pub fn is_or_contains_home(&self, folder: &Path) -> bool {
        folder.parent().is_none()
            || self.all.iter().chain(&self.own).any(|home| home.starts_with(folder))
            || folder.parent() == Some(Path::new("/home"))
    }

    /// The home that a path lies in.
    fn home_of<'a>(&'a self, path: &'a Path) -> Option<&'a Path> {
        if let Ok(below) = path.strip_prefix("/home") {
            let depth = below.components().count();
            return path.ancestors().nth(depth.checked_sub(1)?);
        }
        let homes = self.all.iter().filter(|home| path.starts_with(home));
        homes.max_by_key(|home| home.components().count()).map(PathBuf::as_path)
    }

    /// What of a folder of programs a tool must see: the folder, and the toolchain it belongs to.
    pub(super) fn program_folder(&self, folder: &Path) -> Vec<PathBuf> {
        let Some(home) = self.home_of(folder).filter(|home| *home != folder) else { return Vec::new() };
        let mut seen = vec![folder.to_owned()];
        let is_named =
            folder.file_name().is_some_and(|name| PROGRAM_FOLDERS.iter().any(|known| name == *known));
        if let Some(root) = folder.parent().filter(|root| is_named && *root != home) {
            if root.parent() == Some(home) {
                // `~/.local/bin` is a neighbour of much else.
                seen.extend(TOOLCHAIN_PARTS.iter().map(|part| root.join(part)));
            } else {
                seen.push(root.to_owned());
            }
        }
        seen
    }
}

fn is_home(folder: &Path) -> bool {
    folder.is_absolute()
        && folder.parent().is_some()
        && !SYSTEM_DIRS.iter().any(|system| Path::new(system).starts_with(folder))
}

fn is_below_system(folder: &Path) -> bool {
    let outside = ["/var", "/tmp", "/opt"];
    SYSTEM_DIRS.iter().filter(|system| !outside.contains(system)).any(|system| folder.starts_with(system))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/bash\n\
        daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
        backup:x:34:34:backup:/var/backups:/usr/sbin/nologin\n\
        ada:x:1000:1000::/home/ada:/bin/bash\n\
        ben:x:1001:1001::/export/ben:/bin/bash\n\
        odd:x:1002:1002::/:/bin/sh\n\
        nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n\
        broken line\n";

    #[test]
    fn user_homes_are_hidden_system_folders_visible() {
        let homes = HomeDirs::new(Path::new("/data/ada"), &Accounts::parse(ACCOUNTS), 1000);
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(homes.own, paths(&["/data/ada", "/home/ada"]));
        assert_eq!(homes.all, paths(&["/data/ada", "/export/ben", "/home", "/home/ada", "/root"]));
        assert_eq!(HomeDirs::new(Path::new("/"), &Accounts::default(), 0).all, paths(&["/home", "/root"]));
    }

    #[test]
    fn folders_containing_homes_are_detected() {
        let homes = HomeDirs::new(Path::new("/data/ada"), &Accounts::parse(ACCOUNTS), 1000);
        for folder in
            ["/", "/home", "/home/ada", "/home/stranger", "/data", "/data/ada", "/root", "/export/ben"]
        {
            assert!(homes.is_or_contains_home(Path::new(folder)), "{folder}");
        }
        for folder in ["/home/ada/shop", "/data/ada/x", "/srv", "/data/other"] {
            assert!(!homes.is_or_contains_home(Path::new(folder)), "{folder}");
        }
    }

    #[test]
    fn program_folder_exposes_only_its_toolchain() {
        let homes = HomeDirs::new(Path::new("/home/ada"), &Accounts::default(), 1000);
        let seen = |path: &str| {
            let seen = homes.program_folder(Path::new(path));
            seen.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(seen("/usr/bin"), Vec::<String>::new());
        assert_eq!(seen("/home/ada"), Vec::<String>::new());
        assert_eq!(seen("/home/ada/bin"), ["/home/ada/bin"]);
        assert_eq!(seen("/home/ada/.nvm/v20/bin"), ["/home/ada/.nvm/v20/bin", "/home/ada/.nvm/v20"]);
        let local = seen("/home/ada/.local/bin");
        assert!(
            local.contains(&"/home/ada/.local/lib".to_owned())
                && !local.contains(&"/home/ada/.local".to_owned())
        );
    }
}
