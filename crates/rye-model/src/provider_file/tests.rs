//! Provider files, good and bad.

use proptest::prelude::*;
use serde_json::json;

use super::parse::parse_nano_dollars;
use super::*;

fn parse(file: &Value) -> Result<ProviderFile, Vec<Diagnostic>> {
    ProviderFile::from_fields(file.as_object().expect("a map"))
}

fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn connect(file: &ProviderFile, pairs: &[(&str, &str)]) -> Result<EndpointParts, ConnectError> {
    Ok(file.connect("m", &environment(pairs), &HttpClient::default())?.into_parts())
}

#[test]
fn provider_file_is_parsed() {
    let file = parse(&json!({
        "tool_id": "anthropic", "tool_type": "http", "version": "1.0.0", "category": "rye/agent/providers/anthropic",
        "executor_id": "rye/core/primitives/http_client", "description": "d", "requires": ["net.call"],
        "protocol": "anthropic",
        "url": "${BASE:-https://api.example.com}/v1/messages",
        "auth": {"type": "api_key", "variable": "KEY"},
        "headers": {"x-team": "${TEAM:-none}"},
        "timeout": 7.5,
        "tier_mapping": {"fast": "small", "max": "large"},
        "pricing": {"small": {"input": 0.8, "output": "4.00", "cached_input": 0.08}, "m": {"input": 3, "output": 15}},
        "context_window": {"default": 1000, "large": 2000},
        "max_output_tokens": 500,
        "prompt_cache": true,
        "body": {"temperature": 0},
    }))
    .expect("a provider");
    assert_eq!(file.warnings, vec![]);
    assert_eq!(file.protocol("small"), ProviderProtocol::Anthropic);
    assert_eq!(file.tiers()["fast"], "small");
    let price = TokenPrice { input: 800, cached_input: 80, cache_write: 1000, output: 4000 };
    assert_eq!(file.pricing("small"), Pricing::Known(price));
    assert_eq!(file.pricing("large"), Pricing::Unknown);
    assert_eq!(file.priced_models().collect::<Vec<_>>(), ["m", "small"]);
    assert_eq!((file.context_window("large"), file.context_window("m")), (2000, 1000));
    assert_eq!(file.max_output_tokens("m"), 500);
    let parts = connect(&file, &[("KEY", "hush")]).expect("an endpoint");
    assert_eq!(parts.url, "https://api.example.com/v1/messages");
    let expected = [("x-team", "none"), ("x-api-key", "hush"), ("anthropic-version", "2023-06-01")];
    assert_eq!(parts.headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!((parts.timeout, parts.can_stream), (Duration::from_millis(7500), true));
    assert_eq!(connect(&file, &[]).err(), Some(ConnectError::Variable("KEY".to_owned())));
    assert_eq!(connect(&file, &[("KEY", "")]).err(), Some(ConnectError::Variable("KEY".to_owned())));
    let elsewhere = connect(&file, &[("KEY", "hush"), ("BASE", "http://127.0.0.1:9"), ("TEAM", "blue")]);
    let elsewhere = elsewhere.expect("an endpoint");
    assert_eq!(elsewhere.url, "http://127.0.0.1:9/v1/messages");
    assert_eq!(elsewhere.secrets, ["blue", "hush"]);
}

#[test]
fn legacy_layout_is_accepted() {
    let file = parse(&json!({
        "tool_id": "openai", "tool_type": "http", "version": "1.0.0", "category": "c", "description": "d",
        "env_config": {"env": {"OWN_KEY": "${OPENAI_API_KEY}"}},
        "config": {
            "method": "POST", "url": "https://api.example.com/v1/chat/completions",
            "auth": {"type": "bearer", "token": "${OWN_KEY}"},
            "headers": {"Content-Type": "application/json"}, "timeout": 60,
            "body": {"model": "{model}"}, "retry": {"max_attempts": 3},
        },
        "tool_use": {"stream_schema": {"stream_mode": "delta_merge"}},
        "pricing": {"m": {"input": 2.5, "output": 10, "max_output_tokens": 77}},
        "parameters": [],
    }))
    .expect("a provider");
    assert_eq!(file.protocol("m"), ProviderProtocol::Openai);
    assert_eq!(file.max_output_tokens("m"), 77);
    assert_eq!(file.warnings.len(), 3);
    let parts = connect(&file, &[("OPENAI_API_KEY", "hush")]).expect("an endpoint");
    assert!(
        parts.headers.contains(&("authorization".to_owned(), "Bearer hush".to_owned())),
        "{:?}",
        parts.headers
    );
    assert_eq!(connect(&file, &[]).err(), Some(ConnectError::Variable("OPENAI_API_KEY".to_owned())));
}

#[test]
fn first_matching_profile_overrides_base() {
    let file = parse(&json!({
        "protocol": "openai", "url": "https://gate.example.com/v1/chat/completions",
        "pricing": {"m": {"input": 1, "output": 1}},
        "profiles": {
            "claude": {"match": ["claude-*", "opus"], "protocol": "anthropic",
                "url": "https://gate.example.com/v1/messages", "pricing": {"opus": {"input": 5, "output": 25}}},
            "all": {"match": ["*-mini"], "priced": false},
        },
    }))
    .expect("a provider");
    for (model, profile, protocol) in [
        ("claude-1", Some("claude"), ProviderProtocol::Anthropic),
        ("claude-mini", Some("claude"), ProviderProtocol::Anthropic),
        ("opus", Some("claude"), ProviderProtocol::Anthropic),
        ("x-mini", Some("all"), ProviderProtocol::Openai),
        ("m", None, ProviderProtocol::Openai),
    ] {
        assert_eq!((file.profile(model), file.protocol(model)), (profile, protocol), "{model}");
    }
    assert_eq!(file.pricing("x-mini"), Pricing::Unpriced);
    let price = TokenPrice { input: 5000, cached_input: 5000, cache_write: 6250, output: 25_000 };
    assert_eq!(file.pricing("opus"), Pricing::Known(price));
    assert_eq!(file.priced_models().collect::<Vec<_>>(), ["m", "opus"]);
}

#[test]
fn offline_needs_nothing_and_costs_nothing() {
    let file = parse(&json!({"protocol": "offline"})).expect("a provider");
    assert_eq!(file.pricing("any"), Pricing::Known(TokenPrice::default()));
    assert_eq!(connect(&file, &[]).err(), Some(ConnectError::Offline));
}

#[test]
fn problems_name_their_key() {
    let base = json!({"protocol": "openai", "url": "https://a.example/"});
    for (key, value) in [
        ("colour", json!("red")),
        ("protocol", json!("telepathy")),
        ("url", json!(7)),
        ("auth", json!("x")),
        ("auth.type", json!({"type": "magic", "variable": "A"})),
        ("auth.variable", json!({"type": "bearer"})),
        ("auth.variable", json!({"type": "bearer", "variable": "A", "token": "${B}"})),
        ("auth.token", json!({"type": "bearer", "token": "sk-real"})),
        ("auth.token", json!({"type": "bearer", "token": "${A}sk"})),
        ("auth.colour", json!({"type": "bearer", "variable": "A", "colour": 1})),
        ("headers.a", json!({"a": 1})),
        ("timeout", json!(0)),
        ("timeout", json!(1e9)),
        ("stream", json!("yes")),
        ("priced", json!(0)),
        ("tier_mapping.fast", json!({"fast": 1})),
        ("pricing.m", json!({"m": 3})),
        ("pricing.m.output", json!({"m": {"input": 1}})),
        ("pricing.m.input", json!({"m": {"input": -1, "output": 1}})),
        ("pricing.m.input", json!({"m": {"input": 0.0375, "output": 1}})),
        ("pricing.m.inptu", json!({"m": {"input": 1, "output": 1, "inptu": 1}})),
        ("context_window", json!(0)),
        ("context_window.m", json!({"m": "big"})),
        ("max_tokens_field", json!("tokens")),
        ("prompt_cache", json!(true)),
        ("body.model", json!({"model": "other"})),
        ("profiles.p.match", json!({"p": {}})),
        ("profiles.p.timeout", json!({"p": {"match": ["a"], "timeout": -1}})),
        ("profiles.p.tier_mapping", json!({"p": {"match": ["a"], "tier_mapping": {}}})),
        ("config.colour", json!({"colour": 1})),
        ("config.method", json!({"method": "GET"})),
        ("config.url", json!({"url": "https://b.example/"})),
        ("env_config.file", json!({"file": ".env"})),
    ] {
        let mut file = base.clone();
        let top = key.split('.').next().expect("a key");
        file[top] = value;
        let problems = parse(&file).expect_err(key);
        let fields: Vec<&str> = problems.iter().filter_map(|problem| problem.field.as_deref()).collect();
        assert_eq!(fields, [key], "{problems:?}");
    }
    assert_eq!(parse(&json!({"protocol": "gemini"})).expect_err("no url").len(), 1);
}

#[test]
fn prices_are_exact() {
    for (value, expected) in [
        (json!(3), Some(3000)),
        (json!(0.1), Some(100)),
        (json!(0.3), Some(300)),
        (json!(0.075), Some(75)),
        (json!(1e-3), Some(1)),
        (json!("18.750"), Some(18_750)),
        (json!("0.0005"), None),
        (json!(-0.5), None),
        (json!("1e3"), None),
        (json!(""), None),
        (json!("."), None),
        (json!("1."), Some(1000)),
        (json!(1e300), None),
        (json!(true), None),
    ] {
        assert_eq!(parse_nano_dollars(&value), expected, "{value}");
    }
}

proptest! {
    #[test]
    fn three_decimal_prices_parse_exactly(thousandths in 0_u64..1_000_000_000) {
        let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
        prop_assert_eq!(parse_nano_dollars(&json!(text)), Some(thousandths));
        let number: f64 = text.parse().expect("a number");
        prop_assert_eq!(parse_nano_dollars(&json!(number)), Some(thousandths));
    }

    #[test]
    fn star_matches_anything(start in "[a-c]{0,3}", middle in "[a-c]{0,3}", end in "[a-c]{0,3}", any in "[a-c]{0,5}") {
        let (pattern, text) = (format!("{start}*{middle}*{end}"), format!("{start}{any}{middle}{any}{end}"));
        prop_assert!(is_match(&pattern, &text));
        let (pattern, text) = (format!("{start}*{end}"), format!("x{start}{end}"));
        prop_assert_eq!(is_match(&pattern, &text), start.is_empty());
        prop_assert!(is_match(&start, &start));
    }
}
