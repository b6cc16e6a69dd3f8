//! Transcripts are written, read, and every change to them is found.

#![expect(clippy::disallowed_methods, reason = "what was written is compared byte by byte")]

use std::path::PathBuf;

use lillux::PublicKey;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::cost::Cost;
use crate::status::ThreadStatus;
use crate::store::TranscriptHead;

struct TestTranscript {
    _folder: TempDir,
    path: PathBuf,
    signer: TranscriptSigner,
    head: Option<TranscriptHead>,
}

fn thread_id(number: u64) -> ThreadId {
    ThreadId::parse(&format!("thread-{number:012x}")).expect("a name")
}

fn event(sequence: u64, criticality: Criticality) -> NewEvent<'static> {
    let event_type = match criticality {
        Criticality::Critical => "cognition_out",
        Criticality::Droppable => "cognition_out_delta",
    };
    NewEvent {
        event_type,
        at_ms: 1_770_976_800_000 + sequence,
        payload: json!({"text": format!("event {sequence}")}),
        criticality,
        sequence,
    }
}

/// Lines: 1 critical, 2 droppable, 3 critical, 4 checkpoint, 5 critical, 6 critical, 7 checkpoint.
fn lines(of: &ThreadId, signer: &TranscriptSigner) -> TranscriptLines {
    let mut lines = TranscriptLines::new(of.clone(), TranscriptTail::empty(of));
    for sequence in 1..=7 {
        match sequence {
            2 => lines.event(&event(sequence, Criticality::Droppable)).expect("an event"),
            4 | 7 => lines.checkpoint(sequence / 3, 1_770_976_800_000, sequence, signer),
            _ => lines.event(&event(sequence, Criticality::Critical)).expect("an event"),
        }
    }
    lines
}

fn test_transcript() -> TestTranscript {
    let folder = tempfile::tempdir().expect("a folder");
    let path = path(folder.path(), &thread_id(1));
    lillux::file::create_dirs(path.parent().expect("a folder"), true).expect("made");
    let signer = TranscriptSigner::new(SecretKey::from_seed(&[1; 32]));
    let mut lines = lines(&thread_id(1), &signer);
    append(&path, &lines.drain()).expect("written");
    TestTranscript { _folder: folder, path, signer, head: lines.tail().head }
}

impl TestTranscript {
    fn verify(&self, expected: Option<TranscriptHead>) -> TranscriptReport {
        let known = |fingerprint: &Fingerprint| -> Option<PublicKey> {
            (fingerprint == self.signer.fingerprint()).then(|| self.signer.key.public_key())
        };
        verify(&self.path, &thread_id(1), expected, &known).expect("read")
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.path).expect("a transcript");
        text.lines().map(str::to_owned).collect()
    }

    fn write(&self, lines: &[String]) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        lillux::file::write_atomic(&self.path, text.as_bytes(), lillux::file::FileMode::Private)
            .expect("written");
    }
}

#[test]
fn untouched_transcript_is_valid() {
    let world = test_transcript();
    let report = world.verify(world.head);
    assert_eq!(report.problems, []);
    assert_eq!((report.status, report.events, report.droppable), (TranscriptStatus::Valid, 5, 1));
    assert_eq!((report.checkpoints, report.signed_until), (2, Some(6)));
}

#[test]
fn envelope_keys_are_stable() {
    let world = test_transcript();
    let first: Value = serde_json::from_str(&world.lines()[0]).expect("JSON");
    let keys: Vec<&str> = first.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = ["thread_id", "event_type", "timestamp", "payload", "criticality", "sequence", "prev"];
    assert_eq!(keys, expected);
    assert_eq!(first["timestamp"], "2026-02-13T10:00:00.001Z");
    let checkpoint: Value = serde_json::from_str(&world.lines()[3]).expect("JSON");
    let payload: Vec<&str> =
        checkpoint["payload"].as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(payload, ["turn", "byte_offset", "hash", "sig", "fp", "ts", "loose"]);
}

