//! The signature line: its grammar, and where it stands in a file.

use std::fmt;
use std::ops::Range;

use lillux::{Digest, Fingerprint, Signature};
use rye_item::SignatureFormat;

const MARKER: &str = "rye:signed:";
/// No signature line is longer; what is longer is not searched.
const MAX_LINE_BYTES: usize = 1024;
/// No shebang is longer, its line break not counted: kernels cut longer ones.
const MAX_SHEBANG_BYTES: usize = 256;
/// No provider and no user name of a registry is longer.
const MAX_REGISTRY_WORD_BYTES: usize = 64;

/// A moment in UTC, to the second: `2026-01-02T03:04:05Z`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timestamp(String);

impl Timestamp {
    /// Checks the form `YYYY-MM-DDTHH:MM:SSZ`.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        const FORM: &[u8] = b"dddd-dd-ddTdd:dd:ddZ";
        let is_well_formed = text.len() == FORM.len()
            && text.bytes().zip(FORM).all(|(byte, form)| match form {
                b'd' => byte.is_ascii_digit(),
                other => byte == *other,
            });
        let number = |range: Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
        let is_valid = is_well_formed
            && number(5..7).is_some_and(|month| (1..=12).contains(&month))
            && number(8..10).is_some_and(|day| (1..=31).contains(&day))
            && number(11..13).is_some_and(|hour| hour < 24)
            && number(14..16).is_some_and(|minute| minute < 60)
            && number(17..19).is_some_and(|second| second < 61);
        is_valid.then(|| Self(text.to_owned()))
    }

    /// The moment `seconds` after 1970; `None` after the year 9999.
    #[must_use]
    pub fn from_unix(seconds: u64) -> Option<Self> {
        rye_item::timestamp::utc_seconds(seconds).map(Self)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a signature line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureLine {
    /// When it was signed. Not covered by the signature.
    pub timestamp: Timestamp,
    /// The hash that was signed.
    pub hash: Digest,
    /// The signature over the hash's 64 hex characters.
    pub signature: Signature,
    /// The signature as it is written in the line, with or without padding.
    pub signature_text: String,
    /// Whose key signed. A name, not a proof.
    pub fingerprint: Fingerprint,
    /// `provider@user` of a registry. Not covered by the signature, and not used for decisions.
    pub registry: Option<String>,
}

impl SignatureLine {
    /// The line's text without comment syntax.
    #[must_use]
    pub fn to_text(&self) -> String {
        let registry = self.registry.as_ref().map(|registry| format!("|{registry}")).unwrap_or_default();
        format!(
            "{MARKER}{}:{}:{}:{}{registry}",
            self.timestamp, self.hash, self.signature_text, self.fingerprint
        )
    }

    /// Reads the text without comment syntax; nothing may stand before or behind it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(MARKER)?;
        let timestamp = Timestamp::new(rest.get(..20)?)?;
        let rest = rest.get(20..)?.strip_prefix(':')?;
        let hash = rest.get(..64)?.parse().ok()?;
        let rest = rest.get(64..)?.strip_prefix(':')?;
        let (signature_text, rest) = rest.split_once(':')?;
        let signature = Signature::from_base64(signature_text)?;
        let fingerprint = rest.get(..16)?.parse().ok()?;
        let registry = match rest.get(16..)? {
            "" => None,
            suffix => Some(parse_registry(suffix.strip_prefix('|')?)?),
        };
        Some(Self {
            timestamp,
            hash,
            signature,
            signature_text: signature_text.to_owned(),
            fingerprint,
            registry,
        })
    }
}

