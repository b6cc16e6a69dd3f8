//! A tool's file is swapped while it is run: what was verified runs, or nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::{User, snapshot, text};
use crate::tool_support::{execute_data, function_text, try_execute, write_function, write_signed_tool};

/// Writes `contents` to `path` one after the other, whole each time, while `work` is done.
fn while_swapping<R>(path: &Path, contents: [&[u8]; 2], work: impl FnOnce() -> R) -> R {
    let is_done = AtomicBool::new(false);
    let swap_path = path.with_extension("swap");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for content in contents.iter().cycle() {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                fs::write(&swap_path, content).expect("written");
                fs::rename(&swap_path, path).expect("swapped");
            }
        });
        let done = work();
        is_done.store(true, Ordering::Relaxed);
        done
    })
}

fn evil_tool(user: &User) -> String {
    let mark = user.project().join("evil").display().to_string();
    function_text("", &format!("open({mark:?}, 'w').close()\nreturn 'evil'"))
}

/// Runs `team/<name>` thirty times: it gives `good` or is refused, and never leaves the evil one's mark.
fn assert_never_evil(user: &User, name: &str, good: &Value) {
    for _ in 0..30 {
        let run = try_execute(user, name, &[]);
        match run.exit {
            0 => assert_eq!(run.json()["data"], *good, "{run}"),
            4 => assert!(matches!(&*text(&run.json()["code"]), "RYE0401" | "RYE0402"), "{run}"),
            _ => panic!("{run}"),
        }
        assert!(!user.project().join("evil").exists(), "{run}");
    }
}

#[test]
fn swapped_tool_never_runs() {
    let user = User::initialized();
    let path = write_function(&user, "swapped", "return 'good'");
    execute_data(&user, "swapped", &[]);
    let good = fs::read(&path).expect("the tool");
    while_swapping(&path, [&good, evil_tool(&user).as_bytes()], || {
        assert_never_evil(&user, "swapped", &json!("good"))
    });
}

#[test]
fn tool_with_borrowed_signature_never_runs() {
    let user = User::initialized();
    let path = write_function(&user, "swapped", "return 'good'");
    let good = fs::read_to_string(&path).expect("the tool");
    let (signature, _) = good.split_once('\n').expect("a signature");
    let forged = format!("{signature}\n{}", evil_tool(&user));
    while_swapping(&path, [good.as_bytes(), forged.as_bytes()], || {
        assert_never_evil(&user, "swapped", &json!("good"));
    });
}

#[test]
fn swapped_runtime_never_runs() {
    let user = User::initialized();
    let runtime = |command: &str| {
        format!(
            "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: shell\ndescription: Runs\nconfig:\n  command: /bin/bash\n  args: [\"-c\", \"{command}\"]\n  result: last_json_line\n"
        )
    };
    let path = write_signed_tool(&user, "team/shell", "yaml", &runtime("echo 1"));
    write_signed_tool(
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
fn cached_copies(user: &User, name: &str) -> Vec<PathBuf> {
    snapshot(&user.context.cache()).into_keys().filter(|path| path.ends_with(name)).collect()
}

#[test]
fn a_changed_copy_in_the_cache_never_runs() {
    let user = User::initialized();
    write_function(&user, "kept", "return 'good'");
    execute_data(&user, "kept", &[]);
    let copies = cached_copies(&user, "kept.py");
    assert!(!copies.is_empty());
    for copy in &copies {
        let length = fs::metadata(copy).expect("a copy").len();
        fs::remove_file(copy).expect("removed");
        fs::write(copy, evil_tool(&user)).expect("replaced");
        assert_ne!(length, 0);
    }
    assert_never_evil(&user, "kept", &json!("good"));
    for copy in &copies {
        fs::remove_file(copy).expect("removed");
        std::os::unix::fs::symlink(user.context.write("elsewhere.py", evil_tool(&user)), copy)
            .expect("a link");
    }
    assert_never_evil(&user, "kept", &json!("good"));
}

#[test]
fn cached_copy_is_read_only_for_tools() {
    let user = User::initialized();
    write_function(&user, "kept", "return 'good'");
    execute_data(&user, "kept", &[]);
    let copy = cached_copies(&user, "kept.py").pop().expect("a copy");
    let good = fs::read(&copy).expect("the copy");
    write_function(
        &user,
        "attacks",
        &format!(
            "try:\n    open({:?}, 'a').close()\nexcept OSError as error:\n    return error.errno\n",
            copy.display().to_string()
        ),
    );
    let refused = execute_data(&user, "attacks", &[]);
    assert!(refused.is_number(), "{refused}");
    assert_eq!(fs::read(&copy).expect("the copy"), good);
}
