use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rye_engine::lockfiles::{
    self, DifferenceKind, LockMode, LockState, LockedElement, LockedTool, ResolvedTool,
};
use rye_engine::resolve::resolve_tool;
use rye_engine::verbs::lock::{self, LockListScope, LockfileChange, LockfileStatus};
use rye_engine::verbs::{init, sign};
use rye_engine::{Code, Engine, EngineOptions, Result, WallClock};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::TestContext;

struct FixedClock;

impl WallClock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

fn clock() -> Box<dyn WallClock> {
    Box::new(FixedClock)
}

fn roots(world: &TestContext, project: &Path) -> Roots {
    Roots {
        project: Some(project.to_owned()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}

fn open(world: &TestContext, project: &Path) -> Engine {
    Engine::open(roots(world, project), EngineOptions::default(), clock()).expect("engine")
}

fn tool(id: &str) -> ItemRef {
    ItemRef::new(ItemType::Tool, ItemId::new(id).expect("id"))
}

fn tool_text(words: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: python\nexecutor_id: team/runtime\ncategory: team\ndescription: {words}\n"
    )
}

fn runtime_text(words: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\ndescription: {words}\n"
    )
}

/// A project with the signed tool `team/x` on the runtime `team/runtime`.
fn fixture() -> (TestContext, Engine) {
    let world = TestContext::new();
    init::init(&roots(&world, &world.project()), &world.project(), "test", clock).expect("init");
    let engine = open(&world, &world.project());
    write_signed(&world, &engine, "project", "x", &tool_text("one"));
    write_signed(&world, &engine, "project", "runtime", &runtime_text("one"));
    (world, engine)
}

/// Writes the tool `team/<name>` below `folder` and signs it.
fn write_signed(world: &TestContext, engine: &Engine, folder: &str, name: &str, text: &str) {
    world.write(&format!("{folder}/.ai/tools/team/{name}.yaml"), text);
    let tier = if folder == "home" { SpaceTier::User } else { SpaceTier::Project };
    sign::sign_item(engine, &tool(&format!("team/{name}")), Some(tier)).expect("signed");
}

fn resolved_x(engine: &Engine) -> ResolvedTool {
    resolve_tool(engine, &tool("team/x")).expect("resolved")
}

fn record(engine: &Engine) -> Result<Option<PathBuf>> {
    let recorded = lockfiles::record(engine, &resolved_x(engine), LockMode::Enforce)?;
    Ok(recorded.map(|recorded| recorded.path))
}

fn check(engine: &Engine) -> LockState {
    lockfiles::check(engine, &resolved_x(engine)).expect("checked")
}

fn user_lockfile(world: &TestContext) -> PathBuf {
    world.home().join(".ai/lockfiles/team/x@1.0.0.lock.json")
}

fn project_lockfile(world: &TestContext) -> PathBuf {
    world.project().join("lockfiles/team/x@1.0.0.lock.json")
}

fn first_difference(state: &LockState) -> Option<(String, DifferenceKind)> {
    match state {
        LockState::Mismatch(mismatch) => {
            mismatch.differences.first().map(|first| (first.element.clone(), first.kind.clone()))
        }
        LockState::None | LockState::Matched { .. } | LockState::Stale { .. } => None,
    }
}

fn states(engine: &Engine) -> Vec<(SpaceTier, LockfileStatus)> {
    let rows = lock::list(engine, LockListScope::ProjectAndUser, &|item| resolve_tool(engine, item));
    rows.into_iter().map(|row| (row.scope, row.state)).collect()
}

