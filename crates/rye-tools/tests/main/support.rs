//! A small project, and calls into it.

use std::path::{Path, PathBuf};

use lillux::CancelToken;
use rye_exec::NativeError;
use rye_exec::native::{NativeCall, ToolAccess};
use rye_item::Space;
use serde_json::{Map, Value};

pub struct TestProject {
    folder: tempfile::TempDir,
    pub access: ToolAccess,
    pub cancel: CancelToken,
}

impl TestProject {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::create_dir(folder.path().join("project")).expect("folder");
        let access = ToolAccess { write: vec![folder.path().join("project")], ..ToolAccess::default() };
        Self { folder, access, cancel: CancelToken::new().expect("cancel") }
    }

    pub fn project(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    pub fn outside(&self) -> &Path {
        self.folder.path()
    }

    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    pub fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.project().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, bytes).expect("written");
    }

    pub fn read(&self, path: &str) -> String {
        String::from_utf8(std::fs::read(self.project().join(path)).expect("read")).expect("text")
    }

    pub fn symlink(&self, target: impl AsRef<Path>, path: &str) {
        std::os::unix::fs::symlink(target, self.project().join(path)).expect("link");
    }

    pub fn call(&self, name: &str, parameters: Value) -> Result<Value, NativeError> {
        let tool = rye_tools::all().into_iter().find(|tool| tool.name() == name).expect("a tool");
        let parameters: Map<String, Value> = parameters.as_object().expect("an object").clone();
        tool.call(&NativeCall {
            parameters: &parameters,
            config: &Map::new(),
            resolved_config: None,
            space: &Space::Project,
            project: &self.project(),
            cache: &self.cache(),
            access: &self.access,
            cancel: &self.cancel,
            now: 1_774_961_999,
            thread: None,
        })
    }

    pub fn ok(&self, name: &str, parameters: Value) -> Value {
        match self.call(name, parameters) {
            Ok(answer) => answer,
            Err(error) => panic!("{error}: {:?}", error.data),
        }
    }

    /// Text and id of every line, as a read shows them.
    pub fn lines(&self, path: &str) -> Vec<(String, String)> {
        let answer = self.ok("file_system.read", serde_json::json!({"path": path}));
        answer["content"].as_str().expect("content").lines().map(split_line).collect()
    }
}

/// `12 Labc|text` → id and text.
pub fn split_line(line: &str) -> (String, String) {
    let (head, text) = line.split_once('|').expect("a numbered line");
    (head.split_once(' ').expect("an id").1.to_owned(), text.to_owned())
}
