//! What a held folder lets through, and what not.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn setup() -> (tempfile::TempDir, Dir) {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path().join("root");
    crate::file::create_dirs(&root.join("sub"), false).expect("folders");
    crate::file::write_atomic(&folder.path().join("secret"), b"secret", FileMode::Preserve).expect("written");
    crate::file::write_atomic(&root.join("sub/in"), b"inside", FileMode::Preserve).expect("written");
    for (target, name) in
        [("../secret", "out"), ("/etc", "etc"), ("sub/in", "in"), ("sub", "folder"), ("loop", "loop")]
    {
        std::os::unix::fs::symlink(target, root.join(name)).expect("link");
    }
    let dir = Dir::open(&root).expect("a folder");
    (folder, dir)
}

#[test]
fn links_are_followed_inside_only() {
    let (_folder, root) = setup();
    let file = root.open_file(Path::new("folder/in")).expect("inside");
    assert_eq!(file.path, root.path().join("sub/in"));
    assert_eq!(root.open_dir(Path::new("folder")).expect("inside").path(), root.path().join("sub"));
    for path in ["out", "etc/passwd", "../secret", "/etc/passwd", "loop"] {
        let error = root.open_file(Path::new(path)).expect_err(path);
        assert!(matches!(error, DirError::Escapes { .. }), "{path}: {error}");
    }
    assert!(root.open_file(Path::new("none")).expect_err("absent").is_absent());
    assert!(matches!(root.open_file(Path::new("sub")), Err(DirError::NotAFile { .. })));
    assert!(matches!(root.open_child_file(OsStr::new("in")), Err(DirError::NotAFile { .. })));
    assert!(root.open_child_dir(OsStr::new("folder")).is_err());
}

#[test]
fn without_openat2_no_link_is_followed() {
    let (_folder, root) = setup();
    let open = |path: &str| root.resolve_by_name(Path::new(path), READ_FLAGS, "open");
    assert!(open("sub/in").is_ok());
    for path in ["in", "folder/in", "out", "etc/passwd", "../secret", "/etc/passwd"] {
        assert!(open(path).is_err(), "{path}");
    }
    assert!(root.resolve_by_name(Path::new("."), DIR_FLAGS, "open").is_ok());
}

#[test]
fn name_with_path_separator_is_refused() {
    let (_folder, root) = setup();
    for name in ["", ".", "..", "a/b", "/a", "a\0b"] {
        let name = OsStr::new(name);
        assert!(root.write_atomic(name, b"x", FileMode::Preserve, Durability::Renamed).is_err());
        assert!(root.create_dir(name).is_err() && root.status(name).is_err() && root.remove(name).is_err());
    }
    assert!(root.open_nearest_dir(Path::new("../x")).is_err());
}

#[test]
fn nearest_dir_returns_missing_names() {
    let (_folder, root) = setup();
    let (folder, rest) = root.open_nearest_dir(Path::new("folder/a/b")).expect("inside");
    assert_eq!((folder.path(), rest), (root.path().join("sub").as_path(), vec!["a".into(), "b".into()]));
    assert!(root.open_nearest_dir(Path::new("etc/none")).is_err());
    assert!(root.open_nearest_dir(Path::new("sub/in/none")).is_err());
}

#[test]
fn write_replaces_symlink_and_keeps_mode() {
    let (folder, root) = setup();
    root.write_atomic(OsStr::new("out"), b"new", FileMode::Preserve, Durability::Synced).expect("written");
    assert_eq!(crate::file::read_bounded(&folder.path().join("secret"), 99).expect("read").0, b"secret");
    assert_eq!(root.status(OsStr::new("out")).expect("status").expect("there").kind, DirEntryKind::File);
    let sub = root.open_dir(Path::new("sub")).expect("inside");
    crate::file::set_mode(&sub.path().join("in"), 0o750).expect("mode");
    sub.write_atomic(OsStr::new("in"), b"new", FileMode::Preserve, Durability::Renamed).expect("written");
    let metadata = sub.open_child_file(OsStr::new("in")).expect("file").metadata;
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o750);
    let (entries, is_complete) = sub.entries(9).expect("entries");
    assert_eq!(
        (entries, is_complete),
        (vec![DirEntry { name: "in".into(), kind: DirEntryKind::File }], true)
    );
    assert_eq!(
        root.entries(1).map(|(entries, is_complete)| (entries.len(), is_complete)).expect("entries"),
        (1, false)
    );
}

#[test]
fn a_failed_write_leaves_nothing() {
    let (_folder, root) = setup();
    assert!(root.write_atomic(OsStr::new("sub"), b"x", FileMode::Preserve, Durability::Renamed).is_err());
    let (entries, _) = root.entries(99).expect("entries");
    assert!(entries.iter().all(|entry| !entry.name.as_encoded_bytes().ends_with(b".tmp")), "{entries:?}");
}

#[test]
fn removed_file_has_no_path() {
    let (_folder, root) = setup();
    let descriptor = root.resolve(Path::new("sub/in"), READ_FLAGS, "open").expect("open");
    crate::file::remove(&root.path().join("sub/in")).expect("removed");
    assert!(matches!(path_of_fd(&descriptor), Err(DirError::Moved { .. })));
    crate::file::write_atomic(&root.path().join("sub/x (deleted)"), b"", FileMode::Preserve)
        .expect("written");
    assert!(root.open_file(Path::new("sub/x (deleted)")).is_ok());
}

#[test]
fn files_move_and_swap_without_loss() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Dir::open(root.path()).expect("opened");
    let inner = folder.create_dir(OsStr::new("inner")).expect("made");
    let name = |text: &'static str| OsStr::new(text);
    let text = |path: &str| {
        let (bytes, _) = crate::file::read_bounded(&root.path().join(path), 99).expect("a file");
        String::from_utf8(bytes).expect("text")
    };
    folder.write_new(name("a"), b"a").expect("written");
    inner.write_new(name("b"), b"b").expect("written");
    assert!(folder.write_new(name("a"), b"other").is_err());
    assert_eq!(text("a"), "a");
    assert!(folder.move_to(name("a"), &inner, name("b")).is_err(), "nothing is moved over another");
    folder.exchange(name("a"), &inner, name("b")).expect("exchanged");
    assert_eq!((text("a"), text("inner/b")), ("b".to_owned(), "a".to_owned()));
    assert!(!folder.remove_empty_dir(name("inner")).expect("asked"));
    assert!(!folder.remove_empty_dir(name("a")).expect("asked"));
    inner.move_to(name("b"), &folder, name("c")).expect("moved");
    assert!(folder.remove_empty_dir(name("inner")).expect("asked"));
    assert!(folder.remove_empty_dir(name("inner")).expect("asked again"));
    assert_eq!(text("c"), "a");
    folder.sync_file_system().expect("synced");
    for bad in ["", "..", "x/y"] {
        assert!(folder.move_to(name("a"), &folder, OsStr::new(bad)).is_err(), "{bad}");
        assert!(folder.remove_empty_dir(OsStr::new(bad)).is_err(), "{bad}");
    }
}
