//! Parse and verify 1,000 items, judge a bundle of 1,000 files, and search 10,000 and 100,000 in a warm engine. `cargo bench -p rye-engine`.
#![allow(clippy::expect_used, missing_docs, reason = "a benchmark that cannot set up its world has failed")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rye_engine::verbs::{bundles, init, search, sign, verify};
use rye_engine::{Engine, EngineOptions, WallClock};
use rye_item::ItemType;
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

/// A project with `count` signed items of the three types.
fn project_with_items(count: usize) -> (TestContext, Engine) {
    let (world, engine) = project_with_unsigned_items(count);
    for item_type in ItemType::SEARCHABLE {
        let response = sign::sign_glob(
            &engine,
            &[item_type],
            "**",
            None,
            sign::OthersItems::Leave.into(),
            &mut |_, _| {},
        )
        .expect("signed");
        assert!(response.failed.is_empty(), "{:?}", response.failed.first());
    }
    (world, engine)
}

/// The same, without signatures: a search needs none.
fn project_with_unsigned_items(count: usize) -> (TestContext, Engine) {
    let world = TestContext::new();
    let roots = Roots {
        project: Some(world.project()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    };
    init::init(&roots, &world.project(), "bench", clock).expect("init");
    let words = "alpha beta gamma delta signal budget thread runtime anchor registry cascade ".repeat(8);
    for number in 0..count {
        let category = format!("bulk/g{:03}", number / 100);
        let name = format!("item_{number:05}");
        let needle = if number == count / 2 { " needle" } else { "" };
        let path =
            |folder: &str, extension: &str| format!("project/.ai/{folder}/{category}/{name}{extension}");
        let description = format!("Bulk item {number}{needle}");
        match number % 3 {
            0 => {
                let text = rye_test::tool(&category, &description) + &format!("\n# {words}\n");
                world.write(&path("tools", ".py"), text)
            }
            1 => {
                let text = rye_test::directive(&category, &name, &description) + &words;
                world.write(&path("directives", ".md"), text)
            }
            _ => world.write(
                &path("knowledge", ".md"),
                rye_test::knowledge(&category, &name, &description, &words),
            ),
        };
    }
    let engine = Engine::open(roots, EngineOptions { is_warm: true, ..EngineOptions::default() }, clock())
        .expect("engine");
    (world, engine)
}

/// Searches in a warm engine: rankings that are remembered, and those that are worked out each time.
fn search_benchmarks(criterion: &mut Criterion, count: &str, engine: &Engine) {
    let mut number = 0;
    for (name, query) in [
        ("every item", "signal OR zz"),
        ("a question of common words", "how do I budget the signal zz"),
        ("a question with one rare word", "needle signal zz"),
        ("a typing error", "cascadezz"),
    ] {
        criterion.bench_function(
            &format!("search {count} items, warm: {name}, for the first time"),
            |bencher| {
                bencher.iter(|| {
                    // Another word each time, which no item has: the ranking is never remembered.
                    number += 1;
                    let query = format!("{query}{number}");
                    let options = search::SearchOptions { query, ..search::SearchOptions::default() };
                    black_box(search::search(engine, &options, &mut |_, _| {}).expect("found").total)
                });
            },
        );
    }
    for (name, query) in [
        ("one match", "needle"),
        ("every item", "signal"),
        ("two words", "signal budget"),
        ("a prefix", "need*"),
    ] {
        let options = search::SearchOptions { query: query.to_owned(), ..search::SearchOptions::default() };
        criterion.bench_function(&format!("search {count} items, warm: {name}"), |bencher| {
            bencher
                .iter(|| black_box(search::search(engine, &options, &mut |_, _| {}).expect("found").total));
        });
    }
}

fn benchmarks(criterion: &mut Criterion) {
    let (world, engine) = project_with_items(1_000);
    criterion.bench_function("parse and verify 1,000 items", |bencher| {
        bencher.iter(|| {
            let report =
                verify::verify_all(&engine, verify::VerifyOptions { metadata: true }, &mut |_, _| {});
            assert!(report.is_fully_verified());
            black_box(report.checked)
        });
    });

    let request = bundles::CreateRequest {
        id: "bulk".to_owned(),
        version: "1.0.0".to_owned(),
        description: String::new(),
        entrypoint: None,
        categories: vec!["bulk".to_owned()],
        out: world.path().join("bulk"),
        sign: false,
        with_lockfiles: false,
    };
    assert_eq!(bundles::create(&engine, &request).expect("made").file_count, 1_000);
    criterion.bench_function("verify a bundle of 1,000 files", |bencher| {
        bencher.iter(|| {
            let found = bundles::find(&engine, "./bulk", &world.path()).expect("found");
            let verification = bundles::verify(&engine, &found, &|_, _| {});
            assert!(verification.report.is_verified());
            black_box(verification.report.files_ok)
        });
    });

    let (_world, engine) = project_with_items(10_000);
    search_benchmarks(criterion, "10,000", &engine);
    let (_world, engine) = project_with_unsigned_items(100_000);
    search_benchmarks(criterion, "100,000", &engine);
}

criterion_group! {
    name = items;
    config = Criterion::default().sample_size(20);
    targets = benchmarks
}
criterion_main!(items);