#[test]
fn first_run_pins_and_changes_are_refused() {
    let (world, engine) = fixture();
    assert_eq!(check(&engine), LockState::None);
    assert_eq!(record(&engine).expect("recorded"), Some(user_lockfile(&world)));
    assert_eq!(check(&engine), LockState::Matched { lockfiles: vec![user_lockfile(&world)] });
    assert_eq!(record(&engine).expect("asked"), None);
    let text = world.text("home/.ai/lockfiles/team/x@1.0.0.lock.json");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["project"], world.project().to_str().expect("text"));
    assert_eq!(value["generated_at"], "2026-01-02T03:04:05.000000+00:00");
    assert_eq!(value["resolved_chain"].as_array().map(Vec::len), Some(3));

    let old = resolved_x(&engine).chain[1].integrity.clone();
    write_signed(&world, &engine, "project", "runtime", &runtime_text("two"));
    let new = resolved_x(&engine).chain[1].integrity.clone();
    let what = DifferenceKind::Hash { pinned: old.clone(), found: new.clone() };
    assert_eq!(first_difference(&check(&engine)), Some(("team/runtime".to_owned(), what)));
    let refused = lockfiles::enforce(&engine, &resolved_x(&engine), LockMode::Enforce).expect_err("mismatch");
    assert_eq!((refused.code, refused.code.kind().exit_code()), (Code::LockMismatch, 8));
    assert_eq!(refused.details["expected"], old);
    assert_eq!(refused.details["found"], new);
    assert_eq!(refused.details["element"], "team/runtime");
    assert!(refused.hints.iter().any(|hint| hint.ends_with("rye lock update team/x")), "{refused:?}");
    assert_eq!(record(&engine).expect_err("mismatch").code, Code::LockMismatch);

    let updated =
        lock::update(&engine, &tool("team/x"), None, &|item| resolve_tool(&engine, item)).expect("updated");
    let changes: Vec<_> =
        updated.lockfiles.iter().map(|file| (file.scope, file.change, file.changes.len())).collect();
    assert_eq!(changes, [(SpaceTier::User, LockfileChange::Replaced, 1)]);
    assert_eq!(updated.remaining, None);
    assert_eq!(check(&engine), LockState::Matched { lockfiles: vec![user_lockfile(&world)] });
}

#[test]
fn scope_setting_chooses_the_lockfile_folder() {
    let (world, engine) = fixture();
    world.write("project/.ai/config/config.yaml", "lockfiles:\n  scope: project\n");
    drop(engine);
    let engine = open(&world, &world.project());
    assert_eq!(record(&engine).expect("recorded"), Some(project_lockfile(&world)));
    let value: serde_json::Value =
        serde_json::from_str(&world.text("project/lockfiles/team/x@1.0.0.lock.json")).expect("JSON");
    assert_eq!(value.get("project"), None);
    assert!(!user_lockfile(&world).exists());
}

#[test]
fn every_effective_lockfile_must_match() {
    let (world, engine) = fixture();
    record(&engine).expect("recorded");
    write_signed(&world, &engine, "project", "x", &tool_text("changed by a user"));
    // The one that changed the tool brings a fitting lockfile along.
    let own = |item: &ItemRef| resolve_tool(&engine, item);
    lock::update(&engine, &tool("team/x"), Some(SpaceTier::Project), &own).expect("made");
    assert!(matches!(&check(&engine), LockState::Mismatch(mismatch) if mismatch.scope == SpaceTier::User));
    let updated = lock::update(&engine, &tool("team/x"), None, &own).expect("updated");
    let changes: Vec<_> = updated.lockfiles.iter().map(|file| (file.scope, file.change)).collect();
    assert_eq!(
        changes,
        [(SpaceTier::Project, LockfileChange::Unchanged), (SpaceTier::User, LockfileChange::Replaced)]
    );
    let both = vec![project_lockfile(&world), user_lockfile(&world)];
    assert_eq!(check(&engine), LockState::Matched { lockfiles: both });

    write_signed(&world, &engine, "project", "x", &tool_text("changed again"));
    let error = lockfiles::enforce(&engine, &resolved_x(&engine), LockMode::Enforce).expect_err("mismatch");
    assert!(error.message.starts_with("tool:team/x doesn't match the team's lockfile"), "{error}");
    assert_eq!(
        states(&engine),
        [(SpaceTier::Project, LockfileStatus::Mismatch), (SpaceTier::User, LockfileStatus::Mismatch)]
    );
    let updated = lock::update(&engine, &tool("team/x"), Some(SpaceTier::User), &own).expect("updated");
    assert!(updated.remaining.expect("the team's pin").contains("the team's lockfile"));
}

