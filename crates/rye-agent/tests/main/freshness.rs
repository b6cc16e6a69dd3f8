//! A process that stays sees each change of a file at the next call: nothing is remembered by the time that has passed.

use std::sync::Arc;

use rye_agent::prepare::{PreparedThread, ThreadRequest};
use rye_agent::threads::Threads;
use rye_engine::{EnginePool, WallClock};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::Map;

use super::test_space::TestSpace;

/// A time long after every change, so that all files have settled and may be remembered.
struct LaterClock;

impl WallClock for LaterClock {
    fn unix_seconds(&self) -> u64 {
        4_102_444_800
    }
}

/// More calls than any cache needs to be in use.
const CALLS: usize = 5;

fn threads(space: &Arc<TestSpace>) -> Threads {
    let opener = Arc::clone(space);
    let engines = EnginePool::new(1, move |(): &()| opener.open_engine(Box::new(LaterClock)));
    space.threads_with(|setup| setup.engine = Arc::new(move || Ok(engines.engine(&())?.engine)))
}

fn write_tool(space: &TestSpace, description: &str) {
    let text = format!(
        "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: team\nname: look\n\
         description: {description}\nconfig: {{function: file_system.ls}}\nconfig_schema: {{type: object}}\n"
    );
    space.item(ItemType::Tool, "team/look", "yaml", &text);
}

async fn prepare(threads: &Threads) -> PreparedThread {
    let directive = ItemRef::new(ItemType::Directive, ItemId::new("team/work").expect("an id"));
    threads.prepare(ThreadRequest::new(directive, Map::new())).await.expect("prepared")
}

/// What a thread that starts now is made of: the tool's description, the limit of turns, the knowledge.
async fn ingredients(threads: &Threads) -> (String, Option<u64>, Vec<String>) {
    let spec = prepare(threads).await.spec;
    let tools = &spec.template.definitions.tools;
    let look = tools.iter().find(|tool| tool.target["item_id"] == "team/look").expect("offered");
    (look.description.clone(), spec.instance.limits.turns, spec.template.before.clone())
}

#[tokio::test]
async fn changed_files_are_seen_at_once() {
    let space = Arc::new(TestSpace::new());
    write_tool(&space, "First");
    let knowledge = |body: &str| rye_test::knowledge("team", "rules", "Rules", body);
    space.item(ItemType::Knowledge, "team/rules", "md", &knowledge("Be kind."));
    space.directive(
        "team/work",
        "<permissions><execute><tool>team.look</tool></execute></permissions>\
         <context><before>team/rules</before></context>",
        "",
        "Work.",
    );
    let threads = threads(&space);
    let expect = async |tool: &str, turns: u64, rules: &str| {
        for _ in 0..CALLS {
            let expected = (tool.to_owned(), Some(turns), vec![rules.to_owned()]);
            assert_eq!(ingredients(&threads).await, expected);
        }
    };
    expect("First", 25, "Be kind.").await;
    write_tool(&space, "Second one");
    expect("Second one", 25, "Be kind.").await;
    space.config("resilience", "limits: {defaults: {turns: 7}}\n");
    expect("Second one", 7, "Be kind.").await;
    space.item(ItemType::Knowledge, "team/rules", "md", &knowledge("Be brief."));
    expect("Second one", 7, "Be brief.").await;
    space.world.write("home/.ai/config/config.yaml", "items:\n  max_bytes: 4000000\n");
    expect("Second one", 7, "Be brief.").await;
}

#[tokio::test]
async fn unchanged_files_share_one_template() {
    let space = Arc::new(TestSpace::new());
    space.directive("team/work", "", "", "Work.");
    let threads = threads(&space);
    let first = prepare(&threads).await.spec;
    for _ in 0..CALLS {
        assert!(Arc::ptr_eq(&first.template, &prepare(&threads).await.spec.template));
    }
    space.config("resilience", "limits: {defaults: {turns: 7}}\n");
    assert!(!Arc::ptr_eq(&first.template, &prepare(&threads).await.spec.template));
}
