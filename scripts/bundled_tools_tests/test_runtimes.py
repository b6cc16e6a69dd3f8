"""The runtimes' loaders: what reaches a tool, what comes back, and what is never imported."""

import json
import os
import py_compile
import re
import shutil
import sys
import unittest

from support import BUNDLES, RUNTIMES, Case, program

FUNCTION = RUNTIMES / "python/function.yaml"
SCRIPT = RUNTIMES / "python/script.yaml"
NODE = RUNTIMES / "node/function.yaml"
BASH = RUNTIMES / "bash/bash.yaml"
NODE_FLAGS = ["--experimental-detect-module", "--disable-warning=ExperimentalWarning"]


class Templates(unittest.TestCase):
    def test_no_program_holds_what_a_template_would_fill_in(self):
        for path in [FUNCTION, SCRIPT, NODE, BASH, BUNDLES / "standard/.ai/tools/rye/bash.yaml"]:
            self.assertEqual(re.findall(r"\{\s*\w+\s*\}|\$\{", program(path)), [], str(path))

    def test_both_python_loaders_guard_imports_alike(self):
        def guards(path):
            text = program(path)
            between = [("import posix", "tool, project"), ("EXCLUDED =", "sys.path[:0] = roots")]
            return [text[text.index(start):text.index(end)] for start, end in between]
        self.assertEqual(guards(FUNCTION), guards(SCRIPT))

    def test_the_two_bash_tools_are_one(self):
        tools = BUNDLES / "standard/.ai/tools/rye"
        one, other = (tools / "bash.yaml").read_text(), (tools / "bash/bash.yaml").read_text()
        other = other.split("\n", 1)[1].replace("category: rye/bash", "category: rye")
        self.assertEqual(one, other)


