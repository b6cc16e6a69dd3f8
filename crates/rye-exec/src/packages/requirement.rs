//! What may stand in `DEPENDENCIES`: a name and versions. No addresses, no paths, no options, no conditions: what an
//! installer could read as anything else never reaches it.

use super::Requirement;

const OPERATORS: [&str; 8] = ["===", "==", "~=", "!=", "<=", ">=", "<", ">"];

/// Reads a requirement of a Python package: `name`, `name[extra]`, `name>=1,<2`.
pub(super) fn parse_python(text: &str) -> Result<Requirement, &'static str> {
    if text.contains(';') {
        return Err("conditions (`;`) are not supported: ask for what every machine needs");
    }
    if text.contains('@') || text.contains('/') {
        return Err("only packages of your index can be asked for, no addresses and no paths");
    }
    let plain: String = text.trim().to_owned();
    let end = plain.find(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c))).unwrap_or(plain.len());
    let (name, rest) = plain.split_at(end);
    if !is_python_name(name) {
        return Err("it does not begin with the name of a package");
    }
    let rest = rest.trim();
    let (extras, rest) = match rest.strip_prefix('[') {
        None => (Vec::new(), rest),
        Some(rest) => {
            let (extras, rest) = rest.split_once(']').ok_or("a `]` is missing")?;
            let extras: Vec<&str> = extras.split(',').map(str::trim).collect();
            if !extras.iter().all(|extra| is_python_name(extra)) {
                return Err("its extras are not names");
            }
            (extras, rest.trim())
        }
    };
    let mut versions = Vec::new();
    if !rest.is_empty() {
        for part in rest.split(',').map(str::trim) {
            let operator = OPERATORS.iter().find(|operator| part.starts_with(**operator));
            let operator = operator.ok_or("a version is given as `==1.2`, `>=1.2,<2`, `~=1.2`")?;
            let version = part[operator.len()..].trim();
            let is_wild = matches!(*operator, "==" | "!=") && version.ends_with(".*");
            let version_part = if is_wild { &version[..version.len() - 2] } else { version };
            if !is_version(version_part) {
                return Err("a version is letters, digits and `.`, `+`, `-`, `_`, `!`");
            }
            versions.push(format!("{operator}{version}"));
        }
    }
    let name = normalize_name(name);
    let extras = if extras.is_empty() { String::new() } else { format!("[{}]", extras.join(",")) };
    let version = versions.join(",");
    Ok(Requirement { text: format!("{name}{extras}{version}"), name, version })
}

/// Reads a requirement of an npm package: `name`, `name@1.2.3`, `@scope/name@^1.2.0`.
pub(super) fn parse_node(text: &str) -> Result<Requirement, &'static str> {
    let text = text.trim();
    let (name, version) = match text.char_indices().skip(1).find(|(_, c)| *c == '@') {
        Some((at, _)) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    };
    if !is_node_name(name) {
        return Err("it does not begin with the name of a package; addresses and paths cannot be asked for");
    }
    let number = version.strip_prefix(['^', '~']).unwrap_or(version);
    let starts_with_digit = number.starts_with(|c: char| c.is_ascii_digit());
    if text.ends_with('@') || !(version.is_empty() || starts_with_digit && is_version(number)) {
        return Err("a version is given as `name@1.2.3`, `name@^1.2.3` or `name@~1.2.3`");
    }
    Ok(Requirement { name: name.to_owned(), text: text.to_owned(), version: version.to_owned() })
}

/// Whether it is a name as Python's index takes them.
pub(super) fn is_python_name(name: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    is_end(name.chars().next())
        && is_end(name.chars().next_back())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Whether it is a name as npm takes them, with or without a scope.
pub(super) fn is_node_name(name: &str) -> bool {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
    };
    let name = match name.strip_prefix('@') {
        Some(scoped) => match scoped.split_once('/') {
            Some((scope, name)) if is_part(scope) => name,
            Some(_) | None => return false,
        },
        None => name,
    };
    is_part(name) && !matches!(name, "node_modules" | "favicon.ico")
}

/// Whether it is a version: nothing an installer could take for more.
pub(super) fn is_version(version: &str) -> bool {
    version.starts_with(|c: char| c.is_ascii_alphanumeric())
        && version.chars().all(|c| c.is_ascii_alphanumeric() || ".+-_!".contains(c))
}

/// A Python name as the index compares it: lower case, one `-` for any run of `-`, `_`, `.`.
pub(super) fn normalize_name(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '-' | '_' | '.' if normal.ends_with('-') => {}
            '-' | '_' | '.' => normal.push('-'),
            other => normal.push(other.to_ascii_lowercase()),
        }
    }
    normal
}
