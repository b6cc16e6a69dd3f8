//! The forms of a file that are read by others than the verifier. What no signature covers is replaced by fixed lines, so
//! that what is read cannot be changed without breaking the signature.

use std::borrow::Cow;

use rye_item::SignatureFormat;

use crate::signature::{FileLayout, SignatureLine, format_line};

/// The first line of a file whose comments begin with `#`. Python looks for an encoding in the first two lines: without
/// this one, a shebang put before the signature line or taken away would decide whether one in the content is used.
const ENCODING_LINE: &[u8] = b"# -*- coding: utf-8 -*-\n";
const BLANK_LINE: &[u8] = b"\n";

/// `bytes` with the shebang and the signature line replaced; line numbers stay. Apart from whether there is a shebang it
/// depends on the content alone. A file whose first line is an invalid shebang is never used and stays as it is.
#[must_use]
pub fn covered_form<'a>(bytes: &'a [u8], format: &SignatureFormat) -> Cow<'a, [u8]> {
    let layout = FileLayout::parse(bytes, format);
    let replaced = [&layout.shebang, &layout.line].into_iter().filter(|range| !range.is_empty()).count();
    if replaced == 0 {
        return Cow::Borrowed(bytes);
    }
    let has_encoding_line = format.after_shebang && format.prefix == "#";
    let first = if has_encoding_line { ENCODING_LINE } else { BLANK_LINE };
    let content = &bytes[layout.content];
    let mut text = Vec::with_capacity(first.len() + replaced + content.len());
    text.extend_from_slice(first);
    for _ in 1..replaced {
        text.extend_from_slice(BLANK_LINE);
    }
    text.extend_from_slice(content);
    Cow::Owned(text)
}

/// `bytes` for people and models to read: the shebang is blank, and the signature line says nothing that a reader could
/// have added to it.
#[must_use]
pub fn display_form<'a>(bytes: &'a [u8], format: &SignatureFormat) -> Cow<'a, [u8]> {
    let layout = FileLayout::parse(bytes, format);
    let registry = layout.signature.as_ref().and_then(|line| line.registry.as_ref());
    if layout.shebang.is_empty() && registry.is_none() {
        return Cow::Borrowed(bytes);
    }
    let shebang = if layout.shebang.is_empty() { &b""[..] } else { BLANK_LINE };
    let line = match &layout.signature {
        Some(line) => {
            let plain = SignatureLine { registry: None, ..line.clone() };
            format_line(&plain, format, layout.line_break(bytes))
        }
        None => String::new(),
    };
    Cow::Owned([shebang, line.as_bytes(), &bytes[layout.content]].concat())
}
