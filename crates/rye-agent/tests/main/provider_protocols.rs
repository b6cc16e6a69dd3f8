//! Against a server that speaks Anthropic's and OpenAI's protocols, streamed: what each answer and each failure leads to,
//! and how often the server was asked.

use std::sync::Arc;

use rye_agent::driver::CancelSignal;
use rye_agent::money::Nanos;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::ThreadStatus;
use rye_agent::store::LedgerRow;
use rye_agent::threads::{FinishedThread, Threads};
use rye_agent::transcript::TranscriptStatus;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Map, Value, json};

use crate::test_space::{API_KEY, TestSpace};

const PROTOCOLS: [&str; 2] = ["anthropic", "openai"];

const WRITE_PERMISSIONS: &str =
    "<permissions><execute><tool>rye.file-system.write</tool></execute></permissions>";

const WRITE_TOOL: &str = "rye_file_system_write";

fn note_arguments() -> Value {
    json!({"path": "note.txt", "content": "hello"})
}

/// What came of a thread that was answered with these, one after the other; the last again if there are more calls.
struct ProtocolRun {
    space: TestSpace,
    model: FakeModel,
    threads: Threads,
    finished: Arc<FinishedThread>,
}

impl ProtocolRun {
    async fn run(protocol: &str, replies: &[FakeReply]) -> Self {
        Self::run_with(protocol, replies, WRITE_PERMISSIONS, "").await
    }

    async fn run_with(protocol: &str, replies: &[FakeReply], metadata: &str, provider: &str) -> Self {
        let replies = replies.to_vec();
        let model = FakeModel::start(move |seen| {
            let index = usize::try_from(seen.number).unwrap_or(usize::MAX) - 1;
            replies.get(index).or(replies.last()).expect("a reply").clone()
        });
        let space = TestSpace::with_model(&model, protocol);
        if !provider.is_empty() {
            let lines = format!("pricing: {{fake-1: {{input: 1.00, output: 2.00}}}}\n{provider}");
            space.provider(&model, protocol, &lines);
        }
        space.set_fast_retries();
        space.directive("team/note", metadata, "", "Write a note.");
        let threads = space.threads();
        let finished = space.run(&threads, "team/note", Map::new()).await;
        let run = Self { space, model, threads, finished };
        let report = run.space.verify_transcript(&run.threads, &run.finished.thread_id);
        assert_eq!(report.status, TranscriptStatus::Valid, "{protocol}: {report:?}");
        assert_eq!(run.threads.store().audit().expect("a ledger"), Vec::<String>::new(), "{protocol}");
        run
    }

    fn assert_ends(&self, status: ThreadStatus, calls: usize, events: &[&str]) {
        let outcome = &self.finished.outcome;
        assert_eq!(outcome.status, status, "{outcome:?} {:?}", self.space.significant_events());
        assert_eq!(self.model.count(), calls, "{:?}", self.space.significant_events());
        assert_eq!(self.space.significant_events(), events);
    }

    fn ledger(&self) -> LedgerRow {
        let row = self.threads.store().ledger(&self.finished.thread_id).expect("a row");
        assert_eq!((row.reserved_spend, row.actual_spend), (Nanos(0), self.finished.cost.spend));
        row
    }

    /// What the last request told the model of its calls.
    fn results(&self) -> Vec<String> {
        let body = self.model.requests().pop().expect("a request").body;
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let blocks = messages.iter().flat_map(|message| match &message["content"] {
            Value::Array(blocks) => blocks.clone(),
            _ => vec![message.clone()],
        });
        let is_result = |block: &Value| block["type"] == "tool_result" || block["role"] == "tool";
        blocks.filter(is_result).map(|block| block["content"].to_string()).collect()
    }

    fn error_classes(&self) -> Vec<(Value, Value, Value)> {
        let payloads = self.space.payloads("error_classified");
        payloads
            .into_iter()
            .map(|payload| {
                (payload["error_code"].clone(), payload["category"].clone(), payload["attempt"].clone())
            })
            .collect()
    }
}

const RETRY_EVENTS: [&str; 6] = [
    "thread_started",
    "cognition_in",
    "error_classified",
    "retry_scheduled",
    "cognition_out",
    "thread_completed",
];

const ONE_CALL_EVENTS: [&str; 7] = [
    "thread_started",
    "cognition_in",
    "cognition_out",
    "tool_call_start",
    "tool_call_result",
    "cognition_out",
    "thread_completed",
];

