//! The one place that prints. Results go to stdout, everything else to stderr.
//!
//! Every text passes [`clean()`] on its way out: of all that a terminal obeys only our own styles are left, wherever the text
//! came from.

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

use crate::global::{ColorMode, GlobalArguments};
use crate::settings;

mod clean;

use clean::clean;

/// Good news.
pub const SUCCESS: Style = AnsiColor::Green.on_default();
/// Something to look at.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// Bad news.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Less important.
pub const DIM: Style = Style::new().dimmed();
/// A heading.
pub const HEADING: Style = Style::new().bold();
/// A name.
pub const NAME: Style = AnsiColor::Cyan.on_default();

/// Where and how to print.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON only.
    pub is_json: bool,
    is_quiet: bool,
    is_verbose: bool,
    color: ColorChoice,
    show_progress: bool,
}

/// Styled text.
pub fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Begins a new line after the `^C` that a terminal shows.
pub fn end_interrupted_line() {
    if io::stderr().is_terminal() {
        // A terminal that is gone needs no new line.
        let _ = io::stderr().write_all(b"\n");
    }
}

impl Output {
    /// How these options want it; `configured` is the setting `display.color`, used if no option was given.
    pub fn new(global: &GlobalArguments, configured: Option<&str>, show_progress: bool) -> Self {
        let color = match (global.color, configured) {
            (Some(ColorMode::Always), _) => ColorChoice::Always,
            (Some(ColorMode::Never), _) => ColorChoice::Never,
            (_, _) if settings::is_no_color() => ColorChoice::Never,
            (Some(ColorMode::Auto), _) => ColorChoice::Auto,
            (None, Some("always")) => ColorChoice::Always,
            (None, Some("never")) => ColorChoice::Never,
            (None, _) => ColorChoice::Auto,
        };
        Self {
            is_json: global.json,
            is_quiet: global.quiet,
            is_verbose: global.verbose,
            color,
            show_progress,
        }
    }

    /// Prints lines of a result.
    pub fn print(&self, text: impl Display) -> io::Result<()> {
        let mut stdout = AutoStream::new(io::stdout().lock(), self.color);
        writeln!(stdout, "{}", clean(&text.to_string()))
    }

