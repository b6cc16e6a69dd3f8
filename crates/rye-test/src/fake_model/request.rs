//! What a script is given of a request.

use serde_json::Value;

/// In which protocol a request is made, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FakeProtocol {
    /// `/v1/messages`.
    Anthropic,
    /// `/v1/chat/completions`.
    Openai,
    /// `:generateContent` and `:streamGenerateContent`.
    Gemini,
    /// `/api/chat`.
    Ollama,
}

impl FakeProtocol {
    pub(super) fn from_path(path: &str) -> Option<Self> {
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
pub struct LoggedRequest {
    /// Its path, with the query.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body; null if it was not JSON.
    pub body: Value,
    /// Which one it was, from 0.
    pub index: usize,
    /// On which connection it came, from 0.
    pub connection: usize,
}

impl LoggedRequest {
    /// A header's value, by its name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// One request, as a script sees it.
#[derive(Debug)]
pub struct FakeRequest<'a> {
    /// Which one it is, from 1.
    pub number: u64,
    /// Its protocol.
    pub protocol: FakeProtocol,
    /// Its path, with the query.
    pub path: &'a str,
    /// Its body.
    pub body: &'a Value,
    /// Whether the answer is to be streamed.
    pub is_stream: bool,
    /// How many messages the conversation has.
    pub message_count: usize,
    /// How many results of tools are among them.
    pub tool_results: usize,
    /// How many bytes the body has.
    pub bytes: usize,
}

impl<'a> FakeRequest<'a> {
    pub(super) fn new(n: u64, protocol: FakeProtocol, path: &'a str, body: &'a Value, bytes: usize) -> Self {
        let is_stream = match protocol {
            FakeProtocol::Gemini => path.contains(":streamGenerateContent"),
            FakeProtocol::Ollama => body["stream"] != false,
            FakeProtocol::Anthropic | FakeProtocol::Openai => body["stream"] == true,
        };
        let key = if protocol == FakeProtocol::Gemini { "contents" } else { "messages" };
        let messages = body[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let tool_results = tool_results(protocol, messages).count();
        Self {
            number: n,
            protocol,
            path,
            body,
            is_stream,
            message_count: messages.len(),
            tool_results,
            bytes,
        }
    }

    fn messages(&self) -> &'a [Value] {
        let key = if self.protocol == FakeProtocol::Gemini { "contents" } else { "messages" };
        self.body[key].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// The results of tools in the conversation, as texts, oldest first.
    #[must_use]
    pub fn tool_result_texts(&self) -> Vec<String> {
        let to_text = |result: &Value| result.as_str().map_or_else(|| result.to_string(), str::to_owned);
        tool_results(self.protocol, self.messages()).map(to_text).collect()
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
        let name_and_schema = |tool: &'a Value| {
            let tool = tool.get("function").unwrap_or(tool);
            let schema =
                ["parameters", "input_schema", "parametersJsonSchema"].iter().find_map(|key| tool.get(*key));
            (tool["name"].as_str().unwrap_or_default(), schema.unwrap_or(&Value::Null))
        };
        match self.protocol {
            FakeProtocol::Gemini => tools
                .iter()
                .flat_map(|tool| list(&tool["functionDeclarations"]))
                .map(name_and_schema)
                .collect(),
            FakeProtocol::Anthropic | FakeProtocol::Openai | FakeProtocol::Ollama => {
                tools.iter().map(name_and_schema).collect()
            }
        }
    }
}

fn tool_results(protocol: FakeProtocol, messages: &[Value]) -> Box<dyn Iterator<Item = &Value> + '_> {
    let parts = |key: &'static str| {
        messages
            .iter()
            .flat_map(move |message| message[key].as_array().map(Vec::as_slice).unwrap_or_default())
    };
    match protocol {
        FakeProtocol::Anthropic => Box::new(
            parts("content").filter(|block| block["type"] == "tool_result").map(|block| &block["content"]),
        ),
        FakeProtocol::Openai | FakeProtocol::Ollama => Box::new(
            messages.iter().filter(|message| message["role"] == "tool").map(|message| &message["content"]),
        ),
        FakeProtocol::Gemini => Box::new(
            parts("parts").filter_map(|part| part.get("functionResponse")).map(|part| &part["response"]),
        ),
    }
}
