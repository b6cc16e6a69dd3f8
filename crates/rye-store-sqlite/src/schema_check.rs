//! Whether a database has exactly the tables and indexes that this code makes. One that came with a cloned folder may hold
//! triggers, views, defaults or constraints of its author's, which would run inside the store's statements.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::{DbError, schema};
use rye_store::ThreadStoreError;

/// What `sqlite_schema` says of an object: the table it belongs to, and its text.
type SchemaText = (String, Option<String>);

/// Everything in a database by type and name.
type SchemaObjects = BTreeMap<(String, String), SchemaText>;

/// Refuses a database of a known version with anything in its schema that the store did not make.
pub(super) fn refuse_foreign_schema(connection: &Connection) -> Result<(), DbError> {
    // One snapshot: another process may be migrating it.
    connection.execute_batch("BEGIN")?;
    let found = foreign_object(connection);
    connection.execute_batch("COMMIT")?;
    match found? {
        None => Ok(()),
        Some(reason) => Err(ThreadStoreError::Damaged { path: std::path::PathBuf::new(), reason }.into()),
    }
}

/// The first difference from the schema that this code would have made, in words.
fn foreign_object(connection: &Connection) -> Result<Option<String>, DbError> {
    let version = schema::version(connection)?;
    if version == 0 {
        return Ok(None);
    }
    let found = schema_objects(connection)?;
    let expected = expected_objects(connection, version)?;
    let shown = |(kind, name): &(String, String)| {
        format!("{} `{}`", rye_item::text::one_line(kind), rye_item::text::one_line(name))
    };
    for (object, text) in &found {
        match expected.get(object) {
            None => return Ok(Some(format!("rye did not make its {}", shown(object)))),
            Some(own) if own != text => {
                return Ok(Some(format!("its {} is not as rye made it", shown(object))));
            }
            Some(_) => {}
        }
    }
    let missing = expected.keys().find(|object| !found.contains_key(*object));
    Ok(missing.map(|object| format!("its {} is missing", shown(object))))
}

fn schema_objects(connection: &Connection) -> Result<SchemaObjects, DbError> {
    let mut statement = connection.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema")?;
    let rows = statement.query_map([], |row| Ok(((row.get(0)?, row.get(1)?), (row.get(2)?, row.get(3)?))))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The schema of a new database of `version`, with the columns and indexes that settings added to the ledger of `found`.
fn expected_objects(found: &Connection, version: i64) -> Result<SchemaObjects, DbError> {
    let own = Connection::open_in_memory()?;
    schema::create_tables(&own, 0, version)?;
    for statement in schema::added_statements(found, &own)? {
        own.execute_batch(&statement)?;
    }
    schema_objects(&own)
}
