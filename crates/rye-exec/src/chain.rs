//! From a tool to its primitive: `executor_id` by `executor_id`, each element found from the space of the one that
//! names it, each admitted before it counts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rye_item::{ItemId, ItemRef, ItemType, Space, text};
use rye_space::file_stamp::WatchSet;
use rye_space::{ItemFile, LocateError, Spaces};
use rye_trust::{Admitted, Subject};
use serde_json::{Map, Value};

use crate::validate::{ChainLink, field_names, space_issue};

/// The longest chain.
pub const MAX_DEPTH: usize = 10;

/// What ends a chain: what the engine itself can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// Runs a process.
    Subprocess,
    /// Sends an HTTP request.
    HttpClient,
    /// Calls a function compiled into the binary.
    Native,
}

impl Primitive {
    fn from_id(id: &str) -> Option<Self> {
        match id {
            "rye/core/primitives/subprocess" => Some(Self::Subprocess),
            "rye/core/primitives/http_client" => Some(Self::HttpClient),
            "rye/core/primitives/native" => Some(Self::Native),
            _ => None,
        }
    }

    /// The primitive's id.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Subprocess => "rye/core/primitives/subprocess",
            Self::HttpClient => "rye/core/primitives/http_client",
            Self::Native => "rye/core/primitives/native",
        }
    }
}

/// Other names of executors, as data: short names, and names other implementations use.
#[derive(Clone, Debug, Default)]
pub struct Aliases {
    names: BTreeMap<String, String>,
    /// The same for tools that define `execute`: they are functions, whatever name they use.
    functions: BTreeMap<String, String>,
}

impl Aliases {
    /// The tables in the settings `execution.aliases` and `execution.function_aliases`.
    #[must_use]
    pub fn from_settings(names: Option<&Value>, functions: Option<&Value>) -> Self {
        let table = |setting: Option<&Value>| {
            let rows = setting.and_then(Value::as_object).into_iter().flatten();
            rows.filter_map(|(alias, id)| Some((alias.clone(), id.as_str()?.to_owned()))).collect()
        };
        Self { names: table(names), functions: table(functions) }
    }

    fn get(&self, id: &str) -> Option<&str> {
        self.names.get(id).map(String::as_str)
    }

    /// Every other name of an executor.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().chain(self.functions.keys()).map(String::as_str)
    }

    /// What `id` is another name of: an item of that id stands before each of them.
    pub fn targets(&self, id: &str) -> impl Iterator<Item = &str> {
        let both = [self.names.get(id), self.functions.get(id)].into_iter().flatten();
        both.map(String::as_str).collect::<std::collections::BTreeSet<_>>().into_iter()
    }

    /// Whether the runtime of this id calls a tool's function `execute`.
    #[must_use]
    pub fn is_function_runtime(&self, id: &str) -> bool {
        self.functions.values().any(|runtime| runtime == id)
    }

    /// The ids that an executor is looked for by, in order: as it is written, then what that is an alias of for `child`.
    fn candidate_ids<'a>(&'a self, executor: &'a str, child: &ItemFile) -> impl Iterator<Item = &'a str> {
        let function = self.functions.get(executor).filter(|_| child.defines_execute());
        let alias = function.map(String::as_str).or_else(|| self.get(executor));
        [Some(executor), alias].into_iter().flatten()
    }
}

/// One element of a chain, admitted.
#[derive(Clone, Debug)]
pub struct Element {
    item: Arc<Admitted<ItemFile>>,
}

impl Element {
    /// The item itself.
    #[must_use]
    pub fn item(&self) -> &Admitted<ItemFile> {
        &self.item
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &ItemId {
        &self.item.item().id
    }

    /// Its space.
    #[must_use]
    pub fn space(&self) -> &Space {
        self.item.space()
    }

    /// The hash of its content, in hex.
    #[must_use]
    pub fn integrity(&self) -> String {
        self.item.digest().to_hex()
    }

    /// One of its fields.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.item.fields().get(name).filter(|value| !value.is_null())
    }

