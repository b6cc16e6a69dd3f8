use std::os::unix::fs::symlink;

use super::*;

const GOOD: &str = "from importlib.metadata import version\nfrom pathlib import Path\n\n\ndef get_bundle() -> dict:\n    return {\n        \"bundle_id\": \"my-tools\",\n        \"version\": version(\"My.Tools\"),\n        \"root_path\": Path(__file__).parent,\n        \"categories\": [\"my/tools\"],\n    }\n";

/// A folder of packages with one package in it.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let world = Self { folder: tempfile::tempdir().expect("a folder") };
        world.write(
            "my_tools-1.2.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: my-tools\nVersion: 1.2.0\n\nName: other\n",
        );
        world.write(
            "my_tools-1.2.0.dist-info/entry_points.txt",
            "[console_scripts]\nx = y:z\n\n[rye.bundles]\n# words\nmy-tools = my_tools.bundle:get_bundle\n",
        );
        world.write("my_tools/bundle.py", GOOD);
        world.write("my_tools/.ai/tools/my/tools/hello.py", "x = 1\n");
        world
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("site-packages")
    }

    fn write(&self, relative: &str, text: &str) {
        let path = self.path().join(relative);
        lillux::file::create_dirs(path.parent().expect("a folder"), false).expect("folders");
        lillux::file::write_atomic(&path, text.as_bytes(), lillux::file::FileMode::Preserve).expect("a file");
    }

    fn find(&self) -> PythonBundles {
        find_bundles(&[self.path()], &mut WatchSet::default())
    }

    /// The one reason why nothing was found, without the folder.
    fn reason(&self) -> String {
        let found = self.find();
        assert_eq!(found.bundles, []);
        assert_eq!(found.notices.len(), 1, "{:?}", found.notices);
        found.notices[0].replace(&format!("{}/", self.path().display()), "")
    }

    /// The reason why a module gives no bundle.
    fn reason_of_module(&self, text: &str) -> String {
        self.write("my_tools/bundle.py", text);
        self.reason()
    }
}

#[test]
fn package_with_bundle_is_found() {
    let world = World::new();
    let found = world.find();
    assert_eq!(found.notices, Vec::<String>::new());
    let expected = ConfiguredBundle {
        path: world.path().join("my_tools"),
        id: Some("my-tools".to_owned()),
        categories: Some(vec!["my/tools".to_owned()]),
        version: Some("1.2.0".to_owned()),
        package: Some("my-tools 1.2.0".to_owned()),
    };
    assert_eq!(found.bundles, [expected]);
}

#[test]
fn interpreter_venv_and_folder_find_same_packages() {
    let world = World::new();
    let environment = world.folder.path().join("venv");
    let library = environment.join("lib/python3.11");
    lillux::file::create_dirs(&library, false).expect("folders");
    lillux::file::create_dirs(&environment.join("bin"), false).expect("folders");
    lillux::file::rename_dir(&world.path(), &library.join("site-packages")).expect("moved");
    symlink("lib", environment.join("lib64")).expect("a link");
    let interpreter = environment.join("bin/python");
    symlink("/bin/sh", &interpreter).expect("a link");
    lillux::file::write_atomic(&environment.join("pyvenv.cfg"), b"", lillux::file::FileMode::Preserve)
        .expect("a file");
    for path in [environment.clone(), interpreter, library.join("site-packages")] {
        let found = find_bundles(std::slice::from_ref(&path), &mut WatchSet::default());
        assert_eq!(found.bundles.len(), 1, "{}: {:?}", path.display(), found.notices);
    }
}

#[test]
fn path_without_packages_is_reported() {
    let world = World::new();
    for (place, reason) in [
        (PathBuf::from("relative"), "it is not an absolute path"),
        (world.folder.path().join("absent"), "it is missing"),
        (world.path().join("my_tools"), "not an interpreter, virtual environment or folder of packages"),
    ] {
        let found = find_bundles(&[place], &mut WatchSet::default());
        assert!(found.bundles.is_empty() && found.notices[0].ends_with(reason), "{:?}", found.notices);
    }
}

#[test]
fn editable_install_is_found_through_pth() {
    let world = World::new();
    let source = world.folder.path().join("checkout/src");
    lillux::file::create_dirs(&source, false).expect("folders");
    lillux::file::rename_dir(&world.path().join("my_tools"), &source.join("my_tools")).expect("moved");
    assert_eq!(
        world.reason(),
        "a Python bundle is left out: `my_tools-1.2.0.dist-info/entry_points.txt:6`: its module is not found; \
         an editable install is, if a `.pth` file names its folder"
    );
    world.write("_my_tools.pth", &format!("# words\nimport os\n{}\n", source.display()));
    assert_eq!(world.find().bundles[0].path, source.join("my_tools"));
}

