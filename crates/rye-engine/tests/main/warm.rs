use rye_engine::verbs::{init, load, search, sign};
use rye_engine::{Clock, Code, Engine, Options};
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

fn roots(world: &World) -> Roots {
    Roots {
        project: Some(world.project()),
        user: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}

fn warm(world: &World) -> Engine {
    init::init(&roots(world), &world.project(), "test", clock).expect("init");
    Engine::open(roots(world), Options { is_warm: true, ..Options::default() }, clock()).expect("engine")
}

fn found(engine: &Engine, query: &str) -> Vec<String> {
    let options = search::Options { query: query.to_owned(), ..search::Options::default() };
    let answer = search::search(engine, &options, &mut |_, _| {}).expect("search");
    answer.results.into_iter().map(|row| row.item_id).collect()
}

/// Searches until the answer is as wanted: the news of a change arrives through another thread.
fn finds_in_time(engine: &Engine, query: &str, wanted: &[&str]) -> bool {
    (0..10_000).any(|_| {
        std::thread::yield_now();
        found(engine, query) == wanted
    })
}

fn tool(id: &str) -> ItemRef {
    ItemRef::new(ItemType::Tool, ItemId::new(id).expect("id"))
}

#[test]
fn a_warm_search_notices_new_edited_and_removed_files() {
    let world = World::new();
    let engine = warm(&world);
    assert_eq!(found(&engine, "zebra"), Vec::<String>::new());
    let path = world.write("project/.ai/tools/demo/one.py", rye_test::tool("demo", "about a zebra"));
    assert!(finds_in_time(&engine, "zebra", &["demo/one"]));
    world.write("project/.ai/tools/demo/one.py", rye_test::tool("demo", "about a giraffe"));
    assert!(finds_in_time(&engine, "zebra", &[]));
    assert!(finds_in_time(&engine, "giraffe", &["demo/one"]));
    lillux::file::remove(&path).expect("removed");
    assert!(finds_in_time(&engine, "giraffe", &[]));
}

#[test]
fn a_warm_search_notices_a_new_folder_and_its_files() {
    let world = World::new();
    let engine = warm(&world);
    assert_eq!(found(&engine, "okapi"), Vec::<String>::new());
    world.write("project/.ai/tools/a/b/c/deep.py", rye_test::tool("a/b/c", "about an okapi"));
    assert!(finds_in_time(&engine, "okapi", &["a/b/c/deep"]));
}

#[test]
fn a_new_shadowing_item_wins_at_once() {
    let world = World::new();
    let engine = warm(&world);
    world.write("home/.ai/tools/demo/one.py", rye_test::tool("demo", "the user's"));
    sign::sign_item(&engine, &tool("demo/one"), None).expect("signed");
    let loaded = load::load(&engine, &tool("demo/one"), load::Options::default()).expect("loaded");
    assert_eq!(loaded.space.to_string(), "user");
    world.write("project/.ai/tools/demo/one.py", rye_test::tool("demo", "the project's"));
    let refused = load::load(&engine, &tool("demo/one"), load::Options::default()).expect_err("unsigned");
    assert_eq!(refused.code, Code::Unsigned);
}

#[test]
fn a_refresh_notices_new_config_and_new_keys() {
    let world = World::new();
    let mut engine = warm(&world);
    assert!(engine.workspace.is_current());
    let limit = |engine: &Engine| engine.workspace.settings.get("search.limit").cloned();
    assert_eq!(limit(&engine), Some(10.into()));
    world.write("project/.ai/config/config.yaml", "search:\n  limit: 3\n");
    assert!(!engine.workspace.is_current());
    engine.refresh().expect("refreshed");
    assert_eq!(limit(&engine), Some(3.into()));

    let stranger = World::new();
    let foreign = warm(&stranger);
    let own = foreign.workspace.own.clone().expect("key");
    let document = stranger.text(&format!("home/.ai/config/keys/trusted/{}.toml", own.fingerprint()));
    assert!(!engine.workspace.keys.is_general(&own));
    world.write(&format!("home/.ai/config/keys/trusted/{}.toml", own.fingerprint()), document);
    engine.refresh().expect("refreshed");
    assert!(engine.workspace.keys.is_general(&own));
}

#[test]
fn a_damaged_index_is_made_anew() {
    let world = World::new();
    let engine = warm(&world);
    assert_eq!(found(&engine, "hello").len(), 2);
    let index = rye_space::search::index_path(&engine.workspace.roots);
    assert!(index.is_file());
    for garbage in [&b"garbage"[..], b"", b"SQLite format 3\0 but not really"] {
        lillux::file::write_atomic(&index, garbage, lillux::file::Mode::Kept).expect("damaged");
        let cold = Engine::open(roots(&world), Options::default(), clock()).expect("engine");
        assert_eq!(found(&cold, "hello").len(), 2);
    }
}
