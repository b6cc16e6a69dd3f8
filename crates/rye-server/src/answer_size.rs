//! How long an answer may be, and how it is sent: a model pays for every word of it. Of long texts and lists only the
//! head and the tail are kept, unless the client asks for all of it, and a long answer is sent once.

use rmcp::model::CallToolResult;
use serde_json::{Map, Value, json};

use crate::answer::Detail;

/// The most bytes of an answer that was not asked for with `detail: full`.
const MAX_ANSWER_BYTES: usize = 40_000;
/// The longest answer that is sent as an object beside the text: clients read one of the two.
const MAX_STRUCTURED_BYTES: usize = 8_000;
/// The longest description of a search result.
const MAX_DESCRIPTION_CHARS: usize = 160;
/// How long texts and lists may be, tried in this order until the answer fits.
const CUT_LEVELS: [CutLevel; 8] = [
    CutLevel { text: 36_000, list: usize::MAX },
    CutLevel { text: 18_000, list: usize::MAX },
    CutLevel { text: 9_000, list: 1_000 },
    CutLevel { text: 4_000, list: 300 },
    CutLevel { text: 2_000, list: 100 },
    CutLevel { text: 1_000, list: 30 },
    CutLevel { text: 300, list: 10 },
    CutLevel { text: 100, list: 3 },
];

/// The result of a call: an answer that fits, as text; a short one as an object too.
pub(crate) fn call_result(value: Value, is_error: bool) -> CallToolResult {
    let mut result = match is_error {
        true => CallToolResult::structured_error(value),
        false => CallToolResult::structured(value),
    };
    let length: usize =
        result.content.iter().filter_map(|block| block.as_text()).map(|block| block.text.len()).sum();
    if length > MAX_STRUCTURED_BYTES {
        result.structured_content = None;
    }
    result
}

/// The answer of `tool` cut to what a model can afford, and a note on how to get the rest.
pub(crate) fn cut(tool: &str, detail: Detail, answer: Value) -> Value {
    let length = json_length(&answer);
    if detail == Detail::Full || length <= MAX_ANSWER_BYTES {
        return answer;
    }
    let mut shorter = answer.clone();
    for level in &CUT_LEVELS {
        shorter = answer.clone();
        level.cut_value(&mut shorter);
        if json_length(&shorter) <= MAX_ANSWER_BYTES {
            break;
        }
    }
    // Lists in lists in lists: as text it can be cut anywhere.
    if json_length(&shorter) > MAX_ANSWER_BYTES
        && let Some(data) = shorter.get_mut("data")
    {
        *data = Value::String(cut_text(&data.to_string(), MAX_ANSWER_BYTES / 4));
    }
    if let Value::Object(fields) = &mut shorter {
        fields.insert("truncated".to_owned(), Value::Bool(true));
        add_note(fields, &note(tool, length));
    }
    shorter
}

/// What was left out, and how to get it.
fn note(tool: &str, length: usize) -> String {
    let how = match tool {
        "rye_load" | "rye_fetch" => "for all of it, call again with detail `full`",
        "rye_search" => "ask for fewer results with limit, or say more words",
        _ => {
            "have the tool print less, or write to a file and read parts of it; detail `full` runs it again and sends \
             everything"
        }
    };
    format!("the answer has {length} bytes and is cut to its beginnings and ends; {how}")
}

fn add_note(fields: &mut Map<String, Value>, note: &str) {
    match fields.entry("notes").or_insert_with(|| json!([])) {
        Value::Array(notes) => notes.push(json!(note)),
        other => *other = json!([note]),
    }
}

fn json_length(value: &Value) -> usize {
    value.to_string().len()
}

/// How long a text and a list may be.
struct CutLevel {
    text: usize,
    list: usize,
}

