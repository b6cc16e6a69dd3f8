//! Pushing and pulling against a registry on loopback: an honest one, and every lie it could tell.

mod fake;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake::{Answer, Asked, Registry, answer};

use super::*;

const MANIFEST: &[u8] = b"# rye:signed:...\nbundle: {}\n";

fn nobody(_: &Reference) -> Result<Option<Credentials>, CredentialsError> {
    Ok(None)
}

fn somebody(_: &Reference) -> Result<Option<Credentials>, CredentialsError> {
    Ok(Some(Credentials::Password { user: "ada".into(), password: "hunter2".into() }))
}

struct World {
    folder: tempfile::TempDir,
    cancel: Cancel,
}

impl World {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), cancel: Cancel::new().expect("an event") }
    }

    fn access<'a>(&'a self, credentials: FindCredentials<'a>) -> Access<'a> {
        Access {
            proxies: Proxies::default(),
            certificate_file: None,
            allowed_hosts: Vec::new(),
            allows_plain_http: true,
            credentials,
            cancel: &self.cancel,
            pause: Duration::ZERO,
        }
    }

    fn push_as(
        &self,
        registry: &Registry,
        tag: &str,
        archive: &[u8],
        credentials: FindCredentials<'_>,
    ) -> Result<Pushed, RegistryError> {
        let path = self.folder.path().join("outgoing");
        lillux::file::write_atomic(&path, archive, lillux::file::Mode::Kept).expect("an archive");
        let config = Config { id: "team-tools".into(), version: "1.0.0".into(), signer: "0".repeat(16) };
        let outgoing = Outgoing { config, manifest: MANIFEST, archive: &path };
        let reference = at(registry, &format!("team/tools:{tag}"));
        push(&reference, &outgoing, &self.access(credentials), &mut |_, _| {})
    }

    fn push(&self, registry: &Registry, tag: &str, archive: &[u8]) -> Pushed {
        self.push_as(registry, tag, archive, &nobody).expect("pushed")
    }

    fn pull_as(
        &self,
        reference: &Reference,
        credentials: FindCredentials<'_>,
    ) -> Result<Pulled, RegistryError> {
        let staging = self.folder.path().join("staging");
        lillux::file::create_folders(&staging, true).expect("a folder");
        let pulled = pull(reference, &self.access(credentials), &staging, &mut |_, _| {});
        if pulled.is_err() {
            assert_eq!(entries(&staging), 0, "something is left");
        }
        pulled
    }

    fn refusal(&self, registry: &Registry, version: &str) -> String {
        let reference = at(registry, &format!("team/tools{version}"));
        self.pull_as(&reference, &nobody).expect_err("refused").to_string()
    }
}

fn at(registry: &Registry, rest: &str) -> Reference {
    registry.reference(rest).parse().expect("a reference")
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).expect("a folder").count()
}

fn archive_of(pulled: &Pulled) -> Vec<u8> {
    lillux::file::read_bounded(&pulled.archive, 1 << 30).expect("an archive").0
}

/// A registry that was filled honestly and then answers `lie` to matching requests.
fn lying(world: &World, lie: impl Fn(&Asked) -> Option<Answer> + Send + 'static) -> Registry {
    let registry = Registry::start(Box::new(move |asked, store| {
        let is_filled = store.manifests.contains_key("1");
        if is_filled { lie(asked) } else { None }
    }));
    world.push(&registry, "1", b"archive");
    registry
}

#[test]
fn what_is_pushed_comes_back_the_same() {
    let (world, registry) = (World::new(), Registry::honest());
    let pushed = world.push(&registry, "1.0.0", b"archive");
    assert_eq!((pushed.bytes, pushed.bytes_reused), (MANIFEST.len() as u64 + 7, 0));
    let by_tag = world.pull_as(&at(&registry, "team/tools:1.0.0"), &nobody).expect("pulled");
    assert_eq!((by_tag.described.digest, archive_of(&by_tag)), (pushed.digest, b"archive".to_vec()));
    assert_eq!(by_tag.described.manifest, MANIFEST);
    let pinned = at(&registry, "team/tools").pinned(pushed.digest);
    assert_eq!(archive_of(&world.pull_as(&pinned, &nobody).expect("pulled")), b"archive");
    let described = describe(&pinned, &world.access(&nobody)).expect("described");
    assert_eq!(described, by_tag.described);
    let path = by_tag.folder.path().to_owned();
    drop(by_tag);
    assert!(!path.exists());
}