#[tokio::test]
async fn full_turn_calls_tool_and_charges_usage() {
    for protocol in PROTOCOLS {
        let replies = [
            FakeReply::calls_and_text("I write.", [(WRITE_TOOL, note_arguments())]).with_usage(100, 0, 10),
            FakeReply::text("It is written.").with_usage(150, 50, 5),
        ];
        let run = ProtocolRun::run(protocol, &replies).await;
        run.assert_ends(ThreadStatus::Completed, 2, &ONE_CALL_EVENTS);
        assert_eq!(run.finished.outcome.result.as_deref(), Some("It is written."));
        assert_eq!(run.space.world.text("project/note.txt"), "hello");
        let cost = run.finished.cost;
        assert_eq!((cost.turns, cost.input_tokens, cost.output_tokens), (2, 250, 15));
        assert_eq!(run.ledger().actual_spend, Nanos(250 * 1000 + 15 * 2000));
        let requests = run.model.requests();
        for request in &requests {
            assert_eq!(request.header("authorization"), Some(format!("Bearer {API_KEY}").as_str()));
            assert_eq!((&request.body["stream"], &request.body["model"]), (&json!(true), &json!("fake-1")));
        }
        assert!(requests[0].body["tools"].to_string().contains(WRITE_TOOL), "{:?}", requests[0].body);
        assert_eq!(run.results().len(), 1, "{}", requests[1].body);
        let file =
            run.space.world.text(&format!("project/.ai/threads/{}/transcript.jsonl", run.finished.thread_id));
        assert!(!file.contains(API_KEY) && file.contains("It is written."));
    }
}

#[tokio::test]
async fn rate_limit_waits_for_retry_after() {
    for protocol in PROTOCOLS {
        let body = json!({"error": {"type": "rate_limit_error", "message": "slow down"}});
        let replies = [FakeReply::status(429, &body, &[("retry-after", "0")]), FakeReply::text("done")];
        let run = ProtocolRun::run(protocol, &replies).await;
        run.assert_ends(ThreadStatus::Completed, 2, &RETRY_EVENTS);
        assert_eq!(run.error_classes(), [(json!("http_429"), json!("rate_limited"), json!(1))]);
        assert_eq!(run.space.payloads("retry_scheduled")[0]["delay_ms"], 0);
        assert_eq!(run.ledger().unknown_spend, Nanos(0), "a refused request costs nothing");
    }
}

#[tokio::test]
async fn backoff_follows_header_and_is_cancellable() {
    let model = FakeModel::start(|_| FakeReply::status(429, &json!({}), &[("retry-after", "30")]));
    let space = TestSpace::with_model(&model, "anthropic");
    space.directive("team/note", WRITE_PERMISSIONS, "", "Write a note.");
    let threads = space.threads();
    let directive = ItemRef::new(ItemType::Directive, ItemId::new("team/note").expect("an id"));
    let signal = CancelSignal::default();
    let started =
        threads.start(ThreadRequest::new(directive, Map::new()), signal.clone()).await.expect("started");
    space.wait_for_event("retry_scheduled").await;
    let delay = space.payloads("retry_scheduled")[0]["delay_ms"].as_u64().expect("a delay");
    assert!((30_000..=33_000).contains(&delay), "{delay}");
    signal.cancel("enough");
    let finished = started.finished().await.expect("finished");
    assert_eq!((finished.outcome.status, model.count()), (ThreadStatus::Cancelled, 1));
}

#[tokio::test]
async fn server_errors_are_retried() {
    for protocol in PROTOCOLS {
        for (status, code) in [(529, "http_529"), (500, "http_5xx"), (503, "http_5xx")] {
            let replies = [FakeReply::status_text(status, "busy", &[]), FakeReply::text("done")];
            let run = ProtocolRun::run(protocol, &replies).await;
            run.assert_ends(ThreadStatus::Completed, 2, &RETRY_EVENTS);
            assert_eq!(run.error_classes(), [(json!(code), json!("transient"), json!(1))]);
            assert_eq!(run.ledger().unknown_spend, Nanos(0));
        }
    }
}

