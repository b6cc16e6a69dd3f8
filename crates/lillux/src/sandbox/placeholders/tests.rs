//! Placeholders of several runs.

use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use super::unchanged::{MIN_SETTLED_AGE, was_seen};
use super::*;

fn names(root: &Path) -> Vec<ReservedName> {
    let name = |path: &str, content| ReservedName { path: root.join(path), content };
    vec![
        name(".vscode", PlaceholderContent::Folder),
        name(".mcp.json", PlaceholderContent::File("{}".to_owned())),
        name(".git/config", PlaceholderContent::File(String::new())),
        name(".git/hooks", PlaceholderContent::Folder),
    ]
}

fn entries(root: &Path) -> Vec<String> {
    let entries = root.read_dir().expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut entries: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    entries.sort();
    entries
}

#[test]
fn placeholders_last_as_long_as_the_last_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    let acquire = || PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    let (first, second) = (acquire(), acquire());
    assert_eq!(first.placeholders, second.placeholders);
    assert_eq!(entries(&root), [".git", ".mcp.json", ".vscode"]);
    drop(first);
    assert_eq!(entries(&root), [".git", ".mcp.json", ".vscode"]);
    drop(second);
    assert_eq!(entries(&root), Vec::<String>::new());
}

#[test]
fn runs_without_common_record_keep_placeholders() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("project");
    std::fs::create_dir_all(root.join("inner")).expect("folders");
    let acquire = |records: &str, of: &Path| {
        let records = folder.path().join(records);
        PlaceholderGuard::acquire(&records, of, &names(&root)).expect("placeholders")
    };
    // Two caches, and two projects that protect the same names.
    for (first, second) in [(("a", "project"), ("b", "project")), (("a", "project"), ("a", "project/inner"))]
    {
        let one = acquire(first.0, &folder.path().join(first.1));
        let other = acquire(second.0, &folder.path().join(second.1));
        drop(one);
        assert_eq!(entries(&root), [".git", ".mcp.json", ".vscode", "inner"]);
        drop(other);
        // What the second run found was not its own to remove: the next run of the first does.
        drop(acquire(first.0, &folder.path().join(first.1)));
        assert_eq!(entries(&root), ["inner"]);
    }
}

#[test]
fn names_that_exist_are_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir_all(root.join(".git/hooks")).expect("folders");
    file::replace_unsynced(&root.join(".mcp.json"), b"mine").expect("a file");
    let guard = PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    assert_eq!(guard.existing, [root.join(".mcp.json"), root.join(".git/hooks")]);
    assert_eq!(guard.placeholders, [root.join(".vscode"), root.join(".git/config")]);
    drop(guard);
    assert_eq!(entries(&root), [".git", ".mcp.json"]);
    assert_eq!(entries(&root.join(".git")), ["hooks"]);
}

#[test]
fn names_below_existing_name_are_reserved() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir_all(root.join("worktrees/one")).expect("folders");
    file::replace_unsynced(&root.join("worktrees/one/commondir"), b"..").expect("a file");
    let name = |path: &str, content| ReservedName { path: root.join(path), content };
    let names = [
        name("worktrees", PlaceholderContent::Folder),
        name("worktrees/one/commondir", PlaceholderContent::File(String::new())),
        name("absent/one", PlaceholderContent::Folder),
        name("absent/two", PlaceholderContent::Folder),
    ];
    let guard = PlaceholderGuard::acquire(&records, &root, &names).expect("placeholders");
    assert_eq!(guard.existing, [root.join("worktrees"), root.join("worktrees/one/commondir")]);
    assert_eq!(guard.placeholders, [root.join("absent")]);
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    let mut crashed = PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    // The locks go with the process, and nothing else happens.
    crashed.held = HeldFiles::default();
    drop(crashed.locks.take());
    assert_eq!(entries(&root), [".git", ".mcp.json", ".vscode"]);
    drop(PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders"));
    assert_eq!(entries(&root), Vec::<String>::new());
}

#[test]
fn unreadable_name_is_not_treated_as_absent() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    // Root can read every folder, so the test uses a loop of links, which no user can resolve.
    std::os::unix::fs::symlink(".git", root.join(".git")).expect("a link");
    let refused = PlaceholderGuard::acquire(&records, &root, &names(&root));
    assert!(refused.is_err_and(|error| error.to_string().contains("cannot be looked at")));
    assert_eq!(entries(&root), [".git"]);
}

fn set_mode(path: &Path, mode: u32) {
    file::set_mode(path, mode).expect("a mode");
}

