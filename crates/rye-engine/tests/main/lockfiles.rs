use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rye_engine::lockfiles::{self, Demand, Entry, Resolved, Root, State, What};
use rye_engine::resolved::resolved;
use rye_engine::verbs::lock::{self, Change, Reach, Standing};
use rye_engine::verbs::{init, sign};
use rye_engine::{Clock, Code, Engine, Options, Result};
use rye_item::space::Tier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::World;

struct Noon;

impl Clock for Noon {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

fn clock() -> Box<dyn Clock> {
    Box::new(Noon)
}

fn roots(world: &World, project: &Path) -> Roots {
    Roots {
        project: Some(project.to_owned()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}

fn open(world: &World, project: &Path) -> Engine {
    Engine::open(roots(world, project), Options::default(), clock()).expect("engine")
}

fn tool(id: &str) -> ItemRef {
    ItemRef::new(ItemType::Tool, ItemId::new(id).expect("id"))
}

fn text_of(words: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: python\nexecutor_id: team/runtime\ncategory: team\ndescription: {words}\n"
    )
}

fn runtime(words: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\ndescription: {words}\n"
    )
}

/// A project with the signed tool `team/x` on the runtime `team/runtime`.
fn ready() -> (World, Engine) {
    let world = World::new();
    init::init(&roots(&world, &world.project()), &world.project(), "test", clock).expect("init");
    let engine = open(&world, &world.project());
    put(&world, &engine, "project", "x", &text_of("one"));
    put(&world, &engine, "project", "runtime", &runtime("one"));
    (world, engine)
}

/// Writes the tool `team/<name>` below `folder` and signs it.
fn put(world: &World, engine: &Engine, folder: &str, name: &str, text: &str) {
    world.write(&format!("{folder}/.ai/tools/team/{name}.yaml"), text);
    let tier = if folder == "home" { Tier::User } else { Tier::Project };
    sign::sign_item(engine, &tool(&format!("team/{name}")), Some(tier)).expect("signed");
}

fn x(engine: &Engine) -> Resolved {
    resolved(engine, &tool("team/x")).expect("resolved")
}

fn record(engine: &Engine) -> Result<Option<PathBuf>> {
    let recorded = lockfiles::record(engine, &x(engine), Demand::Hold)?;
    Ok(recorded.map(|recorded| recorded.path))
}

fn check(engine: &Engine) -> State {
    lockfiles::check(engine, &x(engine)).expect("checked")
}

fn user_lockfile(world: &World) -> PathBuf {
    world.home().join(".ai/lockfiles/team/x@1.0.0.lock.json")
}

fn project_lockfile(world: &World) -> PathBuf {
    world.project().join("lockfiles/team/x@1.0.0.lock.json")
}

fn first_difference(state: &State) -> Option<(String, What)> {
    match state {
        State::Mismatch(mismatch) => {
            mismatch.differences.first().map(|first| (first.element.clone(), first.what.clone()))
        }
        State::None | State::Held { .. } | State::Stale { .. } => None,
    }
}

fn states(engine: &Engine) -> Vec<(Tier, Standing)> {
    let rows = lock::list(engine, Reach::Own, &|item| resolved(engine, item));
    rows.into_iter().map(|row| (row.scope, row.state)).collect()
}

#[test]
fn the_first_success_pins_and_a_change_is_refused_until_accepted() {
    let (world, engine) = ready();
    assert_eq!(check(&engine), State::None);
    assert_eq!(record(&engine).expect("recorded"), Some(user_lockfile(&world)));
    assert_eq!(check(&engine), State::Held { lockfiles: vec![user_lockfile(&world)] });
    assert_eq!(record(&engine).expect("asked"), None);
    let text = world.text("home/.ai/lockfiles/team/x@1.0.0.lock.json");
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["project"], world.project().to_str().expect("text"));
    assert_eq!(value["generated_at"], "2026-01-02T03:04:05.000000+00:00");
    assert_eq!(value["resolved_chain"].as_array().map(Vec::len), Some(3));

    let old = x(&engine).chain[1].integrity.clone();
    put(&world, &engine, "project", "runtime", &runtime("two"));
    let new = x(&engine).chain[1].integrity.clone();
    let what = What::Hash { pinned: old.clone(), found: new.clone() };
    assert_eq!(first_difference(&check(&engine)), Some(("team/runtime".to_owned(), what)));
    let refused = lockfiles::enforce(&engine, &x(&engine), Demand::Hold).expect_err("mismatch");
    assert_eq!((refused.code, refused.code.kind().exit_code()), (Code::LockMismatch, 8));
    assert_eq!(refused.details["expected"], old);
    assert_eq!(refused.details["found"], new);
    assert_eq!(refused.details["element"], "team/runtime");
    assert!(refused.hints.iter().any(|hint| hint.ends_with("rye lock update team/x")), "{refused:?}");
    assert_eq!(record(&engine).expect_err("mismatch").code, Code::LockMismatch);

