//! Staging against changed caches, links, racing writers and hostile names.

mod neighbours;

use std::cell::RefCell;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use lillux::file::FileMode;
use rye_test::TestContext;
use serde_json::{Value, json};

use super::*;

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 24 * 60 * 60;

/// Accepts what starts with `ok`.
fn verify(path: &Path, _relative: &str) -> Result<VerifiedFile, String> {
    let (bytes, _) = file::read_bounded(path, 1 << 20).map_err(|error| error.to_string())?;
    if bytes.starts_with(b"ok") { Ok(fully_covered(bytes)) } else { Err("unsigned".to_owned()) }
}

/// A file of which every byte is covered.
fn fully_covered(bytes: Vec<u8>) -> VerifiedFile {
    VerifiedFile { integrity: Digest::of(&bytes), covered: bytes }
}

fn python() -> ImportRules {
    let config = json!({"enabled": true, "extensions": [".py", "yaml"]});
    ImportRules::from_config(Some(&config)).expect("dependencies")
}

fn inactive_anchor(root: &Path) -> Anchor {
    Anchor { is_active: false, root: root.to_owned(), lib: None, cwd: None, env_paths: Vec::new() }
}

struct StagingFixture {
    world: TestContext,
    anchor: Anchor,
    dependencies: ImportRules,
    tool: PathBuf,
    now: u64,
    package: Option<PathBuf>,
    modules: Option<PathBuf>,
}

impl StagingFixture {
    fn new() -> Self {
        let world = TestContext::new();
        let tool = world.write("project/tools/pack/tool.py", "ok tool");
        let anchor = Anchor { is_active: true, ..inactive_anchor(tool.parent().expect("folder")) };
        Self { world, anchor, dependencies: python(), tool, now: NOW, package: None, modules: None }
    }

    fn stage_with(&self, bytes: &[u8], verify: &VerifyFile<'_>) -> Result<StagedTool, StagingError> {
        stage(&StagingRequest {
            cache: &self.world.cache(),
            now: self.now,
            tool: &self.tool,
            bytes,
            anchor: &self.anchor,
            dependencies: &self.dependencies,
            package: self.package.clone(),
            is_importable: &|_| true,
            verify,
            node_modules: self.modules.clone(),
            copies_package_files: self.modules.is_some(),
            pins_package_files: self.modules.is_some(),
        })
    }

    fn stage(&self) -> StagedTool {
        self.stage_with(b"ok tool", &verify).expect("staged")
    }

