//! What a server offers and answers, as plain values. All of it is hostile text: names, descriptions and schemas are
//! bounded before anything else sees them, and digests are over what the server really sent.

use lillux::Digest;
use lillux::canonical;
use rye_item::text::{is_unsafe, strip_controls};
use serde_json::{Map, Value, json};

use crate::error::truncate_line;

const MAX_TOOLS: usize = 1000;
const MAX_NAME_CHARS: usize = 128;
const MAX_TITLE_BYTES: usize = 1024;
const MAX_DESCRIPTION_BYTES: usize = 64 * 1024;
const MAX_SCHEMA_BYTES: usize = 256 * 1024;
const MAX_SCHEMA_DEPTH: usize = 30;

/// One tool of a foreign server. Texts are free of control sequences; the digest covers them as they were sent.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteTool {
    /// The name it is called by.
    pub name: String,
    /// A title for people.
    pub title: Option<String>,
    /// What the server says it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Value,
    /// Hints such as `readOnlyHint`; never trusted.
    pub annotations: Option<Value>,
    /// SHA-256 over the canonical JSON of all of these.
    pub digest: Digest,
}

/// A tool as the server sent it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawTool {
    /// The name.
    pub name: String,
    /// The title.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The schema of its arguments.
    pub input_schema: Map<String, Value>,
    /// The hints.
    pub annotations: Option<Value>,
}

/// All tools of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolList {
    /// The tools, sorted by name.
    pub tools: Vec<RemoteTool>,
    /// SHA-256 over the canonical JSON of names and digests.
    pub digest: Digest,
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq)]
pub struct CallOutcome {
    /// Whether the tool says that it failed.
    pub is_error: bool,
    /// The text blocks joined by line breaks; images, sounds and resources are described.
    pub content: String,
    /// The structured content, or what the only text block holds if that is a JSON object or list.
    pub structured: Option<Value>,
    /// The digest of the tool that was called.
    pub tool_digest: Digest,
    /// Requests of the server that were refused meanwhile, such as `sampling/createMessage`.
    pub refused: Vec<String>,
}

impl CallOutcome {
    /// The answer as one value: structured content where there is some, else the text.
    #[must_use]
    pub fn value(&self) -> Value {
        self.structured.clone().unwrap_or_else(|| Value::String(self.content.clone()))
    }
}

impl ToolList {
    /// Checks and sorts what a server sent.
    ///
    /// # Errors
    /// The first thing that is out of bounds, in words.
    pub fn new(sent: Vec<RawTool>) -> Result<Self, String> {
        if sent.len() > MAX_TOOLS {
            return Err(format!("it offers more than {MAX_TOOLS} tools"));
        }
        let mut tools = sent.into_iter().map(RemoteTool::new).collect::<Result<Vec<_>, _>>()?;
        tools.sort_by(|left, right| left.name.cmp(&right.name));
        if let Some(pair) = tools.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(format!("it offers two tools named `{}`", pair[0].name));
        }
        let digests: Vec<Value> = tools.iter().map(|tool| json!([tool.name, tool.digest.to_hex()])).collect();
        Ok(Self { digest: canonical::digest(&Value::Array(digests)), tools })
    }

    /// The tool called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&RemoteTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