    let updated =
        lock::update(&engine, &tool("team/x"), None, &|item| resolved(&engine, item)).expect("updated");
    let changes: Vec<_> =
        updated.lockfiles.iter().map(|file| (file.scope, file.change, file.changes.len())).collect();
    assert_eq!(changes, [(Tier::User, Change::Replaced, 1)]);
    assert_eq!(updated.remaining, None);
    assert_eq!(check(&engine), State::Held { lockfiles: vec![user_lockfile(&world)] });
}

#[test]
fn project_scope_is_written_where_the_setting_says() {
    let (world, engine) = ready();
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
fn every_lockfile_must_hold_and_a_cloned_one_replaces_nobodys_pin() {
    let (world, engine) = ready();
    record(&engine).expect("recorded");
    put(&world, &engine, "project", "x", &text_of("changed by somebody"));
    // Whoever changed the tool brings a fitting lockfile along.
    let own = |item: &ItemRef| resolved(&engine, item);
    lock::update(&engine, &tool("team/x"), Some(Tier::Project), &own).expect("made");
    assert!(matches!(&check(&engine), State::Mismatch(mismatch) if mismatch.scope == Tier::User));
    let updated = lock::update(&engine, &tool("team/x"), None, &own).expect("updated");
    let changes: Vec<_> = updated.lockfiles.iter().map(|file| (file.scope, file.change)).collect();
    assert_eq!(changes, [(Tier::Project, Change::Unchanged), (Tier::User, Change::Replaced)]);
    let both = vec![project_lockfile(&world), user_lockfile(&world)];
    assert_eq!(check(&engine), State::Held { lockfiles: both });

    put(&world, &engine, "project", "x", &text_of("changed again"));
    let error = lockfiles::enforce(&engine, &x(&engine), Demand::Hold).expect_err("mismatch");
    assert!(error.message.starts_with("tool:team/x doesn't match the team's lockfile"), "{error}");
    assert_eq!(states(&engine), [(Tier::Project, Standing::Mismatch), (Tier::User, Standing::Mismatch)]);
    let updated = lock::update(&engine, &tool("team/x"), Some(Tier::User), &own).expect("updated");
    assert!(updated.remaining.expect("the team's pin").contains("the team's lockfile"));
}

#[test]
fn a_project_tool_that_hides_the_users_pinned_one_is_a_mismatch() {
    let (world, engine) = ready();
    put(&world, &engine, "home", "x", &text_of("one"));
    put(&world, &engine, "home", "runtime", &runtime("one"));
    let (project, plain) = (world.project(), world.path().join("plain"));
    lillux::file::create_folders(&plain, false).expect("folder");
    let outside = open(&world, &plain);
    assert_eq!(record(&outside).expect("recorded"), Some(user_lockfile(&world)));

    let what = What::Shadowed { pinned: "user".to_owned(), by: "project".to_owned() };
    assert_eq!(first_difference(&check(&engine)), Some(("team/x".to_owned(), what)));
    assert_eq!(states(&engine), [(Tier::User, Standing::Mismatch)]);
    let updated =
        lock::update(&engine, &tool("team/x"), None, &|item| resolved(&engine, item)).expect("updated");
    assert_eq!(updated.lockfiles.iter().map(|file| file.change).collect::<Vec<_>>(), [Change::Made]);
    assert_eq!(updated.remaining, None);
    assert_ne!(updated.lockfiles[0].path, user_lockfile(&world));
    assert!(matches!(check(&open(&world, &project)), State::Held { .. }));
    assert_eq!(check(&outside), State::Held { lockfiles: vec![user_lockfile(&world)] });
    assert_eq!(states(&engine), [(Tier::User, Standing::Ok), (Tier::User, Standing::Elsewhere)]);
    assert_eq!(lock::prune(&engine, &|item| resolved(&engine, item)).expect("pruned").len(), 0);
}

#[test]
fn two_projects_with_the_same_tool_have_a_lockfile_each() {
    let (world, engine) = ready();
    record(&engine).expect("recorded");
    let other = world.path().join("other");
    lillux::file::create_folders(&other, false).expect("folder");
    init::init(&roots(&world, &other), &other, "test", clock).expect("init");
    let second = open(&world, &other);
    put(&world, &second, "other", "x", &text_of("another"));
    put(&world, &second, "other", "runtime", &runtime("another"));
    assert_eq!(check(&second), State::None);
    let path = record(&second).expect("recorded").expect("written");
    let mark = &lillux::Digest::of(other.to_str().expect("text").as_bytes()).to_hex()[..8];
    assert_eq!(path, world.home().join(format!(".ai/lockfiles/team/x@1.0.0+{mark}.lock.json")));
    assert_eq!(check(&second), State::Held { lockfiles: vec![path.clone()] });
    assert_eq!(check(&engine), State::Held { lockfiles: vec![user_lockfile(&world)] });
    let both = [(Tier::User, Standing::Elsewhere), (Tier::User, Standing::Ok)];
    let mut seen = states(&engine);
    seen.sort_by_key(|(_, state)| *state == Standing::Ok);
    assert_eq!(seen, both);

    lillux::file::remove_tree(&other).expect("removed");
    let removed = lock::prune(&engine, &|item| resolved(&engine, item)).expect("pruned");
    assert_eq!(
        removed.iter().map(|row| (&row.path, row.state)).collect::<Vec<_>>(),
        [(&path, Standing::Gone)]
    );
    assert!(!path.exists() && user_lockfile(&world).exists());
}

#[test]
fn a_damaged_lockfile_is_never_absent() {
    let (world, engine) = ready();
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
            lockfiles::check(&engine, &x(&engine)).expect_err("damaged"),
            lockfiles::enforce(&engine, &x(&engine), Demand::Frozen).expect_err("damaged"),
            record(&engine).expect_err("damaged"),
        ] {
            assert_eq!((error.code, error.code.kind().exit_code()), (Code::LockCorrupt, 8), "{text}");
            assert_eq!(error.details["path"], world.path().join(path).to_str().expect("text"));
        }
        assert_eq!(world.text(path), text);
        assert!(states(&engine).iter().any(|(_, state)| *state == Standing::Corrupt), "{text}");
        let verified = lock::verify(&engine, None, &|item| resolved(&engine, item)).expect("verified");
        assert!(!verified.is_good());
        lock::update(&engine, &tool("team/x"), None, &|item| resolved(&engine, item)).expect("replaced");
        assert!(matches!(check(&engine), State::Held { .. }), "{text}");
    }
}