    fn failures(&self) -> Vec<(String, String)> {
        match self.stage_with(b"ok tool", &verify) {
            Err(StagingError::Unverified { failures }) => failures
                .into_iter()
                .map(|failure| {
                    let path = failure.path.strip_prefix(&self.anchor.root).unwrap_or(&failure.path);
                    (path.to_string_lossy().into_owned(), failure.reason)
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, relative: &str, content: &str) {
        self.world.write(&format!("project/tools/pack/{relative}"), content);
    }
}

/// Paths and contents of a tree; a folder's path ends with a slash, a link shows its target.
fn read_tree(root: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).expect("list") {
            let path = entry.expect("entry").path();
            let path_text = path.strip_prefix(root).expect("below").display().to_string();
            let mode = path.symlink_metadata().expect("there").permissions().mode() & 0o777;
            if path.is_symlink() {
                found.push((path_text, std::fs::read_link(&path).expect("link").display().to_string()));
            } else if path.is_dir() {
                assert_eq!(mode, 0o555, "{path_text}");
                found.push((format!("{path_text}/"), String::new()));
                pending.push(path);
            } else {
                assert_eq!(mode, 0o444, "{path_text}");
                let bytes = file::read_bounded(&path, 1 << 20).expect("read").0;
                found.push((path_text, String::from_utf8(bytes).expect("text")));
            }
        }
    }
    found.sort();
    found
}

fn owned_pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

#[test]
fn plain_tool_is_staged_alone_by_digest() {
    let bench = StagingFixture::new();
    bench.write("neighbour.py", "anything");
    let bench = StagingFixture { anchor: inactive_anchor(&bench.anchor.root), ..bench };
    let staged = bench.stage();
    let run = bench.world.cache().join("run");
    assert_eq!(staged.tool_dir.parent(), Some(run.as_path()));
    assert_eq!(staged.tool_path, staged.tool_dir.join("tool.py"));
    assert_eq!((&staged.anchor_path, &staged.tool_parent), (&staged.tool_dir, &run));
    assert_eq!((staged.runtime_lib, staged.verified_deps), (None, Vec::new()));
    assert_eq!(read_tree(&staged.tool_dir), owned_pairs(&[("tool.py", "ok tool")]));
    assert_eq!(staged.tool_dir.file_name().expect("name").len(), 16);
    assert_eq!(bench.stage().tool_path, staged.tool_path);
}

#[test]
fn tampered_cache_is_repaired() {
    let bench = StagingFixture::new();
    bench.write("sub/helper.py", "ok helper");
    let staged = bench.stage();
    let good = read_tree(&staged.tool_parent);
    let helper = staged.anchor_path.join("sub/helper.py");
    let open = |path: &Path| file::set_mode(path, 0o755).expect("opened");
    for folder in [&staged.tool_parent, &staged.anchor_path, &staged.anchor_path.join("sub")] {
        open(folder);
    }
    file::write_atomic(&helper, b"evil", FileMode::Preserve).expect("changed");
    file::write_atomic(&staged.anchor_path.join("json.py"), b"evil", FileMode::Preserve).expect("added");
    file::create_dirs(&staged.anchor_path.join("sub/__pycache__"), false).expect("folder");
    file::write_atomic(&staged.anchor_path.join("sub/__pycache__/helper.pyc"), b"evil", FileMode::Preserve)
        .expect("added");
    symlink("/etc", staged.tool_parent.join("etc")).expect("link");
    assert_eq!(bench.stage(), staged);
    assert_eq!(read_tree(&staged.tool_parent), good);

    for replace in [
        |path: &Path| symlink("/etc/passwd", path).expect("link"),
        |path: &Path| file::create_dirs(&path.join("deep"), false).expect("folder"),
    ] {
        open(&staged.anchor_path.join("sub"));
        file::remove_tree(&helper).expect("removed");
        replace(&helper);
        assert_eq!(bench.stage(), staged);
        assert_eq!(read_tree(&staged.tool_parent), good);
    }

    let elsewhere = bench.world.path().join("elsewhere");
    file::rename_dir(&staged.tool_parent, &elsewhere).expect("moved");
    symlink(&elsewhere, &staged.tool_parent).expect("link");
    assert_eq!(bench.stage(), staged);
    assert!(!staged.tool_parent.is_symlink());
    assert_eq!(read_tree(&staged.tool_parent), good);
    assert!(Path::new("/etc/passwd").is_file() && elsewhere.is_dir());
}

#[test]
fn anchored_tree_contains_only_verified_files() {
    let bench = StagingFixture::new();
    bench.write("__init__.py", "ok init");
    bench.write("data.yaml", "ok data");
    bench.write("sub/deep/x.py", "ok x");
    bench.write("notes.txt", "unsigned");
    bench.write("native.so", "unsigned");
    bench.write("__pycache__/tool.cpython-314.pyc", "unsigned");
    bench.write("__pycache__/evil.py", "unsigned");
    bench.write(".venv/lib/evil.py", "unsigned");
    bench.write("node_modules/evil.py", "unsigned");
    bench.write(".git/evil.py", "unsigned");
    let staged = bench.stage();
    let expected = [
        ("pack/", ""),
        ("pack/__init__.py", "ok init"),
        ("pack/data.yaml", "ok data"),
        ("pack/sub/", ""),
        ("pack/sub/deep/", ""),
        ("pack/sub/deep/x.py", "ok x"),
        ("pack/tool.py", "ok tool"),
    ];
    assert_eq!(read_tree(&staged.tool_parent), owned_pairs(&expected));
    assert_eq!(
        (&staged.anchor_path, &staged.tool_path),
        (&staged.tool_dir, &staged.tool_dir.join("tool.py"))
    );
    let deps = ["__init__.py", "data.yaml", "sub/deep/x.py"].map(str::to_owned);
    let bytes: [&[u8]; 3] = [b"ok init", b"ok data", b"ok x"];
    let deps: Vec<_> = deps
        .into_iter()
        .zip(bytes)
        .map(|(path, bytes)| VerifiedDependency { path, integrity: Digest::of(bytes).to_hex() })
        .collect();
    assert_eq!(staged.verified_deps, deps);
}

#[test]
fn different_content_or_name_changes_the_tree() {
    let bench = StagingFixture::new();
    let first = bench.stage();
    bench.write("a.py", "ok a");
    let second = bench.stage();
    assert_ne!(first.anchor_path, second.anchor_path);
    file::remove(&bench.anchor.root.join("a.py")).expect("removed");
    bench.write("b.py", "ok a");
    assert_ne!(bench.stage().anchor_path, second.anchor_path);
    file::remove(&bench.anchor.root.join("b.py")).expect("removed");
    assert_eq!(bench.stage(), first);
}

#[test]
fn all_failures_are_reported_at_once() {
    let bench = StagingFixture::new();
    bench.write("bad.py", "unsigned");
    bench.write("sub/bad.yaml", "unsigned");
    bench.write("good.py", "ok");
    let outside = bench.world.write("project/secret.py", "ok secret");
    symlink(&outside, bench.anchor.root.join("out.py")).expect("link");
    symlink("nothing", bench.anchor.root.join("void.py")).expect("link");
    symlink("good.py", bench.anchor.root.join("inside.py")).expect("link");
    let escape = format!(
        "Symlink escape: {} resolves to {}",
        bench.anchor.root.join("out.py").display(),
        outside.display()
    );
    let expected = [
        ("bad.py", "unsigned"),
        ("out.py", &escape),
        ("sub/bad.yaml", "unsigned"),
        ("void.py", "it is a link to nothing"),
    ];
    assert_eq!(bench.failures(), owned_pairs(&expected));
    assert!(!bench.world.cache().join("run").exists());
}

#[test]
fn sibling_with_same_prefix_is_outside() {
    let bench = StagingFixture::new();
    let outside = bench.world.write("project/tools/package/x.py", "ok x");
    symlink(&outside, bench.anchor.root.join("x.py")).expect("link");
    assert!(bench.failures()[0].1.starts_with("Symlink escape: "));
}

#[test]
fn linked_folders_are_skipped_with_a_notice() {
    let bench = StagingFixture::new();
    bench.world.write("project/other/evil.py", "ok evil");
    symlink(bench.world.project().join("other"), bench.anchor.root.join("linked")).expect("link");
    symlink(".", bench.anchor.root.join("circle.py")).expect("link");
    let staged = bench.stage();
    assert_eq!(read_tree(&staged.anchor_path), owned_pairs(&[("tool.py", "ok tool")]));
    assert_eq!(staged.notices.len(), 2);
    assert!(
        staged
            .notices
            .iter()
            .all(|notice| notice.ends_with("is a linked folder: nothing is imported from it"))
    );
}

#[test]
fn hostile_names_fail_with_clean_messages() {
    use std::os::unix::ffi::OsStrExt;
    let bench = StagingFixture::new();
    bench.write("a\nb\u{1b}[31m.py", "ok");
    bench.write("..py", "ok");
    bench.write("sp ace;$(x)'\".py", "ok");
    let raw = bench.anchor.root.join(std::ffi::OsStr::from_bytes(b"\xff.py"));
    file::write_atomic(&raw, b"ok", FileMode::Preserve).expect("written");
    let reasons: Vec<_> = bench.failures().into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, ["its name is not plain text; rename it", "its name is not plain text; rename it"]);
    let message = bench.stage_with(b"ok tool", &verify).expect_err("refused").to_string();
    assert!(!message.contains('\u{1b}') && message.lines().count() == 3, "{message:?}");
    file::remove(&raw).expect("removed");
    file::remove(&bench.anchor.root.join("a\nb\u{1b}[31m.py")).expect("removed");
    assert_eq!(bench.stage().verified_deps.len(), 2);
}

