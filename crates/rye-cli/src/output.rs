//! The one place that prints. Results go to stdout, everything else to stderr.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rye_engine::Error;
use serde_json::Value;

use crate::global::{Colour, Global};
use crate::settings;

/// Good news.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Something to look at.
pub const CAUTION: Style = AnsiColor::Yellow.on_default();
/// Bad news.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Less important.
pub const DIM: Style = Style::new().dimmed();
/// A heading.
pub const STRONG: Style = Style::new().bold();
/// A name.
pub const NAME: Style = AnsiColor::Cyan.on_default();

/// Where and how to print.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON only.
    pub is_json: bool,
    is_quiet: bool,
    is_verbose: bool,
    colour: ColorChoice,
    shows_progress: bool,
}

/// Styled text.
pub fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

impl Output {
    /// How these options want it; `configured` is the setting `display.color`, used if no option was given.
    pub fn new(global: &Global, configured: Option<&str>, shows_progress: bool) -> Self {
        let colour = match (global.color, configured) {
            (Some(Colour::Always), _) => ColorChoice::Always,
            (Some(Colour::Never), _) => ColorChoice::Never,
            (_, _) if settings::refuses_colour() => ColorChoice::Never,
            (Some(Colour::Auto), _) => ColorChoice::Auto,
            (None, Some("always")) => ColorChoice::Always,
            (None, Some("never")) => ColorChoice::Never,
            (None, _) => ColorChoice::Auto,
        };
        Self {
            is_json: global.json,
            is_quiet: global.quiet,
            is_verbose: global.verbose,
            colour,
            shows_progress,
        }
    }

    /// Prints lines of a result.
    pub fn result(&self, text: impl Display) -> io::Result<()> {
        let mut stdout = AutoStream::new(io::stdout().lock(), self.colour);
        writeln!(stdout, "{text}")
    }

    /// Prints text of a result as it is, without styles or a final line break of our own.
    pub fn raw(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            stdout.write_all(b"\n")?;
        }
        stdout.flush()
    }

    /// Prints a JSON answer: one object, on several lines for a person, on one for a program.
    pub fn json(&self, value: &Value) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let text = if stdout.is_terminal() {
            serde_json::to_string_pretty(value)?
        } else {
            serde_json::to_string(value)?
        };
        stdout.write_all(escaped(&text).as_bytes())?;
        stdout.write_all(b"\n")
    }

    /// Prints a JSON object on one line, for streams of them.
    pub fn json_line(&self, value: &Value) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let text = serde_json::to_string(value)?;
        stdout.write_all(escaped(&text).as_bytes())?;
        stdout.write_all(b"\n")?;
        stdout.flush()
    }

    /// Tells something beside the result.
    pub fn note(&self, text: impl Display) {
        if !self.is_quiet {
            self.tell(text);
        }
    }

    /// Tells something only who asked for more wants to know.
    pub fn detail(&self, text: impl Display) {
        if self.is_verbose {
            self.tell(text);
        }
    }

    /// Shows what a person must see before they answer, whether asked to be quiet or not.
    pub fn ask(&self, text: impl Display) {
        self.tell(text);
    }

    /// Warns, whether asked to be quiet or not.
    pub fn warn(&self, text: impl Display) {
        self.tell(format_args!("{} {text}", paint(CAUTION, "warning:")));
    }

    fn tell(&self, text: impl Display) {
        let mut stderr = AutoStream::new(io::stderr().lock(), self.colour);
        // Nobody listens on stderr: there is nobody to tell.
        let _ = writeln!(stderr, "{text}");
    }

    /// Shows a failure: as the answer in JSON, else on stderr.
    pub fn failure(&self, error: &Error, data: Option<Value>) -> io::Result<()> {
        let page = format!("rye explain {}", error.code);
        let error = &if error.hints.is_empty() { error.clone().hint(page) } else { error.clone() };
        if self.is_json {
            return self.json(&error.to_value(data));
        }
        self.tell(format_args!(
            "{} {}",
            paint(BAD, format_args!("error[{}]:", error.code)),
            rye_item::text::without_controls(&error.message)
        ));
        let detail = |key: &str| error.details.get(key);
        if let Some(path) = detail("path").and_then(Value::as_str) {
            let path = rye_item::text::one_line(path);
            match (detail("line"), detail("column")) {
                (Some(line), Some(column)) => {
                    self.tell(format_args!("  {} {path}:{line}:{column}", paint(DIM, "-->")))
                }
                _ => self.tell(format_args!("  {} {path}", paint(DIM, "-->"))),
            }
        }
        for problem in detail("problems").and_then(Value::as_array).into_iter().flatten() {
            self.tell(format_args!("  {} {}", paint(BAD, "•"), shown_problem(problem)));
        }
        for hint in &error.hints {
            self.tell(format_args!("  {} {}", paint(GOOD, "hint:"), rye_item::text::without_controls(hint)));
        }
        Ok(())
    }

    /// Whether more was asked for.
    pub fn is_verbose(&self) -> bool {
        self.is_verbose
    }

    /// Whether results go to a person's terminal.
    pub fn is_result_seen(&self) -> bool {
        !self.is_json && io::stdout().is_terminal()
    }

    /// Whether a person looks on, so that lines may be drawn anew.
    pub fn is_live(&self) -> bool {
        self.shows_progress && !self.is_json && !self.is_quiet && io::stderr().is_terminal()
    }

    /// Columns of the terminal.
    pub fn width(&self) -> usize {
        terminal_size::terminal_size().map_or(120, |(width, _)| usize::from(width.0))
    }

    /// A line at the bottom of the terminal, on stderr.
    pub fn status_line(&self) -> StatusLine {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        let has_colour = self.colour != ColorChoice::Never;
        StatusLine { bar, has_colour, ticks: std::cell::Cell::new(0) }
    }

    /// A progress bar on stderr, for a person who has to wait.
    pub fn progress(&self, what: &'static str) -> Progress {
        Progress { what, bar: None, is_shown: self.is_live(), counts_bytes: false }
    }

    /// The same, for bytes.
    pub fn progress_of_bytes(&self, what: &'static str) -> Progress {
        let mut progress = self.progress(what);
        progress.counts_bytes = true;
        progress
    }

    /// A table as wide as the terminal, without lines.
    pub fn table(&self, header: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(self.width()).unwrap_or(u16::MAX));
        table.set_header(header.iter().map(|word| word.to_uppercase()));
        table
    }
}