/// Does something without what lets root enter any folder.
fn as_ordinary_user(work: impl FnOnce() + Send + 'static) {
    let run = move || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        if let Ok(mut sets) = capabilities(None) {
            sets.effective &= !(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, sets).expect("fewer capabilities");
        }
        work();
    };
    std::thread::spawn(run).join().expect("done");
}

#[test]
fn folders_closed_by_a_run_keep_no_placeholder() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir_all(root.join(".git")).expect("folders");
    let shown = root.clone();
    as_ordinary_user(move || {
        for (name, mode) in [("", 0o000), (".git", 0o000), ("", 0o555), (".git", 0o111)] {
            let guard = PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
            assert_eq!(guard.placeholders.len(), 4);
            set_mode(&root.join(name), mode);
            drop(guard);
            assert_eq!(leftovers(&records, &root), Vec::<PathBuf>::new());
            assert_eq!((entries(&root), entries(&root.join(".git"))), (vec![".git".to_owned()], Vec::new()));
        }
    });
    assert_eq!(entries(&shown), [".git"]);
}

#[test]
fn placeholder_out_of_reach_is_removed_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    as_ordinary_user(move || {
        let mut crashed = PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
        assert_eq!(leftovers(&records, &root), Vec::<PathBuf>::new());
        crashed.held = HeldFiles::default();
        drop(crashed.locks.take());
        set_mode(&root, 0o000);
        let left = leftovers(&records, &root);
        assert_eq!(left.len(), 3);
        let refused = PlaceholderGuard::acquire(&records, &root, &names(&root));
        assert!(refused.is_err_and(|error| error.to_string().contains("cannot be looked at")));
        assert_eq!(leftovers(&records, &root), left);
        set_mode(&root, 0o755);
        drop(PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders"));
        assert_eq!(entries(&root), Vec::<String>::new());
    });
}

#[test]
fn placeholder_changed_by_user_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    let guard = PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    file::replace_unsynced(&root.join(".mcp.json"), b"mine").expect("a file");
    file::replace_unsynced(&root.join(".vscode/settings.json"), b"mine").expect("a file");
    drop(guard);
    assert_eq!(entries(&root), [".mcp.json", ".vscode"]);
}

#[test]
fn next_run_uses_the_same_files_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    let acquire = || PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    let inodes = || [".vscode", ".mcp.json"].map(|name| root.join(name).metadata().expect("a file").ino());
    let held = acquire();
    let first = inodes();
    drop(held);
    assert_eq!(entries(&root), Vec::<String>::new());
    let held = acquire();
    assert_eq!(inodes(), first);
    drop(held);
}

#[test]
fn remembered_placeholder_changed_by_user_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    let acquire = || PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    let held = acquire();
    for name in [".vscode", ".mcp.json"] {
        let opened = File::open(root.join(name)).expect("a placeholder");
        let long_ago = SystemTime::UNIX_EPOCH + MIN_SETTLED_AGE;
        opened.set_modified(long_ago).expect("its time");
    }
    drop(held);
    let held = acquire();
    let is_known = |name: &str, content: &PlaceholderContent| {
        was_seen(&root.join(name).symlink_metadata().expect("a placeholder"), content)
    };
    assert!(is_known(".vscode", &PlaceholderContent::Folder));
    assert!(is_known(".mcp.json", &PlaceholderContent::File("{}".to_owned())));
    file::replace_unsynced(&root.join(".mcp.json"), b"[]").expect("a file");
    file::replace_unsynced(&root.join(".vscode/settings.json"), b"mine").expect("a file");
    drop(held);
    assert_eq!(entries(&root), [".mcp.json", ".vscode"]);
}

#[test]
fn changed_file_aside_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    let acquire = || PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    drop(acquire());
    let record = records.join(Digest::of(root.as_os_str().as_encoded_bytes()).short());
    for entry in record.with_extension("aside").read_dir().expect("a folder") {
        let path = entry.expect("an entry").path();
        let path = if path.is_dir() { path.join("planted") } else { path };
        file::replace_unsynced(&path, b"planted").expect("a file");
    }
    let held = acquire();
    assert_eq!(file::read_bounded(&root.join(".mcp.json"), 64).expect("a file").0, b"{}");
    assert_eq!(entries(&root.join(".vscode")), Vec::<String>::new());
    drop(held);
    assert_eq!(entries(&root), Vec::<String>::new());
}

#[test]
fn empty_folder_of_the_user_stays_between_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, records) = (folder.path().join("project"), folder.path().join("records"));
    std::fs::create_dir(&root).expect("a folder");
    let acquire = || PlaceholderGuard::acquire(&records, &root, &names(&root)).expect("placeholders");
    drop(acquire());
    std::fs::create_dir(root.join(".vscode")).expect("a folder");
    drop(acquire());
    assert_eq!(entries(&root), [".vscode"]);
}