#[test]
fn pipe_or_socket_fails_without_blocking() {
    let bench = StagingFixture::new();
    let _socket = std::os::unix::net::UnixListener::bind(bench.anchor.root.join("s.py")).expect("socket");
    assert_eq!(bench.failures(), owned_pairs(&[("s.py", "it is not a regular file")]));
}

#[test]
fn a_folder_name_cannot_split_a_search_path() {
    let mut bench = StagingFixture::new();
    bench.tool = bench.world.write("project/a:b\nc/tool.py", "ok tool");
    bench.anchor.root = bench.tool.parent().expect("folder").to_owned();
    let staged = bench.stage();
    assert_eq!(staged.anchor_path.file_name().and_then(|name| name.to_str()), Some("a_b_c"));
}

#[test]
fn scopes_limit_staged_files() {
    let mut bench = StagingFixture::new();
    bench.write("a.py", "ok a");
    bench.write("sub/b.py", "ok b");
    bench.world.write("project/tools/c.py", "ok c");
    bench.anchor.root = bench.world.project().join("tools");
    let mut staged = |config: Value| {
        bench.dependencies = ImportRules::from_config(Some(&config)).expect("dependencies");
        let staged = bench.stage();
        assert_eq!(staged.tool_path, staged.anchor_path.join("pack/tool.py"));
        assert_eq!(staged.tool_parent, staged.anchor_path);
        staged.verified_deps.into_iter().map(|dep| dep.path).collect::<Vec<_>>()
    };
    let with = |scope: &str| json!({"enabled": true, "extensions": [".py"], "scope": scope});
    assert_eq!(staged(with("anchor")), ["c.py", "pack/a.py", "pack/sub/b.py"]);
    assert_eq!(staged(with("tool_dir")), ["pack/a.py", "pack/sub/b.py"]);
    assert_eq!(staged(with("tool_siblings")), ["pack/a.py"]);
    assert_eq!(staged(with("tool_file")), [] as [String; 0]);
    assert_eq!(staged(json!({"enabled": true, "extensions": [".py"], "recursive": false})), ["c.py"]);
    assert_eq!(staged(json!({"extensions": [".py"]})), [] as [String; 0]);
    assert!(ImportRules::from_config(Some(&json!({"scope": "all"}))).is_err());
    assert!(ImportRules::from_config(Some(&json!([]))).is_err());
}

