//! What a person sees before they agree that an agent has something signed: the item, what changed since it was signed
//! last, and what it asks for.

use lillux::Digest;
use lillux::store::Store;
use rye_bundle::capabilities::Capabilities;
use rye_bundle::contents::File;
use rye_item::space::Tier;
use rye_item::text::{is_unsafe, one_line, without_controls};
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
/// How long a question may be.
const MAX_SHOWN_LINES: usize = 200;
const MAX_SHOWN_BYTES: usize = 16 << 10;
/// The longest line that a diff shows whole.
const MAX_DIFF_LINE: usize = 400;

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
    /// Why a question cannot show all of that: nothing may be agreed to then.
    pub hidden: Option<String>,
    /// The spaces whose item of the same id is hidden by this one.
    pub hides: Vec<String>,
}

/// How the content differs from what was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The lines that differ.
    Diff(String),
    /// The whole text: no earlier signed version is known.
    New(String),
    /// The whole text: it is copied, or its changes are too long to be shown line by line.
    Whole(String),
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
            Change::Whole(text) => format!("Its text:\n{}", margined(text)),
        };
        let hides = match self.hides.is_empty() {
            true => "It hides no other item.".to_owned(),
            false => format!("It hides {} of: {}", self.item, self.hides.join(", ")),
        };
        format!("File: {}\n{hides}\n{}\n{change}", one_line(&self.path), asks.trim_end())
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
    let change = match target.destination {
        Some(_) => Change::Whole(plain(located.bytes())),
        None => change(engine, &located),
    };
    let mut review = SignReview {
        is_signed,
        path: located.path.display().to_string(),
        digest: Digest::of(located.bytes()),
        asks: asks(&item, &located),
        change,
        hidden: None,
        hides: hides(engine, &item, target.destination.unwrap_or_else(|| located.space().tier())),
        item,
    };
    review.hidden = hidden(&review.to_text(), located.bytes());
    Ok(review)
}

/// The labels of lower spaces that have an item of this id.
fn hides(engine: &Engine, item: &ItemRef, tier: Tier) -> Vec<String> {
    let places = engine.workspace.spaces.places(item).into_iter().filter(|place| place.is_found);
    let lower = places.filter(|place| place.space.precedence() < tier.precedence());
    lower.map(|place| format!("{} space", place.space)).collect()
}

/// A text as it is shown.
fn plain(bytes: &[u8]) -> String {
    without_controls(&String::from_utf8_lossy(bytes)).into_owned()
}

/// Why a question with this text would not show all that is in the file.
fn hidden(text: &str, bytes: &[u8]) -> Option<String> {
    let lines = text.lines().count();
    if text.len() > MAX_SHOWN_BYTES || lines > MAX_SHOWN_LINES {
        let length = text.len();
        return Some(format!(
            "its text does not fit into a question ({lines} lines, {length} bytes; {MAX_SHOWN_LINES} and \
             {MAX_SHOWN_BYTES} do)"
        ));
    }
    let Ok(content) = std::str::from_utf8(bytes) else {
        return Some("it is not UTF-8".to_owned());
    };
    // What a terminal would not show is left out of the question, and may end a line for an interpreter.
    let is_hidden = content.replace("\r\n", "\n").chars().any(is_unsafe);
    is_hidden.then(|| "its text holds control characters, which cannot be shown".to_owned())
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
    let layout = located.format().map(|format| Layout::of(located.bytes(), format));
    let content = layout.as_ref().map_or(located.bytes(), |layout| &located.bytes()[layout.content.clone()]);
    let signed = layout.as_ref().and_then(|layout| layout.signature.as_ref());
    // Whose signature it is, or for which place, says nothing about the text: all of it is shown.
    if signed.is_some_and(|signed| signed.hash == Digest::of(content)) {
        return Change::Whole(plain(content));
    }
    // Only the user's own signature names an earlier version; what cannot be read back, or was damaged, is none.
    let own = engine.workspace.own.as_ref();
    let signed = signed.filter(|signed| own.is_some_and(|own| own.verifies(&signed.hash, &signed.signature)));
    let before = signed.and_then(|signed| store(engine).blob(&signed.hash).ok().flatten());
    match before {
        Some(before) => {
            let (before, after) = (plain(&before), plain(content));
            let (diff, is_cut) = rye_tools::diff::unified(located.item_ref().id.as_str(), &before, &after);
            // A diff cuts long lines, too.
            let is_long = |text: &str| text.lines().any(|line| line.len() > MAX_DIFF_LINE);
            match is_cut || is_long(&before) || is_long(&after) {
                true => Change::Whole(after),
                false => Change::Diff(diff),
            }
        }
        None => Change::New(plain(content)),
    }
}

/// Each line behind a margin, so that no line of an item passes for the question itself.
fn margined(text: &str) -> String {
    let lines = text.split(['\n', '\u{2028}', '\u{2029}']);
    lines.map(|line| format!("| {line}\n")).collect()
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