#[test]
fn what_the_registry_has_is_not_sent_again() {
    let (world, registry) = (World::new(), Registry::honest());
    let first = world.push(&registry, "1", b"archive");
    let again = world.push(&registry, "2", b"archive");
    assert_eq!((again.digest, again.bytes_reused), (first.digest, first.bytes));
    assert_eq!(registry.lines().iter().filter(|line| line.starts_with("POST")).count(), 3);
}

#[test]
fn a_large_archive_goes_in_pieces_and_progress_is_told() {
    let (world, registry) = (World::new(), Registry::honest());
    let archive: Vec<u8> = (0..(20 << 20) + 5).map(|place: u32| (place % 251) as u8).collect();
    let pushed = world.push(&registry, "1", &archive);
    let methods: Vec<String> = registry.asked().iter().map(|asked| asked.method.clone()).collect();
    assert_eq!(methods.iter().filter(|method| *method == "PATCH").count(), 2);
    let reference = at(&registry, "team/tools").pinned(pushed.digest);
    let mut heard = Vec::new();
    let pulled = pull(&reference, &world.access(&nobody), world.folder.path(), &mut |done, total| {
        heard.push((done, total))
    })
    .expect("pulled");
    assert!(archive_of(&pulled) == archive, "the archive differs");
    assert_eq!(heard.last(), Some(&(archive.len() as u64, archive.len() as u64)));
    assert!(heard.len() > 1 && heard.is_sorted());
}

#[test]
fn a_moved_tag_changes_nothing_for_a_pin() {
    let (world, registry) = (World::new(), Registry::honest());
    let first = world.push(&registry, "1", b"archive");
    let second = world.push(&registry, "1", b"another");
    assert_ne!(first.digest, second.digest);
    let tools = at(&registry, "team/tools:1");
    assert_eq!(archive_of(&world.pull_as(&tools, &nobody).expect("pulled")), b"another");
    assert_eq!(archive_of(&world.pull_as(&tools.pinned(first.digest), &nobody).expect("pulled")), b"archive");
}

#[test]
fn a_push_needs_a_tag() {
    let (world, registry) = (World::new(), Registry::honest());
    let reference = at(&registry, "team/tools").pinned(lillux::Digest::of(b"x"));
    let config = Config { id: String::new(), version: String::new(), signer: String::new() };
    let outgoing = Outgoing { config, manifest: b"", archive: Path::new("absent") };
    let refused = push(&reference, &outgoing, &world.access(&nobody), &mut |_, _| {});
    assert!(matches!(refused, Err(RegistryError::PushToDigest(_))));
    assert_eq!(registry.lines(), Vec::<String>::new());
}

