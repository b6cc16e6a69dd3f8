//! How registries are reached from here: proxies and certificates of the surroundings, logins of docker and podman, and
//! what a failure means to a user.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::http::{HttpError, ProxyConfig, certificate_file};
use lillux::process::{self, ExitReason, ProcessCommand, ProcessLimits};
use lillux::{CancelToken, file};
use rye_bundle::registry::credentials::{self, HelperOutput, LoginFile};
use rye_bundle::registry::{
    CredentialsError, FindCredentials, NotABundle, Reference, RegistryAccess, RegistryCredentials,
    RegistryError,
};
use rye_exec::environment;
use rye_item::text::one_line;

use crate::engine::Engine;
use crate::error::{Code, Error};
use crate::programs;

/// The largest file `login` could have written.
const MAX_LOGIN_BYTES: u64 = 4 << 20;
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait before a registry is asked again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn registry_access<'a>(
    engine: &Engine,
    allows_plain_http: bool,
    cancel: &'a CancelToken,
    credentials: FindCredentials<'a>,
) -> RegistryAccess<'a> {
    let environment = &engine.host.variables;
    let variable = |name: &str| environment.get(name).map(String::as_str);
    RegistryAccess {
        proxies: ProxyConfig::from_variables(variable),
        certificate_file: certificate_file(variable),
        allowed_hosts: engine.workspace.settings.texts("bundles.registry_hosts"),
        allows_plain_http,
        credentials,
        cancel,
        retry_interval: RETRY_INTERVAL,
    }
}