#[tokio::test]
async fn persistent_server_error_suspends() {
    for protocol in PROTOCOLS {
        let run = ProtocolRun::run(protocol, &[FakeReply::status_text(500, "no", &[])]).await;
        assert_eq!((run.finished.outcome.status, run.model.count()), (ThreadStatus::Suspended, 4));
        assert_eq!(run.finished.outcome.reason.map(|reason| reason.as_str()), Some("provider"));
        let attempts: Vec<Value> = run.error_classes().into_iter().map(|(_, _, attempt)| attempt).collect();
        assert_eq!(attempts, [1, 2, 3, 4]);
        assert_eq!(run.space.payloads("retry_scheduled").len(), 3);
        let error = run.finished.outcome.error.clone().unwrap_or_default();
        assert!(error.contains("gave up after 4 attempts"), "{error}");
        assert_eq!(run.space.significant_events().last().map(String::as_str), Some("thread_suspended"));
    }
}

#[tokio::test]
async fn permanent_errors_are_not_retried() {
    for protocol in PROTOCOLS {
        for (status, code) in [(400, "validation_error"), (401, "auth_failure")] {
            let body = json!({"error": {"type": "some_error", "message": format!("not with {API_KEY}")}});
            let run = ProtocolRun::run(protocol, &[FakeReply::status(status, &body, &[])]).await;
            run.assert_ends(
                ThreadStatus::Error,
                1,
                &["thread_started", "cognition_in", "error_classified", "thread_error"],
            );
            assert_eq!(run.error_classes(), [(json!(code), json!("permanent"), json!(1))]);
            let error = run.finished.outcome.error.clone().unwrap_or_default();
            assert!(error.contains("not with") && !error.contains(API_KEY), "{error}");
        }
    }
}

#[tokio::test]
async fn timed_out_call_charges_its_prompt() {
    // Long enough for the second answer to come in time on a slow machine; all wait at once.
    let run = |protocol| async move {
        let replies = [FakeReply::hang(), FakeReply::text("done").with_usage(10, 0, 1)];
        ProtocolRun::run_with(protocol, &replies, WRITE_PERMISSIONS, "timeout: 60\n").await
    };
    for run in futures_util::future::join_all(PROTOCOLS.map(run)).await {
        run.assert_ends(ThreadStatus::Completed, 2, &RETRY_EVENTS);
        assert_eq!(run.error_classes(), [(json!("network_timeout"), json!("transient"), json!(1))]);
        let row = run.ledger();
        assert!((1..1000 * 2000).contains(&row.unknown_spend.0), "{row:?}");
        assert_eq!(row.actual_spend, row.unknown_spend.plus(Nanos(10 * 1000 + 2000)));
    }
}

#[tokio::test]
async fn broken_stream_is_recorded_and_charged() {
    for protocol in PROTOCOLS {
        let replies = [FakeReply::reset_mid_stream(6), FakeReply::text("done").with_usage(10, 0, 1)];
        let run = ProtocolRun::run(protocol, &replies).await;
        let mut story = RETRY_EVENTS.to_vec();
        story.insert(2, "cognition_out");
        run.assert_ends(ThreadStatus::Completed, 2, &story);
        let partial = &run.space.payloads("cognition_out")[0];
        assert_eq!((&partial["is_partial"], &partial["spend_is_unknown"]), (&json!(true), &json!(true)));
        assert!(partial["text"].as_str().is_some_and(|text| text.starts_with("one two")), "{partial}");
        assert_eq!(run.error_classes()[0].1, "transient");
        let row = run.ledger();
        assert!((1..1000 * 2000).contains(&row.unknown_spend.0), "{row:?}");
        assert!(partial["spend_at_most"].as_f64() > partial["spend"].as_f64(), "{partial}");
        assert_eq!(
            run.finished.outcome.result.as_deref(),
            Some("done"),
            "the broken words are not part of it"
        );
    }
}

