//! The one place that reads environment, home, working folder and clock.
#![expect(clippy::disallowed_methods, reason = "this is the door the others are sent to")]

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::{env, fs};

use lillux::file::TemporaryFolders;
use lillux::process::Launcher;
use rye_agent::door::{DOOR_VARIABLE, TOKEN_VARIABLE};
use rye_engine::verbs::execute::SANDBOX_VARIABLE;
use rye_engine::{Clock, Code, Engine, Error, Host, Natives, Options, Result};
use rye_space::{AI_FOLDER, Roots, keys, roots, write_root};

use crate::global::Global;

/// Everything a command needs to know about its surroundings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Starts processes: this binary again.
    pub launcher: Launcher,
    /// Where the spaces begin.
    pub roots: Roots,
    /// The user's home.
    pub home: PathBuf,
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
    ///
    /// # Errors
    /// When the current folder is gone, or the environment points user space or keys into a checkout.
    pub fn read(global: &Global) -> Result<Self> {
        let folder = env::current_dir().map_err(|error| {
            Error::new(Code::PathNotFound, format!("the current folder cannot be read: {error}"))
                .hint("it may have been removed: change into one that exists")
        })?;
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
        // Only what the environment says explicitly: a home above or below the current folder is nobody's trick.
        let own_keys = user.join(AI_FOLDER).join(keys::SIGNING_FOLDER);
        for (name, path, usual) in
            [("USER_SPACE", &user, &home), ("RYE_SIGNING_KEY_DIR", &signing_keys, &own_keys)]
        {
            let is_overruled = name == "USER_SPACE" && global.user_space.is_some();
            if let Some(given) = variable(name).filter(|_| !is_overruled && !is_same(path, usual)) {
                let starts = [Some(folder.as_path()), project.as_deref()];
                refuse_brought(name, &given, path, starts.into_iter().flatten(), &home)?;
            }
        }
        if is_same(&user, &home) && !write_root::is_account_home(&home, lillux::owner::effective_user()) {
            let starts = [Some(folder.as_path()), project.as_deref()];
            refuse_home(&home, starts.into_iter().flatten())?;
        }
        Ok(Self {
            roots: Roots {
                project: project.filter(|path| !is_same(path, &user)),
                user,
                home: home.clone(),
                cache,
                signing_keys,
                bundle_paths,
            },
            home,
            folder,
            wants_dev_mode: variable("RYE_DEV_MODE").is_some_and(|value| value == "1"),
            owner: variable("USER")
                .or_else(|| variable("LOGNAME"))
                .map_or_else(|| "local".to_owned(), |name| rye_item::text::one_line(&name.to_string_lossy())),
            is_interactive: std::io::stdin().is_terminal() && std::io::stderr().is_terminal(),
            launcher: Launcher::new("/proc/self/exe"),
        })
    }

    /// What is around this process.
    pub fn host(&self) -> Host {
        Host {
            environment: env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            home: self.home.clone(),
            folder: self.folder.clone(),
            launcher: self.launcher.clone(),
            temporaries: TemporaryFolders::default(),
        }
    }

    /// Opens the engine on these settings.
    pub fn engine(&self) -> Result<Engine> {
        let options = Options {
            wants_dev_mode: self.wants_dev_mode,
            is_warm: false,
            host: self.host(),
            natives: Natives(rye_agent::internal::all()),
        };
        Engine::open(self.roots.clone(), options, system_clock())
    }
}

/// Where this process stands, if a tool started it.
#[derive(Clone, Debug)]
pub enum Inside {
    /// A thread gave it a token, and a door to knock at: the numbers of two descriptors.
    Door {
        /// The token's.
        token: String,
        /// The door's.
        door: String,
    },
    /// It has nothing.
    Closed,
}

