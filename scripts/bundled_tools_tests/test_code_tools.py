"""The tools of `ryeos-code`: what they answer, and what a hostile project cannot make them do."""

import json
import os
import subprocess
import sys
import unittest

from support import CODE, Case, tool

git = tool("git")
npm = tool("npm")
typescript = tool("typescript")
diagnostics = tool("diagnostics")
lsp = tool("lsp")


class Schemas(unittest.TestCase):
    def test_every_parameter_is_described_and_no_other_is_taken(self):
        for path in sorted(CODE.glob("*/*.py")):
            module = tool(path.stem)
            schema = module.CONFIG_SCHEMA
            self.assertIs(schema["additionalProperties"], False, path.name)
            self.assertEqual(module.__tool_name__, path.stem)
            self.assertEqual(module.__category__, "rye/code/" + path.parent.name)
            for name, property in schema["properties"].items():
                self.assertTrue(property.get("description"), "%s: %s" % (path.name, name))


class Git(Case):
    def setUp(self):
        super().setUp()
        home = os.path.join(self.folder, "home")
        os.mkdir(home)
        for name, value in [
            ("HOME", home), ("GIT_AUTHOR_NAME", "Ada"), ("GIT_AUTHOR_EMAIL", "ada@example.com"),
            ("GIT_COMMITTER_NAME", "Ada"), ("GIT_COMMITTER_EMAIL", "ada@example.com"),
        ]:
            before = os.environ.get(name)
            os.environ[name] = value
            self.addCleanup(self.put_back, name, before)
        self.shell("init", "--quiet", "--initial-branch=main")
        self.write("project/a.txt", "one\n")
        self.ok("add", paths=["a.txt"])
        self.ok("commit", message="first")

    @staticmethod
    def put_back(name, before):
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

    def shell(self, *words):
        subprocess.run(["git"] + list(words), cwd=self.project, check=True, stdout=subprocess.DEVNULL)

    def call(self, action, **params):
        return git.execute(dict(params, action=action), self.project)

    def ok(self, action, **params):
        answer = self.call(action, **params)
        self.assertTrue(answer["success"], answer)
        return answer

    def trap(self):
        """A program that leaves a mark when it is run."""
        mark = os.path.join(self.folder, "mark")
        program = self.write("trap", "#!/bin/sh\ntouch '%s'\ncat\n" % mark)
        os.chmod(program, 0o755)
        return program, mark

    def test_status_and_log_are_values(self):
        self.write("project/a.txt", "two\n")
        self.write("project/b c.txt", "new\n")
        status = self.ok("status")
        self.assertEqual(
            (status["branch"], status["clean"], status["entries"]),
            ("main", False, [
                {"staged": " ", "unstaged": "M", "path": "a.txt"}, {"staged": "?", "unstaged": "?", "path": "b c.txt"},
            ]),
        )
        commits = self.ok("log")["commits"]
        self.assertEqual([(commit["subject"], commit["author"]) for commit in commits], [("first", "Ada")])

    def test_the_everyday_changes(self):
        self.write("project/a.txt", "two\n")
        self.assertIn("+two", self.ok("diff")["stdout"])
        self.ok("stash", message="later")
        self.assertIn("later", self.ok("stashes")["stdout"])
        self.ok("stash_pop")
        self.ok("create_branch", branch="topic")
        self.ok("commit", message="second", all=True)
        self.ok("checkout", revision="main")
        self.assertEqual(len(self.ok("log", revision="topic")["commits"]), 2)
        self.assertIn("topic", self.ok("branches")["stdout"])
        self.assertIn("one", self.ok("blame", paths=["a.txt"])["stdout"])
        self.assertIn("first", self.ok("show")["stdout"])
        self.write("project/a.txt", "lost\n")
        self.ok("restore", paths=["a.txt"])
        self.assertTrue(self.ok("status")["clean"])

    def test_nothing_is_taken_for_an_option(self):
        for params in [
            {"action": "log", "revision": "--output=/tmp/x"}, {"action": "checkout", "revision": "--orphan"},
            {"action": "create_branch", "branch": "--force"},
        ]:
            answer = git.execute(params, self.project)
            self.assertIn("may not begin with a dash", answer["error"])
        self.assertFalse(self.call("add", paths=["--all"])["success"])
        self.assertIn("needs `message`", self.call("commit")["error"])
        self.assertIn("needs `paths`", self.call("blame")["error"])

    def test_a_commit_message_is_taken_as_it_is(self):
        self.write("project/a.txt", "two\n")
        self.ok("commit", message="-m $(touch x) `y`", all=True)
        self.assertEqual(self.ok("log")["commits"][0]["subject"], "-m $(touch x) `y`")

    def test_programs_in_the_repositorys_config_do_not_run(self):
        program, mark = self.trap()
        self.write("project/.gitattributes", "*.txt diff=evil filter=evil\n")
        self.shell("config", "core.fsmonitor", program)
        self.shell("config", "core.pager", program)
        self.shell("config", "diff.external", program)
        self.shell("config", "diff.evil.textconv", program)
        self.shell("config", "diff.evil.command", program)
        self.shell("config", "filter.evil.clean", program)
        self.shell("config", "filter.evil.smudge", program)
        self.shell("config", "gpg.program", program)
        self.shell("config", "log.showSignature", "true")
        self.write("project/a.txt", "two\n")
        for params in [
            {"action": "status"}, {"action": "diff"}, {"action": "log"}, {"action": "show"}, {"action": "branches"},
            {"action": "blame", "paths": ["a.txt"]}, {"action": "stashes"},
        ]:
            answer = git.execute(params, self.project)
            self.assertTrue(answer["success"], answer)
            self.assertFalse(os.path.exists(mark), params)
        for params in [
            {"action": "add", "paths": ["a.txt"]}, {"action": "commit", "message": "x", "all": True}, {"action": "stash"},
        ]:
            self.assertIn("filter `evil`", git.execute(params, self.project)["error"])
            self.assertFalse(os.path.exists(mark), params)
        self.ok("add", paths=["a.txt"], trust_repository_config=True)
        self.assertTrue(os.path.exists(mark))

    def test_a_filter_with_an_equals_sign_in_its_name_is_refused(self):
        with open(os.path.join(self.project, ".git/config"), "a", encoding="utf-8") as config:
            config.write('[filter "a=b"]\n\tclean = true\n')
        self.assertIn("strange name", self.call("status")["error"])

    def test_hooks_run_when_asked_for_only(self):
        program, mark = self.trap()
        hook = os.path.join(self.project, ".git/hooks/pre-commit")
        os.makedirs(os.path.dirname(hook), exist_ok=True)
        os.symlink(program, hook)
        self.write("project/a.txt", "two\n")
        self.ok("commit", message="second", all=True)
        self.assertFalse(os.path.exists(mark))
        self.write("project/a.txt", "three\n")
        self.ok("commit", message="third", all=True, run_hooks=True)
        self.assertTrue(os.path.exists(mark))

    def test_variables_of_git_do_not_reach_it(self):
        program, mark = self.trap()
        os.environ["GIT_EXTERNAL_DIFF"] = program
        self.addCleanup(os.environ.pop, "GIT_EXTERNAL_DIFF")
        self.write("project/a.txt", "two\n")
        self.ok("diff", trust_repository_config=True)
        self.assertFalse(os.path.exists(mark))

    def test_long_output_is_cut_and_said(self):
        self.write("project/a.txt", "line\n" * 100000)
        answer = self.ok("diff")
        self.assertEqual((answer["truncated"], len(answer["stdout"])), (True, git.LIMIT))


