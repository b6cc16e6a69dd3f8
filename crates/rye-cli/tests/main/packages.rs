//! `DEPENDENCIES`: wheels from the user's own index, installed once, pinned by hash, and refused when they change. The
//! index is a folder that the user's `pip.conf` names, so no network is needed.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::support::{Run, User, run, text};

/// Writes a wheel: a ZIP file with a module, its metadata and a list of what is in it.
const WHEEL: &str = r#"
import base64, hashlib, sys, zipfile
folder, name, version, text = sys.argv[1:5]
info = f"{name}-{version}.dist-info"
files = {
    f"{name}.py": text,
    f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
rows = []
path = f"{folder}/{name}-{version}-py3-none-any.whl"
with zipfile.ZipFile(path, "w") as wheel:
    for relative, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{relative},sha256={digest},{len(content.encode())}")
        wheel.writestr(zipfile.ZipInfo(relative), content)
    wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(rows + [f"{info}/RECORD,,"]) + "\n")
print(hashlib.sha256(open(path, "rb").read()).hexdigest())
"#;

/// A user whose index is a folder.
struct PackageUser {
    user: User,
    wheel_dir: PathBuf,
}

impl PackageUser {
    fn new() -> Self {
        let user = User::initialized();
        let wheel_dir = user.context.path().join("shelf");
        fs::create_dir(&wheel_dir).expect("made");
        let settings = format!("[global]\nno-index = true\nfind-links = {}\n", wheel_dir.display());
        user.context.write("home/.config/pip/pip.conf", settings);
        Self { user, wheel_dir }
    }

    /// Puts a wheel into the index and gives its SHA-256.
    fn build_wheel(&self, version: &str, content: &str) -> String {
        self.build_wheel_in(&self.wheel_dir, version, content)
    }

    fn build_wheel_in(&self, dir: &Path, version: &str, content: &str) -> String {
        let dir = dir.display().to_string();
        let mut python = self.user.program("python3");
        let output = python.args(["-c", WHEEL, &dir, "gift", version, content]).output().expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("hex").trim().to_owned()
    }

    /// Writes and signs the tool `team/open`, which asks for these packages.
    fn write_tool(&self, dependencies: &str) {
        let content = format!(
            r#""""Opens a gift."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "team"
__tool_description__ = "Opens a gift"

DEPENDENCIES = {dependencies}


def execute(params, project_path):
    import sys

    import gift

    return {{"inside": gift.INSIDE, "prefix": sys.prefix}}
"#
        );
        self.user.write("tools/team/open.py", content);
        self.user.ok(["sign", "tool", "team/open"]);
    }

    fn command(&self) -> Command {
        let mut command = self.user.command();
        // What the machine's own user has set is not this user's.
        for name in
            ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"]
        {
            command.env_remove(name);
        }
        for name in ["UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS", "XDG_CONFIG_HOME"] {
            command.env_remove(name);
        }
        command
    }

    fn execute(&self) -> Run {
        run(self.command().args(["--json", "execute", "team/open"]))
    }

    fn execute_value(&self) -> Value {
        let run = self.execute();
        assert_eq!(run.exit, 0, "{run}");
        run.json()["data"]["inside"].clone()
    }

    fn package_cache(&self) -> PathBuf {
        self.user.context.cache().join("rye/packages/python")
    }

    /// The folders of installed packages.
    fn installed(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.package_cache()).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    fn remove_installed(&self) {
        fs::remove_dir_all(self.package_cache()).expect("removed");
    }

    fn lockfile(&self) -> PathBuf {
        self.user.home().join(".ai/lockfiles/team/open@1.0.0.lock.json")
    }

    fn pinned_packages(&self) -> Value {
        let text = fs::read_to_string(self.lockfile()).expect("a lockfile");
        serde_json::from_str::<Value>(&text).expect("JSON")["dependencies"].clone()
    }
}

