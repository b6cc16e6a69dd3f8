//! The one place that reads environment, home, working folder and clock.
#![expect(clippy::disallowed_methods, reason = "this is the door the others are sent to")]

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::{env, fs};

use rye_engine::{Clock, Engine, Options, Result};
use rye_space::{AI_FOLDER, Roots, keys};

use crate::global::Global;

/// Everything a command needs to know about its surroundings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the spaces begin.
    pub roots: Roots,
    /// The folder the command runs in.
    pub folder: PathBuf,
    /// `RYE_DEV_MODE=1` is set.
    pub wants_dev_mode: bool,
    /// What to call the owner of a new key.
    pub owner: String,
    /// Whether a person is at the other end.
    pub is_interactive: bool,
}

impl Settings {
    /// Reads the surroundings.
    pub fn read(global: &Global) -> std::io::Result<Self> {
        let folder = env::current_dir()?;
        let home =
            variable("HOME").map(PathBuf::from).or_else(env::home_dir).unwrap_or_else(|| folder.clone());
        let user = global
            .user_space
            .clone()
            .or_else(|| variable("USER_SPACE").map(|path| expand(&path, &home)))
            .map_or_else(|| home.clone(), |path| folder.join(path));
        let signing_keys = variable("RYE_SIGNING_KEY_DIR").map_or_else(
            || user.join(AI_FOLDER).join(keys::SIGNING_FOLDER),
            |path| folder.join(expand(&path, &home)),
        );
        let cache = variable("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .unwrap_or_else(|| home.join(".cache"))
            .join("rye");
        let bundle_paths = variable("RYE_BUNDLE_PATH")
            .map(|paths| env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect())
            .unwrap_or_default();
        let project = match &global.project {
            Some(path) => Some(folder.join(path)),
            None => find_project(&folder, &user),
        };
        Ok(Self {
            roots: Roots {
                project: project.filter(|path| !is_same(path, &user)),
                user,
                cache,
                signing_keys,
                bundle_paths,
            },
            folder,
            wants_dev_mode: variable("RYE_DEV_MODE").is_some_and(|value| value == "1"),
            owner: variable("USER")
                .or_else(|| variable("LOGNAME"))
                .map_or_else(|| "local".to_owned(), |name| rye_item::text::one_line(&name.to_string_lossy())),
            is_interactive: std::io::stdin().is_terminal() && std::io::stderr().is_terminal(),
        })
    }

    /// Opens the engine on these settings.
    pub fn engine(&self) -> Result<Engine> {
        let options = Options { wants_dev_mode: self.wants_dev_mode, is_warm: false };
        Engine::open(self.roots.clone(), options, system_clock())
    }
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn expand(path: &OsString, home: &Path) -> PathBuf {
    match path.to_str() {
        Some("~") => home.to_owned(),
        Some(text) => text.strip_prefix("~/").map_or_else(|| PathBuf::from(text), |rest| home.join(rest)),
        None => PathBuf::from(path),
    }
}

/// The nearest folder upwards that holds an `.ai` which is not the user's; else the folder itself.
fn find_project(folder: &Path, user: &Path) -> Option<PathBuf> {
    let holder =
        folder.ancestors().find(|ancestor| ancestor.join(AI_FOLDER).is_dir() && !is_same(ancestor, user));
    Some(holder.unwrap_or(folder).to_owned())
}

fn is_same(left: &Path, right: &Path) -> bool {
    match (fs::canonicalize(left), fs::canonicalize(right)) {
        (Ok(left), Ok(right)) => left == right,
        _ => left == right,
    }
}

/// `NO_COLOR` is set.
pub fn refuses_colour() -> bool {
    variable("NO_COLOR").is_some()
}

struct SystemClock;

impl Clock for SystemClock {
    fn unix_seconds(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map(|since| since.as_secs()).unwrap_or_default()
    }
}

/// The computer's clock.
pub fn system_clock() -> Box<dyn Clock> {
    Box::new(SystemClock)
}
