//! `rye self`: which rye this is, and which package it came from.

use std::path::Path;

use serde::Serialize;
use serde_json::json;

use super::CommandResult;
use crate::global::GlobalArguments;
use crate::output::Output;

/// The package a binary came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum InstallSource {
    /// A wheel, in a Python environment.
    Wheel,
    /// npm's package.
    Npm,
    /// Debian's package.
    Deb,
    /// `cargo install` or `cargo binstall`.
    Cargo,
    /// A build folder of cargo.
    Build,
    /// An archive, or a copy.
    Archive,
}

impl InstallSource {
    /// Judges by where the binary is.
    fn of(binary: &Path) -> Self {
        let has_part = |name: &str| binary.iter().any(|part| part == name);
        let folder = binary.parent().unwrap_or(Path::new("/"));
        let above = folder.parent().unwrap_or(Path::new("/"));
        if has_part("node_modules") {
            Self::Npm
        } else if above.join("pyvenv.cfg").is_file() || has_part("site-packages") {
            Self::Wheel
        } else if above.join("share/doc/rye-agents").is_dir() {
            Self::Deb
        } else if above.join(".crates.toml").is_file() {
            Self::Cargo
        } else if above.join("CACHEDIR.TAG").is_file() || above.join(".rustc_info.json").is_file() {
            Self::Build
        } else {
            Self::Archive
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Wheel => "Python package (wheel)",
            Self::Npm => "npm package",
            Self::Deb => "Debian package",
            Self::Cargo => "cargo",
            Self::Build => "built from source",
            Self::Archive => "archive",
        }
    }

    fn upgrade_hint(self) -> &'static str {
        match self {
            Self::Wheel => "pip install --upgrade rye-agents",
            Self::Npm => "npm install rye-agents@latest",
            Self::Deb => "install the next .deb: dpkg -i rye-agents_VERSION_ARCH.deb",
            Self::Cargo => "cargo install --path crates/rye-cli --locked, in the new sources",
            Self::Build => "pull the sources and build again: cargo build --release -p rye-cli",
            Self::Archive => "replace the binary by the one in the next archive",
        }
    }
}

/// Shows the version, the target, the path and the package.
pub fn version(global: &GlobalArguments) -> CommandResult {
    let output = Output::new(global, None, false);
    let binary = std::env::current_exe()?;
    let source = InstallSource::of(&binary);
    let (version, target) = (env!("CARGO_PKG_VERSION"), target());
    if output.is_json {
        let data = json!({
            "version": version,
            "target": target,
            "path": binary.to_string_lossy(),
            "installed_from": source,
            "upgrade": source.upgrade_hint(),
        });
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    output.print_raw(&format!(
        "rye {version} ({target})\ninstalled from: {}\npath: {}\nupgrade: {}\n",
        source.describe(),
        rye_item::text::one_line(&binary.to_string_lossy()),
        source.upgrade_hint()
    ))?;
    Ok(())
}

/// The system that this binary is for.
fn target() -> String {
    let library = if cfg!(target_env = "musl") { "static, musl" } else { "glibc" };
    format!("{}-{}, {library}", std::env::consts::ARCH, std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_read_from_the_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| InstallSource::of(&folder.path().join(path));
        let file = |path: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            lillux::file::write_new(&path, b"", lillux::file::FileMode::Preserve).expect("written");
        };
        file("venv/pyvenv.cfg");
        file("usr/share/doc/rye-agents/README.md");
        file("cargo/.crates.toml");
        file("target/CACHEDIR.TAG");
        assert_eq!(at("venv/bin/rye"), InstallSource::Wheel);
        assert_eq!(at("p/node_modules/@rye-agents/linux-x64/bin/rye"), InstallSource::Npm);
        assert_eq!(at("usr/bin/rye"), InstallSource::Deb);
        assert_eq!(at("cargo/bin/rye"), InstallSource::Cargo);
        assert_eq!(at("target/release/rye"), InstallSource::Build);
        assert_eq!(at("opt/bin/rye"), InstallSource::Archive);
    }
}
