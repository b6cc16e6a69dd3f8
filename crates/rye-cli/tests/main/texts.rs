//! Snapshots of what people read: the help of every command, the title of every error page, and errors, tables and trees
//! as they are printed.
//!
//! After a change of words: `INSTA_UPDATE=always cargo test -p rye-cli --test main texts`, then review the difference of
//! `snapshots/` with git.

use insta::assert_snapshot;

use crate::support::User;

/// Parts of the output that differ from run to run, and what stands in their place. Applied in this order.
const VARIABLE_PARTS: &[(&str, &str)] = &[
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[TIME]"),
    (r"\b\d{4}-\d\d-\d\d\b", "[DATE]"),
    (r"thread-[0-9a-f]{12}", "[THREAD]"),
    (r"\b[0-9a-f]{16}…", "[HASH]…"),
    (r"\b[0-9a-f]{16}\b", "[FINGERPRINT]"),
    (r"\b[0-9a-f]{12}\b", "[DIGEST]"),
    (r"\b\d+(\.\d+)? m?s\b", "[DURATION]"),
    (r"\b\d+m \d\ds\b", "[DURATION]"),
    (r"(?m)((·|\$0) +)now$", "${1}[DURATION]"),
    // A time that rounds to nothing is not shown.
    (r"(?m) · \[DURATION\]$", ""),
    // A machine that cannot enforce every rule of the sandbox says so.
    (r"(?m)^.*not enforced.*\n", ""),
    (r"(?m)[ \t]+$", ""),
];

/// Compares a text with its snapshot, without the parts that differ from run to run.
pub fn assert_text(user: &User, name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.set_prepend_module_to_snapshot(false);
    for (folder, place) in [(user.project(), "[PROJECT]"), (user.home(), "[HOME]")] {
        let folder = folder.display().to_string();
        settings.add_filter(&regex_escape(&folder), place);
    }
    for (pattern, place) in VARIABLE_PARTS {
        settings.add_filter(pattern, *place);
    }
    settings.bind(|| assert_snapshot!(name, text));
}