#[test]
fn unsupported_code_is_reported_with_line() {
    let world = World::new();
    let swapped = |from: &str, to: &str| GOOD.replace(from, to);
    for (text, reason) in [
        (
            swapped("\"my-tools\"", "os.getenv(\"X\")"),
            "`my_tools/bundle.py:7`: the value of `bundle_id` is not understood",
        ),
        (swapped("\"my-tools\"", "\"../x\""), "`my_tools/bundle.py:7`: "),
        (swapped("\"my-tools\"", "3"), "`my_tools/bundle.py:7`: `bundle_id` is not a string"),
        (swapped("My.Tools", "absent"), "`my_tools/bundle.py:8`: the value of `version` is not understood"),
        (
            swapped("Path(__file__).parent,", "Path(__file__).parent.parent,"),
            "`my_tools/bundle.py:9`: `root_path` is outside its package",
        ),
        (
            swapped("Path(__file__).parent,", "\"/etc\","),
            "`my_tools/bundle.py:9`: `root_path` is outside its package",
        ),
        (
            swapped("Path(__file__).parent,", "\"my_tools\","),
            "`my_tools/bundle.py:9`: `root_path` is outside its package",
        ),
        (
            swapped("Path(__file__).parent,", "Path(__file__).parent / \"absent\","),
            "`my_tools/bundle.py:9`: `root_path` holds no `.ai` folder",
        ),
        (
            swapped("[\"my/tools\"]", "[\"../x\"]"),
            "`my_tools/bundle.py:10`: invalid category: not a prefix of ids",
        ),
        (swapped("[\"my/tools\"]", "\"my\""), "`my_tools/bundle.py:10`: `categories` is not a list"),
        (swapped("get_bundle", "other"), "`my_tools/bundle.py:1`: `get_bundle` is not defined exactly once"),
        (
            swapped("    return", "    import os\n    return"),
            "`my_tools/bundle.py:6`: only a single `return` of a dictionary is understood here",
        ),
        (
            swapped("        \"bundle_id\": \"my-tools\",\n", ""),
            "`my_tools/bundle.py`: `bundle_id` is missing",
        ),
        (format!("{GOOD}{}", "#".repeat(300 << 10)), "`my_tools/bundle.py`: "),
    ] {
        let found = world.reason_of_module(&text);
        assert!(found.starts_with(&format!("a Python bundle is left out: {reason}")), "{found}");
    }
}

#[test]
fn links_cannot_escape_a_package() {
    let world = World::new();
    let outside = world.folder.path().join("outside");
    lillux::file::create_dirs(&outside.join(".ai"), false).expect("folders");
    symlink(&outside, world.path().join("my_tools/linked")).expect("a link");
    let text = GOOD.replace("Path(__file__).parent,", "Path(__file__).parent / \"linked\",");
    assert!(world.reason_of_module(&text).ends_with("`root_path` is reached through a link"));
    world.write("my_tools/bundle.py", GOOD);
    lillux::file::remove_tree(&world.path().join("my_tools/.ai")).expect("removed");
    symlink(outside.join(".ai"), world.path().join("my_tools/.ai")).expect("a link");
    assert!(world.reason().ends_with("`root_path` is reached through a link"));
    let module = world.path().join("my_tools/bundle.py");
    lillux::file::remove(&module).expect("removed");
    lillux::file::write_atomic(&outside.join("bundle.py"), GOOD.as_bytes(), lillux::file::FileMode::Preserve)
        .expect("a file");
    symlink(outside.join("bundle.py"), &module).expect("a link");
    assert!(world.reason().starts_with("a Python bundle is left out: `my_tools/bundle.py`: "));
}

#[test]
fn top_level_module_has_no_package() {
    let world = World::new();
    world.write("single.py", GOOD);
    world.write("my_tools-1.2.0.dist-info/entry_points.txt", "[rye.bundles]\na = single:get_bundle\n");
    assert!(world.reason().ends_with("`root_path` is outside its package"));
}

#[test]
fn invalid_entry_points_are_reported() {
    let world = World::new();
    for point in [
        "my_tools.bundle",
        "../evil:get_bundle",
        "my_tools/bundle:get_bundle",
        "a..b:c",
        ":get_bundle",
        "a:b.c",
        "/etc/x:y",
        "a:",
    ] {
        world.write("my_tools-1.2.0.dist-info/entry_points.txt", &format!("[rye.bundles]\na = {point}\n"));
        let reason = world.reason();
        assert!(reason.contains("entry_points.txt:2`: it "), "{point}: {reason}");
    }
}

#[test]
fn entry_point_extras_are_ignored() {
    let world = World::new();
    world.write(
        "my_tools-1.2.0.dist-info/entry_points.txt",
        "[ rye.bundles ]\na= my_tools.bundle : get_bundle [extra]\n",
    );
    assert_eq!(world.find().bundles.len(), 1);
}

#[test]
fn changes_are_detected() {
    let world = World::new();
    let read = || {
        let mut watch_set = WatchSet::default();
        let _ = find_bundles(&[world.path()], &mut watch_set);
        watch_set
    };
    let before = read();
    assert!(before.is_unchanged());
    world.write("my_tools/bundle.py", &GOOD.replace("my/tools", "my"));
    assert!(!before.is_unchanged());
    let before = read();
    world.write("other-1.0.dist-info/entry_points.txt", "[rye.bundles]\n");
    assert!(!before.is_unchanged());
}
