//! The file of an item for people to look at, with what of it the signature covers.

use std::path::PathBuf;

use rye_item::ItemRef;
use rye_item::space::SpaceTier;
use rye_trust::signature::FileLayout;
use rye_trust::{Coverage, Subject, verify::evaluate};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::Result;

/// Bytes of a file that are shown.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// What stands on some lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceRangeKind {
    /// The signature covers them.
    Signed,
    /// The signature itself.
    Signature,
    /// No valid signature covers them.
    Unsigned,
}

/// Lines, counted from 1, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SourceRange {
    /// What they are.
    pub kind: SourceRangeKind,
    /// The first.
    pub first: usize,
    /// The last.
    pub last: usize,
}

/// The file of an item.
#[derive(Clone, Debug, Serialize)]
pub struct ItemSource {
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// What is in it, to look at.
    pub text: String,
    /// Whether its end is missing.
    pub is_truncated: bool,
    /// What each of its lines is.
    pub ranges: Vec<SourceRange>,
}

/// Shows the file of an item, trusted or not.
///
/// # Errors
/// When no space has it or it cannot be read.
pub fn source(engine: &Engine, item: &ItemRef, from: Option<SpaceTier>) -> Result<ItemSource> {
    let located = engine.locate(item, from)?;
    let report = evaluate(&located, &engine.workspace.keys);
    let bytes = located.bytes();
    let signature = located.format().map(|format| FileLayout::parse(bytes, format).line).unwrap_or_default();
    let end = bytes.len().min(MAX_SOURCE_BYTES);
    let mut ranges: Vec<SourceRange> = Vec::new();
    let mut start = 0;
    for (index, line) in bytes[..end].split_inclusive(|byte| *byte == b'\n').enumerate() {
        let (from, to) = (start, start + line.len());
        start = to;
        let is_within = |range: &std::ops::Range<usize>| range.start < to && from < range.end;
        let kind = if is_within(&signature) {
            SourceRangeKind::Signature
        } else if report.coverage == Coverage::None || report.uncovered.iter().any(is_within) {
            SourceRangeKind::Unsigned
        } else {
            SourceRangeKind::Signed
        };
        match ranges.last_mut().filter(|range| range.kind == kind) {
            Some(range) => range.last = index + 1,
            None => ranges.push(SourceRange { kind, first: index + 1, last: index + 1 }),
        }
    }
    Ok(ItemSource {
        path: located.path.clone(),
        text: String::from_utf8_lossy(&bytes[..end]).into_owned(),
        is_truncated: end < bytes.len(),
        ranges,
    })
}
