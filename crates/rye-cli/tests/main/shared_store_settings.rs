//! Which settings may name a store that machines share: the user's own, signed.

use serde_json::json;

use crate::support::User;

/// Settings of a store whose server does not listen.
fn settings(key: &str) -> String {
    format!(
        "version: \"1.0.0\"\ncategory: \"\"\n{key}:\n  store: team\n  stores:\n    team:\n      \
         url: \"postgres://rye@127.0.0.1:1/rye\"\n"
    )
}

#[test]
fn project_names_no_shared_store() {
    let user = User::initialized();
    user.write("config/config.yaml", settings("threads"));
    user.ok(["sign", "config", "config", "--space", "project"]);
    let listed = user.ok(["thread", "list"]);
    assert!(listed.stderr.contains("`threads.store` in project config is ignored"), "{listed}");
    assert_eq!(user.data(["thread", "list"]), json!({"threads": []}));
}

#[test]
fn unsigned_store_settings_are_refused() {
    let user = User::initialized();
    let file = "config/config.yaml";
    for key in ["threads", "\"thre\\u0061ds\""] {
        let path = user.write_user(file, settings(key));
        user.assert_refused(["thread", "list"], 1, "RYE1158");
        user.assert_refused(["run", "examples/greet"], 1, "RYE1158");
        user.ok(["sign", "config", "config", "--space", "user"]);
        let used = user.run(["thread", "list"]);
        assert!(used.exit != 0 && used.stderr.contains("127.0.0.1:1"), "{used}");
        let signed = std::fs::read_to_string(&path).expect("read");
        user.write_user(file, format!("{signed}# changed\n"));
        let changed = user.run(["thread", "list"]);
        assert!(changed.exit != 0 && changed.stderr.contains("RYE1158"), "{changed}");
        let hint = "changed since it was signed: read it, then `rye sign config config --space user`";
        assert!(changed.stderr.contains(hint), "{changed}");
    }
}
