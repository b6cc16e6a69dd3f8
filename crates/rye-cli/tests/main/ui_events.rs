//! The event stream of `rye ui` from outside: what arrives, and what a client that comes back has missed.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{User, text};
use crate::thread_approvals::write_gate;
use crate::thread_run::{newest_thread, write_note_directive};
use crate::ui_support::{UiFrame, UiServer, UiStream};

/// Sequence numbers of the critical events of a transcript.
fn sequences(events: &Value) -> Vec<u64> {
    let events = events.as_array().expect("events");
    events
        .iter()
        .filter(|event| event["is_droppable"] == false)
        .filter_map(|event| event["sequence"].as_u64())
        .collect()
}

/// Whether a frame brings a thread with this status.
fn has_status(frame: &UiFrame, thread: &str, status: &str) -> bool {
    let rows = frame.data["rows"].as_array().cloned().unwrap_or_default();
    frame.event == "threads" && rows.iter().any(|row| row[0] == thread && row[3] == status)
}

#[test]
fn changes_and_questions_arrive() {
    let user = User::initialized();
    write_gate(&user, "end");
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let mut stream = client.stream("");
    let hello = stream.next().expect("a frame");
    assert_eq!((hello.event.as_str(), &hello.data["open_approvals"]), ("hello", &json!(0)), "{hello:?}");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let thread = newest_thread(&user);
    let asked = stream.wait_for(|frame| frame.event == "approvals");
    assert_eq!(asked.data["added"].as_array().map(Vec::len), Some(1), "{asked:?}");
    user.ok(["thread", "approve", &thread]);
    // The thread may end before the page hears of the answer.
    let (mut is_answered, mut is_ended) = (false, false);
    stream.wait_for(|frame| {
        is_answered |= frame.event == "approvals" && frame.data["open"] == json!([]);
        is_ended |= has_status(frame, &thread, "completed") && frame.id.is_some();
        is_answered && is_ended
    });
}

#[test]
fn resumed_streams_miss_nothing() {
    let user = User::initialized();
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    let first = newest_thread(&user);
    let mut server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let position = text(&client.data("/threads")["position"]);
    let middle = client.data(&format!("/threads/{first}/transcript?limit=3"));
    // While the server is gone, a thread ends.
    server.stop();
    user.ok(["run", "team/note"]);
    let second = newest_thread(&user);
    let _restarted = UiServer::start_on(&user, server.address.port(), &[]);
    let watch = format!("?position={position}&watch={first}@{},{second}", text(&middle["position"]));
    let mut stream = client.stream(&watch);
    let missed = stream.wait_for(|frame| has_status(frame, &second, "completed"));
    assert!(missed.data["rows"].as_array().expect("rows").iter().all(|row| row[0] != json!(first)));
    let mut seen = sequences(&middle["events"]);
    let mut of_second = Vec::new();
    let whole = |id: &str| sequences(&client.data(&format!("/threads/{id}/transcript?limit=5000"))["events"]);
    let (all_first, all_second) = (whole(&first), whole(&second));
    while seen.len() < all_first.len() || of_second.len() < all_second.len() {
        let frame = stream.wait_for(|frame| frame.event == "transcript");
        let of = if frame.data["thread_id"] == json!(first) { &mut seen } else { &mut of_second };
        of.extend(sequences(&frame.data["events"]));
    }
    assert_eq!((seen, of_second), (all_first, all_second));
    // A position of another store means that everything is to be read again.
    let mut stream = client.stream("?position=999999999");
    stream.wait_for(|frame| frame.event == "reset");
    let mut stream = client.stream("?position=x");
    stream.wait_for(|frame| frame.event == "reset");
}

#[test]
fn followed_transcripts_arrive_whole() {
    let user = User::initialized();
    write_gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let thread = newest_thread(&user);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let mut stream = client.stream(&format!("?watch={thread}@end"));
    stream.wait_for(|frame| frame.event == "hello");
    let before: BTreeSet<u64> =
        sequences(&client.data(&format!("/threads/{thread}/transcript"))["events"]).into_iter().collect();
    user.ok(["thread", "approve", &thread]);
    let mut seen = BTreeSet::new();
    let is_end = |frame: &UiFrame| frame.data.to_string().contains("thread_completed");
    loop {
        let frame = stream.wait_for(|frame| frame.event == "transcript");
        seen.extend(sequences(&frame.data["events"]));
        if is_end(&frame) {
            break;
        }
    }
    let all: BTreeSet<u64> =
        sequences(&client.data(&format!("/threads/{thread}/transcript"))["events"]).into_iter().collect();
    let expected: BTreeSet<u64> = all.difference(&before).copied().collect();
    assert!(expected.difference(&seen).next().is_none(), "{expected:?} {seen:?}");
}

#[test]
fn streams_end_with_session_and_server() {
    let user = User::initialized();
    let mut server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let reason = |stream: &mut UiStream| stream.wait_for(|frame| frame.event == "end").data["reason"].clone();
    let mut stream = client.stream("");
    stream.wait_for(|frame| frame.event == "hello");
    let ended = crate::ui_support::send(server.address, "DELETE", "/api/v1/session", &client.headers(), b"");
    assert_eq!(ended.status, 200);
    assert_eq!(reason(&mut stream), "session");
    assert_eq!(stream.next(), None);
    drop(client);
    let user_client = {
        let mut other = UiServer::start(&user, &[]);
        let client = other.log_in();
        let mut stream = client.stream("");
        stream.wait_for(|frame| frame.event == "hello");
        other.stop();
        assert_eq!(reason(&mut stream), "shutdown");
        client
    };
    drop(user_client);
    server.stop();
}

#[test]
fn changes_reach_every_stream() {
    let user = User::initialized();
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let mut streams: Vec<UiStream> = (0..8).map(|_| client.stream("")).collect();
    for stream in &mut streams {
        stream.wait_for(|frame| frame.event == "hello");
    }
    user.ok(["run", "team/note"]);
    let thread = newest_thread(&user);
    // How soon is measured by `scripts/bench-ui`.
    for stream in &mut streams {
        stream.wait_for(|frame| has_status(frame, &thread, "completed"));
    }
}
