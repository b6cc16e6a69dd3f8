//! Wheels: how pip and uv are called so that they build nothing and read no settings of a project, and what they report.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::requirement::{is_python_name, is_version, normalize_name};
use super::{
    InstallerCommand, LockedPackage, MAX_PACKAGES, PackageError, Requirement, invalid_report, sort_and_dedup,
};

/// The oldest pip that installs into another environment and writes a report.
pub const MIN_PIP_VERSION: (u32, u32) = (22, 3);
/// What settings say of where packages come from.
const INDEX_SETTING_KEYS: [&str; 4] = ["index-url", "extra-index-url", "no-index", "find-links"];

/// What installs wheels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installer {
    /// uv.
    Uv(PathBuf),
    /// The interpreter's pip.
    Pip,
}

/// What the user has set for each of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSettings {
    /// pip is configured with where packages come from.
    pub has_pip_index: bool,
    /// uv is.
    pub has_uv_index: bool,
}

/// uv where it is there. It does not read what pip is given: who has told pip alone where packages come from gets pip,
/// so that no package of theirs is looked for elsewhere.
#[must_use]
pub fn choose_installer(uv: Option<PathBuf>, settings: IndexSettings) -> Installer {
    match uv {
        Some(uv) if settings.has_uv_index || !settings.has_pip_index => Installer::Uv(uv),
        Some(_) | None => Installer::Pip,
    }
}

/// Whether the text of a `pip.conf` says where packages come from.
#[must_use]
pub fn has_index_settings(text: &str) -> bool {
    let keys = text.lines().filter_map(|line| line.split(['=', ':']).next());
    let mut keys = keys.map(|key| key.trim().to_ascii_lowercase().replace('_', "-"));
    keys.any(|key| INDEX_SETTING_KEYS.contains(&key.as_str()))
}