#[test]
fn library_is_staged_separately() {
    let mut bench = StagingFixture::new();
    let lib = bench.world.write("runtime/lib/loader.py", "ok loader").parent().expect("folder").to_owned();
    bench.anchor = Anchor { lib: Some(lib.clone()), ..inactive_anchor(&bench.anchor.root) };
    let staged = bench.stage();
    let runtime_lib = staged.runtime_lib.clone().expect("a library");
    assert!(runtime_lib.ends_with("lib") && runtime_lib != lib);
    assert_eq!(read_tree(&runtime_lib), owned_pairs(&[("loader.py", "ok loader")]));
    assert_eq!(
        staged.verified_deps.iter().map(|dep| dep.path.as_str()).collect::<Vec<_>>(),
        ["{runtime_lib}/loader.py"]
    );
    bench.world.write("runtime/lib/loader.py", "unsigned");
    assert_eq!(bench.failures().len(), 1);
}

#[test]
fn modules_are_linked_only_on_request() {
    let mut bench = StagingFixture::new();
    bench.tool = bench.world.write("project/tools/pack/tool.js", "ok tool");
    bench.dependencies =
        ImportRules::from_config(Some(&json!({"enabled": true, "extensions": [".js"], "exclude_dirs": []})))
            .expect("dependencies");
    bench.write("package.json", "{\"type\": \"module\"}");
    assert_eq!(read_tree(&bench.stage().anchor_path), owned_pairs(&[("tool.js", "ok tool")]));
    let modules = bench.anchor.root.join("node_modules");
    bench.write("node_modules/left/index.js", "module");
    bench.modules = Some(modules.clone());
    let staged = bench.stage();
    let modules_text = modules.display().to_string();
    let expected = [
        ("node_modules", modules_text.as_str()),
        ("package.json", "{\"type\": \"module\"}"),
        ("tool.js", "ok tool"),
    ];
    assert_eq!(read_tree(&staged.anchor_path), owned_pairs(&expected));
    let pinned: Vec<&str> = staged.verified_deps.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(pinned, ["package.json", "node_modules/"]);
    assert_eq!(bench.stage(), staged);
}

