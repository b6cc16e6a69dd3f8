//! What a person sees before they agree that an agent has something signed: the item, what changed since it was signed
//! last, and what it asks for.

use std::path::Path;

use lillux::Digest;
use lillux::object_store::ObjectStore;
use rye_bundle::capabilities::BundleCapabilities;
use rye_bundle::contents::BundleFile;
use rye_item::space::SpaceTier;
use rye_item::text::{is_plainly_visible, is_unsafe, one_line, strip_controls};
use rye_item::{ItemRef, SignatureFormat};
use rye_space::{BundlePath, ItemFile};
use rye_trust::Subject;
use rye_trust::signature::FileLayout;

use super::SignTarget;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::sign;

/// Below the cache folder: contents that were signed here, by their hash.
const SIGNED_CONTENT_FOLDER: &str = "signed";
/// The largest content that is kept.
const MAX_STORED_BYTES: u64 = 1 << 20;
/// How long a question may be.
const MAX_PREVIEW_LINES: usize = 200;
const MAX_PREVIEW_BYTES: usize = 16 << 10;
/// Blanks in a row, and empty lines in a row, that a question shows.
const MAX_BLANKS: usize = 100;
const MAX_EMPTY_LINES: usize = 10;
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
    pub requests: Vec<String>,
    /// What changed since it was signed last, or the whole text.
    pub change: ContentChange,
    /// Why a question cannot show all of that: nothing may be agreed to then.
    pub hidden: Option<String>,
    /// The spaces whose item of the same id is hidden by this one.
    pub hides: Vec<String>,
}

/// How the content differs from what was signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentChange {
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
        let asks = if self.requests.is_empty() {
            "It asks for no paths, secrets, network or permissions beyond the standard sandbox.".to_owned()
        } else {
            format!(
                "It asks for:\n{}",
                self.requests.iter().map(|ask| format!("- {ask}\n")).collect::<String>()
            )
        };
        let change = match &self.change {
            ContentChange::Diff(diff) => format!("Changed since it was signed:\n{}", prefix_lines(diff)),
            ContentChange::New(text) => {
                format!("No earlier signed version is known. Its text:\n{}", prefix_lines(text))
            }
            ContentChange::Whole(text) => format!("Its text:\n{}", prefix_lines(text)),
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
    let clean_id = one_line(target.id);
    if sign::is_glob(target.id) {
        let message = "a pattern is not signed for an agent: the user would not see what is signed";
        return Err(Error::new(Code::ConsentNeeded, message)
            .hint("name one item at a time")
            .hint(format!("ask the user to run: rye sign {} '{clean_id}'", target.item_type)));
    }
    let item = ItemRef::parse(Some(target.item_type.as_str()), target.id)?;
    let (located, is_signed) = match target.destination {
        Some(_) => {
            // Only trusted items are copied: the user is not asked about others.
            engine.admit(engine.workspace.spaces.locate(&item, target.source)?)?;
            (engine.workspace.spaces.locate(&item, target.source)?, false)
        }
        None => {
            let located = sign::locate_signable(engine, &item, target.source)?;
            let is_signed = sign::is_signed(engine, &located)?;
            (located, is_signed)
        }
    };
    let change = match target.destination {
        Some(_) => ContentChange::Whole(plain(located.bytes())),
        None => content_change(engine, &located),
    };
    let mut review = SignReview {
        is_signed,
        path: located.path.display().to_string(),
        digest: Digest::of(located.bytes()),
        requests: requested_capabilities(&item, &located),
        change,
        hidden: None,
        hides: hides(engine, &item, target.destination.unwrap_or_else(|| located.space().tier())),
        item,
    };
    review.hidden = hidden(&review.to_text(), located.bytes());
    Ok(review)
}

/// The labels of lower spaces that have an item of this id.
fn hides(engine: &Engine, item: &ItemRef, tier: SpaceTier) -> Vec<String> {
    let places = engine.workspace.spaces.candidate_paths(item).into_iter().filter(|place| place.is_found);
    let lower = places.filter(|place| place.space.precedence() < tier.precedence());
    lower.map(|place| format!("{} space", place.space)).collect()
}

/// A text as it is shown.
fn plain(bytes: &[u8]) -> String {
    strip_controls(&String::from_utf8_lossy(bytes)).into_owned()
}

/// Why a question with this text would not show all that is in the file.
fn hidden(text: &str, bytes: &[u8]) -> Option<String> {
    let lines = text.lines().count();
    if text.len() > MAX_PREVIEW_BYTES || lines > MAX_PREVIEW_LINES {
        let length = text.len();
        return Some(format!(
            "its text does not fit into a question ({lines} lines, {length} bytes; {MAX_PREVIEW_LINES} and \
             {MAX_PREVIEW_BYTES} do)"
        ));
    }
    let Ok(content) = std::str::from_utf8(bytes) else {
        return Some("it is not UTF-8".to_owned());
    };
    let content = content.replace("\r\n", "\n");
    // What a terminal would not show is left out of the question, and may end a line for an interpreter.
    if content.chars().any(is_unsafe) {
        return Some("its text has control characters, which cannot be shown".to_owned());
    }
    if let Some(character) = content.chars().find(|character| !is_plainly_visible(*character)) {
        let number = u32::from(character);
        return Some(format!("its text has a character that may be invisible (U+{number:04X})"));
    }
    hides_by_blanks(&content)
        .then(|| "its text has long runs of spaces or empty lines, which could hide more text".to_owned())
}

