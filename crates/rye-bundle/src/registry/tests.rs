//! Pushing and pulling against a registry on loopback: an honest one, and every lie it could tell.

mod fake;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake::{FakeRegistry, FakeResponse, RecordedRequest, response};

use super::*;

const MANIFEST: &[u8] = b"# rye:signed:...\nbundle: {}\n";

fn no_credentials(_: &Reference) -> Result<Option<RegistryCredentials>, CredentialsError> {
    Ok(None)
}

fn password_credentials(_: &Reference) -> Result<Option<RegistryCredentials>, CredentialsError> {
    Ok(Some(RegistryCredentials::Password { user: "ada".into(), password: "hunter2".into() }))
}

struct World {
    folder: tempfile::TempDir,
    cancel: CancelToken,
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), cancel: CancelToken::new().expect("an event") }
    }

    fn access<'a>(&'a self, credentials: FindCredentials<'a>) -> RegistryAccess<'a> {
        RegistryAccess {
            proxies: ProxyConfig::default(),
            certificate_file: None,
            allowed_hosts: Vec::new(),
            allows_plain_http: true,
            credentials,
            cancel: &self.cancel,
            retry_interval: Duration::ZERO,
        }
    }

    fn push_as(
        &self,
        registry: &FakeRegistry,
        tag: &str,
        archive: &[u8],
        credentials: FindCredentials<'_>,
    ) -> Result<PushedArtifact, RegistryError> {
        let path = self.folder.path().join("outgoing");
        lillux::file::write_atomic(&path, archive, lillux::file::FileMode::Preserve).expect("an archive");
        let config =
            ArtifactConfig { id: "team-tools".into(), version: "1.0.0".into(), signer: "0".repeat(16) };
        let outgoing = PushRequest { config, manifest: MANIFEST, archive: &path };
        let reference = reference_in(registry, &format!("team/tools:{tag}"));
        push(&reference, &outgoing, &self.access(credentials), &mut |_, _| {})
    }

    fn push(&self, registry: &FakeRegistry, tag: &str, archive: &[u8]) -> PushedArtifact {
        self.push_as(registry, tag, archive, &no_credentials).expect("pushed")
    }

    fn pull_as(
        &self,
        reference: &Reference,
        credentials: FindCredentials<'_>,
    ) -> Result<PulledArtifact, RegistryError> {
        let staging = self.folder.path().join("staging");
        lillux::file::create_dirs(&staging, true).expect("a folder");
        let pulled = pull(reference, &self.access(credentials), &staging, &mut |_, _| {});
        if pulled.is_err() {
            assert_eq!(entries(&staging), 0, "something is left");
        }
        pulled
    }

    fn refusal(&self, registry: &FakeRegistry, version: &str) -> String {
        let reference = reference_in(registry, &format!("team/tools{version}"));
        self.pull_as(&reference, &no_credentials).expect_err("refused").to_string()
    }
}

fn reference_in(registry: &FakeRegistry, rest: &str) -> Reference {
    registry.reference_text(rest).parse().expect("a reference")
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("a folder").count()
}

fn archive_of(pulled: &PulledArtifact) -> Vec<u8> {
    lillux::file::read_bounded(&pulled.archive, 1 << 30).expect("an archive").0
}

/// A registry that was filled correctly and then answers matching requests with `response_override`.
fn faulty_registry(
    world: &World,
    response_override: impl Fn(&RecordedRequest) -> Option<FakeResponse> + Send + 'static,
) -> FakeRegistry {
    let registry = FakeRegistry::start(Box::new(move |request, store| {
        let is_filled = store.manifests.contains_key("1");
        if is_filled { response_override(request) } else { None }
    }));
    world.push(&registry, "1", b"archive");
    registry
}

