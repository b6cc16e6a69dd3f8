//! Applying a patch to a project: everything is checked before anything is written.

use std::path::Path;

use rye_engine::Result;
use rye_item::text::{join_first, one_line};

use super::content::{FileBytes, FileContent};
use super::patch::CheckoutPatch;
use super::refused;

/// Conflicts that are named.
const MAX_NAMED: usize = 5;

/// What applying a patch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Files that were written or removed.
    pub changed: Vec<String>,
    /// Files that were as the patch makes them already.
    pub unchanged: Vec<String>,
}

impl CheckoutPatch {
    /// Applies the patch below `project`. Nothing is written unless each file is as it was for the thread, or as the patch
    /// makes it.
    ///
    /// # Errors
    /// Which files are not, or that the system refuses.
    pub fn apply(&self, project: &Path) -> Result<ApplyReport> {
        let mut report = ApplyReport::default();
        let (mut conflicts, mut writes) = (Vec::new(), Vec::new());
        for change in &self.changes {
            let file = |content: &Option<FileContent>| content.as_ref().map(FileContent::to_file).transpose();
            let (before, after) = (file(&change.before)?, file(&change.after)?);
            match FileBytes::read(project, &change.path) {
                Ok(now) if now == after => report.unchanged.push(change.path.clone()),
                Ok(now) if now == before => writes.push((change.path.as_str(), after)),
                Ok(_) | Err(_) => conflicts.push(format!("`{}`", one_line(&change.path))),
            }
        }
        if !conflicts.is_empty() {
            let message = format!(
                "the patch does not apply: {} changed since the thread had them; nothing was written",
                join_first(&conflicts, MAX_NAMED)
            );
            return Err(refused(message)
                .detail("thread_id", self.thread.as_str())
                .hint(format!("merge it: rye thread patch {} | git apply --reject", self.thread)));
        }
        for (path, after) in writes {
            match after {
                Some(after) => after.write(project, path)?,
                None => lillux::file::remove_beneath(project, Path::new(path))?,
            }
            report.changed.push(path.to_owned());
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::thread_id::ThreadId;

    fn write(root: &Path, path: &str, bytes: &[u8], is_executable: bool) {
        FileBytes { bytes: bytes.to_vec(), is_executable }.write(root, path).expect("written");
    }

    fn id() -> ThreadId {
        ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id")
    }

    struct World {
        base: tempfile::TempDir,
        project: tempfile::TempDir,
    }

    fn world() -> World {
        let world = World {
            base: tempfile::tempdir().expect("a folder"),
            project: tempfile::tempdir().expect("a folder"),
        };
        for root in [world.base.path(), world.project.path()] {
            write(root, "src/a.txt", b"one\ntwo\n", false);
            write(root, "src/gone.txt", b"x\n", false);
            write(root, "bin/run", b"#!/bin/sh\n", false);
            write(root, "logo.bin", &[0, 159, 146], false);
            write(root, ".gitignore", b"target/\n", false);
        }
        world
    }

    fn change_project(project: &Path) {
        write(project, "src/a.txt", b"one\n2\n", false);
        write(project, "new/deep/b.txt", b"new\n", false);
        write(project, "bin/run", b"#!/bin/sh\n", true);
        write(project, "logo.bin", &[0, 1], false);
        write(project, "target/out.o", b"built", false);
        write(project, ".env", b"TOKEN=1", false);
        write(project, ".git/hooks/post-checkout", b"#!/bin/sh\n", true);
        lillux::file::remove(&project.join("src/gone.txt")).expect("removed");
    }

    fn collect(world: &World) -> CheckoutPatch {
        CheckoutPatch::collect(&id(), "snapshot".to_owned(), world.base.path(), world.project.path())
            .expect("collected")
    }

    #[test]
    fn patch_applies_to_the_same_files() {
        let world = world();
        change_project(world.project.path());
        let patch = collect(&world);
        let files: Vec<(&str, &str)> = patch.files().collect();
        assert_eq!(
            files,
            [
                ("bin/run", "changed"),
                ("logo.bin", "changed"),
                ("new/deep/b.txt", "added"),
                ("src/a.txt", "changed"),
                ("src/gone.txt", "removed"),
            ]
        );
        assert_eq!(patch.left_out, [(".env".to_owned(), "looks like a secret".to_owned())]);
        let patch = CheckoutPatch::from_bytes(&patch.to_bytes().expect("bytes")).expect("read");
        let diff = patch.to_diff().expect("a diff");
        assert!(
            diff.contains("diff --git a/src/a.txt b/src/a.txt\n--- a/src/a.txt\n+++ b/src/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
            "{diff}"
        );
        assert!(
            diff.contains("new file mode 100644\n--- /dev/null\n+++ b/new/deep/b.txt\n@@ -0,0 +1 @@\n+new\n"),
            "{diff}"
        );
        assert!(diff.contains("old mode 100644\nnew mode 100755\n"), "{diff}");
        assert!(diff.contains("Binary files a/logo.bin and b/logo.bin differ\n"), "{diff}");
        let report = patch.apply(world.base.path()).expect("applied");
        assert_eq!((report.changed.len(), report.unchanged.len()), (5, 0));
        assert_eq!(collect(&world).file_count(), 0, "the same files now");
        let again = patch.apply(world.base.path()).expect("applied");
        assert_eq!((again.changed.len(), again.unchanged.len()), (0, 5));
    }

    #[test]
    fn conflicting_patch_changes_nothing() {
        let world = world();
        change_project(world.project.path());
        let patch = collect(&world);
        write(world.base.path(), "src/a.txt", b"mine\n", false);
        std::os::unix::fs::symlink("/tmp", world.base.path().join("new")).expect("a link");
        let refused = patch.apply(world.base.path()).expect_err("refused").message;
        let expected = "the patch does not apply: `new/deep/b.txt`, `src/a.txt` changed since the thread had them; nothing was written";
        assert_eq!(refused, expected);
        assert!(world.base.path().join("src/gone.txt").exists());
    }

    #[test]
    fn patches_that_leave_the_project_are_refused() {
        let world = world();
        change_project(world.project.path());
        let whole: Value = serde_json::from_slice(&collect(&world).to_bytes().expect("bytes")).expect("JSON");
        for path in [
            "../x",
            "/etc/x",
            ".git/hooks/pre-commit",
            "a/.Git/config",
            ".ai/tools/x.py",
            ".env",
            "lockfiles/x",
        ] {
            let mut changed = whole.clone();
            changed["changes"][0]["path"] = json!(path);
            let refused =
                CheckoutPatch::from_bytes(changed.to_string().as_bytes()).expect_err("refused").message;
            assert!(refused.starts_with(&format!("the patch changes `{path}`, which ")), "{refused}");
        }
        let mut twice = whole.clone();
        twice["changes"][0]["path"] = json!("SRC/A.txt");
        let refused = CheckoutPatch::from_bytes(twice.to_string().as_bytes()).expect_err("refused").message;
        assert!(refused.ends_with("twice"), "{refused}");
    }

    #[test]
    fn links_made_by_tools_are_left_out() {
        let world = world();
        lillux::file::remove(&world.project.path().join("src/a.txt")).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", world.project.path().join("src/a.txt")).expect("a link");
        let patch = collect(&world);
        assert_eq!(patch.file_count(), 0);
        assert!(patch.left_out.iter().any(|(path, _)| path == "src/a.txt"), "{:?}", patch.left_out);
    }
}
