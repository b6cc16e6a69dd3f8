//! From a chain and its surroundings to what exactly is run: config merged, filled in, checked. Nothing is run here.
//!
//! The config of the primitive, the runtime and the tool are laid over one another, the tool's last. The caller's
//! parameters fill placeholders and reach the tool as JSON; they never become config.

use std::collections::BTreeMap;
use std::time::Duration;

use rye_item::Space;
use serde_json::{Map, Value};

use crate::chain::{Chain, Primitive};
use crate::environment::TemplateContext;
use crate::http::fill_url;
use crate::template::{self, TemplateValues};

/// What is run.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    /// A process.
    Process(ProcessInvocation),
    /// An HTTP request.
    Http(HttpInvocation),
    /// A function of the binary.
    Native(NativeInvocation),
}

/// A process to run.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessInvocation {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its folder; the project's if the chain says nothing.
    pub cwd: Option<String>,
    /// What it reads.
    pub stdin: String,
    /// How long it may take.
    pub timeout: Duration,
    /// How its result is found.
    pub result: ResultMode,
    /// Whether it continues after `rye` has answered.
    pub is_detached: bool,
    /// Variables that carry the parameters one by one.
    pub parameter_variables: BTreeMap<String, String>,
}

/// How a process gives its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResultMode {
    /// As JSON on a descriptor of its own.
    Channel,
    /// The same, in which no object has a key twice. No item asks for it; a policy's answer is read so.
    UniqueChannel,
    /// As the last line of its output that is JSON.
    #[default]
    LastJsonLine,
    /// As its output: one JSON object and nothing else. No item asks for it; a policy's answer is read so.
    WholeJsonObject,
    /// Its output, error output and exit code are the result.
    Streams,
    /// Its output is the result, as text.
    Text,
}

/// A request to send.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpInvocation {
    /// The filled-in config.
    pub config: Map<String, Value>,
    /// The URL as it is written in the signed item.
    pub url_template: String,
}

/// A function to call.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeInvocation {
    /// Its name.
    pub function: String,
    /// The filled-in config.
    pub config: Map<String, Value>,
    /// The space of the tool.
    pub space: Space,
}

/// Why a chain cannot be invoked: what a signed item says does not make sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvocationError {
    /// Nothing says which program to run.
    #[error("No command specified")]
    NoCommand,
    /// The tool's own file would be run through its first line, which no signature covers.
    #[error("the command is the tool's own file: its first line is not signed; use a runtime")]
    CommandIsToolFile,
    /// A key of the config cannot be used.
    #[error("`config.{key}` {problem}")]
    InvalidConfig {
        /// The key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The parameters do not make a URL of the template.
    #[error("{0}")]
    InvalidUrl(String),
}

/// What the placeholders of a chain stand for, and how long anything may take.
#[derive(Clone, Copy, Debug)]
pub struct InvocationInputs<'a> {
    /// The environment of the child.
    pub environment: &'a BTreeMap<String, String>,
    /// The engine's own names.
    pub context: &'a TemplateContext,
    /// The checked parameters.
    pub parameters: &'a Map<String, Value>,
    /// The config the tool asked for.
    pub resolved_config: Option<&'a Value>,
    /// The longest time a process may take.
    pub max_timeout: Duration,
}

const DEFAULT_TIMEOUT_SECONDS: f64 = 300.0;

/// The config of a chain: the tool's over the runtime's over the primitive's, key by key.
#[must_use]
pub fn merge_config(chain: &Chain) -> Map<String, Value> {
    let mut merged = Map::new();
    for element in chain.elements().iter().rev() {
        for (key, value) in element.object("config").into_iter().flatten() {
            merged.insert(key.clone(), value.clone());
        }
    }
    merged
}

/// The JSON a tool reads: its parameters, what its config fixes, and the config it asked for.
fn parameters_json(config: &Map<String, Value>, inputs: &InvocationInputs<'_>) -> String {
    let mut parameters = inputs.parameters.clone();
    parameters.retain(|name, _| !name.starts_with("__"));
    if let Some(resolved) = inputs.resolved_config {
        parameters.insert("resolved_config".to_owned(), resolved.clone());
    }
    let fixed = config.get("fixed_params").and_then(Value::as_object);
    let whole = match (fixed, config.get("params_key").and_then(Value::as_str)) {
        (Some(fixed), Some(key)) => {
            let mut whole = fixed.clone();
            whole.insert(key.to_owned(), Value::Object(parameters));
            whole
        }
        (Some(fixed), None) => {
            parameters.extend(fixed.iter().map(|(key, value)| (key.clone(), value.clone())));
            parameters
        }
        (None, _) => parameters,
    };
    Value::Object(whole).to_string()
}

/// The function that a chain ends in, and what its items say to it; `None` if it ends in anything else.
#[must_use]
pub fn native_config(chain: &Chain) -> Option<(String, Map<String, Value>)> {
    let config = (chain.primitive() == Primitive::Native).then(|| merge_config(chain))?;
    let function = config.get("function").and_then(Value::as_str)?.to_owned();
    Some((function, config))
}

/// Works out what is run.
///
/// # Errors
/// When what the signed items say cannot be run.
pub fn build_invocation(chain: &Chain, inputs: &InvocationInputs<'_>) -> Result<Invocation, InvocationError> {
    let config = merge_config(chain);
    let schema = chain.tool().schema();
    let declared = schema.map(|schema| schema.get("properties").and_then(Value::as_object));
    let none = Map::new();
    let declared = declared.map(|properties| properties.unwrap_or(&none));
    let params_json = parameters_json(&config, inputs);
    let names = TemplateValues {
        environment: inputs.environment,
        context: inputs.context,
        parameters: inputs.parameters,
        declared,
        config: &config,
        params_json: &params_json,
        fills_variables_only: false,
    };
    match chain.primitive() {
        Primitive::Subprocess => build_process(&config, &names, inputs).map(Invocation::Process),
        Primitive::HttpClient => build_http(&config, &names).map(Invocation::Http),
        Primitive::Native => build_native(&config, &names, chain.tool().space()).map(Invocation::Native),
    }
}