#[test]
fn package_files_are_pinned_with_the_bytes_staged() {
    let mut bench = StagingFixture::new();
    bench.dependencies.extensions = vec![".py".to_owned()];
    bench.modules = Some(bench.anchor.root.join("node_modules"));
    let pins = |bench: &StagingFixture| -> Vec<(String, String)> {
        bench.stage().verified_deps.into_iter().map(|file| (file.path, file.integrity)).collect()
    };
    assert_eq!(pins(&bench), []);
    bench.write("package.json", "{}");
    let hash = |text: &str| Digest::of(text.as_bytes()).to_hex();
    assert_eq!(pins(&bench), [("package.json".to_owned(), hash("{}"))]);
    bench.write("package.json", "{\"imports\": {}}");
    bench.write("tsconfig.json", "{}");
    bench.write("node_modules/left/index.js", "module");
    let expected = [
        ("package.json".to_owned(), hash("{\"imports\": {}}")),
        ("tsconfig.json".to_owned(), hash("{}")),
        ("node_modules/".to_owned(), hash("")),
    ];
    assert_eq!(pins(&bench), expected);
}

#[test]
fn installed_modules_are_linked_beside_plain_tool() {
    let mut bench = StagingFixture::new();
    bench.anchor.is_active = false;
    let modules = bench.world.cache().join("packages/node/0/node_modules");
    let without = bench.stage();
    // They are linked before they are installed.
    bench.modules = Some(modules.clone());
    let staged = bench.stage();
    assert_ne!(staged.tool_dir, without.tool_dir);
    let modules_text = modules.display().to_string();
    assert_eq!(
        read_tree(&staged.tool_dir),
        owned_pairs(&[("node_modules", modules_text.as_str()), ("tool.py", "ok tool")])
    );
    assert_eq!(bench.stage(), staged);
}

#[test]
fn too_many_files_or_bytes_are_refused() {
    let bench = StagingFixture::new();
    for index in 0..5_001 {
        symlink("tool.py", bench.anchor.root.join(format!("{index}.py"))).expect("link");
    }
    assert!(matches!(
        bench.stage_with(b"ok tool", &verify),
        Err(StagingError::TooLarge { limit: "5,000 files", .. })
    ));
    let bench = StagingFixture::new();
    for index in 0..5 {
        bench.write(&format!("{index}.py"), "ok");
    }
    let huge = |_: &Path, _: &str| Ok(fully_covered(vec![b' '; 16 << 20]));
    assert!(matches!(
        bench.stage_with(b"ok tool", &huge),
        Err(StagingError::TooLarge { limit: "64 MiB", .. })
    ));
}

#[test]
fn pins_hash_file_staging_copies_covered_form() {
    let bench = StagingFixture::new();
    bench.write("a.py", "ok a");
    let covering = |path: &Path, relative: &str| {
        let file = verify(path, relative)?;
        Ok(VerifiedFile { covered: b"covered".to_vec(), ..file })
    };
    let staged = bench.stage_with(b"ok tool", &covering).expect("staged");
    assert_eq!(read_tree(&staged.anchor_path), owned_pairs(&[("a.py", "covered"), ("tool.py", "ok tool")]));
    let pinned: Vec<&str> = staged.verified_deps.iter().map(|file| file.integrity.as_str()).collect();
    assert_eq!(pinned, [Digest::of(b"ok a").to_hex()]);
}