impl CutLevel {
    fn cut_value(&self, value: &mut Value) {
        match value {
            Value::String(text) if text.len() > self.text => *text = cut_text(text, self.text),
            Value::Array(list) => {
                let left_out = list.len().saturating_sub(self.list);
                if left_out > 0 {
                    let head = self.list - self.list / 3;
                    list.splice(head..head + left_out, [json!(format!("… {left_out} left out …"))]);
                }
                list.iter_mut().for_each(|value| self.cut_value(value));
            }
            Value::Object(fields) => {
                let left_out = fields.len().saturating_sub(self.list);
                if left_out > 0 {
                    let names: Vec<String> = fields.keys().skip(self.list).cloned().collect();
                    names.iter().for_each(|name| drop(fields.shift_remove(name)));
                    fields.insert("…".to_owned(), json!(format!("{left_out} left out")));
                }
                fields.values_mut().for_each(|value| self.cut_value(value));
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The head and the tail of a text, about `length` bytes, cut at line ends where there are some.
fn cut_text(text: &str, length: usize) -> String {
    let head = text.floor_char_boundary(length - length / 3);
    let tail = text.ceil_char_boundary(text.len() - length / 3);
    let head = text[..head].rfind('\n').filter(|end| *end > head / 2).map_or(head, |end| end + 1);
    let tail = match text[tail..].find('\n') {
        Some(end) if end < (text.len() - tail) / 2 => tail + end,
        _ => tail,
    };
    format!("{}… {} bytes left out …{}", &text[..head], tail - head, &text[tail..])
}

/// The first sentence of a description, at most [`MAX_DESCRIPTION_CHARS`] of it.
pub(crate) fn first_sentence(description: &mut String) {
    let end = description.find(". ").map_or(description.len(), |end| end + 1);
    description.truncate(end);
    if let Some((end, _)) = description.char_indices().nth(MAX_DESCRIPTION_CHARS) {
        let cut = &description[..end];
        let word = cut.rfind(' ').filter(|space| *space > end / 2).unwrap_or(end);
        description.truncate(word);
        description.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_text() -> String {
        (0..100_000).map(|number| format!("{number}\n")).collect()
    }

    #[test]
    fn long_text_keeps_head_and_tail() {
        let answer = json!({"status": "success", "data": {"stdout": long_text(), "code": 0}});
        let cut = cut("rye_execute", Detail::Brief, answer.clone());
        assert!(json_length(&cut) <= MAX_ANSWER_BYTES, "{}", json_length(&cut));
        let text = cut["data"]["stdout"].as_str().expect("a text");
        assert!(text.starts_with("0\n1\n") && text.ends_with("\n99999\n"));
        assert!(text.contains("\n… ") && text.contains(" bytes left out …\n"), "{text}");
        assert_eq!((&cut["data"]["code"], &cut["truncated"]), (&json!(0), &json!(true)));
        assert!(
            cut["notes"][0].as_str().is_some_and(|note| note.contains("detail `full`")),
            "{}",
            cut["notes"]
        );
        assert_eq!(super::cut("rye_execute", Detail::Full, answer.clone()), answer);
    }

    #[test]
    fn every_shape_of_answer_fits() {
        let row = json!({"name": "x".repeat(50), "list": vec![1; 100]});
        let wide: Map<String, Value> = (0..9_000).map(|number| (number.to_string(), json!(number))).collect();
        let mut deep = json!(["leaf"]);
        for _ in 0..6 {
            deep = json!(vec![deep; 7]);
        }
        for data in [json!(vec![row; 5_000]), json!(wide), json!(vec![long_text(); 3]), deep] {
            let cut = cut("rye_execute", Detail::Brief, json!({"status": "success", "data": data}));
            assert!(json_length(&cut) <= MAX_ANSWER_BYTES, "{}", json_length(&cut));
            assert_eq!(cut["truncated"], true);
        }
    }

    #[test]
    fn short_answers_stay_as_they_are() {
        let answer = json!({"status": "success", "data": {"text": "x".repeat(30_000)}});
        assert_eq!(cut("rye_execute", Detail::Brief, answer.clone()), answer);
    }

    #[test]
    fn long_answer_is_sent_once() {
        let long = call_result(json!({"data": "x".repeat(MAX_STRUCTURED_BYTES)}), false);
        assert!(long.structured_content.is_none() && long.content.len() == 1);
        let short = call_result(json!({"data": "x"}), true);
        assert_eq!((short.structured_content, short.is_error), (Some(json!({"data": "x"})), Some(true)));
    }

    #[test]
    fn descriptions_end_with_their_first_sentence() {
        let shorten = |text: &str| {
            let mut text = text.to_owned();
            first_sentence(&mut text);
            text
        };
        assert_eq!(shorten("Reads v1.2 files. Then more."), "Reads v1.2 files.");
        assert_eq!(shorten("Reads a file"), "Reads a file");
        let long = shorten(&"word ".repeat(100));
        assert!(long.ends_with("word…") && long.chars().count() <= MAX_DESCRIPTION_CHARS + 1, "{long}");
    }
}
