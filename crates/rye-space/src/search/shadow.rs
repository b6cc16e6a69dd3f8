//! Which files are hidden by another file of the same id. Worked out when the index changes, not when it is searched.

use std::collections::HashMap;

use rusqlite::{Connection, params};
use rye_item::ItemType;

use crate::spaces::Spaces;

/// A file of an id that occurs more than once: rank of its space, rank of its extension, row, label of the space.
type ShadowCandidate = (usize, usize, i64, String);

/// Works out again which rows are hidden, and by which space.
pub(super) fn update(connection: &Connection, spaces: &Spaces) -> rusqlite::Result<()> {
    let ranks = super::space_ranks(spaces);
    let mut by_item: HashMap<(String, String), Vec<ShadowCandidate>> = HashMap::new();
    let mut statement = connection.prepare(
        "SELECT id, type, item_id, space, extension FROM items
         WHERE (type, item_id) IN (SELECT type, item_id FROM items GROUP BY type, item_id HAVING count(*) > 1)",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (item_type, space, extension): (String, String, String) = (row.get(1)?, row.get(3)?, row.get(4)?);
        let known = item_type
            .parse()
            .ok()
            .map(|item_type: ItemType| &spaces.extractors().for_type(item_type).extensions);
        let order =
            known.and_then(|list| list.iter().position(|known| *known == extension)).unwrap_or(usize::MAX);
        let rank = ranks.get(&space).copied().unwrap_or(usize::MAX);
        by_item.entry((item_type, row.get(2)?)).or_default().push((rank, order, row.get(0)?, space));
    }
    connection.execute("UPDATE items SET hidden_by = NULL WHERE hidden_by IS NOT NULL", [])?;
    let mut hide = connection.prepare("UPDATE items SET hidden_by = ?2 WHERE id = ?1")?;
    for mut files in by_item.into_values() {
        files.sort();
        let winner = files[0].3.clone();
        for (_, _, row, _) in files.iter().skip(1) {
            hide.execute(params![row, winner])?;
        }
    }
    Ok(())
}

/// Why a row is hidden.
pub(super) struct HiddenRow {
    /// The space of the file that hides it.
    pub(super) by: String,
    /// Its own space.
    pub(super) space: String,
}

/// The hidden rows.
pub(super) fn hidden_rows(connection: &Connection) -> rusqlite::Result<HashMap<i64, HiddenRow>> {
    let mut statement =
        connection.prepare_cached("SELECT id, hidden_by, space FROM items WHERE hidden_by IS NOT NULL")?;
    statement
        .query_map([], |row| Ok((row.get(0)?, HiddenRow { by: row.get(1)?, space: row.get(2)? })))?
        .collect()
}