class Npm(Case):
    def test_installing_never_runs_scripts(self):
        words = npm.arguments({"action": "install", "packages": ["left-pad@1.3.0", "@types/node"], "dev": True})
        self.assertIn("--ignore-scripts", words)
        self.assertEqual(words[words.index("--"):], ["--", "left-pad@1.3.0", "@types/node"])
        self.assertIn("--ignore-scripts", npm.arguments({"action": "ci"}))

    def test_only_names_of_the_registry_are_packages(self):
        for name in ["--global", "git+ssh://x", "../x", "http://x/y.tgz", "user/repo", "file:x", "A b", "x@git://y"]:
            with self.assertRaises(npm.Refused, msg=name):
                npm.arguments({"action": "install", "packages": [name]})

    def test_a_script_is_named_plainly(self):
        self.assertEqual(npm.arguments({"action": "run", "script": "build:all", "arguments": ["-x"]})[-3:], ["build:all", "--", "-x"])
        for script in ["--eval", "", "a b"]:
            with self.assertRaises(npm.Refused):
                npm.arguments({"action": "run", "script": script})

    def test_the_package_is_inside_the_project(self):
        self.write("package.json", "{}")
        self.assertIn("outside", npm.execute({"action": "ls", "folder": ".."}, self.project)["error"])
        self.assertIn("no package.json", npm.execute({"action": "ls"}, self.project)["error"])


