use proptest::prelude::*;

use super::*;
use crate::config::ThreadConfig;

fn shipped() -> ErrorClassifier {
    ThreadConfig::shipped().classification
}

fn classify(failure: &Value) -> (String, String, bool) {
    let found = shipped().classify(failure);
    (found.code, found.category, found.retryable)
}

fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A classification with these patterns and the shipped policies.
fn classifier_with(patterns: Value) -> Result<ErrorClassifier, String> {
    let config = ThreadConfig::shipped();
    let mut value = config.values()["error_classification"].clone();
    value["patterns"] = patterns;
    ErrorClassifier::from_value(&value, &config.resilience.retry.policies)
}

#[test]
fn error_loader_pattern_matching() {
    let cases = [
        (json!({"status_code": 429}), "http_429", "rate_limited", true),
        (
            json!({"status_code": 429, "error": {"code": "insufficient_quota"}}),
            "quota_exhausted",
            "permanent",
            false,
        ),
        (json!({"error": {"type": "rate_limit_error"}}), "http_429", "rate_limited", true),
        (json!({"error": {"message": "Too Many Requests"}}), "http_429", "rate_limited", true),
        (json!({"status_code": 529}), "http_529", "transient", true),
        (json!({"error": {"type": "overloaded_error"}}), "http_529", "transient", true),
        (json!({"error": {"type": "TimeoutError"}}), "network_timeout", "transient", true),
        (json!({"error": {"message": "it timed out"}}), "network_timeout", "transient", true),
        (json!({"error": {"type": "ConnectionResetError"}}), "network_connection", "transient", true),
        (json!({"error": {"type": "StreamError"}}), "network_connection", "transient", true),
        (json!({"status_code": 0}), "http_0_connection", "transient", true),
        (json!({"status_code": 500}), "http_5xx", "transient", true),
        (json!({"status_code": 504}), "http_5xx", "transient", true),
        (json!({"status_code": 401}), "auth_failure", "permanent", false),
        (
            json!({"status_code": 403, "error": {"message": "no network for you"}}),
            "auth_failure",
            "permanent",
            false,
        ),
        (json!({"error": {"code": "authentication_error"}}), "auth_failure", "permanent", false),
        (json!({"status_code": 422}), "validation_error", "permanent", false),
        (
            json!({"status_code": 400, "error": {"message": "bad timeout"}}),
            "validation_error",
            "permanent",
            false,
        ),
        (json!({"error": {"type": "ValidationError"}}), "validation_error", "permanent", false),
        (json!({"error": {"type": "CancelledError"}}), "cancelled", "cancelled", false),
        (json!({"cancelled": true}), "cancelled", "cancelled", false),
        (json!({"status_code": 418}), "default", "permanent", false),
        (json!({}), "default", "permanent", false),
    ];
    for (failure, code, category, retryable) in cases {
        assert_eq!(classify(&failure), (code.to_owned(), category.to_owned(), retryable), "{failure}");
    }
}

#[test]
fn the_first_pattern_that_matches_decides() {
    let pattern =
        |id: &str| json!({"id": id, "category": "transient", "match": {"path": "a", "op": "exists"}});
    let classification = classifier_with(json!([pattern("one"), pattern("two")])).expect("patterns");
    assert_eq!(classification.classify(&json!({"a": 1})).code, "one");
}

#[test]
fn error_loader_retry_delay_calculation() {
    let delay = |policy: &RetryPolicy, attempt| policy.delay_ms(attempt, &BTreeMap::new(), 0, 0);
    let exponential = RetryPolicy::Exponential { base_ms: 2000, max_ms: 30_000 };
    assert_eq!(
        [0, 1, 2, 3, 4, 63, 64, u32::MAX].map(|attempt| delay(&exponential, attempt)),
        [2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000, 30_000]
    );
    let fixed = RetryPolicy::Fixed { delay_ms: 60_000 };
    assert_eq!([0, 9].map(|attempt| delay(&fixed, attempt)), [60_000, 60_000]);
    assert_eq!(delay(&RetryPolicy::None, 3), 0);
}

#[test]
fn retry_after_header_is_never_undercut() {
    let policy = shipped().classify(&json!({"status_code": 429})).policy;
    let delay = |value: &str, jitter| {
        policy.delay_ms(0, &headers(&[("retry-after", value)]), 784_111_777_000, jitter)
    };
    assert_eq!(delay("7", 0), 7000);
    assert_eq!(delay(" 0.5 ", 0), 500);
    assert_eq!(delay("7", 1000), 7700);
    assert_eq!(delay("Sun, 06 Nov 1994 08:49:40 GMT", 0), 3000);
    assert_eq!(delay("Sun, 06 Nov 1994 08:49:00 GMT", 0), 0);
    assert_eq!(delay("99999999", 0), 3_600_000);
    // What cannot be read is not there: the fallback of the pattern, base 2.
    for unreadable in
        ["-1", "soon", "NaN", "Sun, 99 Nov 1994 08:49:40 GMT", "Sun, 06 Nov 1994 99:49:40 GMT", ""]
    {
        assert_eq!(delay(unreadable, 0), 2000, "{unreadable}");
    }
    assert_eq!(policy.delay_ms(5, &BTreeMap::new(), 0, 0), 60_000);
}

