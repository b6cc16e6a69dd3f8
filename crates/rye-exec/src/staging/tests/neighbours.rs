//! What lies beside a tool and around it: packages, and files that are not its own.

use super::*;

#[test]
fn verified_package_files_are_staged_too() {
    let mut bench = StagingFixture::new();
    bench.write("beside.py", "ok beside");
    bench.world.write("project/tools/__init__.py", "ok init");
    bench.world.write("project/tools/other/helper.py", "ok helper");
    bench.world.write("project/tools/other/evil.py", "evil");
    bench.package = Some(bench.world.project().join("tools"));
    let staged = bench.stage();
    let top = staged.tool_parent.clone();
    assert_eq!(staged.anchor_path, staged.tool_dir);
    assert_eq!(
        read_tree(&top),
        owned_pairs(&[
            ("__init__.py", "ok init"),
            ("other/", ""),
            ("other/helper.py", "ok helper"),
            ("pack/", ""),
            ("pack/beside.py", "ok beside"),
            ("pack/tool.py", "ok tool"),
        ])
    );
    let paths: Vec<&str> = staged.verified_deps.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["{package}/__init__.py", "{package}/other/helper.py", "beside.py"]);
    let evil = bench.world.project().join("tools/other/evil.py");
    assert_eq!(staged.notices, [format!("`{}` cannot be imported: not verified", evil.display())]);
    bench.write("worse.py", "unsigned");
    assert_eq!(bench.failures(), [("worse.py".to_owned(), "unsigned".to_owned())]);
}

#[test]
fn files_that_are_not_its_own_are_left_out() {
    let mut bench = StagingFixture::new();
    for name in ["own.py", "theirs.py", "theirs_too.py", "lib/own.py", "lib/theirs.py"] {
        bench.write(name, "ok");
    }
    bench.write("package.json", "{}");
    bench.write("theirs_broken.py", "not even signed");
    bench.anchor.lib = Some(bench.anchor.root.join("lib"));
    let is_own = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        !name.starts_with("theirs") && name != "package.json"
    };
    let staged = stage(&StagingRequest {
        cache: &bench.world.cache(),
        now: NOW,
        tool: &bench.tool,
        bytes: b"ok tool",
        anchor: &bench.anchor,
        dependencies: &bench.dependencies,
        package: None,
        is_importable: &is_own,
        verify: &verify,
        node_modules: None,
        copies_package_files: true,
        pins_package_files: true,
    })
    .expect("staged");
    let paths: Vec<&str> = staged.verified_deps.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["lib/own.py", "own.py", "{runtime_lib}/own.py"]);
    let names = read_tree(&staged.anchor_path).into_iter().map(|(name, _)| name);
    assert_eq!(names.collect::<Vec<_>>(), ["lib/", "lib/own.py", "own.py", "tool.py"]);
    assert_eq!(read_tree(&staged.runtime_lib.expect("a library")).len(), 1);
    assert!(staged.notices[0].contains(" and 3 more cannot be imported"), "{:?}", staged.notices);
}
