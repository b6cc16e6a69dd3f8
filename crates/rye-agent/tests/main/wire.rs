//! Against a server that speaks Anthropic's and OpenAI's protocols, streamed: what each answer and each failure leads to,
//! and how often the server was asked.

use std::sync::Arc;

use rye_agent::driver::Signal;
use rye_agent::money::Nanos;
use rye_agent::prepare::Order;
use rye_agent::status::Status;
use rye_agent::store::LedgerRow;
use rye_agent::threads::{Finished, Threads};
use rye_agent::transcript::Verified;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Reply};
use serde_json::{Map, Value, json};

use crate::space::{SECRET, Space};

const PROTOCOLS: [&str; 2] = ["anthropic", "openai"];

const WRITER: &str = "<permissions><execute><tool>rye.file-system.write</tool></execute></permissions>";

const WRITE: &str = "rye_file_system_write";

fn note() -> Value {
    json!({"path": "note.txt", "content": "hello"})
}

/// What came of a thread that was answered with these, one after the other; the last again if there are more calls.
struct Run {
    space: Space,
    model: FakeModel,
    threads: Threads,
    finished: Arc<Finished>,
}

impl Run {
    async fn of(protocol: &str, replies: &[Reply]) -> Self {
        Self::with(protocol, replies, WRITER, "").await
    }

    async fn with(protocol: &str, replies: &[Reply], metadata: &str, provider: &str) -> Self {
        let replies = replies.to_vec();
        let model = FakeModel::start(move |seen| {
            let place = usize::try_from(seen.n).unwrap_or(usize::MAX) - 1;
            replies.get(place).or(replies.last()).expect("a reply").clone()
        });
        let space = Space::with_model(&model, protocol);
        if !provider.is_empty() {
            let lines = format!("pricing: {{fake-1: {{input: 1.00, output: 2.00}}}}\n{provider}");
            space.provider(&model, protocol, &lines);
        }
        space.retries_at_once();
        space.directive("team/note", metadata, "", "Write a note.");
        let threads = space.threads();
        let finished = space.run(&threads, "team/note", Map::new()).await;
        let run = Self { space, model, threads, finished };
        let report = run.space.verified(&run.threads, &run.finished.thread_id);
        assert_eq!(report.status, Verified::Valid, "{protocol}: {report:?}");
        assert_eq!(run.threads.store().audit().expect("a ledger"), Vec::<String>::new(), "{protocol}");
        run
    }

