//! npm packages: how npm is called so that no script of a package runs, and what its lock says.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::requirement::{is_node_name, is_version};
use super::{
    InstallerCommand, LockedPackage, MAX_PACKAGES, PackageError, Requirement, invalid_report, sort_and_dedup,
};

/// The `package.json` npm installs by. Pinned versions stand in the place of those asked for, and in the place of
/// those that packages ask of each other, as far as one version of each is pinned.
#[must_use]
pub fn package_json(requirements: &[Requirement], pins: Option<&[LockedPackage]>) -> String {
    let mut pinned: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for pin in pins.unwrap_or_default() {
        let only = if pinned.contains_key(pin.name.as_str()) { None } else { Some(pin.version.as_str()) };
        pinned.insert(&pin.name, only);
    }
    let mut direct = Map::new();
    for requirement in requirements {
        let requested = if requirement.version.is_empty() { "*" } else { requirement.version.as_str() };
        let version = pinned.get(requirement.name.as_str()).copied().flatten().unwrap_or(requested);
        direct.insert(requirement.name.clone(), json!(version));
    }
    let overrides: Map<String, Value> = pinned
        .iter()
        .filter(|(name, _)| !direct.contains_key(**name))
        .filter_map(|(name, version)| Some(((*name).to_owned(), json!((*version)?))))
        .collect();
    let mut whole = json!({"private": true, "dependencies": direct});
    if !overrides.is_empty() {
        whole["overrides"] = Value::Object(overrides);
    }
    format!("{whole:#}\n")
}

fn npm_command(program: &Path, folder: &Path, cache: &Path, command: &[&str]) -> InstallerCommand {
    let text = |path: &Path| path.display().to_string();
    let mut arguments: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let common = [
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--no-progress",
        "--color=false",
        "--logs-max=0",
        "--install-links=false",
        "--no-global",
        "--omit=dev",
        "--prefix",
    ];
    arguments.extend(common.map(str::to_owned));
    arguments.extend([text(folder), "--cache".to_owned(), text(cache)]);
    InstallerCommand { program: program.to_owned(), arguments }
}

/// Finds versions: writes `package-lock.json`, and installs nothing.
#[must_use]
pub fn npm_lock_command(program: &Path, folder: &Path, cache: &Path) -> InstallerCommand {
    npm_command(program, folder, cache, &["install", "--package-lock-only", "--lockfile-version=3"])
}

/// Installs what `package-lock.json` says, and nothing whose bytes have another hash.
#[must_use]
pub fn npm_install_command(program: &Path, folder: &Path, cache: &Path) -> InstallerCommand {
    npm_command(program, folder, cache, &["ci"])
}

/// Whether it is a hash as npm writes them.
pub(super) fn is_integrity(text: &str) -> bool {
    text.strip_prefix("sha512-").is_some_and(|hash| {
        hash.len() == 88 && hash.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
    })
}

/// The packages in a `package-lock.json`.
///
/// # Errors
/// When it is not one, or a package is a link, is not from a registry, or has no SHA-512.
pub fn parse_package_lock(bytes: &[u8]) -> Result<Vec<LockedPackage>, PackageError> {
    let lock: Value = serde_json::from_slice(bytes).map_err(|error| invalid_report(error.to_string()))?;
    let all =
        lock.get("packages").and_then(Value::as_object).ok_or_else(|| invalid_report("no `packages`"))?;
    if all.len() > MAX_PACKAGES {
        return Err(invalid_report(format!("more than {MAX_PACKAGES} packages")));
    }
    let mut packages = Vec::new();
    for (path, entry) in all.iter().filter(|(path, _)| !path.is_empty()) {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        let display_path = rye_item::text::one_line(path);
        // It came inside the package above it, whose hash covers it.
        if entry.get("inBundle") == Some(&Value::Bool(true)) {
            continue;
        }
        let (_, name) = path
            .rsplit_once("node_modules/")
            .ok_or_else(|| invalid_report(format!("the package `{display_path}`")))?;
        let name = if text("name").is_empty() { name } else { text("name") };
        let (version, integrity) = (text("version"), text("integrity"));
        if !is_node_name(name) || !is_version(version) || !text("resolved").starts_with("http") {
            return Err(invalid_report(format!("`{display_path}` is not from a registry")));
        }
        if !is_integrity(integrity) {
            return Err(invalid_report(format!("no SHA-512 of the package `{display_path}`")));
        }
        packages.push(LockedPackage {
            name: name.to_owned(),
            version: version.to_owned(),
            integrity: integrity.to_owned(),
        });
    }
    Ok(sort_and_dedup(packages))
}
