//! Who the user is to a registry, as `docker login` and `podman login` left it: passwords, identity tokens, and helper
//! programs. Files come in as bytes, helpers are run by the caller.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use super::Reference;

/// Where docker keeps what belongs to its own registry.
const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// What proves who the user is.
#[derive(Clone, PartialEq, Eq)]
pub enum RegistryCredentials {
    /// A name and a password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that is exchanged for others.
    IdentityToken(String),
    /// A token for the registry itself.
    RegistryToken(String),
}

impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Password { .. } => "Password([redacted])",
            Self::IdentityToken(_) => "IdentityToken([redacted])",
            Self::RegistryToken(_) => "RegistryToken([redacted])",
        })
    }
}

/// Why the credentials cannot be read. No message holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// A file is not as it should be.
    #[error("`{}` cannot be used: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A helper program failed.
    #[error("the credential helper `{program}`, which `{}` names, failed: {reason}", .path.display())]
    Helper {
        /// The file that names it.
        path: PathBuf,
        /// The program.
        program: String,
        /// How it failed.
        reason: String,
    },
}

/// One file that `login` wrote.
pub struct LoginFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// What a helper program wrote on its stdout, or nothing if it has nothing for this registry.
pub type HelperOutput = Result<Option<Vec<u8>>, String>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LoginConfig {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AuthEntry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperReply {
    username: String,
    secret: String,
}

/// The credentials for `reference` in the first file that has some. `run` is given a helper program and what it reads
/// on stdin.
///
/// # Errors
/// When a file or a helper that counts here cannot be used.
pub fn find_credentials(
    files: &[LoginFile],
    reference: &Reference,
    run: &mut dyn FnMut(&str, &str) -> HelperOutput,
) -> Result<Option<RegistryCredentials>, CredentialsError> {
    for file in files {
        let broken =
            |reason: &str| CredentialsError::File { path: file.path.clone(), reason: reason.to_owned() };
        // The reader's own words may quote the file.
        let login: LoginConfig =
            serde_json::from_slice(&file.bytes).map_err(|_| broken("it is not the JSON of a login"))?;
        let keys = lookup_keys(reference);
        if let Some(helper) = find_entry(&login.cred_helpers, &keys) {
            return run_helper(file, helper, reference, run);
        }
        let found = find_entry(&login.auths, &keys).map(parse_entry).transpose();
        if let Some(found) = found.map_err(broken)?.flatten() {
            return Ok(Some(found));
        }
        if let Some(helper) = login.creds_store.as_deref().filter(|helper| !helper.is_empty())
            && let Some(found) = run_helper(file, helper, reference, run)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// What an entry for this reference may be called, the closest first: `host/team/tools`, `host/team`, `host`.
fn lookup_keys(reference: &Reference) -> Vec<String> {
    let mut key = format!("{}/{}", reference.authority(), reference.repository());
    let mut keys = Vec::new();
    loop {
        keys.push(key.clone());
        match key.rfind('/') {
            Some(cut) => key.truncate(cut),
            None => return keys,
        }
    }
}

fn find_entry<'a, T>(map: &'a BTreeMap<String, T>, keys: &[String]) -> Option<&'a T> {
    keys.iter().find_map(|key| map.iter().find(|(own, _)| normalize_key(own) == *key).map(|(_, value)| value))
}

/// A key without what older versions of docker put around the host.
fn normalize_key(key: &str) -> String {
    let key = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    match key {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB.to_owned(),
        key => key.to_ascii_lowercase(),
    }
}

fn parse_entry(entry: &AuthEntry) -> Result<Option<RegistryCredentials>, &'static str> {
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(token) = some(&entry.identitytoken) {
        return Ok(Some(RegistryCredentials::IdentityToken(token)));
    }
    if let Some(token) = some(&entry.registrytoken) {
        return Ok(Some(RegistryCredentials::RegistryToken(token)));
    }
    if let Some(auth) = some(&entry.auth) {
        let lenient = GeneralPurposeConfig::new()
            .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent);
        let engine = GeneralPurpose::new(&base64::alphabet::STANDARD, lenient);
        let decoded = engine.decode(auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or("its `auth` for this registry is not base64-encoded text")?;
        let (user, password) =
            decoded.split_once(':').ok_or("its `auth` for this registry is not `user:password`")?;
        let password = password.trim_end_matches('\0').to_owned();
        return Ok(Some(RegistryCredentials::Password { user: user.to_owned(), password }));
    }
    match (some(&entry.username), some(&entry.password)) {
        (Some(user), Some(password)) => Ok(Some(RegistryCredentials::Password { user, password })),
        _ => Ok(None),
    }
}

fn run_helper(
    file: &LoginFile,
    helper: &str,
    reference: &Reference,
    run: &mut dyn FnMut(&str, &str) -> HelperOutput,
) -> Result<Option<RegistryCredentials>, CredentialsError> {
    let program = format!("docker-credential-{helper}");
    let failed = |reason: String| CredentialsError::Helper {
        path: file.path.clone(),
        program: rye_item::text::one_line(&program),
        reason,
    };
    let is_name =
        helper.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if helper.is_empty() || !is_name {
        return Err(failed("its name is not a valid program name".to_owned()));
    }
    let authority = reference.authority();
    let server = if authority == DOCKER_HUB { DOCKER_HUB_KEY } else { authority.as_str() };
    let Some(output) = run(&program, server).map_err(failed)? else {
        return Ok(None);
    };
    let reply: HelperReply = serde_json::from_slice(&output)
        .map_err(|_| failed("it wrote no JSON with `Username` and `Secret`".to_owned()))?;
    Ok(Some(match reply.username.as_str() {
        "<token>" => RegistryCredentials::IdentityToken(reply.secret),
        _ => RegistryCredentials::Password { user: reply.username, password: reply.secret },
    }))
}

