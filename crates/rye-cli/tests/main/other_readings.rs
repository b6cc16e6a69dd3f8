//! A signature covers neither the type nor the extension of a file: a file that reads as two things is refused as either
//! one that could run.

use std::fs;

use crate::support::User;

const ENTRY: &str =
    "```yaml\nname: howto\ntitle: How\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\n```\n\n";
const QUOTED: &str = "```xml\n<directive name=\"NAME\" version=\"1.0.0\"><metadata><description>x</description>\
    <category>team</category><author>a</author></metadata></directive>\n```\n";

#[test]
fn a_knowledge_entry_is_not_run_as_directive() {
    let user = User::ready();
    for name in ["howto", "other"] {
        let text = format!("{ENTRY}{}", QUOTED.replace("NAME", name));
        user.write("knowledge/team/howto.md", text);
        user.ok(["sign", "knowledge", "team/howto"]);
        user.ok(["load", "knowledge", "team/howto"]);
        let ai = user.project().join(".ai");
        fs::create_dir_all(ai.join("directives/team")).expect("a folder");
        fs::copy(ai.join("knowledge/team/howto.md"), ai.join(format!("directives/team/{name}.md")))
            .expect("copied");
        user.run(["run", &format!("team/{name}"), "--json"]).error(4, "RYE0403");
    }
}

#[test]
fn a_knowledge_entry_is_not_run_as_tool() {
    let user = User::ready();
    let head = "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n\
        # description: d\n# name: howto\necho ran; exit 0\n\n";
    user.write("knowledge/team/howto.md", format!("{head}{ENTRY}"));
    user.ok(["sign", "knowledge", "team/howto"]);
    let ai = user.project().join(".ai");
    let signed = fs::read_to_string(ai.join("knowledge/team/howto.md")).expect("signed");
    let (line, rest) = signed.split_once('\n').expect("a signature");
    let line = line.replace("<!-- ", "# ").replace(" -->", "");
    user.write("tools/team/howto.sh", format!("{line}\n{rest}"));
    user.run(["execute", "team/howto", "--json"]).error(4, "RYE0403");
}

#[test]
fn a_python_tool_is_not_run_as_shell() {
    let user = User::ready();
    let text = "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n\
        # description: d\n\"\"\"true\"\necho ran; exit 0\n\"\"\"\n__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n\
        __executor_id__ = \"rye/core/runtimes/python/function\"\n__category__ = \"team\"\n\
        __tool_description__ = \"d\"\n__tool_name__ = \"two\"\n\n\ndef execute(params, project_path):\n    return 1\n";
    user.write("tools/team/two.py", text);
    user.run(["sign", "tool", "team/two"]);
    let ai = user.project().join(".ai/tools/team");
    fs::rename(ai.join("two.py"), ai.join("two.sh")).expect("moved");
    let run = user.run(["execute", "team/two", "--json"]);
    assert_eq!(run.exit, 4, "{run}");
}
