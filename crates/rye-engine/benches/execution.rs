//! Running tools in a warm engine, beside bare processes in the same run. `cargo build --release -p rye-cli`, then
//! `cargo bench -p rye-engine --bench execution`; `RYE_LAUNCHER` names another binary to start processes with.
#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark that cannot set up its world has failed, and starts processes to compare with"
)]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use lillux::CancelToken;
use lillux::process::Launcher;
use rye_engine::verbs::execute::{self, Caller, ExecuteRequest};
use rye_engine::verbs::init;
use rye_engine::{Engine, EngineOptions, HostEnvironment, WallClock, chain_cache};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::TestContext;

struct FixedClock;

impl WallClock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

fn launcher() -> Launcher {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/rye");
    Launcher::new(std::env::var_os("RYE_LAUNCHER").map_or(built, PathBuf::from)).with_pool()
}

fn open_engine(world: &TestContext) -> Engine {
    let roots = Roots {
        project: Some(world.project()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    };
    init::init(&roots, &world.project(), "bench", || Box::new(FixedClock)).expect("init");
    let host = HostEnvironment {
        variables: std::env::vars().filter(|(name, _)| name == "PATH").collect(),
        home: world.home(),
        current_dir: world.project(),
        launcher: launcher(),
        ..HostEnvironment::default()
    };
    let options = EngineOptions { is_warm: true, host, ..EngineOptions::default() };
    Engine::open(roots, options, Box::new(FixedClock)).expect("engine")
}

fn tool(id: &str) -> ItemRef {
    ItemRef::new(ItemType::Tool, ItemId::new(id).expect("an id"))
}

fn execute_tool(engine: &Engine, item: &ItemRef, words: &[(&str, &str)]) {
    let request = ExecuteRequest::new(item.clone(), CancelToken::new().expect("an event"))
        .with_words(words.iter().map(|(name, word)| ((*name).to_owned(), (*word).to_owned())).collect())
        .with_caller(Caller::Person);
    black_box(execute::execute(engine, &request).expect("it runs"));
}

fn time_bare_process(program: &str, arguments: &[&str]) -> Duration {
    let start = Instant::now();
    let status = std::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .expect("it runs");
    assert!(status.success());
    start.elapsed()
}

/// Medians of both, taken in turns so that the machine's mood is the same for both.
fn compare_medians(name: &str, mut ours: impl FnMut(), mut theirs: impl FnMut()) {
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let start = Instant::now();
        ours();
        own.push(start.elapsed());
        let start = Instant::now();
        theirs();
        other.push(start.elapsed());
    }
    own.sort();
    other.sort();
    let (own, other) = (own[30].as_secs_f64() * 1e3, other[30].as_secs_f64() * 1e3);
    println!("{name}: {own:.2} ms, bare {other:.2} ms, over it {:.2} ms", own - other);
}

fn benchmarks(criterion: &mut Criterion) {
    let world = TestContext::new();
    let engine = open_engine(&world);
    let hello = tool("examples/hello");
    criterion.bench_function("resolve, verify and validate a chain of three, warm", |bencher| {
        bencher.iter(|| black_box(chain_cache::build_valid_chain(&engine, &hello, None).expect("valid")));
    });
    world.write("project/notes.txt", "one\ntwo\nthree\n");
    for (id, words) in [
        ("rye/file-system/read", vec![("path", "notes.txt")]),
        ("rye/file-system/ls", vec![]),
        ("rye/file-system/write", vec![("path", "out.txt"), ("content", "hello")]),
        ("rye/core/system/time", vec![]),
    ] {
        let item = tool(id);
        criterion.bench_function(&format!("{id}, warm"), |bencher| {
            bencher.iter(|| execute_tool(&engine, &item, &words));
        });
    }
    let python = std::process::Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .expect("python3");
    let python = String::from_utf8(python.stdout).expect("text").trim().to_owned();
    execute_tool(&engine, &hello, &[]);
    compare_medians(
        "python tool, warm",
        || execute_tool(&engine, &hello, &[]),
        || {
            time_bare_process(&python, &["-c", "pass"]);
        },
    );
    compare_medians(
        "rye/bash true, warm",
        || execute_tool(&engine, &tool("rye/bash"), &[("command", "true")]),
        || {
            time_bare_process("/bin/bash", &["-c", "true"]);
        },
    );
}

criterion_group! {
    name = execution;
    config = Criterion::default().sample_size(30);
    targets = benchmarks
}
criterion_main!(execution);