fn parse_registry(text: &str) -> Option<String> {
    let (provider, user) = text.split_once('@')?;
    let is_word = |word: &str| {
        (1..=MAX_REGISTRY_WORD_BYTES).contains(&word.len())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    (is_word(provider) && is_word(user)).then(|| text.to_owned())
}

/// A file taken apart: shebang line, signature line, the rest. Ranges are of bytes and never overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// The `#!…` line, where the format lets one stand first.
    pub shebang: Range<usize>,
    /// Why the first line, which begins with `#!`, is not a shebang. Then nothing else was found either.
    pub shebang_error: Option<ShebangError>,
    /// The signature line with its line break.
    pub line: Range<usize>,
    /// What it says.
    pub signature: Option<SignatureLine>,
    /// Everything after both.
    pub content: Range<usize>,
}

impl FileLayout {
    /// Takes `bytes` apart.
    #[must_use]
    pub fn parse(bytes: &[u8], format: &SignatureFormat) -> Self {
        let (shebang_end, shebang_error) = match shebang_length(bytes) {
            _ if !format.after_shebang => (0, None),
            Ok(length) => (length, None),
            Err(error) => (0, Some(error)),
        };
        let shebang = 0..shebang_end;
        if shebang_error.is_some() {
            return Self { shebang, shebang_error, line: 0..0, signature: None, content: 0..bytes.len() };
        }
        let rest = &bytes[shebang.end..];
        let line_length = line_length(rest);
        let signature = parse_line(&rest[..line_length], format);
        let line = shebang.end..shebang.end + if signature.is_some() { line_length } else { 0 };
        Self { shebang, shebang_error, content: line.end..bytes.len(), line, signature }
    }

    /// The line break a signature line has in this file: the first one behind it, else the shebang's, else LF.
    #[must_use]
    pub fn line_break(&self, bytes: &[u8]) -> &'static str {
        let first = |part: &Range<usize>| first_line_break(&bytes[part.clone()]);
        first(&self.content).or_else(|| first(&self.shebang)).unwrap_or("\n")
    }

    /// Whether the signature line ends as signing would end it. No hash covers its line break, so this does.
    #[must_use]
    pub fn has_consistent_line_break(&self, bytes: &[u8]) -> bool {
        first_line_break(&bytes[self.line.clone()]) == Some(self.line_break(bytes))
    }
}

fn first_line_break(bytes: &[u8]) -> Option<&'static str> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some(if bytes[..end].ends_with(b"\r") { "\r\n" } else { "\n" })
}

/// Why a first line that begins with `#!` is not a shebang.
///
/// No signature covers a shebang, so it is held to what no interpreter can take for anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShebangError {
    /// It has no LF, or a byte outside printable ASCII before it.
    #[error("its `#!` line has characters other than printable ASCII, or no line end")]
    Characters,
    /// It is too long.
    #[error("its `#!` line is longer than {MAX_SHEBANG_BYTES} bytes")]
    TooLong,
    /// It names an encoding.
    #[error("its `#!` line declares an encoding")]
    Encoding,
}

/// The length of the shebang with its line break; 0 where the file does not begin with `#!`.
fn shebang_length(bytes: &[u8]) -> Result<usize, ShebangError> {
    if !bytes.starts_with(b"#!") {
        return Ok(0);
    }
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(ShebangError::Characters)?;
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    if !line.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err(ShebangError::Characters);
    }
    if line.len() > MAX_SHEBANG_BYTES {
        return Err(ShebangError::TooLong);
    }
    if has_encoding(&line.to_ascii_lowercase()) {
        return Err(ShebangError::Encoding);
    }
    Ok(end + 1)
}

/// Whether Python (PEP 263), Ruby or an editor could read the name of an encoding from a comment line.
fn has_encoding(line: &[u8]) -> bool {
    line.windows(7).any(|window| window.starts_with(b"coding") && matches!(window[6], b':' | b'='))
}

/// The length of the first line with its break, if it is short enough to be a signature line.
fn line_length(bytes: &[u8]) -> usize {
    let window = &bytes[..bytes.len().min(MAX_LINE_BYTES)];
    match window.iter().position(|byte| *byte == b'\n') {
        Some(end) => end + 1,
        None if bytes.len() < MAX_LINE_BYTES => bytes.len(),
        None => 0,
    }
}

