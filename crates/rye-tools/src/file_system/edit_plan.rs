//! The changes of one edit: parsed, resolved against the file as it is, checked against each other.

use std::ops::Range;

use rye_exec::NativeError;
use serde_json::{Map, Value, json};

use crate::line_id::{LineId, Track};
use crate::lines::Lines;
use crate::parameters::{boolean, optional_number, optional_text};

/// One change: which old lines go, and what comes in their place. No lines go where something is inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineChange<'a> {
    pub(super) range: Range<usize>,
    pub(super) new: Vec<&'a str>,
    number: usize,
}

/// What changes are resolved against.
pub(super) struct EditContext<'a> {
    pub(super) lines: &'a Lines<'a>,
    pub(super) track: Option<&'a Track>,
    /// Whether the caller said which version it means, so that line numbers can be believed.
    pub(super) is_version_known: bool,
}

struct ChangeError {
    message: String,
    candidates: Vec<Value>,
}

impl ChangeError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), candidates: Vec::new() }
    }
}

impl From<NativeError> for ChangeError {
    fn from(error: NativeError) -> Self {
        Self::new(error.message)
    }
}

/// All changes, sorted by place. Every problem of every change is reported at once.
pub(super) fn resolve<'a>(
    changes: &'a [Value],
    context: &EditContext<'_>,
) -> Result<Vec<LineChange<'a>>, NativeError> {
    let mut resolved = Vec::new();
    let mut errors = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        match change.as_object().ok_or_else(|| ChangeError::new("it must be an object")) {
            Ok(fields) => match resolve_one(fields, context) {
                Ok((range, new)) => resolved.push(LineChange { range, new, number: index + 1 }),
                Err(problem) => errors.push((index + 1, problem)),
            },
            Err(problem) => errors.push((index + 1, problem)),
        }
    }
    if errors.is_empty() {
        // What is inserted before a line comes before what replaces that line.
        resolved.sort_by_key(|change| (change.range.start, !change.range.is_empty(), change.number));
        errors = find_overlaps(&resolved);
    }
    if errors.is_empty() {
        return Ok(resolved);
    }
    let message = errors
        .iter()
        .map(|(number, problem)| format!("change {number}: {}", problem.message))
        .collect::<Vec<_>>()
        .join("; ");
    let details: Vec<Value> = errors
        .into_iter()
        .map(|(number, problem)| {
            json!({"change": number, "error": problem.message, "candidates": problem.candidates})
        })
        .collect();
    Err(NativeError::failed(format!("nothing was changed: {message}"))
        .with_data(json!({"problems": details})))
}

fn find_overlaps(sorted: &[LineChange<'_>]) -> Vec<(usize, ChangeError)> {
    sorted
        .windows(2)
        .filter(|pair| {
            let (first, second) = (&pair[0].range, &pair[1].range);
            let is_same_gap = first.is_empty() && second.is_empty() && first.start == second.start;
            is_same_gap || second.start < first.end
        })
        .map(|pair| {
            (
                pair[1].number,
                ChangeError::new(format!("it overlaps change {}: make them one", pair[0].number)),
            )
        })
        .collect()
}

fn resolve_one<'a>(
    fields: &'a Map<String, Value>,
    context: &EditContext<'_>,
) -> Result<(Range<usize>, Vec<&'a str>), ChangeError> {
    let range = resolve_range(fields, context)?;
    let content = optional_text(fields, "new_content")?;
    let is_deletion = boolean(fields, "delete", false)?;
    match (content, is_deletion, range.is_empty()) {
        (Some(_), true, _) => Err(ChangeError::new("it has both `new_content` and `delete`: give one")),
        (None, _, true) => Err(ChangeError::new("an insertion needs `new_content`")),
        (None, false, false) => Err(ChangeError::new("give `new_content`, or `delete: true`")),
        (None, true, false) => Ok((range, Vec::new())),
        (Some(content), false, _) => Ok((range, split_lines(content))),
    }
}

/// The lines of new content. One final newline ends the last line, it does not begin another.
fn split_lines(content: &str) -> Vec<&str> {
    let content = content.strip_suffix('\n').unwrap_or(content);
    content.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect()
}

