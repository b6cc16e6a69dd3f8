//! Lockfiles as data: reading and writing one at an explicit path. Where lockfiles lie, which of them count and what
//! they mean is decided by others.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::file::{self, FileMode, ReadError};

/// The version of the format that is written, and the only one that is read.
pub const LOCKFILE_VERSION: u64 = 1;
/// No lockfile is larger.
pub const MAX_LOCKFILE_BYTES: u64 = 4 << 20;

/// What was pinned: a tool, and everything it ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lockfile {
    /// The version of the format.
    pub lockfile_version: u64,
    /// When it was made: `2026-01-02T03:04:05.000000+00:00`.
    pub generated_at: String,
    /// The tool.
    pub root: LockedTool,
    /// The tool and what it runs on, element by element.
    pub resolved_chain: Vec<LockedElement>,
    /// Of other implementations; read as nothing, written as null.
    pub registry: Option<()>,
    /// The files beside the tool that were verified with it.
    pub verified_deps: Option<Vec<LockedFile>>,
    /// The project whose tool it is, where the lockfile lies outside of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The packages that were installed for the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<Vec<LockedPackage>>,
}

/// The tool a lockfile is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockedTool {
    /// Its id.
    pub tool_id: String,
    /// Its version.
    pub version: String,
    /// The SHA-256 of its content, in hex.
    pub integrity: String,
    /// The bundle it is of, else its space.
    pub provider_id: Option<String>,
    /// The version of that bundle, else of the tool.
    pub provider_version: Option<String>,
}

/// An element of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockedElement {
    /// Its id.
    pub item_id: String,
    /// `project`, `user` or `system:<bundle>`.
    pub space: String,
    /// What kind of tool it is.
    pub tool_type: Option<String>,
    /// What it runs on.
    pub executor_id: Option<String>,
    /// The SHA-256 of its content, in hex.
    pub integrity: String,
    /// The bundle it is of, else its space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// The version of that bundle, else of the element.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_version: Option<String>,
}

/// A file beside the tool that was verified with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockedFile {
    /// Its path below the tool's anchor.
    pub path: String,
    /// The SHA-256 of its content, in hex.
    pub integrity: String,
}

/// A package that was installed for the tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockedPackage {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The hash its package manager vouches for.
    pub integrity: String,
}

/// Why there is no lockfile to go by although something is there.
#[derive(Debug, thiserror::Error)]
pub enum LockfileError {
    /// It is not what a lockfile is.
    #[error("the lockfile `{}` is damaged: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The field that is wrong, if it is one: `resolved_chain[1].integrity`.
        field: Option<String>,
        /// What is wrong.
        what: String,
    },
    /// It cannot be read.
    #[error("the lockfile cannot be read: {0}")]
    Read(#[from] ReadError),
}

