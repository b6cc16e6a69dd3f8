//! Documents that mean something by the folder they lie in. A signature names no type, so a text that reads as one of them is
//! never signed or accepted as anything else.

use toml::Table;

/// The document that this text could be used as, if its signature line were one of `#`.
///
/// Looser than the readers of these documents, on purpose: what one of them accepts is found here, and some more.
#[must_use]
pub fn signed_document(text: &str) -> Option<&'static str> {
    // Each needs a key in PEM, however it is written.
    if !text.contains("pem") && !has_escaped_letters(text) {
        return None;
    }
    let table: Table = toml::from_str(text).ok()?;
    let has = |key: &str| table.contains_key(key);
    if has("public_key") {
        Some("an identity document")
    } else if has("old_key") || has("new_key") {
        Some("a key hand-over")
    } else {
        None
    }
}

/// Whether a quoted word of the text may be written with numbers instead of letters.
#[must_use]
pub fn has_escaped_letters(text: &str) -> bool {
    ["\\u", "\\U", "\\x"].iter().any(|escape| text.contains(escape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_however_they_are_written() {
        for text in [
            "fingerprint = 'x'\n[public_key]\npem = 'y'\n",
            "public_key = {pem = 'y'}\ntool_type = 'x'",
            "public_key.pem = 'y'",
            "\"public_k\\u0065y\".\"p\\u0065m\" = 'y'",
            "# first\n\n[ public_key ]\n\"pem\" = '''\ny'''\n",
        ] {
            assert_eq!(signed_document(text), Some("an identity document"), "{text}");
        }
        assert_eq!(signed_document("[old_key]\npem = 'a'\n[new_key]\npem = 'b'\n"), Some("a key hand-over"));
        for text in ["version = '1'\n", "def pem(): pass\n", "pem = 'a'\n", "bundle:\n  pem: x\n"] {
            assert_eq!(signed_document(text), None, "{text}");
        }
    }
}