/// A line at the bottom that is drawn anew, with lines above it that stay.
pub struct StatusLine {
    bar: ProgressBar,
    has_colour: bool,
    ticks: std::cell::Cell<usize>,
}

impl StatusLine {
    /// A line that stays.
    pub fn above(&self, line: &str) {
        if self.has_colour {
            self.bar.println(line);
        } else {
            self.bar.println(anstream::adapter::strip_str(line).to_string());
        }
    }

    /// What the bottom shows from now on, as it is.
    pub fn show(&self, text: &str) {
        let text =
            if self.has_colour { text.to_owned() } else { anstream::adapter::strip_str(text).to_string() };
        self.bar.set_message(text);
        self.bar.tick();
    }

    /// What the bottom shows from now on: a line that is still growing, and where things stand.
    pub fn set(&self, growing: &str, status: &str) {
        const TURNING: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
        self.ticks.set(self.ticks.get().wrapping_add(1));
        let mark = TURNING[self.ticks.get() % TURNING.len()];
        let status = format!("{mark} {status}");
        let status = if self.has_colour { paint(DIM, status) } else { status };
        let between = if growing.is_empty() { "" } else { "\n" };
        self.bar.set_message(format!("{growing}{between}{status}"));
        self.bar.tick();
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// JSON escapes the control characters of ASCII itself; the others, which stand in strings only, are escaped here.
fn escaped(json: &str) -> Cow<'_, str> {
    if !json.chars().any(rye_item::text::is_unsafe) {
        return Cow::Borrowed(json);
    }
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        if rye_item::text::is_unsafe(character) {
            safe.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            safe.push(character);
        }
    }
    Cow::Owned(safe)
}

/// A path, without what a terminal could obey.
pub fn shown_path(path: &Path) -> String {
    rye_item::text::without_controls(&path.display().to_string()).replace(['\n', '\t'], " ")
}

/// A path as a word of a command that is printed to be copied.
pub fn shell_path(path: &Path) -> String {
    rye_item::text::shell_word(&path.display().to_string())
}

fn shown_problem(problem: &Value) -> String {
    let message = problem.get("message").and_then(Value::as_str).unwrap_or_default();
    let message = rye_item::text::one_line(message);
    match (problem.get("line"), problem.get("column")) {
        (Some(line), Some(column)) => format!("{line}:{column} {message}"),
        _ => message,
    }
}

/// A bar that appears once there is something to wait for.
pub struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    is_shown: bool,
    counts_bytes: bool,
}

impl Progress {
    /// `done` of `total` are done.
    pub fn update(&mut self, done: usize, total: usize) {
        if total >= 50 {
            self.draw(done as u64, total as u64);
        }
    }

    /// `done` of `total` bytes are done.
    pub fn update_bytes(&mut self, done: u64, total: u64) {
        self.draw(done, total);
    }

    fn draw(&mut self, done: u64, total: u64) {
        if !self.is_shown {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = match self.counts_bytes {
                false => "{msg} {wide_bar:.cyan/dim} {pos}/{len} {eta}",
                true => "{msg} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(self.what);
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
