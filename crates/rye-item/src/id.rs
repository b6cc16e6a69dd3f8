//! Item ids and types. An id is checked before the file system is touched; nothing else may name an item.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const MAX_SEGMENT_BYTES: usize = 128;
const MAX_ID_BYTES: usize = 512;

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {} id `{}`: {reason}", if *.is_bundle { "bundle" } else { "item" }, shorten(.id))]
pub struct InvalidId {
    /// Whether it should have been the id of a bundle, not of an item.
    pub is_bundle: bool,
    /// The text as given.
    pub id: String,
    /// The rule it breaks.
    pub reason: &'static str,
}

impl InvalidId {
    /// What such an id looks like.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        if self.is_bundle {
            "a bundle id is one name, such as `team-tools`"
        } else {
            "an id is a path below the type's folder without extension, such as `team/deploy`"
        }
    }

    /// The id of the item whose path was given: `.ai/tools/team/deploy.py` is `team/deploy`.
    #[must_use]
    pub fn id_of_path(&self) -> Option<ItemId> {
        let (before, below) = self.id.rsplit_once(".ai/")?;
        let is_root = before.is_empty() || before.ends_with('/');
        let (folder, path) = below.split_once('/').filter(|_| is_root && !self.is_bundle)?;
        ItemType::ALL.into_iter().find(|item_type| item_type.folder() == folder)?;
        let (stem, extension) = path.rsplit_once('.')?;
        (!extension.contains('/')).then(|| ItemId::new(stem).ok()).flatten()
    }
}

fn shorten(id: &str) -> String {
    let clean = crate::text::strip_controls(id);
    match clean.char_indices().nth(80) {
        Some((cut, _)) => format!("{}…", &clean[..cut]),
        None => clean.into_owned(),
    }
}

/// A slash-separated path below a type's folder, without extension.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ItemId(String);

impl ItemId {
    /// Checks `text` and makes it an id.
    ///
    /// # Errors
    /// When a segment is empty, too long or has a character that is not allowed.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
        let text = text.into();
        match violated_rule(&text) {
            None => Ok(Self(text)),
            Some(reason) => Err(InvalidId { is_bundle: false, id: text, reason }),
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Everything before the last segment; empty for an item at the root.
    #[must_use]
    pub fn category(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(category, _)| category)
    }

    /// Whether this id lies in `prefix`, compared by whole segments; the empty prefix holds every id.
    #[must_use]
    pub fn is_within(&self, prefix: &str) -> bool {
        let prefix = prefix.trim_matches('/');
        prefix.is_empty()
            || self.0 == prefix
            || self.0.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
    }
}

fn violated_rule(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > MAX_ID_BYTES {
        return Some("it is longer than 512 bytes");
    }
    text.split('/').find_map(|segment| {
        let mut bytes = segment.bytes();
        match bytes.next() {
            None => Some("it has an empty segment"),
            Some(_) if segment.len() > MAX_SEGMENT_BYTES => Some("a segment is longer than 128 bytes"),
            Some(first) if !(first.is_ascii_alphanumeric() || first == b'_') => {
                Some("a segment must begin with a letter, a digit or `_`")
            }
            Some(_) => bytes
                .any(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')))
                .then_some("only letters, digits, `.`, `_`, `-` and `/` are allowed"),
        }
    })
}

impl fmt::Display for ItemId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for ItemId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

/// What kind of item it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemType {
    /// A workflow for a model.
    Directive,
    /// A script with metadata.
    Tool,
    /// Something to know.
    Knowledge,
    /// Settings: signed and verified, never executed or searched.
    Config,
}

impl ItemType {
    /// All types, in the order they are shown.
    pub const ALL: [Self; 4] = [Self::Directive, Self::Tool, Self::Knowledge, Self::Config];
    /// The types that can be searched and loaded.
    pub const SEARCHABLE: [Self; 3] = [Self::Directive, Self::Tool, Self::Knowledge];

    /// The type's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directive => "directive",
            Self::Tool => "tool",
            Self::Knowledge => "knowledge",
            Self::Config => "config",
        }
    }

    /// The folder below `.ai/` that holds items of this type.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Directive => "directives",
            Self::Tool => "tools",
            Self::Knowledge => "knowledge",
            Self::Config => "config",
        }
    }

    /// The type whose items live in `folder`.
    #[must_use]
    pub fn from_folder(folder: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|item_type| item_type.folder() == folder)
    }
}

impl fmt::Display for ItemType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The text is not an item type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown item type `{}`", shorten(.0))]
pub struct UnknownItemType(pub String);