/// Reads the lockfile `relative` below the folder `root`; `None` when nothing is there.
///
/// # Errors
/// When something is there that is not a lockfile: damaged, too large, no regular file, a link that leaves `root`.
pub fn read(root: &Path, relative: &Path) -> Result<Option<Lockfile>, LockfileError> {
    let path = root.join(relative);
    let mut is_new = false;
    loop {
        match file::read_beneath(root, relative, MAX_LOCKFILE_BYTES) {
            Ok((bytes, _)) => return parse(&path, &bytes).map(Some),
            Err(error) if error.is_absent() => match fs_err::symlink_metadata(&path) {
                // A dangling link counts as present: its later target would decide what is pinned.
                Ok(metadata) if metadata.is_symlink() || is_new => {
                    let what = "it is a link to nothing".to_owned();
                    return Err(LockfileError::Corrupt { path, field: None, what });
                }
                // Another process has created it meanwhile.
                Ok(_) => is_new = true,
                Err(_) => return Ok(None),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the bytes of a lockfile; `path` is for saying which.
///
/// # Errors
/// When they are not a lockfile. Unknown fields are ignored.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Lockfile, LockfileError> {
    let corrupt =
        |field: Option<String>, what: String| LockfileError::Corrupt { path: path.to_owned(), field, what };
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| corrupt(None, format!("it is not JSON: {error}")))?;
    let whole = JsonFields::new(&value, String::new()).map_err(|fault| fault.into_error(&corrupt))?;
    parse_fields(&whole).map_err(|fault| fault.into_error(&corrupt))
}

/// Makes the lockfile only if nothing is there yet, with the folders it needs below `root`.
///
/// # Errors
/// `AlreadyExists` when something is there; otherwise when the system refuses or a folder leads out of `root`.
pub fn write_new(root: &Path, relative: &Path, lockfile: &Lockfile, mode: FileMode) -> io::Result<PathBuf> {
    let path = create_parent_dirs(root, relative)?;
    file::write_new(&path, &to_bytes(lockfile)?, mode)?;
    Ok(path)
}

/// Makes or replaces the lockfile, whole or not at all, with the folders it needs below `root`.
///
/// # Errors
/// When the system refuses or a folder leads out of `root`.
pub fn write(root: &Path, relative: &Path, lockfile: &Lockfile) -> io::Result<PathBuf> {
    let path = create_parent_dirs(root, relative)?;
    file::write_atomic(&path, &to_bytes(lockfile)?, FileMode::Preserve)?;
    Ok(path)
}

/// The text of a lockfile: JSON with two blanks of indentation.
/// The bytes of a lockfile, as they are written.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn to_bytes(lockfile: &Lockfile) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(lockfile)?;
    bytes.push(b'\n');
    if bytes.len() as u64 > MAX_LOCKFILE_BYTES {
        return Err(io::Error::other(format!(
            "the lockfile would be larger than {MAX_LOCKFILE_BYTES} bytes"
        )));
    }
    Ok(bytes)
}

/// Makes the folders of `relative` below `root` one by one; a link on the way is refused.
fn create_parent_dirs(root: &Path, relative: &Path) -> io::Result<PathBuf> {
    let is_plain = relative.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if !is_plain || relative.as_os_str().is_empty() {
        return Err(io::Error::other(format!(
            "invalid path `{}`: expected a path below a folder",
            relative.display()
        )));
    }
    file::create_dirs(root, false)?;
    file::create_folders_beneath(root, relative.parent().unwrap_or(Path::new("")), false)?;
    Ok(root.join(relative))
}

/// What is wrong with which field.
struct FieldError {
    field: Option<String>,
    what: String,
}

impl FieldError {
    fn missing(field: String) -> Self {
        Self { what: format!("the field `{field}` is missing"), field: Some(field) }
    }

    fn invalid(field: String, expected: &str) -> Self {
        Self { what: format!("the field `{field}` is not {expected}"), field: Some(field) }
    }

    fn into_error(self, to_error: &dyn Fn(Option<String>, String) -> LockfileError) -> LockfileError {
        to_error(self.field, self.what)
    }
}

/// An object and where it stands.
struct JsonFields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> JsonFields<'a> {
    fn new(value: &'a Value, path: String) -> Result<Self, FieldError> {
        match value {
            Value::Object(object) => Ok(Self { object, path }),
            _ if path.is_empty() => {
                Err(FieldError { field: None, what: "it is not a JSON object".to_owned() })
            }
            _ => Err(FieldError::invalid(path, "an object")),
        }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn required(&self, key: &str) -> Result<&'a Value, FieldError> {
        self.object.get(key).ok_or_else(|| FieldError::missing(self.path_of(key)))
    }

    /// The value, unless it is null or not there.
    fn non_null(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn text(&self, key: &str) -> Result<String, FieldError> {
        match self.required(key)? {
            Value::String(text) if !text.is_empty() => Ok(text.clone()),
            _ => Err(FieldError::invalid(self.path_of(key), "a text")),
        }
    }

    fn optional_text(&self, key: &str) -> Result<Option<String>, FieldError> {
        match self.non_null(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(FieldError::invalid(self.path_of(key), "a text or null")),
        }
    }

    fn digest(&self, key: &str) -> Result<String, FieldError> {
        let text = self.text(key)?;
        match text.parse::<Digest>() {
            Ok(_) => Ok(text),
            Err(_) => Err(FieldError::invalid(self.path_of(key), "a SHA-256 in lower-case hex")),
        }
    }

    fn list<T>(
        &self,
        key: &str,
        value: &'a Value,
        read: impl Fn(&JsonFields<'a>) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        let Value::Array(list) = value else {
            return Err(FieldError::invalid(self.path_of(key), "a list"));
        };
        let entries = list.iter().enumerate();
        entries
            .map(|(index, value)| read(&JsonFields::new(value, format!("{}[{index}]", self.path_of(key)))?))
            .collect()
    }

    fn optional_list<T>(
        &self,
        key: &str,
        read: impl Fn(&JsonFields<'a>) -> Result<T, FieldError>,
    ) -> Result<Option<Vec<T>>, FieldError> {
        self.non_null(key).map(|value| self.list(key, value, read)).transpose()
    }
}

fn parse_fields(whole: &JsonFields<'_>) -> Result<Lockfile, FieldError> {
    if whole.required("lockfile_version")?.as_u64() != Some(LOCKFILE_VERSION) {
        return Err(FieldError::invalid(
            "lockfile_version".to_owned(),
            "1, the only version this program knows",
        ));
    }
    let root = JsonFields::new(whole.required("root")?, "root".to_owned())?;
    Ok(Lockfile {
        lockfile_version: LOCKFILE_VERSION,
        generated_at: whole.text("generated_at")?,
        root: LockedTool {
            tool_id: root.text("tool_id")?,
            version: root.text("version")?,
            integrity: root.digest("integrity")?,
            provider_id: root.optional_text("provider_id")?,
            provider_version: root.optional_text("provider_version")?,
        },
        resolved_chain: whole.list("resolved_chain", whole.required("resolved_chain")?, |entry| {
            Ok(LockedElement {
                item_id: entry.text("item_id")?,
                space: entry.text("space")?,
                tool_type: entry.optional_text("tool_type")?,
                executor_id: entry.optional_text("executor_id")?,
                integrity: entry.digest("integrity")?,
                provider_id: entry.optional_text("provider_id")?,
                provider_version: entry.optional_text("provider_version")?,
            })
        })?,
        registry: None,
        verified_deps: whole.optional_list("verified_deps", |file| {
            Ok(LockedFile { path: file.text("path")?, integrity: file.digest("integrity")? })
        })?,
        project: whole.optional_text("project")?,
        dependencies: whole.optional_list("dependencies", |package| {
            Ok(LockedPackage {
                name: package.text("name")?,
                version: package.text("version")?,
                integrity: package.text("integrity")?,
            })
        })?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hash(text: &str) -> String {
        Digest::of(text.as_bytes()).to_hex()
    }

    fn example() -> Lockfile {
        Lockfile {
            lockfile_version: 1,
            generated_at: "2026-01-02T03:04:05.000000+00:00".to_owned(),
            root: LockedTool {
                tool_id: "demo/hello".to_owned(),
                version: "1.0.0".to_owned(),
                integrity: hash("tool"),
                provider_id: Some("project".to_owned()),
                provider_version: Some("1.0.0".to_owned()),
            },
            resolved_chain: vec![LockedElement {
                item_id: "demo/hello".to_owned(),
                space: "project".to_owned(),
                tool_type: Some("python".to_owned()),
                executor_id: None,
                integrity: hash("tool"),
                provider_id: None,
                provider_version: None,
            }],
            registry: None,
            verified_deps: None,
            project: None,
            dependencies: None,
        }
    }

    fn parse_value(value: &Value) -> Result<Lockfile, LockfileError> {
        parse(Path::new("x.lock.json"), value.to_string().as_bytes())
    }

    #[test]
    fn written_lockfile_round_trips() {
        let folder = tempfile::tempdir().expect("folder");
        let relative = Path::new("lockfiles/demo/hello@1.0.0.lock.json");
        assert_eq!(read(folder.path(), relative).expect("asked"), None);
        let path = write_new(folder.path(), relative, &example(), FileMode::Preserve).expect("written");
        assert_eq!(read(folder.path(), relative).expect("read"), Some(example()));
        let text = String::from_utf8(file::read_bounded(&path, 9999).expect("read").0).expect("text");
        let expected = format!(
            "{{\n  \"lockfile_version\": 1,\n  \"generated_at\": \"2026-01-02T03:04:05.000000+00:00\",\n  \"root\": {{\n    \"tool_id\": \"demo/hello\",\n    \"version\": \"1.0.0\",\n    \"integrity\": \"{0}\",\n    \"provider_id\": \"project\",\n    \"provider_version\": \"1.0.0\"\n  }},\n  \"resolved_chain\": [\n    {{\n      \"item_id\": \"demo/hello\",\n      \"space\": \"project\",\n      \"tool_type\": \"python\",\n      \"executor_id\": null,\n      \"integrity\": \"{0}\"\n    }}\n  ],\n  \"registry\": null,\n  \"verified_deps\": null\n}}\n",
            hash("tool")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let mut lockfile = example();
        lockfile.project = Some("/work".to_owned());
        lockfile.verified_deps = Some(vec![LockedFile { path: "a.py".to_owned(), integrity: hash("a") }]);
        lockfile.dependencies = Some(vec![LockedPackage {
            name: "left".to_owned(),
            version: "1".to_owned(),
            integrity: "sha512-x".to_owned(),
        }]);
        let mut value = serde_json::to_value(&lockfile).expect("JSON");
        value["later"] = json!({"a": 1});
        value["root"]["later"] = json!([1]);
        value["registry"] = json!({"url": "https://example.org"});
        assert_eq!(parse_value(&value).expect("read"), lockfile);
    }

    #[test]
    fn invalid_lockfile_names_the_field() {
        let good = serde_json::to_value(example()).expect("JSON");
        let cases: [(&str, Option<Value>, &str); 16] = [
            ("/lockfile_version", None, "lockfile_version"),
            ("/lockfile_version", Some(json!(2)), "lockfile_version"),
            ("/lockfile_version", Some(json!("1")), "lockfile_version"),
            ("/generated_at", None, "generated_at"),
            ("/root", None, "root"),
            ("/root", Some(json!([])), "root"),
            ("/root/tool_id", None, "root.tool_id"),
            ("/root/version", Some(json!(1)), "root.version"),
            ("/root/integrity", Some(json!("abc")), "root.integrity"),
            ("/root/provider_id", Some(json!(1)), "root.provider_id"),
            ("/resolved_chain", None, "resolved_chain"),
            ("/resolved_chain", Some(json!({})), "resolved_chain"),
            ("/resolved_chain/0", Some(json!("x")), "resolved_chain[0]"),
            ("/resolved_chain/0/integrity", None, "resolved_chain[0].integrity"),
            ("/resolved_chain/0/space", Some(json!("")), "resolved_chain[0].space"),
            ("/verified_deps", Some(json!([{"path": "a"}])), "verified_deps[0].integrity"),
        ];
        for (pointer, replacement, expected) in cases {
            let mut value = good.clone();
            match replacement {
                Some(replacement) => *value.pointer_mut(pointer).expect("field") = replacement,
                None => {
                    let (parent, key) = pointer.rsplit_once('/').expect("pointer");
                    value.pointer_mut(parent).and_then(Value::as_object_mut).expect("object").remove(key);
                }
            }
            match parse_value(&value) {
                Err(LockfileError::Corrupt { field, what, .. }) => {
                    assert_eq!(field.as_deref(), Some(expected), "{pointer}: {what}");
                    assert!(what.contains(expected), "{what}");
                }
                other => panic!("{pointer}: {other:?}"),
            }
        }
    }

    #[test]
    fn non_object_is_corrupt() {
        for bad in [&b""[..], b"{", b"null", b"[]", b"\"x\"", b"\xff\xfe", b"{}{}", &b"[".repeat(100_000)] {
            let result = parse(Path::new("x"), bad);
            assert!(matches!(result, Err(LockfileError::Corrupt { field: None, .. })), "{result:?}");
        }
    }

    #[test]
    fn links_pipes_and_huge_files_are_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside.lock.json"));
        file::create_dirs(&root, false).expect("folder");
        write(folder.path(), Path::new("outside.lock.json"), &example()).expect("written");
        std::os::unix::fs::symlink(&outside, root.join("out")).expect("link");
        std::os::unix::fs::symlink("nowhere", root.join("dangling")).expect("link");
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), rustix::fs::Mode::RWXU).expect("pipe");
        file::create_dirs(&root.join("folder"), false).expect("folder");
        let giant = std::fs::File::options().write(true).create_new(true).open(root.join("giant"));
        giant.expect("file").set_len(100 << 20).expect("length");
        let read = |name: &str| read(&root, Path::new(name));
        assert!(matches!(read("out"), Err(LockfileError::Read(ReadError::Escapes { .. }))));
        assert!(matches!(read("dangling"), Err(LockfileError::Corrupt { .. })));
        assert!(matches!(read("pipe"), Err(LockfileError::Read(ReadError::NotAFile { .. }))));
        assert!(matches!(read("folder"), Err(LockfileError::Read(ReadError::NotAFile { .. }))));
        assert!(matches!(read("giant"), Err(LockfileError::Read(ReadError::TooLarge { .. }))));
    }

    #[test]
    fn escaping_directory_is_not_written() {
        let folder = tempfile::tempdir().expect("folder");
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        file::create_dirs(&root, false).expect("folder");
        file::create_dirs(&outside, false).expect("folder");
        std::os::unix::fs::symlink(&outside, root.join("lockfiles")).expect("link");
        for relative in
            ["lockfiles/a.lock.json", "lockfiles/deep/a.lock.json", "../a.lock.json", "/tmp/a", ""]
        {
            assert!(write(&root, Path::new(relative), &example()).is_err(), "{relative}");
            assert!(
                write_new(&root, Path::new(relative), &example(), FileMode::Preserve).is_err(),
                "{relative}"
            );
        }
        assert_eq!(std::fs::read_dir(&outside).expect("list").count(), 0);
        assert_eq!(std::fs::read_dir(folder.path()).expect("list").count(), 2);
    }

    #[test]
    fn only_first_writer_wins() {
        let folder = tempfile::tempdir().expect("folder");
        let relative = Path::new("lockfiles/demo/hello@1.0.0.lock.json");
        let winners = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|number| {
                    let root = folder.path();
                    scope.spawn(move || {
                        let mut lockfile = example();
                        lockfile.project = Some(format!("/{number}"));
                        write_new(root, relative, &lockfile, FileMode::Preserve).is_ok()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).filter(|won| *won).count()
        });
        assert_eq!(winners, 1);
        assert!(read(folder.path(), relative).expect("read").is_some());
        let names = std::fs::read_dir(folder.path().join("lockfiles/demo")).expect("list").count();
        assert_eq!(names, 1);
    }
}
