//! The one place that reads environment, home, working folder and clock.
#![expect(clippy::disallowed_methods, reason = "this is the single entry point for them")]

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::{env, fs};

use lillux::file::TempDirPool;
use lillux::process::Launcher;
use rye_agent::callback::{CALLBACK_FD_VAR, TOKEN_FD_VAR};
use rye_engine::verbs::execute::SANDBOX_VARIABLE;
use rye_engine::{
    Code, Engine, EngineOptions, Error, HostEnvironment, NativeTools, PassphrasePrompt, Result, WallClock,
};
use rye_server::clients::ClientDirs;
use rye_space::{AI_FOLDER, Roots, keys, roots, write_root};

use crate::global::GlobalArguments;
use crate::{output, owner_name};

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
    pub working_dir: PathBuf,
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
    pub fn read(global: &GlobalArguments) -> Result<Self> {
        let working_dir = env::current_dir().map_err(|error| {
            Error::new(Code::PathNotFound, format!("the current folder cannot be read: {error}"))
                .hint("it may have been removed: change into one that exists")
        })?;
        let home =
            env_var("HOME").map(PathBuf::from).or_else(env::home_dir).unwrap_or_else(|| working_dir.clone());
        let user = global
            .user_space
            .clone()
            .or_else(|| env_var("USER_SPACE").map(|path| expand_home(&path, &home)))
            .map_or_else(|| home.clone(), |path| working_dir.join(path));
        let signing_keys = env_var("RYE_SIGNING_KEY_DIR").map_or_else(
            || user.join(AI_FOLDER).join(keys::SIGNING_FOLDER),
            |path| working_dir.join(expand_home(&path, &home)),
        );
        let cache = env_var("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .unwrap_or_else(|| home.join(".cache"))
            .join("rye");
        let bundle_paths = env_var("RYE_BUNDLE_PATH")
            .map(|paths| env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect())
            .unwrap_or_default();
        let project = match &global.project {
            Some(path) => Some(working_dir.join(path)),
            None => find_project(&working_dir, &user),
        };
        let owner = env_var("USER")
            .or_else(|| env_var("LOGNAME"))
            .map(|name| name.to_string_lossy().into_owned())
            .or_else(|| owner_name::find(&home, env_var("XDG_CONFIG_HOME").map(PathBuf::from)))
            .map_or_else(|| "local".to_owned(), |name| rye_item::text::one_line(&name));
        // Only what the environment says explicitly: a home above or below the current folder is not an attack.
        let own_keys = user.join(AI_FOLDER).join(keys::SIGNING_FOLDER);
        for (name, path, usual) in
            [("USER_SPACE", &user, &home), ("RYE_SIGNING_KEY_DIR", &signing_keys, &own_keys)]
        {
            let is_overruled = name == "USER_SPACE" && global.user_space.is_some();
            if let Some(given) = env_var(name).filter(|_| !is_overruled && !is_same_path(path, usual)) {
                let starts = [Some(working_dir.as_path()), project.as_deref()];
                reject_project_path(name, &given, path, starts.into_iter().flatten(), &home)?;
            }
        }
        if is_same_path(&user, &home) && !write_root::is_account_home(&home, lillux::owner::effective_uid()) {
            let starts = [Some(working_dir.as_path()), project.as_deref()];
            refuse_home(&home, starts.into_iter().flatten())?;
        }
        Ok(Self {
            roots: Roots {
                project: project.filter(|path| !is_same_path(path, &user)),
                user,
                home: home.clone(),
                cache,
                signing_keys,
                bundle_paths,
            },
            home,
            working_dir,
            wants_dev_mode: env_var("RYE_DEV_MODE").is_some_and(|value| value == "1"),
            owner,
            is_interactive: std::io::stdin().is_terminal() && std::io::stderr().is_terminal(),
            launcher: Launcher::new("/proc/self/exe"),
        })
    }

    /// What is around this process.
    pub fn host(&self) -> HostEnvironment {
        HostEnvironment {
            variables: env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            home: self.home.clone(),
            current_dir: self.working_dir.clone(),
            launcher: self.launcher.clone(),
            temporary_folders: TempDirPool::default(),
            passphrase_prompt: None,
        }
    }

    /// As [`Settings::host`], for a command that a person typed: it may ask for the passphrase of the signing key.
    pub fn host_with_prompt(&self) -> HostEnvironment {
        let prompt = || rpassword::prompt_password("passphrase of your signing key: ");
        let passphrase_prompt = self.is_interactive.then(|| PassphrasePrompt(std::sync::Arc::new(prompt)));
        HostEnvironment { passphrase_prompt, ..self.host() }
    }

    /// Opens the engine on these settings.
    pub fn engine(&self) -> Result<Engine> {
        let options = EngineOptions {
            wants_dev_mode: self.wants_dev_mode,
            is_warm: false,
            host: self.host_with_prompt(),
            natives: NativeTools(rye_agent::thread_tools::native_tools()),
        };
        Engine::open(self.roots.clone(), options, system_clock())
    }
}

