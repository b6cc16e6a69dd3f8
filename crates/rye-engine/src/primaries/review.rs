//! What a person sees before they agree that an agent has something signed: the item, what changed since it was signed
//! last, and what it asks for.

use lillux::Digest;
use lillux::store::Store;
use rye_bundle::capabilities::Capabilities;
use rye_bundle::contents::File;
use rye_item::text::{one_line, without_controls};
use rye_item::{ItemRef, SignatureFormat};
use rye_space::{FilePath, Located};
use rye_trust::Subject;
use rye_trust::signature::Layout;

use super::SignTarget;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::sign;

/// Below the cache folder: contents that were signed here, by their hash.
const SIGNED_FOLDER: &str = "signed";
/// The largest content that is kept.
const MAX_KEPT_BYTES: u64 = 1 << 20;
/// How much of a diff or text a question shows.
const MAX_SHOWN_LINES: usize = 200;
const MAX_SHOWN_BYTES: usize = 16 << 10;

/// What a person is shown of an item that is to be signed.
#[derive(Clone, Debug)]
pub struct SignReview {
    /// The item.
    pub item: ItemRef,
    /// The file that is signed or copied.
    pub path: String,
    /// The digest of its bytes: a yes is bound to it.
    pub digest: Digest,
    /// It is signed with the user's key already: signing changes nothing.
    pub is_signed: bool,
    /// What it asks for, a line each.
    pub asks: Vec<String>,
    /// What changed since it was signed last, or the whole text.
    pub change: Change,
}

/// How the content differs from what was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The lines that differ.
    Diff(String),
    /// The whole text: no earlier signed version is known.
    New(String),
    /// It is as it was signed.
    Nothing,
}

impl SignReview {
    /// The review as text for a question.
    #[must_use]
    pub fn to_text(&self) -> String {
        let asks = if self.asks.is_empty() {
            "It asks for no paths, secrets, network or permissions beyond the standard sandbox.".to_owned()
        } else {
            format!("It asks for:\n{}", self.asks.iter().map(|ask| format!("- {ask}\n")).collect::<String>())
        };
        let change = match &self.change {
            Change::Diff(diff) => format!("Changed since it was signed:\n{}", margined(diff)),
            Change::New(text) => format!("No earlier signed version is known. Its text:\n{}", margined(text)),
            Change::Nothing => "Its text is as it was signed.".to_owned(),
        };
        format!("File: {}\n{}\n{change}", one_line(&self.path), asks.trim_end())
    }
}

/// What a person is shown before `target` is signed or copied.
///
/// # Errors
/// When it names several items, is not found, or could not be signed anyway.
pub fn review(engine: &Engine, target: &SignTarget<'_>) -> Result<SignReview> {
    let shown = one_line(target.id);
    if sign::is_glob(target.id) {
        let message = "a pattern is not signed for an agent: the user would not see what is signed";
        return Err(Error::new(Code::ConsentNeeded, message)
            .hint("name one item at a time")
            .hint(format!("the user may type: rye sign {} '{shown}'", target.item_type)));
    }
    let item = sign::parse_item(Some(target.item_type.as_str()), target.id)?;
    let (located, is_signed) = match target.destination {
        Some(_) => {
            // Only trusted items are copied: the user is not asked about others.
            engine.admit(engine.workspace.spaces.locate(&item, target.source)?)?;
            (engine.workspace.spaces.locate(&item, target.source)?, false)
        }
        None => {
            let located = sign::signable(engine, &item, target.source)?;
            let is_signed = sign::is_signed(engine, &located)?;
            (located, is_signed)
        }
    };
    Ok(SignReview {
        is_signed,
        path: located.path.display().to_string(),
        digest: Digest::of(located.bytes()),
        asks: asks(&item, &located),
        change: change(engine, &located),
        item,
    })
}

/// What the item asks for, as an installation would show it.
fn asks(item: &ItemRef, located: &Located) -> Vec<String> {
    let path = format!(".ai/{}/{}{}", item.item_type.folder(), item.id, located.extension);
    let Ok(path) = FilePath::new(path) else { return Vec::new() };
    let file = File {
        path,
        kind: item.item_type.as_str(),
        item: Some(item.clone()),
        size: u64::try_from(located.bytes().len()).unwrap_or(u64::MAX),
        sha256: Digest::of(located.bytes()),
        signer: None,
        fields: located.fields().clone(),
        raw: located.parsed().fields.clone(),
    };
    let asked = Capabilities::of(&[file]);
    let lines = asked
        .groups()
        .into_iter()
        .flat_map(|(word, asked)| asked.keys().map(move |what| format!("{word}: {what}")));
    lines.collect()
}

fn change(engine: &Engine, located: &Located) -> Change {
    let text = |bytes: &[u8]| without_controls(&String::from_utf8_lossy(bytes)).into_owned();
    let layout = located.format().map(|format| Layout::of(located.bytes(), format));
    let content = layout.as_ref().map_or(located.bytes(), |layout| &located.bytes()[layout.content.clone()]);
    let signed = layout.as_ref().and_then(|layout| layout.signature.as_ref());
    if signed.is_some_and(|signed| signed.hash == Digest::of(content)) {
        return Change::Nothing;
    }
    // Only the user's own signature names an earlier version; what cannot be read back, or was damaged, is none.
    let own = engine.workspace.own.as_ref();
    let signed = signed.filter(|signed| own.is_some_and(|own| own.verifies(&signed.hash, &signed.signature)));
    let before = signed.and_then(|signed| store(engine).blob(&signed.hash).ok().flatten());
    match before {
        Some(before) => {
            let (before, after) = (text(&before), text(content));
            Change::Diff(cut(&rye_tools::diff::unified(located.item_ref().id.as_str(), &before, &after).0))
        }
        None => Change::New(cut(&text(content))),
    }
}

/// Each line behind a margin, so that no line of an item passes for the question itself.
fn margined(text: &str) -> String {
    let lines = text.split(['\n', '\u{2028}', '\u{2029}']);
    lines.map(|line| format!("| {line}\n")).collect()
}

/// The first lines, with a mark where the rest is left out.
fn cut(text: &str) -> String {
    let mut shown = String::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if number >= MAX_SHOWN_LINES || shown.len() + line.len() > MAX_SHOWN_BYTES {
            shown.push_str("[the rest is not shown: read the file before you agree]\n");
            break;
        }
        shown.push_str(line);
    }
    shown
}

fn store(engine: &Engine) -> Store {
    Store::new(engine.workspace.roots.cache.join(SIGNED_FOLDER), MAX_KEPT_BYTES)
}

/// Keeps what was just signed, so that a later change can be shown. Without it the whole text is shown instead.
pub(crate) fn keep_signed(engine: &Engine, bytes: &[u8], format: &SignatureFormat) {
    let content = &bytes[Layout::of(bytes, format).content];
    if u64::try_from(content.len()).is_ok_and(|length| length <= MAX_KEPT_BYTES) {
        let _ = store(engine).put_blob(content);
    }
}