#[test]
fn a_lockfile_folder_that_leads_out_is_neither_read_nor_written() {
    let (world, engine) = ready();
    let outside = world.path().join("outside");
    lillux::file::create_folders(&outside.join("team"), false).expect("folder");
    std::os::unix::fs::symlink(&outside, world.project().join("lockfiles")).expect("link");
    let own = |item: &ItemRef| resolved(&engine, item);
    lock::update(&engine, &tool("team/x"), Some(Tier::Project), &own).expect_err("a link");
    assert_eq!(std::fs::read_dir(outside.join("team")).expect("list").count(), 0);
    record(&engine).expect_err("a link");
    world.write("outside/team/x@1.0.0.lock.json", "{}");
    assert_eq!(lockfiles::check(&engine, &x(&engine)).expect_err("a link").code, Code::LockCorrupt);
}

#[test]
fn locked_demands_one_and_frozen_or_forgiven_chains_write_none() {
    let (world, engine) = ready();
    let missing = lockfiles::enforce(&engine, &x(&engine), Demand::Locked).expect_err("none");
    assert_eq!((missing.code, missing.code.kind().exit_code()), (Code::LockMissing, 8));
    assert_eq!(lockfiles::record(&engine, &x(&engine), Demand::Frozen).expect("asked"), None);
    let forgiven = Resolved { is_forgiven: true, ..x(&engine) };
    assert_eq!(lockfiles::record(&engine, &forgiven, Demand::Hold).expect("asked"), None);
    let refused =
        lock::update(&engine, &tool("team/x"), None, &|_| Ok(forgiven.clone())).expect_err("forgiven");
    assert_eq!(refused.code, Code::Unsigned);
    assert!(!world.home().join(".ai/lockfiles").exists());
    record(&engine).expect("recorded");
    assert!(lockfiles::enforce(&engine, &x(&engine), Demand::Locked).is_ok());
}

