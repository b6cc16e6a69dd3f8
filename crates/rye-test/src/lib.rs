//! For tests only: temporary spaces, and files to put into them.
#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot set up its folder has failed")]

pub mod fake_model;
pub mod generated;
#[cfg(feature = "contract")]
mod shipped;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "contract")]
pub mod store_contract;

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
#[cfg(feature = "contract")]
pub use shipped::shipped_config;

/// A home and a project in a temporary folder, removed when dropped.
#[derive(Debug)]
pub struct TestContext {
    folder: tempfile::TempDir,
}

impl Default for TestContext {
    fn default() -> Self {
        Self::new()
    }
}

impl TestContext {
    /// A new, empty world.
    #[must_use]
    pub fn new() -> Self {
        let context = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        for folder in [context.home(), context.project(), context.cache()] {
            file::create_dirs(&folder, false).expect("a folder of the world");
        }
        context
    }

    /// The world's own folder.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().canonicalize().expect("the world's folder")
    }

    /// The user's home, which is the user space's base.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// The project.
    #[must_use]
    pub fn project(&self) -> PathBuf {
        self.path().join("project")
    }

    /// The cache folder.
    #[must_use]
    pub fn cache(&self) -> PathBuf {
        self.path().join("cache")
    }

    /// Writes a file below the world's folder, with its folders.
    pub fn write(&self, relative: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(relative);
        write(&path, content.as_ref());
        path
    }

    /// Reads a file below the world's folder.
    #[must_use]
    pub fn read(&self, relative: &str) -> Vec<u8> {
        file::read_bounded(&self.path().join(relative), 64 << 20).expect("a file of the world").0
    }

    /// Reads a text below the world's folder.
    #[must_use]
    pub fn text(&self, relative: &str) -> String {
        String::from_utf8(self.read(relative)).expect("a text of the world")
    }
}

fn write(path: &Path, content: &[u8]) {
    file::create_dirs(path.parent().expect("a file has a folder"), false).expect("a folder");
    file::write_atomic(path, content, FileMode::Preserve).expect("a file");
}

/// A signature by the key in `private_pem` over `covered` alone, as the text of a signature line without comment.
#[must_use]
pub fn signature(private_pem: &str, covered: &[u8]) -> String {
    let key = lillux::SecretKey::from_pem(private_pem).expect("a private key");
    let hash = lillux::Digest::of(covered);
    let signature = key.sign(&hash).to_base64();
    format!("rye:signed:2026-01-02T03:04:05Z:{hash}:{signature}:{}", key.public_key().fingerprint())
}

/// A small valid tool.
#[must_use]
pub fn tool(category: &str, description: &str) -> String {
    format!(
        "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__executor_id__ = \"rye/core/runtimes/python/function\"\n__category__ = \"{category}\"\n__tool_description__ = \"{description}\"\n\n\ndef execute(params, project_path):\n    return {{}}\n"
    )
}

/// A small valid directive.
#[must_use]
pub fn directive(category: &str, name: &str, description: &str) -> String {
    format!(
        "# {description}\n\n```xml\n<directive name=\"{name}\" version=\"1.0.0\">\n  <metadata>\n    <description>{description}</description>\n    <category>{category}</category>\n    <author>test</author>\n  </metadata>\n</directive>\n```\n\nDo it.\n"
    )
}

/// A small valid knowledge entry.
#[must_use]
pub fn knowledge(category: &str, name: &str, title: &str, body: &str) -> String {
    format!(
        "```yaml\nname: {name}\ntitle: {title}\nentry_type: reference\ncategory: {category}\nversion: \"1.0.0\"\n```\n\n{body}\n"
    )
}

/// Fails when a file of `<crate>/tests/main` is not declared in its `main.rs`, or lies beside that folder, where cargo
/// would make it another binary.
///
/// # Panics
/// When a file is forgotten.
pub fn assert_all_declared(crate_folder: &str, main_source: &str) {
    let files_of = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a test folder");
        let names =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a UTF-8 name"));
        names.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned)).collect()
    };
    let is_declared =
        |name: &String| name == "main" || main_source.lines().any(|line| line == format!("mod {name};"));
    let tests = Path::new(crate_folder).join("tests");
    let undeclared: Vec<String> =
        files_of(&tests.join("main")).into_iter().filter(|name| !is_declared(name)).collect();
    assert_eq!(undeclared, Vec::<String>::new());
    assert_eq!(files_of(&tests), Vec::<String>::new());
}
