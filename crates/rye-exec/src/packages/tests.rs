//! What may be asked for, how it is asked for, and what is read of the answer.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::*;
use crate::http::Secrets;

const HASH: &str = "sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274";
const SHA512: &str =
    "sha512-XI5MPzVNApjAyhQzphX8BkmKsKUxD4LdyK24iZeQGinBN9yTQT3bFlCBy/aVx2HrNcqQGsdot8ghrjyrvMCoEA==";

fn package(name: &str, version: &str, integrity: &str) -> LockedPackage {
    LockedPackage { name: name.to_owned(), version: version.to_owned(), integrity: integrity.to_owned() }
}

fn request_packages(ecosystem: Ecosystem, texts: &[&str]) -> RequestedPackages {
    let requirements = parse_requirements("t", &json!(texts), ecosystem).expect("requirements");
    RequestedPackages { ecosystem, requirements, requested_by: vec!["t".to_owned()] }
}

#[test]
fn python_requirement_is_name_extras_versions() {
    let text = |text: &str| requirement::parse_python(text).map(|requirement| requirement.text);
    assert_eq!(text("six"), Ok("six".to_owned()));
    assert_eq!(text(" Zope.Interface "), Ok("zope-interface".to_owned()));
    assert_eq!(
        text("requests [socks, use_chardet] >= 2.0, < 3"),
        Ok("requests[socks,use_chardet]>=2.0,<3".to_owned())
    );
    assert_eq!(text("a==1.*,!=1.2.*,~=1.1"), Ok("a==1.*,!=1.2.*,~=1.1".to_owned()));
    assert_eq!(text("a==1!2.0+local.1"), Ok("a==1!2.0+local.1".to_owned()));
}

#[test]
fn hostile_requirements_never_reach_an_installer() {
    let hostile = [
        "",
        " ",
        "-r other.txt",
        "-e .",
        "--index-url=http://evil",
        "git+https://host/x",
        "six @ https://host/six.whl",
        "./six.whl",
        "/tmp/six.whl",
        "..",
        "file:///x",
        "six; python_version < '3'",
        "six --hash=sha256:0",
        "six\n-e .",
        "six==1.0\n--index-url http://evil",
        "six==1.0 --no-binary :all:",
        "six==*",
        "six>=1.*",
        "six==",
        "six=1",
        "six 1.0",
        "six[",
        "six[a",
        "six[-e]",
        "six[]",
        "six,",
        "six==1,",
        "sïx",
        "six#egg=x",
        "six==1 # comment",
        "six==$(id)",
        "${HOME}",
    ];
    for text in hostile {
        assert!(requirement::parse_python(text).is_err(), "{text:?}");
    }
    let hostile = [
        "",
        "-g",
        "--registry=x",
        "git+ssh://x",
        "x@git+ssh://x",
        "x@file:..",
        "x@npm:y@1",
        "x@latest",
        "x@",
        "x@*",
        "x@>=1",
        "./x",
        "../x",
        "a/b",
        "@a",
        "@/b",
        "@a/",
        "X",
        "x@1 y",
        "x@1||2",
        "node_modules",
        ".x",
        "x\ny",
        "github:a/b",
        "x@http://y",
    ];
    for text in hostile {
        assert!(requirement::parse_node(text).is_err(), "{text:?}");
    }
    let fine = ["left-pad", "left-pad@1.3.0", "@scope/x@^1.2.3-beta.1", "x@~1.2", "x@1.x"];
    assert!(fine.iter().all(|text| requirement::parse_node(text).is_ok_and(|read| read.text == *text)));
}

#[test]
fn a_list_of_requirements_is_bounded() {
    let many = vec![json!("six"); MAX_REQUIREMENTS + 1];
    for wrong in [json!("six"), json!({"six": "1"}), json!([1]), json!(many)] {
        assert_eq!(
            parse_requirements("t", &wrong, Ecosystem::Python),
            Err(PackageError::InvalidList { item: "t".to_owned() }),
            "{wrong}"
        );
    }
    let long = json!(["x".repeat(MAX_REQUIREMENT_LENGTH + 1)]);
    assert!(matches!(
        parse_requirements("t", &long, Ecosystem::Python),
        Err(PackageError::InvalidRequirement { reason: "it is too long", .. })
    ));
}

