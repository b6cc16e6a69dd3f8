//! Names for lines that survive edits elsewhere in the file.
//!
//! The id of a line whose text is unique in its file comes from that text alone; lines that look alike get ids that
//! also depend on the whole file. A track, kept in the cache, carries ids over from one version of the file to the
//! next. Without the track an id can still only stand for a line with the same, unique text, or for nothing: losing
//! the cache never makes an id point at another line.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use lillux::Digest;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_LENGTH: usize = 7;
/// How many ids of vanished lines are remembered, so that they are not given to others.
const MAX_RETIRED: usize = 4096;
/// After this, fewer lines are recognised; those that are, are right.
const DIFF_TIMEOUT: Duration = Duration::from_secs(2);

/// The name of a line: `L` and seven letters or digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LineId(u64);

impl LineId {
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << (5 * ID_LENGTH)) - 1))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let letters = text.trim().strip_prefix(['L', 'l'])?;
        if letters.len() != ID_LENGTH {
            return None;
        }
        let mut bits = 0;
        for letter in letters.bytes() {
            let letter = letter.to_ascii_lowercase();
            let digit = ALPHABET.iter().position(|known| *known == letter)?;
            bits = (bits << 5) | digit as u64;
        }
        Some(Self(bits))
    }

    /// How many letters differ.
    pub(crate) fn distance(self, other: Self) -> usize {
        (0..ID_LENGTH)
            .filter(|position| (self.0 >> (5 * position)) & 31 != (other.0 >> (5 * position)) & 31)
            .count()
    }
}

impl fmt::Display for LineId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("L")?;
        for position in (0..ID_LENGTH).rev() {
            let digit = (self.0 >> (5 * position)) & 31;
            write!(formatter, "{}", char::from(ALPHABET[usize::try_from(digit).unwrap_or(0)]))?;
        }
        Ok(())
    }
}

/// The text of a line, in 64 bits.
pub(crate) fn content_hash(text: &str) -> u64 {
    first_bits(&Digest::of(text.as_bytes()))
}

fn first_bits(digest: &Digest) -> u64 {
    digest.as_bytes()[..8].iter().fold(0, |bits, byte| (bits << 8) | u64::from(*byte))
}

/// The id of a line that is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetiredId {
    pub(crate) id: LineId,
    /// Where it was, counted from 0.
    pub(crate) index: u32,
}

/// The ids of one version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Track {
    pub(crate) file: Digest,
    pub(crate) contents: Vec<u64>,
    pub(crate) ids: Vec<LineId>,
    pub(crate) retired: Vec<RetiredId>,
}

impl Track {
    /// Ids for a file nothing is known of.
    pub(crate) fn new(file: Digest, contents: Vec<u64>) -> Self {
        let empty = Self { file, contents: Vec::new(), ids: Vec::new(), retired: Vec::new() };
        let sources = vec![None; contents.len()];
        empty.carry_over(file, contents, &sources)
    }

    /// Ids for a version that was made elsewhere: lines are recognised by comparing both versions.
    pub(crate) fn sync(&self, file: Digest, contents: Vec<u64>) -> Self {
        let sources = match_lines(&self.contents, &contents);
        self.carry_over(file, contents, &sources)
    }

    /// Ids for a version that is known line by line: `kept` says which old line each new line is.
    pub(crate) fn carry_over(&self, file: Digest, contents: Vec<u64>, sources: &[Option<usize>]) -> Self {
        let mut ids: Vec<Option<LineId>> =
            sources.iter().map(|old| old.and_then(|index| self.ids.get(index).copied())).collect();
        let mut used: HashSet<LineId> = ids.iter().flatten().copied().collect();
        let mut retired: Vec<RetiredId> = self.retired.clone();
        retired.extend(
            self.ids
                .iter()
                .enumerate()
                .filter(|(_, id)| !used.contains(id))
                .map(|(index, id)| RetiredId { id: *id, index: u32::try_from(index).unwrap_or(u32::MAX) }),
        );
        retired.drain(..retired.len().saturating_sub(MAX_RETIRED));
        used.extend(retired.iter().map(|retired| retired.id));
        assign_ids(&mut ids, &mut used, &contents, &file);
        Self { file, contents, ids: ids.into_iter().flatten().collect(), retired }
    }

    /// Which line has the id.
    pub(crate) fn find(&self, id: LineId) -> Option<usize> {
        self.ids.iter().position(|known| *known == id)
    }
}

/// Gives an id to every line that has none.
fn assign_ids(ids: &mut [Option<LineId>], used: &mut HashSet<LineId>, contents: &[u64], file: &Digest) {
    if ids.iter().all(Option::is_some) {
        return;
    }
    let mut counts: HashMap<LineId, u32> = HashMap::with_capacity(contents.len());
    for content in contents {
        *counts.entry(LineId::from_bits(*content)).or_default() += 1;
    }
    let mut occurrences: HashMap<LineId, u32> = HashMap::new();
    for (id, content) in ids.iter_mut().zip(contents) {
        let plain = LineId::from_bits(*content);
        let is_unique = counts.get(&plain) == Some(&1);
        let occurrence = if is_unique {
            0
        } else {
            let occurrence = occurrences.entry(plain).or_default();
            *occurrence += 1;
            *occurrence
        };
        if id.is_some() {
            continue;
        }
        let mut candidate = if is_unique { plain } else { derive_id(*content, file, occurrence) };
        let mut attempt = 0;
        while !used.insert(candidate) {
            attempt += 1;
            candidate = derive_id(candidate.bits(), file, attempt);
        }
        *id = Some(candidate);
    }
}