#[test]
fn project_tool_shadowing_pinned_one_is_mismatch() {
    let (world, engine) = fixture();
    write_signed(&world, &engine, "home", "x", &tool_text("one"));
    write_signed(&world, &engine, "home", "runtime", &runtime_text("one"));
    let (project, plain) = (world.project(), world.path().join("plain"));
    lillux::file::create_dirs(&plain, false).expect("folder");
    let outside = open(&world, &plain);
    assert_eq!(record(&outside).expect("recorded"), Some(user_lockfile(&world)));

    let what = DifferenceKind::Shadowed { pinned: "user".to_owned(), by: "project".to_owned() };
    assert_eq!(first_difference(&check(&engine)), Some(("team/x".to_owned(), what)));
    assert_eq!(states(&engine), [(SpaceTier::User, LockfileStatus::Mismatch)]);
    let updated =
        lock::update(&engine, &tool("team/x"), None, &|item| resolve_tool(&engine, item)).expect("updated");
    assert_eq!(
        updated.lockfiles.iter().map(|file| file.change).collect::<Vec<_>>(),
        [LockfileChange::Created]
    );
    assert_eq!(updated.remaining, None);
    assert_ne!(updated.lockfiles[0].path, user_lockfile(&world));
    assert!(matches!(check(&open(&world, &project)), LockState::Matched { .. }));
    assert_eq!(check(&outside), LockState::Matched { lockfiles: vec![user_lockfile(&world)] });
    assert_eq!(
        states(&engine),
        [(SpaceTier::User, LockfileStatus::Ok), (SpaceTier::User, LockfileStatus::Elsewhere)]
    );
    assert_eq!(lock::prune(&engine, &|item| resolve_tool(&engine, item)).expect("pruned").len(), 0);
}

#[test]
fn same_tool_has_one_lockfile_per_project() {
    let (world, engine) = fixture();
    record(&engine).expect("recorded");
    let other = world.path().join("other");
    lillux::file::create_dirs(&other, false).expect("folder");
    init::init(&roots(&world, &other), &other, "test", clock).expect("init");
    let second = open(&world, &other);
    write_signed(&world, &second, "other", "x", &tool_text("another"));
    write_signed(&world, &second, "other", "runtime", &runtime_text("another"));
    assert_eq!(check(&second), LockState::None);
    let path = record(&second).expect("recorded").expect("written");
    let mark = &lillux::Digest::of(other.to_str().expect("text").as_bytes()).to_hex()[..8];
    assert_eq!(path, world.home().join(format!(".ai/lockfiles/team/x@1.0.0+{mark}.lock.json")));
    assert_eq!(check(&second), LockState::Matched { lockfiles: vec![path.clone()] });
    assert_eq!(check(&engine), LockState::Matched { lockfiles: vec![user_lockfile(&world)] });
    let both = [(SpaceTier::User, LockfileStatus::Elsewhere), (SpaceTier::User, LockfileStatus::Ok)];
    let mut seen = states(&engine);
    seen.sort_by_key(|(_, state)| *state == LockfileStatus::Ok);
    assert_eq!(seen, both);

    lillux::file::remove_tree(&other).expect("removed");
    let removed = lock::prune(&engine, &|item| resolve_tool(&engine, item)).expect("pruned");
    assert_eq!(
        removed.iter().map(|row| (&row.path, row.state)).collect::<Vec<_>>(),
        [(&path, LockfileStatus::Gone)]
    );
    assert!(!path.exists() && user_lockfile(&world).exists());
}

