//! The password of a database: from the variable that settings name, or where PostgreSQL's own programs look.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rye_store_postgres::ServerName;

/// The largest file of passwords.
const MAX_PASSWORD_FILE_BYTES: u64 = 1 << 20;

/// The password for a server, if one is to be had.
///
/// # Errors
/// When the named variable is not set, or the file of passwords cannot be used.
pub(super) fn find_password(
    variables: &BTreeMap<String, String>,
    home: &Path,
    variable: Option<&str>,
    server: &ServerName,
) -> Result<Option<String>, String> {
    if let Some(name) = variable {
        let value = variables.get(name).filter(|value| !value.is_empty());
        return value.cloned().map(Some).ok_or_else(|| format!("the variable {name} is not set"));
    }
    if let Some(password) = variables.get("PGPASSWORD").filter(|value| !value.is_empty()) {
        return Ok(Some(password.clone()));
    }
    let named = variables.get("PGPASSFILE").map(PathBuf::from);
    let path = named.unwrap_or_else(|| home.join(".pgpass"));
    let Ok((bytes, metadata)) = lillux::file::read_bounded(&path, MAX_PASSWORD_FILE_BYTES) else {
        return Ok(None);
    };
    // As PostgreSQL's programs: a file that others can read is not used.
    if metadata.mode() & 0o077 != 0 {
        let path = path.display();
        return Err(format!("others can read `{path}`: chmod 600 {path}"));
    }
    Ok(find_entry(&String::from_utf8_lossy(&bytes), server))
}

/// The first line that is about the server: `host:port:database:user:password`.
fn find_entry(text: &str, server: &ServerName) -> Option<String> {
    let wanted = [&server.host, &server.port, &server.database, &server.user];
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(split_fields).find_map(|fields| {
        let (password, names) = fields.split_last().filter(|(_, names)| names.len() == wanted.len())?;
        let is_it = names.iter().zip(wanted).all(|(name, wanted)| name == "*" || name == wanted);
        is_it.then(|| password.clone())
    })
}

/// The fields of a line; a backslash takes the next character as it is. The fifth has all the rest.
fn split_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let next = match character {
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            '\\' => characters.next(),
            other => Some(other),
        };
        if let (Some(next), Some(field)) = (next, fields.last_mut()) {
            field.push(next);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerName {
        ServerName {
            host: "db.example".to_owned(),
            port: "5432".to_owned(),
            database: "team".to_owned(),
            user: "ada".to_owned(),
        }
    }

    #[test]
    fn first_matching_line_has_the_password() {
        let text = "# a comment\nother:*:*:*:no\ndb.example:5432:*:ada:se\\:cr:et\n*:*:*:*:later\n";
        assert_eq!(find_entry(text, &server()).as_deref(), Some("se:cr:et"));
        assert_eq!(find_entry("db.example:5432:team:bob:no\n", &server()), None);
        assert_eq!(find_entry("too:few:fields\n", &server()), None);
    }

    #[test]
    fn named_variable_must_be_set() {
        let variables = BTreeMap::from([("PGPASSWORD".to_owned(), "usual".to_owned())]);
        let home = Path::new("/nowhere");
        let find = |name: Option<&str>| find_password(&variables, home, name, &server());
        assert_eq!(find(None), Ok(Some("usual".to_owned())));
        assert_eq!(find(Some("TEAM_DB")), Err("the variable TEAM_DB is not set".to_owned()));
    }
}