fn build_process(
    config: &Map<String, Value>,
    names: &TemplateValues<'_>,
    inputs: &InvocationInputs<'_>,
) -> Result<ProcessInvocation, InvocationError> {
    let text = |key: &'static str| -> Result<Option<String>, InvocationError> {
        match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(template)) => Ok(Some(template::fill_text(template, names))),
            Some(_) => Err(InvocationError::InvalidConfig { key, problem: "is not a text".to_owned() }),
        }
    };
    let command = text("command")?.filter(|command| !command.trim().is_empty());
    let command = command.ok_or(InvocationError::NoCommand)?;
    if inputs.context.tool_path == command {
        return Err(InvocationError::CommandIsToolFile);
    }
    let arguments = match config.get("args") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => {
            list.iter().map(|argument| template::to_text(&template::fill(argument, names))).collect()
        }
        Some(_) => {
            return Err(InvocationError::InvalidConfig { key: "args", problem: "is not a list".to_owned() });
        }
    };
    if [&command].into_iter().chain(&arguments).any(|word| word.contains('\0')) {
        return Err(InvocationError::InvalidConfig { key: "args", problem: "would hold a NUL".to_owned() });
    }
    let seconds = match config.get("timeout") {
        None | Some(Value::Null) => DEFAULT_TIMEOUT_SECONDS,
        Some(timeout) => timeout.as_f64().filter(|seconds| *seconds > 0.0 && seconds.is_finite()).ok_or(
            InvocationError::InvalidConfig {
                key: "timeout",
                problem: "is not a number of seconds".to_owned(),
            },
        )?,
    };
    let result = match config.get("result").and_then(Value::as_str) {
        Some("channel") => ResultMode::Channel,
        Some("last_json_line") | None => ResultMode::LastJsonLine,
        Some("streams") => ResultMode::Streams,
        Some("text") => ResultMode::Text,
        Some(other) => {
            return Err(InvocationError::InvalidConfig {
                key: "result",
                problem: format!("is `{other}`: it may be channel, last_json_line, streams or text"),
            });
        }
    };
    let parameter_variables = match config.get("params_env").and_then(Value::as_str) {
        Some(prefix) => parameter_variables(prefix, inputs.parameters),
        None => BTreeMap::new(),
    };
    Ok(ProcessInvocation {
        command,
        arguments,
        cwd: text("cwd")?.filter(|folder| !folder.is_empty()),
        stdin: text("input_data")?.unwrap_or_default(),
        timeout: Duration::from_secs_f64(seconds).min(inputs.max_timeout),
        result,
        is_detached: config.get("detached").and_then(Value::as_bool).unwrap_or(false),
        parameter_variables,
    })
}

/// The kernel takes no longer text as one variable; what is longer is on standard input only.
const MAX_VARIABLE_BYTES: usize = 100_000;

/// `RYE_PARAM_CITY` for `city`: letters, digits and `_`, in capitals.
fn parameter_variables(prefix: &str, parameters: &Map<String, Value>) -> BTreeMap<String, String> {
    parameters
        .iter()
        .map(|(name, value)| {
            let name: String = name
                .chars()
                .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' })
                .collect();
            (format!("{prefix}{name}"), template::to_text(value).replace('\0', ""))
        })
        .filter(|(_, value)| value.len() <= MAX_VARIABLE_BYTES)
        .collect()
}

fn build_http(
    config: &Map<String, Value>,
    names: &TemplateValues<'_>,
) -> Result<HttpInvocation, InvocationError> {
    let Some(url) = config.get("url").and_then(Value::as_str) else {
        return Err(InvocationError::InvalidConfig { key: "url", problem: "is missing".to_owned() });
    };
    let allows_any_host = config.get("url_from_parameter").and_then(Value::as_bool).unwrap_or(false);
    let template = template::fill_variables(url, names);
    let value = |name: &str| names.get(name).map(|value| template::to_text(&value));
    let filled_url = fill_url(&template, value, allows_any_host).map_err(InvocationError::InvalidUrl)?;
    let mut filled: Map<String, Value> =
        config.iter().map(|(key, value)| (key.clone(), template::fill(value, names))).collect();
    filled.insert("url".to_owned(), Value::String(filled_url));
    for key in ["body", "query"] {
        if let Some(Value::Object(map)) = filled.get_mut(key) {
            // What was not given is not sent.
            map.retain(|_, value| {
                value.as_str().is_none_or(|text| template::placeholder_name(text).is_none())
            });
        }
    }
    Ok(HttpInvocation { config: filled, url_template: url.to_owned() })
}

fn build_native(
    config: &Map<String, Value>,
    names: &TemplateValues<'_>,
    space: &Space,
) -> Result<NativeInvocation, InvocationError> {
    let function = config.get("function").and_then(Value::as_str);
    let function = function
        .ok_or(InvocationError::InvalidConfig { key: "function", problem: "is missing".to_owned() })?
        .to_owned();
    let filled = config.iter().map(|(key, value)| (key.clone(), template::fill(value, names)));
    Ok(NativeInvocation { function, config: filled.collect(), space: space.clone() })
}