    /// A field that is an object.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<&Map<String, Value>> {
        self.field(name).and_then(Value::as_object)
    }

    /// A field that is a text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.field(name).and_then(Value::as_str)
    }

    /// What its parameters must be; a tool of a foreign MCP server calls it `input_schema`.
    #[must_use]
    pub fn schema(&self) -> Option<&Value> {
        self.field("config_schema").or_else(|| self.item.parsed().fields.get("input_schema"))
    }

    /// Its version; what states none is `0.0.0`.
    #[must_use]
    pub fn version(&self) -> &str {
        self.text("version").unwrap_or("0.0.0")
    }

    fn link(&self) -> ChainLink {
        ChainLink {
            item_id: self.id().to_string(),
            tier: self.space().tier(),
            version: self.text("version").map(str::to_owned),
            inputs: field_names(self.field("inputs")),
            outputs: field_names(self.field("outputs")),
            child_constraints: self.object("child_constraints").cloned().unwrap_or_default(),
        }
    }
}

/// A chain from a tool to a primitive, every element admitted.
#[derive(Clone, Debug)]
pub struct Chain {
    elements: Vec<Element>,
    primitive: Primitive,
}

impl Chain {
    /// The elements, the tool first.
    #[must_use]
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// The tool.
    #[must_use]
    pub fn tool(&self) -> &Element {
        &self.elements[0]
    }

    /// What ends the chain.
    #[must_use]
    pub fn primitive(&self) -> Primitive {
        self.primitive
    }

    /// What the validator looks at.
    #[must_use]
    pub fn links(&self) -> Vec<ChainLink> {
        self.elements.iter().map(Element::link).collect()
    }

    /// The first element, from the tool on, that states a field, with what it states.
    #[must_use]
    pub fn first_field(&self, field: &str) -> Option<(&Element, &Value)> {
        self.elements.iter().find_map(|element| Some((element, element.field(field)?)))
    }

    /// Everything that decided which elements these are; `None` when an element's file is gone already.
    #[must_use]
    pub fn watch_set(&self, spaces: &Spaces, aliases: &Aliases) -> Option<WatchSet> {
        let mut watch_set = WatchSet::default();
        for element in &self.elements {
            let item = element.item();
            spaces.watch_item(item.item_ref(), &mut watch_set);
            if spaces.folder(element.space()).is_some() {
                watch_set.add(item.path.clone());
                if !watch_set.existed(&item.path) {
                    return None;
                }
            }
            for id in element
                .text("executor_id")
                .into_iter()
                .flat_map(|executor| aliases.candidate_ids(executor, item))
            {
                spaces.watch_item(&ItemRef::new(ItemType::Tool, ItemId::new(id).ok()?), &mut watch_set);
            }
        }
        Some(watch_set)
    }

    /// Whether development mode let any element pass.
    #[must_use]
    pub fn uses_dev_mode(&self) -> bool {
        self.elements.iter().any(|element| element.item.is_forgiven())
    }
}

/// The ids of the elements so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail(pub Vec<String>);

impl fmt::Display for Trail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join(" → "))
    }
}

/// Why there is no chain.
#[derive(Debug, thiserror::Error)]
pub enum ChainError<E> {
    /// The tool is not there, or an element cannot be read.
    #[error(transparent)]
    Locate(LocateError),
    /// An element was not admitted.
    #[error("an element of the chain was refused")]
    Refused(E),
    /// An executor is nowhere.
    #[error("Executor not found: {executor} (chain: {trail} → {executor})")]
    ExecutorNotFound {
        /// The executor.
        executor: String,
        /// The chain so far.
        trail: Trail,
    },
    /// An executor lies only where the element may not look.
    #[error("{message} (chain: {trail})")]
    SpaceViolation {
        /// What the validator says.
        message: String,
        /// The chain so far, the executor included.
        trail: Trail,
    },
    /// The chain comes back to itself.
    #[error("Circular dependency detected: {trail}")]
    Circular {
        /// The chain, up to the element seen twice.
        trail: Trail,
    },
    /// The chain is too long.
    #[error("Chain too deep (max {MAX_DEPTH}): {trail}")]
    TooDeep {
        /// The chain, up to the element too many.
        trail: Trail,
    },
    /// The last element is nothing the engine can do.
    #[error("Unknown primitive: {id} (chain: {trail})")]
    UnknownPrimitive {
        /// The last element.
        id: String,
        /// The whole chain.
        trail: Trail,
    },
    /// An element's `executor_id` is not an id.
    #[error("`{id}` has an invalid executor: {reason} (chain: {trail})")]
    InvalidExecutor {
        /// The element.
        id: String,
        /// What is wrong.
        reason: String,
        /// The chain so far.
        trail: Trail,
    },
}

