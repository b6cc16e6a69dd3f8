//! Where items live, from outside: the bundles that the build has sealed into the binary.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod embedded;

use std::path::Path;

/// A test file that nobody declares would never run; one beside this folder would be another binary.
#[test]
fn every_file_of_this_folder_is_declared() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let files_of = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("test folder");
        let names = entries.map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"));
        names.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned)).collect()
    };
    let source = include_str!("main.rs");
    let is_declared =
        |name: &String| name == "main" || source.lines().any(|line| line == format!("mod {name};"));
    let forgotten: Vec<String> =
        files_of(&folder.join("main")).into_iter().filter(|name| !is_declared(name)).collect();
    assert_eq!(forgotten, Vec::<String>::new());
    assert_eq!(files_of(&folder), Vec::<String>::new());
}
