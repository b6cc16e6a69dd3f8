//! Schedules under a clock that the test sets.

use std::path::PathBuf;

use rye_item::timestamp::parse_iso_timestamp;

use super::*;

fn at(text: &str) -> u64 {
    parse_iso_timestamp(text).expect("a moment")
}

fn schedule(cron: Option<&str>, every: Option<&str>) -> Schedule {
    Schedule {
        id: "team/report".to_owned(),
        directive: "team/report".to_owned(),
        project: PathBuf::from("/srv/site"),
        cron: cron.map(str::to_owned),
        every: every.map(str::to_owned),
        time_zone: cron.map(|_| "Europe/Vienna".to_owned()),
        overlap: OverlapPolicy::Skip,
        approvals: ApprovalsPolicy::Deny,
        missed: MissedPolicy::Skip,
        inputs: Map::new(),
        limits: Vec::new(),
        model: None,
        provider: None,
        paused: false,
        added_ms: at("2026-03-01T00:00:00Z"),
    }
}

fn planned(schedule: &Schedule, state: &ScheduleState, now: &str, is_last_running: bool) -> PlannedRun {
    plan(schedule, &schedule.times().expect("times"), state, at(now), is_last_running)
}

#[test]
fn calendar_times_follow_their_zone() {
    let schedule = schedule(Some("30 7 * * *"), None);
    let times = schedule.times().expect("times");
    let next = |text: &str| times.next_after(at(text));
    assert_eq!(next("2026-03-27T12:00:00Z"), Some(at("2026-03-28T06:30:00Z")));
    assert_eq!(next("2026-03-28T06:30:00Z"), Some(at("2026-03-29T05:30:00Z")), "summer time has begun");
    // Half past two does not exist on that day, and comes twice in autumn: each day has one run at most.
    let night = Schedule { cron: Some("30 2 * * *".to_owned()), ..schedule };
    let times = night.times().expect("times");
    let mut at_ms = at("2026-10-24T12:00:00Z");
    let mut days = Vec::new();
    for _ in 0..3 {
        at_ms = times.next_after(at_ms).expect("a time");
        days.push(at_ms);
    }
    assert!(days.windows(2).all(|pair| pair[1] - pair[0] >= 3_600_000), "{days:?}");
}

#[test]
fn due_time_is_served_once() {
    let schedule = schedule(None, Some("15m"));
    let mut state = ScheduleState::default();
    assert_eq!(
        planned(&schedule, &state, "2026-03-01T00:14:59Z", false),
        PlannedRun::Wait { next_ms: Some(at("2026-03-01T00:15:00Z")) }
    );
    let due_ms = at("2026-03-01T00:15:00Z");
    let due = PlannedRun::Start { due_ms, missed: 0 };
    assert_eq!(planned(&schedule, &state, "2026-03-01T00:15:01Z", false), due);
    state.served_ms = due_ms;
    let wait = PlannedRun::Wait { next_ms: Some(at("2026-03-01T00:30:00Z")) };
    assert_eq!(planned(&schedule, &state, "2026-03-01T00:15:02Z", false), wait);
    assert_eq!(planned(&schedule, &state, "2026-02-28T12:00:00Z", false), wait, "the clock was set back");
}

#[test]
fn missed_times_are_said_and_not_doubled() {
    let skipping = schedule(None, Some("1h"));
    let state = ScheduleState { served_ms: at("2026-03-01T02:00:00Z"), ..ScheduleState::default() };
    let due_ms = at("2026-03-01T07:00:00Z");
    assert_eq!(
        planned(&skipping, &state, "2026-03-01T07:30:00Z", false),
        PlannedRun::Missed { due_ms, missed: 5 }
    );
    assert_eq!(
        planned(&skipping, &state, "2026-03-01T07:05:00Z", false),
        PlannedRun::Start { due_ms, missed: 4 }
    );
    let catching_up = Schedule { missed: MissedPolicy::RunOnce, ..skipping };
    assert_eq!(
        planned(&catching_up, &state, "2026-03-01T07:30:00Z", false),
        PlannedRun::Start { due_ms, missed: 4 }
    );
    // A clock that was years ahead ends, and with the last time.
    let minutely = Schedule { every: Some("1m".to_owned()), missed: MissedPolicy::Skip, ..catching_up };
    let far = planned(&minutely, &state, "2029-03-01T07:30:30Z", false);
    assert_eq!(far, PlannedRun::Start { due_ms: at("2029-03-01T07:30:00Z"), missed: 999 });
}

#[test]
fn clock_that_was_ahead_is_noticed() {
    let schedule = schedule(None, Some("1h"));
    let times = schedule.times().expect("times");
    let ahead = |served: &str, now: &str| {
        let mut state = ScheduleState { served_ms: at(served), ..ScheduleState::default() };
        follow_clock(&times, &mut state, at(now)).is_some()
    };
    assert!(ahead("2027-03-01T02:00:00Z", "2026-03-01T02:30:00Z"));
    assert!(ahead("2026-03-01T04:00:00Z", "2026-03-01T02:30:00Z"));
    // The next time may have been served already: it is not served twice.
    assert!(!ahead("2026-03-01T03:00:00Z", "2026-03-01T02:30:00Z"));
    assert!(!ahead("2026-03-01T02:00:00Z", "2026-03-01T02:30:00Z"));
    assert_eq!(
        (format_missed_count(7), format_missed_count(999)),
        ("7 runs".to_owned(), "more than 999 runs".to_owned())
    );
}