#[test]
fn of_many_first_runs_one_makes_the_lockfile() {
    let (world, _engine) = ready();
    let written = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| record(&open(&world, &world.project())).expect("recorded")))
            .collect();
        runs.into_iter().filter_map(|run| run.join().expect("thread")).collect::<Vec<_>>()
    });
    assert_eq!(written, [user_lockfile(&world)]);
    assert_eq!(std::fs::read_dir(world.home().join(".ai/lockfiles/team")).expect("list").count(), 1);
    assert!(matches!(check(&open(&world, &world.project())), State::Held { .. }));
}

#[test]
fn a_version_with_a_path_in_it_is_refused() {
    let (_world, engine) = ready();
    let mut odd = x(&engine);
    odd.root.version = "../../../evil".to_owned();
    assert_eq!(lockfiles::check(&engine, &odd).expect_err("refused").code, Code::UnsafeVersion);
    assert_eq!(
        lockfiles::record(&engine, &odd, Demand::Hold).expect_err("refused").code,
        Code::UnsafeVersion
    );
}

#[test]
fn signing_a_tool_refreshes_the_users_lockfile_of_it_and_no_other() {
    let (world, engine) = ready();
    record(&engine).expect("recorded");
    let resolve = |item: &ItemRef| resolved(&engine, item);
    let refresh = || lockfiles::refresh_after_sign(&engine, &tool("team/x"), &resolve).expect("refreshed");
    assert_eq!(refresh(), None);
    put(&world, &engine, "project", "x", &text_of("two"));
    assert_eq!(refresh(), Some(user_lockfile(&world)));
    assert!(matches!(check(&engine), State::Held { .. }));

    put(&world, &engine, "project", "runtime", &runtime("two"));
    let of_runtime = lockfiles::refresh_after_sign(&engine, &tool("team/runtime"), &resolve).expect("asked");
    assert_eq!(of_runtime, None);
    put(&world, &engine, "project", "x", &text_of("three"));
    assert_eq!(refresh(), None, "the runtime changed under it");
    assert!(matches!(check(&engine), State::Mismatch(_)));

    lock::update(&engine, &tool("team/x"), Some(Tier::User), &resolve).expect("updated");
    lock::update(&engine, &tool("team/x"), Some(Tier::Project), &resolve).expect("made");
    let team = world.text("project/lockfiles/team/x@1.0.0.lock.json");
    put(&world, &engine, "project", "x", &text_of("four"));
    assert_eq!(refresh(), Some(user_lockfile(&world)));
    assert_eq!(world.text("project/lockfiles/team/x@1.0.0.lock.json"), team);
    assert!(matches!(check(&engine), State::Mismatch(mismatch) if mismatch.scope == Tier::Project));
}

#[test]
fn prune_removes_what_is_gone_and_show_needs_a_lockfile() {
    let (world, engine) = ready();
    let resolve = |item: &ItemRef| resolved(&engine, item);
    assert_eq!(lock::show(&engine, &tool("team/x"), &resolve).expect_err("none").code, Code::NoLockfile);
    record(&engine).expect("recorded");
    let shown = lock::show(&engine, &tool("team/x"), &resolve).expect("shown");
    let chain: Vec<_> = shown[0].chain.iter().map(|entry| entry.item_id.as_str()).collect();
    assert_eq!(chain, ["team/x", "team/runtime", "rye/core/primitives/subprocess"]);
    assert_eq!(lock::prune(&engine, &resolve).expect("pruned").len(), 0);

    put(&world, &engine, "project", "x", &text_of("one").replace("1.0.0", "1.1.0"));
    assert_eq!(check(&engine), State::None);
    let removed = lock::prune(&engine, &resolve).expect("pruned");
    assert_eq!(
        removed.iter().map(|row| row.why.as_deref()).collect::<Vec<_>>(),
        [Some("the tool of project space has version 1.1.0")]
    );
    record(&engine).expect("recorded");
    lillux::file::remove(&world.project().join(".ai/tools/team/runtime.yaml")).expect("removed");
    assert_eq!(states(&engine), [(Tier::User, Standing::Refused)]);
    lillux::file::remove(&world.project().join(".ai/tools/team/x.yaml")).expect("removed");
    assert_eq!(states(&engine), [(Tier::User, Standing::Gone)]);
    assert_eq!(lock::prune(&engine, &resolve).expect("pruned").len(), 1);
    assert_eq!(states(&engine), []);
}