fn derive_id(content: u64, file: &Digest, occurrence: u32) -> LineId {
    let pieces = [&content.to_be_bytes()[..], file.as_bytes(), &occurrence.to_be_bytes()];
    LineId::from_bits(first_bits(&Digest::of_pieces(pieces)))
}

/// For each new line, the old line it is, if any. Only lines with the same text are the same.
pub(crate) fn match_lines(old: &[u64], new: &[u64]) -> Vec<Option<usize>> {
    let mut sources = vec![None; new.len()];
    let head = old.iter().zip(new).take_while(|(left, right)| left == right).count();
    let tail = old[head..]
        .iter()
        .rev()
        .zip(new[head..].iter().rev())
        .take_while(|(left, right)| left == right)
        .count();
    for (index, slot) in sources.iter_mut().enumerate().take(head) {
        *slot = Some(index);
    }
    for offset in 1..=tail {
        sources[new.len() - offset] = Some(old.len() - offset);
    }
    let (old_middle, new_middle) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    if old_middle.is_empty() || new_middle.is_empty() {
        return sources;
    }
    let deadline = Instant::now().checked_add(DIFF_TIMEOUT);
    for operation in capture_diff_slices_deadline(Algorithm::Myers, old_middle, new_middle, deadline) {
        if let DiffOp::Equal { old_index, new_index, len } = operation {
            for step in 0..len {
                sources[head + new_index + step] = Some(head + old_index + step);
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(lines: &[&str]) -> (Digest, Vec<u64>) {
        (Digest::of(lines.join("\n").as_bytes()), lines.iter().map(|line| content_hash(line)).collect())
    }

    fn fresh(lines: &[&str]) -> Track {
        let (file, contents) = contents(lines);
        Track::new(file, contents)
    }

    #[test]
    fn id_round_trips() {
        let id = LineId::from_bits(content_hash("hello"));
        assert_eq!(LineId::parse(&id.to_string()), Some(id));
        assert_eq!(LineId::parse(&id.to_string().to_uppercase()), Some(id));
        assert_eq!(id.to_string().len(), 8);
        for bad in ["", "L", "12", "Labc", "Luuuuuuu", "Lééééééé", "L00000000"] {
            assert_eq!(LineId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn unique_line_id_needs_no_track() {
        let (before, after) = (fresh(&["a", "b", "", "c", ""]), fresh(&["x", "a", "", "c", "", "y"]));
        assert_eq!((before.ids[0], before.ids[3]), (after.ids[1], after.ids[3]));
        assert!(after.ids.iter().all(|id| *id != before.ids[2] && *id != before.ids[4]));
    }

    #[test]
    fn retired_id_is_not_reused() {
        let first = fresh(&["a", "b"]);
        let (file, lines) = contents(&["a"]);
        let second = first.sync(file, lines);
        assert_eq!(second.retired, [RetiredId { id: first.ids[1], index: 1 }]);
        let (file, lines) = contents(&["b", "a"]);
        let third = second.sync(file, lines);
        assert_eq!(third.ids[1], first.ids[0]);
        assert_ne!(third.ids[0], first.ids[1]);
    }

    proptest! {
        #[test]
        fn ids_are_unique_and_bound_to_their_text(versions in prop::collection::vec(prop::collection::vec(0_u64..6, 0..12), 1..6)) {
            let mut track: Option<Track> = None;
            for version in versions {
                let file = Digest::of(format!("{version:?}").as_bytes());
                let next = match &track {
                    None => Track::new(file, version.clone()),
                    Some(track) => track.sync(file, version.clone()),
                };
                prop_assert_eq!(next.ids.len(), version.len());
                prop_assert_eq!(next.ids.iter().collect::<HashSet<_>>().len(), version.len());
                if let Some(track) = &track {
                    for (index, id) in track.ids.iter().enumerate() {
                        if let Some(place) = next.find(*id) {
                            prop_assert_eq!(next.contents[place], track.contents[index]);
                        } else {
                            prop_assert!(next.retired.iter().any(|retired| retired.id == *id));
                        }
                    }
                }
                track = Some(next);
            }
        }

        #[test]
        fn matched_lines_are_equal_and_ordered(old in prop::collection::vec(0_u64..4, 0..20), new in prop::collection::vec(0_u64..4, 0..20)) {
            let kept = match_lines(&old, &new);
            let mut last = None;
            for (place, source) in kept.iter().enumerate() {
                if let Some(source) = source {
                    prop_assert_eq!(old[*source], new[place]);
                    prop_assert!(last.is_none_or(|last| last < *source));
                    last = Some(*source);
                }
            }
        }
    }
}
