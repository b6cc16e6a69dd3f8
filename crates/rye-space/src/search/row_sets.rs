//! Which rows match an expression, kept for words that very many items have: counting those that match several of them
//! then reads no row of the index again.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::Connection;

/// How many bytes of sets are kept.
const MAX_BYTES: usize = 16 << 20;
const BITS: usize = u64::BITS as usize;

/// A set of row numbers, one bit each.
#[derive(Clone, Debug, Default)]
struct RowSet {
    bits: Vec<u64>,
}

impl RowSet {
    fn insert(&mut self, row: i64) {
        let Ok(row) = usize::try_from(row) else { return };
        if self.bits.len() <= row / BITS {
            self.bits.resize(row / BITS + 1, 0);
        }
        self.bits[row / BITS] |= 1 << (row % BITS);
    }

    fn intersect(&mut self, other: &Self) {
        self.bits.truncate(other.bits.len());
        self.bits.iter_mut().zip(&other.bits).for_each(|(bits, others)| *bits &= others);
    }

    fn len(&self) -> usize {
        self.bits.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    fn bytes(&self) -> usize {
        self.bits.len() * size_of::<u64>()
    }
}

/// Sets of rows by the expression that they match, since the index last changed.
#[derive(Debug, Default)]
pub(super) struct RowSets {
    known: HashMap<String, Arc<RowSet>>,
    bytes: usize,
}

impl RowSets {
    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// How many rows match every one of the expressions.
    pub(super) fn count_common(
        &mut self,
        connection: &Connection,
        expressions: impl Iterator<Item = String>,
    ) -> rusqlite::Result<usize> {
        let mut common: Option<RowSet> = None;
        for expression in expressions {
            let set = self.get(connection, expression)?;
            match &mut common {
                Some(common) => common.intersect(&set),
                None => common = Some((*set).clone()),
            }
        }
        Ok(common.map_or(0, |common| common.len()))
    }

    fn get(&mut self, connection: &Connection, expression: String) -> rusqlite::Result<Arc<RowSet>> {
        if let Some(known) = self.known.get(&expression) {
            return Ok(Arc::clone(known));
        }
        let mut set = RowSet::default();
        let mut statement = connection.prepare_cached("SELECT rowid FROM words WHERE words MATCH ?1")?;
        let mut rows = statement.query([&expression])?;
        while let Some(row) = rows.next()? {
            set.insert(row.get(0)?);
        }
        if self.bytes + set.bytes() > MAX_BYTES {
            self.clear();
        }
        self.bytes += set.bytes();
        let set = Arc::new(set);
        self.known.insert(expression, Arc::clone(&set));
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_inserted() {
        let set_of = |rows: &[i64]| {
            let mut set = RowSet::default();
            rows.iter().for_each(|row| set.insert(*row));
            set
        };
        let mut set = set_of(&[1, 63, 64, 65, 5_000, 1, -1]);
        assert_eq!(set.len(), 5);
        set.intersect(&set_of(&[1, 64, 6_000]));
        assert_eq!(set.len(), 2);
        set.intersect(&set_of(&[64]));
        assert_eq!(set.len(), 1);
        set.intersect(&RowSet::default());
        assert_eq!((set.len(), set.bytes()), (0, 0));
    }
}