fn resolve_range(
    fields: &Map<String, Value>,
    context: &EditContext<'_>,
) -> Result<Range<usize>, ChangeError> {
    const KEYS: [&str; 9] = [
        "line_id",
        "start_id",
        "end_id",
        "line",
        "start_line",
        "end_line",
        "insert_after",
        "insert_before",
        "insert_after_line",
    ];
    let present: Vec<&str> =
        KEYS.into_iter().filter(|key| fields.get(*key).is_some_and(|value| !value.is_null())).collect();
    let id = |key: &str| -> Result<usize, ChangeError> {
        find_line(optional_text(fields, key)?.unwrap_or_default(), context)
    };
    let number = |key: &str, min: usize| -> Result<usize, ChangeError> {
        let total = context.lines.list.len();
        let number = optional_number(fields, key)?.unwrap_or_default();
        if !context.is_version_known {
            return Err(ChangeError::new(
                "line numbers are only safe for a known version: pass `expected_hash` from the read, or use line ids",
            ));
        }
        if number < min || number > total {
            return Err(ChangeError::new(format!(
                "line {number} is out of range: the file has {}",
                rye_item::text::counted(total, "line")
            )));
        }
        Ok(number)
    };
    let ordered = |start: usize, end: usize| {
        if start < end {
            Ok(start..end)
        } else {
            Err(ChangeError::new(format!(
                "its range ends (line {end}) before it begins (line {})",
                start + 1
            )))
        }
    };
    match present.as_slice() {
        ["line_id"] => id("line_id").map(|index| index..index + 1),
        ["start_id", "end_id"] => ordered(id("start_id")?, id("end_id")? + 1),
        ["line"] => number("line", 1).map(|line| line - 1..line),
        ["start_line", "end_line"] => ordered(number("start_line", 1)? - 1, number("end_line", 1)?),
        ["insert_after_line"] => number("insert_after_line", 0).map(|line| line..line),
        ["insert_before"] => id("insert_before").map(|index| index..index),
        ["insert_after"] => match optional_text(fields, "insert_after")?.unwrap_or_default() {
            "start" => Ok(0..0),
            "end" => Ok(context.lines.list.len()..context.lines.list.len()),
            _ => id("insert_after").map(|index| index + 1..index + 1),
        },
        [] => Err(ChangeError::new(
            "it does not say where: give `line_id`, `start_id` and `end_id`, `insert_after` or `insert_before`",
        )),
        several => Err(ChangeError::new(format!(
            "`{}` do not go together: give `line_id`, or `start_id` and `end_id`, or `line`, or `start_line` and \
             `end_line`, or one of `insert_after`, `insert_before`, `insert_after_line`",
            several.join("`, `")
        ))),
    }
}

/// The line an id stands for.
fn find_line(text: &str, context: &EditContext<'_>) -> Result<usize, ChangeError> {
    let Some(track) = context.track else {
        return Err(ChangeError::new(
            "this file has too many lines for line ids: use line numbers and `expected_hash`",
        ));
    };
    let display = rye_item::text::one_line(text);
    let Some(id) = LineId::parse(text) else {
        return Err(ChangeError::new(format!(
            "`{display}` is not a line id: they look like `L3fk2x9q`, from a read"
        )));
    };
    if let Some(index) = track.find(id) {
        return Ok(index);
    }
    let candidate = |index: usize| {
        let mut text = String::new();
        crate::display::push_truncated(&mut text, context.lines.list[index].text, 200);
        json!({"line": index + 1, "line_id": track.ids[index].to_string(), "text": text})
    };
    if let Some(retired) = track.retired.iter().rev().find(|retired| retired.id == id) {
        let index_before = usize::try_from(retired.index).unwrap_or(usize::MAX).min(track.ids.len());
        let near = index_before.saturating_sub(2)..(index_before + 3).min(track.ids.len());
        return Err(ChangeError {
            message: format!(
                "the line `{display}` was changed or removed since (it was near line {}): read the file again",
                index_before + 1
            ),
            candidates: near.map(candidate).collect(),
        });
    }
    let mut similar: Vec<(usize, usize)> = track
        .ids
        .iter()
        .enumerate()
        .map(|(index, known)| (known.distance(id), index))
        .filter(|(distance, _)| *distance <= 2)
        .collect();
    similar.sort_unstable();
    Err(ChangeError {
        message: format!("no line has the id `{display}`: read the file again"),
        candidates: similar.into_iter().take(3).map(|(_, index)| candidate(index)).collect(),
    })
}
