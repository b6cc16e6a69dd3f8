//! Bundles, projects and archives that mean harm: each is refused by name, and nothing is changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::install::{BundleAuthor, install, installed_files};
use crate::support::{User, copy_tree, text};

/// The words of an installation by a user who agrees to everything.
fn install_arguments(source: &Path, maker: &BundleAuthor) -> Vec<String> {
    let source = source.to_str().expect("text").to_owned();
    vec!["install".to_owned(), source, "--trust".to_owned(), maker.fingerprint(), "--yes".to_owned()]
}

/// Changes the manifest of a bundle and lets its maker sign it again: what a maker who means harm can do.
fn change_and_resign(maker: &BundleAuthor, bundle: &Path, change: impl Fn(&str) -> String) {
    let path = bundle.join(".ai/bundles/gifts/manifest.yaml");
    let signed = fs::read_to_string(&path).expect("a manifest");
    let (_, body) = signed.split_once('\n').expect("a signature line");
    let body = change(body);
    assert_ne!(body, signed);
    let key = fs::read_to_string(maker.user.home().join(".ai/config/keys/signing/private_key.pem"));
    let line = rye_test::signature(&key.expect("a key"), body.as_bytes());
    fs::write(&path, format!("# {line}\n{body}")).expect("written");
}

/// Adds a file to a bundle, listed and signed.
fn add_file(maker: &BundleAuthor, bundle: &Path, path: &str, content: &str) {
    let file = bundle.join(path);
    fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
    fs::write(file, content).expect("written");
    let hash = lillux::Digest::of(content.as_bytes());
    change_and_resign(maker, bundle, |body| {
        format!("{body}  \"{path}\":\n    sha256: \"{hash}\"\n    inline_signed: false\n")
    });
}

#[test]
fn a_bundle_that_was_changed_is_not_installed() {
    let maker = BundleAuthor::new();
    let made = maker.create("1.0.0");
    type Damage = fn(&Path);
    let changes: [(&str, Damage); 6] = [
        ("a tool", |folder| fs::write(folder.join(".ai/tools/team/hi.py"), "print(1)").expect("written")),
        ("data", |folder| fs::write(folder.join(".ai/tools/team/data.json"), "{}").expect("written")),
        ("a file too few", |folder| fs::remove_file(folder.join(".ai/tools/team/hi.py")).expect("removed")),
        ("a file too many", |folder| fs::write(folder.join(".ai/tools/team/x.py"), "").expect("written")),
        ("the manifest", |folder| {
            let path = folder.join(".ai/bundles/gifts/manifest.yaml");
            let text = fs::read_to_string(&path).expect("read").replace("1.0.0", "1.0.1");
            fs::write(path, text).expect("written");
        }),
        ("no signature", |folder| {
            let path = folder.join(".ai/bundles/gifts/manifest.yaml");
            let signed = fs::read_to_string(&path).expect("read");
            fs::write(path, signed.split_once('\n').expect("a line").1).expect("written");
        }),
    ];
    let user = User::initialized();
    for (what, change) in changes {
        let folder = maker.user.context.path().join(what.replace(' ', "-"));
        copy_tree(&made, &folder);
        change(&folder);
        let refusal = user.assert_refused(install_arguments(&folder, &maker), 4, "RYE0603");
        assert!(text(&refusal["error"]).contains("gifts"), "{what}: {refusal}");
    }
}

#[test]
fn bundle_signed_by_unlisted_key_is_refused() {
    let (maker, other_user) = (BundleAuthor::new(), BundleAuthor::new());
    let made = maker.create("1.0.0");
    // Another user signs the manifest, and ships no document.
    change_and_resign(&other_user, &made, |body| format!("{body}\n"));
    let user = User::initialized();
    user.assert_refused(install_arguments(&made, &maker), 4, "RYE0603");
    user.assert_refused(install_arguments(&made, &other_user), 4, "RYE0603");
}

