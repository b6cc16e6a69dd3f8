//! How many pages a PDF document has. Objects are looked through as they are, and inside compressed object streams; nothing else
//! of the format is read.

use std::io::Read as _;

use flate2::read::ZlibDecoder;

/// How much is decompressed of one document.
const MAX_INFLATED_BYTES: u64 = 64 << 20;

/// How far behind the name of an object stream its bytes begin.
const MAX_DICTIONARY_BYTES: usize = 4096;

/// How many pages a document has, as its page tree says; nothing if that cannot be seen.
pub(super) fn count_pages(bytes: &[u8]) -> Option<u64> {
    let mut pages = PageCount::default();
    pages.scan(bytes);
    let mut rest = bytes;
    let mut remaining = MAX_INFLATED_BYTES;
    while let Some(at) = find(rest, b"/ObjStm") {
        rest = &rest[at + b"/ObjStm".len()..];
        let dictionary = &rest[..rest.len().min(MAX_DICTIONARY_BYTES)];
        let Some(start) = find(dictionary, b"stream") else { continue };
        let data = &rest[start + b"stream".len()..];
        let data = data.strip_prefix(b"\r").unwrap_or(data);
        let data = data.strip_prefix(b"\n").unwrap_or(data);
        let mut objects = Vec::new();
        // What is there before an error counts: the bytes behind a stream are not part of it.
        let _ = ZlibDecoder::new(data).take(remaining).read_to_end(&mut objects);
        remaining = remaining.saturating_sub(objects.len() as u64);
        pages.scan(&objects);
    }
    Some(pages.single.max(pages.largest_tree)).filter(|pages| *pages > 0)
}

#[derive(Default)]
struct PageCount {
    /// Pages that were seen.
    single: u64,
    /// The most pages that a part of the page tree says it has.
    largest_tree: u64,
}

impl PageCount {
    fn scan(&mut self, objects: &[u8]) {
        for behind in after_each(objects, b"/Type") {
            self.single += u64::from(behind.starts_with(b"/Page") && !behind.starts_with(b"/Pages"));
        }
        for behind in after_each(objects, b"/Count") {
            let digits: String =
                behind.iter().copied().take_while(u8::is_ascii_digit).map(char::from).take(9).collect();
            self.largest_tree = self.largest_tree.max(digits.parse().unwrap_or(0));
        }
    }
}

/// What stands behind each occurrence of a name, without the blanks between.
fn after_each<'a>(bytes: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let at = find(rest, name)?;
        rest = &rest[at + name.len()..];
        Some(rest.trim_ascii_start())
    })
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    let first = *word.first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(word) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn pages_are_counted_in_compressed_objects_too() {
        let plain = b"%PDF-1.4\n1 0 obj<</Type/Pages/Count 3/Kids[]>>endobj 2 0 obj<</Type /Page>>endobj";
        assert_eq!(count_pages(plain), Some(3));
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"<</Type/Page>> <</Type /Page>> <</Type/Pages/Count 2>>").expect("written");
        let objects = encoder.finish().expect("compressed");
        let mut packed = b"%PDF-1.5\n5 0 obj<</Type/ObjStm/Filter/FlateDecode>>stream\r\n".to_vec();
        packed.extend(objects);
        packed.extend(b"\nendstream endobj");
        assert_eq!(count_pages(&packed), Some(2));
        assert_eq!(count_pages(b"%PDF-1.7\n/Type/ObjStm stream\nnot compressed"), None);
    }
}
