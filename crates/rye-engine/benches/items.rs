//! Parse and verify 1,000 items, judge a bundle of 1,000 files, and search 10,000 in a warm engine. `cargo bench -p rye-engine`.
#![allow(clippy::expect_used, missing_docs, reason = "a benchmark that cannot set up its world has failed")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rye_engine::verbs::{bundles, init, search, sign, verify};
use rye_engine::{Clock, Engine, Options};
use rye_item::ItemType;
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

/// A project with `count` signed items of the three types.
fn project(count: usize) -> (World, Engine) {
    let world = World::new();
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
    let engine =
        Engine::open(roots, Options { is_warm: true, ..Options::default() }, clock()).expect("engine");
    for item_type in ItemType::FINDABLE {
        let answer = sign::sign_glob(&engine, item_type, "**", None, &mut |_, _| {}).expect("signed");
        assert!(answer.failed.is_empty(), "{:?}", answer.failed.first());
    }
    (world, engine)
}

fn benchmarks(criterion: &mut Criterion) {
    let (world, engine) = project(1_000);
    criterion.bench_function("parse and verify 1,000 items", |bencher| {
        bencher.iter(|| {
            let answer = verify::verify_all(&engine, verify::Options { metadata: true }, &mut |_, _| {});
            assert!(answer.is_all_full());
            black_box(answer.checked)
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
            let judged = bundles::verify(&engine, &found, &|_, _| {});
            assert!(judged.report.is_verified());
            black_box(judged.report.files_ok)
        });
    });

    let (_world, engine) = project(10_000);
    let mut number = 0;
    criterion.bench_function("search 10,000 items, warm: every item, for the first time", |bencher| {
        bencher.iter(|| {
            // Another word each time, which no item has: the ranking is never remembered.
            number += 1;
            let options =
                search::Options { query: format!("signal OR zz{number}"), ..search::Options::default() };
            black_box(search::search(&engine, &options, &mut |_, _| {}).expect("found").total)
        });
    });
    for (name, query) in [
        ("one match", "needle"),
        ("every item", "signal"),
        ("two words", "signal budget"),
        ("a prefix", "need*"),
    ] {
        let options = search::Options { query: query.to_owned(), ..search::Options::default() };
        criterion.bench_function(&format!("search 10,000 items, warm: {name}"), |bencher| {
            bencher
                .iter(|| black_box(search::search(&engine, &options, &mut |_, _| {}).expect("found").total));
        });
    }
}

criterion_group! {
    name = items;
    config = Criterion::default().sample_size(20);
    targets = benchmarks
}
criterion_main!(items);