#[test]
fn damaged_lockfile_is_an_error() {
    let (world, engine) = fixture();
    record(&engine).expect("recorded");
    let good = world.text("home/.ai/lockfiles/team/x@1.0.0.lock.json");
    let cases = [
        ("home/.ai/lockfiles/team/x@1.0.0.lock.json", "{".to_owned()),
        ("home/.ai/lockfiles/team/x@1.0.0.lock.json", String::new()),
        (
            "home/.ai/lockfiles/team/x@1.0.0.lock.json",
            good.replace("\"lockfile_version\": 1", "\"lockfile_version\": 2"),
        ),
        (
            "home/.ai/lockfiles/team/x@1.0.0.lock.json",
            good.replace("\"tool_id\": \"team/x\"", "\"tool_id\": \"team/y\""),
        ),
        ("project/lockfiles/team/x@1.0.0.lock.json", "<<<<<<< HEAD".to_owned()),
    ];
    for (path, text) in cases {
        world.write(path, &text);
        for error in [
            lockfiles::check(&engine, &resolved_x(&engine)).expect_err("damaged"),
            lockfiles::enforce(&engine, &resolved_x(&engine), LockMode::Frozen).expect_err("damaged"),
            record(&engine).expect_err("damaged"),
        ] {
            assert_eq!((error.code, error.code.kind().exit_code()), (Code::LockCorrupt, 8), "{text}");
            assert_eq!(error.details["path"], world.path().join(path).to_str().expect("text"));
        }
        assert_eq!(world.text(path), text);
        assert!(states(&engine).iter().any(|(_, state)| *state == LockfileStatus::Corrupt), "{text}");
        let verified = lock::verify(&engine, None, &|item| resolve_tool(&engine, item)).expect("verified");
        assert!(!verified.is_ok());
        lock::update(&engine, &tool("team/x"), None, &|item| resolve_tool(&engine, item)).expect("replaced");
        assert!(matches!(check(&engine), LockState::Matched { .. }), "{text}");
    }
}

#[test]
fn escaping_lockfile_folder_is_not_used() {
    let (world, engine) = fixture();
    let outside = world.path().join("outside");
    lillux::file::create_dirs(&outside.join("team"), false).expect("folder");
    std::os::unix::fs::symlink(&outside, world.project().join("lockfiles")).expect("link");
    let own = |item: &ItemRef| resolve_tool(&engine, item);
    lock::update(&engine, &tool("team/x"), Some(SpaceTier::Project), &own).expect_err("a link");
    assert_eq!(std::fs::read_dir(outside.join("team")).expect("list").count(), 0);
    record(&engine).expect_err("a link");
    world.write("outside/team/x@1.0.0.lock.json", "{}");
    assert_eq!(lockfiles::check(&engine, &resolved_x(&engine)).expect_err("a link").code, Code::LockCorrupt);
}

#[test]
fn locked_requires_and_frozen_never_writes_lockfiles() {
    let (world, engine) = fixture();
    let missing = lockfiles::enforce(&engine, &resolved_x(&engine), LockMode::Locked).expect_err("none");
    assert_eq!((missing.code, missing.code.kind().exit_code()), (Code::LockMissing, 8));
    assert_eq!(lockfiles::record(&engine, &resolved_x(&engine), LockMode::Frozen).expect("asked"), None);
    let forgiven = ResolvedTool { uses_dev_mode: true, ..resolved_x(&engine) };
    assert_eq!(lockfiles::record(&engine, &forgiven, LockMode::Enforce).expect("asked"), None);
    let refused =
        lock::update(&engine, &tool("team/x"), None, &|_| Ok(forgiven.clone())).expect_err("forgiven");
    assert_eq!(refused.code, Code::Unsigned);
    assert!(!world.home().join(".ai/lockfiles").exists());
    record(&engine).expect("recorded");
    assert!(lockfiles::enforce(&engine, &resolved_x(&engine), LockMode::Locked).is_ok());
}

#[test]
fn concurrent_first_runs_write_one_lockfile() {
    let (world, _engine) = fixture();
    let written = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| record(&open(&world, &world.project())).expect("recorded")))
            .collect();
        runs.into_iter().filter_map(|run| run.join().expect("thread")).collect::<Vec<_>>()
    });
    assert_eq!(written, [user_lockfile(&world)]);
    assert_eq!(std::fs::read_dir(world.home().join(".ai/lockfiles/team")).expect("list").count(), 1);
    assert!(matches!(check(&open(&world, &world.project())), LockState::Matched { .. }));
}

#[test]
fn version_containing_a_path_is_refused() {
    let (_world, engine) = fixture();
    let mut invalid = resolved_x(&engine);
    invalid.root.version = "../../../evil".to_owned();
    assert_eq!(lockfiles::check(&engine, &invalid).expect_err("refused").code, Code::UnsafeVersion);
    assert_eq!(
        lockfiles::record(&engine, &invalid, LockMode::Enforce).expect_err("refused").code,
        Code::UnsafeVersion
    );
}