/// Whether this is the inside of a tool's sandbox. A tool could hide that from `rye`, and would gain nothing: the sandbox
/// holds whoever is in it.
pub fn inside() -> Option<Inside> {
    let text = |name: &str| variable(name).map(|value| value.to_string_lossy().into_owned());
    match (text(TOKEN_VARIABLE), text(DOOR_VARIABLE)) {
        (Some(token), Some(door)) => Some(Inside::Door { token, door }),
        (None, None) => variable(SANDBOX_VARIABLE).map(|_| Inside::Closed),
        (Some(_), None) | (None, Some(_)) => Some(Inside::Closed),
    }
}

/// Refuses a folder from the environment that a project could have brought along: a relative one, or one at, inside or
/// above the working folder, the project, or a checkout around them.
fn refuse_brought<'a>(
    name: &str,
    given: &OsString,
    path: &Path,
    starts: impl Iterator<Item = &'a Path>,
    home: &Path,
) -> Result<()> {
    let is_relative = !Path::new(given).is_absolute() && !given.to_string_lossy().starts_with('~');
    let folder = |start: &Path| {
        // What lies behind a link counts too: the `.ai` alone may lead into the project.
        let found = [path.to_owned(), path.join(AI_FOLDER)];
        found.iter().find_map(|path| roots::bringing_folder(path, start, home))
    };
    let why = match starts.filter_map(folder).next() {
        _ if is_relative => "is a relative path".to_owned(),
        Some(folder) if roots::is_same_folder(path, &folder) => {
            "is the project's own folder or one above it".to_owned()
        }
        Some(folder) => format!("lies inside the project `{}`", folder.display()),
        None => return Ok(()),
    };
    Err(Error::new(Code::UnsafeRoots, format!("{name} `{}` {why}", path.display())).hint(format!(
        "a project must not bring its own user space or keys: unset {name}, or point it elsewhere"
    )))
}

/// Refuses a home from the environment that a checkout could have brought along: it would bring the user's keys and
/// decisions with it.
fn refuse_home<'a>(home: &Path, mut starts: impl Iterator<Item = &'a Path>) -> Result<()> {
    let Some(checkout) = starts.find_map(|start| roots::checkout_of_home(home, start)) else {
        return Ok(());
    };
    let why = if roots::is_same_folder(home, &checkout) {
        "is a checkout itself".to_owned()
    } else {
        format!("lies inside the project `{}`", checkout.display())
    };
    Err(Error::new(Code::UnsafeRoots, format!("HOME `{}` {why}", home.display()))
        .hint("a project must not bring its own user space: set HOME to your home folder")
        .hint("or name your user space: --user-space DIR"))
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

    fn unix_nanoseconds(&self) -> i64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map(|since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)).unwrap_or_default()
    }
}

/// The computer's clock.
pub fn system_clock() -> Box<dyn Clock> {
    Box::new(SystemClock)
}

/// Milliseconds since 1970, now.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)).unwrap_or_default()
}

/// The computer's clock, for threads.
pub struct ThreadClock;

impl rye_agent::driver::Clock for ThreadClock {
    fn now_ms(&self) -> u64 {
        now_ms()
    }
}

/// Where this binary lies.
pub fn own_program() -> PathBuf {
    env::current_exe().unwrap_or_else(|_| PathBuf::from("rye"))
}

/// Lets the terminal's interrupt and a polite end stop the run instead of the process.
pub fn cancel_on_signals(cancel: &lillux::Cancel) {
    let cancel = cancel.clone();
    on_end_signals(move || cancel.cancel());
}

/// The signals this process ignores, a bit each; none where the system does not say.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Calls `end` when the terminal interrupts, or the process is asked to end.
pub fn on_end_signals(end: impl Fn() + Send + 'static) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // `nohup` has it ignored: then the terminal may close.
    let is_hangup_heard = ignored_signals() >> (SIGHUP - 1) & 1 == 0;
    let heard = [SIGINT, SIGTERM].into_iter().chain(is_hangup_heard.then_some(SIGHUP));
    // Without the handler a signal ends the process, and the supervisor ends the run.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(heard) else {
        return;
    };
    std::thread::spawn(move || {
        for _ in signals.forever() {
            end();
        }
    });
}
