//! A tool's file is swapped while it is run: what was verified runs, or nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::running::{attempt, function, function_text, result, signed};
use crate::support::{User, snapshot, text};

/// Writes `contents` to `path` one after the other, whole each time, while `work` is done.
fn while_swapping<R>(path: &Path, contents: [&[u8]; 2], work: impl FnOnce() -> R) -> R {
    let is_over = AtomicBool::new(false);
    let beside = path.with_extension("swap");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for content in contents.iter().cycle() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                fs::write(&beside, content).expect("written");
                fs::rename(&beside, path).expect("swapped");
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

fn evil(user: &User) -> String {
    let mark = user.project().join("evil").display().to_string();
    function_text("", &format!("open({mark:?}, 'w').close()\nreturn 'evil'"))
}

/// Runs `team/<name>` thirty times: it gives `good` or is refused, and never leaves the evil one's mark.
fn assert_never_evil(user: &User, name: &str, good: &Value) {
    for _ in 0..30 {
        let run = attempt(user, name, &[]);
        match run.exit {
            0 => assert_eq!(run.json()["data"], *good, "{run}"),
            4 => assert!(matches!(&*text(&run.json()["code"]), "RYE0401" | "RYE0402"), "{run}"),
            _ => panic!("{run}"),
        }
        assert!(!user.project().join("evil").exists(), "{run}");
    }
}

#[test]
fn a_tool_swapped_for_another_while_it_is_run_never_runs() {
    let user = User::ready();
    let path = function(&user, "swapped", "return 'good'");
    result(&user, "swapped", &[]);
    let good = fs::read(&path).expect("the tool");
    while_swapping(&path, [&good, evil(&user).as_bytes()], || {
        assert_never_evil(&user, "swapped", &json!("good"))
    });
}

#[test]
fn a_tool_under_the_signature_of_the_good_one_never_runs() {
    let user = User::ready();
    let path = function(&user, "swapped", "return 'good'");
    let good = fs::read_to_string(&path).expect("the tool");
    let (signature, _) = good.split_once('\n').expect("a signature");
    let forged = format!("{signature}\n{}", evil(&user));
    while_swapping(&path, [good.as_bytes(), forged.as_bytes()], || {
        assert_never_evil(&user, "swapped", &json!("good"));
    });
}

#[test]
fn a_runtime_swapped_while_a_tool_runs_on_it_never_runs() {
    let user = User::ready();
    let runtime = |command: &str| {
        format!(
            "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: shell\ndescription: Runs\nconfig:\n  command: /bin/bash\n  args: [\"-c\", \"{command}\"]\n  result: last_json_line\n"
        )
    };
    let path = signed(&user, "team/shell", "yaml", &runtime("echo 1"));
    signed(
        &user,
        "team/swapped",
        "sh",
        "# version: 1.0.0\n# tool_type: shell\n# executor_id: team/shell\n# category: team\n# description: Is run\n",
    );
    let good = fs::read(&path).expect("the runtime");
    let bad = runtime("touch evil; echo 2");
    while_swapping(&path, [&good, bad.as_bytes()], || assert_never_evil(&user, "swapped", &json!(1)));
}

/// Every copy of a file named `name` below the cache.
fn copies(user: &User, name: &str) -> Vec<PathBuf> {
    snapshot(&user.world.cache()).into_keys().filter(|path| path.ends_with(name)).collect()
}

#[test]
fn a_changed_copy_in_the_cache_never_runs() {
    let user = User::ready();
    function(&user, "kept", "return 'good'");
    result(&user, "kept", &[]);
    let copies = copies(&user, "kept.py");
    assert!(!copies.is_empty());
    for copy in &copies {
        let length = fs::metadata(copy).expect("a copy").len();
        fs::remove_file(copy).expect("removed");
        fs::write(copy, evil(&user)).expect("replaced");
        assert_ne!(length, 0);
    }
    assert_never_evil(&user, "kept", &json!("good"));
    for copy in &copies {
        fs::remove_file(copy).expect("removed");
        std::os::unix::fs::symlink(user.world.write("elsewhere.py", evil(&user)), copy).expect("a link");
    }
    assert_never_evil(&user, "kept", &json!("good"));
}

#[test]
fn a_tool_does_not_change_the_copy_another_is_run_from() {
    let user = User::ready();
    function(&user, "kept", "return 'good'");
    result(&user, "kept", &[]);
    let copy = copies(&user, "kept.py").pop().expect("a copy");
    let good = fs::read(&copy).expect("the copy");
    function(
        &user,
        "attacks",
        &format!(
            "try:\n    open({:?}, 'a').close()\nexcept OSError as error:\n    return error.errno\n",
            copy.display().to_string()
        ),
    );
    let refused = result(&user, "attacks", &[]);
    assert!(refused.is_number(), "{refused}");
    assert_eq!(fs::read(&copy).expect("the copy"), good);
}
