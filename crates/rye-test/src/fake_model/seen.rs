//! What a script is told of a request.

use serde_json::Value;

/// In which protocol a request is made, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `/v1/messages`.
    Anthropic,
    /// `/v1/chat/completions`.
    Openai,
    /// `:generateContent` and `:streamGenerateContent`.
    Gemini,
    /// `/api/chat`.
    Ollama,
}

impl Protocol {
    pub(super) fn of(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
        let ends = [
            ("/messages", Self::Anthropic),
            ("/chat/completions", Self::Openai),
            (":generateContent", Self::Gemini),
            (":streamGenerateContent", Self::Gemini),
            ("/api/chat", Self::Ollama),
        ];
        ends.into_iter().find(|(end, _)| path.ends_with(end)).map(|(_, protocol)| protocol)
    }
}

/// One request that came.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its path, with the query.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body; null if it was no JSON.
    pub body: Value,
    /// Which one it was, from 0.
    pub at_order: usize,
    /// On which connection it came, from 0.
    pub connection: usize,
}

impl Recorded {
    /// A header's value, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// One request, as a script sees it.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Which one it is, from 1.
    pub n: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its path, with the query.
    pub path: &'a str,
    /// Its body.
    pub body: &'a Value,
    /// Whether the answer is to be streamed.
    pub is_stream: bool,
    /// How many messages the conversation has.
    pub messages_count: usize,
    /// How many results of tools are among them.
    pub tool_results: usize,
    /// How many bytes the body has.
    pub bytes: usize,
}

impl<'a> Seen<'a> {
    pub(super) fn new(n: u64, protocol: Protocol, path: &'a str, body: &'a Value, bytes: usize) -> Self {
        let is_stream = match protocol {
            Protocol::Gemini => path.contains(":streamGenerateContent"),
            Protocol::Ollama => body["stream"] != false,
            Protocol::Anthropic | Protocol::Openai => body["stream"] == true,
        };
        let key = if protocol == Protocol::Gemini { "contents" } else { "messages" };
        let messages = body[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let tool_results = results(protocol, messages).count();
        Self { n, protocol, path, body, is_stream, messages_count: messages.len(), tool_results, bytes }
    }

    fn messages(&self) -> &'a [Value] {
        let key = if self.protocol == Protocol::Gemini { "contents" } else { "messages" };
        self.body[key].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// The results of tools in the conversation, as texts, oldest first.
    #[must_use]
    pub fn results(&self) -> Vec<String> {
        let shown = |result: &Value| result.as_str().map_or_else(|| result.to_string(), str::to_owned);
        results(self.protocol, self.messages()).map(shown).collect()
    }

    /// The model that is asked.
    #[must_use]
    pub fn model(&self) -> &'a str {
        let in_path = || self.path.rsplit('/').next()?.split(':').next();
        self.body["model"].as_str().or_else(in_path).unwrap_or("fake")
    }

    /// The tools on offer: names and schemas.
    #[must_use]
    pub fn tools(&self) -> Vec<(&'a str, &'a Value)> {
        let list = |value: &'a Value| value.as_array().map(Vec::as_slice).unwrap_or_default();
        let tools = list(&self.body["tools"]);
        let described = |tool: &'a Value| {
            let tool = tool.get("function").unwrap_or(tool);
            let schema =
                ["parameters", "input_schema", "parametersJsonSchema"].iter().find_map(|key| tool.get(*key));
            (tool["name"].as_str().unwrap_or_default(), schema.unwrap_or(&Value::Null))
        };
        match self.protocol {
            Protocol::Gemini => {
                tools.iter().flat_map(|tool| list(&tool["functionDeclarations"])).map(described).collect()
            }
            Protocol::Anthropic | Protocol::Openai | Protocol::Ollama => {
                tools.iter().map(described).collect()
            }
        }
    }
}

fn results(protocol: Protocol, messages: &[Value]) -> Box<dyn Iterator<Item = &Value> + '_> {
    let parts = |key: &'static str| {
        messages
            .iter()
            .flat_map(move |message| message[key].as_array().map(Vec::as_slice).unwrap_or_default())
    };
    match protocol {
        Protocol::Anthropic => Box::new(
            parts("content").filter(|block| block["type"] == "tool_result").map(|block| &block["content"]),
        ),
        Protocol::Openai | Protocol::Ollama => Box::new(
            messages.iter().filter(|message| message["role"] == "tool").map(|message| &message["content"]),
        ),
        Protocol::Gemini => Box::new(
            parts("parts").filter_map(|part| part.get("functionResponse")).map(|part| &part["response"]),
        ),
    }
}
