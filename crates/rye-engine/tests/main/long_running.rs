use lillux::CancelToken;
use rye_engine::verbs::execute::{self, Caller, ExecuteRequest};
use rye_engine::verbs::{bundles, init, load, search, sign};
use rye_engine::{Code, Engine, EngineOptions, EngineOrigin, EnginePool, HostEnvironment, WallClock};
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

fn roots(world: &TestContext) -> Roots {
    Roots {
        project: Some(world.project()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}

fn open_engine(world: &TestContext) -> Engine {
    open_engine_at(world, clock())
}

fn open_engine_at(world: &TestContext, engine_clock: Box<dyn WallClock>) -> Engine {
    init::init(&roots(world), &world.project(), "test", clock).expect("init");
    let host =
        HostEnvironment { home: world.home(), current_dir: world.project(), ..HostEnvironment::default() };
    let options = EngineOptions { is_warm: true, host, ..EngineOptions::default() };
    Engine::open(roots(world), options, engine_clock).expect("engine")
}

fn search_ids(engine: &Engine, query: &str) -> Vec<String> {
    let options = search::SearchOptions { query: query.to_owned(), ..search::SearchOptions::default() };
    let response = search::search(engine, &options, &mut |_, _| {}).expect("search");
    response.results.into_iter().map(|row| row.item_id).collect()
}

/// Searches until the answer is as wanted: the news of a change arrives through another thread.
fn eventually_finds(engine: &Engine, query: &str, expected: &[&str]) -> bool {
    (0..10_000).any(|_| {
        std::thread::yield_now();
        search_ids(engine, query) == expected
    })
}

fn tool(id: &str) -> ItemRef {
    ItemRef::new(ItemType::Tool, ItemId::new(id).expect("id"))
}

#[test]
fn search_notices_new_edited_and_removed_files() {
    let world = TestContext::new();
    let engine = open_engine(&world);
    assert_eq!(search_ids(&engine, "zebra"), Vec::<String>::new());
    let path = world.write("project/.ai/tools/demo/one.py", rye_test::tool("demo", "about a zebra"));
    assert!(eventually_finds(&engine, "zebra", &["demo/one"]));
    world.write("project/.ai/tools/demo/one.py", rye_test::tool("demo", "about a giraffe"));
    assert!(eventually_finds(&engine, "zebra", &[]));
    assert!(eventually_finds(&engine, "giraffe", &["demo/one"]));
    lillux::file::remove(&path).expect("removed");
    assert!(eventually_finds(&engine, "giraffe", &[]));
}

#[test]
fn search_notices_files_in_new_folders() {
    let world = TestContext::new();
    let engine = open_engine(&world);
    assert_eq!(search_ids(&engine, "okapi"), Vec::<String>::new());
    world.write("project/.ai/tools/a/b/c/deep.py", rye_test::tool("a/b/c", "about an okapi"));
    assert!(eventually_finds(&engine, "okapi", &["a/b/c/deep"]));
}

#[test]
fn new_shadowing_item_wins_immediately() {
    let world = TestContext::new();
    let engine = open_engine(&world);
    world.write("home/.ai/tools/demo/one.py", rye_test::tool("demo", "the user's"));
    sign::sign_item(&engine, &tool("demo/one"), None).expect("signed");
    let loaded = load::load(&engine, &tool("demo/one"), load::LoadOptions::default()).expect("loaded");
    assert_eq!(loaded.space.to_string(), "user");
    world.write("project/.ai/tools/demo/one.py", rye_test::tool("demo", "the project's"));
    let refused = load::load(&engine, &tool("demo/one"), load::LoadOptions::default()).expect_err("unsigned");
    assert_eq!(refused.code, Code::Unsigned);
}

#[test]
fn a_refresh_notices_new_config_and_new_keys() {
    let world = TestContext::new();
    let mut engine = open_engine(&world);
    assert!(engine.workspace.is_current());
    let limit = |engine: &Engine| engine.workspace.settings.get("search.limit").cloned();
    assert_eq!(limit(&engine), Some(10.into()));
    world.write("project/.ai/config/config.yaml", "search:\n  limit: 3\n");
    assert!(!engine.workspace.is_current());
    engine.refresh().expect("refreshed");
    assert_eq!(limit(&engine), Some(3.into()));

    let stranger = TestContext::new();
    let foreign = open_engine(&stranger);
    let own = foreign.workspace.own_key.clone().expect("key");
    let document = stranger.text(&format!("home/.ai/config/keys/trusted/{}.toml", own.fingerprint()));
    assert!(!engine.workspace.keys.is_trusted_everywhere(&own));
    world.write(&format!("home/.ai/config/keys/trusted/{}.toml", own.fingerprint()), document);
    engine.refresh().expect("refreshed");
    assert!(engine.workspace.keys.is_trusted_everywhere(&own));
}

#[test]
fn refresh_notices_new_and_changed_python_packages() {
    let world = TestContext::new();
    let mut engine = open_engine(&world);
    let library = "venv/lib/python3.12/site-packages";
    let place = world.path().join("venv");
    let ids = |engine: &Engine| -> Vec<(String, Vec<String>)> {
        let bundles = engine.workspace.spaces.bundles().iter().filter(|bundle| bundle.package.is_some());
        bundles.map(|bundle| (bundle.id.to_string(), bundle.categories.clone())).collect()
    };
    let config = format!("bundles:\n  python: [\"{}\"]\n", place.display());
    world.write("home/.ai/config/config.yaml", config);
    engine.refresh().expect("refreshed");
    assert_eq!(ids(&engine), []);
    let module = |category: &str| {
        format!(
            "from pathlib import Path\n\n\ndef get_bundle():\n    return {{\"bundle_id\": \"kit\", \
             \"root_path\": Path(__file__).parent, \"categories\": [\"{category}\"]}}\n"
        )
    };
    world.write(&format!("{library}/kit/.ai/tools/demo/one.py"), rye_test::tool("demo", "one"));
    world.write(&format!("{library}/kit/bundle.py"), module("demo"));
    world.write(&format!("{library}/kit-1.0.dist-info/METADATA"), "Name: kit\nVersion: 1.0\n");
    world.write(
        &format!("{library}/kit-1.0.dist-info/entry_points.txt"),
        "[rye.bundles]\nkit = kit.bundle:get_bundle\n",
    );
    engine.refresh().expect("refreshed");
    assert_eq!(ids(&engine), [("kit".to_owned(), vec!["demo".to_owned()])]);
    assert!(engine.workspace.is_current());
    world.write(&format!("{library}/kit/bundle.py"), module("demonstration"));
    assert!(!engine.workspace.is_current());
    engine.refresh().expect("refreshed");
    assert_eq!(ids(&engine), [("kit".to_owned(), vec!["demonstration".to_owned()])]);
}

#[test]
fn refresh_notices_installed_and_removed_bundles() {
    let maker = TestContext::new();
    let author = open_engine(&maker);
    maker.write("project/.ai/tools/demo/one.py", rye_test::tool("demo", "bundled"));
    let request = bundles::CreateRequest {
        id: "gifts".to_owned(),
        version: "1.0.0".to_owned(),
        description: String::new(),
        entrypoint: None,
        categories: vec!["demo".to_owned()],
        out: maker.path().join("gifts"),
        sign: true,
        with_lockfiles: false,
    };
    let created = bundles::create(&author, &request).expect("made");
    let world = TestContext::new();
    let mut engine = open_engine(&world);
    let put = |from: &str, to: &str| {
        world.write(&format!("project/.ai/{to}"), maker.read(&format!("gifts/.ai/{from}")))
    };
    let is_loaded = |engine: &mut Engine| {
        engine.refresh().expect("refreshed");
        load::load(engine, &tool("demo/one"), load::LoadOptions::default()).is_ok()
    };
    put("tools/demo/one.py", "tools/demo/one.py");
    put("bundles/gifts/manifest.yaml", "bundles/gifts/manifest.yaml");
    put(&format!("config/keys/trusted/{}.toml", created.signer), "bundles/gifts/signer.toml");
    let lock = format!(
        r#"{{"bundle_id": "gifts", "version": "1.0.0", "manifest_hash": "{}", "installed_at": "2026-01-02T03:04:05Z", "files": [".ai/tools/demo/one.py"]}}"#,
        created.manifest_hash
    );
    let path = world.write("project/.ai/bundles/gifts/.bundle-lock.json", &lock);
    assert!(!is_loaded(&mut engine), "its signer is not approved");
    bundles::trust(&engine, "gifts", None).expect("approved");
    assert!(is_loaded(&mut engine));
    lillux::file::remove(&path).expect("removed");
    assert!(!is_loaded(&mut engine), "what is not installed is not vouched for");
    world.write("project/.ai/bundles/gifts/.bundle-lock.json", &lock);
    assert!(is_loaded(&mut engine));
}

/// A time at which every file of these tests has long been as it is.
struct FutureClock;

impl WallClock for FutureClock {
    fn unix_seconds(&self) -> u64 {
        99_999_999_999
    }
}

fn execute_tool(engine: &Engine, id: &str) -> Result<serde_json::Value, Code> {
    let request = ExecuteRequest::new(tool(id), CancelToken::new().expect("an event"))
        .with_trace(true)
        .with_caller(Caller::Person);
    execute::execute(engine, &request).map(execute::ExecuteResponse::into_value).map_err(|error| error.code)
}

#[test]
fn engine_notices_lockfile_changes() {
    let world = TestContext::new();
    let engine = open_engine_at(&world, Box::new(FutureClock));
    let id = "rye/core/system/time";
    let held = |response: serde_json::Value| response["lock"]["paths"].as_array().map(Vec::len);
    assert_eq!(execute_tool(&engine, id).map(held), Ok(Some(1)), "the binary's own");
    let own = execute_tool(&engine, id).expect("it runs")["lock"]["paths"][0].clone();
    let own = lillux::file::read_bounded(own.as_str().expect("a path").as_ref(), 1 << 20).expect("read").0;
    let own = String::from_utf8(own).expect("text");
    let hash = own.split("\"integrity\": \"").nth(1).expect("a hash")[..64].to_owned();
    let other = own.replace(&hash, &"0".repeat(64)) + "\n";
    let name = format!("{id}@1.0.0.lock.json");
    for folder in ["home/.ai/lockfiles", "project/lockfiles"] {
        let path = world.write(&format!("{folder}/{name}"), &own);
        assert_eq!(execute_tool(&engine, id).map(held), Ok(Some(2)), "{folder}");
        assert_eq!(execute_tool(&engine, id).map(held), Ok(Some(2)), "{folder}");
        world.write(&format!("{folder}/{name}"), &other);
        assert_eq!(execute_tool(&engine, id).map(held), Err(Code::LockMismatch), "{folder}");
        world.write(&format!("{folder}/{name}"), "{}");
        assert_eq!(execute_tool(&engine, id).map(held), Err(Code::LockCorrupt), "{folder}");
        lillux::file::remove(&path).expect("removed");
        assert_eq!(execute_tool(&engine, id).map(held), Ok(Some(1)), "{folder}");
    }
}

#[test]
fn engine_notices_chain_changes() {
    const TOOL: &str = "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: demo\n\
                        description: The time\nconfig:\n  function: system.facts\n  item: time\n";
    let world = TestContext::new();
    let engine = open_engine_at(&world, Box::new(FutureClock));
    let path = world.write("home/.ai/tools/demo/now.yaml", TOOL);
    sign::sign_item(&engine, &tool("demo/now"), None).expect("signed");
    let runs = || execute_tool(&engine, "demo/now").map(|response| response["chain"][0]["space"].clone());
    let signed = world.read("home/.ai/tools/demo/now.yaml");
    for _ in 0..2 {
        assert_eq!(runs(), Ok("user".into()));
    }
    for shadow in [
        "project/.ai/tools/demo/now.yaml",
        "project/.ai/tools/demo/now.py",
        "home/.ai/tools/demo/now.py",
        "home/.ai/tools/rye/core/primitives/native.yaml",
    ] {
        let shadow_path = world.write(shadow, TOOL);
        assert_eq!(runs(), Err(Code::Unsigned), "{shadow}");
        lillux::file::remove(&shadow_path).expect("removed");
        assert_eq!(runs(), Ok("user".into()), "{shadow}");
    }
    world.write("home/.ai/tools/demo/now.yaml", TOOL);
    assert_eq!(runs(), Err(Code::Unsigned), "edited");
    world.write("home/.ai/tools/demo/now.yaml", &signed);
    assert_eq!(runs(), Ok("user".into()), "put back");
    lillux::file::remove(&path).expect("removed");
    assert_eq!(runs(), Err(Code::NotFound));
    world.write("home/.ai/tools/demo/now.yaml", &signed);
    assert_eq!(runs(), Ok("user".into()));
    let (demo, away) = (world.home().join(".ai/tools/demo"), world.path().join("away"));
    lillux::file::rename_dir(&demo, &away).expect("moved");
    lillux::file::symlink_if_absent(&away, &demo).expect("a link");
    assert!(runs().is_err(), "the same files, but out of the space");
    lillux::file::remove(&demo).expect("removed");
    lillux::file::rename_dir(&away, &demo).expect("moved back");
    assert_eq!(runs(), Ok("user".into()));
    lillux::file::remove_tree(&demo).expect("removed");
    assert_eq!(runs(), Err(Code::NotFound));
}

#[test]
fn engine_notices_sandbox_settings() {
    let world = TestContext::new();
    let engine = open_engine(&world);
    let id = "rye/core/system/paths";
    let level = || {
        let response = execute_tool(&engine, id).expect("it runs");
        let steps = response["trace"].as_array().expect("a trace");
        steps.iter().find(|step| step["step"] == "sandbox").expect("a step")["level"].clone()
    };
    assert_eq!(level(), "standard");
    world.write("home/.ai/config/execution/sandbox.yaml", "level: strict\n");
    assert_eq!(level(), "strict");
    world.write("home/.ai/config/execution/sandbox.yaml", "level: standard\n");
    assert_eq!(level(), "standard");
}

#[test]
fn damaged_index_is_rebuilt() {
    let world = TestContext::new();
    let engine = open_engine(&world);
    assert_eq!(search_ids(&engine, "hello").len(), 2);
    let index = rye_space::search::index_path(&engine.workspace.roots);
    assert!(index.is_file());
    for garbage in [&b"garbage"[..], b"", b"SQLite format 3\0 but not really"] {
        lillux::file::write_atomic(&index, garbage, lillux::file::FileMode::Preserve).expect("damaged");
        let cold = Engine::open(roots(&world), EngineOptions::default(), clock()).expect("engine");
        assert_eq!(search_ids(&cold, "hello").len(), 2);
    }
}

#[test]
fn pool_reopens_changed_engines_only() {
    let worlds = [TestContext::new(), TestContext::new()];
    worlds.iter().for_each(|world| drop(open_engine(world)));
    let all: Vec<Roots> = worlds.iter().map(roots).collect();
    let pool = EnginePool::new(1, move |index: &usize| {
        Engine::open(all[*index].clone(), EngineOptions::default(), clock())
    });
    let origin = |index: usize| pool.engine(&index).expect("an engine").origin;
    assert!(pool.current(&0).is_none());
    assert_eq!([origin(0), origin(0)], [EngineOrigin::Opened, EngineOrigin::Cached]);
    let generation = || pool.current(&0).map(|engine| engine.workspace.generation());
    let before = generation();
    worlds[0].write("home/.ai/config/config.yaml", "items:\n  max_bytes: 4000000\n");
    assert!(before.is_some() && generation().is_none());
    assert_eq!([origin(0), origin(0)], [EngineOrigin::Reopened, EngineOrigin::Cached]);
    assert_ne!(generation(), before);
    // There is room for one.
    assert_eq!([origin(1), origin(0)], [EngineOrigin::Opened, EngineOrigin::Opened]);
    pool.retain(|_| false);
    assert!(pool.current(&0).is_none());
}