class Typescript(Case):
    def test_problems_are_values(self):
        text = (
            "src/a.ts(3,7): error TS2322: Type 'string' is not assignable to type 'number'.\n"
            "  Further words.\nerror TS18003: No inputs were found.\n"
        )
        self.assertEqual(typescript.read_problems(text), [
            {"file": "src/a.ts", "line": 3, "column": 7, "severity": "error", "code": "TS2322",
             "message": "Type 'string' is not assignable to type 'number'.\nFurther words."},
            {"file": None, "line": None, "column": None, "severity": "error", "code": "TS18003",
             "message": "No inputs were found."},
        ])

    def test_the_projects_compiler_needs_consent(self):
        compiler = self.write("project/node_modules/.bin/tsc", "#!/bin/sh\necho 'a.ts(1,2): error TS1: bad'\nexit 2\n")
        os.chmod(compiler, 0o755)
        self.write("project/tsconfig.json", "{}")
        before = os.environ["PATH"]
        os.environ["PATH"] = os.path.dirname(compiler) + os.pathsep + "/bin-nowhere"
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        self.assertIn("no TypeScript compiler", typescript.execute({}, self.project)["error"])
        os.environ["PATH"] = before
        answer = typescript.execute({"allow_project_code": True}, self.project)
        self.assertEqual((answer["success"], answer["count"], answer["diagnostics"][0]["file"]), (True, 1, "a.ts"))

    def test_the_config_is_inside_the_project(self):
        self.assertIn("outside", typescript.execute({"config": "../x.json"}, self.project)["error"])


class Diagnostics(Case):
    def test_each_form_is_read(self):
        self.assertEqual(
            diagnostics.read_ruff('[{"filename": "a.py", "location": {"row": 1, "column": 2}, "code": "F401", "message": "m"}]'),
            [{"file": "a.py", "line": 1, "column": 2, "severity": "warning", "code": "F401", "message": "m"}],
        )
        self.assertEqual(
            diagnostics.read_eslint('[{"filePath": "a.js", "messages": [{"line": 1, "column": 2, "severity": 2, "ruleId": "r", "message": "m"}]}]'),
            [{"file": "a.js", "line": 1, "column": 2, "severity": "error", "code": "r", "message": "m"}],
        )
        start = {"line": 0, "character": 1}
        pyright = {"generalDiagnostics": [{"file": "a.py", "range": {"start": start}, "severity": "information", "message": "m"}]}
        self.assertEqual(
            diagnostics.read_pyright(json.dumps(pyright)),
            [{"file": "a.py", "line": 1, "column": 2, "severity": "info", "code": None, "message": "m"}],
        )
        span = {"is_primary": True, "file_name": "src/a.rs", "line_start": 3, "column_start": 4}
        message = {"level": "error", "message": "m", "code": {"code": "E1"}, "spans": [span]}
        cargo = json.dumps({"reason": "compiler-message", "message": message}) + "\nnoise\n"
        self.assertEqual(
            diagnostics.read_cargo(cargo),
            [{"file": "src/a.rs", "line": 3, "column": 4, "severity": "error", "code": "E1", "message": "m"}],
        )
        lines = diagnostics.read_lines(diagnostics.PLACED)
        self.assertEqual(
            lines("a.py:1:2: error: m\n./b.go:3: oh\n# package\n"),
            [
                {"file": "a.py", "line": 1, "column": 2, "severity": "error", "code": None, "message": "m"},
                {"file": "./b.go", "line": 3, "column": None, "severity": "error", "code": None, "message": "oh"},
            ],
        )

    def test_checkers_that_run_code_of_the_project_need_consent(self):
        self.write("project/Cargo.toml", "")
        answer = diagnostics.execute({}, self.project)
        self.assertEqual((answer["success"], answer["ran"]), (False, []))
        self.assertEqual(answer["skipped"], [{"checker": "cargo", "reason": "it runs code of the project: set allow_project_code"}])

    def test_what_the_checkers_find_is_gathered(self):
        report = '[{"filename": "%s/a.py", "location": {"row": 1, "column": 2}, "code": "F401", "message": "m"}]' % self.project
        checker = self.write("project/.venv/bin/ruff", "#!/bin/sh\ncat <<'END'\n%s\nEND\nexit 1\n" % report)
        os.chmod(checker, 0o755)
        answer = diagnostics.execute({"checkers": ["ruff"], "allow_project_code": True}, self.project)
        self.assertEqual((answer["success"], answer["ran"], answer["count"], answer["errors"]), (True, ["ruff"], 1, 0))
        self.assertEqual((answer["diagnostics"][0]["file"], answer["diagnostics"][0]["checker"]), ("a.py", "ruff"))

    def test_a_project_without_anything_to_check_is_fine(self):
        self.assertEqual(diagnostics.execute({}, self.project)["success"], True)