/// Where `docker login` and `podman login` write, the first that counts first.
fn login_paths(environment: &BTreeMap<String, String>, home: &Path) -> Vec<PathBuf> {
    let folder = |name: &str| environment.get(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let docker = folder("DOCKER_CONFIG").unwrap_or_else(|| home.join(".docker")).join("config.json");
    let podman = [
        folder("REGISTRY_AUTH_FILE"),
        folder("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json")),
        Some(folder("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("containers/auth.json")),
    ];
    std::iter::once(docker).chain(podman.into_iter().flatten()).collect()
}

pub(super) fn find_credentials(
    engine: &Engine,
    reference: &Reference,
    cancel: &CancelToken,
) -> Result<Option<RegistryCredentials>, CredentialsError> {
    let mut files = Vec::new();
    for path in login_paths(&engine.host.variables, &engine.host.home) {
        match file::read_bounded(&path, MAX_LOGIN_BYTES) {
            Ok((bytes, _)) => files.push(LoginFile { path, bytes }),
            Err(error) if error.is_absent() => {}
            Err(error) => {
                return Err(CredentialsError::File { path, reason: one_line(&error.to_string()) });
            }
        }
    }
    credentials::find_credentials(&files, reference, &mut |program, server| {
        run_helper(engine, program, server, cancel)
    })
}

/// Asks a credential helper, which is the user's own program: `get`, with the registry on stdin.
fn run_helper(engine: &Engine, program: &str, server: &str, cancel: &CancelToken) -> HelperOutput {
    // It runs unconfined: what tools can write to is not searched.
    let path_variable = engine.host.variables.get("PATH").map_or("", String::as_str);
    let path = programs::search_path(engine, path_variable);
    let found = environment::find_on_path(program, &path);
    let program = found
        .ok_or_else(|| format!("`{}` was not found on your PATH outside the project", one_line(program)))?;
    let command = ProcessCommand {
        program: program.into(),
        arguments: vec!["get".to_owned()],
        environment: engine.host.variables.clone(),
        current_dir: engine.host.home.clone(),
        stdin: server.as_bytes().to_vec(),
        timeout: HELPER_TIMEOUT,
        has_result_channel: false,
        limits: ProcessLimits { output_bytes: 64 << 10, ..ProcessLimits::default() },
        log: None,
    };
    let launcher = &engine.host.launcher;
    let finished =
        process::run(launcher, &command, None, cancel).map_err(|error| one_line(&error.to_string()))?;
    match finished.exit {
        ExitReason::Exited(0) if finished.stdout.is_truncated() => Err("it wrote too much".to_owned()),
        ExitReason::Exited(0) => Ok(Some(finished.stdout.to_bytes())),
        // The helpers' own words for having nothing; what else they write may hold a secret and is not shown.
        ExitReason::Exited(_) if finished.stdout.to_text().contains("credentials not found") => Ok(None),
        ExitReason::Exited(code) => Err(format!("it ended with exit code {code}")),
        ExitReason::TimedOut => Err(format!("it took longer than {} seconds", HELPER_TIMEOUT.as_secs())),
        ExitReason::Cancelled => Err("it was cancelled".to_owned()),
        ExitReason::Signalled(_) | ExitReason::TooManyProcesses { .. } | ExitReason::SupervisorLost => {
            Err("it was stopped".to_owned())
        }
    }
}

/// The failure of a transfer, as a user sees it.
pub(super) fn registry_error(error: &RegistryError, reference: &Reference) -> Error {
    let message = one_line(&error.to_string());
    let host = reference.authority();
    match error {
        RegistryError::Unreachable(HttpError::AddressRefused { host, address, kind }) => {
            let message = format!(
                "the registry redirects to `{}` at `{address}`, a {} address, which is refused",
                one_line(host),
                kind.as_str()
            );
            Error::new(Code::RegistryUnreachable, message)
                .hint("if you trust that host, add it to `bundles.registry_hosts` of your user config")
        }
        RegistryError::Unreachable(_) => Error::new(Code::RegistryUnreachable, message)
            .hint(format!("check access: curl -i https://{host}/v2/"))
            .hint("a registry without TLS that is not on this machine needs --plain-http"),
        RegistryError::AccessDenied { has_credentials: false, .. } => {
            Error::new(Code::RegistryRefused, message).hint(format!("log in first: docker login {host}"))
        }
        RegistryError::AccessDenied { has_credentials: true, .. } => {
            Error::new(Code::RegistryRefused, message)
                .hint(format!("your login is not accepted there; log in again: docker login {host}"))
        }
        RegistryError::Credentials(_) => Error::new(Code::RegistryLogin, message)
            .hint(format!("fix it, or log in again: docker login {host}")),
        RegistryError::NotFound(_) => Error::new(Code::NotInRegistry, message)
            .hint("check repository and tag; without a tag, `latest` is used"),
        RegistryError::UnexpectedResponse { .. } => Error::new(Code::RegistryUnreachable, message)
            .hint("check host and port: something else may be listening there"),
        RegistryError::NotABundle { reason: NotABundle::TooLarge { .. }, .. }
        | RegistryError::TooLarge { .. } => {
            Error::new(Code::TooLarge, message).hint("a bundle holds items, not data; make it smaller")
        }
        RegistryError::NotABundle { .. } => {
            Error::new(Code::NotABundle, message).hint("push a bundle with: rye bundle push PATH REF")
        }
        RegistryError::ContentMismatch { .. } => Error::new(Code::Unsound, message)
            .hint("nothing was saved; try again; if it fails again, do not trust that registry"),
        RegistryError::PushToDigest(_) => Error::new(Code::InvalidArgument, message)
            .hint(format!("such as oci://{host}/{}:1.0.0", reference.repository())),
        RegistryError::LocalIo(_) => Error::new(Code::Io, message),
        RegistryError::Cancelled => {
            Error::new(Code::ToolCancelled, "the transfer was cancelled; nothing was saved")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_and_podman_login_paths_are_searched() {
        let home = Path::new("/home/ada");
        let paths = |variables: &[(&str, &str)]| -> Vec<String> {
            let environment =
                variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            login_paths(&environment, home).iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(
            paths(&[("DOCKER_CONFIG", "")]),
            ["/home/ada/.docker/config.json", "/home/ada/.config/containers/auth.json"]
        );
        assert_eq!(
            paths(&[
                ("DOCKER_CONFIG", "/d"),
                ("XDG_RUNTIME_DIR", "/run/1"),
                ("REGISTRY_AUTH_FILE", "/a.json")
            ]),
            [
                "/d/config.json",
                "/a.json",
                "/run/1/containers/auth.json",
                "/home/ada/.config/containers/auth.json"
            ]
        );
    }
}
