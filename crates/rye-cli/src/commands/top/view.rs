//! What `rye top` shows: pure, from the threads as they stand to cells of a screen, and from keys to what is to be done.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, TableState};
use rye_agent::machine::ApprovalScope;
use rye_agent::money::Nanos;
use rye_agent::store::Approval;
use rye_agent::threads::ApprovalText;
use rye_agent::views::{LiveFilter, LiveThreads};
use rye_item::text::one_line;

use super::question::QuestionPane;
use super::rows::{MAX_ROWS, TopThread, header, is_wide, list_by_tree, selectable, threads_table};
use crate::live::format::{format_count, format_money, truncate};
use crate::live::view::status_label;

/// Characters of a reason.
const MAX_REASON_CHARS: usize = 2000;
const READ_ONLY: &str = "nothing can be changed: started with --read-only";
const DENIAL_PROMPT: &str = "deny; reason for the model (Enter denies, Esc goes back): ";

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopPage {
    /// Threads, each tree below its root.
    #[default]
    Threads,
    /// Questions.
    Approvals,
    /// What directives have cost.
    Cost,
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopAction {
    /// Nothing, or only another picture.
    None,
    /// To leave.
    Quit,
    /// To answer a question.
    Answer(TopAnswer),
    /// To end this thread.
    Cancel(String),
}

/// An answer to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopAnswer {
    /// The question.
    pub id: String,
    /// Yes or no.
    pub is_approved: bool,
    /// Which later calls of the thread the yes holds for.
    pub always: Option<ApprovalScope>,
    /// Why not; the model reads it.
    pub reason: Option<String>,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub struct TopView {
    page: TopPage,
    threads: Vec<TopThread>,
    questions: Vec<Approval>,
    costs: Vec<[String; 3]>,
    summary: String,
    selected: TableState,
    pane: QuestionPane,
    /// What `y` would do.
    pending: Option<(TopAction, String)>,
    /// The question that is being denied, and the reason as far as it is typed.
    denial: Option<(String, String)>,
    /// What became of the last action, or what went wrong.
    pub message: String,
    is_read_only: bool,
}

impl TopView {
    /// An empty screen.
    #[must_use]
    pub fn new(is_read_only: bool) -> Self {
        Self { is_read_only, ..Self::default() }
    }

    /// What is selected, by name: lists change while they are looked at.
    fn selected_id(&self) -> Option<&str> {
        let at = self.selected.selected()?;
        match self.page {
            TopPage::Threads => self.threads.get(at).map(|thread| thread.id.as_str()),
            TopPage::Approvals => self.questions.get(at).map(|question| question.id.as_str()),
            TopPage::Cost => self.costs.get(at).map(|cells| cells[0].as_str()),
        }
    }

    /// Selects this again, if it is still there. A question that was answered elsewhere is not asked for any more.
    fn select_again(&mut self, id: Option<&str>) {
        let found = match self.page {
            TopPage::Threads => self.threads.iter().position(|thread| Some(thread.id.as_str()) == id),
            TopPage::Approvals => self.questions.iter().position(|question| Some(question.id.as_str()) == id),
            TopPage::Cost => self.costs.iter().position(|cells| Some(cells[0].as_str()) == id),
        };
        if found.is_some() {
            self.selected.select(found);
        }
        let is_gone = |id: &str| !self.questions.iter().any(|question| question.id == id);
        let is_pending_gone = match &self.pending {
            Some((TopAction::Answer(answer), _)) => is_gone(&answer.id),
            Some(_) | None => false,
        };
        if is_pending_gone || self.denial.as_ref().is_some_and(|(id, _)| is_gone(id)) {
            (self.pending, self.denial) = (None, None);
            "the question was answered elsewhere".clone_into(&mut self.message);
        }
        self.clamp();
    }

    /// Takes over how threads stand.
    pub fn update(&mut self, live: Option<&LiveThreads>) {
        let Some(live) = live else {
            self.summary = "no threads here yet: rye run DIRECTIVE starts one".to_owned();
            return;
        };
        let selected = self.selected_id().map(str::to_owned);
        self.threads = list_by_tree(live);
        self.questions = live.questions().values().cloned().collect();
        self.questions.sort_by_key(|question| question.at_ms);
        let counts: Vec<String> =
            live.counts().iter().map(|(status, count)| format!("{count} {}", status_label(status))).collect();
        self.summary = counts.join(" · ");
        let mut sums: std::collections::BTreeMap<String, (u64, Nanos)> = std::collections::BTreeMap::new();
        for row in live.rows(&LiveFilter::default()) {
            let sum = sums.entry(row.row.directive.clone()).or_default();
            *sum = (sum.0 + 1, sum.1.plus(row.row.cost.spend));
        }
        let mut sums: Vec<(String, (u64, Nanos))> = sums.into_iter().collect();
        sums.sort_by_key(|(_, (_, spend))| std::cmp::Reverse(*spend));
        let rows = sums.into_iter().take(MAX_ROWS);
        self.costs = rows
            .map(|(name, (threads, spend))| [truncate(&name, 60), format_count(threads), format_money(spend)])
            .collect();
        self.select_again(selected.as_deref());
    }

    fn len(&self) -> usize {
        match self.page {
            TopPage::Threads => self.threads.len(),
            TopPage::Approvals => self.questions.len(),
            TopPage::Cost => self.costs.len(),
        }
    }

    fn clamp(&mut self) {
        let last = self.len().checked_sub(1);
        self.selected.select(last.map(|last| self.selected.selected().unwrap_or(0).min(last)));
    }

    fn step(&mut self, by: isize) {
        let at = self.selected.selected().unwrap_or(0).saturating_add_signed(by);
        self.selected.select(Some(at));
        self.clamp();
    }

    /// The question that is selected, as it was shown.
    #[must_use]
    pub fn question(&self, id: &str) -> Option<&Approval> {
        self.questions.iter().find(|question| question.id == id)
    }

    /// Whether keys are letters of a reason.
    #[must_use]
    pub fn is_typing(&self) -> bool {
        self.denial.is_some()
    }

    /// What a key asks for.
    pub fn handle_key(&mut self, key: KeyEvent) -> TopAction {
        if key.kind == KeyEventKind::Release {
            return TopAction::None;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return TopAction::Quit;
        }
        if let Some((action, _)) = self.pending.take() {
            return if key.code == KeyCode::Char('y') { action } else { TopAction::None };
        }
        if self.denial.is_some() {
            return self.type_reason(key.code);
        }
        self.message.clear();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return TopAction::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp | KeyCode::PageDown if self.page == TopPage::Approvals => {
                self.pane.scroll(key.code == KeyCode::PageDown);
            }
            KeyCode::PageUp => self.step(-20),
            KeyCode::PageDown => self.step(20),
            KeyCode::Tab => {
                self.page = match self.page {
                    TopPage::Threads => TopPage::Approvals,
                    TopPage::Approvals => TopPage::Cost,
                    TopPage::Cost => TopPage::Threads,
                };
                self.selected.select(Some(0));
                self.clamp();
            }
            KeyCode::Char('a') if self.page == TopPage::Approvals => self.approve(None),
            KeyCode::Char('i') if self.page == TopPage::Approvals => self.approve(Some(ApprovalScope::Item)),
            KeyCode::Char('s') if self.page == TopPage::Approvals => {
                self.approve(Some(ApprovalScope::Arguments));
            }
            KeyCode::Char('d') if self.page == TopPage::Approvals => self.deny(),
            KeyCode::Char('c') if self.page == TopPage::Threads => {
                let thread = self.selected.selected().and_then(|at| self.threads.get(at));
                if let Some(id) = thread.map(|thread| thread.id.clone()) {
                    let text = format!("end {id}? y confirms");
                    self.propose(TopAction::Cancel(id), text);
                }
            }
            _ => {}
        }
        TopAction::None
    }

    fn approve(&mut self, always: Option<ApprovalScope>) {
        let question = self.selected.selected().and_then(|at| self.questions.get(at));
        let Some((id, is_call)) = question.map(|question| (question.id.clone(), question.kind == "tool"))
        else {
            return;
        };
        if !self.is_read_only && !self.pane.has_shown_all(&id) {
            "read all of it first: page down".clone_into(&mut self.message);
            return;
        }
        let text = match always {
            None => "approve this? y confirms",
            Some(_) if !is_call => {
                "only calls can be approved for later ones too: a approves this"
                    .clone_into(&mut self.message);
                return;
            }
            Some(ApprovalScope::Item) => "always approve this item in this thread? y confirms",
            Some(ApprovalScope::Arguments) => {
                "always approve these same arguments in this thread? y confirms"
            }
        };
        let answer = TopAnswer { id, is_approved: true, always, reason: None };
        self.propose(TopAction::Answer(answer), text.to_owned());
    }

    fn deny(&mut self) {
        let question = self.selected.selected().and_then(|at| self.questions.get(at));
        let Some(id) = question.map(|question| question.id.clone()) else { return };
        match self.is_read_only {
            true => READ_ONLY.clone_into(&mut self.message),
            false => self.denial = Some((id, String::new())),
        }
    }

    /// A key while a reason is typed.
    fn type_reason(&mut self, key: KeyCode) -> TopAction {
        let Some((id, mut reason)) = self.denial.take() else { return TopAction::None };
        match key {
            KeyCode::Esc => return TopAction::None,
            KeyCode::Enter => {
                let reason = Some(reason.trim().to_owned()).filter(|reason| !reason.is_empty());
                return TopAction::Answer(TopAnswer { id, is_approved: false, always: None, reason });
            }
            KeyCode::Backspace => drop(reason.pop()),
            KeyCode::Char(character) if reason.chars().count() < MAX_REASON_CHARS => reason.push(character),
            _ => {}
        }
        self.denial = Some((id, reason));
        TopAction::None
    }

    fn propose(&mut self, action: TopAction, text: String) {
        match self.is_read_only {
            true => READ_ONLY.clone_into(&mut self.message),
            false => self.pending = Some((action, text)),
        }
    }

    /// Draws the screen. Meaning is never in colour alone: words and marks carry it.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
                .areas(frame.area());
        let tab = |page: TopPage, name: &str| match self.page == page {
            true => format!("[{name}]"),
            false => format!(" {name} "),
        };
        let asked = format!("Approvals {}", self.questions.len());
        let tabs =
            [tab(TopPage::Threads, "Threads"), tab(TopPage::Approvals, &asked), tab(TopPage::Cost, "Cost")];
        frame.render_widget(Line::from(format!("rye top  {}  {}", tabs.concat(), self.summary)), head);
        match self.page {
            TopPage::Threads => self.draw_threads(frame, body),
            TopPage::Approvals => self.draw_approvals(frame, body),
            TopPage::Cost => self.draw_cost(frame, body),
        }
        let keys = match self.page {
            TopPage::Threads => "↑↓ select · c cancel · tab next · q quit",
            TopPage::Approvals => {
                "a approve · d deny · always: i this item, s these arguments · ↑↓ · tab · q quit"
            }
            TopPage::Cost => "↑↓ select · tab next · q quit",
        };
        let text = match (&self.pending, &self.denial) {
            (Some((_, text)), _) => text.clone(),
            (None, Some((_, reason))) => {
                // The end of a long reason is where it is typed.
                let width = usize::from(foot.width).saturating_sub(DENIAL_PROMPT.len() + 1);
                let skipped = reason.chars().count().saturating_sub(width);
                let end: String = reason.chars().skip(skipped).collect();
                format!("{DENIAL_PROMPT}{}_", one_line(&end))
            }
            (None, None) if !self.message.is_empty() => self.message.clone(),
            (None, None) => match self.selected_id() {
                // Narrow terminals have no id column, so the id is shown here.
                Some(id) if self.page == TopPage::Threads && !is_wide(foot) => format!("{id} · {keys}"),
                Some(_) | None => keys.to_owned(),
            },
        };
        frame.render_widget(Line::from(text), foot);
    }

    fn draw_threads(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let table = threads_table(&self.threads, area);
        frame.render_stateful_widget(table, area, &mut self.selected);
    }

    fn draw_approvals(&mut self, frame: &mut Frame<'_>, area: Rect) {
        if self.questions.is_empty() {
            frame.render_widget(Line::from("no pending approvals"), area);
            return;
        }
        let count = u16::try_from(self.questions.len()).unwrap_or(u16::MAX);
        let list = count.saturating_add(1).min(area.height / 3).max(2);
        let [above, below] = Layout::vertical([Constraint::Length(list), Constraint::Min(1)]).areas(area);
        let rows = self.questions.iter().map(|question| {
            let text = ApprovalText::new(question, false);
            Row::new([text.prompt, one_line(&question.kind), question.thread.to_string()])
        });
        let widths = [Constraint::Fill(1), Constraint::Length(10), Constraint::Length(19)];
        let table = Table::new(rows, widths).header(header(&["question", "kind", "thread"]));
        frame.render_stateful_widget(selectable(table), above, &mut self.selected);
        let Some(question) = self.selected.selected().and_then(|at| self.questions.get(at)) else { return };
        self.pane.draw(question, frame, below);
    }

    fn draw_cost(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.costs.iter().map(|cells| Row::new(cells.clone()));
        let widths = [Constraint::Fill(1), Constraint::Length(10), Constraint::Length(14)];
        let table = Table::new(rows, widths).header(header(&["directive", "threads", "spend"]));
        frame.render_stateful_widget(selectable(table), area, &mut self.selected);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use rye_agent::thread_id::ThreadId;
    use serde_json::json;

    use super::*;

    fn screen(view: &mut TopView) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 14)).expect("a terminal");
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        terminal.backend().to_string()
    }

    fn press(view: &mut TopView, code: KeyCode) -> TopAction {
        view.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn view_with_question(is_read_only: bool) -> TopView {
        let mut view = TopView::new(is_read_only);
        view.questions.push(Approval {
            id: "q1".to_owned(),
            thread: ThreadId::parse("thread-000000000001").expect("an id"),
            kind: "tool".to_owned(),
            prompt: "run team/deploy".to_owned(),
            reason: "it is risky".to_owned(),
            at_ms: 1,
            detail: json!({"action": {"params": {"target": "production\u{1b}[31m"}}}),
        });
        view
    }

    #[test]
    fn answers_are_confirmed_with_their_scope() {
        let mut view = view_with_question(false);
        assert_eq!(press(&mut view, KeyCode::Tab), TopAction::None);
        let shown = screen(&mut view);
        for word in ["[Approvals 1]", "run team/deploy", "it is risky", "production\\u{1b}[31m"] {
            assert!(shown.contains(word), "{word}:\n{shown}");
        }
        assert_eq!(press(&mut view, KeyCode::Char('a')), TopAction::None);
        assert!(screen(&mut view).contains("approve this? y confirms"));
        assert_eq!(press(&mut view, KeyCode::Char('n')), TopAction::None);
        press(&mut view, KeyCode::Char('a'));
        let id = || "q1".to_owned();
        let approved = TopAnswer { id: id(), is_approved: true, ..TopAnswer::default() };
        assert_eq!(press(&mut view, KeyCode::Char('y')), TopAction::Answer(approved.clone()));
        for (key, scope, words) in [
            ('i', ApprovalScope::Item, "always approve this item"),
            ('s', ApprovalScope::Arguments, "these same arguments"),
        ] {
            press(&mut view, KeyCode::Char(key));
            assert!(screen(&mut view).contains(words), "{words}");
            let always = TopAnswer { always: Some(scope), ..approved.clone() };
            assert_eq!(press(&mut view, KeyCode::Char('y')), TopAction::Answer(always));
        }
    }

    #[test]
    fn denial_takes_a_reason() {
        let mut view = view_with_question(false);
        press(&mut view, KeyCode::Tab);
        for (words, reason) in [("", None), ("not ayq", Some("not ay"))] {
            press(&mut view, KeyCode::Char('d'));
            for character in words.chars() {
                assert_eq!(press(&mut view, KeyCode::Char(character)), TopAction::None);
            }
            assert!(screen(&mut view).contains(&format!("goes back): {words}")), "{}", screen(&mut view));
            if !words.is_empty() {
                press(&mut view, KeyCode::Backspace);
            }
            let reason = reason.map(str::to_owned);
            let denied = TopAnswer { id: "q1".to_owned(), reason, ..TopAnswer::default() };
            assert_eq!(press(&mut view, KeyCode::Enter), TopAction::Answer(denied));
        }
        press(&mut view, KeyCode::Char('d'));
        assert_eq!(press(&mut view, KeyCode::Esc), TopAction::None);
        assert!(screen(&mut view).contains("a approve"));
    }

    #[test]
    fn long_calls_are_read_before_approval() {
        let mut view = view_with_question(false);
        let long = (0..40).map(|line| format!("line {line}\n")).collect::<String>();
        view.questions[0].detail = json!({"action": {"params": {"text": long}}});
        press(&mut view, KeyCode::Tab);
        assert!(!screen(&mut view).contains("line 39"));
        press(&mut view, KeyCode::Char('a'));
        assert!(screen(&mut view).contains("read all of it first: page down"));
        assert_eq!(press(&mut view, KeyCode::Char('y')), TopAction::None);
        for _ in 0..20 {
            press(&mut view, KeyCode::PageDown);
            screen(&mut view);
        }
        assert!(screen(&mut view).contains("line 39"));
        press(&mut view, KeyCode::Char('a'));
        assert!(matches!(press(&mut view, KeyCode::Char('y')), TopAction::Answer(_)));
    }

    #[test]
    fn answered_question_is_not_confirmed() {
        let mut view = view_with_question(false);
        let other = Approval { id: "q2".to_owned(), ..view.questions[0].clone() };
        view.questions.push(other);
        press(&mut view, KeyCode::Tab);
        press(&mut view, KeyCode::Down);
        screen(&mut view);
        press(&mut view, KeyCode::Char('a'));
        // The first one is answered elsewhere: the second one stays selected.
        let first = view.questions.remove(0);
        view.select_again(Some("q2"));
        assert_eq!(view.selected_id(), Some("q2"));
        assert!(screen(&mut view).contains("approve this?"));
        view.questions = vec![first];
        view.select_again(Some("q2"));
        assert!(screen(&mut view).contains("answered elsewhere"));
        assert_eq!(press(&mut view, KeyCode::Char('y')), TopAction::None);
    }

    #[test]
    fn read_only_changes_nothing() {
        let mut view = view_with_question(true);
        press(&mut view, KeyCode::Tab);
        for key in ['a', 'd', 'i', 's'] {
            press(&mut view, KeyCode::Char(key));
            assert!(screen(&mut view).contains("started with --read-only"));
            assert_eq!(press(&mut view, KeyCode::Char('y')), TopAction::None);
            assert_eq!(press(&mut view, KeyCode::Enter), TopAction::None);
        }
    }

    #[test]
    fn empty_place_is_drawn_and_left() {
        let mut view = TopView::new(false);
        view.update(None);
        assert!(screen(&mut view).contains("no threads here yet"));
        assert_eq!(press(&mut view, KeyCode::Char('q')), TopAction::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.handle_key(interrupt), TopAction::Quit);
    }
}