#[test]
fn lockfile_pins_names_versions_and_hashes_only() {
    let requested = request_packages(Ecosystem::Python, &["six"]);
    let good = package("six", "1.17.0", HASH);
    assert_eq!(check_pins(std::slice::from_ref(&good), &requested), Ok(()));
    let two = package("six", "1.17.0", &format!("{HASH} {HASH}"));
    assert_eq!(check_pins(&[two], &requested), Ok(()));
    let hostile = [
        package("--index-url=http://evil", "1", HASH),
        package("six\n-e .", "1", HASH),
        package("six", "1\n--index-url=x", HASH),
        package("six", "1", "sha256:00"),
        package("six", "1", ""),
        package("six", "1", &format!("{HASH} --index-url=x")),
        package("six", "1", SHA512),
    ];
    for pin in hostile {
        let pins = [good.clone(), pin];
        assert!(matches!(check_pins(&pins, &requested), Err(PackageError::InvalidPin { .. })), "{pins:?}");
    }
    let other = package("seven", "1", HASH);
    assert_eq!(check_pins(&[other], &requested), Err(PackageError::Unpinned { name: "six".to_owned() }));
    let node = request_packages(Ecosystem::Node, &["left-pad"]);
    assert_eq!(check_pins(&[package("left-pad", "1.3.0", SHA512)], &node), Ok(()));
    assert!(check_pins(&[package("left-pad", "1.3.0", HASH)], &node).is_err());
}

#[test]
fn cache_key_covers_interpreter_requirements_and_pins() {
    let (one, two) =
        (request_packages(Ecosystem::Python, &["a", "b"]), request_packages(Ecosystem::Python, &["a"]));
    let python = vec!["/usr/bin/python3".to_owned()];
    let pins = [package("a", "1", HASH), package("b", "1", HASH)];
    let turned = [pins[1].clone(), pins[0].clone()];
    let loose = cache_key(&python, &one.requirements, None);
    assert_eq!(loose.len(), 16);
    assert_eq!(
        cache_key(&python, &one.requirements, Some(&pins)),
        cache_key(&python, &one.requirements, Some(&turned))
    );
    let others = [
        cache_key(&["/usr/bin/python3.12".to_owned()], &one.requirements, None),
        cache_key(&python, &two.requirements, None),
        cache_key(&python, &one.requirements, Some(&pins)),
        cache_key(&python, &one.requirements, Some(&pins[..1])),
    ];
    assert!(others.iter().all(|other| *other != loose), "{others:?}");
}

