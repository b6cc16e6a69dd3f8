//! `rye keys encrypt`: a private key that is not used without its passphrase, and nothing that asks without a terminal.

use std::path::PathBuf;

use assert_cmd::Command;
use serde_json::json;

use crate::mcp_client::Client;
use crate::support::{User, run, text};

const VARIABLE: &str = "RYE_KEY_PASSPHRASE_FILE";

/// A user whose key is encrypted, and the file with its passphrase.
fn encrypted_user() -> (User, PathBuf) {
    let user = User::initialized();
    let file = user.context.write("passphrase", "correct horse battery\n");
    let encrypted = run(user.command().env(VARIABLE, &file).args(["--json", "keys", "encrypt"]));
    assert_eq!(encrypted.exit, 0, "{encrypted}");
    assert_eq!(encrypted.json()["data"]["encrypted"], true, "{encrypted}");
    (user, file)
}

fn private_key(user: &User) -> String {
    user.context.text("home/.ai/config/keys/signing/private_key.pem")
}

/// The command with the passphrase at hand.
fn unlocked(user: &User, file: &PathBuf) -> Command {
    let mut command = user.command();
    command.env(VARIABLE, file);
    command
}

#[test]
fn encrypted_key_signs_with_its_passphrase_only() {
    let (user, file) = encrypted_user();
    assert!(private_key(&user).starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----"));
    user.write("tools/team/x.py", rye_test::tool("team", "X"));
    let refused = user.assert_refused(["sign", "tool", "team/x"], 4, "RYE0420");
    assert!(refused["hints"].to_string().contains(VARIABLE), "{refused}");
    // What needs no signature works as before.
    user.ok(["load", "tool", "examples/hello"]);
    user.ok(["verify", "tool", "examples/hello"]);
    user.ok(["execute", "examples/hello"]);

    let wrong = user.context.write("wrong", "another one\n");
    run(unlocked(&user, &wrong).args(["--json", "sign", "tool", "team/x"])).error(4, "RYE0420");
    let empty = user.context.write("empty", "\n");
    run(unlocked(&user, &empty).args(["--json", "sign", "tool", "team/x"])).error(4, "RYE0420");
    run(unlocked(&user, &user.home().join("none")).args(["--json", "sign", "tool", "team/x"]))
        .error(4, "RYE0420");
    let signed = run(unlocked(&user, &file).args(["sign", "tool", "team/x"]));
    assert_eq!(signed.exit, 0, "{signed}");
    user.ok(["load", "tool", "team/x"]);
}

#[test]
fn passphrase_is_read_from_a_pipe() {
    let (user, _) = encrypted_user();
    user.write("tools/team/x.py", rye_test::tool("team", "X"));
    let rye = assert_cmd::cargo::cargo_bin!("rye");
    let script =
        format!("echo 'correct horse battery' | {VARIABLE}=/dev/fd/0 '{}' sign tool team/x", rye.display());
    let output = user.program("sh").args(["-c", &script]).output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    user.ok(["load", "tool", "team/x"]);
}

#[test]
fn decrypted_key_is_the_same_key() {
    let (user, file) = encrypted_user();
    let before = user.fingerprint();
    user.assert_refused(["keys", "decrypt"], 4, "RYE0420");
    let decrypted = run(unlocked(&user, &file).args(["--json", "keys", "decrypt"]));
    assert_eq!(decrypted.json()["data"], json!({"fingerprint": before, "encrypted": false, "changed": true}));
    assert!(private_key(&user).starts_with("-----BEGIN PRIVATE KEY-----"));
    user.signed_tool("x", "X");
    assert_eq!(user.fingerprint(), before);
}

#[test]
fn weak_passphrases_are_refused() {
    let user = User::initialized();
    let file = user.context.write("short", "short\n");
    let refused = run(unlocked(&user, &file).args(["--json", "keys", "encrypt"])).error(2, "RYE0104");
    assert!(text(&refused["error"]).contains("at least"), "{refused}");
    user.assert_refused(["keys", "encrypt"], 2, "RYE0105");
    assert!(private_key(&user).starts_with("-----BEGIN PRIVATE KEY-----"));
    let (encrypted, file) = encrypted_user();
    run(unlocked(&encrypted, &file).args(["--json", "keys", "encrypt"])).error(2, "RYE0104");
}

#[test]
fn rotated_key_keeps_its_passphrase() {
    let (user, file) = encrypted_user();
    user.assert_refused(["keys", "rotate"], 4, "RYE0420");
    let before = user.fingerprint();
    let rotated = run(unlocked(&user, &file).args(["--json", "keys", "rotate"]));
    assert_eq!(rotated.exit, 0, "{rotated}");
    assert_ne!(user.fingerprint(), before);
    assert!(private_key(&user).starts_with("-----BEGIN ENCRYPTED PRIVATE KEY-----"));
    user.write("tools/team/x.py", rye_test::tool("team", "X"));
    user.assert_refused(["sign", "tool", "team/x"], 4, "RYE0420");
    assert_eq!(run(unlocked(&user, &file).args(["sign", "tool", "team/x"])).exit, 0);
}

#[test]
fn servers_do_not_ask_for_a_passphrase() {
    let (user, _) = encrypted_user();
    user.write_user("config/config.yaml", "version: \"1.0.0\"\ncategory: \"\"\nmcp:\n  sign: allow\n");
    user.write("tools/team/x.py", rye_test::tool("team", "X"));
    let mut client = Client::connect(&user);
    client.call("rye_load", json!({"item_id": "tool:examples/hello"}));
    client.call_error("rye_sign", json!({"item_type": "tool", "item_id": "team/x"}), "RYE0420");
}

#[test]
fn tools_cannot_read_the_passphrase() {
    let (user, file) = encrypted_user();
    let run_tool = |command: &str| {
        run(unlocked(&user, &file).args(["--json", "execute", "rye/bash", &format!("command={command}")]))
    };
    let path = file.display();
    let read = run_tool(&format!("cat {path}"));
    assert!(!read.stdout.contains("horse"), "{read}");
    assert!(run_tool(&format!("cat {path}.not || echo no file")).stdout.contains("no file"));
    // A file that the environment does not name is readable.
    let other = user.context.write("other", "open\n");
    assert!(run_tool(&format!("cat {}", other.display())).stdout.contains("open"));
}
