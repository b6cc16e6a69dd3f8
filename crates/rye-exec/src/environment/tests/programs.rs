//! What counts as part of a program: a change of any part is another program.

use super::*;

struct Project {
    world: TestContext,
}

impl Project {
    fn new() -> Self {
        let world = TestContext::new();
        fs_err::create_dir_all(world.project()).expect("a folder");
        Self { world }
    }

    fn write(&self, relative: &str, content: &str) -> PathBuf {
        self.world.write(&format!("project/{relative}"), content)
    }

    fn link(&self, relative: &str, target: &str) -> PathBuf {
        let path = self.world.project().join(relative);
        fs_err::create_dir_all(path.parent().expect("a folder")).expect("folders");
        symlink(target, &path).expect("a link");
        path
    }

    fn collect(&self, program: &Path) -> Result<ProgramParts, ProgramError> {
        ProgramParts::collect(program, &self.world.project())
    }

    fn digest(&self, program: &Path) -> lillux::Digest {
        self.collect(program).expect("parts").digest().expect("a digest")
    }

    /// Writes each file, which must make the program another one, and takes it away again.
    fn assert_changed_by(&self, program: &Path, files: &[(&str, &str)]) {
        let before = (self.digest(program), self.collect(program).expect("parts").stamp());
        for (relative, content) in files {
            let path = self.world.project().join(relative);
            let old = path.exists().then(|| self.world.text(&format!("project/{relative}")));
            self.write(relative, content);
            let parts = self.collect(program);
            if let Ok(parts) = &parts {
                assert_ne!(parts.stamp(), before.1, "{relative}");
                assert_ne!(parts.digest().expect("a digest"), before.0, "{relative}");
            }
            match old {
                Some(old) => drop(self.write(relative, &old)),
                None => fs_err::remove_file(&path).expect("removed"),
            }
            assert_eq!(self.digest(program), before.0, "{relative}");
        }
    }
}

#[test]
fn startup_files_are_parts_of_python() {
    let project = Project::new();
    let real = project.world.write("opt/python3.12", "binary");
    project.link(".venv/bin/python3", &real.display().to_string());
    let python = project.link(".venv/bin/python", "python3");
    let site = ".venv/lib/python3.12/site-packages";
    project.write(".venv/pyvenv.cfg", &format!("home = {}\n", project.world.path().join("opt").display()));
    project.write(&format!("{site}/hook.pth"), "import os; __import__('_hook').run()\n../../../../src\n");
    project.write(&format!("{site}/_hook/__init__.py"), "");
    project.write(&format!("{site}/requests/__init__.py"), "");
    project.write("src/plain.py", "");
    let inside = |name: &str| format!("{site}/{name}");
    let names = [
        "new.pth",
        "hook.pth",
        "sitecustomize.py",
        "sitecustomize/__init__.py",
        "__pycache__/sitecustomize.cpython-312.pyc",
        "usercustomize.cpython-312.so",
        "_hook/__init__.py",
        "_hook/__pycache__/__init__.cpython-312.pyc",
        "_hook.py",
    ]
    .map(inside);
    let mut files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "import evil\n")).collect();
    files.extend([
        ("src/sitecustomize.py", "evil"),
        (".venv/pyvenv.cfg", "home = /elsewhere\n"),
        (".venv/bin/pyvenv.cfg", "home = /elsewhere\n"),
        (".venv/bin/python._pth", "evil\n"),
        (".venv/bin/pybuilddir.txt", "evil\n"),
    ]);
    project.assert_changed_by(&python, &files);
    let before = project.digest(&python);
    project.write(&inside("requests/__init__.py"), "what a tool imports itself is not a part");
    assert_eq!(project.digest(&python), before);
    project.world.write("opt/python3.12", "another binary");
    assert_ne!(project.digest(&python), before);
}

#[test]
fn all_folders_of_packages_count() {
    let project = Project::new();
    let real = project.world.write("opt/bin/python3.12", "binary");
    project.world.write(
        "opt/lib/python3.12/sitecustomize.py",
        "try:\n    import apport_hook\nexcept ImportError: pass\n",
    );
    let python = project.link(".venv/bin/python", &real.display().to_string());
    let home = project.world.path().join("opt/bin");
    project.write(".venv/pyvenv.cfg", &format!("home = {}\n", home.display()));
    let site = ".venv/lib/python3.12/site-packages";
    project.write(&format!("{site}/start.pth"), "import first\n");
    project.write(&format!("{site}/first.py"), "from second import thing\n");
    project.write(&format!("{site}/second.py"), "thing = 1\n");
    let inside = |name: &str| format!("{site}/{name}");
    let (first, second, hook) = (inside("first.py"), inside("second.py"), inside("apport_hook.py"));
    project.assert_changed_by(
        &python,
        &[
            (".venv/local/lib/python3.12/dist-packages/new.pth", "import os\n"),
            (".venv/lib/python3/dist-packages/new.pth", "import os\n"),
            (".venv/lib/python3.12/dist-packages/sitecustomize.py", "evil"),
            (".venv/local/lib/python3/site-packages/usercustomize.py", "evil"),
            (&first, "evil"),
            (&second, "evil"),
            (&hook, "evil"),
        ],
    );
}

#[test]
fn folder_of_programs_is_all_of_them() {
    let project = Project::new();
    let real = project.world.write("opt/python3.12", "binary");
    project.link(".venv/bin/python", &real.display().to_string());
    project.write(".venv/bin/tool", "#!/bin/sh\n");
    project.link(".venv/bin/linked", "../lib/linked");
    project.write(".venv/lib/linked", "#!/bin/sh\n");
    let folder = project.world.project().join(".venv/bin");
    let files = [(".venv/bin/date", "evil"), (".venv/bin/tool", "evil"), (".venv/lib/linked", "evil")];
    project.assert_changed_by(&folder, &files);
}