#[test]
fn record_round_trips_and_rejects_garbage() {
    let record = PackageRecord::new(vec![package("b", "1", HASH), package("a", "2", HASH)]);
    assert_eq!(PackageRecord::parse(record.to_text().as_bytes()), Some(record.clone()));
    assert!(record.matches(&[package("b", "1", HASH), package("a", "2", HASH)]));
    assert!(!record.matches(&[package("b", "1", HASH)]));
    for wrong in
        ["", "{}", r#"{"record_version":2,"packages":[]}"#, r#"{"record_version":1,"packages":[{}]}"#]
    {
        assert_eq!(PackageRecord::parse(wrong.as_bytes()), None, "{wrong}");
    }
}

#[test]
fn pip_report_has_a_hash_per_wheel() {
    let row = |name: &str, hashes: Value| json!({"metadata": {"name": name, "version": "1.17.0"}, "download_info": {"archive_info": hashes}});
    let hex = HASH.strip_prefix("sha256:").expect("hex");
    let report = json!({"install": [
        row("Six", json!({"hashes": {"sha256": hex}})),
        row("Old_Pip", json!({"hash": format!("sha256={hex}")})),
    ]});
    let found = parse_pip_report(report.to_string().as_bytes());
    assert_eq!(found, Ok(vec![package("old-pip", "1.17.0", HASH), package("six", "1.17.0", HASH)]));
    for hashes in [json!({}), json!({"hashes": {"md5": "x"}}), json!({"hashes": {"sha256": "x"}})] {
        let report = json!({"install": [row("six", hashes)]}).to_string();
        assert!(parse_pip_report(report.as_bytes()).is_err(), "{report}");
    }
    assert!(parse_pip_report(b"{}").is_err() && parse_pip_report(b"[").is_err());
    assert_eq!(parse_pip_version("pip 23.2.1 from /x (python 3.11)\n"), Some((23, 2)));
    assert_eq!(parse_pip_version("no pip"), None);
}

#[test]
fn uv_output_has_hashes_per_version() {
    let other = HASH.replace("4721", "0000");
    let text = format!(
        "six==1.17.0 \\\n    --hash={HASH} \\\n    --hash={other}\n# via x\nrich[all]==1.0 --hash={HASH}\n"
    );
    let expected = vec![package("rich", "1.0", HASH), package("six", "1.17.0", &format!("{other} {HASH}"))];
    assert_eq!(parse_compiled(&text), Ok(expected.clone()));
    assert_eq!(pins_file(&expected[1..]), format!("six==1.17.0 --hash={other} --hash={HASH}\n"));
    for wrong in ["six==1.17.0\n", "six @ https://x --hash=sha256:0\n", "-e .\n", "--index-url x\n"] {
        assert!(parse_compiled(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn package_lock_has_a_hash_per_package() {
    let entry =
        json!({"version": "1.3.0", "resolved": "https://registry.npmjs.org/x.tgz", "integrity": SHA512});
    let lock = |path: &str, entry: &Value| json!({"packages": {"": {}, path: entry}}).to_string();
    let read = |path: &str, entry: &Value| parse_package_lock(lock(path, entry).as_bytes());
    assert_eq!(read("node_modules/left-pad", &entry), Ok(vec![package("left-pad", "1.3.0", SHA512)]));
    assert_eq!(read("node_modules/a/node_modules/@b/c", &entry), Ok(vec![package("@b/c", "1.3.0", SHA512)]));
    assert_eq!(read("node_modules/a/node_modules/b", &json!({"inBundle": true})), Ok(Vec::new()));
    let mut wrong = Vec::new();
    for (key, value) in
        [("integrity", json!("sha1-x")), ("resolved", json!("git+ssh://x")), ("version", json!("../x"))]
    {
        let mut entry = entry.clone();
        entry[key] = value;
        wrong.push(read("node_modules/x", &entry));
    }
    wrong.extend([read("../x", &entry), read("node_modules/x", &json!({"link": true}))]);
    assert!(wrong.iter().all(Result::is_err), "{wrong:?}");
}

#[test]
fn pinned_npm_versions_replace_requested_ones() {
    let requested = request_packages(Ecosystem::Node, &["a@^1.0.0", "b"]);
    let read = |text: String| serde_json::from_str::<Value>(&text).expect("JSON");
    assert_eq!(
        read(package_json(&requested.requirements, None)),
        json!({"private": true, "dependencies": {"a": "^1.0.0", "b": "*"}})
    );
    let pins = ["a 1.2.0", "b 2.0.0", "c 3.0.0", "d 1.0.0", "d 2.0.0"];
    let pins = pins
        .map(|pin| pin.split_once(' ').expect("two words"))
        .map(|(name, version)| package(name, version, SHA512));
    assert_eq!(
        read(package_json(&requested.requirements, Some(&pins))),
        json!({"private": true, "dependencies": {"a": "1.2.0", "b": "2.0.0"}, "overrides": {"c": "3.0.0"}})
    );
}

#[test]
fn installers_build_nothing_and_run_no_scripts() {
    let pip =
        InstallerCommand { program: PathBuf::from("/p"), arguments: vec!["-m".to_owned(), "pip".to_owned()] };
    let file = Path::new("/t/pins.txt");
    let loose = pip_install(&pip, file, Path::new("/t/r.json"), false).arguments;
    let pinned = pip_install(&pip, file, Path::new("/t/r.json"), true).arguments;
    let has = |arguments: &[String], word: &str| arguments.iter().any(|argument| argument == word);
    assert!(has(&loose, "--only-binary=:all:") && !has(&loose, "--require-hashes"), "{loose:?}");
    assert!(["--only-binary=:all:", "--require-hashes", "--no-deps"].iter().all(|word| has(&pinned, word)));
    let (uv, cache, environment) = (Path::new("/uv"), Path::new("/t/uv"), Path::new("/e"));
    let install = uv_install(uv, None, cache, environment, file).arguments;
    assert!(["--require-hashes", "--no-deps", ":all:", "--no-config"].iter().all(|word| has(&install, word)));
    let own = uv_install(uv, Some(Path::new("/h/uv.toml")), cache, environment, file).arguments;
    assert!(has(&own, "--config-file") && !has(&own, "--no-config"));
    for npm in [npm_lock_command(uv, environment, cache), npm_install_command(uv, environment, cache)] {
        assert!(has(&npm.arguments, "--ignore-scripts"), "{npm:?}");
    }
}

#[test]
fn pip_is_chosen_when_only_pip_is_configured() {
    let uv = || Some(PathBuf::from("/uv"));
    let settings = |has_pip, has_uv| IndexSettings { has_pip_index: has_pip, has_uv_index: has_uv };
    assert_eq!(choose_installer(uv(), settings(false, false)), Installer::Uv(PathBuf::from("/uv")));
    assert_eq!(choose_installer(uv(), settings(true, true)), Installer::Uv(PathBuf::from("/uv")));
    assert_eq!(choose_installer(uv(), settings(true, false)), Installer::Pip);
    assert_eq!(choose_installer(None, settings(false, true)), Installer::Pip);
    assert!(has_index_settings("[global]\nindex_url = https://x\n") && has_index_settings("no-index: true"));
    assert!(!has_index_settings("[global]\ncert = /x\ntimeout = 5\n"));
}

#[test]
fn installer_output_hides_credentials_and_controls() {
    let mut secrets = Secrets::default();
    secrets.add("s3cr3t-token");
    let printed = "Looking in https://user:pa/ss@host/simple, http://tok@[::1]:8/\n\u{1b}[31mERROR\u{1b}[0m s3cr3t-token\n\n";
    let lines = last_lines(printed, "see https://host/a@b and a@b://c\n", &secrets);
    assert_eq!(lines[0], "Looking in https://[hidden]@host/simple, http://[hidden]@[::1]:8/");
    assert!(!lines[1].contains("s3cr3t") && !lines[1].contains('\u{1b}'), "{lines:?}");
    let many = "line\n".repeat(100);
    assert_eq!(last_lines(&many, "", &secrets).len(), 15);
}
