//! Text of a body: the byte order mark, the header or the page itself says how it is encoded.

use encoding_rs::{Encoding, UTF_8};

/// The `charset` parameter of a content type.
fn charset_from_content_type(content_type: &str) -> Option<&'static Encoding> {
    let mut parts = content_type.split(';').skip(1);
    let label = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches(['"', '\'']))
    })?;
    Encoding::for_label(label.as_bytes())
}

/// What a page says of itself in its first kilobyte: `<meta charset=…>`, or an XML declaration.
fn charset_from_body(body: &[u8]) -> Option<&'static Encoding> {
    let head = String::from_utf8_lossy(&body[..body.len().min(1024)]).to_ascii_lowercase();
    let at = head.find("charset=").map(|at| at + 8).or_else(|| {
        let at = head.find("<?xml")?;
        Some(at + head[at..].find("encoding=")? + 9)
    })?;
    let rest = head[at..].trim_start_matches(['"', '\'', ' ']);
    let end = rest.find(|next: char| !next.is_ascii_alphanumeric() && !matches!(next, '-' | '_' | ':'));
    Encoding::for_label(&rest.as_bytes()[..end.unwrap_or(rest.len())])
}

/// The text of a body, or `None` when it is not text. `content_type` is the header's value.
#[must_use]
pub fn decode_text(body: &[u8], content_type: &str) -> Option<String> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_markup = media_type.contains("html") || media_type.contains("xml");
    let by_bom = Encoding::for_bom(body).map(|(encoding, _)| encoding);
    let encoding = by_bom.or_else(|| charset_from_content_type(content_type)).or_else(|| {
        let inside = is_markup.then(|| charset_from_body(body)).flatten()?;
        // A page that can be read as ASCII far enough to say UTF-16 is not UTF-16.
        Some(if inside.output_encoding() == inside { inside } else { UTF_8 })
    });
    let is_text =
        media_type.starts_with("text/") || is_markup || media_type.contains("json") || encoding.is_some();
    let encoding = encoding.unwrap_or(UTF_8);
    if !is_text {
        let text = std::str::from_utf8(body).ok()?;
        return (!text.contains('\0')).then(|| text.to_owned());
    }
    Some(encoding.decode(body).0.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bom_header_page_decide_in_order() {
        let read = |body: &[u8], kind: &str| decode_text(body, kind);
        assert_eq!(read(b"caf\xe9", "text/plain; charset=ISO-8859-1"), Some("café".to_owned()));
        assert_eq!(read(b"caf\xc3\xa9", "text/plain"), Some("café".to_owned()));
        assert_eq!(read(b"\xef\xbb\xbfcaf\xc3\xa9", "text/plain; charset=latin1"), Some("café".to_owned()));
        let page = b"<meta charset=\"windows-1251\"><p>\xcf\xf0";
        assert_eq!(read(page, "text/html"), Some("<meta charset=\"windows-1251\"><p>Пр".to_owned()));
        let page = b"<meta http-equiv=x content='text/html; charset=utf-16'>\xc3\xa9";
        assert!(read(page, "text/html").is_some_and(|text| text.ends_with('é')));
        let page = b"<?xml version='1.0' encoding='iso-8859-1'?>\xe9";
        assert!(read(page, "application/xml").is_some_and(|text| text.ends_with('é')));
    }

    #[test]
    fn binary_body_is_not_text() {
        assert_eq!(decode_text(b"\x89PNG\r\n\x1a\n\xff", "image/png"), None);
        assert_eq!(decode_text(b"a\0b", "application/octet-stream"), None);
        assert_eq!(decode_text(b"plain", ""), Some("plain".to_owned()));
        assert_eq!(decode_text(b"bad \xff", "text/plain"), Some("bad \u{fffd}".to_owned()));
    }
}
