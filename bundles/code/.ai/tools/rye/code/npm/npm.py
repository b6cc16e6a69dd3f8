"""npm in the project. Installing runs no install scripts; `run` and `test` run what the project's package.json says."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "rye/code/npm"
__tool_name__ = "npm"
__tool_description__ = "npm in the project: install without scripts, ci, run, test, ls, outdated"

CONFIG_SCHEMA = {
    "type": "object",
    "required": ["action"],
    "additionalProperties": False,
    "properties": {
        "action": {
            "type": "string",
            "enum": ["install", "ci", "run", "test", "ls", "outdated"],
            "description": "What to do. run and test run the project's own code; install and ci run no scripts",
        },
        "packages": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 214},
            "maxItems": 100,
            "description": "install: packages to add, as name or name@version; none installs what package.json lists",
        },
        "dev": {"type": "boolean", "default": False, "description": "install: add them as development dependencies"},
        "script": {"type": "string", "minLength": 1, "description": "run: the script's name in package.json"},
        "arguments": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": 100,
            "description": "run, test: arguments for the script",
        },
        "folder": {"type": "string", "minLength": 1, "description": "The package's folder, inside the project"},
        "timeout": {
            "type": "integer", "minimum": 1, "maximum": 280, "default": 280,
            "description": "Seconds after which npm is ended",
        },
    },
}

import json
import os
import re
import signal
import subprocess
import threading

LIMIT = 200_000
# A name of the registry with an optional scope, version or tag. No addresses, no folders, no git.
PACKAGE = re.compile(r"^(@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(@[A-Za-z0-9^~<>=*.][A-Za-z0-9^~<>=*. |+-]*)?$")
SCRIPT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.:/@-]*$")
# A project's .npmrc may name programs. The command line wins over it.
QUIET = ["--no-audit", "--no-fund", "--no-update-notifier", "--no-color", "--no-progress"]
HARMLESS = ["--ignore-scripts", "--git=git", "--script-shell=/bin/sh", "--node-options="]


class Refused(Exception):
    """The call cannot be made as it is."""


def execute(params, project_path):
    try:
        folder = package_folder(project_path, params.get("folder"))
        words = arguments(params)
        answer = run(["npm"] + words, folder, params.get("timeout") or 280)
    except Refused as error:
        return {"success": False, "error": str(error)}
    action = answer["action"] = params["action"]
    if action in ("ls", "outdated") and not answer["truncated"]:
        try:
            answer["packages"] = json.loads(answer["stdout"] or "{}")
            del answer["stdout"]
            # Both end with 1 when they have something to tell.
            answer["success"] = answer["exit_code"] in (0, 1) and "error" not in answer["packages"]
        except ValueError:
            pass
    if not answer["success"]:
        lines = [line for line in answer["stderr"].splitlines() if line.strip()]
        answer["error"] = lines[-1] if lines else "npm ended with exit code %s" % answer["exit_code"]
    return answer


def package_folder(project, folder):
    root = os.path.realpath(project)
    real = os.path.realpath(os.path.join(root, folder or "."))
    if real != root and not real.startswith(root + os.sep):
        raise Refused("`%s` is outside the project" % folder)
    if not os.path.isfile(os.path.join(real, "package.json")):
        raise Refused("there is no package.json in `%s`" % (folder or "."))
    return real


def arguments(params):
    action = params["action"]
    if action == "install":
        packages = list(params.get("packages") or [])
        for package in packages:
            if not PACKAGE.match(package):
                raise Refused("`%s` is not a package name with an optional version" % package)
        dev = ["--save-dev"] if params.get("dev") else []
        return ["install"] + HARMLESS + QUIET + dev + ["--"] + packages
    if action == "ci":
        return ["ci"] + HARMLESS + QUIET
    if action in ("run", "test"):
        script = params.get("script") if action == "run" else "test"
        if not script:
            raise Refused("run needs `script`")
        if not SCRIPT.match(script):
            raise Refused("`%s` is not the name of a script" % script)
        return ["run"] + QUIET + [script, "--"] + list(params.get("arguments") or [])
    if action in ("ls", "outdated"):
        return [action] + HARMLESS + QUIET + ["--json"]
    raise Refused("there is no action `%s`" % action)


def run(command, folder, seconds):
    """Runs a program to its end; what it prints is kept up to LIMIT bytes a stream."""
    try:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Refused("`%s` cannot be started: %s" % (command[0], error))
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    cut = []

    def drain(name, stream):
        with stream:
            for chunk in iter(lambda: stream.read1(65536), b""):
                room = LIMIT - len(kept[name])
                kept[name] += chunk[:room]
                if len(chunk) > room:
                    cut.append(name)

    threads = [
        threading.Thread(target=drain, args=("stdout", process.stdout), daemon=True),
        threading.Thread(target=drain, args=("stderr", process.stderr), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise Refused("`%s` did not end within %s seconds" % (command[0], seconds))
    for thread in threads:
        thread.join(5)
    return {
        "success": code == 0,
        "exit_code": code,
        "stdout": kept["stdout"].decode("utf-8", "replace"),
        "stderr": kept["stderr"].decode("utf-8", "replace"),
        "truncated": bool(cut),
    }