impl RemoteTool {
    fn new(sent: RawTool) -> Result<Self, String> {
        let RawTool { name, title, description, input_schema, annotations } = sent;
        let display_name = truncate_line(&name, 60);
        // A name ends up in an item's config, where braces and dollars would be filled in.
        let is_plain = |character: char| {
            !is_unsafe(character) && !character.is_whitespace() && !matches!(character, '{' | '}' | '$')
        };
        if name.is_empty() || name.chars().count() > MAX_NAME_CHARS || !name.chars().all(is_plain) {
            return Err(format!("it offers a tool with the impossible name `{display_name}`"));
        }
        if title.as_ref().is_some_and(|title| title.len() > MAX_TITLE_BYTES) {
            return Err(format!("the title of tool `{display_name}` is longer than {MAX_TITLE_BYTES} bytes"));
        }
        if description.as_ref().is_some_and(|text| text.len() > MAX_DESCRIPTION_BYTES) {
            return Err(format!(
                "the description of tool `{display_name}` is longer than {MAX_DESCRIPTION_BYTES} bytes"
            ));
        }
        let input_schema = Value::Object(input_schema);
        if depth(&input_schema) > MAX_SCHEMA_DEPTH {
            return Err(format!(
                "the schema of tool `{display_name}` is nested deeper than {MAX_SCHEMA_DEPTH}"
            ));
        }
        let descriptor = json!({
            "name": name, "title": title, "description": description,
            "input_schema": input_schema, "annotations": annotations,
        });
        let text = canonical::to_string(&descriptor);
        if text.len() > MAX_SCHEMA_BYTES + MAX_DESCRIPTION_BYTES {
            return Err(format!(
                "the schema of tool `{display_name}` is larger than {MAX_SCHEMA_BYTES} bytes"
            ));
        }
        let clean = |text: String| strip_controls(&text).into_owned();
        Ok(Self {
            name,
            title: title.map(clean),
            description: description.map(clean),
            input_schema,
            annotations,
            digest: Digest::of(text.as_bytes()),
        })
    }

    /// The tool as JSON, as `rye/mcp/discover` shows it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        if let Some(title) = &self.title {
            map.insert("title".into(), json!(title));
        }
        if let Some(description) = &self.description {
            map.insert("description".into(), json!(description));
        }
        map.insert("input_schema".into(), self.input_schema.clone());
        if let Some(annotations) = &self.annotations {
            map.insert("annotations".into(), annotations.clone());
        }
        map.insert("digest".into(), json!(self.digest.to_hex()));
        Value::Object(map)
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw_tool(name: &str, description: &str) -> RawTool {
        RawTool { name: name.into(), description: Some(description.into()), ..RawTool::default() }
    }

    #[test]
    fn tool_order_does_not_matter() {
        let one = ToolList::new(vec![raw_tool("a", "1"), raw_tool("b", "2")]).expect("list");
        let other = ToolList::new(vec![raw_tool("b", "2"), raw_tool("a", "1")]).expect("list");
        assert_eq!(one, other);
        assert_ne!(
            one.digest,
            ToolList::new(vec![raw_tool("a", "1"), raw_tool("b", "3")]).expect("list").digest
        );
    }

    #[test]
    fn hidden_characters_change_the_digest() {
        let plain = ToolList::new(vec![raw_tool("a", "text")]).expect("list");
        let odd = ToolList::new(vec![raw_tool("a", "te\u{1b}[8mxt\u{202e}")]).expect("list");
        assert_eq!(odd.tools[0].description.as_deref(), Some("text"));
        assert_ne!(plain.digest, odd.digest);
    }

    #[test]
    fn oversized_tool_lists_are_refused() {
        let refused = |list: Vec<RawTool>| ToolList::new(list).expect_err("refused");
        assert_eq!(refused(vec![raw_tool("a", ""), raw_tool("a", "")]), "it offers two tools named `a`");
        assert_eq!(
            refused(vec![raw_tool("a\u{1b}[0mb", "")]),
            "it offers a tool with the impossible name `ab`"
        );
        assert_eq!(
            refused(vec![raw_tool("${KEY}", "")]),
            "it offers a tool with the impossible name `${KEY}`"
        );
        assert_eq!(refused(vec![raw_tool("", "")]), "it offers a tool with the impossible name ``");
        assert_eq!(
            refused(vec![raw_tool("a", &"x".repeat(65 * 1024))]),
            "the description of tool `a` is longer than 65536 bytes"
        );
        assert_eq!(refused(vec![RawTool::default(); 1001]), "it offers more than 1000 tools");
        let mut deep = json!({});
        for _ in 0..40 {
            deep = json!({"items": deep});
        }
        let tool = RawTool { input_schema: deep.as_object().expect("map").clone(), ..raw_tool("a", "") };
        assert_eq!(refused(vec![tool]), "the schema of tool `a` is nested deeper than 30");
    }
}