#[test]
fn push_and_pull_round_trip() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    let pushed = world.push(&registry, "1.0.0", b"archive");
    assert_eq!((pushed.bytes, pushed.bytes_reused), (MANIFEST.len() as u64 + 7, 0));
    let by_tag =
        world.pull_as(&reference_in(&registry, "team/tools:1.0.0"), &no_credentials).expect("pulled");
    assert_eq!((by_tag.description.digest, archive_of(&by_tag)), (pushed.digest, b"archive".to_vec()));
    assert_eq!(by_tag.description.manifest, MANIFEST);
    let pinned = reference_in(&registry, "team/tools").with_digest(pushed.digest);
    assert_eq!(archive_of(&world.pull_as(&pinned, &no_credentials).expect("pulled")), b"archive");
    let described = describe(&pinned, &world.access(&no_credentials)).expect("described");
    assert_eq!(described, by_tag.description);
    let path = by_tag.folder.path().to_owned();
    drop(by_tag);
    assert!(!path.exists());
}

#[test]
fn existing_blobs_are_not_uploaded_again() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    let first = world.push(&registry, "1", b"archive");
    let again = world.push(&registry, "2", b"archive");
    assert_eq!((again.digest, again.bytes_reused), (first.digest, first.bytes));
    assert_eq!(registry.request_lines().iter().filter(|line| line.starts_with("POST")).count(), 3);
}

#[test]
fn large_archive_is_chunked_with_progress() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    let archive: Vec<u8> = (0..(20 << 20) + 5).map(|index: u32| (index % 251) as u8).collect();
    let pushed = world.push(&registry, "1", &archive);
    let methods: Vec<String> = registry.requests().iter().map(|request| request.method.clone()).collect();
    assert_eq!(methods.iter().filter(|method| *method == "PATCH").count(), 2);
    let reference = reference_in(&registry, "team/tools").with_digest(pushed.digest);
    let mut progress = Vec::new();
    let pulled = pull(&reference, &world.access(&no_credentials), world.folder.path(), &mut |done, total| {
        progress.push((done, total))
    })
    .expect("pulled");
    assert!(archive_of(&pulled) == archive, "the archive differs");
    assert_eq!(progress.last(), Some(&(archive.len() as u64, archive.len() as u64)));
    assert!(progress.len() > 1 && progress.is_sorted());
}

#[test]
fn moved_tag_does_not_affect_pins() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    let first = world.push(&registry, "1", b"archive");
    let second = world.push(&registry, "1", b"another");
    assert_ne!(first.digest, second.digest);
    let tools = reference_in(&registry, "team/tools:1");
    assert_eq!(archive_of(&world.pull_as(&tools, &no_credentials).expect("pulled")), b"another");
    assert_eq!(
        archive_of(&world.pull_as(&tools.with_digest(first.digest), &no_credentials).expect("pulled")),
        b"archive"
    );
}

#[test]
fn a_push_needs_a_tag() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    let reference = reference_in(&registry, "team/tools").with_digest(lillux::Digest::of(b"x"));
    let config = ArtifactConfig { id: String::new(), version: String::new(), signer: String::new() };
    let outgoing = PushRequest { config, manifest: b"", archive: Path::new("absent") };
    let refused = push(&reference, &outgoing, &world.access(&no_credentials), &mut |_, _| {});
    assert!(matches!(refused, Err(RegistryError::PushToDigest(_))));
    assert_eq!(registry.request_lines(), Vec::<String>::new());
}

#[test]
fn wrong_manifest_is_refused() {
    let world = World::new();
    let registry = FakeRegistry::new();
    let pushed = world.push(&registry, "1", b"archive");
    let other = world.push(&registry, "2", b"another");
    let mut store = registry.store.lock().expect("the store");
    let other_bytes = store.manifests[&format!("sha256:{}", other.digest)].clone();
    store.manifests.insert(format!("sha256:{}", pushed.digest), other_bytes);
    drop(store);
    assert_eq!(
        world.refusal(&registry, &format!("@sha256:{}", pushed.digest)),
        format!(
            "`{}` sent something else than it should: the manifest sha256:{} was asked for, sha256:{} came",
            registry.address, pushed.digest, other.digest
        )
    );
}

#[test]
fn wrong_digest_header_is_refused() {
    let world = World::new();
    let registry = FakeRegistry::new();
    world.push(&registry, "1", b"archive");
    let index = registry.store.lock().expect("the store").manifests["1"].clone();
    let registry = FakeRegistry::start(Box::new(move |_, _| {
        Some(response("200 OK", &[("Docker-Content-Digest", "sha256:00")], index.clone()))
    }));
    assert!(world.refusal(&registry, ":1").contains("it calls the manifest sha256:00, which is sha256:"));
}