#[test]
fn dates_are_read_over_leap_years() {
    assert_eq!(parse_http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    assert_eq!(parse_http_date("Tue, 29 Feb 2000 12:00:00 GMT"), Some(951_825_600));
    assert_eq!(parse_http_date("Thu, 31 Dec 2026 23:59:59 GMT"), Some(1_798_761_599));
    assert_eq!(parse_http_date("Thu, 01 Jan 1970 00:00:00 CET"), None);
}

#[test]
fn named_policy_can_be_overridden() {
    let found = |policy: Value| {
        let patterns = json!([{"id": "x", "category": "transient", "retryable": true,
            "match": {"path": "a", "op": "exists"}, "retry_policy": policy}]);
        classifier_with(patterns).map(|classification| classification.classify(&json!({"a": 1})).policy)
    };
    assert_eq!(found(json!({"policy": "fixed"})), Ok(RetryPolicy::Fixed { delay_ms: 60_000 }));
    assert_eq!(found(json!({"policy": "fixed", "delay": 1.5})), Ok(RetryPolicy::Fixed { delay_ms: 1500 }));
    let exponential = |base_ms, max_ms| RetryPolicy::Exponential { base_ms, max_ms };
    assert_eq!(found(json!({"policy": "exponential", "max": 9})), Ok(exponential(2000, 9000)));
    let header = RetryPolicy::UseHeader {
        header: "retry-after".to_owned(),
        fallback: Box::new(exponential(5000, 120_000)),
    };
    assert_eq!(found(json!({"policy": "rate_limited"})), Ok(header));
    // What a policy leaves out is what the file says of its type.
    assert_eq!(found(json!({"type": "exponential"})), Ok(exponential(2000, 120_000)));
    assert_eq!(found(json!({"type": "fixed"})), Ok(RetryPolicy::Fixed { delay_ms: 60_000 }));
    assert!(found(json!({"policy": "gone"})).expect_err("refused").contains("no policy `gone`"));
    assert!(found(json!({"type": "linear"})).expect_err("refused").contains("`linear`"));
}

#[test]
fn cyclic_policies_and_catch_all_patterns_are_rejected() {
    let config = ThreadConfig::shipped();
    let circle = BTreeMap::from([("a".to_owned(), json!({"policy": "a"}))]);
    let mut value = config.values()["error_classification"].clone();
    value["patterns"] = json!([{"id": "x", "category": "transient", "match": {"path": "a"}, "retry_policy": {"policy": "a"}}]);
    assert!(ErrorClassifier::from_value(&value, &circle).expect_err("refused").contains("circle"));
    for everything in [json!({}), json!(null)] {
        let patterns = json!([{"id": "x", "category": "permanent", "match": everything}]);
        assert!(classifier_with(patterns).expect_err("refused").contains("matches everything"));
    }
}

#[test]
fn retryable_error_without_policy_waits() {
    let patterns = json!([{"id": "x", "category": "transient", "retryable": true, "match": {"path": "a", "op": "exists"}}]);
    let found = classifier_with(patterns).expect("patterns").classify(&json!({"a": 1}));
    assert!(found.policy.delay_ms(0, &BTreeMap::new(), 0, 1000) > 0);
}

proptest! {
    #[test]
    fn delay_is_bounded(
        base in any::<u64>(), max in any::<u64>(), attempt in any::<u32>(), now in any::<u64>(),
        jitter in any::<u32>(), value in "[0-9]{0,25}|.{0,40}",
    ) {
        let policy = RetryPolicy::UseHeader {
            header: "retry-after".to_owned(),
            fallback: Box::new(RetryPolicy::Exponential { base_ms: base, max_ms: max }),
        };
        prop_assert!(policy.delay_ms(attempt, &headers(&[("retry-after", &value)]), now, jitter) <= 3_960_000);
    }

    #[test]
    fn jitter_takes_at_most_a_quarter(base in 1_u64..100_000, attempt in 0_u32..8, jitter in 0_u32..=1000) {
        let policy = RetryPolicy::Exponential { base_ms: base, max_ms: 1_000_000 };
        let exact = policy.delay_ms(attempt, &BTreeMap::new(), 0, 0);
        let rolled = policy.delay_ms(attempt, &BTreeMap::new(), 0, jitter);
        prop_assert!(rolled <= exact && rolled >= exact - exact / 4);
    }
}