#[test]
fn changed_folders_come_last_on_the_path() {
    let project = Project::new();
    project.write(".venv/bin/tool", "");
    let own = project.world.project().join(".venv/bin");
    project.world.write("other/.ai/x", "");
    project.world.write("other/.venv/bin/python3", "");
    let other = project.world.path().join("other/.venv/bin");
    let path = format!("{}:{}:/usr/bin", other.display(), own.display());
    for (not_recorded, expected) in [
        (None, format!("{}:/usr/bin", own.display())),
        (Some(own.clone()), format!("/usr/bin:{}", own.display())),
    ] {
        let finder = FakeFinder { not_recorded, ..FakeFinder::default() };
        let process = map(&[("PATH", &path)]);
        let run = TestRun { process, ..TestRun::new(&project.world, &finder) };
        let environment = run.environment();
        assert_eq!(environment.variables["PATH"], expected);
        assert!(environment.notices.iter().any(|notice| notice.contains("left out of PATH")));
    }
}

#[test]
fn links_are_parts_of_a_program() {
    let project = Project::new();
    let real = project.world.write("opt/python3.12", "binary");
    let program = project.link(".venv/bin/python", &real.display().to_string());
    let before = project.digest(&program);
    project.link(".venv/bin/between", &real.display().to_string());
    fs_err::remove_file(&program).expect("removed");
    project.link(".venv/bin/python", "between");
    assert_ne!(project.digest(&program), before);
    fs_err::remove_file(&program).expect("removed");
    project.link(".venv/bin/python", "python");
    assert!(matches!(project.collect(&program), Err(ProgramError::TooManyLinks(_))));
}

#[test]
fn python_with_library_in_project_is_refused() {
    let project = Project::new();
    let own = project.write(".venv/bin/python", "a whole Python");
    assert!(matches!(project.collect(&own), Err(ProgramError::LibraryInProject)));
    let home = project.world.project().join("python/bin").display().to_string();
    project.write(".venv/pyvenv.cfg", &format!("home = {home}\n"));
    assert!(matches!(project.collect(&own), Err(ProgramError::LibraryInProject)));
    // A copy whose library lies elsewhere is one more file; libraries beside it are parts.
    project.write(".venv/pyvenv.cfg", "home = /usr/bin\n");
    project.assert_changed_by(&own, &[(".venv/bin/python", "b"), (".venv/lib/libpython3.12.so.1.0", "evil")]);
}

#[test]
fn packages_are_parts_of_a_node_launcher() {
    let project = Project::new();
    project.write("node_modules/tsx/dist/cli.mjs", "#!/usr/bin/env node\n");
    project.write(
        "node_modules/tsx/package.json",
        "{\"dependencies\": {\"esbuild\": \"1\", \"@scope/inner\": \"1\"}}",
    );
    project.write("node_modules/esbuild/package.json", "{\"optionalDependencies\": {\"deep\": \"1\"}}");
    project.write("node_modules/esbuild/main.js", "");
    project.write("node_modules/deep/index.js", "");
    project.write("node_modules/@scope/inner/index.js", "");
    project.write("node_modules/other/index.js", "");
    let launcher = project.link("node_modules/.bin/tsx", "../tsx/dist/cli.mjs");
    let files = [
        ("node_modules/tsx/dist/cli.mjs", "evil"),
        ("node_modules/tsx/dist/more.mjs", "evil"),
        ("node_modules/tsx/node_modules/esbuild/index.js", "evil"),
        ("node_modules/esbuild/main.js", "evil"),
        ("node_modules/deep/index.js", "evil"),
        ("node_modules/@scope/inner/index.js", "evil"),
        ("node_modules/@scope/node_modules/x/index.js", "evil"),
    ];
    project.assert_changed_by(&launcher, &files);
    let before = project.digest(&launcher);
    project.write("node_modules/other/index.js", "not a part");
    assert_eq!(project.digest(&launcher), before);

    // pnpm puts a script there instead of a link.
    let script = project.write(
        "node_modules/.bin/run",
        "#!/bin/sh\nbasedir=$(dirname \"$0\")\nexec node \"$basedir/../esbuild/main.js\" \"$@\"\n",
    );
    project.assert_changed_by(
        &script,
        &[("node_modules/esbuild/main.js", "evil"), ("node_modules/deep/index.js", "e")],
    );
}

#[test]
fn unrecorded_project_programs_are_skipped() {
    let world = TestContext::new();
    let own = program(&world, "project/.venv/bin/python");
    let system = program(&world, "bin/python3");
    let runtime = json!({"interpreter": {"type": "venv_python"}});
    let folders =
        [world.project().join(".venv/bin"), world.path().join("bin")].map(|path| path.display().to_string());
    let process = map(&[("PATH", &folders.join(":"))]);
    let programs = FakeFinder { not_recorded: Some(own.clone()), ..FakeFinder::default() };
    let run =
        TestRun { process: process.clone(), runtime: runtime.clone(), ..TestRun::new(&world, &programs) };
    let environment = run.environment();
    assert_eq!(environment.variables["RYE_PYTHON"], system.display().to_string());
    assert!(environment.notices[0].contains("it is not recorded"), "{:?}", environment.notices);

    // The PATH leads to another name of the same environment: the next one outside the project serves.
    let own = program(&world, "project/.venv/bin/python3");
    fs_err::remove_file(world.project().join(".venv/bin/python")).expect("removed");
    let programs = FakeFinder { not_recorded: Some(own), ..FakeFinder::default() };
    let environment = TestRun { process, runtime, ..TestRun::new(&world, &programs) }.environment();
    assert_eq!(environment.variables["RYE_PYTHON"], system.display().to_string());
}