#[test]
fn revoked_signer_is_refused() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let made = maker.create("1.0.0");
    user.ok(["keys", "revoke", &maker.fingerprint()]);
    user.assert_refused(install_arguments(&made, &maker), 4, "RYE0405");
}

#[test]
fn bundle_cannot_contain_settings_keys_or_repositories() {
    let maker = BundleAuthor::new();
    let made = maker.create("1.0.0");
    let user = User::initialized();
    for (number, path) in [
        ".ai/config/config.yaml",
        ".ai/config/execution/sandbox.yaml",
        ".ai/config/other/x.yaml",
        ".ai/tools/other/x.json",
        ".ai/objects/x",
        ".ai/installs/x",
        ".ai/.gitattributes",
        ".ai/tools/team/data/.git/config",
        ".ai/tools/team/data/HEAD",
        ".ai/knowledge/team/x/commondir",
        ".ai/tools/team/data/.hg/hgrc",
    ]
    .into_iter()
    .enumerate()
    {
        let folder = maker.user.context.path().join(format!("sly-{number}"));
        copy_tree(&made, &folder);
        add_file(&maker, &folder, path, "x: 1\n");
        let refusal = user.assert_refused(install_arguments(&folder, &maker), 5, "RYE0612");
        assert!(text(&refusal["error"]).contains(path), "{refusal}");
    }
}

#[test]
fn bundle_identity_documents_are_not_imported() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let made = maker.create("1.0.0");
    for space in ["project", "user"] {
        install(&user, &made, &maker, &["--space", space]);
    }
    let name = format!(".ai/config/keys/trusted/{}.toml", maker.fingerprint());
    assert!(made.join(&name).is_file());
    assert!(!user.project().join(&name).exists() && !user.home().join(&name).exists());
    // Its key vouches for what the bundle brought, and for nothing else.
    maker.write_tool("more", "1");
    maker.user.ok(["sign", "tool", "team/more"]);
    let unlisted = maker.user.read("tools/team/more.py");
    user.write("tools/team/more.py", unlisted);
    user.assert_refused(["load", "tool", "team/more"], 4, "RYE0404");
}

#[test]
fn a_folder_with_links_is_not_installed() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    for (number, (target, name)) in
        [("/etc/passwd", "tools/team/link.py"), ("hi.py", "tools/team/again.py"), ("/etc", "knowledge/etc")]
            .into_iter()
            .enumerate()
    {
        let folder = maker.create_as("1.0.0", &format!("linked-{number}"));
        symlink(target, folder.join(".ai").join(name)).expect("a link");
        let refusal = user.assert_refused(install_arguments(&folder, &maker), 5, "RYE0612");
        assert!(text(&refusal["error"]).contains("symbolic link"), "{refusal}");
    }
}

/// An archive made by another program, with whatever names and kinds it likes.
fn run_python(user: &User, script: &str) {
    let output = user.program("python3").arg("-c").arg(script).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn archive_path_escapes_are_refused() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let archive = user.context.path().join("evil.zip");
    for (name, mode) in [
        ("../evil.txt", 0o100_644),
        (".ai/../../evil.txt", 0o100_644),
        ("/tmp/evil.txt", 0o100_644),
        (".ai/tools/team/link", 0o120_777),
        (".ai/tools/team/pipe", 0o010_644),
    ] {
        run_python(
            &user,
            &format!(
                "import zipfile as z\na = z.ZipFile({:?}, 'w')\na.writestr('.ai/tools/team/a.py', 'x')\ni = z.ZipInfo({name:?})\ni.create_system = 3\ni.external_attr = {mode} << 16\na.writestr(i, '/etc/passwd')\na.close()\n",
                archive.display()
            ),
        );
        let refusal = user.assert_refused(install_arguments(&archive, &maker), 4, "RYE0611");
        assert!(text(&refusal["error"]).contains(name), "{refusal}");
    }
    let cache: Vec<_> = fs::read_dir(user.context.cache().join("rye"))
        .map(|entries| entries.map(|entry| entry.expect("an entry").file_name()).collect())
        .unwrap_or_default();
    assert!(cache.iter().all(|name| !name.to_string_lossy().starts_with("install-")), "{cache:?}");
}