fn parse_line(line: &[u8], format: &SignatureFormat) -> Option<SignatureLine> {
    let line = std::str::from_utf8(line).ok()?;
    let line = line.strip_suffix('\n').unwrap_or(line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    let text = line.strip_prefix(format.prefix.as_str())?.strip_prefix(' ')?;
    if has_encoding(line.as_bytes()) {
        return None;
    }
    let text = match &format.suffix {
        Some(suffix) => text.strip_suffix(suffix.as_str())?.strip_suffix(' ')?,
        None => text,
    };
    SignatureLine::parse(text)
}

/// The line as it is written into a file, with the line break of [`FileLayout::line_break`].
#[must_use]
pub fn format_line(signature: &SignatureLine, format: &SignatureFormat, line_break: &str) -> String {
    let suffix = format.suffix.as_ref().map(|suffix| format!(" {suffix}")).unwrap_or_default();
    format!("{} {}{suffix}{line_break}", format.prefix, signature.to_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "rye:signed:2026-01-02T03:04:05Z:8ab20818b2ddd5a71bf7d6d5fe6ca0c295c89c4815fd370d60cb4e26226f6a50:a_KtlPKxI3_c03zXlYc5683ugeYGDk4LPbAVEperBq_OM-EDwQt6r3cpO3r0dgwCDgVLC37irl1eC7g-XTOVCQ:f0ff50dacf109dea";

    fn python() -> SignatureFormat {
        SignatureFormat { prefix: "#".into(), suffix: None, after_shebang: true }
    }

    #[test]
    fn signature_line_round_trips() {
        for text in [LINE.to_owned(), format!("{LINE}|registry@some-one")] {
            assert_eq!(SignatureLine::parse(&text).map(|line| line.to_text()), Some(text));
        }
    }

    #[test]
    fn unix_seconds_become_timestamps() {
        let text = |seconds| Timestamp::from_unix(seconds).map(|timestamp| timestamp.to_string());
        assert_eq!(text(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(text(951_782_400).as_deref(), Some("2000-02-29T00:00:00Z"));
        assert_eq!(text(1_767_323_045).as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(text(u64::MAX / 4), None);
    }

    #[test]
    fn malformed_lines_are_rejected() {
        for bad in [
            "",
            "rye:signed:",
            &LINE[..LINE.len() - 1],
            &format!("{LINE}x"),
            &format!("{LINE} "),
            &format!("{LINE}|a"),
            &format!("{LINE}|a@"),
            &LINE.replace("2026-01", "2026-13"),
            &LINE.replace("8ab2", "8AB2"),
            &LINE.replace("f0ff", "F0FF"),
            &LINE.replace("a_Kt", "a+Kt"),
        ] {
            assert_eq!(SignatureLine::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn line_is_first_or_after_shebang() {
        let signed = format!("#!/usr/bin/env python3\n# {LINE}\nx = 1\n");
        let layout = FileLayout::parse(signed.as_bytes(), &python());
        assert!(layout.signature.is_some());
        assert_eq!(&signed[layout.shebang.clone()], "#!/usr/bin/env python3\n");
        assert_eq!(&signed[layout.content.clone()], "x = 1\n");

        let late = format!("\n# {LINE}\nx = 1\n");
        assert_eq!(FileLayout::parse(late.as_bytes(), &python()).signature, None);
        let config = SignatureFormat { after_shebang: false, ..python() };
        assert_eq!(FileLayout::parse(signed.as_bytes(), &config).signature, None);
    }

    #[test]
    fn line_may_end_file_or_use_crlf() {
        for end in ["", "\n", "\r\n"] {
            let text = format!("# {LINE}{end}");
            let layout = FileLayout::parse(text.as_bytes(), &python());
            assert!(layout.signature.is_some(), "{end:?}");
            assert!(layout.content.is_empty());
        }
    }
}