SERVER = r'''
import json, sys
def read():
    length = 0
    for line in iter(sys.stdin.buffer.readline, b"\r\n"):
        if not line:
            sys.exit()
        if line.lower().startswith(b"content-length"):
            length = int(line.split(b":")[1])
    return json.loads(sys.stdin.buffer.read(length))
def send(**message):
    data = json.dumps(dict(message, jsonrpc="2.0")).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
    sys.stdout.buffer.flush()
def place(uri, line):
    return {"uri": uri, "range": {"start": {"line": line, "character": 4}, "end": {"line": line, "character": 5}}}
while True:
    message = read()
    method, params = message.get("method"), message.get("params")
    if method == "initialize":
        send(id=99, method="workspace/configuration", params={"items": [{}, {}]})
        send(id=message["id"], result={"capabilities": {}})
    elif method == "textDocument/didOpen":
        uri = params["textDocument"]["uri"]
        problem = dict(place(uri, 0), severity=2, message="hm", code="c")
        send(method="textDocument/publishDiagnostics", params={"uri": uri, "diagnostics": [problem]})
    elif method == "textDocument/definition":
        send(id=message["id"], result=place(params["textDocument"]["uri"], params["position"]["character"]))
    elif method == "textDocument/hover":
        send(id=message["id"], result={"contents": {"kind": "plaintext", "value": "words"}})
    elif method == "textDocument/documentSymbol":
        start = {"start": {"line": 0, "character": 0}}
        inner = {"name": "b", "kind": 6, "selectionRange": start}
        send(id=message["id"], result=[{"name": "a", "kind": 5, "selectionRange": start, "children": [inner]}])
    elif method == "textDocument/references":
        send(id=message["id"], error={"code": 1, "message": "not now"})
'''


class Lsp(Case):
    def setUp(self):
        super().setUp()
        server = self.write("bin/pylsp", "#!%s\n%s" % (sys.executable, SERVER))
        os.chmod(server, 0o755)
        before = os.environ["PATH"]
        os.environ["PATH"] = os.path.dirname(server)
        self.addCleanup(os.environ.__setitem__, "PATH", before)
        quiet = lsp.QUIET_SECONDS
        lsp.QUIET_SECONDS = 0.05
        self.addCleanup(setattr, lsp, "QUIET_SECONDS", quiet)
        self.write("project/a.py", "x = '\U0001f600' + y\n")

    def ask(self, action, **params):
        return lsp.execute(dict({"file": "a.py"}, **params, action=action), self.project)

    def test_each_question_is_answered(self):
        # The column after a character of two UTF-16 units: 7 characters are 8 units.
        self.assertEqual(
            self.ask("definition", line=1, column=8),
            {"success": True, "server": "pylsp", "locations": [{"file": "a.py", "line": 9, "column": 5}], "truncated": False},
        )
        self.assertEqual(self.ask("hover", line=1)["text"], "words")
        self.assertEqual([symbol["name"] for symbol in self.ask("symbols")["symbols"]], ["a", "a.b"])
        self.assertEqual(
            self.ask("diagnostics")["diagnostics"],
            [{"line": 1, "column": 5, "severity": "warning", "code": "c", "message": "hm"}],
        )

    def test_failures_are_told(self):
        self.assertEqual(self.ask("references", line=1)["error"], "`pylsp`: not now")
        self.assertIn("needs `line`", self.ask("definition")["error"])
        self.assertIn("has 2 lines", self.ask("definition", line=9)["error"])
        self.assertIn("outside", self.ask("symbols", file="../bin/pylsp")["error"])
        self.assertIn("not a file", self.ask("symbols", file="b.py")["error"])
        self.write("project/a.rs", "")
        self.assertIn("rust-analyzer", self.ask("symbols", file="a.rs")["error"])

    def test_a_server_that_ends_or_is_silent_is_told(self):
        self.write("bin/pylsp", "#!/bin/sh\nexit 0\n")
        self.assertIn("ended early", self.ask("symbols")["error"])
        self.write("bin/pylsp", "#!/bin/sh\nexec /bin/sleep 60\n")
        self.assertIn("in time", self.ask("symbols", timeout=1)["error"])

    def test_a_server_inside_the_project_is_not_started(self):
        server = self.write("project/bin/pylsp", "#!/bin/sh\nexit 0\n")
        os.chmod(server, 0o755)
        os.environ["PATH"] = os.path.dirname(server)
        self.assertIn("none of these language servers is installed", self.ask("symbols")["error"])


if __name__ == "__main__":
    unittest.main()