#[test]
fn a_manifest_that_is_not_the_one_that_was_asked_for_is_refused() {
    let world = World::new();
    let registry = Registry::honest();
    let pushed = world.push(&registry, "1", b"archive");
    let other = world.push(&registry, "2", b"another");
    let mut store = registry.store.lock().expect("the store");
    let lie = store.manifests[&format!("sha256:{}", other.digest)].clone();
    store.manifests.insert(format!("sha256:{}", pushed.digest), lie);
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
fn a_digest_header_that_lies_is_refused() {
    let world = World::new();
    let registry = Registry::honest();
    world.push(&registry, "1", b"archive");
    let index = registry.store.lock().expect("the store").manifests["1"].clone();
    let registry = Registry::start(Box::new(move |_, _| {
        Some(answer("200 OK", &[("Docker-Content-Digest", "sha256:00")], index.clone()))
    }));
    assert!(world.refusal(&registry, ":1").contains("it calls the manifest sha256:00, which is sha256:"));
}

#[test]
fn a_blob_that_is_not_what_the_manifest_names_is_refused() {
    let world = World::new();
    for (body, reason) in [
        ("archivf", "has the digest sha256:"),
        ("arch", "has 4 of its 7 bytes"),
        ("archive and more", "has more than its 7 bytes"),
    ] {
        let registry = Registry::honest();
        world.push(&registry, "1", b"archive");
        registry.store.lock().expect("the store").blobs.insert(fake::named(b"archive"), body.into());
        let refusal = world.refusal(&registry, ":1");
        assert!(refusal.contains(reason), "{body}: {refusal}");
    }
    let registry = Registry::honest();
    world.push(&registry, "1", b"archive");
    registry.store.lock().expect("the store").blobs.remove(&fake::named(b"archive"));
    assert!(world.refusal(&registry, ":1").ends_with("which the manifest names, is not there"));
}

#[test]
fn a_body_without_end_is_left_at_its_bound() {
    let world = World::new();
    for part in ["/manifests/", "/blobs/"] {
        let registry = lying(&world, move |asked| {
            asked.path.contains(part).then(|| Answer { is_endless: true, ..answer("200 OK", &[], "") })
        });
        let refusal = world.refusal(&registry, ":1");
        assert!(
            refusal.contains("more than its") || refusal.contains("larger than 1048576 bytes"),
            "{refusal}"
        );
    }
    let registry = lying(&world, |_| Some(Answer { is_endless: true, ..answer("418 Teapot", &[], "") }));
    assert_eq!(
        world.refusal(&registry, ":1"),
        format!(
            "`{}` does not behave like a registry: it does not give the manifest (HTTP 418 I'm a teapot)",
            registry.address
        )
    );
}

#[test]
fn compressed_answers_are_not_unpacked() {
    let world = World::new();
    let registry = lying(&world, |asked| {
        let is_manifest = asked.path.contains("/manifests/");
        is_manifest.then(|| answer("200 OK", &[("Content-Encoding", "gzip")], b"\x1f\x8b\x08bomb".as_slice()))
    });
    assert!(world.refusal(&registry, ":1").contains("its manifest cannot be used"));
    assert!(registry.asked().iter().all(|asked| asked.header("accept-encoding").is_none()));
}

#[test]
fn an_image_is_refused_by_its_name() {
    let world = World::new();
    let image = r#"{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","layers":[]}"#;
    let registry = lying(&world, move |_| Some(answer("200 OK", &[], image)));
    let reference = at(&registry, "team/tools:1");
    assert_eq!(
        world.refusal(&registry, ":1"),
        format!(
            "`{reference}` is no bundle: it is of the media type `application/vnd.docker.distribution.manifest.v2+json`"
        )
    );
}

#[test]
fn what_is_not_there_is_not_found() {
    let (world, registry) = (World::new(), Registry::honest());
    let reference = at(&registry, "team/tools:1");
    assert_eq!(world.refusal(&registry, ":1"), format!("`{reference}` is not in the registry"));
}

#[test]
fn a_redirect_is_followed_without_credentials_and_never_to_a_private_address() {
    let world = World::new();
    let storage = Registry::start(Box::new(|_, _| Some(answer("200 OK", &[], "archive"))));
    let address = storage.address.to_string();
    let place = address.clone();
    let registry = lying(&world, move |asked| {
        if asked.header("authorization").is_none() {
            return Some(answer("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""));
        }
        let is_archive = asked.path.ends_with(&fake::named(b"archive"));
        is_archive
            .then(|| answer("307 Temporary Redirect", &[("Location", &format!("http://{place}/a"))], ""))
    });
    let reference = at(&registry, "team/tools:1");
    let refused = world.pull_as(&reference, &somebody).expect_err("refused").to_string();
    assert!(refused.contains("a loopback address, which is refused"), "{refused}");
    assert_eq!(storage.lines(), Vec::<String>::new());
    let access = Access { allowed_hosts: vec![address], ..world.access(&somebody) };
    let pulled = pull(&reference, &access, world.folder.path(), &mut |_, _| {}).expect("pulled");
    assert_eq!(archive_of(&pulled), b"archive");
    assert_eq!(storage.asked()[0].header("authorization"), None);
    for private in ["http://169.254.169.254/latest", "http://10.0.0.1/", "file:///etc/passwd"] {
        let registry = lying(&world, move |_| Some(answer("302 Found", &[("Location", private)], "")));
        let refusal = world.refusal(&registry, ":1");
        assert!(refusal.starts_with("the registry is not reached: "), "{refusal}");
    }
}

#[test]
fn a_redirect_loop_ends() {
    let world = World::new();
    let registry = lying(&world, |asked| Some(answer("302 Found", &[("Location", &asked.path)], "")));
    assert_eq!(world.refusal(&registry, ":1"), "the registry is not reached: more than 10 redirects");
    assert!(registry.asked().len() < 30);
}

#[test]
fn a_password_is_sent_when_it_is_asked_for() {
    let world = World::new();
    let registry = Registry::start(Box::new(|asked, _| {
        // ada:hunter2
        let is_known = asked.header("authorization") == Some("Basic YWRhOmh1bnRlcjI=");
        (!is_known).then(|| answer("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""))
    }));
    world.push_as(&registry, "1", b"archive", &somebody).expect("pushed");
    assert_eq!(registry.asked()[0].header("authorization"), None);
    world.pull_as(&at(&registry, "team/tools:1"), &somebody).expect("pulled");
    let refused = world.pull_as(&at(&registry, "team/tools:1"), &nobody).expect_err("refused");
    assert!(matches!(refused, RegistryError::Refused { has_credentials: false, .. }), "{refused:?}");
}

#[test]
fn a_registry_that_refuses_for_ever_is_asked_twice() {
    let world = World::new();
    let registry =
        lying(&world, |_| Some(answer("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], "")));
    let before = registry.asked().len();
    let refused = world.pull_as(&at(&registry, "team/tools:1"), &somebody).expect_err("refused");
    assert!(matches!(refused, RegistryError::Refused { has_credentials: true, .. }), "{refused:?}");
    assert_eq!(registry.asked().len() - before, 2);
    assert!(!format!("{refused} {refused:?}").contains("hunter2"));
}

/// A registry whose tokens come from its own `/token`.
fn with_tokens(token: &'static str) -> Registry {
    Registry::start(Box::new(move |asked, _| {
        let host = asked.header("host").expect("a host").to_owned();
        if asked.path == "/token" {
            let is_known = asked.header("authorization") == Some("Basic YWRhOmh1bnRlcjI=")
                || String::from_utf8_lossy(&asked.body).contains("refresh_token=long-lived");
            return Some(match is_known {
                true => answer("200 OK", &[], format!("{{\"token\":\"{token}\"}}")),
                false => answer(
                    "401 Unauthorized",
                    &[],
                    r#"{"errors":[{"code":"UNAUTHORIZED","message":"who?"}]}"#,
                ),
            });
        }
        let is_known = asked.header("authorization") == Some("Bearer good");
        let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"here\"");
        (!is_known).then(|| answer("401 Unauthorized", &[("WWW-Authenticate", &challenge)], ""))
    }))
}

#[test]
fn a_token_is_fetched_with_a_password_or_an_identity_token() {
    let world = World::new();
    let registry = with_tokens("good");
    world.push_as(&registry, "1", b"archive", &somebody).expect("pushed");
    let queries: Vec<String> = registry
        .asked()
        .into_iter()
        .filter(|asked| asked.path == "/token")
        .map(|asked| asked.query)
        .collect();
    assert_eq!(queries, ["scope=repository%3Ateam%2Ftools%3Apull%2Cpush&service=here"]);
    let identity = |_: &Reference| Ok(Some(Credentials::IdentityToken("long-lived".into())));
    world.pull_as(&at(&registry, "team/tools:1"), &identity).expect("pulled");
    let body =
        registry.asked().iter().rev().find(|asked| asked.method == "POST").map(|asked| asked.body.clone());
    assert_eq!(
        String::from_utf8_lossy(&body.expect("a form")),
        "scope=repository%3Ateam%2Ftools%3Apull&service=here&grant_type=refresh_token&client_id=rye&refresh_token=long-lived"
    );
    let stranger = world.pull_as(&at(&registry, "team/tools:1"), &nobody).expect_err("refused").to_string();
    assert_eq!(
        stranger,
        format!("`{}` refuses access to `team/tools` (HTTP 401: UNAUTHORIZED who?)", registry.address)
    );
}

#[test]
fn a_token_that_could_be_more_than_a_token_is_refused() {
    let world = World::new();
    for token in ["", "a b", "a\\r\\nX-Evil: 1", "\\u0000", "é"] {
        let registry = with_tokens(token);
        let refused =
            world.pull_as(&at(&registry, "team/tools:1"), &somebody).expect_err("refused").to_string();
        assert!(refused.contains("it gives out something that is no token"), "{token}: {refused}");
    }
}

#[test]
fn tokens_are_asked_for_at_public_places_only() {
    let world = World::new();
    for (realm, reason) in [
        ("https://169.254.169.254/", "a metadata address"),
        ("https://10.0.0.1/", "a private address"),
        ("https://127.0.0.1:1/", "a loopback address"),
        ("http://127.0.0.1:1/", "a loopback address"),
        ("nonsense", "something that is no URL"),
        ("file:///etc/passwd", "a place without https"),
        ("http://a.example/", "a place without https"),
        ("https://ada:hunter2@a.example/", "holds a user name or password"),
    ] {
        let registry = lying(&world, move |_| {
            Some(answer(
                "401 Unauthorized",
                &[("WWW-Authenticate", &format!("Bearer realm=\"{realm}\""))],
                "",
            ))
        });
        let refused =
            world.pull_as(&at(&registry, "team/tools:1"), &somebody).expect_err("refused").to_string();
        assert!(refused.contains(reason), "{realm}: {refused}");
    }
}

#[test]
fn a_passing_fault_is_tried_again_and_a_lasting_one_is_not_tried_for_ever() {
    let world = World::new();
    let left = Arc::new(AtomicUsize::new(2));
    let count = Arc::clone(&left);
    let registry = lying(&world, move |_| {
        let is_faulty =
            count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        is_faulty.then(|| answer("503 Service Unavailable", &[], ""))
    });
    world.pull_as(&at(&registry, "team/tools:1"), &nobody).expect("pulled");
    left.store(usize::MAX, Ordering::SeqCst);
    let before = registry.asked().len();
    assert!(world.refusal(&registry, ":1").contains("HTTP 503"));
    assert_eq!(registry.asked().len() - before, 3);
}

#[test]
fn an_upload_that_is_sent_elsewhere_takes_no_credentials_along() {
    let world = World::new();
    let storage = Registry::start(Box::new(|_, _| Some(answer("201 Created", &[], ""))));
    let place = storage.address.to_string();
    let registry = Registry::start(Box::new(move |asked, _| {
        if asked.header("authorization").is_none() {
            return Some(answer("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""));
        }
        let is_upload = asked.method == "POST";
        is_upload.then(|| answer("202 Accepted", &[("Location", &format!("http://{place}/up"))], ""))
    }));
    let refused = world.push_as(&registry, "1", b"archive", &somebody).expect_err("refused").to_string();
    assert!(refused.contains("a loopback address, which is refused"), "{refused}");
    assert_eq!(storage.lines(), Vec::<String>::new());
}

#[test]
fn plain_http_is_found_on_this_machine() {
    let (world, registry) = (World::new(), Registry::honest());
    world.push(&registry, "1", b"archive");
    let access = Access { allows_plain_http: false, ..world.access(&nobody) };
    let reference = at(&registry, "team/tools:1");
    let pulled = pull(&reference, &access, world.folder.path(), &mut |_, _| {}).expect("pulled");
    assert_eq!(archive_of(&pulled), b"archive");
}

#[test]
fn the_end_that_is_asked_for_comes_at_once() {
    let (world, registry) = (World::new(), Registry::honest());
    world.push(&registry, "1", b"archive");
    world.cancel.cancel();
    let ended = world.pull_as(&at(&registry, "team/tools:1"), &nobody);
    assert!(matches!(ended, Err(RegistryError::Cancelled)));
}