/// A way to tamper: its name, and what it does to the lines.
type TamperCase = (&'static str, fn(&mut Vec<String>));

#[test]
fn every_tampering_is_detected() {
    let attacks: [TamperCase; 12] = [
        ("an edited event", |lines| lines[2] = lines[2].replace("event 3", "event 8")),
        ("an edited last event", |lines| lines[5] = lines[5].replace("event 6", "event 8")),
        ("a removed event", |lines| drop(lines.remove(2))),
        ("a removed first event", |lines| drop(lines.remove(0))),
        ("an event twice", |lines| lines.insert(3, lines[2].clone())),
        ("events in another order", |lines| lines.swap(4, 5)),
        ("a removed droppable event", |lines| drop(lines.remove(1))),
        ("an added droppable event", |lines| {
            let line = lines[1].replace("\"sequence\":2", "\"sequence\":3");
            lines.insert(2, line);
        }),
        ("a removed checkpoint", |lines| drop(lines.remove(3))),
        ("an edited checkpoint", |lines| lines[6] = lines[6].replace("\"turn\":2", "\"turn\":1")),
        ("a line that is not JSON", |lines| lines[4] = "{".to_owned()),
        ("another thread's line", |lines| {
            let signer = TranscriptSigner::new(SecretKey::from_seed(&[1; 32]));
            let theirs = tests::lines(&thread_id(2), &signer).drain();
            let theirs = String::from_utf8(theirs).expect("text");
            lines[4] = theirs.lines().nth(4).expect("a line").to_owned();
        }),
    ];
    for (name, attack) in attacks {
        let world = test_transcript();
        let mut lines = world.lines();
        attack(&mut lines);
        world.write(&lines);
        let before = world.lines();
        for expected in [world.head, None] {
            let report = world.verify(expected);
            assert_eq!(report.status, TranscriptStatus::Tampered, "{name}: {report:?}");
            assert!(!report.problems.is_empty(), "{name}");
        }
        assert_eq!(world.lines(), before, "{name}: verifying changes nothing");
    }
}

#[test]
fn truncated_tail_is_detected_by_stored_head() {
    for line_count in 0..=6 {
        let world = test_transcript();
        world.write(&world.lines()[..line_count]);
        let report = world.verify(world.head);
        assert_eq!(
            report.status,
            if line_count < 6 { TranscriptStatus::Truncated } else { TranscriptStatus::UnsignedTail },
            "{line_count}"
        );
    }
    let world = test_transcript();
    world.write(&world.lines()[..4]);
    assert_eq!(world.verify(None).status, TranscriptStatus::Valid, "without the store it cannot be known");
    world.write(&world.lines()[..2]);
    assert_eq!(world.verify(None).status, TranscriptStatus::Unsigned);
}

#[test]
fn events_after_checkpoint_are_unsigned_tail() {
    let world = test_transcript();
    world.write(&world.lines()[..6]);
    let report = world.verify(world.head);
    assert_eq!((report.status, report.signed_until), (TranscriptStatus::UnsignedTail, Some(3)));
}

#[test]
fn lines_outside_the_chain_are_signed_too() {
    let world = test_transcript();
    let loose = |sequence| {
        let mut lines = TranscriptLines::new(thread_id(1), TranscriptTail::empty(&thread_id(1)));
        lines.event(&event(sequence, Criticality::Droppable)).expect("an event");
        String::from_utf8(lines.drain()).expect("text").trim_end().to_owned()
    };
    let whole = world.lines();
    let mut changed = whole.clone();
    changed[1] = changed[1].replace("event 2", "EVENT 2");
    let mut removed = whole.clone();
    removed.remove(1);
    for lines in [changed, removed] {
        world.write(&lines);
        assert_eq!(world.verify(world.head).status, TranscriptStatus::Tampered);
    }
    let mut added = whole.clone();
    added.push(loose(8));
    world.write(&added);
    assert_eq!(world.verify(world.head).status, TranscriptStatus::UnsignedTail);
    let followed = read(&world.path, TranscriptPosition::default(), 100).expect("read").next;
    // The process that resumes signs no line that it did not write.
    let tail = TranscriptTail::recover(&world.path, &thread_id(1)).expect("recovered");
    assert_eq!(world.lines(), whole);
    let mut lines = TranscriptLines::new(thread_id(1), tail);
    lines.event(&event(9, Criticality::Droppable)).expect("an event");
    lines.checkpoint(3, 1_770_976_800_000, 10, &world.signer);
    append(&world.path, &lines.drain()).expect("written");
    assert_eq!(world.verify(world.head).status, TranscriptStatus::Valid);
    // A reader that follows gets each new line once.
    let new = read(&world.path, followed, 100).expect("read");
    assert_eq!(new.events.iter().filter_map(|event| event.sequence).collect::<Vec<_>>(), [9, 10]);
}

#[test]
fn transcript_without_checkpoints_is_unsigned() {
    let world = test_transcript();
    let mut lines = world.lines();
    lines.remove(6);
    lines.remove(3);
    world.write(&lines);
    assert_eq!(world.verify(world.head).status, TranscriptStatus::Unsigned);
}

#[test]
fn events_beyond_stored_head_are_tampering() {
    let world = test_transcript();
    let tail = TranscriptTail::recover(&world.path, &thread_id(1)).expect("a tail");
    let mut lines = TranscriptLines::new(thread_id(1), tail);
    lines.event(&event(8, Criticality::Critical)).expect("an event");
    append(&world.path, &lines.drain()).expect("written");
    assert_eq!(world.verify(None).status, TranscriptStatus::UnsignedTail);
    assert_eq!(world.verify(world.head).status, TranscriptStatus::Tampered);
}

#[test]
fn unknown_key_vouches_for_no_added_line() {
    let world = test_transcript();
    let stranger = TranscriptSigner::new(SecretKey::from_seed(&[9; 32]));
    assert_eq!(world.verify(world.head).unsealed_line, None);
    for with_event in [true, false] {
        let whole = fs_err::read(&world.path).expect("a transcript");
        let tail = TranscriptTail::recover(&world.path, &thread_id(1)).expect("a tail");
        let sequence = tail.sequence;
        let mut lines = TranscriptLines::new(thread_id(1), tail);
        if with_event {
            lines.event(&event(sequence + 1, Criticality::Droppable)).expect("an event");
        }
        lines.checkpoint(1, 1, sequence, &stranger);
        append(&world.path, &lines.drain()).expect("written");
        let report = world.verify(world.head);
        let added = whole.split(|byte| *byte == b'\n').count();
        assert_eq!(report.unsealed_line, u64::try_from(added).ok(), "{report:?}");
        lillux::file::write_atomic(&world.path, &whole, lillux::file::FileMode::Private).expect("written");
    }
}

#[test]
fn checkpoint_of_unknown_key_is_ignored() {
    let world = test_transcript();
    let stranger = TranscriptSigner::new(SecretKey::from_seed(&[9; 32]));
    let bytes = lines(&thread_id(1), &stranger).drain();
    lillux::file::write_atomic(&world.path, &bytes, lillux::file::FileMode::Private).expect("written");
    let report = world.verify(None);
    assert_eq!(
        (report.status, report.checkpoints, report.problems.len()),
        (TranscriptStatus::Unsigned, 0, 2)
    );
    // With the fingerprint of a known key it is a forgery.
    let text = String::from_utf8(bytes).expect("text");
    let text = text.replace(stranger.fingerprint().as_str(), world.signer.fingerprint().as_str());
    lillux::file::write_atomic(&world.path, text.as_bytes(), lillux::file::FileMode::Private)
        .expect("written");
    assert_eq!(world.verify(None).status, TranscriptStatus::Tampered);
}

#[test]
fn torn_line_is_reported_and_recovered() {
    let world = test_transcript();
    append(&world.path, b"{\"thread_id\":\"thr").expect("torn");
    let before = std::fs::read(&world.path).expect("bytes");
    assert_eq!(world.verify(world.head).status, TranscriptStatus::Truncated);
    assert_eq!(read(&world.path, TranscriptPosition::default(), 100).expect("read").events.len(), 7);
    assert_eq!(std::fs::read(&world.path).expect("bytes"), before, "reading repairs nothing");
    let tail = TranscriptTail::recover(&world.path, &thread_id(1)).expect("a tail");
    assert_eq!((tail.head, tail.sequence), (world.head, 7));
    assert_eq!(world.verify(world.head).status, TranscriptStatus::Valid);
}

#[test]
fn chain_is_identical_after_crash() {
    let world = test_transcript();
    // The droppable event and the second checkpoint are lost, and the events after it.
    world.write(&world.lines()[..4]);
    let mut lines = TranscriptLines::new(
        thread_id(1),
        TranscriptTail::recover(&world.path, &thread_id(1)).expect("a tail"),
    );
    for sequence in [5, 6] {
        lines.event(&event(sequence, Criticality::Critical)).expect("an event");
    }
    assert_eq!(lines.tail().head, world.head);
    lines.checkpoint(9, 1, 10, &world.signer);
    append(&world.path, &lines.drain()).expect("written");
    assert_eq!(world.verify(world.head).status, TranscriptStatus::Valid);
}

#[test]
fn checkpoint_event_type_is_reserved() {
    let mut lines = TranscriptLines::new(thread_id(1), TranscriptTail::empty(&thread_id(1)));
    let forged = NewEvent { event_type: "checkpoint", ..event(1, Criticality::Critical) };
    assert_eq!(lines.event(&forged), Err(ReservedEventName));
    assert_eq!(lines.drain(), b"");
}

#[test]
fn reading_resumes_and_accepts_legacy_lines() {
    let world = test_transcript();
    let first = read(&world.path, TranscriptPosition::default(), 3).expect("read");
    let rest = read(&world.path, first.next, 100).expect("read");
    assert_eq!((first.events.len(), rest.events.len(), rest.events[0].line), (3, 4, 4));
    let older = [
        r#"{"timestamp": 1.5, "thread_id": "x", "event_type": "cognition_in", "payload": {"text": "a"}}"#,
        r#"{"ts": "2026-01-01T00:00:00Z", "type": "user_message", "thread_id": "x", "text": "b"}"#,
        "no event",
        r#"{"type": "assistant_text", "text": "c"}"#,
    ];
    world.write(&older.map(str::to_owned));
    let batch = read(&world.path, TranscriptPosition::default(), 100).expect("read");
    let summary: Vec<(&str, &str, &str)> = batch
        .events
        .iter()
        .map(|event| {
            let text = event.payload["text"].as_str().expect("a text");
            (event.event_type.as_str(), event.timestamp.as_str(), text)
        })
        .collect();
    let expected = [
        ("cognition_in", "1970-01-01T00:00:01.500Z", "a"),
        ("cognition_in", "2026-01-01T00:00:00Z", "b"),
        ("cognition_out", "", "c"),
    ];
    assert_eq!((summary.as_slice(), batch.bad_lines.as_slice()), (&expected[..], &[3][..]));
}

#[test]
fn page_renders_turns_tools_and_cost() {
    let event = |event_type: &str, payload: Value| TranscriptEvent {
        line: 1,
        event_type: event_type.to_owned(),
        timestamp: String::new(),
        payload,
        is_droppable: false,
        sequence: None,
        raw: Value::Null,
    };
    let events = [
        event("cognition_in", json!({"text": "Do it", "role": "user"})),
        event("cognition_reasoning", json!({"text": "Hm"})),
        event("cognition_out", json!({"text": "Yes"})),
        event("tool_call_start", json!({"tool": "write", "input": {"content": "x".repeat(600)}})),
        event(
            "tool_call_result",
            json!({"output": "{\"data\":{\"stdout\":\"a ``` b\",\"stderr\":\"bad\"}}"}),
        ),
        event("tool_call_result", json!({"error": "denied"})),
        event("tool_call_changed", json!({"hook": "scrub", "arguments": {"path": "notes.txt"}})),
        event("tool_result_changed", json!({"hook": "scrub", "output": "clean"})),
        event("tool_result_changed", json!({"hook": "scrub", "error": "not for models"})),
    ];
    let cost = Cost {
        turns: 1,
        input_tokens: 2,
        output_tokens: 3,
        spend: crate::money::Nanos(1_500_000),
        elapsed_ms: 1234,
    };
    let about = PageHeader { directive: "demo/hello", status: ThreadStatus::Completed, cost };
    let page = render_markdown(&about, &events);
    for part in [
        "# demo/hello\n",
        "## Input - Turn 1\n\nDo it",
        "> *Hm*",
        "### Response - Turn 1\n\nYes",
        "### Tool: write\n\n```json\n",
        "… (600 bytes in all)",
        "### Result\n\n````\na ``` b\n[stderr] bad\n````\n",
        "### Error\n\n```\ndenied\n```\n",
        "### Arguments changed by hook scrub\n\n```json\n{\n  \"path\": \"notes.txt\"\n}\n```\n",
        "### Result replaced by hook scrub\n\n```\nclean\n```\n",
        "### Result withheld by hook scrub\n\n```\nnot for models\n```\n",
        "**Completed** -- 1 turn, 5 tokens, $0.0015, 1.2s\n",
    ] {
        assert!(page.contains(part), "{part} is not in\n{page}");
    }
    let long: Vec<TranscriptEvent> =
        (0..3000).map(|_| event("cognition_out", json!({"text": "y".repeat(4000)}))).collect();
    let page = render_markdown(&about, &long);
    assert!(page.len() < (4 << 20) + 4096 && page.contains("… the rest is in the transcript"));
}
