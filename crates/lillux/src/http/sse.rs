//! Server-sent events: bytes in, events out, bounded.

use std::mem;

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Its name, if the server gave one.
    pub name: Option<String>,
    /// Its data; several `data:` lines are joined by line breaks.
    pub data: String,
}

/// Cuts a stream of bytes into events.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
    follows_carriage_return: bool,
    has_input: bool,
}

impl SseParser {
    /// Takes bytes as they come and hands out the events that are complete.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<SseEvent>) {
        let mut rest = bytes;
        if !rest.is_empty() && mem::take(&mut self.follows_carriage_return) {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (line, ending) = rest.split_at(end);
            rest = match ending {
                [b'\r', b'\n', rest @ ..] | [b'\n' | b'\r', rest @ ..] => rest,
                _ => ending,
            };
            self.follows_carriage_return = ending == b"\r";
            if self.line.is_empty() {
                self.parse_line(line, out);
            } else {
                let mut whole = mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.parse_line(&whole, out);
            }
        }
        self.line.extend_from_slice(rest);
    }

    /// Ends the stream: servers often leave out the last empty line.
    pub fn finish(&mut self, out: &mut Vec<SseEvent>) {
        let line = mem::take(&mut self.line);
        if !line.is_empty() {
            self.parse_line(&line, out);
        }
        self.dispatch(out);
    }

    /// How many bytes are held back for an event that is not complete.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.line.len() + self.event.data.len()
    }

    fn parse_line(&mut self, line: &[u8], out: &mut Vec<SseEvent>) {
        let text = String::from_utf8_lossy(line);
        let text = match mem::replace(&mut self.has_input, true) {
            false => text.trim_start_matches('\u{feff}'),
            true => &text,
        };
        if text.is_empty() {
            self.dispatch(out);
            return;
        }
        let (field, value) = text.split_once(':').unwrap_or((text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "event" => self.event.name = Some(value.to_owned()),
            // Comments, ids and reconnection times mean nothing to one request.
            _ => {}
        }
    }

    fn dispatch(&mut self, out: &mut Vec<SseEvent>) {
        let event = mem::take(&mut self.event);
        if mem::take(&mut self.has_data) {
            out.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<(Option<String>, String)> {
        let (mut parser, mut out) = (SseParser::default(), Vec::new());
        for chunk in chunks {
            parser.feed(chunk, &mut out);
        }
        parser.finish(&mut out);
        out.into_iter().map(|event| (event.name, event.data)).collect()
    }

    #[test]
    fn any_line_ending_and_split_parses() {
        let expected = vec![(Some("a".to_owned()), "1\n2".to_owned()), (None, "é".to_owned())];
        for text in [
            ": hello\nevent: a\ndata: 1\ndata:2\n\ndata: é\n\n",
            "event: a\r\ndata: 1\r\ndata: 2\r\n\r\nid: 7\r\ndata: é\r\n\r\n",
            "event: a\rdata: 1\rdata: 2\r\rdata: é",
            "\u{feff}event: a\ndata: 1\ndata: 2\n\n\n\ndata: é\n",
        ] {
            assert_eq!(events(&[text.as_bytes()]), expected);
            for cut in 0..text.len() {
                let (before, after) = text.as_bytes().split_at(cut);
                assert_eq!(events(&[before, after]), expected, "{text:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn pending_bytes_are_counted() {
        let (mut parser, mut out) = (SseParser::default(), Vec::new());
        parser.feed(b"data: 1234\ndata: 56", &mut out);
        assert_eq!((parser.pending_bytes(), out.len()), (4 + 8, 0));
        parser.feed(b"\n\n", &mut out);
        assert_eq!((parser.pending_bytes(), out.len()), (0, 1));
    }

    #[test]
    fn event_without_data_is_dropped() {
        assert_eq!(events(&[b"event: ping\n\n: comment\n\nretry: 5\n\n"]), vec![]);
        assert_eq!(events(&[b"data\n\n"]), vec![(None, String::new())]);
    }
}
