//! The words of a signature line: what is read is written back the same.
#![no_main]

use rye_trust::SignatureLine;
use rye_trust::signature::Timestamp;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(line) = SignatureLine::parse(text) {
        assert_eq!(line.to_text(), text);
        assert_eq!(line.signature_text.trim_end_matches('='), line.signature.to_base64());
        assert!(Timestamp::new(line.timestamp.as_str()).is_some());
    }
    // A line with one part from the input: the other parts are good, so that the part is reached.
    let (timestamp, hash) =
        ("2026-01-02T03:04:05Z", "8ab20818b2ddd5a71bf7d6d5fe6ca0c295c89c4815fd370d60cb4e26226f6a50");
    let signature = "a_KtlPKxI3_c03zXlYc5683ugeYGDk4LPbAVEperBq_OM-EDwQt6r3cpO3r0dgwCDgVLC37irl1eC7g-XTOVCQ";
    for line in [
        format!("rye:signed:{text}:{hash}:{signature}:f0ff50dacf109dea"),
        format!("rye:signed:{timestamp}:{text}:{signature}:f0ff50dacf109dea"),
        format!("rye:signed:{timestamp}:{hash}:{text}:f0ff50dacf109dea"),
        format!("rye:signed:{timestamp}:{hash}:{signature}:{text}"),
        format!("rye:signed:{timestamp}:{hash}:{signature}:f0ff50dacf109dea|{text}"),
    ] {
        if let Some(read) = SignatureLine::parse(&line) {
            assert_eq!(read.to_text(), line);
        }
    }
});
