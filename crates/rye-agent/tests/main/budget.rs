//! Budgets over a tree: what a parent may use is never exceeded, however many of its children ask at once.

use std::sync::Arc;

use rye_agent::driver::CancelSignal;
use rye_agent::machine::{CostBound, Effect, ThreadEvent, ThreadState, step};
use rye_agent::money::Nanos;
use rye_agent::prepare::{ParentThread, ThreadRequest};
use rye_agent::status::{SuspendReason, ThreadStatus};
use rye_agent::store::LedgerRow;
use rye_agent::threads::Threads;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::test_space::TestSpace;

const HIGH_CAPS: &str = "concurrency: {max_concurrent_children: 1000, max_total_threads: 1000, queue_timeout_seconds: 0}\nlimits: {defaults: {spawns: 1000}}\n";

fn request(id: &str, limits: &Value) -> ThreadRequest {
    let directive = ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id"));
    ThreadRequest {
        limits: limits.as_object().cloned().unwrap_or_default(),
        ..ThreadRequest::new(directive, Map::new())
    }
}

/// What the first call of a thread reserves.
async fn first_call_bound(threads: &Threads, id: &str) -> CostBound {
    let spec = threads.prepare(request(id, &json!({}))).await.expect("prepared").spec;
    let effects = step(&mut ThreadState::new(spec), 0, ThreadEvent::Started);
    let bound = effects.iter().find_map(|effect| match effect {
        Effect::CallModel { cost_bound: bound, .. } => Some(*bound),
        _ => None,
    });
    bound.expect("a call")
}

