//! Tools to run in tests: written, signed by the user, executed through the command, and looked for afterwards.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Run, User, run};

/// The binary under test.
pub const RYE: &str = env!("CARGO_BIN_EXE_rye");

fn python(runtime: &str, metadata: &str, body: &str) -> String {
    format!(
        "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__executor_id__ = \"rye/core/runtimes/python/{runtime}\"\n__category__ = \"team\"\n__tool_description__ = \"Is run\"\n{metadata}\n\n{body}\n"
    )
}

/// Writes a file of a project tool and signs it.
pub fn write_signed_tool(user: &User, id: &str, extension: &str, content: &str) -> PathBuf {
    let path = user.write(&format!("tools/{id}.{extension}"), content);
    user.ok(["sign", "tool", id, "--space", "project"]);
    path
}

/// A signed Python function `team/<name>`: further metadata, and the body of `execute`, not indented.
pub fn write_function_with(user: &User, name: &str, metadata: &str, body: &str) -> PathBuf {
    write_signed_tool(user, &format!("team/{name}"), "py", &function_text(metadata, body))
}

/// The text of such a function.
pub fn function_text(metadata: &str, body: &str) -> String {
    let lines: Vec<String> = body.trim_matches('\n').lines().map(|line| format!("    {line}")).collect();
    python("function", metadata, &format!("def execute(params, project_path):\n{}", lines.join("\n")))
}

/// A signed Python function `team/<name>`.
pub fn write_function(user: &User, name: &str, body: &str) -> PathBuf {
    write_function_with(user, name, "", body)
}

/// A signed Python program `team/<name>`.
pub fn write_script(user: &User, name: &str, body: &str) -> PathBuf {
    write_signed_tool(user, &format!("team/{name}"), "py", &python("script", "", body))
}

/// A signed shell script `team/<name>`, with further comment lines.
pub fn write_shell_tool(user: &User, name: &str, metadata: &str, body: &str) -> PathBuf {
    let text = format!(
        "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n# description: Is run\n{metadata}\n\n{body}\n"
    );
    write_signed_tool(user, &format!("team/{name}"), "sh", &text)
}

/// Runs `team/<name>`, which must succeed; gives the whole answer.
pub fn execute(user: &User, name: &str, words: &[&str]) -> Value {
    let run = try_execute(user, name, words);
    assert_eq!(run.exit, 0, "{run}");
    run.json()
}

/// Runs `team/<name>`, which must succeed; gives its result.
pub fn execute_data(user: &User, name: &str, words: &[&str]) -> Value {
    execute(user, name, words)["data"].clone()
}

/// Runs `team/<name>` with JSON parameters, which must succeed; gives its result.
pub fn execute_with(user: &User, name: &str, parameters: &Value) -> Value {
    execute_data(user, name, &["--params", &parameters.to_string()])
}

/// Runs `team/<name>`, which must fail; gives the whole answer.
pub fn execute_error(user: &User, name: &str, words: &[&str], exit: i32, code: &str) -> Value {
    try_execute(user, name, words).error(exit, code)
}

/// Runs `team/<name>`, however it ends.
pub fn try_execute(user: &User, name: &str, words: &[&str]) -> Run {
    run(user.command().args(["--json", "execute", "tool", &format!("team/{name}")]).args(words))
}

/// Sets the user's own settings of the sandbox.
pub fn sandbox_settings(user: &User, settings: &str) {
    user.write_user(
        "config/execution/sandbox.yaml",
        format!("version: \"1.0.0\"\ncategory: execution\n{settings}"),
    );
    user.ok(["sign", "config", "execution/sandbox", "--space", "user"]);
}

/// The processes whose arguments or environment hold `marker`. This test's own process is none of them.
pub fn processes_with(marker: &str) -> Vec<u32> {
    let holds = |path: PathBuf| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(marker.len()).any(|window| window == marker.as_bytes())
    };
    let entries = fs::read_dir("/proc").expect("processes");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            let folder = PathBuf::from(format!("/proc/{pid}"));
            holds(folder.join("cmdline")) || holds(folder.join("environ"))
        })
        .collect()
}

/// Waits until `is_so`, at most three minutes; says whether it came to be.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(180);
    while Instant::now() < end {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    condition()
}

/// Asserts that no process with `marker` is left, or will be in a moment.
pub fn assert_no_processes(marker: &str) {
    assert!(eventually(|| processes_with(marker).is_empty()), "left: {:?}", processes_with(marker));
}

/// Waits until a process has made so many reads and writes, or has ended. They are moments of its life that do not depend on
/// how fast the machine is.
pub fn wait_for_io(child: &mut std::process::Child, calls: u64) {
    let path = format!("/proc/{}/io", child.id());
    let count = || -> Option<u64> {
        let text = fs::read_to_string(&path).ok()?;
        let value =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
        Some(value("syscr:")? + value("syscw:")?)
    };
    // What cannot be read belongs to a process that has ended; one that only waits makes no more of them.
    let (mut last, mut since) = (0, Instant::now());
    while let Some(count) = count().filter(|count| *count < calls) {
        if count != last {
            (last, since) = (count, Instant::now());
        }
        let is_idle = since.elapsed() > Duration::from_millis(200);
        if is_idle || !child.try_wait().is_ok_and(|status| status.is_none()) {
            return;
        }
        std::thread::yield_now();
    }
}