    fn ends(&self, status: Status, calls: usize, story: &[&str]) {
        let outcome = &self.finished.outcome;
        assert_eq!(outcome.status, status, "{outcome:?} {:?}", self.space.story());
        assert_eq!(self.model.count(), calls, "{:?}", self.space.story());
        assert_eq!(self.space.story(), story);
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

    fn classified(&self) -> Vec<(Value, Value, Value)> {
        let payloads = self.space.payloads("error_classified");
        payloads
            .into_iter()
            .map(|said| (said["error_code"].clone(), said["category"].clone(), said["attempt"].clone()))
            .collect()
    }
}

const TRIED_AGAIN: [&str; 6] = [
    "thread_started",
    "cognition_in",
    "error_classified",
    "retry_scheduled",
    "cognition_out",
    "thread_completed",
];

const ONE_CALL: [&str; 7] = [
    "thread_started",
    "cognition_in",
    "cognition_out",
    "tool_call_start",
    "tool_call_result",
    "cognition_out",
    "thread_completed",
];

#[tokio::test]
async fn a_full_turn_cycle_asks_twice_writes_once_and_costs_what_was_used() {
    for protocol in PROTOCOLS {
        let replies = [
            Reply::calls_and_text("I write.", [(WRITE, note())]).usage(100, 0, 10),
            Reply::text("It is written.").usage(150, 50, 5),
        ];
        let run = Run::of(protocol, &replies).await;
        run.ends(Status::Completed, 2, &ONE_CALL);
        assert_eq!(run.finished.outcome.result.as_deref(), Some("It is written."));
        assert_eq!(run.space.world.text("project/note.txt"), "hello");
        let cost = run.finished.cost;
        assert_eq!((cost.turns, cost.input_tokens, cost.output_tokens), (2, 250, 15));
        assert_eq!(run.ledger().actual_spend, Nanos(250 * 1000 + 15 * 2000));
        let requests = run.model.requests();
        for request in &requests {
            assert_eq!(request.header("authorization"), Some(format!("Bearer {SECRET}").as_str()));
            assert_eq!((&request.body["stream"], &request.body["model"]), (&json!(true), &json!("fake-1")));
        }
        assert!(requests[0].body["tools"].to_string().contains(WRITE), "{:?}", requests[0].body);
        assert_eq!(run.results().len(), 1, "{}", requests[1].body);
        let file =
            run.space.world.text(&format!("project/.ai/threads/{}/transcript.jsonl", run.finished.thread_id));
        assert!(!file.contains(SECRET) && file.contains("It is written."));
    }
}

#[tokio::test]
async fn a_rate_limit_is_waited_out_as_the_server_says() {
    for protocol in PROTOCOLS {
        let body = json!({"error": {"type": "rate_limit_error", "message": "slow down"}});
        let replies = [Reply::status(429, &body, &[("retry-after", "0")]), Reply::text("done")];
        let run = Run::of(protocol, &replies).await;
        run.ends(Status::Completed, 2, &TRIED_AGAIN);
        assert_eq!(run.classified(), [(json!("http_429"), json!("rate_limited"), json!(1))]);
        assert_eq!(run.space.payloads("retry_scheduled")[0]["delay_ms"], 0);
        assert_eq!(run.ledger().unknown_spend, Nanos(0), "a refused request costs nothing");
    }
}

#[tokio::test]
async fn a_wait_is_as_long_as_the_server_says_and_can_be_cancelled() {
    let model = FakeModel::start(|_| Reply::status(429, &json!({}), &[("retry-after", "30")]));
    let space = Space::with_model(&model, "anthropic");
    space.directive("team/note", WRITER, "", "Write a note.");
    let threads = space.threads();
    let directive = ItemRef::new(ItemType::Directive, ItemId::new("team/note").expect("an id"));
    let signal = Signal::default();
    let started = threads.start(Order::new(directive, Map::new()), signal.clone()).await.expect("started");
    space.heard_of("retry_scheduled").await;
    let delay = space.payloads("retry_scheduled")[0]["delay_ms"].as_u64().expect("a delay");
    assert!((30_000..=33_000).contains(&delay), "{delay}");
    signal.cancel("enough");
    let finished = started.finished().await.expect("finished");
    assert_eq!((finished.outcome.status, model.count()), (Status::Cancelled, 1));
}

#[tokio::test]
async fn an_overloaded_server_and_a_broken_one_are_asked_again() {
    for protocol in PROTOCOLS {
        for (status, code) in [(529, "http_529"), (500, "http_5xx"), (503, "http_5xx")] {
            let replies = [Reply::status_text(status, "busy", &[]), Reply::text("done")];
            let run = Run::of(protocol, &replies).await;
            run.ends(Status::Completed, 2, &TRIED_AGAIN);
            assert_eq!(run.classified(), [(json!(code), json!("transient"), json!(1))]);
            assert_eq!(run.ledger().unknown_spend, Nanos(0));
        }
    }
}

#[tokio::test]
async fn a_server_that_stays_broken_is_given_up_after_max_retries() {
    for protocol in PROTOCOLS {
        let run = Run::of(protocol, &[Reply::status_text(500, "no", &[])]).await;
        assert_eq!((run.finished.outcome.status, run.model.count()), (Status::Error, 4));
        let attempts: Vec<Value> = run.classified().into_iter().map(|(_, _, attempt)| attempt).collect();
        assert_eq!(attempts, [1, 2, 3, 4]);
        assert_eq!(run.space.payloads("retry_scheduled").len(), 3);
        let error = run.finished.outcome.error.clone().unwrap_or_default();
        assert!(error.contains("gave up after 4 attempts"), "{error}");
        assert_eq!(run.space.story().last().map(String::as_str), Some("thread_error"));
    }
}

#[tokio::test]
async fn what_does_not_pass_by_waiting_is_not_tried_again() {
    for protocol in PROTOCOLS {
        for (status, code) in [(400, "validation_error"), (401, "auth_failure")] {
            let body = json!({"error": {"type": "some_error", "message": format!("not with {SECRET}")}});
            let run = Run::of(protocol, &[Reply::status(status, &body, &[])]).await;
            run.ends(
                Status::Error,
                1,
                &["thread_started", "cognition_in", "error_classified", "thread_error"],
            );
            assert_eq!(run.classified(), [(json!(code), json!("permanent"), json!(1))]);
            let error = run.finished.outcome.error.clone().unwrap_or_default();
            assert!(error.contains("not with") && !error.contains(SECRET), "{error}");
        }
    }
}

#[tokio::test]
async fn a_silent_server_is_asked_again_and_the_first_call_counts_as_what_was_set_aside() {
    for protocol in PROTOCOLS {
        let replies = [Reply::hang(), Reply::text("done").usage(10, 0, 1)];
        let run = Run::with(protocol, &replies, WRITER, "timeout: 3\n").await;
        run.ends(Status::Completed, 2, &TRIED_AGAIN);
        assert_eq!(run.classified(), [(json!("network_timeout"), json!("transient"), json!(1))]);
        let row = run.ledger();
        assert!(row.unknown_spend > Nanos(1000 * 2000), "{row:?}");
        assert_eq!(row.actual_spend, row.unknown_spend.plus(Nanos(10 * 1000 + 2000)));
    }
}

#[tokio::test]
async fn what_a_broken_stream_said_is_recorded_and_charged_as_set_aside() {
    for protocol in PROTOCOLS {
        let replies = [Reply::reset_mid_stream(6), Reply::text("done").usage(10, 0, 1)];
        let run = Run::of(protocol, &replies).await;
        let mut story = TRIED_AGAIN.to_vec();
        story.insert(2, "cognition_out");
        run.ends(Status::Completed, 2, &story);
        let partial = &run.space.payloads("cognition_out")[0];
        assert_eq!((&partial["is_partial"], &partial["spend_is_unknown"]), (&json!(true), &json!(true)));
        assert!(partial["text"].as_str().is_some_and(|text| text.starts_with("one two")), "{partial}");
        assert_eq!(run.classified()[0].1, "transient");
        let row = run.ledger();
        assert!(row.unknown_spend > Nanos(1000 * 2000), "{row:?}");
        assert_eq!(
            run.finished.outcome.result.as_deref(),
            Some("done"),
            "the broken words are not part of it"
        );
    }
}

#[tokio::test]
async fn a_call_cut_in_the_middle_is_not_made_and_the_model_is_told() {
    for protocol in PROTOCOLS {
        let replies = [
            Reply::truncated_tool_json(WRITE, r#"{"path": "note.txt", "content": "hel"#),
            Reply::text("done"),
        ];
        let run = Run::of(protocol, &replies).await;
        run.ends(Status::Completed, 2, &ONE_CALL);
        assert!(!run.space.world.project().join("note.txt").exists());
        assert!(run.results()[0].contains("no JSON object"), "{:?}", run.results());
    }
}

#[tokio::test]
async fn an_answer_cut_off_at_its_length_goes_on() {
    for protocol in PROTOCOLS {
        let run = Run::of(protocol, &[Reply::length("one "), Reply::text("two")]).await;
        let story = [
            "thread_started",
            "cognition_in",
            "cognition_out",
            "cognition_in",
            "cognition_out",
            "thread_completed",
        ];
        run.ends(Status::Completed, 2, &story);
        assert_eq!(run.finished.outcome.result.as_deref(), Some("one two"));
        assert_eq!(run.space.payloads("cognition_out")[0]["truncated"], true);
    }
}

#[tokio::test]
async fn an_empty_answer_ends_as_the_configuration_says() {
    for protocol in PROTOCOLS {
        let run = Run::of(protocol, &[Reply::empty()]).await;
        run.ends(Status::Error, 1, &["thread_started", "cognition_in", "error_classified", "thread_error"]);
        assert_eq!(run.classified(), [(json!("default"), json!("permanent"), json!(1))]);
    }
}

#[tokio::test]
async fn a_tool_nobody_offered_is_told_and_the_thread_goes_on() {
    for protocol in PROTOCOLS {
        let run = Run::of(protocol, &[Reply::calls([("rm_rf", json!({}))]), Reply::text("done")]).await;
        run.ends(Status::Completed, 2, &ONE_CALL);
        assert!(run.results()[0].contains("there is no tool `rm_rf`"), "{:?}", run.results());
    }
}

#[tokio::test]
async fn of_two_calls_the_denied_one_is_told_and_the_other_made() {
    for protocol in PROTOCOLS {
        let denied = json!({"item_type": "tool", "item_id": "rye/bash", "parameters": {"command": "id"}});
        let replies = [Reply::calls([("rye_execute", denied), (WRITE, note())]), Reply::text("done")];
        let run = Run::of(protocol, &replies).await;
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
        run.ends(Status::Completed, 2, &story);
        assert_eq!(run.space.world.text("project/note.txt"), "hello");
        let results = run.results();
        assert!(
            results[0].contains("rye.execute.tool.rye.bash") && results[1].contains("note.txt"),
            "{results:?}"
        );
    }
}

#[tokio::test]
async fn arguments_that_do_not_fit_the_schema_are_told_and_nothing_is_run() {
    for protocol in PROTOCOLS {
        let replies = [
            Reply::calls([(WRITE, json!({"path": ["note.txt"], "content": "hello", "mode": 7}))]),
            Reply::call_with_arguments(WRITE, "[1, 2]"),
            Reply::text("done"),
        ];
        let run = Run::of(protocol, &replies).await;
        assert_eq!((run.finished.outcome.status, run.model.count()), (Status::Completed, 3));
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
        let replies =
            [Reply::text("I am done."), Reply::calls([("directive_return", json!({"answer": "42"}))])];
        let model =
            FakeModel::start(move |seen| replies[usize::try_from(seen.n - 1).unwrap_or(1).min(1)].clone());
        let space = Space::with_model(&model, protocol);
        space.directive("team/answer", "", outputs, "Answer.");
        let threads = space.threads();
        let finished = space.run(&threads, "team/answer", Map::new()).await;
        assert_eq!(
            (finished.outcome.status, model.count()),
            (Status::Completed, 2),
            "{:?}",
            finished.outcome
        );
        assert_eq!(json!(finished.outcome.outputs), json!({"answer": "42"}));
        assert_eq!(space.payloads("directive_return").len(), 1);
    }
}