impl FromStr for ItemType {
    type Err = UnknownItemType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|item_type| item_type.as_str() == text || item_type.folder() == text)
            .ok_or_else(|| UnknownItemType(text.to_owned()))
    }
}

/// An item named by type and id: `tool:rye/bash`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemRef {
    /// Its type.
    pub item_type: ItemType,
    /// Its id.
    pub id: ItemId,
}

impl ItemRef {
    /// The item `id` of type `item_type`.
    #[must_use]
    pub fn new(item_type: ItemType, id: ItemId) -> Self {
        Self { item_type, id }
    }

    /// Whether it is a document that says whose a key is, or that one is revoked: files of config that are no items.
    #[must_use]
    pub fn is_key_document(&self) -> bool {
        self.item_type == ItemType::Config && self.id.is_within("keys")
    }

    /// Splits `tool:rye/bash` into type and id; `None` when there is no type before a colon.
    #[must_use]
    pub fn split_canonical(text: &str) -> Option<(ItemType, &str)> {
        let (item_type, id) = text.split_once(':')?;
        Some((item_type.parse().ok()?, id))
    }

    /// Reads `TYPE ID` or `type:id` as one item. A type given twice must be the same.
    ///
    /// # Errors
    /// When the type is missing or unknown, or the id is not valid.
    pub fn parse(item_type: Option<&str>, id: &str) -> Result<Self, ItemRefError> {
        let (item_type, id) = match (item_type, Self::split_canonical(id)) {
            (None, Some((item_type, id))) => (item_type, id),
            (Some(word), Some((item_type, id))) if word == item_type.as_str() => (item_type, id),
            (Some(word), _) => (word.parse()?, id),
            (None, None) => return Err(ItemRefError::MissingType(id.to_owned())),
        };
        Ok(Self::new(item_type, ItemId::new(id)?))
    }
}

/// Why a text is not an item.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ItemRefError {
    /// Neither a type nor `type:` before the id.
    #[error("missing or unknown item type in `{}`", shorten(.0))]
    MissingType(String),
    /// The type is unknown.
    #[error(transparent)]
    UnknownType(#[from] UnknownItemType),
    /// The id is not valid.
    #[error(transparent)]
    InvalidId(#[from] InvalidId),
}

impl fmt::Display for ItemRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.item_type, self.id)
    }
}