/// The interpreter of an environment.
#[must_use]
pub fn venv_python(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

/// The requirements as a file for an installer.
#[must_use]
pub fn requirements_file(requirements: &[Requirement]) -> String {
    requirements.iter().map(|requirement| format!("{}\n", requirement.text)).collect()
}

/// Pinned packages as a file for an installer.
#[must_use]
pub fn pins_file(pins: &[LockedPackage]) -> String {
    let line = |pin: &LockedPackage| {
        let hashes: String = pin.integrity.split(' ').map(|hash| format!(" --hash={hash}")).collect();
        format!("{}=={}{hashes}\n", pin.name, pin.version)
    };
    pins.iter().map(line).collect()
}

/// Hashes of wheels: one, or those of every wheel of the version.
pub(super) fn is_integrity(text: &str) -> bool {
    let is_hash = |hash: &str| {
        hash.strip_prefix("sha256:").is_some_and(|hex| {
            hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        })
    };
    text.len() <= 64 * 1024 && text.split(' ').all(is_hash)
}

/// The version in what `pip --version` prints.
#[must_use]
pub fn parse_pip_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("pip ")?.split_whitespace().next()?.split('.');
    let mut number = || numbers.next().and_then(|number| number.parse().ok());
    Some((number()?, number()?))
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

fn installer_command(program: &Path, arguments: &[&str]) -> InstallerCommand {
    InstallerCommand {
        program: program.to_owned(),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
    }
}

/// Calls pip on a file of requirements. `pip` is how pip is called; with pins nothing else may come along.
#[must_use]
pub fn pip_install(pip: &InstallerCommand, file: &Path, report: &Path, is_pinned: bool) -> InstallerCommand {
    let (file, report) = (path_text(file), path_text(report));
    let mut call = pip.clone();
    let options = [
        "install",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--no-cache-dir",
        "--no-warn-script-location",
        "--progress-bar=off",
        "--no-color",
        "--report",
        &report,
    ];
    call.arguments.extend(options.map(str::to_owned));
    if is_pinned {
        call.arguments.extend(["--require-hashes", "--no-deps"].map(str::to_owned));
    }
    call.arguments.extend(["-r".to_owned(), file]);
    call
}

/// What all calls of uv have in common: the user's settings or none, never those of a folder around.
fn uv_command(program: &Path, settings: Option<&Path>, cache: &Path, arguments: &[&str]) -> InstallerCommand {
    let mut call = installer_command(program, arguments);
    match settings {
        Some(settings) => call.arguments.extend(["--config-file".to_owned(), path_text(settings)]),
        None => call.arguments.push("--no-config".to_owned()),
    }
    let common = ["--no-progress", "--no-python-downloads", "--color", "never", "--cache-dir"];
    call.arguments.extend(common.map(str::to_owned));
    call.arguments.push(path_text(cache));
    call
}

/// Makes an empty environment.
#[must_use]
pub fn uv_venv(
    program: &Path,
    settings: Option<&Path>,
    cache: &Path,
    base: &Path,
    environment: &Path,
) -> InstallerCommand {
    let (base, environment) = (path_text(base), path_text(environment));
    uv_command(program, settings, cache, &["venv", "--no-project", "--python", &base, &environment])
}

/// Finds versions, and the hashes of their files.
#[must_use]
pub fn uv_compile(
    program: &Path,
    settings: Option<&Path>,
    cache: &Path,
    environment: &Path,
    files: (&Path, &Path),
) -> InstallerCommand {
    let python = path_text(&venv_python(environment));
    let (requirements, compiled) = (path_text(files.0), path_text(files.1));
    let arguments = [
        "pip",
        "compile",
        "--quiet",
        "--generate-hashes",
        "--only-binary",
        ":all:",
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
        "--no-emit-find-links",
        "--python",
        &python,
        "--output-file",
        &compiled,
        &requirements,
    ];
    uv_command(program, settings, cache, &arguments)
}

/// Installs exactly what a file pins.
#[must_use]
pub fn uv_install(
    program: &Path,
    settings: Option<&Path>,
    cache: &Path,
    environment: &Path,
    pins: &Path,
) -> InstallerCommand {
    let (python, pins) = (path_text(&venv_python(environment)), path_text(pins));
    let arguments = [
        "pip",
        "install",
        "--require-hashes",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--compile-bytecode",
        "--link-mode",
        "copy",
        "--python",
        &python,
        "-r",
        &pins,
    ];
    uv_command(program, settings, cache, &arguments)
}

/// The packages in pip's report, with the hash of each wheel.
///
/// # Errors
/// When the report is not one, or holds something else than a wheel with a SHA-256.
pub fn parse_pip_report(bytes: &[u8]) -> Result<Vec<LockedPackage>, PackageError> {
    let report: Value = serde_json::from_slice(bytes).map_err(|error| invalid_report(error.to_string()))?;
    let list =
        report.get("install").and_then(Value::as_array).ok_or_else(|| invalid_report("no `install`"))?;
    let read = |row: &Value| {
        let at = |path: &str| row.pointer(path).and_then(Value::as_str);
        let (name, version) =
            at("/metadata/name").zip(at("/metadata/version")).ok_or_else(|| invalid_report("no name"))?;
        let hash = at("/download_info/archive_info/hashes/sha256").map(|hash| format!("sha256:{hash}"));
        let hash =
            hash.or_else(|| at("/download_info/archive_info/hash").map(|hash| hash.replacen('=', ":", 1)));
        parse_package(name, version, hash.unwrap_or_default())
    };
    collect_packages(list.iter().map(read))
}

/// The packages in what `uv pip compile --generate-hashes` writes, each with the hashes of its files.
///
/// # Errors
/// When a line is not understood.
pub fn parse_compiled(text: &str) -> Result<Vec<LockedPackage>, PackageError> {
    let whole = text.replace("\\\n", " ");
    let lines = whole.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let (name, version) =
            first.split_once("==").ok_or_else(|| invalid_report(format!("the line `{first}`")))?;
        let mut hashes: Vec<&str> = words.filter_map(|word| word.strip_prefix("--hash=")).collect();
        hashes.sort_unstable();
        // `name[extra]==1.0` is the package `name`.
        let name = name.split('[').next().unwrap_or_default();
        parse_package(name, version, hashes.join(" "))
    };
    collect_packages(lines.map(read))
}

fn parse_package(name: &str, version: &str, integrity: String) -> Result<LockedPackage, PackageError> {
    let display_name = rye_item::text::one_line(name);
    if !is_python_name(name) || !is_version(version) {
        return Err(invalid_report(format!("the package `{display_name}`")));
    }
    if !is_integrity(&integrity) {
        return Err(invalid_report(format!("no SHA-256 of the package `{display_name}`")));
    }
    Ok(LockedPackage { name: normalize_name(name), version: version.to_owned(), integrity })
}

fn collect_packages(
    rows: impl Iterator<Item = Result<LockedPackage, PackageError>>,
) -> Result<Vec<LockedPackage>, PackageError> {
    let packages = rows.take(MAX_PACKAGES + 1).collect::<Result<Vec<_>, _>>()?;
    if packages.len() > MAX_PACKAGES {
        return Err(invalid_report(format!("more than {MAX_PACKAGES} packages")));
    }
    Ok(sort_and_dedup(packages))
}
