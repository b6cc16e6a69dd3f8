//! What an installer finds around it: the user's own settings of it, and nothing of a project.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::file;
use rye_exec::environment::EnvironmentPolicy;
use rye_exec::packages::{self, Ecosystem, IndexSettings};

use crate::engine::Engine;

/// Settings of installers that the user may have in their environment.
#[rustfmt::skip]
const INSTALLER_VARIABLES: [&str; 33] = [
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_CERT",
    "PIP_CLIENT_CERT", "PIP_PROXY", "PIP_CONFIG_FILE", "PIP_DEFAULT_TIMEOUT", "PIP_TIMEOUT", "PIP_RETRIES",
    "UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX", "UV_FIND_LINKS",
    "UV_INDEX_STRATEGY", "UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_HTTP_TIMEOUT", "UV_OFFLINE",
    "NPM_CONFIG_REGISTRY", "npm_config_registry", "NPM_CONFIG_USERCONFIG", "npm_config_userconfig",
    "NPM_CONFIG_GLOBALCONFIG", "npm_config_globalconfig", "NPM_CONFIG_CAFILE", "npm_config_cafile", "NPM_TOKEN",
];
/// Those that say where packages come from.
const PIP_INDEX_VARIABLES: [&str; 4] =
    ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS"];
const UV_INDEX_VARIABLES: [&str; 6] =
    ["UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_NO_INDEX", "UV_FIND_LINKS"];
const MAX_SETTINGS_BYTES: u64 = 1 << 20;

/// The environment of an installer.
pub(super) fn installer_variables(
    engine: &Engine,
    policy: &EnvironmentPolicy,
    path: &str,
    temporary: &Path,
) -> BTreeMap<String, String> {
    let process = engine.host.variables.iter();
    let is_allowed = |name: &str| policy.is_inherited(name) || INSTALLER_VARIABLES.contains(&name);
    let mut variables: BTreeMap<String, String> = process
        .filter(|(name, _)| is_allowed(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let temporary = temporary.display().to_string();
    let own = [
        ("PATH", path),
        ("TMPDIR", &temporary),
        ("TMP", &temporary),
        ("TEMP", &temporary),
        // Whatever the user's settings say, it goes into the environment made for it, without prompts.
        ("PIP_USER", "0"),
        ("PIP_NO_INPUT", "1"),
        ("PIP_ROOT_USER_ACTION", "ignore"),
        ("PYTHONUTF8", "1"),
        ("NO_COLOR", "1"),
    ];
    variables.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    variables.remove("FORCE_COLOR");
    variables
}

fn config_folder(engine: &Engine) -> PathBuf {
    let named = engine.host.variables.get("XDG_CONFIG_HOME").map(PathBuf::from);
    named.filter(|path| path.is_absolute()).unwrap_or_else(|| engine.host.home.join(".config"))
}

/// uv's settings of the user, else of the machine.
pub(super) fn uv_settings(engine: &Engine) -> Option<PathBuf> {
    let own = config_folder(engine).join("uv/uv.toml");
    [own, PathBuf::from("/etc/uv/uv.toml")].into_iter().find(|path| path.is_file())
}

/// Who of the two was told by the user where packages come from.
pub(super) fn index_settings(engine: &Engine) -> IndexSettings {
    let is_set = |name: &&str| engine.host.variables.get(*name).is_some_and(|value| !value.is_empty());
    let home = &engine.host.home;
    let named = engine.host.variables.get("PIP_CONFIG_FILE").map(PathBuf::from);
    let files = [
        config_folder(engine).join("pip/pip.conf"),
        home.join(".pip/pip.conf"),
        PathBuf::from("/etc/xdg/pip/pip.conf"),
        PathBuf::from("/etc/pip.conf"),
    ];
    let sets_index = |path: PathBuf| {
        file::read_bounded(&path, MAX_SETTINGS_BYTES)
            .is_ok_and(|(bytes, _)| packages::has_index_settings(&String::from_utf8_lossy(&bytes)))
    };
    IndexSettings {
        has_pip_index: PIP_INDEX_VARIABLES.iter().any(is_set)
            || named.into_iter().chain(files).any(sets_index),
        has_uv_index: UV_INDEX_VARIABLES.iter().any(is_set) || uv_settings(engine).is_some(),
    }
}

/// What policy hides from tools and an installer must read: where it has the credentials of an index. No code of a
/// package runs while it is installed.
pub(super) fn credentials_file(engine: &Engine, ecosystem: Ecosystem) -> PathBuf {
    match ecosystem {
        Ecosystem::Python => engine.host.home.join(".netrc"),
        Ecosystem::Node => engine.host.home.join(".npmrc"),
    }
}

/// What an installer reads in the home: its settings, and what it has downloaded before.
pub(super) fn installer_paths(engine: &Engine, ecosystem: Ecosystem) -> Vec<PathBuf> {
    let (home, configuration) = (&engine.host.home, config_folder(engine));
    let named = |name: &str| {
        let path = engine.host.variables.get(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let cache = named("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
    let mut paths = vec![credentials_file(engine, ecosystem)];
    match ecosystem {
        Ecosystem::Python => {
            paths.extend([configuration.join("pip"), home.join(".pip"), configuration.join("uv")]);
            paths.extend([cache.join("pip"), cache.join("uv"), home.join(".local/share/uv")]);
            let files = ["PIP_CONFIG_FILE", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_CACHE_DIR", "UV_CACHE_DIR"];
            paths.extend(files.iter().filter_map(|name| named(name)));
        }
        Ecosystem::Node => {
            paths.push(home.join(".npm"));
            let files =
                ["NPM_CONFIG_USERCONFIG", "NPM_CONFIG_GLOBALCONFIG", "NPM_CONFIG_CAFILE", "NPM_CONFIG_CACHE"];
            paths.extend(files.iter().flat_map(|name| [named(name), named(&name.to_lowercase())]).flatten());
        }
    }
    paths
}
