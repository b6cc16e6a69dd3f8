//! The error of estimated token counts, with OpenAI's tokenizer as the truth: never under by more than 5 %, over by at
//! most 25 % in the middle, for each kind of text.

use std::fmt::Write as _;

use rye_thread::model::text_tokens::TokenProfile;

/// How long a sample is at least, in bytes.
const MIN_SAMPLE_BYTES: usize = 250;

fn samples(text: &str, bytes: usize) -> Vec<&str> {
    let mut samples = Vec::new();
    let mut rest = text;
    while rest.len() >= MIN_SAMPLE_BYTES {
        let mut end = bytes.min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (sample, after) = rest.split_at(end);
        samples.push(sample);
        rest = after;
    }
    samples
}

/// Numbers that look random, from a seed.
fn numbers(mut seed: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    })
}

fn base64(bytes: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    numbers(7)
        .take(bytes)
        .map(|number| char::from(ALPHABET[usize::try_from(number % 64).unwrap_or_default()]))
        .collect()
}

fn json(rows: usize) -> String {
    let mut text = String::from("[");
    for number in numbers(11).take(rows) {
        let (id, score, day) = (number % 1_000_000, number % 977, number % 28 + 1);
        let is_active = number.is_multiple_of(3);
        let _ = write!(
            text,
            "{{\"id\": {id}, \"name\": \"Order {id}\", \"tags\": [\"urgent\", \"paid\"], \"active\": {is_active}, \
             \"score\": {score}.25, \"created_at\": \"2025-03-{day:02}T10:15:00Z\", \"path\": \"/srv/orders/{id}.txt\"}},\n "
        );
    }
    text.push_str("{}]");
    text
}

#[test]
fn estimates_are_within_their_error() {
    let (base64, json) = (base64(8000), json(60));
    let kinds = [
        ("english", include_str!("../../../ARCHITECTURE.md"), 2000),
        ("german", include_str!("estimates/german.txt"), 400),
        ("chinese", include_str!("estimates/chinese.txt"), 450),
        ("code", include_str!("../src/machine/turn.rs"), 2000),
        ("json", json.as_str(), 2000),
        ("base64", base64.as_str(), 2000),
    ];
    let truths = [
        ("gpt-4o", tiktoken_rs::o200k_base().expect("a tokenizer")),
        ("gpt-4", tiktoken_rs::cl100k_base().expect("a tokenizer")),
    ];
    for (model, tokenizer) in truths {
        let profile = TokenProfile::for_model(model);
        assert_eq!(profile.allowance, 1000, "{model}");
        for (kind, text, bytes) in kinds {
            let mut ratios: Vec<u64> = samples(text, bytes)
                .into_iter()
                .map(|sample| {
                    let actual = tokenizer.encode_ordinary(sample).len() as u64;
                    profile.milli_tokens(sample) / actual
                })
                .collect();
            ratios.sort_unstable();
            let (least, middle) = (ratios[0], ratios[ratios.len() / 2]);
            println!(
                "{model} {kind}: {} samples, least {least}, middle {middle}, most {}",
                ratios.len(),
                ratios[ratios.len() - 1]
            );
            assert!(least >= 950, "{model} {kind}: {least} thousandths of the real count");
            assert!(middle <= 1250, "{model} {kind}: {middle} thousandths of the real count");
        }
    }
}

/// A tokenizer that is not public may split more than those that are.
#[test]
fn unknown_models_get_an_allowance() {
    for model in ["claude-sonnet-4-5", "gemini-2.5-pro", "llama3", "anthropic/claude-opus-4"] {
        assert_eq!(TokenProfile::for_model(model).allowance, 1250, "{model}");
    }
    assert_eq!(TokenProfile::for_model("openai/gpt-4.1-mini"), TokenProfile::for_model("o3"));
}

/// Characters without a kind of their own count a token for each byte, which no tokenizer exceeds.
#[test]
fn unknown_scripts_count_every_byte() {
    let profile = TokenProfile::for_model("gpt-4o");
    for text in ["ꦲꦏ꧀ꦱꦫ", "𐍈𐌰𐌹", "\u{1}\u{2}\u{3}", "🦀🦀"] {
        assert_eq!(profile.milli_tokens(text), 1000 * text.len() as u64, "{text:?}");
    }
}