#[tokio::test]
async fn truncated_call_is_reported_not_made() {
    for protocol in PROTOCOLS {
        let replies = [
            FakeReply::truncated_tool_json(WRITE_TOOL, r#"{"path": "note.txt", "content": "hel"#),
            FakeReply::text("done"),
        ];
        let run = ProtocolRun::run(protocol, &replies).await;
        run.assert_ends(ThreadStatus::Completed, 2, &ONE_CALL_EVENTS);
        assert!(!run.space.world.project().join("note.txt").exists());
        assert!(run.results()[0].contains("no JSON object"), "{:?}", run.results());
    }
}

#[tokio::test]
async fn truncated_response_continues() {
    for protocol in PROTOCOLS {
        let run = ProtocolRun::run(protocol, &[FakeReply::length("one "), FakeReply::text("two")]).await;
        let story = [
            "thread_started",
            "cognition_in",
            "cognition_out",
            "cognition_in",
            "cognition_out",
            "thread_completed",
        ];
        run.assert_ends(ThreadStatus::Completed, 2, &story);
        assert_eq!(run.finished.outcome.result.as_deref(), Some("one two"));
        assert_eq!(run.space.payloads("cognition_out")[0]["truncated"], true);
    }
}

#[tokio::test]
async fn empty_response_fails() {
    for protocol in PROTOCOLS {
        let run = ProtocolRun::run(protocol, &[FakeReply::empty()]).await;
        run.assert_ends(
            ThreadStatus::Error,
            1,
            &["thread_started", "cognition_in", "error_classified", "thread_error"],
        );
        assert_eq!(run.error_classes(), [(json!("default"), json!("permanent"), json!(1))]);
    }
}

#[tokio::test]
async fn unknown_tool_call_is_reported() {
    for protocol in PROTOCOLS {
        let run =
            ProtocolRun::run(protocol, &[FakeReply::calls([("rm_rf", json!({}))]), FakeReply::text("done")])
                .await;
        run.assert_ends(ThreadStatus::Completed, 2, &ONE_CALL_EVENTS);
        assert!(run.results()[0].contains("there is no tool `rm_rf`"), "{:?}", run.results());
    }
}

#[tokio::test]
async fn denied_call_does_not_block_others() {
    for protocol in PROTOCOLS {
        let denied = json!({"item_type": "tool", "item_id": "rye/bash", "parameters": {"command": "id"}});
        let replies = [
            FakeReply::calls([("rye_execute", denied), (WRITE_TOOL, note_arguments())]),
            FakeReply::text("done"),
        ];
        let run = ProtocolRun::run(protocol, &replies).await;
        let story = [
            "thread_started",
            "cognition_in",
            "cognition_out",
            "tool_call_start",
            "permission_denied",
            "tool_call_result",
            "tool_call_start",
            "tool_call_result",
            "cognition_out",
            "thread_completed",
        ];
        run.assert_ends(ThreadStatus::Completed, 2, &story);
        assert_eq!(run.space.world.text("project/note.txt"), "hello");
        let results = run.results();
        assert!(
            results[0].contains("rye.execute.tool.rye.bash") && results[1].contains("note.txt"),
            "{results:?}"
        );
    }
}

#[tokio::test]
async fn invalid_arguments_are_reported_not_run() {
    for protocol in PROTOCOLS {
        let replies = [
            FakeReply::calls([(WRITE_TOOL, json!({"path": ["note.txt"], "content": "hello", "mode": 7}))]),
            FakeReply::call_with_arguments(WRITE_TOOL, "[1, 2]"),
            FakeReply::text("done"),
        ];
        let run = ProtocolRun::run(protocol, &replies).await;
        assert_eq!((run.finished.outcome.status, run.model.count()), (ThreadStatus::Completed, 3));
        assert!(!run.space.world.project().join("note.txt").exists());
        let results = run.results();
        assert!(results[0].contains("path") && results[0].contains("error"), "{results:?}");
        assert!(results[1].contains("no JSON object"), "{results:?}");
    }
}

#[tokio::test]
async fn declared_outputs_are_returned_by_a_call() {
    let outputs =
        "<outputs><output name=\"answer\" type=\"string\" required=\"true\">The answer</output></outputs>";
    for protocol in PROTOCOLS {
        let replies = [
            FakeReply::text("I am done."),
            FakeReply::calls([("directive_return", json!({"answer": "42"}))]),
        ];
        let model = FakeModel::start(move |seen| {
            replies[usize::try_from(seen.number - 1).unwrap_or(1).min(1)].clone()
        });
        let space = TestSpace::with_model(&model, protocol);
        space.directive("team/answer", "", outputs, "Answer.");
        let threads = space.threads();
        let finished = space.run(&threads, "team/answer", Map::new()).await;
        assert_eq!(
            (finished.outcome.status, model.count()),
            (ThreadStatus::Completed, 2),
            "{:?}",
            finished.outcome
        );
        assert_eq!(json!(finished.outcome.outputs), json!({"answer": "42"}));
        assert_eq!(space.payloads("directive_return").len(), 1);
    }
}