/// A race of `children` on a parent whose budget covers `funded` of their calls beside its own, and none of which waits: all
/// are in flight or refused before the first is answered. Gives the parent's row of the ledger at that moment, and at the end.
async fn race(
    children: usize,
    funded: usize,
    provider: &str,
    limits: fn(&CostBound, &CostBound, u64) -> Value,
) -> [LedgerRow; 2] {
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |_| FakeReply::text("done").with_usage(10, 0, 1).with_gate(&held));
    let space = TestSpace::with_model(&model, "openai");
    space.provider(&model, "openai", provider);
    space.config("resilience", HIGH_CAPS);
    space.directive("team/parent", "", "", "Wait for all of them.");
    space.directive("team/child", "", "", "Do a little.");
    let threads = space.threads();
    let (own, each) =
        (first_call_bound(&threads, "team/parent").await, first_call_bound(&threads, "team/child").await);
    let limits = limits(&own, &each, u64::try_from(funded).expect("a number"));
    let prepared = threads.prepare(request("team/parent", &limits)).await.expect("prepared");
    let spec = Arc::clone(&prepared.spec);
    let parent = threads.start_prepared(prepared, CancelSignal::default()).await.expect("a parent");
    model.wait_for_requests(1);
    let id = parent.thread_id.clone();

    let mut racing = JoinSet::new();
    for _ in 0..children {
        let (threads, spec) = (threads.clone(), Arc::clone(&spec));
        racing.spawn(async move {
            let parent = Some(ParentThread { limits: spec.instance.limits, spec });
            let order = ThreadRequest { parent, ..request("team/child", &json!({})) };
            let started = threads.start(order, CancelSignal::default()).await.expect("a child");
            started.finished().await.expect("an end").outcome.clone()
        });
    }
    for _ in funded..children {
        let refused = racing.join_next().await.expect("a child").expect("no panic");
        assert_eq!(
            (refused.status, refused.reason),
            (ThreadStatus::Suspended, Some(SuspendReason::Budget)),
            "{refused:?}"
        );
    }
    model.wait_for_requests(1 + funded);
    let row = || threads.store().ledger(&id).expect("a row");
    let in_flight = row();
    gate.open();
    while let Some(ended) = racing.join_next().await {
        let outcome = ended.expect("no panic");
        assert_eq!(outcome.status, ThreadStatus::Completed, "{outcome:?}");
    }
    let finished = parent.finished().await.expect("an end");
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    assert_eq!(model.count(), 1 + funded, "so many calls reached the server");
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
    [in_flight, row()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parent_budget_funds_exactly_100_children() {
    let priced = "pricing: {fake-1: {input: 1.00, output: 2.00}}\n";
    let limits = |own: &CostBound, each: &CostBound, funded| {
        // Nothing is left for one more, however well its prompt is estimated.
        let max_spend = Nanos(own.spend.0 + each.spend.0 * funded);
        json!({"spend": max_spend.to_decimal()})
    };
    let [in_flight, ended] = race(300, 100, priced, limits).await;
    let max_spend = in_flight.caps.spend.expect("a limit");
    assert!(in_flight.subtree_spend.plus(in_flight.subtree_reserved) <= max_spend, "{in_flight:?}");
    assert_eq!(ended.subtree_spend, Nanos(101 * (10 * 1000 + 2000)), "what was used, to the last");
    assert_eq!((ended.subtree_reserved, ended.unknown_spend), (Nanos(0), Nanos(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tokens_are_budgeted_without_price() {
    let limits = |own: &CostBound, each: &CostBound, funded| {
        assert_eq!((own.spend, each.spend), (Nanos(0), Nanos(0)));
        json!({"tokens": own.tokens + each.tokens * funded})
    };
    let [in_flight, ended] = race(30, 10, "priced: false\n", limits).await;
    let max_tokens = in_flight.caps.tokens.expect("a limit");
    assert!(in_flight.subtree_tokens + in_flight.subtree_reserved_tokens <= max_tokens, "{in_flight:?}");
    assert_eq!((ended.subtree_tokens, ended.subtree_reserved_tokens), (11 * 11, 0));
}

#[tokio::test]
async fn child_never_exceeds_parent_limits() {
    let write = json!({"item_type": "tool", "item_id": "rye/file-system/write",
        "parameters": {"path": "made.txt", "content": "x"}});
    let model = FakeModel::start(move |seen| {
        let is_child = seen.body.to_string().contains("I am the child.");
        match (is_child, seen.tool_results) {
            (false, 0) => {
                let call =
                    json!({"directive_name": "team/child", "limit_overrides": {"turns": 90, "spend": 9}});
                FakeReply::calls([("rye_agent_threads_thread_directive", call)])
            }
            (true, 0) => FakeReply::calls([("rye_execute", write.clone())]),
            _ => FakeReply::text("done"),
        }
    });
    let space = TestSpace::with_model(&model, "anthropic");
    let parent = "<permissions><execute><tool>rye.file-system.read</tool><tool>rye.agent.threads.thread_directive</tool></execute></permissions><limits turns=\"7\" spend=\"0.5\" spawns=\"2\" depth=\"3\"/>";
    space.directive("team/parent", parent, "", "I am the parent.");
    let child = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions><limits turns=\"80\" spend=\"8\" spawns=\"50\" depth=\"9\"/>";
    space.directive("team/child", child, "", "I am the child.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    assert_eq!(model.count(), 4);
    assert!(!space.world.project().join("made.txt").exists());
    let children = threads.store().children(&finished.thread_id).expect("children");
    let [child] = children.as_slice() else { panic!("{children:?}") };
    assert_eq!(child.status, ThreadStatus::Completed);
    let limits = &child.limits;
    assert_eq!(limits.spend, Some(Nanos(500_000_000)));
    assert_eq!((limits.turns, limits.spawns, limits.depth), (Some(7), Some(2), Some(2)));
    let state = space.world.text(&format!("project/.ai/threads/{}/state.json", child.id));
    let state: Value = serde_json::from_str(&state).expect("JSON");
    assert_eq!(state["required_caps"], json!(["rye.execute.tool.rye.file-system.read"]));
    let denied = space.payloads("permission_denied");
    assert_eq!(denied[0]["denied_item_id"], "rye/file-system/write");
    let [own, all] =
        [finished.cost.spend, threads.store().ledger(&finished.thread_id).expect("a row").subtree_spend];
    assert_eq!(all, own.plus(child.cost.spend));
}

#[tokio::test]
async fn recursive_spawning_stops_at_caps() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => {
            let call = ("rye_agent_threads_thread_directive", json!({"directive_name": "team/bomb"}));
            FakeReply::calls([call.clone(), call.clone(), call])
        }
        _ => FakeReply::text("done"),
    });
    let space = TestSpace::with_model(&model, "openai");
    let bomb = "<permissions><execute><tool>rye.agent.threads.thread_directive</tool></execute></permissions><limits spawns=\"2\" depth=\"3\" spend=\"50\" tokens=\"5000000\"/>";
    space.config("resilience", HIGH_CAPS);
    space.directive("team/bomb", bomb, "", "Start yourself.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/bomb", Map::new()).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let tree = threads.store().subtree(&finished.thread_id).expect("a tree");
    // Two children each, three levels below the root.
    assert_eq!(tree.len(), 1 + 2 + 4 + 8);
    assert!(tree.iter().all(|row| row.status == ThreadStatus::Completed && row.depth <= 3), "{tree:?}");
    assert_eq!(model.count(), 2 * tree.len(), "each is asked twice, and a refused child costs nothing");
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
}
