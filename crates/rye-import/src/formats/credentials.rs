//! Secrets in the arguments and addresses of servers: what looks like one does not come in, the name of a variable does.

use super::references::is_reference;
use crate::plan::{ImportNote, NoteKind};

/// Words of a name whose value is a secret.
const SECRET_WORDS: [&str; 21] = [
    "accesskey",
    "accesstoken",
    "apikey",
    "apitoken",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "key",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pat",
    "pwd",
    "secret",
    "sig",
    "signature",
    "token",
];
/// Last words of a name that speaks of a secret without holding it: `--key-file`.
const PLACE_WORDS: [&str; 10] =
    ["dir", "env", "file", "folder", "header", "id", "name", "path", "type", "variable"];
/// How well-known tokens begin.
const TOKEN_PREFIXES: [&str; 15] = [
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "npm_",
    "AKIA",
    "AIza",
    "eyJ",
];
/// From how many characters on a text can be a token of a known maker.
const MIN_PREFIXED_CHARS: usize = 12;
/// From how many characters on a text of capitals, small letters and digits is taken for a token.
const MIN_MIXED_CHARS: usize = 24;
/// From how many characters on a text of hexadecimal digits is taken for a token.
const MIN_HEX_CHARS: usize = 32;

/// Replaces secrets of one server by variables, and notes each.
pub(super) struct CredentialFilter<'a> {
    server: &'a str,
    notes: &'a mut Vec<ImportNote>,
}

impl<'a> CredentialFilter<'a> {
    pub(super) fn new(server: &'a str, notes: &'a mut Vec<ImportNote>) -> Self {
        Self { server, notes }
    }

    /// The arguments of a command without their secrets.
    pub(super) fn arguments(&mut self, arguments: &[String]) -> Vec<String> {
        let mut out: Vec<String> = Vec::with_capacity(arguments.len());
        let mut option: Option<&str> = None;
        for word in arguments {
            let before = option.take();
            let kept = match before {
                Some(name) if is_secret_name(name) && !word.starts_with('-') => {
                    self.value(name, word, "argument")
                }
                Some(name) if is_header_option(name) => self.header(word),
                Some(_) | None => self.argument(word),
            };
            if word.starts_with('-') && !word.contains('=') {
                option = Some(word);
            }
            out.push(kept);
        }
        out
    }

    /// `NAME=value`, `--name=value`, an address, or a text that is a token itself.
    fn argument(&mut self, word: &str) -> String {
        if word.contains("://") {
            return self.address(word);
        }
        if let Some((name, value)) = word.split_once('=')
            && !name.contains(char::is_whitespace)
        {
            let kept = match is_header_option(name) {
                true => self.header(value),
                false if is_secret_name(name) => self.value(name, value, "argument"),
                false if is_token(value) => self.replace(name, "argument"),
                false => value.to_owned(),
            };
            return format!("{name}={kept}");
        }
        match is_token(word) {
            true => self.replace("TOKEN", "argument"),
            false => word.to_owned(),
        }
    }

    /// `Name: value` after `-H`.
    fn header(&mut self, text: &str) -> String {
        let Some((name, value)) = text.split_once(':') else { return self.argument(text) };
        let value = value.trim_start();
        let scheme = ["Bearer ", "Basic ", "Token "].into_iter().find(|scheme| value.starts_with(scheme));
        let scheme = scheme.unwrap_or_default();
        let secret = &value[scheme.len()..];
        if is_secret_name(name) || is_token(secret) {
            return format!("{name}: {scheme}{}", self.value(name, secret, "header"));
        }
        text.to_owned()
    }

    /// An address without its secrets: a password, values of the query, parts of the path.
    pub(super) fn address(&mut self, text: &str) -> String {
        let (before, url) = match text.find("://") {
            Some(at) => {
                let start = text[..at]
                    .rfind(|character: char| !character.is_ascii_alphanumeric() && !"+-.".contains(character))
                    .map_or(0, |start| start + 1);
                text.split_at(start)
            }
            None => return text.to_owned(),
        };
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let host_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, place) = rest.split_at(host_end);
        if let Some((login, _)) = host.rsplit_once('@')
            && login.split_once(':').is_some_and(|(_, password)| !password.contains("${"))
        {
            return format!("{before}{}", self.replace("URL", "address"));
        }
        let (path, query) = place.split_once('?').map_or((place, None), |(path, query)| (path, Some(query)));
        let parts = path.split('/').map(|part| match is_token(part) {
            true => self.replace("PATH", "address"),
            false => part.to_owned(),
        });
        let path = parts.collect::<Vec<_>>().join("/");
        let query = query.map(|query| {
            let pairs = query.split('&').map(|pair| match pair.split_once('=') {
                Some((name, value)) if is_secret_name(name) || is_token(value) => {
                    format!("{name}={}", self.value(name, value, "address"))
                }
                Some(_) | None => pair.to_owned(),
            });
            format!("?{}", pairs.collect::<Vec<_>>().join("&"))
        });
        format!("{before}{scheme}://{host}{path}{}", query.unwrap_or_default())
    }

    /// A value that refers to variables already stays.
    fn value(&mut self, name: &str, value: &str, place: &str) -> String {
        let is_shell_variable = value.starts_with('$') && !value.starts_with("${");
        match value.is_empty() || is_reference(value) || is_shell_variable {
            true => value.to_owned(),
            false => self.replace(name, place),
        }
    }

    fn replace(&mut self, name: &str, place: &str) -> String {
        let name = variable_name(&format!("{}_{}", self.server, name.trim_start_matches('-')));
        self.notes.push(ImportNote::new(
            NoteKind::AsksFor,
            format!("an {place} held what looks like a secret, which is not imported: set {name} in your environment"),
        ));
        format!("${{{name}}}")
    }
}