/// Lets located items pass, or not.
pub type Admit<'a, E> = dyn Fn(ItemFile) -> Result<Arc<Admitted<ItemFile>>, E> + 'a;

/// Builds the chain of a tool that was located.
///
/// # Errors
/// When an element is missing, refused, out of reach, seen twice, one too many, or no primitive ends it. Each names the
/// chain so far.
pub fn build<E>(
    tool: ItemFile,
    spaces: &Spaces,
    aliases: &Aliases,
    admit: &Admit<'_, E>,
) -> Result<Chain, ChainError<E>> {
    let mut elements: Vec<Element> = Vec::new();
    let mut trail = Trail::default();
    let mut next = tool;
    loop {
        let id = next.item().id.to_string();
        let is_circular = trail.0.contains(&id);
        trail.0.push(id.clone());
        if is_circular {
            return Err(ChainError::Circular { trail });
        }
        if elements.len() == MAX_DEPTH {
            return Err(ChainError::TooDeep { trail });
        }
        let element = Element { item: admit(next).map_err(ChainError::Refused)? };
        let executor = match element.field("executor_id") {
            None => None,
            Some(Value::String(executor)) => Some(executor.clone()),
            Some(other) => {
                let reason = format!("executor_id is {other}");
                return Err(ChainError::InvalidExecutor { id, reason, trail });
            }
        };
        let item = Arc::clone(&element.item);
        elements.push(element);
        let Some(executor) = executor else {
            let canonical = aliases.get(&id).unwrap_or(&id);
            let Some(primitive) = Primitive::from_id(canonical) else {
                return Err(ChainError::UnknownPrimitive { id, trail });
            };
            return Ok(Chain { elements, primitive });
        };
        next = find_executor(&executor, &item, spaces, aliases, &trail)?;
    }
}

/// Where a space comes in the order in which items are looked for.
fn rank(spaces: &Spaces, space: &Space) -> usize {
    match space {
        Space::Project => 0,
        Space::User => 1,
        Space::System(id) => {
            let bundles = spaces.bundles();
            2 + bundles.iter().position(|bundle| bundle.id == *id).unwrap_or(bundles.len())
        }
    }
}

/// Finds the executor that `child` names: by its id as written, or by what that is an alias of.
///
/// # Errors
/// When it is nowhere, out of reach, unreadable, or its id is none.
pub fn find_executor<E>(
    executor: &str,
    child: &ItemFile,
    spaces: &Spaces,
    aliases: &Aliases,
    trail: &Trail,
) -> Result<ItemFile, ChainError<E>> {
    let space = child.space();
    let id = &child.item().id;
    let invalid =
        |reason: String| ChainError::InvalidExecutor { id: id.to_string(), reason, trail: trail.clone() };
    let mut hidden_match = None;
    let mut found: Option<ItemFile> = None;
    // Both names mean the same: the space decides, and within one space the id as it is written comes first.
    for id in aliases.candidate_ids(executor, child) {
        let item = ItemId::new(id).map_err(|error| invalid(text::one_line(&error.to_string())))?;
        let item = ItemRef::new(ItemType::Tool, item);
        match spaces.locate_visible_from(&item, space) {
            Ok(located) => {
                let is_before =
                    |known: &ItemFile| rank(spaces, located.space()) < rank(spaces, known.space());
                if found.as_ref().is_none_or(is_before) {
                    found = Some(located);
                }
                continue;
            }
            Err(LocateError::NotFound(_)) => {}
            Err(error @ LocateError::Unreadable { .. }) => return Err(ChainError::Locate(error)),
        }
        if hidden_match.is_none() {
            hidden_match = spaces
                .candidate_paths(&item)
                .into_iter()
                .find(|candidate| candidate.is_found)
                .map(|candidate| (item, candidate));
        }
    }
    if let Some(found) = found {
        return Ok(found);
    }
    match hidden_match {
        Some((item, candidate)) => {
            let parent = item.id.to_string();
            let message = space_issue((id.as_str(), space.tier()), (&parent, candidate.space.tier()));
            let mut trail = trail.clone();
            trail.0.push(parent);
            Err(ChainError::SpaceViolation { message: message.unwrap_or_default(), trail })
        }
        None => {
            Err(ChainError::ExecutorNotFound { executor: text::one_line(executor), trail: trail.clone() })
        }
    }
}