#[test]
fn staged_bytes_are_the_verified_bytes() {
    let bench = StagingFixture::new();
    bench.write("a.py", "ok a");
    let swapping = |path: &Path, relative: &str| {
        let bytes = verify(path, relative)?;
        file::write_atomic(path, b"evil", FileMode::Preserve).map_err(|error| error.to_string())?;
        file::write_atomic(&bench.tool, b"evil", FileMode::Preserve).map_err(|error| error.to_string())?;
        Ok(bytes)
    };
    let staged = bench.stage_with(b"ok tool", &swapping).expect("staged");
    assert_eq!(read_tree(&staged.anchor_path), owned_pairs(&[("a.py", "ok a"), ("tool.py", "ok tool")]));
}

#[test]
fn concurrent_writers_never_stage_unverified_bytes() {
    let bench = StagingFixture::new();
    bench.write("a.py", "ok 0");
    let path = bench.anchor.root.join("a.py");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut index = 0_u32;
            while !is_over.load(Ordering::Relaxed) {
                index += 1;
                let content =
                    if index.is_multiple_of(2) { format!("ok {}", index % 7) } else { "evil".to_owned() };
                file::write_atomic(&path, content.as_bytes(), FileMode::Preserve).expect("written");
            }
        });
        let stagers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..30 {
                        let seen = RefCell::new(Vec::new());
                        let noting = |path: &Path, relative: &str| {
                            let bytes = verify(path, relative)?;
                            seen.replace(bytes.covered.clone());
                            Ok(bytes)
                        };
                        match bench.stage_with(b"ok tool", &noting) {
                            Ok(staged) => {
                                let (bytes, _) =
                                    file::read_bounded(&staged.anchor_path.join("a.py"), 99).expect("staged");
                                assert_eq!(bytes, seen.take());
                            }
                            Err(StagingError::Unverified { failures }) => assert_eq!(failures.len(), 1),
                            Err(other) => panic!("{other}"),
                        }
                    }
                })
            })
            .collect();
        for stager in stagers {
            stager.join().expect("a stager");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn concurrent_stagings_of_one_tree_agree() {
    let bench = StagingFixture::new();
    bench.write("sub/a.py", "ok a");
    let cache = bench.world.cache();
    let (tool, anchor, dependencies) = (&bench.tool, &bench.anchor, &bench.dependencies);
    let staged: Vec<StagedTool> = std::thread::scope(|scope| {
        let stagers: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let order = StagingRequest {
                        cache: &cache,
                        now: NOW,
                        tool,
                        bytes: b"ok tool",
                        anchor,
                        dependencies,
                        package: None,
                        is_importable: &|_| true,
                        verify: &verify,
                        node_modules: None,
                        copies_package_files: false,
                        pins_package_files: false,
                    };
                    stage(&order).expect("staged")
                })
            })
            .collect();
        stagers.into_iter().map(|stager| stager.join().expect("a stager")).collect()
    });
    assert!(staged.iter().all(|one| *one == staged[0]));
    assert_eq!(read_tree(&staged[0].anchor_path).len(), 3);
}

#[test]
fn unused_trees_are_pruned() {
    let bench = StagingFixture::new();
    let staged = |bytes: &[u8], now: u64| {
        let order = StagingRequest {
            cache: &bench.world.cache(),
            now,
            tool: &bench.tool,
            bytes,
            anchor: &inactive_anchor(&bench.anchor.root),
            dependencies: &bench.dependencies,
            package: None,
            is_importable: &|_| true,
            verify: &verify,
            node_modules: None,
            copies_package_files: false,
            pins_package_files: false,
        };
        stage(&order).expect("staged").tool_dir
    };
    let (old, used) = (staged(b"old", NOW), staged(b"used", NOW));
    staged(b"used", NOW + 10 * DAY);
    let new = staged(b"new", NOW + 20 * DAY);
    assert_eq!((old.exists(), used.exists(), new.exists()), (false, true, true));
}