/// Whether text stands so far to the right or below that it could be overlooked.
fn hides_by_blanks(content: &str) -> bool {
    let is_far =
        |line: &str| line.contains(&" ".repeat(MAX_BLANKS)) || line.contains(&"\t".repeat(MAX_BLANKS / 4));
    let gap = "\n".repeat(MAX_EMPTY_LINES + 1);
    let trimmed: Vec<&str> = content.trim_end().lines().map(str::trim_end).collect();
    trimmed.iter().any(|line| is_far(line)) || trimmed.join("\n").contains(&gap)
}

/// What the item asks for, as an installation would show it.
pub(crate) fn requested_capabilities(item: &ItemRef, located: &ItemFile) -> Vec<String> {
    let path = format!(".ai/{}/{}{}", item.item_type.folder(), item.id, located.extension);
    let Ok(path) = BundlePath::new(path) else { return Vec::new() };
    let file = BundleFile {
        path,
        kind: item.item_type.as_str(),
        item: Some(item.clone()),
        size: u64::try_from(located.bytes().len()).unwrap_or(u64::MAX),
        sha256: Digest::of(located.bytes()),
        signer: None,
        fields: located.fields().clone(),
        raw: located.parsed().fields.clone(),
    };
    let capabilities = BundleCapabilities::from_files(&[file]);
    let lines = capabilities
        .groups()
        .into_iter()
        .flat_map(|(word, capabilities)| capabilities.keys().map(move |what| format!("{word}: {what}")));
    lines.collect()
}

fn content_change(engine: &Engine, located: &ItemFile) -> ContentChange {
    let layout = located.format().map(|format| FileLayout::parse(located.bytes(), format));
    let content = layout.as_ref().map_or(located.bytes(), |layout| &located.bytes()[layout.content.clone()]);
    let signed = layout.as_ref().and_then(|layout| layout.signature.as_ref());
    // Whose signature it is, or for which place, says nothing about the text: all of it is shown.
    if signed.is_some_and(|signed| signed.hash == Digest::of(content)) {
        return ContentChange::Whole(plain(content));
    }
    match previous_content(engine, located) {
        Some(before) => {
            let (before, after) = (plain(&before), plain(content));
            let (diff, is_cut) =
                rye_tools::diff::unified_diff(located.item_ref().id.as_str(), &before, &after);
            // A diff cuts long lines, too.
            let is_long = |text: &str| text.lines().any(|line| line.len() > MAX_DIFF_LINE);
            match is_cut || is_long(&before) || is_long(&after) {
                true => ContentChange::Whole(after),
                false => ContentChange::Diff(diff),
            }
        }
        None => ContentChange::New(plain(content)),
    }
}

/// What the user signed last as this item, in this file: that which its signature line names.
pub(crate) fn previous_content(engine: &Engine, located: &ItemFile) -> Option<Vec<u8>> {
    let hash = recorded_hash(engine, located)?;
    signed_content_store(engine).get_blob(&hash).ok().flatten()
}

/// Whether the user signed this very content as this item, in this file.
pub(crate) fn is_signed_here(engine: &Engine, located: &ItemFile) -> bool {
    let Some(format) = located.format() else { return false };
    let content = &located.bytes()[FileLayout::parse(located.bytes(), format).content];
    recorded_hash(engine, located) == Some(Digest::of(content))
}

/// The hash of the signature line, if it is the user's own and was made for this item.
fn recorded_hash(engine: &Engine, located: &ItemFile) -> Option<Digest> {
    let layout = FileLayout::parse(located.bytes(), located.format()?);
    // Only the user's own signature names an earlier version; what cannot be read back, or was damaged, is none.
    let own = engine.workspace.own_key.as_ref()?;
    let signed = layout.signature.filter(|signed| own.verify(&signed.hash, &signed.signature))?;
    // A signature line can be put on any file: it names an earlier version of the item that was signed with it, and of no other.
    let marker = Digest::of(&signed_marker(located.item_ref(), &located.path, &signed.hash));
    matches!(signed_content_store(engine).get_blob(&marker), Ok(Some(_))).then_some(signed.hash)
}

/// Each line behind a margin, so that no line of an item passes for the question itself.
fn prefix_lines(text: &str) -> String {
    let lines = text.split(['\n', '\u{2028}', '\u{2029}']);
    lines.map(|line| format!("| {line}\n")).collect()
}

fn signed_content_store(engine: &Engine) -> ObjectStore {
    ObjectStore::new(engine.workspace.roots.cache.join(SIGNED_CONTENT_FOLDER), MAX_STORED_BYTES)
}

/// Keeps what was just signed, so that a later change can be shown. Without it the whole text is shown instead.
pub(crate) fn store_signed(
    engine: &Engine,
    item: &ItemRef,
    path: &Path,
    bytes: &[u8],
    format: &SignatureFormat,
) {
    let content = &bytes[FileLayout::parse(bytes, format).content];
    if u64::try_from(content.len()).is_ok_and(|length| length <= MAX_STORED_BYTES) {
        let store = signed_content_store(engine);
        let _ = store.put_blob(content);
        // An older release left it open to other users.
        let _ = lillux::file::set_mode(&engine.workspace.roots.cache.join(SIGNED_CONTENT_FOLDER), 0o700);
        let _ = store.put_blob(&signed_marker(item, path, &Digest::of(content)));
    }
}

/// What says that this content was signed as this item, in this file.
fn signed_marker(item: &ItemRef, path: &Path, hash: &Digest) -> Vec<u8> {
    format!("signed as {item}\n{}\n{hash}\n", path.display()).into_bytes()
}