    /// Prints text of a result as it is, without styles or a final line break of our own. A terminal shows it without what
    /// it could obey.
    pub fn print_raw(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let text = if stdout.is_terminal() { clean(text) } else { Cow::Borrowed(text) };
        stdout.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            stdout.write_all(b"\n")?;
        }
        stdout.flush()
    }

    /// Prints a JSON answer: one object, on several lines for a person, on one for a program.
    pub fn print_json(&self, value: &Value) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let text = if stdout.is_terminal() {
            serde_json::to_string_pretty(value)?
        } else {
            serde_json::to_string(value)?
        };
        stdout.write_all(escape_controls(&text).as_bytes())?;
        stdout.write_all(b"\n")
    }

    /// Prints a JSON object on one line, for streams of them.
    pub fn print_json_line(&self, value: &Value) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let text = serde_json::to_string(value)?;
        stdout.write_all(escape_controls(&text).as_bytes())?;
        stdout.write_all(b"\n")?;
        stdout.flush()
    }

    /// Tells something beside the result.
    pub fn note(&self, text: impl Display) {
        if !self.is_quiet {
            self.print_stderr(text);
        }
    }

    /// Tells something only who asked for more wants to know.
    pub fn detail(&self, text: impl Display) {
        if self.is_verbose {
            self.print_stderr(text);
        }
    }

    /// Shows what a person must see before they answer, whether asked to be quiet or not.
    pub fn ask(&self, text: impl Display) {
        self.print_stderr(text);
    }

    /// A line of a plan: the result of a command that only shows it, else what a person sees before they answer.
    pub fn plan(&self, is_result: bool, text: impl Display) {
        match is_result {
            // Who no longer reads it has seen enough.
            true => drop(self.print(text)),
            false => self.ask(text),
        }
    }

    /// Warns, whether asked to be quiet or not.
    pub fn warn(&self, text: impl Display) {
        self.print_stderr(format_args!("{} {text}", paint(WARNING, "warning:")));
    }

    /// A line that a person must see before they answer, whether asked to be quiet or not.
    pub fn alert(&self, text: impl Display) {
        self.print_stderr(text);
    }

    fn print_stderr(&self, text: impl Display) {
        let mut stderr = AutoStream::new(io::stderr().lock(), self.color);
        // Stderr is closed: there is no one to report to.
        let _ = writeln!(stderr, "{}", clean(&text.to_string()));
    }

    /// Shows a failure: as the answer in JSON, else on stderr.
    pub fn print_error(&self, error: &Error, data: Option<Value>) -> io::Result<()> {
        let page = format!("rye explain {}", error.code);
        let error = &if error.hints.is_empty() { error.clone().hint(page) } else { error.clone() };
        if self.is_json {
            return self.print_json(&error.to_value(data));
        }
        self.print_stderr(format_args!(
            "{} {}",
            paint(ERROR, format_args!("error[{}]:", error.code)),
            rye_item::text::strip_controls(&error.message)
        ));
        let detail = |key: &str| error.details.get(key);
        if let Some(path) = detail("path").and_then(Value::as_str) {
            let path = rye_item::text::one_line(path);
            match (detail("line"), detail("column")) {
                (Some(line), Some(column)) => {
                    self.print_stderr(format_args!("  {} {path}:{line}:{column}", paint(DIM, "-->")))
                }
                _ => self.print_stderr(format_args!("  {} {path}", paint(DIM, "-->"))),
            }
        }
        for problem in detail("problems").and_then(Value::as_array).into_iter().flatten() {
            self.print_stderr(format_args!("  {} {}", paint(ERROR, "•"), format_diagnostic(problem)));
            self.print_snippet(problem, ERROR);
        }
        let warnings = detail("warnings").and_then(Value::as_array).into_iter().flatten();
        for warning in warnings.filter(|warning| warning.is_object()) {
            self.print_stderr(format_args!("  {} {}", paint(WARNING, "!"), format_diagnostic(warning)));
            self.print_snippet(warning, WARNING);
        }
        for hint in &error.hints {
            self.print_stderr(format_args!(
                "  {} {}",
                paint(SUCCESS, "hint:"),
                rye_item::text::strip_controls(hint)
            ));
        }
        Ok(())
    }

    /// Shows what works but should be changed in a file, with the line it stands on.
    pub fn warn_diagnostic(&self, path: &Path, diagnostic: &rye_item::Diagnostic) {
        self.warn(format_args!(
            "{}:{}",
            display_path(path),
            rye_item::text::one_line(&diagnostic.to_string())
        ));
        if !self.is_json
            && !self.is_quiet
            && let Ok(diagnostic) = serde_json::to_value(diagnostic)
        {
            self.print_snippet(&diagnostic, WARNING);
        }
    }

    /// The line that a diagnostic stands on, marked below.
    fn print_snippet(&self, diagnostic: &Value, style: Style) {
        let Some((line, snippet)) = diagnostic.get("line").zip(diagnostic.get("snippet")) else { return };
        let number = |key: &str| {
            snippet
                .get(key)
                .and_then(Value::as_u64)
                .and_then(|number| usize::try_from(number).ok())
                .unwrap_or(0)
        };
        let text = snippet.get("text").and_then(Value::as_str).unwrap_or_default();
        let line = line.to_string();
        let (gutter, offset) = (" ".repeat(line.len()), number("offset"));
        // Letters that are two columns wide in a terminal move the mark along.
        let columns: usize = text.chars().take(offset).map(display_width).sum();
        self.print_stderr(format_args!("    {gutter} {}", paint(DIM, "|")));
        self.print_stderr(format_args!("    {} {} {text}", paint(DIM, &line), paint(DIM, "|")));
        self.print_stderr(format_args!(
            "    {gutter} {} {}{}",
            paint(DIM, "|"),
            " ".repeat(columns),
            paint(style, "^".repeat(number("length").max(1)))
        ));
    }

    /// Whether more was asked for.
    pub fn is_verbose(&self) -> bool {
        self.is_verbose
    }

    /// Whether results go to a person's terminal.
    pub fn is_terminal(&self) -> bool {
        !self.is_json && io::stdout().is_terminal()
    }

    /// Whether a person looks on, so that lines may be drawn again.
    pub fn is_live(&self) -> bool {
        self.show_progress && !self.is_json && !self.is_quiet && io::stderr().is_terminal()
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
        let has_colour = self.color != ColorChoice::Never;
        StatusLine { bar, has_color: has_colour, ticks: std::cell::Cell::new(0) }
    }

    /// A progress bar on stderr, for a person who has to wait.
    pub fn progress(&self, label: &'static str) -> ProgressReporter {
        ProgressReporter { label, bar: None, is_enabled: self.is_live(), in_bytes: false }
    }

    /// The same, for bytes.
    pub fn byte_progress(&self, label: &'static str) -> ProgressReporter {
        let mut progress = self.progress(label);
        progress.in_bytes = true;
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

/// A line at the bottom that is drawn again, with lines above it that stay.
pub struct StatusLine {
    bar: ProgressBar,
    has_color: bool,
    ticks: std::cell::Cell<usize>,
}

impl StatusLine {
    /// A line that stays.
    pub fn print_above(&self, line: &str) {
        self.bar.println(self.shown(line));
    }

    /// A text as this line may show it.
    fn shown(&self, text: &str) -> String {
        let text = clean(text);
        if self.has_color { text.into_owned() } else { anstream::adapter::strip_str(&text).to_string() }
    }

    /// Takes the line away while something else uses the terminal.
    pub fn hide_while(&self, work: impl FnOnce()) {
        self.bar.suspend(work);
    }

    /// What the bottom shows from now on, as it is.
    pub fn set_text(&self, text: &str) {
        self.bar.set_message(self.shown(text));
        self.bar.tick();
    }

    /// What the bottom shows from now on: a line that is still growing, and where things stand.
    pub fn set_with_spinner(&self, partial_line: &str, status: &str) {
        const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
        self.ticks.set(self.ticks.get().wrapping_add(1));
        let mark = SPINNER[self.ticks.get() % SPINNER.len()];
        let status = format!("{mark} {status}");
        let status = self.shown(&paint(DIM, status));
        let partial_line = self.shown(partial_line);
        let separator = if partial_line.is_empty() { "" } else { "\n" };
        self.bar.set_message(format!("{partial_line}{separator}{status}"));
        self.bar.tick();
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// JSON escapes the control characters of ASCII itself; the others, which stand in strings only, are escaped here.
fn escape_controls(json: &str) -> Cow<'_, str> {
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
pub fn display_path(path: &Path) -> String {
    rye_item::text::strip_controls(&path.display().to_string()).replace(['\n', '\t'], " ")
}

/// A path as a word of a command that is printed to be copied.
pub fn shell_path(path: &Path) -> String {
    rye_item::text::shell_word(&path.display().to_string())
}

/// Columns a character takes in a terminal, near enough to place a mark below it.
fn display_width(character: char) -> usize {
    let is_wide = matches!(u32::from(character),
        0x1100..=0x115F | 0x2E80..=0xA4CF | 0xAC00..=0xD7A3 | 0xF900..=0xFAFF | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60 | 0xFFE0..=0xFFE6 | 0x1F300..=0x1FAFF | 0x20000..=0x3FFFD);
    if is_wide { 2 } else { 1 }
}

fn format_diagnostic(diagnostic: &Value) -> String {
    let message = diagnostic.get("message").and_then(Value::as_str).unwrap_or_default();
    let message = rye_item::text::one_line(message);
    match (diagnostic.get("line"), diagnostic.get("column")) {
        (Some(line), Some(column)) => format!("{line}:{column} {message}"),
        _ => message,
    }
}

/// A bar that appears once there is something to wait for.
pub struct ProgressReporter {
    label: &'static str,
    bar: Option<ProgressBar>,
    is_enabled: bool,
    in_bytes: bool,
}

impl ProgressReporter {
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
        if !self.is_enabled {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = match self.in_bytes {
                false => "{msg} {wide_bar:.cyan/dim} {pos}/{len} {eta}",
                true => "{msg} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(self.label);
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
