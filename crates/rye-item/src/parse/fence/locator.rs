//! Byte offsets of a text to lines and columns, for many offsets of one text.

use crate::diagnostic::SourcePosition;

/// Bytes between two remembered places: the most a lookup has to walk.
const STRIDE: usize = 256;

/// Knows the place of every `STRIDE`th byte of a text, so that a lookup does not walk the text from its start.
pub(crate) struct Locator<'a> {
    text: &'a str,
    marks: Vec<(usize, SourcePosition)>,
}

impl<'a> Locator<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let start = SourcePosition { line: 1, column: 1 };
        let mut marks = vec![(0, start)];
        let mut position = start;
        let mut next_mark = STRIDE;
        for (offset, character) in text.char_indices() {
            if offset >= next_mark {
                marks.push((offset, position));
                next_mark = offset + STRIDE;
            }
            position = advance(position, character);
        }
        Self { text, marks }
    }

    /// The place of the byte `offset`; an offset beyond the end gives the end.
    pub(crate) fn position(&self, offset: usize) -> SourcePosition {
        let index = self.marks.partition_point(|(mark, _)| *mark <= offset);
        let (mark, mut position) = self
            .marks
            .get(index.saturating_sub(1))
            .copied()
            .unwrap_or((0, SourcePosition { line: 1, column: 1 }));
        for (index, character) in self.text[mark..].char_indices() {
            if mark + index + character.len_utf8() > offset {
                break;
            }
            position = advance(position, character);
        }
        position
    }
}

fn advance(position: SourcePosition, character: char) -> SourcePosition {
    if character == '\n' {
        SourcePosition { line: position.line.saturating_add(1), column: 1 }
    } else {
        SourcePosition { line: position.line, column: position.column.saturating_add(1) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn positions_beyond_stride_are_correct() {
        let text = "é\n".repeat(3000) + &"x".repeat(5000);
        let locator = Locator::new(&text);
        for offset in (0..text.len() + 10).step_by(7) {
            assert_eq!(locator.position(offset), SourcePosition::from_offset(&text, offset), "{offset}");
        }
    }

    proptest! {
        #[test]
        fn matches_linear_scan(text in "[a\né😀]{0,40}", offset in 0_usize..100) {
            prop_assert_eq!(Locator::new(&text).position(offset), SourcePosition::from_offset(&text, offset));
        }
    }
}