class PythonFunction(Case):
    def call(self, source, params="{}", more=(), path=None):
        path = path or self.write("tools/tool.py", source)
        return self.run_channel(FUNCTION, [sys.executable, "-S", "-c", program(FUNCTION), path, self.project], params, more)

    def test_prints_do_not_reach_the_result(self):
        answer = self.call("def execute(params, project):\n    print('[1]')\n    return [params, project]\n", '{"a": "ü"}')
        self.assertEqual((answer.exit, answer.stdout, answer.result), (0, "[1]\n", [{"a": "ü"}, self.project]))

    def test_site_runs_as_soon_as_something_else_than_the_standard_library_is_imported(self):
        source = (
            "import sys\n"
            "def execute(params):\n"
            "    seen = ['site' in sys.modules]\n"
            "    import json, re, subprocess\n"
            "    seen.append('site' in sys.modules)\n"
            "    try:\n"
            "        import a_package_that_nobody_has\n"
            "    except ImportError:\n"
            "        seen.append('site' in sys.modules)\n"
            "    return seen + [callable(exit), callable(quit), callable(help)]\n"
        )
        is_early = sys.prefix != sys.base_prefix or not hasattr(sys, "stdlib_module_names")
        self.assertEqual(self.call(source).result, [is_early, is_early, True, True, True, True])

    def test_what_looks_for_installed_packages_finds_site_done(self):
        for module in ["importlib.metadata", "pkgutil", "multiprocessing", "concurrent.futures"]:
            source = f"import {module}, sys\ndef execute(params):\n    return 'site' in sys.modules\n"
            self.assertEqual(self.call(source).result, True, module)

    def test_any_value_is_a_result(self):
        source = "def execute(params):\n    return %s\n"
        for text, value in [
            ("None", None), ("0", 0), ("''", ""), ("[]", []), ("{1: (2, 3)}", {"1": [2, 3]}),
            ("float('nan')", None), ("{'x': [float('-inf')], (1, 2): 3}", {"x": [None], "(1, 2)": 3}),
            ("__import__('pathlib').Path('/x')", "/x"),
        ]:
            self.assertEqual(self.call(source % text).result, value, text)

    def test_async_functions_are_awaited(self):
        source = "import asyncio\nasync def execute(params, project):\n    await asyncio.sleep(0)\n    return 5\n"
        self.assertEqual(self.call(source).result, 5)

    def test_a_huge_result_arrives_whole(self):
        self.assertEqual(len(self.call("def execute(p, q):\n    return 'x' * 3000000\n").result), 3000000)

    def test_failures_are_told(self):
        answer = self.call("def execute(p, q):\n    raise ValueError('boom')\n")
        self.assertEqual((answer.exit, answer.result), (1, {"success": False, "error": "ValueError: boom"}))
        self.assertIn("ValueError: boom", answer.stderr)
        self.assertNotIn("<string>", answer.stderr)
        answer = self.call("x = 1\n")
        self.assertEqual((answer.exit, answer.text), (1, ""))
        self.assertTrue(answer.stderr.startswith("No execute() in /"), answer.stderr)
        self.assertEqual(self.call("def execute(p, q):\n    raise SystemExit(7)\n").exit, 7)
        self.assertEqual(self.call("def execute(p, q):\n    a = []\n    a.append(a)\n    return a\n").exit, 1)
        self.assertEqual(self.call("def execute(p, q:\n").result["error"].split(":")[0], "SyntaxError")

    def test_the_working_folder_is_not_imported_from(self):
        self.write("project/helper.py", "")
        self.write("project/json.py", "raise SystemExit(9)\n")
        source = "import json\ndef execute(p, q):\n    import helper\n"
        for more in [(), {"PYTHONSAFEPATH": ""}]:
            self.assertEqual(self.call(source, more=more).result["error"], "ModuleNotFoundError: No module named 'helper'")

    def test_a_sibling_is_imported_in_a_verified_folder_only(self):
        self.write("tools/helper.py", "VALUE = 1\n")
        source = "def execute(p, q):\n    import helper\n    return helper.VALUE\n"
        self.assertEqual(self.call(source).result["error"], "ModuleNotFoundError: No module named 'helper'")
        anchor = {"RYE_IMPORT_PATH": os.path.join(self.folder, "tools")}
        self.assertEqual(self.call(source, more=anchor).result, 1)

    def test_relative_imports_work_in_a_verified_package(self):
        self.write("tools/__init__.py", "NAME = 'package'\n")
        self.write("tools/sub/__init__.py", "from ..helper import VALUE\n")
        self.write("tools/helper.py", "VALUE = 1\n")
        source = "from . import NAME\nfrom .sub import VALUE\ndef execute(p, q):\n    return [NAME, VALUE]\n"
        anchor = {"RYE_IMPORT_PATH": os.path.join(self.folder, "tools")}
        self.assertEqual(self.call(source, more=anchor).result, ["package", 1])

    def test_only_source_is_imported_from_a_verified_folder(self):
        folder = os.path.join(self.folder, "tools")
        self.write("tools/helper.py", "VALUE = 'source'\n")
        evil = self.write("evil.py", "VALUE = 'cache'\n")
        tag = sys.implementation.cache_tag
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(evil, cfile=os.path.join(folder, "__pycache__/helper.%s.pyc" % tag), invalidation_mode=mode)
        py_compile.compile(evil, cfile=os.path.join(folder, "other.pyc"), invalidation_mode=mode)
        py_compile.compile(evil, cfile=os.path.join(folder, "sitecustomize.pyc"), invalidation_mode=mode)
        self.write("tools/helper.so", "not a library")
        self.write("tools/config/__init__.py", "VALUE = 'not verified'\n")
        source = (
            "import helper, sys\nfound = []\nfor name in ('other', 'config'):\n    try:\n        found.append(__import__(name))\n"
            "    except ImportError as error:\n        found.append(str(error))\n"
            "def execute(p, q):\n    site = sys.modules.get('sitecustomize')\n"
            "    return [helper.VALUE, found, getattr(site, 'VALUE', None)]\n"
        )
        answer = self.call(source, more={"RYE_IMPORT_PATH": folder})
        self.assertEqual(answer.result, ["source", ["No module named 'other'", "No module named 'config'"], None], answer.stderr)

    def test_children_do_not_get_the_channel(self):
        source = (
            "import os\nnumber = os.environ.get('RYE_RESULT_FD')\ndef execute(p, q):\n"
            "    open_ones = [n for n in range(3, 64) if os.path.exists('/dev/fd/%d' % n)]\n"
            "    shown = os.popen('for n in %s; do (: >&$n) 2>/dev/null && echo $n; done' % ' '.join(map(str, open_ones)))\n"
            "    return [number, shown.read()]\n"
        )
        self.assertEqual(self.call(source).result, [None, ""])


class PythonScript(Case):
    def test_a_script_is_the_main_module_and_reads_its_parameters(self):
        path = self.write("tools/tool.py", (
            "import json, sys\nif __name__ == '__main__':\n    print('noise')\n"
            "    print(json.dumps([json.load(sys.stdin), sys.argv[1:], __file__]))\n"
        ))
        answer = self.run_plain(SCRIPT, [sys.executable, "-S", "-c", program(SCRIPT), path, self.project], '{"a": 1}')
        last = json.loads(answer.stdout.splitlines()[-1])
        self.assertEqual(last, [{"a": 1}, ["--project-path", self.project], path])

    def test_a_script_imports_nothing_that_lies_beside_it(self):
        self.write("tools/helper.py", "")
        path = self.write("tools/tool.py", "import helper\n")
        command = [sys.executable, "-S", "-c", program(SCRIPT), path, self.project]
        self.assertEqual(self.run_plain(SCRIPT, command, "{}").exit, 1)
        anchor = {"RYE_IMPORT_PATH": os.path.dirname(path)}
        self.assertEqual(self.run_plain(SCRIPT, command, "{}", anchor).exit, 0)


