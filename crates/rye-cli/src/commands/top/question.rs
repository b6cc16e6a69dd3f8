//! One question on the screen: its lines as wide as the screen, how far they were scrolled, and whether all were seen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph};
use rye_agent::store::Approval;
use rye_agent::threads::ApprovalText;

/// The question that is shown. One that does not fit is scrolled; it is approved only after its end was on the screen.
#[derive(Debug, Default)]
pub struct QuestionPane {
    id: String,
    width: u16,
    lines: Vec<String>,
    first: usize,
    height: usize,
    has_seen_end: bool,
}

/// How many cells a character takes.
fn cells(character: char) -> usize {
    Line::from(character.to_string()).width()
}

/// A line in pieces that are at most this wide.
fn wrap(line: &str, width: usize, pieces: &mut Vec<String>) {
    let (mut piece, mut used) = (String::new(), 0);
    for character in line.chars() {
        let more = cells(character);
        if used + more > width && !piece.is_empty() {
            pieces.push(std::mem::take(&mut piece));
            used = 0;
        }
        piece.push(character);
        used += more;
    }
    pieces.push(piece);
}

impl QuestionPane {
    /// Whether all of this question has been on the screen.
    pub fn has_shown_all(&self, id: &str) -> bool {
        self.id == id && self.has_seen_end
    }

    /// Scrolls by a screen, or back.
    pub fn scroll(&mut self, is_down: bool) {
        let step = self.height.saturating_sub(1).max(1);
        let first = if is_down { self.first + step } else { self.first.saturating_sub(step) };
        self.first = first.min(self.lines.len().saturating_sub(self.height));
    }

    fn show(&mut self, question: &Approval, width: u16) {
        if self.id != question.id {
            *self = Self { id: question.id.clone(), ..Self::default() };
        }
        if self.width == width {
            return;
        }
        let text = ApprovalText::new(question, true);
        self.lines.clear();
        for line in std::iter::once(text.prompt.clone()).chain(text.lines()) {
            wrap(&line, usize::from(width).max(1), &mut self.lines);
        }
        self.width = width;
    }

    /// Draws it.
    pub fn draw(&mut self, question: &Approval, frame: &mut Frame<'_>, area: Rect) {
        self.show(question, area.width.saturating_sub(2));
        self.height = usize::from(area.height.saturating_sub(2));
        self.first = self.first.min(self.lines.len().saturating_sub(self.height));
        let last = (self.first + self.height).min(self.lines.len());
        self.has_seen_end |= self.height > 0 && last == self.lines.len();
        let title = match self.height < self.lines.len() {
            false => "the exact call".to_owned(),
            true => {
                let (first, all) = (self.first + 1, self.lines.len());
                format!("the exact call: lines {first} to {last} of {all}, page up and down scroll")
            }
        };
        let lines: Vec<Line<'_>> =
            self.lines[self.first..last].iter().map(|line| Line::from(line.as_str())).collect();
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(title)), area);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_by_cells() {
        let mut pieces = Vec::new();
        for line in ["abcdef", "", "日本語x"] {
            wrap(line, 4, &mut pieces);
        }
        assert_eq!(pieces, ["abcd", "ef", "", "日本", "語x"]);
    }
}