#[test]
fn signing_refreshes_only_the_users_lockfile() {
    let (world, engine) = fixture();
    record(&engine).expect("recorded");
    let resolve = |item: &ItemRef| resolve_tool(&engine, item);
    let refresh = || lockfiles::refresh_after_sign(&engine, &tool("team/x"), &resolve).expect("refreshed");
    assert_eq!(refresh(), None);
    write_signed(&world, &engine, "project", "x", &tool_text("two"));
    assert_eq!(refresh(), Some(user_lockfile(&world)));
    assert!(matches!(check(&engine), LockState::Matched { .. }));

    write_signed(&world, &engine, "project", "runtime", &runtime_text("two"));
    let of_runtime = lockfiles::refresh_after_sign(&engine, &tool("team/runtime"), &resolve).expect("asked");
    assert_eq!(of_runtime, None);
    write_signed(&world, &engine, "project", "x", &tool_text("three"));
    assert_eq!(refresh(), None, "the runtime changed under it");
    assert!(matches!(check(&engine), LockState::Mismatch(_)));

    lock::update(&engine, &tool("team/x"), Some(SpaceTier::User), &resolve).expect("updated");
    lock::update(&engine, &tool("team/x"), Some(SpaceTier::Project), &resolve).expect("made");
    let team = world.text("project/lockfiles/team/x@1.0.0.lock.json");
    write_signed(&world, &engine, "project", "x", &tool_text("four"));
    assert_eq!(refresh(), Some(user_lockfile(&world)));
    assert_eq!(world.text("project/lockfiles/team/x@1.0.0.lock.json"), team);
    assert!(matches!(check(&engine), LockState::Mismatch(mismatch) if mismatch.scope == SpaceTier::Project));
}

#[test]
fn prune_removes_orphaned_lockfiles() {
    let (world, engine) = fixture();
    let resolve = |item: &ItemRef| resolve_tool(&engine, item);
    assert_eq!(lock::show(&engine, &tool("team/x"), &resolve).expect_err("none").code, Code::NoLockfile);
    record(&engine).expect("recorded");
    let details = lock::show(&engine, &tool("team/x"), &resolve).expect("shown");
    let chain: Vec<_> = details[0].chain.iter().map(|entry| entry.item_id.as_str()).collect();
    assert_eq!(chain, ["team/x", "team/runtime", "rye/core/primitives/subprocess"]);
    assert_eq!(lock::prune(&engine, &resolve).expect("pruned").len(), 0);

    write_signed(&world, &engine, "project", "x", &tool_text("one").replace("1.0.0", "1.1.0"));
    assert_eq!(check(&engine), LockState::None);
    let removed = lock::prune(&engine, &resolve).expect("pruned");
    assert_eq!(
        removed.iter().map(|row| row.why.as_deref()).collect::<Vec<_>>(),
        [Some("the tool in project space has version 1.1.0")]
    );
    record(&engine).expect("recorded");
    lillux::file::remove(&world.project().join(".ai/tools/team/runtime.yaml")).expect("removed");
    assert_eq!(states(&engine), [(SpaceTier::User, LockfileStatus::Refused)]);
    lillux::file::remove(&world.project().join(".ai/tools/team/x.yaml")).expect("removed");
    assert_eq!(states(&engine), [(SpaceTier::User, LockfileStatus::Gone)]);
    assert_eq!(lock::prune(&engine, &resolve).expect("pruned").len(), 1);
    assert_eq!(states(&engine), []);
}

/// A chain of embedded items as a user could resolve it.
fn system_chain(id: &str, bundle_version: &str, content: &str) -> ResolvedTool {
    let entry = |item_id: &str, content: &str| LockedElement {
        item_id: item_id.to_owned(),
        space: "system:ryeos-core".to_owned(),
        tool_type: None,
        executor_id: None,
        integrity: lillux::Digest::of(content.as_bytes()).to_hex(),
        provider_id: Some("ryeos-core".to_owned()),
        provider_version: Some(bundle_version.to_owned()),
    };
    let chain = vec![entry(id, content), entry("rye/core/primitives/native", content)];
    ResolvedTool {
        root: LockedTool {
            tool_id: id.to_owned(),
            version: "1.0.0".to_owned(),
            integrity: chain[0].integrity.clone(),
            provider_id: Some("ryeos-core".to_owned()),
            provider_version: Some(bundle_version.to_owned()),
        },
        chain,
        verified_deps: None,
        dependencies: None,
        uses_dev_mode: false,
    }
}