/// A project another user made, with a bundle they say is installed in it.
fn cloned_project() -> (BundleAuthor, User) {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    install(&user, &maker.create("1.0.0"), &maker, &[]);
    (maker, user)
}

fn forge_lock(user: &User, change: impl Fn(&str) -> String) -> PathBuf {
    let path = user.project().join(".ai/bundles/gifts/.bundle-lock.json");
    let forged = change(&fs::read_to_string(&path).expect("a lockfile"));
    fs::write(&path, forged).expect("written");
    path
}

#[test]
fn forged_lockfile_cannot_remove_outside_files() {
    for forged in [
        "../../../secret",
        "/etc/hostname",
        ".ai/../../secret",
        ".ai/tools/../../../secret",
        "secret",
        ".ai/tools/a\\u0000b",
    ] {
        let (_, user) = cloned_project();
        fs::write(user.context.path().join("secret"), "secret").expect("written");
        forge_lock(&user, |text| text.replace(".ai/tools/team/hi.py", forged));
        user.assert_refused(["uninstall", "gifts"], 4, "RYE0618");
        user.assert_refused(["uninstall", "gifts", "--force"], 4, "RYE0618");
        assert_eq!(fs::read(user.context.path().join("secret")).expect("there"), b"secret");
    }
}

#[test]
fn forged_lockfile_cannot_remove_foreign_files() {
    let (_, user) = cloned_project();
    forge_lock(&user, |text| {
        text.replace(".ai/tools/team/hi.py\"", ".ai/tools/team/hi.py\",\n    \".ai/tools/examples/hello.py\"")
    });
    let gone = user.data(["uninstall", "gifts"]);
    assert_eq!(gone["kept"], serde_json::json!([".ai/tools/examples/hello.py"]), "{gone}");
    user.ok(["load", "tool", "examples/hello"]);
}

#[test]
fn folder_replaced_by_link_is_not_followed() {
    let (maker, user) = cloned_project();
    let outside = user.context.path().join("outside");
    copy_tree(&user.project().join(".ai/tools/team"), &outside);
    fs::remove_dir_all(user.project().join(".ai/tools/team")).expect("removed");
    symlink(&outside, user.project().join(".ai/tools/team")).expect("a link");
    let gone = user.data(["uninstall", "gifts"]);
    assert_eq!(gone["files_removed"], 1, "{gone}");
    assert_eq!(fs::read_dir(&outside).expect("there").count(), 3);
    user.assert_refused(install_arguments(&maker.create("2.0.0"), &maker), 5, "RYE0613");
    assert_eq!(fs::read_dir(&outside).expect("there").count(), 3);
}

#[test]
fn project_supplied_install_journal_is_ignored() {
    let (_, user) = cloned_project();
    let journal = "{\"journal\": 1, \"phase\": \"applying\", \"changes\": []}";
    for location in
        ["bundles/journal.json", "installs/journal.json", "bundles/.staging-0123456789abcdef/journal.json"]
    {
        user.write(location, journal);
    }
    user.write("bundles/.staging-0123456789abcdef/0", "x");
    let before = installed_files(&user);
    user.ok(["bundle", "verify", "gifts"]);
    user.ok(["bundle", "list"]);
    assert_eq!(installed_files(&user), before);
}

#[test]
fn bundle_names_have_no_terminal_escapes() {
    let maker = BundleAuthor::new();
    let made = maker.create("1.0.0");
    change_and_resign(&maker, &made, |body| {
        body.replace("description: \"\"", "description: \"\\u001b]0;owned\\u0007 \\u202e evil\"")
    });
    let user = User::initialized();
    let run = user.run(install_arguments(&made, &maker));
    assert_eq!(run.exit, 0, "{run}");
    run.assert_plain();
}