/// A name and a password as they are sent.
#[must_use]
pub fn basic_auth(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn find_in(files: &[Value], reference: &str) -> Result<Option<RegistryCredentials>, String> {
        let files: Vec<LoginFile> = files
            .iter()
            .map(|value| LoginFile { path: "config.json".into(), bytes: value.to_string().into_bytes() })
            .collect();
        let mut helper = |program: &str, server: &str| match program {
            "docker-credential-good" => Ok(Some(
                json!({"ServerURL": server, "Username": "u", "Secret": server}).to_string().into_bytes(),
            )),
            "docker-credential-token" => Ok(Some(br#"{"Username":"<token>","Secret":"t"}"#.to_vec())),
            "docker-credential-empty" => Ok(None),
            "docker-credential-odd" => Ok(Some(b"hunter2".to_vec())),
            _ => Err("it ended with exit code 1".to_owned()),
        };
        let reference = reference.parse().expect("a reference");
        find_credentials(&files, &reference, &mut helper).map_err(|error| error.to_string())
    }

    fn password(user: &str, password: &str) -> Result<Option<RegistryCredentials>, String> {
        Ok(Some(RegistryCredentials::Password { user: user.into(), password: password.into() }))
    }

    #[test]
    fn closest_entry_in_first_file_wins() {
        let auth = |text: &str| json!({"auth": STANDARD.encode(text)});
        let docker = json!({"auths": {
            "https://a.example/v1/": auth("a:1:2"), "b.example:5000": auth("b:2"),
            "https://index.docker.io/v1/": auth("hub:3"), "c.example": {}, "d.example/team": auth("team:4"),
            "d.example": auth("d:5"),
        }});
        let podman =
            json!({"auths": {"a.example": auth("other:9"), "c.example": {"username": "c", "password": "6"}}});
        let files = [docker, podman];
        assert_eq!(find_in(&files, "a.example/x"), password("a", "1:2"));
        assert_eq!(find_in(&files, "b.example:5000/x"), password("b", "2"));
        assert_eq!(find_in(&files, "b.example/x"), Ok(None));
        assert_eq!(find_in(&files, "docker.io/x/y"), password("hub", "3"));
        assert_eq!(find_in(&files, "c.example/x"), password("c", "6"));
        assert_eq!(find_in(&files, "d.example/team/x"), password("team", "4"));
        assert_eq!(find_in(&files, "d.example/teams/x"), password("d", "5"));
        assert_eq!(find_in(&[], "a.example/x"), Ok(None));
    }

    #[test]
    fn token_kinds_are_distinguished() {
        let file = json!({"auths": {"a.example": {"auth": "eDp5", "identitytoken": "i"}, "b.example": {"registrytoken": "r"}}});
        assert_eq!(
            find_in(std::slice::from_ref(&file), "a.example/x"),
            Ok(Some(RegistryCredentials::IdentityToken("i".into())))
        );
        assert_eq!(find_in(&[file], "b.example/x"), Ok(Some(RegistryCredentials::RegistryToken("r".into()))));
    }

    #[test]
    fn helpers_are_run_for_the_registry() {
        let file = json!({"credHelpers": {"a.example": "good", "t.example": "token"}, "credsStore": "empty",
            "auths": {"a.example": {"auth": "eDp5"}}});
        assert_eq!(find_in(std::slice::from_ref(&file), "a.example/x"), password("u", "a.example"));
        assert_eq!(
            find_in(std::slice::from_ref(&file), "t.example/x"),
            Ok(Some(RegistryCredentials::IdentityToken("t".into())))
        );
        assert_eq!(find_in(&[file], "b.example/x"), Ok(None));
        let hub = json!({"credsStore": "good"});
        assert_eq!(find_in(&[hub], "docker.io/x"), password("u", "https://index.docker.io/v1/"));
    }

    #[test]
    fn credential_errors_contain_no_secrets() {
        for (file, reason) in [
            (
                json!({"auths": {"a.example": {"auth": "hunter2!"}}}),
                "`config.json` cannot be used: its `auth` for this registry is not base64-encoded text",
            ),
            (
                json!({"auths": {"a.example": {"auth": "aHVudGVyMg=="}}}),
                "`config.json` cannot be used: its `auth` for this registry is not `user:password`",
            ),
            (json!(["hunter2"]), "`config.json` cannot be used: it is not the JSON of a login"),
            (
                json!({"credsStore": "../evil"}),
                "the credential helper `docker-credential-../evil`, which `config.json` names, failed: its name is not a valid program name",
            ),
            (
                json!({"credsStore": "odd"}),
                "the credential helper `docker-credential-odd`, which `config.json` names, failed: it wrote no JSON with `Username` and `Secret`",
            ),
            (
                json!({"credsStore": "bad"}),
                "the credential helper `docker-credential-bad`, which `config.json` names, failed: it ended with exit code 1",
            ),
        ] {
            assert_eq!(find_in(&[file], "a.example/x"), Err(reason.to_owned()));
        }
        let debug_text = format!(
            "{:?}",
            find_in(&[json!({"auths": {"a.example": {"auth": "dTpodW50ZXIy"}}})], "a.example/x")
        );
        assert_eq!(debug_text, "Ok(Some(Password([redacted])))");
    }
}