/// Where this process stands, if a tool started it.
#[derive(Clone, Debug)]
pub enum SandboxContext {
    /// A thread gave it a token, and a callback channel: the numbers of two descriptors.
    Callback {
        /// The token's.
        token: String,
        /// The channel's.
        channel: String,
    },
    /// It has nothing.
    Isolated,
}

/// Whether this process runs in a tool's sandbox. A tool could hide that from `rye`, and would gain nothing: the sandbox
/// confines `rye` too.
pub fn sandbox_context() -> Option<SandboxContext> {
    let text = |name: &str| env_var(name).map(|value| value.to_string_lossy().into_owned());
    match (text(TOKEN_FD_VAR), text(CALLBACK_FD_VAR)) {
        (Some(token), Some(channel)) => Some(SandboxContext::Callback { token, channel }),
        (None, None) => env_var(SANDBOX_VARIABLE).map(|_| SandboxContext::Isolated),
        (Some(_), None) | (None, Some(_)) => Some(SandboxContext::Isolated),
    }
}

/// Refuses a folder from the environment that a project could have brought along: a relative one, or one at, inside or
/// above the working folder, the project, or a checkout around them.
fn reject_project_path<'a>(
    name: &str,
    value: &OsString,
    path: &Path,
    starts: impl Iterator<Item = &'a Path>,
    home: &Path,
) -> Result<()> {
    let is_relative = !Path::new(value).is_absolute() && !value.to_string_lossy().starts_with('~');
    let folder = |start: &Path| {
        // What lies behind a link counts too: the `.ai` alone may lead into the project.
        let candidates = [path.to_owned(), path.join(AI_FOLDER)];
        candidates.iter().find_map(|path| roots::find_source_folder(path, start, home))
    };
    let reason = match starts.filter_map(folder).next() {
        _ if is_relative => "is a relative path".to_owned(),
        Some(folder) if roots::is_same_folder(path, &folder) => {
            "is the project's own folder or one above it".to_owned()
        }
        Some(folder) => format!("is inside the project `{}`", folder.display()),
        None => return Ok(()),
    };
    Err(Error::new(Code::UnsafeRoots, format!("{name} `{}` {reason}", path.display())).hint(format!(
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
        format!("is inside the project `{}`", checkout.display())
    };
    Err(Error::new(Code::UnsafeRoots, format!("HOME `{}` {why}", home.display()))
        .hint("a project must not bring its own user space: set HOME to your home folder")
        .hint("or name your user space: --user-space DIR"))
}

/// Whether there is a screen that a browser could open on.
pub fn has_display() -> bool {
    env_var("DISPLAY").is_some() || env_var("WAYLAND_DISPLAY").is_some()
}

/// Has the desktop open an address.
pub fn open_in_browser(url: &str) -> std::io::Result<()> {
    use std::process::{Command, Stdio};
    let mut opener = Command::new("xdg-open")
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // Nothing is known of the browser but that it was asked.
    std::thread::spawn(move || opener.wait());
    Ok(())
}

/// A variable of the environment that is not empty.
pub fn env_var(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn expand_home(path: &OsString, home: &Path) -> PathBuf {
    match path.to_str() {
        Some("~") => home.to_owned(),
        Some(text) => text.strip_prefix("~/").map_or_else(|| PathBuf::from(text), |rest| home.join(rest)),
        None => PathBuf::from(path),
    }
}

/// The nearest folder upwards that holds an `.ai` which is not the user's; else the folder itself.
fn find_project(folder: &Path, user: &Path) -> Option<PathBuf> {
    let root = folder
        .ancestors()
        .find(|ancestor| ancestor.join(AI_FOLDER).is_dir() && !is_same_path(ancestor, user));
    Some(root.unwrap_or(folder).to_owned())
}

fn is_same_path(left: &Path, right: &Path) -> bool {
    match (fs::canonicalize(left), fs::canonicalize(right)) {
        (Ok(left), Ok(right)) => left == right,
        _ => left == right,
    }
}

/// `NO_COLOR` is set.
pub fn is_no_color() -> bool {
    env_var("NO_COLOR").is_some()
}

struct SystemClock;

impl WallClock for SystemClock {
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
pub fn system_clock() -> Box<dyn WallClock> {
    Box::new(SystemClock)
}

/// Milliseconds since 1970, now.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)).unwrap_or_default()
}

/// The computer's clock, for threads.
pub struct ThreadClock;

impl rye_agent::driver::MillisClock for ThreadClock {
    fn now_ms(&self) -> u64 {
        now_ms()
    }

    fn monotonic_ms(&self) -> u64 {
        static STARTED: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let elapsed = STARTED.get_or_init(std::time::Instant::now).elapsed();
        u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn time_zone(&self) -> rye_agent::rolling::TimeZone {
        rye_agent::rolling::TimeZone::system()
    }
}

/// Where this binary lies.
pub fn current_exe() -> PathBuf {
    env::current_exe().unwrap_or_else(|_| PathBuf::from("rye"))
}

/// The path this binary was started by: a link stays a link, so that what names it still works after an upgrade.
pub fn started_as(working_dir: &Path) -> PathBuf {
    let program = current_exe();
    let Some(word) = env::args_os().next().map(PathBuf::from) else { return program };
    let candidates: Vec<PathBuf> = if word.components().count() > 1 {
        vec![working_dir.join(&word).components().collect()]
    } else {
        let paths = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&paths)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(&word))
            .collect()
    };
    let is_this = |path: &PathBuf| is_same_path(path, &program) && path.exists();
    candidates.into_iter().find(is_this).unwrap_or(program)
}

/// Where MCP clients keep their configuration.
pub fn client_dirs(settings: &Settings) -> ClientDirs {
    let folder = |name: &str| env_var(name).map(PathBuf::from).filter(|path| path.is_absolute());
    ClientDirs {
        home: settings.home.clone(),
        config: folder("XDG_CONFIG_HOME").unwrap_or_else(|| settings.home.join(".config")),
        codex: folder("CODEX_HOME").unwrap_or_else(|| settings.home.join(".codex")),
        project: settings.roots.project.clone().unwrap_or_else(|| settings.working_dir.clone()),
    }
}

/// Whether a program is on the PATH.
pub fn has_program(name: &str) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.is_absolute() && folder.join(name).is_file())
}

/// Lets the terminal's interrupt and a polite end stop the run instead of the process.
pub fn cancel_on_signals(cancel: &lillux::CancelToken) {
    let cancel = cancel.clone();
    on_termination_signals(move || {
        output::end_interrupted_line();
        cancel.cancel();
    });
}

/// The signals this process ignores, a bit each; none where the system does not say.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Calls `on_signal` on an interrupt, a hang-up or a termination signal.
pub fn on_termination_signals(on_signal: impl Fn() + Send + 'static) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // `nohup` has it ignored: then the terminal may close.
    let handles_hangup = ignored_signals() >> (SIGHUP - 1) & 1 == 0;
    let signal_numbers = [SIGINT, SIGTERM].into_iter().chain(handles_hangup.then_some(SIGHUP));
    // Without the handler a signal ends the process, and the supervisor ends the run.
    let Ok(mut signals) = signal_hook::iterator::Signals::new(signal_numbers) else {
        return;
    };
    std::thread::spawn(move || {
        for _ in signals.forever() {
            on_signal();
        }
    });
}