/// A name as the name of a variable: capitals, digits and `_`.
pub(super) fn variable_name(text: &str) -> String {
    let plain = text.chars().map(|character| match character.is_ascii_alphanumeric() {
        true => character.to_ascii_uppercase(),
        false => '_',
    });
    let name: String = plain.collect();
    match name.starts_with(|first: char| first.is_ascii_digit()) {
        true => format!("_{name}"),
        false => name,
    }
}

fn is_header_option(name: &str) -> bool {
    matches!(name, "-H" | "--header" | "--headers")
}

/// Whether what has this name is a secret: `--api-key`, `githubToken`, `X-API-KEY`.
pub(super) fn is_secret_name(name: &str) -> bool {
    let mut words: Vec<String> = vec![String::new()];
    let mut was_lower = false;
    for character in name.chars() {
        if !character.is_ascii_alphanumeric() {
            words.push(String::new());
        } else {
            if character.is_ascii_uppercase() && was_lower {
                words.push(String::new());
            }
            if let Some(word) = words.last_mut() {
                word.push(character.to_ascii_lowercase());
            }
        }
        was_lower = character.is_ascii_lowercase();
    }
    words.retain(|word| !word.is_empty());
    let is_place = words.last().is_some_and(|last| PLACE_WORDS.contains(&last.as_str()));
    !is_place && words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
}

/// Whether a text looks like a token by itself.
fn is_token(text: &str) -> bool {
    let count = text.len();
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !is_plain {
        return false;
    }
    let has = |check: fn(&u8) -> bool| text.bytes().any(|byte| check(&byte));
    if count >= MIN_PREFIXED_CHARS && TOKEN_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
        return has(u8::is_ascii_digit) || has(u8::is_ascii_uppercase);
    }
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit()) && has(u8::is_ascii_digit);
    let is_mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit);
    (count >= MIN_HEX_CHARS && is_hex) || (count >= MIN_MIXED_CHARS && is_mixed && !text.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(arguments: &[&str]) -> (Vec<String>, usize) {
        let mut notes = Vec::new();
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let kept = CredentialFilter::new("gh", &mut notes).arguments(&arguments);
        (kept, notes.len())
    }

    #[test]
    fn secrets_of_arguments_become_variables() {
        for (given, expected) in [
            (vec!["--api-key", "hunter2"], vec!["--api-key", "${GH_API_KEY}"]),
            (vec!["--token=hunter2"], vec!["--token=${GH_TOKEN}"]),
            (vec!["-e", "GITHUB_TOKEN=hunter2"], vec!["-e", "GITHUB_TOKEN=${GH_GITHUB_TOKEN}"]),
            (vec!["--githubToken", "x"], vec!["--githubToken", "${GH_GITHUBTOKEN}"]),
            (
                vec!["--header", "Authorization: Bearer abc"],
                vec!["--header", "Authorization: Bearer ${GH_AUTHORIZATION}"],
            ),
            (vec!["-H", "X-API-KEY:abc"], vec!["-H", "X-API-KEY: ${GH_X_API_KEY}"]),
            (vec!["ghp_16C7e42F292c6912E7710c838347Ae178B4a"], vec!["${GH_TOKEN}"]),
            (vec!["0123456789abcdef0123456789abcdef"], vec!["${GH_TOKEN}"]),
            (vec!["postgresql://u:p@db/x"], vec!["${GH_URL}"]),
            (
                vec!["--url=https://a.example/?api_key=z&b=1"],
                vec!["--url=https://a.example/?api_key=${GH_API_KEY}&b=1"],
            ),
            (
                vec!["https://a.example/mcp/0123456789abcdef0123456789abcdef/x"],
                vec!["https://a.example/mcp/${GH_PATH}/x"],
            ),
        ] {
            let (kept, notes) = filter(&given);
            assert_eq!(kept, expected);
            assert_eq!(notes, 1, "{given:?}");
        }
    }

    #[test]
    fn plain_arguments_stay_as_they_are() {
        for given in [
            vec!["-y", "@modelcontextprotocol/server-github@2025.4.8"],
            vec!["--key-file", "/home/u/key.pem", "--port=80"],
            vec!["--api-key", "${API_KEY}"],
            vec!["--token", "--verbose"],
            vec!["--header", "Authorization: Bearer ${TOKEN}", "-H", "Accept: text/plain"],
            vec!["https://api.example.com/v1/mcp?profile=default&limit=20", "postgresql://db/x"],
            vec!["-m", "server_with_a_rather_long_module_name", "keyboard", "git+https://example.org/a.git"],
        ] {
            let (kept, notes) = filter(&given);
            assert_eq!(kept, given);
            assert_eq!(notes, 0, "{given:?}");
        }
    }
}
