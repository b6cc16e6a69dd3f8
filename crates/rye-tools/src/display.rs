//! What a model or a person is shown of bytes from outside: paths, kinds of files, lines that are cut.

use std::path::Path;

use rye_item::text::one_line;

/// The most characters of a line that are shown.
pub(crate) const MAX_LINE_CHARS: usize = 2000;

/// A path on one line, without anything a terminal would obey.
pub(crate) fn display_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.is_empty() { ".".to_owned() } else { one_line(&text) }
}

/// A path as data: exact where it is UTF-8, `.` for the project itself.
pub(crate) fn path_text(path: &Path) -> String {
    if path.as_os_str().is_empty() { ".".to_owned() } else { path.to_string_lossy().into_owned() }
}

/// `line`, cut after `limit` characters with a mark that says how many are missing.
pub(crate) fn push_truncated(out: &mut String, line: &str, limit: usize) {
    if line.len() <= limit {
        out.push_str(line);
        return;
    }
    match line.char_indices().nth(limit) {
        None => out.push_str(line),
        Some((end, _)) => {
            out.push_str(&line[..end]);
            let missing = line[end..].chars().count();
            out.push_str(&format!("… [{missing} more characters]"));
        }
    }
}

/// Whether the bytes are not meant to be read as text.
pub(crate) fn is_binary(head: &[u8]) -> bool {
    head[..head.len().min(8192)].contains(&0) || has_binary_signature(head)
}

/// Formats that may have no NUL near their start.
fn has_binary_signature(head: &[u8]) -> bool {
    [&b"%PDF-"[..], b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"]
        .iter()
        .any(|magic| head.starts_with(magic))
}

/// What a binary file seems to be.
pub(crate) fn binary_type(head: &[u8]) -> &'static str {
    const SIGNATURES: [(&[u8], &str); 22] = [
        (b"\x89PNG\r\n\x1a\n", "PNG image"),
        (b"\xff\xd8\xff", "JPEG image"),
        (b"GIF8", "GIF image"),
        (b"BM", "BMP image"),
        (b"II*\0", "TIFF image"),
        (b"MM\0*", "TIFF image"),
        (b"\0\0\x01\0", "icon"),
        (b"%PDF-", "PDF document"),
        (b"PK\x03\x04", "ZIP archive (or a format built on it)"),
        (b"\x1f\x8b", "gzip data"),
        (b"BZh", "bzip2 data"),
        (b"\xfd7zXZ\0", "xz data"),
        (b"\x28\xb5\x2f\xfd", "zstd data"),
        (b"7z\xbc\xaf\x27\x1c", "7-zip archive"),
        (b"\x7fELF", "ELF program or library"),
        (b"\0asm", "WebAssembly module"),
        (b"SQLite format 3\0", "SQLite database"),
        (b"OggS", "Ogg audio or video"),
        (b"ID3", "MP3 audio"),
        (b"fLaC", "FLAC audio"),
        (b"\xff\xfe", "UTF-16 text"),
        (b"\xfe\xff", "UTF-16 text"),
    ];
    if head.starts_with(b"RIFF") {
        return match head.get(8..12) {
            Some(b"WEBP") => "WebP image",
            Some(b"WAVE") => "WAV audio",
            Some(b"AVI ") => "AVI video",
            _ => "RIFF data",
        };
    }
    if head.get(4..8) == Some(b"ftyp") {
        return "MP4 or HEIF media";
    }
    SIGNATURES
        .iter()
        .find(|(magic, _)| head.starts_with(magic))
        .map_or("unknown binary data", |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_is_truncated_with_count() {
        let mut out = String::new();
        push_truncated(&mut out, "äöü", 3);
        push_truncated(&mut out, "äöüß!", 3);
        assert_eq!(out, "äöüäöü… [2 more characters]");
    }

    #[test]
    fn paths_have_no_terminal_escapes() {
        assert_eq!(display_path(Path::new("a\u{1b}[2J\nb")), "a b");
        assert_eq!(display_path(Path::new("")), ".");
    }

    #[test]
    fn binary_files_are_detected() {
        assert!(
            is_binary(b"a\0b")
                && is_binary(b"%PDF-1.7\n")
                && !is_binary("grün".as_bytes())
                && !is_binary(b"")
        );
        assert_eq!(binary_type(b"\x89PNG\r\n\x1a\n...."), "PNG image");
        assert_eq!(binary_type(b"RIFF....WEBPVP8 "), "WebP image");
        assert_eq!(binary_type(b"\0\0\0\0"), "unknown binary data");
    }
}