/// Whether a text is a pattern of ids, not an id.
#[must_use]
pub fn is_glob(id: &str) -> bool {
    id.contains(['*', '?', '[', '{'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_that_leave_their_folder_are_refused() {
        for bad in ["", "..", "a/../b", "/a", "a/", "a//b", "a\\b", "a\0", ".a", "-a", "a b", "é", "a/./b"] {
            assert!(ItemId::new(bad).is_err(), "{bad:?}");
        }
        assert!(ItemId::new("x".repeat(129)).is_err());
        assert!(ItemId::new(format!("{}a", "abc/".repeat(128))).is_err());
    }

    #[test]
    fn paths_of_items_name_their_ids() {
        let id = |text: &str| ItemId::new(text).err().and_then(|error| error.id_of_path()).map(|id| id.0);
        assert_eq!(id(".ai/tools/team/deploy.py").as_deref(), Some("team/deploy"));
        assert_eq!(id("./shop/.ai/directives/a.md").as_deref(), Some("a"));
        for other in
            [".ai/config/../a.py", ".ai/nothing/a.py", "x.ai/tools/a b.py", ".ai/tools/a", ".ai/tools/.a.py"]
        {
            assert_eq!(id(other), None, "{other}");
        }
    }

    #[test]
    fn ids_of_published_items_are_allowed() {
        for good in ["init", "rye/core/bundler/__init__", "a/x.config-schema", "rye/file-system/read", "9a"] {
            assert_eq!(ItemId::new(good).map(|id| id.to_string()), Ok(good.to_owned()));
        }
    }

    #[test]
    fn prefix_matches_whole_segments() {
        let id = |text: &str| ItemId::new(text).expect("valid id");
        assert!(id("rye/core/x").is_within("rye/core"));
        assert!(id("rye/core").is_within("rye/core/"));
        assert!(!id("rye/corex").is_within("rye/core"));
        assert!(id("anything").is_within(""));
    }

    #[test]
    fn canonical_names_split_into_type_and_id() {
        assert_eq!(ItemRef::split_canonical("tool:rye/bash"), Some((ItemType::Tool, "rye/bash")));
        assert_eq!(ItemRef::split_canonical("rye/bash"), None);
        assert_eq!(ItemRef::split_canonical("nothing:rye/bash"), None);
    }

    #[test]
    fn items_are_read_from_type_and_id() {
        let bash = ItemRef::new(ItemType::Tool, ItemId::new("rye/bash").expect("an id"));
        for (item_type, text) in
            [(Some("tool"), "rye/bash"), (None, "tool:rye/bash"), (Some("tool"), "tool:rye/bash")]
        {
            assert_eq!(ItemRef::parse(item_type, text), Ok(bash.clone()), "{item_type:?} {text}");
        }
        let error = |item_type, text| ItemRef::parse(item_type, text).expect_err("refused").to_string();
        assert_eq!(error(None, "rye/bash"), "missing or unknown item type in `rye/bash`");
        assert_eq!(error(Some("nothing"), "rye/bash"), "unknown item type `nothing`");
        assert!(error(Some("knowledge"), "tool:rye/bash").starts_with("invalid item id"));
    }

    /// Any text, and texts made of the characters that ids and escapes from folders are made of.
    fn any_text() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[a-zA-Z0-9_./\\\\\\-]{0,24}",
            "([a-z0-9_]{1,3}|[.]{1,3}|[/\\\\ \0-]){0,12}",
            "([A-Za-z0-9_][A-Za-z0-9._-]{0,130}/){0,5}[A-Za-z0-9_][A-Za-z0-9._-]{0,130}",
        ]
    }

    /// An id by its definition.
    fn any_id() -> impl Strategy<Value = String> {
        let segment = "[A-Za-z0-9_][A-Za-z0-9._-]{0,60}";
        prop::collection::vec(segment, 1..8).prop_map(|segments| segments.join("/"))
    }

    fn any_type() -> impl Strategy<Value = ItemType> {
        prop::sample::select(&ItemType::ALL)
    }

    proptest! {
        #[test]
        fn accepted_ids_are_safe_paths(text in any_text()) {
            if let Ok(id) = ItemId::new(text.clone()) {
                prop_assert_eq!(id.as_str(), &text);
                prop_assert!(!text.starts_with('/') && !text.ends_with('/'));
                prop_assert!(!text.contains(['\0', '\\', ':', ' ', '\n', '\r']));
                prop_assert!(text.is_ascii() && text.len() <= 512);
                for segment in text.split('/') {
                    prop_assert!(!segment.is_empty() && !segment.starts_with(['.', '-']), "{}", segment);
                    prop_assert!(segment.len() <= 128);
                }
                let path = std::path::Path::new(&text);
                let is_plain = |part| matches!(part, std::path::Component::Normal(_));
                prop_assert!(path.components().all(is_plain));
            }
        }

        #[test]
        fn valid_ids_round_trip(text in any_id(), item_type in any_type()) {
            let id: ItemId = text.parse().expect("valid by definition");
            prop_assert_eq!(id.to_string().parse(), Ok(id.clone()));
            let item = ItemRef::new(item_type, id.clone());
            let shown = item.to_string();
            let (back_type, back_id) = ItemRef::split_canonical(&shown).expect("type and id");
            prop_assert_eq!(ItemRef::new(back_type, back_id.parse().expect("own id")), item);
            prop_assert!(id.is_within(id.category()) && id.is_within(id.as_str()));
            let joined = [id.category(), id.name()].join("/");
            prop_assert_eq!(joined.trim_start_matches('/'), id.as_str());
        }

        #[test]
        fn one_forbidden_character_anywhere_is_refused(
            text in any_id(),
            place in any::<prop::sample::Index>(),
            bad in r"[^A-Za-z0-9._/-]",
        ) {
            let mut broken = text;
            broken.insert_str(place.index(broken.len() + 1), &bad);
            prop_assert!(ItemId::new(broken).is_err());
        }

        #[test]
        fn bundle_id_is_one_item_id_segment(text in any_text()) {
            let bundle = crate::space::BundleId::new(text.clone());
            prop_assert_eq!(bundle.is_ok(), ItemId::new(text.clone()).is_ok() && !text.contains('/'));
            if let Ok(bundle) = bundle {
                prop_assert_eq!(crate::space::BundleId::new(bundle.to_string()), Ok(bundle));
            }
        }

        #[test]
        fn errors_show_no_control_characters(text in any_text()) {
            if let Err(refusal) = ItemId::new(text) {
                let shown = refusal.to_string();
                prop_assert!(!shown.chars().any(|character| character.is_control() && !matches!(character, '\n' | '\t')));
                prop_assert!(shown.chars().count() < 200);
            }
        }
    }
}
