"""Runs the checkers a project uses and answers with their problems in one form.

Some checkers run code of the project: eslint its config, mypy its plugins, cargo its build scripts. They are left out
unless `allow_project_code` is set, and the answer says so.
"""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "rye/code/diagnostics"
__tool_name__ = "diagnostics"
__tool_description__ = "Run the checkers a project uses (ruff, mypy, pyright, eslint, tsc, cargo, go vet); problems in one form"

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "checkers": {
            "type": "array",
            "items": {"type": "string", "enum": ["ruff", "mypy", "pyright", "eslint", "tsc", "cargo", "go"]},
            "uniqueItems": True,
            "description": "Which checkers to run; those that fit the project if not given",
        },
        "allow_project_code": {
            "type": "boolean", "default": False,
            "description": "Also run checkers that run code of the project, and checkers in its .venv and node_modules",
        },
        "limit": {
            "type": "integer", "minimum": 1, "maximum": 5000, "default": 500,
            "description": "How many problems to answer with at most",
        },
        "timeout": {
            "type": "integer", "minimum": 1, "maximum": 280, "default": 120,
            "description": "Seconds all checkers together may take",
        },
    },
}

import glob
import json
import os
import re
import shutil
import subprocess
import time

LIMIT = 16_000_000
PLACED = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+)(?::(?P<column>\d+))?:\s*(?:(?P<severity>error|warning|note):\s*)?(?P<message>.+)$"
)
TSC = re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+),(?P<column>\d+)\): (?P<severity>error|warning) (?P<message>TS\d+: .*)$")


def execute(params, project_path):
    root = os.path.realpath(project_path)
    may_run_project = bool(params.get("allow_project_code"))
    wanted = params.get("checkers") or [name for name in CHECKERS if fits(root, CHECKERS[name]["markers"])]
    end = time.monotonic() + (params.get("timeout") or 120)
    limit = params.get("limit") or 500
    ran, skipped, problems = [], [], []
    for name in wanted:
        checker = CHECKERS[name]
        if checker["runs_project_code"] and not may_run_project:
            skipped.append({"checker": name, "reason": "it runs code of the project: set allow_project_code"})
            continue
        program = find_program(root, checker["program"], may_run_project)
        if program is None:
            skipped.append({"checker": name, "reason": "`%s` is not installed" % checker["program"]})
            continue
        remaining = end - time.monotonic()
        if remaining <= 0:
            skipped.append({"checker": name, "reason": "no time was left"})
            continue
        try:
            done = subprocess.run(
                [program] + checker["arguments"], cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, timeout=remaining,
            )
        except subprocess.TimeoutExpired:
            skipped.append({"checker": name, "reason": "it did not end in time"})
            continue
        except OSError as error:
            skipped.append({"checker": name, "reason": "it cannot be started: %s" % error})
            continue
        output = done.stderr if checker["stream"] == "stderr" else done.stdout
        try:
            found = checker["read"](output[:LIMIT].decode("utf-8", "replace"))
        except (ValueError, KeyError, TypeError, AttributeError):
            found = None
        if found is None or (done.returncode != 0 and not found):
            text = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            skipped.append({"checker": name, "reason": "it failed: " + (text[-500:] or "exit code %s" % done.returncode)})
            continue
        ran.append(name)
        for problem in found:
            problem["file"] = inside(root, problem["file"])
            problem["checker"] = name
            problems.append(problem)
    answer = {
        "success": bool(ran) or not wanted,
        "ran": ran,
        "skipped": skipped,
        "count": len(problems),
        "errors": sum(1 for problem in problems if problem["severity"] == "error"),
        "diagnostics": problems[:limit],
        "truncated": len(problems) > limit,
    }
    if not answer["success"]:
        answer["error"] = "no checker could be run"
    return answer


def fits(root, markers):
    return any(glob.glob(os.path.join(glob.escape(root), marker)) for marker in markers)


def inside(root, path):
    """The path below the project where it is one, as the checker gave it otherwise."""
    if not path:
        return None
    full = os.path.normpath(os.path.join(root, path))
    return os.path.relpath(full, root) if full.startswith(root + os.sep) else path


