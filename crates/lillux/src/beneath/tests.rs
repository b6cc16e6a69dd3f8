//! What a held folder lets through, and what not.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn world() -> (tempfile::TempDir, Folder) {
    let folder = tempfile::tempdir().expect("folder");
    let root = folder.path().join("root");
    crate::file::create_folders(&root.join("sub"), false).expect("folders");
    crate::file::write_atomic(&folder.path().join("secret"), b"secret", Mode::Kept).expect("written");
    crate::file::write_atomic(&root.join("sub/in"), b"inside", Mode::Kept).expect("written");
    for (target, name) in
        [("../secret", "out"), ("/etc", "etc"), ("sub/in", "in"), ("sub", "folder"), ("loop", "loop")]
    {
        std::os::unix::fs::symlink(target, root.join(name)).expect("link");
    }
    let held = Folder::open(&root).expect("a folder");
    (folder, held)
}

#[test]
fn links_are_followed_inside_only() {
    let (_folder, root) = world();
    let file = root.file(Path::new("folder/in")).expect("inside");
    assert_eq!(file.path, root.path().join("sub/in"));
    assert_eq!(root.folder(Path::new("folder")).expect("inside").path(), root.path().join("sub"));
    for path in ["out", "etc/passwd", "../secret", "/etc/passwd", "loop"] {
        let error = root.file(Path::new(path)).expect_err(path);
        assert!(matches!(error, BeneathError::Escapes { .. }), "{path}: {error}");
    }
    assert!(root.file(Path::new("none")).expect_err("absent").is_absent());
    assert!(matches!(root.file(Path::new("sub")), Err(BeneathError::NotAFile { .. })));
    assert!(matches!(root.child_file(OsStr::new("in")), Err(BeneathError::NotAFile { .. })));
    assert!(root.child_folder(OsStr::new("folder")).is_err());
}

#[test]
fn without_openat2_no_link_is_followed() {
    let (_folder, root) = world();
    let open = |path: &str| root.resolve_by_name(Path::new(path), READ, "open");
    assert!(open("sub/in").is_ok());
    for path in ["in", "folder/in", "out", "etc/passwd", "../secret", "/etc/passwd"] {
        assert!(open(path).is_err(), "{path}");
    }
    assert!(root.resolve_by_name(Path::new("."), FOLDER, "open").is_ok());
}

#[test]
fn a_name_with_a_path_in_it_is_refused() {
    let (_folder, root) = world();
    for name in ["", ".", "..", "a/b", "/a", "a\0b"] {
        let name = OsStr::new(name);
        assert!(root.write_atomic(name, b"x", Mode::Kept, Durability::Renamed).is_err());
        assert!(root.make_folder(name).is_err() && root.status(name).is_err() && root.remove(name).is_err());
    }
    assert!(root.nearest_folder(Path::new("../x")).is_err());
}

#[test]
fn the_nearest_folder_says_what_is_missing() {
    let (_folder, root) = world();
    let (folder, rest) = root.nearest_folder(Path::new("folder/a/b")).expect("inside");
    assert_eq!((folder.path(), rest), (root.path().join("sub").as_path(), vec!["a".into(), "b".into()]));
    assert!(root.nearest_folder(Path::new("etc/none")).is_err());
    assert!(root.nearest_folder(Path::new("sub/in/none")).is_err());
}

#[test]
fn a_write_replaces_a_link_itself_and_keeps_a_mode() {
    let (folder, root) = world();
    root.write_atomic(OsStr::new("out"), b"new", Mode::Kept, Durability::Synced).expect("written");
    assert_eq!(crate::file::read_bounded(&folder.path().join("secret"), 99).expect("read").0, b"secret");
    assert_eq!(root.status(OsStr::new("out")).expect("status").expect("there").kind, Kind::File);
    let sub = root.folder(Path::new("sub")).expect("inside");
    crate::file::set_mode(&sub.path().join("in"), 0o750).expect("mode");
    sub.write_atomic(OsStr::new("in"), b"new", Mode::Kept, Durability::Renamed).expect("written");
    let metadata = sub.child_file(OsStr::new("in")).expect("file").metadata;
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o750);
    let (entries, is_complete) = sub.entries(9).expect("entries");
    assert_eq!((entries, is_complete), (vec![Entry { name: "in".into(), kind: Kind::File }], true));
    assert_eq!(
        root.entries(1).map(|(entries, is_complete)| (entries.len(), is_complete)).expect("entries"),
        (1, false)
    );
}

#[test]
fn a_failed_write_leaves_nothing() {
    let (_folder, root) = world();
    assert!(root.write_atomic(OsStr::new("sub"), b"x", Mode::Kept, Durability::Renamed).is_err());
    let (entries, _) = root.entries(99).expect("entries");
    assert!(entries.iter().all(|entry| !entry.name.as_encoded_bytes().ends_with(b".tmp")), "{entries:?}");
}

#[test]
fn what_was_removed_has_no_path() {
    let (_folder, root) = world();
    let descriptor = root.resolve(Path::new("sub/in"), READ, "open").expect("open");
    crate::file::remove(&root.path().join("sub/in")).expect("removed");
    assert!(matches!(real_path(&descriptor), Err(BeneathError::Moved { .. })));
    crate::file::write_atomic(&root.path().join("sub/x (deleted)"), b"", Mode::Kept).expect("written");
    assert!(root.file(Path::new("sub/x (deleted)")).is_ok());
}

#[test]
fn files_move_and_change_places_without_losing_one() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path()).expect("opened");
    let inner = folder.make_folder(OsStr::new("inner")).expect("made");
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
    assert!(!folder.remove_empty_folder(name("inner")).expect("asked"));
    assert!(!folder.remove_empty_folder(name("a")).expect("asked"));
    inner.move_to(name("b"), &folder, name("c")).expect("moved");
    assert!(folder.remove_empty_folder(name("inner")).expect("asked"));
    assert!(folder.remove_empty_folder(name("inner")).expect("asked again"));
    assert_eq!(text("c"), "a");
    folder.sync_file_system().expect("synced");
    for bad in ["", "..", "x/y"] {
        assert!(folder.move_to(name("a"), &folder, OsStr::new(bad)).is_err(), "{bad}");
        assert!(folder.remove_empty_folder(OsStr::new(bad)).is_err(), "{bad}");
    }
}