/// A chain of embedded items as somebody could resolve it.
fn system_chain(id: &str, bundle_version: &str, content: &str) -> Resolved {
    let entry = |item_id: &str, content: &str| Entry {
        item_id: item_id.to_owned(),
        space: "system:ryeos-core".to_owned(),
        tool_type: None,
        executor_id: None,
        integrity: lillux::Digest::of(content.as_bytes()).to_hex(),
        provider_id: Some("ryeos-core".to_owned()),
        provider_version: Some(bundle_version.to_owned()),
    };
    let chain = vec![entry(id, content), entry("rye/core/primitives/native", content)];
    Resolved {
        root: Root {
            tool_id: id.to_owned(),
            version: "1.0.0".to_owned(),
            integrity: chain[0].integrity.clone(),
            provider_id: Some("ryeos-core".to_owned()),
            provider_version: Some(bundle_version.to_owned()),
        },
        chain,
        verified_deps: None,
        dependencies: None,
        is_forgiven: false,
    }
}

#[test]
fn the_binarys_own_tools_are_pinned_once_and_read_only() {
    const ID: &str = "rye/core/extractors/tool/tool_extractor";
    let (_world, engine) = ready();
    let version = engine.workspace.spaces.bundles()[0].version.clone();
    let resolve = |item: &ItemRef| Ok(system_chain(item.id.as_str(), &version, "one"));
    let folder = lockfiles::generate_system(&engine, &resolve).expect("made");
    let path = folder.join(format!("{ID}@1.0.0.lock.json"));
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&folder)), (0o444, 0o555));
    let chain = system_chain(ID, &version, "one");
    assert_eq!(
        lockfiles::check(&engine, &chain).expect("checked"),
        State::Held { lockfiles: vec![path.clone()] }
    );
    assert_eq!(lockfiles::record(&engine, &chain, Demand::Locked).expect("asked"), None);
    let never = |_: &ItemRef| -> Result<Resolved> { unreachable!("made once") };
    assert_eq!(lockfiles::generate_system(&engine, &never).expect("there"), folder);
    let other = lockfiles::check(&engine, &system_chain(ID, &version, "two")).expect("checked");
    assert!(matches!(other, State::Mismatch(mismatch) if mismatch.scope == Tier::System));
}

#[test]
fn an_upgraded_bundle_makes_lockfiles_stale_and_the_next_success_replaces_them() {
    let (world, engine) = ready();
    let version = engine.workspace.spaces.bundles()[0].version.clone();
    let chain = |bundle_version: &str, content: &str| {
        let mut chain = x(&engine);
        chain.chain.push(system_chain("a", bundle_version, content).chain.remove(1));
        chain
    };
    let old = chain("0.0.1", "old");
    lock::update(&engine, &tool("team/x"), Some(Tier::User), &|_| Ok(old.clone())).expect("pinned");
    let new = chain(&version, "new");
    let why = format!("the bundle `ryeos-core` was upgraded from 0.0.1 to {version}");
    let stale = State::Stale { path: user_lockfile(&world), why };
    assert_eq!(lockfiles::enforce(&engine, &new, Demand::Frozen).expect("stale"), stale);
    let refused = lockfiles::enforce(&engine, &new, Demand::Locked).expect_err("stale");
    assert_eq!(refused.code, Code::LockMissing);
    assert_eq!(lockfiles::record(&engine, &new, Demand::Frozen).expect("asked"), None);
    let recorded = lockfiles::record(&engine, &new, Demand::Hold).expect("recorded").expect("replaced");
    assert_eq!(recorded.path, user_lockfile(&world));
    assert!(recorded.replaced.is_some_and(|why| why.contains("was upgraded from 0.0.1")));
    assert_eq!(
        lockfiles::check(&engine, &new).expect("held"),
        State::Held { lockfiles: vec![user_lockfile(&world)] }
    );
}

#[test]
fn packages_are_pinned_once_they_are_installed() {
    let (_world, engine) = ready();
    record(&engine).expect("recorded");
    let with = |integrity: &str| Resolved {
        dependencies: Some(vec![lockfiles::Dependency {
            name: "left".to_owned(),
            version: "1.0".to_owned(),
            integrity: integrity.to_owned(),
        }]),
        ..x(&engine)
    };
    assert!(lockfiles::record(&engine, &with("sha256:a"), Demand::Hold).expect("completed").is_some());
    assert!(lockfiles::record(&engine, &with("sha256:a"), Demand::Hold).expect("asked").is_none());
    assert!(matches!(check(&engine), State::Held { .. }));
    let other = lockfiles::check(&engine, &with("sha256:b")).expect("checked");
    assert_eq!(first_difference(&other).expect("a difference").0, "left 1.0");
}