fn regex_escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if !character.is_alphanumeric() && character != '/' {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// What a command prints, under the command itself.
pub fn transcript(user: &User, commands: &[&str]) -> String {
    let mut text = String::new();
    for command in commands {
        let run = user.run(command.split(' '));
        text.push_str(&format!("$ rye {command}\n{}{}", run.stdout, run.stderr));
        if run.exit != 0 {
            text.push_str(&format!("[exit {}]\n", run.exit));
        }
        text.push('\n');
    }
    text
}

/// The names in the `Commands:` section of a help text.
fn subcommands(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let rows = section.take_while(|line| line.starts_with("  "));
    let names =
        rows.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The help of a command and of all commands below it.
fn collect_help(user: &User, command: &[String], text: &mut String) {
    let help = user.ok(command.iter().map(String::as_str).chain(["--help"])).stdout;
    text.push_str(&format!("$ rye {} --help\n{help}\n", command.join(" ")));
    for name in subcommands(&help) {
        let below: Vec<String> = command.iter().cloned().chain([name]).collect();
        collect_help(user, &below, text);
    }
}

#[test]
fn help_of_every_command() {
    let user = User::new();
    let help = user.ok(["--help"]).stdout;
    assert_text(&user, "help", &help);
    let commands = subcommands(&help);
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        let mut text = String::new();
        collect_help(&user, std::slice::from_ref(&command), &mut text);
        assert_text(&user, &format!("help_{command}"), &text);
    }
}

#[test]
fn titles_of_error_pages() {
    let user = User::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
    let mut titles: Vec<String> = std::fs::read_dir(folder)
        .expect("pages")
        .map(|entry| std::fs::read_to_string(entry.expect("an entry").path()).expect("a page"))
        .map(|page| page.lines().next().expect("a title").to_owned())
        .collect();
    titles.sort();
    assert_text(&user, "error_titles", &titles.join("\n"));
    assert_text(&user, "explain", &transcript(&user, &["explain RYE0402", "explain RYE9999"]));
}

#[test]
fn errors_of_arguments() {
    let user = User::initialized();
    let commands = [
        "execute",
        "execute tool",
        "execute examples/hello Ada",
        "execute examples/hello --params [1]",
        "execute examples/hello --params {",
        "execute examples/hello nickname=Ada",
        "execute tool team/missing",
        "execute nothing:team/missing",
        "execute config config",
        "load tool examples/helo",
        "search --type nothing x",
        "search (",
        "sign tool team/*",
        "keys show 0123",
        "keys trust missing.pem",
        "config show missing",
        "lock show team/missing",
        "bundle verify missing",
        "bundle create x --version one --category team",
        "bundle create x --version 1.0.0 --category missing",
        "install missing.tar.zst",
        "install oci://",
        "uninstall missing",
        "mcp install missing",
        "mcp --http nowhere",
        "run team/missing",
        "run examples/greet --limit turns",
        "run examples/greet --limit size=1",
        "run examples/greet name=Ada --limit turns=+1",
        "thread show 0a1b2c3d4e5f",
        "thread show nothing",
        "thread list --status nothing",
        "thread approve 0a1b",
        "thread wait 0a1b --timeout -1",
        "verify missing.py",
        "completions nothing",
    ];
    assert_text(&user, "errors_of_arguments", &transcript(&user, &commands));
}

#[test]
fn errors_of_items() {
    let user = User::initialized();
    let mut edited = user.read("tools/examples/hello.py");
    edited.extend_from_slice(b"# edited\n");
    user.write("tools/examples/hello.py", &edited);
    user.write("tools/team/unsigned.py", rye_test::tool("team", "Not signed"));
    let moved = user.read("directives/examples/greet.md");
    user.write("directives/team/greet.md", moved);
    user.write("tools/team/broken.py", "def execute(:\n");
    user.write("tools/team/extra.yaml", "category: team\ncategory: team\n");
    let commands = [
        "execute examples/hello name=Ada",
        "execute team/unsigned",
        "execute directive team/greet name=Ada",
        "load tool team/unsigned",
        "sign tool team/broken",
        "sign tool team/extra",
        "verify",
        "why tool examples/hello",
    ];
    assert_text(&user, "errors_of_items", &transcript(&user, &commands));
}

#[test]
fn output_of_items() {
    let user = User::initialized();
    let commands = [
        "execute examples/hello name=Ada",
        "execute examples/hello name=Ada --dry-run",
        "execute directive examples/greet name=Ada",
        "search hello",
        "load knowledge examples/style",
        "why tool examples/hello",
        "verify",
        "sign tool examples/hello",
        "lock list",
        "lock show examples/hello",
        "lock verify",
        "lock check",
        "lock remove examples/hello",
        "keys list",
        "keys show",
        "bundle list",
        "trust --revoke",
    ];
    assert_text(&user, "output_of_items", &transcript(&user, &commands));
}

#[test]
fn output_of_threads() {
    let user = User::initialized();
    let commands = ["thread list", "thread tree", "run examples/greet name=Ada --dry-run"];
    let before = transcript(&user, &commands);
    user.ok(["run", "examples/greet", "name=Ada"]);
    let id = crate::thread_run::newest_thread(&user);
    let commands = [
        "thread list".to_owned(),
        "thread tree".to_owned(),
        format!("thread show {id}"),
        format!("thread cost {id}"),
        format!("thread tail {id}"),
        format!("thread verify {id}"),
        "thread approvals".to_owned(),
        format!("thread resume {id}"),
        format!("thread cancel {id}"),
        "thread prune --dry-run --keep 0".to_owned(),
    ];
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    assert_text(&user, "output_of_threads", &format!("{before}{}", transcript(&user, &commands)));
}