@unittest.skipUnless(shutil.which("node"), "node is not installed")
class NodeFunction(Case):
    def call(self, name, source, params="{}"):
        path = self.write("tools/" + name, source)
        command = ["node"] + NODE_FLAGS + ["--input-type=module", "-e", program(NODE), path, self.project]
        return self.run_channel(NODE, command, params)

    def test_every_module_form_is_called(self):
        for name, source in [
            ("a.mjs", "export async function execute(p, project) { console.log('log'); return [p, project]; }"),
            ("a.js", "import 'node:fs';\nexport const execute = (p, project) => { console.log('log'); return [p, project]; };"),
            ("a.cjs", "module.exports.execute = (p, project) => { console.log('log'); return [p, project]; };"),
        ]:
            answer = self.call(name, source, '{"a": 1}')
            self.assertEqual((answer.exit, answer.stdout, answer.result), (0, "log\n", [{"a": 1}, self.project]), answer.stderr)

    def test_failures_are_told(self):
        answer = self.call("a.mjs", "export function execute() { throw new TypeError('bad'); }")
        self.assertEqual((answer.exit, answer.result), (1, {"success": False, "error": "TypeError: bad"}))
        answer = self.call("b.mjs", "export const x = 1;")
        self.assertEqual((answer.exit, answer.text), (1, ""))
        self.assertTrue(answer.stderr.startswith("No execute() in /"), answer.stderr)

    def test_nothing_and_much_are_results(self):
        self.assertEqual(self.call("a.mjs", "export function execute() {}").text, "null")
        self.assertEqual(len(self.call("b.mjs", "export const execute = () => 'x'.repeat(3e6);").result), 3000000)


class Bash(Case):
    def call(self, name, params, more):
        command = ["/bin/bash", "-p", "-c", program(BASH), os.path.join(self.folder, name), self.project]
        return self.run_plain(BASH, command, params, more)

    def test_a_shell_tool_gets_its_parameters_twice(self):
        self.write("tools/a.sh", 'echo "$RYE_PARAM_NAME|$1|$(cat)"\nexit 3\n')
        answer = self.call("tools/a.sh", '{"name": "x y"}', {"RYE_PARAM_NAME": "x y"})
        self.assertEqual((answer.exit, answer.stdout), (3, 'x y|%s|{"name": "x y"}\n' % self.project))

    def test_another_tool_runs_its_command(self):
        answer = self.call("tools/a.yaml", "{}", {"RYE_PARAM_COMMAND": 'echo "$1"; exit 4'})
        self.assertEqual((answer.exit, answer.stdout), (4, self.project + "\n"))
        self.assertEqual(self.call("tools/a.yaml", "{}", {}).exit, 2)

    def test_no_start_up_file_is_read(self):
        start = self.write("start", "echo started\n")
        self.write("tools/a.sh", "true\n")
        answer = self.call("tools/a.sh", "{}", {"BASH_ENV": start, "BASH_FUNC_true%%": "() { echo stolen; }"})
        self.assertEqual((answer.exit, answer.stdout), (0, ""))


class BashTool(Case):
    def call(self, **params):
        path = BUNDLES / "standard/.ai/tools/rye/bash.yaml"
        more = {"RYE_PARAM_" + name.upper(): str(value) for name, value in params.items()}
        first = program(path, "    - |-").rstrip("\n").replace("{command}", params["command"])
        return self.run_plain(path, ["/bin/bash", "-p", "-c", first, "bash", program(path), self.project], "", more)

    def test_a_command_runs_in_the_project(self):
        answer = self.call(command="pwd; env | grep RYE_PARAM; echo oh >&2; exit 3")
        self.assertEqual((answer.exit, answer.stdout, answer.stderr), (3, self.project + "\n", "oh\n"))

    def test_a_command_has_the_shell_to_itself(self):
        answer = self.call(command='echo "$0|$#|$*|$CDPATH"; declare -F; nothing-of-that-name')
        self.assertEqual((answer.exit, answer.stdout), (127, "bash|0||\n"))
        self.assertEqual(answer.stderr, "bash: line 1: nothing-of-that-name: command not found\n")
        answer = self.call(command='cat <<X\na\nX\nfalse')
        self.assertEqual((answer.exit, answer.stdout), (1, "a\n"))
        answer = self.call(command="echo never; if")
        self.assertEqual((answer.exit, answer.stdout), (2, ""))
        answer = self.call(command="sleep 0 & wait; echo done")
        self.assertEqual((answer.exit, answer.stdout), (0, "done\n"))

    def test_the_working_folder_is_inside_the_project(self):
        os.makedirs(os.path.join(self.project, "a/b"))
        os.symlink("/", os.path.join(self.project, "out"))
        os.mkdir(self.project + "-other")
        inner = os.path.join(self.project, "a/b")
        for folder, exit_code, stdout in [
            ("a/b", 0, inner + "\n"), (inner, 0, inner + "\n"), ("-", 2, ""), ("..", 2, ""), ("out", 2, ""),
            ("/", 2, ""), ("../project-other", 2, ""), ("nowhere", 2, ""),
        ]:
            answer = self.call(command="pwd", working_dir=folder)
            self.assertEqual((answer.exit, answer.stdout), (exit_code, stdout), folder)

    def test_a_time_limit_ends_the_command(self):
        answer = self.call(command="sleep 60", timeout=1)
        self.assertEqual((answer.exit, answer.stderr), (124, "the command was ended after 1 seconds\n"))
        answer = self.call(command="exit 124", timeout=60)
        self.assertEqual((answer.exit, answer.stderr), (124, ""))


if __name__ == "__main__":
    unittest.main()