#[test]
fn wrong_blob_is_refused() {
    let world = World::new();
    for (body, reason) in [
        ("archivf", "has the digest sha256:"),
        ("arch", "has 4 of its 7 bytes"),
        ("archive and more", "has more than its 7 bytes"),
    ] {
        let registry = FakeRegistry::new();
        world.push(&registry, "1", b"archive");
        registry.store.lock().expect("the store").blobs.insert(fake::digest_text(b"archive"), body.into());
        let refusal = world.refusal(&registry, ":1");
        assert!(refusal.contains(reason), "{body}: {refusal}");
    }
    let registry = FakeRegistry::new();
    world.push(&registry, "1", b"archive");
    registry.store.lock().expect("the store").blobs.remove(&fake::digest_text(b"archive"));
    assert!(world.refusal(&registry, ":1").ends_with("which the manifest names, is missing"));
}

#[test]
fn endless_body_is_cut_off() {
    let world = World::new();
    for part in ["/manifests/", "/blobs/"] {
        let registry = faulty_registry(&world, move |request| {
            request
                .path
                .contains(part)
                .then(|| FakeResponse { is_endless_body: true, ..response("200 OK", &[], "") })
        });
        let refusal = world.refusal(&registry, ":1");
        assert!(
            refusal.contains("more than its") || refusal.contains("larger than 1048576 bytes"),
            "{refusal}"
        );
    }
    let registry = faulty_registry(&world, |_| {
        Some(FakeResponse { is_endless_body: true, ..response("418 Teapot", &[], "") })
    });
    assert_eq!(
        world.refusal(&registry, ":1"),
        format!(
            "`{}` does not behave like a registry: it does not give the manifest (HTTP 418 I'm a teapot)",
            registry.address
        )
    );
}

#[test]
fn compressed_responses_are_not_decoded() {
    let world = World::new();
    let registry = faulty_registry(&world, |request| {
        let is_manifest = request.path.contains("/manifests/");
        is_manifest
            .then(|| response("200 OK", &[("Content-Encoding", "gzip")], b"\x1f\x8b\x08bomb".as_slice()))
    });
    assert!(world.refusal(&registry, ":1").contains("its manifest cannot be used"));
    assert!(registry.requests().iter().all(|request| request.header("accept-encoding").is_none()));
}

#[test]
fn container_image_is_refused() {
    let world = World::new();
    let image = r#"{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","layers":[]}"#;
    let registry = faulty_registry(&world, move |_| Some(response("200 OK", &[], image)));
    let reference = reference_in(&registry, "team/tools:1");
    assert_eq!(
        world.refusal(&registry, ":1"),
        format!(
            "`{reference}` is not a bundle: it is of the media type `application/vnd.docker.distribution.manifest.v2+json`"
        )
    );
}

#[test]
fn missing_artifact_is_not_found() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    let reference = reference_in(&registry, "team/tools:1");
    assert_eq!(world.refusal(&registry, ":1"), format!("`{reference}` is not in the registry"));
}