def find_program(root, name, may_use_project):
    if may_use_project:
        for folder in (".venv/bin", "node_modules/.bin"):
            local = os.path.join(root, folder, name)
            if os.access(local, os.X_OK):
                return local
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    outside = [folder for folder in folders if not os.path.realpath(folder).startswith(root + os.sep)]
    return shutil.which(name, path=os.pathsep.join(outside)) if outside else None


def problem(file, line, column, severity, message, code=None):
    return {"file": file, "line": line, "column": column, "severity": severity, "code": code, "message": message}


def read_ruff(text):
    return [
        problem(
            entry["filename"], entry["location"]["row"], entry["location"]["column"], "warning" if entry.get("code") else "error",
            entry["message"], entry.get("code"),
        )
        for entry in json.loads(text)
    ]


def read_pyright(text):
    return [
        problem(
            entry["file"], entry["range"]["start"]["line"] + 1, entry["range"]["start"]["character"] + 1,
            {"information": "info"}.get(entry["severity"], entry["severity"]), entry["message"], entry.get("rule"),
        )
        for entry in json.loads(text)["generalDiagnostics"]
    ]


def read_eslint(text):
    return [
        problem(
            file["filePath"], entry.get("line"), entry.get("column"), "error" if entry.get("severity") == 2 else "warning",
            entry["message"], entry.get("ruleId"),
        )
        for file in json.loads(text) for entry in file["messages"]
    ]


def read_cargo(text):
    found = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        message = entry.get("message")
        if entry.get("reason") != "compiler-message" or message["level"] not in ("error", "warning"):
            continue
        spans = [span for span in message["spans"] if span["is_primary"]]
        if spans:
            code = (message.get("code") or {}).get("code")
            place = (spans[0]["file_name"], spans[0]["line_start"], spans[0]["column_start"])
            found.append(problem(*place, message["level"], message["message"], code))
    return found


def read_lines(pattern):
    def read(text):
        found = []
        for match in filter(None, map(pattern.match, text.splitlines())):
            column = match["column"]
            severity = {"note": "info"}.get(match["severity"], match["severity"] or "error")
            found.append(problem(match["file"], int(match["line"]), int(column) if column else None, severity, match["message"]))
        return found
    return read


CHECKERS = {
    "ruff": {
        "program": "ruff", "arguments": ["check", "--output-format=json", "--no-cache", "--no-fix", "."], "stream": "stdout",
        "read": read_ruff, "runs_project_code": False, "markers": ["pyproject.toml", "ruff.toml", ".ruff.toml", "setup.cfg", "*.py"],
    },
    "mypy": {
        "program": "mypy", "arguments": ["--no-color-output", "--no-error-summary", "--show-column-numbers", "."],
        "stream": "stdout", "read": read_lines(PLACED), "runs_project_code": True, "markers": ["mypy.ini", ".mypy.ini"],
    },
    "pyright": {
        "program": "pyright", "arguments": ["--outputjson"], "stream": "stdout", "read": read_pyright,
        "runs_project_code": False, "markers": ["pyrightconfig.json"],
    },
    "eslint": {
        "program": "eslint", "arguments": ["--format", "json", "."], "stream": "stdout", "read": read_eslint,
        "runs_project_code": True, "markers": [".eslintrc*", "eslint.config.*"],
    },
    "tsc": {
        "program": "tsc", "arguments": ["--noEmit", "--pretty", "false", "--incremental", "false"], "stream": "stdout",
        "read": read_lines(TSC), "runs_project_code": False, "markers": ["tsconfig.json"],
    },
    "cargo": {
        "program": "cargo", "arguments": ["check", "--message-format=json", "--quiet", "--offline"], "stream": "stdout",
        "read": read_cargo, "runs_project_code": True, "markers": ["Cargo.toml"],
    },
    "go": {
        "program": "go", "arguments": ["vet", "./..."], "stream": "stderr", "read": read_lines(PLACED),
        "runs_project_code": True, "markers": ["go.mod"],
    },
}