#[test]
fn served_times_count_again_after_the_clock_was_behind() {
    let schedule = schedule(None, Some("1h"));
    let times = schedule.times().expect("times");
    let mut state = ScheduleState { served_ms: at("2026-03-01T02:00:00Z"), ..ScheduleState::default() };
    assert!(follow_clock(&times, &mut state, at("2020-01-01T00:10:00Z")).is_some());
    assert_eq!(follow_clock(&times, &mut state, at("2020-01-01T00:20:00Z")), None);
    assert_eq!(state.served_ms, at("2020-01-01T00:10:00Z"));
    assert_eq!(follow_clock(&times, &mut state, at("2026-03-01T02:05:00Z")), None);
    assert_eq!(
        planned(&schedule, &state, "2026-03-01T02:05:00Z", false),
        PlannedRun::Wait { next_ms: Some(at("2026-03-01T03:00:00Z")) }
    );
}

#[test]
fn overlap_is_skipped_queued_or_allowed() {
    let skipping = schedule(None, Some("1h"));
    let state = ScheduleState { served_ms: at("2026-03-01T02:00:00Z"), ..ScheduleState::default() };
    let due_ms = at("2026-03-01T03:00:00Z");
    let now = "2026-03-01T03:00:10Z";
    let overlap = |is_queued| PlannedRun::Overlap { due_ms, missed: 0, is_queued };
    assert_eq!(planned(&skipping, &state, now, true), overlap(false));
    let queueing = Schedule { overlap: OverlapPolicy::Queue, ..skipping.clone() };
    assert_eq!(planned(&queueing, &state, now, true), overlap(true));
    let waiting = ScheduleState { served_ms: due_ms, queued_ms: Some(due_ms), ..ScheduleState::default() };
    assert!(matches!(planned(&queueing, &waiting, now, true), PlannedRun::Wait { .. }));
    let start = PlannedRun::Start { due_ms, missed: 0 };
    assert_eq!(planned(&queueing, &waiting, now, false), start);
    let allowing = Schedule { overlap: OverlapPolicy::Allow, ..skipping.clone() };
    assert_eq!(planned(&allowing, &state, now, true), start);
    let paused = Schedule { paused: true, ..skipping };
    assert_eq!(planned(&paused, &state, now, false), PlannedRun::Wait { next_ms: None });
}

#[test]
fn invalid_schedules_are_described() {
    let valid = schedule(Some("0 7 * * MON-FRI"), None);
    assert!(valid.times().is_ok());
    for (invalid, expected) in [
        (Schedule { cron: Some("0 7 * *".to_owned()), ..valid.clone() }, "expected 5 fields, found 4"),
        (Schedule { cron: Some("61 7 * * *".to_owned()), ..valid.clone() }, "invalid cron expression"),
        (Schedule { time_zone: Some("Mars/Base".to_owned()), ..valid.clone() }, "Mars/Base"),
        (Schedule { time_zone: Some("UTC UTC".to_owned()), ..valid.clone() }, "invalid time zone"),
        (Schedule { every: Some("1h".to_owned()), ..valid.clone() }, "either `cron` or `every`"),
        (Schedule { cron: None, ..valid.clone() }, "either `cron` or `every`"),
        (Schedule { project: PathBuf::from("site"), ..valid.clone() }, "must be absolute"),
        (Schedule { directive: "../x".to_owned(), ..valid.clone() }, "invalid item id"),
    ] {
        let error = invalid.times().expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    for (text, expected) in [
        ("30s", "too short"),
        ("5", "invalid interval"),
        ("1w", "invalid interval"),
        ("", "invalid interval"),
        ("400d", "invalid interval"),
        ("ä", "invalid interval"),
    ] {
        let error = parse_interval(text).expect_err("refused");
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn written_schedules_are_read_back() {
    let one = Schedule {
        inputs: Map::from_iter([("a: #".to_owned(), Value::from("'\"\n"))]),
        ..schedule(None, Some("1h"))
    };
    let other = Schedule { id: "other".to_owned(), ..schedule(Some("*/5 * * * *"), None) };
    let schedules = Schedules { list: vec![one, other], problems: Vec::new() };
    let text = schedules.to_yaml().expect("text");
    let parsed = rye_item::yaml::parse(&text).expect("YAML").value;
    let list: Vec<Schedule> = serde_json::from_value(parsed["schedules"].clone()).expect("schedules");
    assert_eq!(list, schedules.list);
    assert!(Schedules::default().to_yaml().expect("text").ends_with("schedules: []\n"));
}

#[test]
fn invalid_times_come_with_an_example() {
    let hints = |cron: Option<&str>, every: Option<&str>| {
        schedule(cron, every).times().expect_err("refused").hints.join(" ")
    };
    for cron in ["0 7 * *", "0 25 * * *"] {
        assert!(hints(Some(cron), None).contains("--cron '0 7 * * mon-fri'"), "{cron}");
    }
    for every in ["10s", "5x", ""] {
        assert!(hints(None, Some(every)).contains("--every 15m"), "{every}");
    }
    assert!(schedule(Some("0 7 * * mon-fri"), None).times().is_ok(), "the example is right");
}