#[test]
fn embedded_tools_are_pinned_once_read_only() {
    const ID: &str = "rye/core/extractors/tool/tool_extractor";
    let (_world, engine) = fixture();
    let version = engine.workspace.spaces.bundles()[0].version.clone();
    let resolve = |item: &ItemRef| Ok(system_chain(item.id.as_str(), &version, "one"));
    let folder = lockfiles::generate_system(&engine, &resolve).expect("made");
    let path = folder.join(format!("{ID}@1.0.0.lock.json"));
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&folder)), (0o444, 0o555));
    let chain = system_chain(ID, &version, "one");
    assert_eq!(
        lockfiles::check(&engine, &chain).expect("checked"),
        LockState::Matched { lockfiles: vec![path.clone()] }
    );
    assert_eq!(lockfiles::record(&engine, &chain, LockMode::Locked).expect("asked"), None);
    let never = |_: &ItemRef| -> Result<ResolvedTool> { unreachable!("made once") };
    assert_eq!(lockfiles::generate_system(&engine, &never).expect("there"), folder);
    let other = lockfiles::check(&engine, &system_chain(ID, &version, "two")).expect("checked");
    assert!(matches!(other, LockState::Mismatch(mismatch) if mismatch.scope == SpaceTier::System));
}

#[test]
fn bundle_upgrade_makes_lockfiles_stale() {
    let (world, engine) = fixture();
    let version = engine.workspace.spaces.bundles()[0].version.clone();
    let chain = |bundle_version: &str, content: &str| {
        let mut chain = resolved_x(&engine);
        chain.chain.push(system_chain("a", bundle_version, content).chain.remove(1));
        chain
    };
    let old = chain("0.0.1", "old");
    lock::update(&engine, &tool("team/x"), Some(SpaceTier::User), &|_| Ok(old.clone())).expect("pinned");
    let new = chain(&version, "new");
    let why = format!("the bundle `ryeos-core` was upgraded from 0.0.1 to {version}");
    let stale = LockState::Stale { path: user_lockfile(&world), why };
    assert_eq!(lockfiles::enforce(&engine, &new, LockMode::Frozen).expect("stale"), stale);
    let refused = lockfiles::enforce(&engine, &new, LockMode::Locked).expect_err("stale");
    assert_eq!(refused.code, Code::LockMissing);
    assert_eq!(lockfiles::record(&engine, &new, LockMode::Frozen).expect("asked"), None);
    let recorded = lockfiles::record(&engine, &new, LockMode::Enforce).expect("recorded").expect("replaced");
    assert_eq!(recorded.path, user_lockfile(&world));
    assert!(recorded.replaced.is_some_and(|why| why.contains("was upgraded from 0.0.1")));
    assert_eq!(
        lockfiles::check(&engine, &new).expect("held"),
        LockState::Matched { lockfiles: vec![user_lockfile(&world)] }
    );
}

#[test]
fn packages_are_pinned_after_install() {
    let (_world, engine) = fixture();
    record(&engine).expect("recorded");
    let with = |integrity: &str| ResolvedTool {
        dependencies: Some(vec![lockfiles::LockedPackage {
            name: "left".to_owned(),
            version: "1.0".to_owned(),
            integrity: integrity.to_owned(),
        }]),
        ..resolved_x(&engine)
    };
    assert!(lockfiles::record(&engine, &with("sha256:a"), LockMode::Enforce).expect("completed").is_some());
    assert!(lockfiles::record(&engine, &with("sha256:a"), LockMode::Enforce).expect("asked").is_none());
    assert!(matches!(check(&engine), LockState::Matched { .. }));
    let other = lockfiles::check(&engine, &with("sha256:b")).expect("checked");
    assert_eq!(first_difference(&other).expect("a difference").0, "left 1.0");
}
