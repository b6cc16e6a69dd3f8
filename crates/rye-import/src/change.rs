//! What an import changes: what the source has now, against what it had at the last import and what the item is now.

use lillux_hash::Digest;
use rye_item::ItemType;
use serde::Serialize;

use crate::plan::PlannedItem;
use crate::provenance::ImportedItem;

/// What becomes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemChange {
    /// It is made.
    Create,
    /// It stays: the source has not changed since the last import, or says what the item says.
    Unchanged,
    /// It follows the source.
    Update,
    /// Both changed: the item is kept as it is.
    Keep,
    /// Both changed, and the source's was asked for.
    Replace,
    /// Another item has its id.
    Occupied,
}

impl ItemChange {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "new",
            Self::Unchanged => "unchanged",
            Self::Update => "update",
            Self::Keep => "kept",
            Self::Replace => "replace",
            Self::Occupied => "occupied",
        }
    }

    /// Whether the item's file is written.
    #[must_use]
    pub fn is_written(self) -> bool {
        match self {
            Self::Create | Self::Update | Self::Replace => true,
            Self::Unchanged | Self::Keep | Self::Occupied => false,
        }
    }
}

/// Decides what becomes of an item that is there or not. `takes_theirs`: the source's wins where both changed.
#[must_use]
pub fn decide_change(planned: &PlannedItem, existing: Option<&str>, takes_theirs: bool) -> ItemChange {
    let Some(existing) = existing else { return ItemChange::Create };
    let item_type: ItemType = planned.item.item_type;
    let Some(current) = ImportedItem::read(item_type, existing) else { return ItemChange::Occupied };
    let (old, new) = (&current.provenance, &planned.provenance);
    if (old.format, &old.name, &old.plugin) != (new.format, &new.name, &new.plugin) {
        return ItemChange::Occupied;
    }
    // What was fetched from one repository follows neither another one nor a folder, which may hold a copy of any; and what
    // came from a folder does not follow a repository.
    if old.origin != new.origin {
        return ItemChange::Occupied;
    }
    if old.sha256 == new.sha256 && old.files == new.files {
        return ItemChange::Unchanged;
    }
    // The source has what the item is exported as.
    let exported = Digest::of(current.source_text().as_bytes()).to_hex();
    if exported == new.sha256 && old.files == new.files {
        return ItemChange::Unchanged;
    }
    match (current.is_untouched, takes_theirs) {
        (true, _) => ItemChange::Update,
        (false, true) => ItemChange::Replace,
        (false, false) => ItemChange::Keep,
    }
}
