//! Whose signature line an item has, before it gets another one.

use lillux::Fingerprint;
use rye_space::ItemFile;
use rye_trust::Subject;
use rye_trust::coverage::content_hash;
use rye_trust::signature::FileLayout;
use serde::Serialize;

use crate::engine::Engine;

/// An item with the signature line of another key.
#[derive(Clone, Debug, Serialize)]
pub struct LeftItem {
    /// The item.
    pub item: String,
    /// The key that the line names.
    pub fingerprint: Fingerprint,
    /// Whether the item was changed since.
    #[serde(rename = "changed")]
    pub is_changed: bool,
}

/// What an item's signature line says, true or not.
pub(super) struct NamedSigner {
    pub(super) fingerprint: Fingerprint,
    /// Whether the line is of other bytes.
    pub(super) is_changed: bool,
}

pub(super) fn named_signer(located: &ItemFile) -> Option<NamedSigner> {
    let layout = FileLayout::parse(located.bytes(), located.format()?);
    let signature = layout.signature.as_ref()?;
    let is_changed = content_hash(located.bytes(), &layout) != signature.hash;
    Some(NamedSigner { fingerprint: signature.fingerprint, is_changed })
}

/// Whether an item's signature line names another key than the user's own.
pub(super) fn has_line_of_another(engine: &Engine, located: &ItemFile) -> bool {
    let own = engine.workspace.own_key.as_ref().map(lillux::PublicKey::fingerprint);
    named_signer(located).is_some_and(|signer| Some(signer.fingerprint) != own)
}
