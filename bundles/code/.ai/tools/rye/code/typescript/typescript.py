"""Type-checks TypeScript with `tsc --noEmit` and answers with the problems as values."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "rye/code/typescript"
__tool_name__ = "typescript"
__tool_description__ = "Type-check TypeScript with tsc --noEmit; problems as file, line, column, code and message"

CONFIG_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "config": {
            "type": "string", "minLength": 1, "default": "tsconfig.json",
            "description": "The tsconfig file, or the folder that holds one, inside the project",
        },
        "allow_project_code": {
            "type": "boolean", "default": False,
            "description": "Use the compiler in the project's node_modules, which is code of the project, before one on PATH",
        },
        "limit": {
            "type": "integer", "minimum": 1, "maximum": 5000, "default": 500,
            "description": "How many problems to answer with at most",
        },
    },
}

import os
import re
import shutil
import subprocess

SECONDS = 240
LIMIT = 8_000_000
PROBLEM = re.compile(
    r"^(?P<file>[^\n]+?)\((?P<line>\d+),(?P<column>\d+)\): (?P<severity>error|warning) (?P<code>TS\d+): (?P<message>.*)$"
)
WITHOUT_PLACE = re.compile(r"^(?P<severity>error|warning) (?P<code>TS\d+): (?P<message>.*)$")


def execute(params, project_path):
    root = os.path.realpath(project_path)
    config = os.path.realpath(os.path.join(root, params.get("config") or "tsconfig.json"))
    if config != root and not config.startswith(root + os.sep):
        return {"success": False, "error": "`config` is outside the project"}
    if not os.path.exists(config):
        return {"success": False, "error": "there is no `%s` in the project" % (params.get("config") or "tsconfig.json")}
    compiler = find_compiler(root, bool(params.get("allow_project_code")))
    if compiler is None:
        return {
            "success": False,
            "error": "no TypeScript compiler: install tsc, or set allow_project_code to use the one in node_modules",
        }
    try:
        done = subprocess.run(
            [compiler, "--noEmit", "--pretty", "false", "--incremental", "false", "--project", config],
            cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"success": False, "error": "tsc did not end within %s seconds" % SECONDS}
    except OSError as error:
        return {"success": False, "error": "tsc cannot be started: %s" % error}
    text = done.stdout[:LIMIT].decode("utf-8", "replace")
    problems = read_problems(text)
    limit = params.get("limit") or 500
    answer = {
        # Problems are an answer, not a failure; a compiler that fails without naming any is one.
        "success": done.returncode == 0 or bool(problems),
        "compiler": compiler,
        "exit_code": done.returncode,
        "count": len(problems),
        "diagnostics": problems[:limit],
        "truncated": len(problems) > limit or len(done.stdout) > LIMIT,
    }
    if not answer["success"]:
        answer["error"] = text.strip()[:2000] or "tsc ended with exit code %s" % done.returncode
    return answer


def find_compiler(root, may_use_project):
    if may_use_project:
        local = os.path.join(root, "node_modules", ".bin", "tsc")
        if os.access(local, os.X_OK):
            return local
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    outside = [folder for folder in folders if not os.path.realpath(folder).startswith(root + os.sep)]
    return shutil.which("tsc", path=os.pathsep.join(outside)) if outside else None


def read_problems(text):
    """tsc's lines as values; an indented line continues the message above it."""
    problems = []
    for line in text.splitlines():
        match = PROBLEM.match(line)
        if match:
            found = match.groupdict()
            found["line"], found["column"] = int(found["line"]), int(found["column"])
            problems.append(found)
            continue
        match = WITHOUT_PLACE.match(line)
        if match:
            problems.append(dict(match.groupdict(), file=None, line=None, column=None))
        elif line.startswith("  ") and problems:
            problems[-1]["message"] += "\n" + line.strip()
    return problems