#[test]
fn redirects_drop_credentials_and_avoid_private_addresses() {
    let world = World::new();
    let storage = FakeRegistry::start(Box::new(|_, _| Some(response("200 OK", &[], "archive"))));
    let address = storage.address.to_string();
    let location = address.clone();
    let registry = faulty_registry(&world, move |request| {
        if request.header("authorization").is_none() {
            return Some(response("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""));
        }
        let is_archive = request.path.ends_with(&fake::digest_text(b"archive"));
        is_archive
            .then(|| response("307 Temporary Redirect", &[("Location", &format!("http://{location}/a"))], ""))
    });
    let reference = reference_in(&registry, "team/tools:1");
    let refused = world.pull_as(&reference, &password_credentials).expect_err("refused").to_string();
    assert!(refused.contains("a loopback address, which is refused"), "{refused}");
    assert_eq!(storage.request_lines(), Vec::<String>::new());
    let access = RegistryAccess { allowed_hosts: vec![address], ..world.access(&password_credentials) };
    let pulled = pull(&reference, &access, world.folder.path(), &mut |_, _| {}).expect("pulled");
    assert_eq!(archive_of(&pulled), b"archive");
    assert_eq!(storage.requests()[0].header("authorization"), None);
    for private in ["http://169.254.169.254/latest", "http://10.0.0.1/", "file:///etc/passwd"] {
        let registry =
            faulty_registry(&world, move |_| Some(response("302 Found", &[("Location", private)], "")));
        let refusal = world.refusal(&registry, ":1");
        assert!(refusal.starts_with("the registry is not reached: "), "{refusal}");
    }
}

#[test]
fn a_redirect_loop_ends() {
    let world = World::new();
    let registry =
        faulty_registry(&world, |request| Some(response("302 Found", &[("Location", &request.path)], "")));
    assert_eq!(world.refusal(&registry, ":1"), "the registry is not reached: more than 10 redirects");
    assert!(registry.requests().len() < 30);
}

#[test]
fn password_is_sent_only_when_challenged() {
    let world = World::new();
    let registry = FakeRegistry::start(Box::new(|request, _| {
        // ada:hunter2
        let is_known = request.header("authorization") == Some("Basic YWRhOmh1bnRlcjI=");
        (!is_known).then(|| response("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""))
    }));
    world.push_as(&registry, "1", b"archive", &password_credentials).expect("pushed");
    assert_eq!(registry.requests()[0].header("authorization"), None);
    world.pull_as(&reference_in(&registry, "team/tools:1"), &password_credentials).expect("pulled");
    let refused =
        world.pull_as(&reference_in(&registry, "team/tools:1"), &no_credentials).expect_err("refused");
    assert!(matches!(refused, RegistryError::AccessDenied { has_credentials: false, .. }), "{refused:?}");
}

#[test]
fn denied_request_is_retried_once() {
    let world = World::new();
    let registry = faulty_registry(&world, |_| {
        Some(response("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""))
    });
    let before = registry.requests().len();
    let refused =
        world.pull_as(&reference_in(&registry, "team/tools:1"), &password_credentials).expect_err("refused");
    assert!(matches!(refused, RegistryError::AccessDenied { has_credentials: true, .. }), "{refused:?}");
    assert_eq!(registry.requests().len() - before, 2);
    assert!(!format!("{refused} {refused:?}").contains("hunter2"));
}

/// A registry whose tokens come from its own `/token`.
fn with_tokens(token: &'static str) -> FakeRegistry {
    FakeRegistry::start(Box::new(move |request, _| {
        let host = request.header("host").expect("a host").to_owned();
        if request.path == "/token" {
            let is_known = request.header("authorization") == Some("Basic YWRhOmh1bnRlcjI=")
                || String::from_utf8_lossy(&request.body).contains("refresh_token=long-lived");
            return Some(match is_known {
                true => response("200 OK", &[], format!("{{\"token\":\"{token}\"}}")),
                false => response(
                    "401 Unauthorized",
                    &[],
                    r#"{"errors":[{"code":"UNAUTHORIZED","message":"who?"}]}"#,
                ),
            });
        }
        let is_known = request.header("authorization") == Some("Bearer good");
        let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"here\"");
        (!is_known).then(|| response("401 Unauthorized", &[("WWW-Authenticate", &challenge)], ""))
    }))
}

#[test]
fn token_is_fetched_with_password_or_identity() {
    let world = World::new();
    let registry = with_tokens("good");
    world.push_as(&registry, "1", b"archive", &password_credentials).expect("pushed");
    let queries: Vec<String> = registry
        .requests()
        .into_iter()
        .filter(|request| request.path == "/token")
        .map(|request| request.query)
        .collect();
    assert_eq!(queries, ["scope=repository%3Ateam%2Ftools%3Apull%2Cpush&service=here"]);
    let identity = |_: &Reference| Ok(Some(RegistryCredentials::IdentityToken("long-lived".into())));
    world.pull_as(&reference_in(&registry, "team/tools:1"), &identity).expect("pulled");
    let body = registry
        .requests()
        .iter()
        .rev()
        .find(|request| request.method == "POST")
        .map(|request| request.body.clone());
    assert_eq!(
        String::from_utf8_lossy(&body.expect("a form")),
        "scope=repository%3Ateam%2Ftools%3Apull&service=here&grant_type=refresh_token&client_id=rye&refresh_token=long-lived"
    );
    let stranger = world
        .pull_as(&reference_in(&registry, "team/tools:1"), &no_credentials)
        .expect_err("refused")
        .to_string();
    assert_eq!(
        stranger,
        format!("`{}` refuses access to `team/tools` (HTTP 401: UNAUTHORIZED who?)", registry.address)
    );
}

#[test]
fn malformed_token_is_refused() {
    let world = World::new();
    for token in ["", "a b", "a\\r\\nX-Evil: 1", "\\u0000", "é"] {
        let registry = with_tokens(token);
        let refused = world
            .pull_as(&reference_in(&registry, "team/tools:1"), &password_credentials)
            .expect_err("refused")
            .to_string();
        assert!(refused.contains("it returned an invalid token"), "{token}: {refused}");
    }
}

#[test]
fn tokens_come_from_public_addresses_only() {
    let world = World::new();
    for (realm, reason) in [
        ("https://169.254.169.254/", "a metadata address"),
        ("https://10.0.0.1/", "a private address"),
        ("https://127.0.0.1:1/", "a loopback address"),
        ("http://127.0.0.1:1/", "a loopback address"),
        ("nonsense", "an invalid URL"),
        ("file:///etc/passwd", "a place without https"),
        ("http://a.example/", "a place without https"),
        ("https://ada:hunter2@a.example/", "holds a user name or password"),
    ] {
        let registry = faulty_registry(&world, move |_| {
            Some(response(
                "401 Unauthorized",
                &[("WWW-Authenticate", &format!("Bearer realm=\"{realm}\""))],
                "",
            ))
        });
        let refused = world
            .pull_as(&reference_in(&registry, "team/tools:1"), &password_credentials)
            .expect_err("refused")
            .to_string();
        assert!(refused.contains(reason), "{realm}: {refused}");
    }
}

#[test]
fn transient_errors_are_retried_a_few_times() {
    let world = World::new();
    let left = Arc::new(AtomicUsize::new(2));
    let count = Arc::clone(&left);
    let registry = faulty_registry(&world, move |_| {
        let is_faulty =
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        is_faulty.then(|| response("503 Service Unavailable", &[], ""))
    });
    world.pull_as(&reference_in(&registry, "team/tools:1"), &no_credentials).expect("pulled");
    left.store(usize::MAX, Ordering::SeqCst);
    let before = registry.requests().len();
    assert!(world.refusal(&registry, ":1").contains("HTTP 503"));
    assert_eq!(registry.requests().len() - before, 3);
}

#[test]
fn redirected_upload_sends_no_credentials() {
    let world = World::new();
    let storage = FakeRegistry::start(Box::new(|_, _| Some(response("201 Created", &[], ""))));
    let location = storage.address.to_string();
    let registry = FakeRegistry::start(Box::new(move |request, _| {
        if request.header("authorization").is_none() {
            return Some(response("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""));
        }
        let is_upload = request.method == "POST";
        is_upload.then(|| response("202 Accepted", &[("Location", &format!("http://{location}/up"))], ""))
    }));
    let refused =
        world.push_as(&registry, "1", b"archive", &password_credentials).expect_err("refused").to_string();
    assert!(refused.contains("a loopback address, which is refused"), "{refused}");
    assert_eq!(storage.request_lines(), Vec::<String>::new());
}

#[test]
fn plain_http_is_used_on_loopback() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    world.push(&registry, "1", b"archive");
    let access = RegistryAccess { allows_plain_http: false, ..world.access(&no_credentials) };
    let reference = reference_in(&registry, "team/tools:1");
    let pulled = pull(&reference, &access, world.folder.path(), &mut |_, _| {}).expect("pulled");
    assert_eq!(archive_of(&pulled), b"archive");
}

#[test]
fn cancel_stops_immediately() {
    let (world, registry) = (World::new(), FakeRegistry::new());
    world.push(&registry, "1", b"archive");
    world.cancel.cancel();
    let ended = world.pull_as(&reference_in(&registry, "team/tools:1"), &no_credentials);
    assert!(matches!(ended, Err(RegistryError::Cancelled)));
}