#[test]
fn packages_are_installed_once_and_pinned() {
    let packages = PackageUser::new();
    let hash = packages.build_wheel("1.0", "INSIDE = 'a book'\n");
    packages.write_tool(r#"["Gift>=1,<3"]"#);
    // The project's own settings and its environment would give something else.
    let elsewhere = packages.user.project().join("wheels");
    fs::create_dir(&elsewhere).expect("made");
    packages.build_wheel_in(&elsewhere, "2.0", "INSIDE = 'a trap'\n");
    let settings = format!("find-links = {}\n", elsewhere.display());
    packages.user.context.write("project/pip.conf", format!("[global]\n{settings}"));
    packages.user.context.write("project/uv.toml", "find-links = [\"wheels\"]\n");
    packages.user.context.write("project/.env", "PIP_FIND_LINKS=wheels\n");

    let first = packages.execute();
    assert_eq!(first.exit, 0, "{first}");
    let answer = first.json();
    assert_eq!(answer["data"]["inside"], "a book", "{first}");
    assert_eq!(answer["notes"][0], "installed 1 package: gift 1.0", "{first}");
    assert!(first.stderr.contains("installing 1 package for team/open …"), "{first}");
    let [folder] = <[PathBuf; 1]>::try_from(packages.installed()).expect("one folder");
    assert_eq!(text(&answer["data"]["prefix"]), folder.join("env").display().to_string());
    let pinned = json!([{"name": "gift", "version": "1.0", "integrity": format!("sha256:{hash}")}]);
    assert_eq!(packages.pinned_packages(), pinned);

    let second = packages.execute();
    assert_eq!((second.exit, second.stderr.as_str()), (0, ""), "{second}");
    assert_eq!((packages.installed(), packages.pinned_packages()), (vec![folder], pinned));
}

#[test]
fn team_gets_the_pinned_wheel() {
    let packages = PackageUser::new();
    packages.build_wheel("1.0", "INSIDE = 'a book'\n");
    packages.write_tool(r#"["gift"]"#);
    assert_eq!(packages.execute_value(), "a book");
    let pinned = packages.pinned_packages();

    // A newer one is there, and nothing is installed any more: the pinned one is still what is taken.
    packages.build_wheel("2.0", "INSIDE = 'a pen'\n");
    packages.remove_installed();
    assert_eq!((packages.execute_value(), packages.pinned_packages()), (json!("a book"), pinned.clone()));

    // Another file under the pinned name and version is refused.
    packages.build_wheel("1.0", "INSIDE = 'a trap'\n");
    packages.remove_installed();
    let error = packages.user.assert_command_refused(
        packages.command().args(["--json", "execute", "team/open"]),
        8,
        "RYE0501",
    );
    assert!(text(&error["error"]).contains("not the pinned ones"), "{error}");
    assert_eq!((packages.installed(), packages.pinned_packages()), (Vec::new(), pinned));
}

#[test]
fn lockfile_cannot_inject_installer_arguments() {
    let packages = PackageUser::new();
    packages.build_wheel("1.0", "INSIDE = 'a book'\n");
    packages.write_tool(r#"["gift"]"#);
    assert_eq!(packages.execute_value(), "a book");
    let good = fs::read_to_string(packages.lockfile()).expect("a lockfile");
    packages.remove_installed();
    for (from, to) in [
        (r#""name": "gift""#, r#""name": "--index-url=http://127.0.0.1:9""#),
        (
            r#""version": "1.0",
      "integrity""#,
            r#""version": "1.0\n-e /tmp",
      "integrity""#,
        ),
        (r#""name": "gift""#, r#""name": "other""#),
    ] {
        assert!(good.contains(from), "{good}");
        fs::write(packages.lockfile(), good.replace(from, to)).expect("written");
        packages.user.assert_command_refused(
            packages.command().args(["--json", "execute", "team/open"]),
            8,
            "RYE0503",
        );
    }
    assert_eq!(packages.installed(), Vec::<PathBuf>::new());
}

#[test]
fn invalid_requirement_is_refused() {
    let packages = PackageUser::new();
    for requirement in [r#"["git+https://host/x"]"#, r#"["-r x"]"#, r#"["gift; True"]"#, r#""gift""#] {
        packages.write_tool(requirement);
        let run = packages.execute();
        run.error(run.exit, "RYE0315");
    }
    assert!(!packages.package_cache().exists());
}

#[test]
fn unavailable_package_is_reported() {
    let packages = PackageUser::new();
    packages.build_wheel("1.0", "INSIDE = 'a book'\n");
    packages.write_tool(r#"["gift==9"]"#);
    let words = ["--json", "execute", "team/open"];
    let error = packages.user.assert_command_refused(packages.command().args(words), 1, "RYE0808");
    let output = error["output"].as_array().expect("lines");
    assert!(output.iter().any(|line| text(line).contains("gift==9")), "{error}");
    assert_eq!(packages.installed(), Vec::<PathBuf>::new());
    // A dry run installs nothing either, and says that a run would.
    let dry = run(packages.command().args(["--json", "execute", "team/open", "--dry-run"]));
    assert_eq!(
        (dry.exit, &dry.json()["notes"][0]),
        (0, &json!("a run would install 1 package first")),
        "{dry}"
    );
    let error = run(packages.command().args(["--json", "execute", "team/open", "--locked"])).json();
    assert_eq!(error["code"], "RYE0502", "{error}");
}

#[test]
fn two_first_runs_install_once() {
    let packages = PackageUser::new();
    packages.build_wheel("1.0", "INSIDE = 'a book'\n");
    packages.write_tool(r#"["gift"]"#);
    let runs: Vec<Run> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..2).map(|_| scope.spawn(|| packages.execute())).collect();
        runs.into_iter().map(|run| run.join().expect("a run")).collect()
    });
    assert!(
        runs.iter().all(|run| run.exit == 0 && run.json()["data"]["inside"] == "a book"),
        "{}{}",
        runs[0],
        runs[1]
    );
    let installing = runs.iter().filter(|run| run.stderr.contains("installing 1 package")).count();
    assert_eq!((installing, packages.installed().len()), (1, 1), "{}{}", runs[0], runs[1]);
}

#[test]
fn unapproved_project_cannot_choose_packages() {
    let packages = PackageUser::new();
    packages.build_wheel("1.0", "INSIDE = 'a book'\n");
    packages.write_tool(r#"["gift"]"#);
    assert_eq!(packages.execute_value(), "a book");
    // The same pins as the team's, but for one more package, in a project no one approved.
    let lockfile = fs::read_to_string(packages.lockfile()).expect("a lockfile");
    let more = lockfile.replace("\"dependencies\": [", r#""dependencies": [{"name": "evil", "version": "1", "integrity": "sha256:0000000000000000000000000000000000000000000000000000000000000000"},"#);
    assert_ne!(more, lockfile);
    fs::remove_file(packages.lockfile()).expect("removed");
    packages.user.context.write("project/lockfiles/team/open@1.0.0.lock.json", more);
    packages.user.ok(["trust", "--revoke"]);
    packages.remove_installed();
    let run = packages.execute();
    let error = run.error(8, "RYE0501");
    assert!(text(&error["error"]).contains("`evil 1`"), "{error}");
    assert!(!run.stderr.contains("evil"), "{run}");
}
