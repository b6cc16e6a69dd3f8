"""Git in the project: what changed, what was done, and the everyday changes, without a shell.

A repository's own config can name programs that git would start (fsmonitor, hooks, external diffs, filters). They are
kept from running: most are switched off, and a changing action is refused where that would change what is recorded.
"""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "rye/code/git"
__tool_name__ = "git"
__tool_description__ = "Git in the project: status, diff, log, show, blame, branch, add, restore, commit, checkout, stash"

CONFIG_SCHEMA = {
    "type": "object",
    "required": ["action"],
    "additionalProperties": False,
    "properties": {
        "action": {
            "type": "string",
            "enum": [
                "status", "diff", "log", "show", "blame", "branches", "stashes",
                "add", "restore", "commit", "checkout", "create_branch", "stash", "stash_pop",
            ],
            "description": "What to do. The first seven change nothing",
        },
        "paths": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "maxItems": 1000,
            "description": "Files and folders, relative to the project. Needed by add, restore and blame",
        },
        "revision": {
            "type": "string",
            "minLength": 1,
            "description": "A commit, branch, tag or range such as main..HEAD: what diff, log, show, blame and checkout look at",
        },
        "staged": {
            "type": "boolean",
            "default": False,
            "description": "diff: what is staged. restore: unstage instead of discarding changes",
        },
        "stat": {"type": "boolean", "default": False, "description": "diff, show: a summary instead of the text"},
        "limit": {
            "type": "integer", "minimum": 1, "maximum": 1000, "default": 20,
            "description": "log: how many commits at most",
        },
        "message": {"type": "string", "minLength": 1, "description": "commit, stash: the message"},
        "all": {"type": "boolean", "default": False, "description": "commit: stage every changed file git knows first"},
        "branch": {"type": "string", "minLength": 1, "description": "create_branch: the new branch's name"},
        "run_hooks": {
            "type": "boolean", "default": False,
            "description": "Changing actions: run the repository's hooks, which are programs of the repository",
        },
        "trust_repository_config": {
            "type": "boolean", "default": False,
            "description": "Let programs named in the repository's own config run (filters, fsmonitor, external diffs)",
        },
    },
}

import os
import re
import signal
import subprocess
import threading

READ_ONLY = frozenset(("status", "diff", "log", "show", "blame", "branches", "stashes"))
LIMIT = 200_000
SECONDS = 120
LOG_FORMAT = "%H%x1f%an%x1f%ae%x1f%aI%x1f%s%x1e"

# Config of a repository that names a program, or changes which one is run.
PROGRAMS = re.compile(
    r"^(core\.(fsmonitor|hookspath|sshcommand|pager|editor|askpass|gitproxy)|pager\..*|sequence\.editor"
    r"|diff\.external|diff\..*\.(command|textconv)|filter\..*\.(clean|smudge|process)|merge\..*\.driver"
    r"|gpg\.program|gpg\..*\.program|credential\..*|remote\..*\.(uploadpack|receivepack|vcs)|trailer\..*\.(command|cmd)"
    r"|interactive\.difffilter)$"
)
FILTER = re.compile(r"^filter\.(.+)\.(?:clean|smudge|process)$", re.DOTALL)

ALWAYS = (
    "core.fsmonitor=false", "core.pager=cat", "core.editor=true", "log.showSignature=false", "diff.external=",
    "commit.gpgSign=false", "submodule.recurse=false", "diff.ignoreSubmodules=all", "safe.bareRepository=explicit",
    "protocol.allow=never", "gc.auto=0", "maintenance.auto=false", "core.quotePath=false",
)


class Refused(Exception):
    """The call cannot be made as it is."""


def execute(params, project_path):
    try:
        return run_action(params, project_path)
    except Refused as error:
        return {"success": False, "error": str(error)}


def run_action(params, project):
    action = params["action"]
    words = arguments(action, params)
    settings = list(ALWAYS)
    if not params.get("trust_repository_config"):
        found = repository_programs(project)
        filters = sorted({match.group(1) for match in map(FILTER.match, found) if match})
        if filters and action not in READ_ONLY:
            raise Refused(
                "the repository's own config runs programs on files (filter `%s`): look at them with "
                "`git config --local --list`, then set trust_repository_config" % "`, `".join(filters)
            )
        for name in filters:
            if "=" in name:  # git would take what stands before it for the key
                raise Refused("the repository's config has a filter with a strange name: `%s`" % name)
            settings += ["filter.%s.%s=" % (name, key) for key in ("clean", "smudge", "process")]
            settings.append("filter.%s.required=false" % name)
    else:
        settings.remove("core.fsmonitor=false")
        settings.remove("diff.external=")
    if action in READ_ONLY or not params.get("run_hooks"):
        settings.append("core.hooksPath=" + os.devnull)
    answer = git(project, settings, words, action in READ_ONLY)
    answer["action"] = action
    if not answer["success"]:
        answer["error"] = answer["stderr"].strip() or "git ended with exit code %s" % answer["exit_code"]
    elif action == "status":
        answer.update(read_status(answer["stdout"]))
    elif action == "log":
        answer["commits"] = read_log(answer.pop("stdout"))
    return answer


def arguments(action, params):
    """The words after `git`, without a chance to smuggle in an option."""
    def wanted(name):
        if not params.get(name):
            raise Refused("%s needs `%s`" % (action, name))
        return params[name]

    def plain(name):
        value = wanted(name)
        if value.startswith("-"):
            raise Refused("`%s` may not begin with a dash: `%s`" % (name, value))
        return value

    revision = [plain("revision")] if params.get("revision") else []
    paths = ["--"] + list(params.get("paths") or [])
    text = ["--no-ext-diff", "--no-textconv", "--no-color"]
    if params.get("trust_repository_config"):
        text = ["--no-color"]
    stat = ["--stat"] if params.get("stat") else []
    staged = ["--staged"] if params.get("staged") else []
    if action == "status":
        return ["status", "--porcelain=v1", "-z", "--branch", "--ignore-submodules=all"] + paths
    if action == "diff":
        return ["diff"] + text + ["--ignore-submodules=all"] + stat + staged + revision + paths
    if action == "log":
        limit = str(params.get("limit") or 20)
        return ["log", "-n", limit, "--no-show-signature", "--format=" + LOG_FORMAT] + revision + paths
    if action == "show":
        return ["show", "--no-show-signature"] + text + stat + (revision or ["HEAD"]) + paths
    if action == "blame":
        wanted("paths")
        return ["blame", "--no-textconv"] + revision + paths
    if action == "branches":
        return ["branch", "--all", "--verbose", "--no-color", "--no-abbrev"]
    if action == "stashes":
        return ["stash", "list", "--no-show-signature"]
    if action == "add":
        wanted("paths")
        return ["add"] + paths
    if action == "restore":
        wanted("paths")
        return ["restore"] + staged + paths
    if action == "commit":
        every = ["--all"] if params.get("all") else []
        no_hooks = [] if params.get("run_hooks") else ["--no-verify"]
        only = paths if params.get("paths") else []
        return ["commit", "--no-gpg-sign", "--message=" + wanted("message")] + every + no_hooks + only
    if action == "checkout":
        return ["checkout", "--no-recurse-submodules", plain("revision"), "--"]
    if action == "create_branch":
        return ["checkout", "--no-recurse-submodules", "-b", plain("branch")] + revision + ["--"]
    if action == "stash":
        message = ["--message=" + params["message"]] if params.get("message") else []
        return ["stash", "push"] + message + paths
    if action == "stash_pop":
        return ["stash", "pop"]
    raise Refused("there is no action `%s`" % action)


def repository_programs(project):
    """The names in the repository's own config (not the user's) that make git start a program."""
    listed = git(project, (), ["config", "--list", "--show-scope", "--includes", "-z"], True, 4_000_000)
    if not listed["success"]:
        raise Refused("the repository's config cannot be checked: " + listed["stderr"].strip())
    if listed["truncated"]:
        raise Refused("the repository's config is too large to check")
    pieces = listed["stdout"].split("\0")
    found = []
    for scope, entry in zip(pieces[0::2], pieces[1::2]):
        name = entry.split("\n", 1)[0]
        section, _, rest = name.partition(".")
        middle, _, key = rest.rpartition(".")
        folded = ".".join(part for part in (section.lower(), middle, key.lower()) if part)
        if scope in ("local", "worktree") and PROGRAMS.match(folded):
            found.append(folded)
    return found


def git(project, settings, words, is_read_only, limit=LIMIT):
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(("GIT_AUTHOR_", "GIT_COMMITTER_"))
    }
    environment.update(
        GIT_TERMINAL_PROMPT="0", GIT_PAGER="cat", GIT_EDITOR="true", GIT_SEQUENCE_EDITOR="true", GIT_ASKPASS="true",
        GIT_ALLOW_PROTOCOL="", GIT_NO_LAZY_FETCH="1", LC_ALL="C.UTF-8",
    )
    if is_read_only:
        environment["GIT_OPTIONAL_LOCKS"] = "0"
    command = ["git", "--no-pager", "--literal-pathspecs"]
    for setting in settings:
        command += ["-c", setting]
    return run(command + words, project, environment, limit, SECONDS)


def run(command, folder, environment, limit, seconds):
    """Runs a program to its end; what it prints is kept up to `limit` bytes."""
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Refused("`%s` cannot be started: %s" % (command[0], error))
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    cut = []

    def drain(name, stream):
        with stream:
            for chunk in iter(lambda: stream.read1(65536), b""):
                room = limit - len(kept[name])
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


def read_status(text):
    """`git status --porcelain -z --branch` as values."""
    pieces = iter(text.split("\0"))
    branch, entries = None, []
    for piece in pieces:
        if piece.startswith("## "):
            branch = piece[3:].split("...")[0]
        elif len(piece) > 3:
            entry = {"staged": piece[0], "unstaged": piece[1], "path": piece[3:]}
            if piece[0] in "RC":
                entry["from"] = next(pieces, "")
            entries.append(entry)
    return {"branch": branch, "entries": entries, "clean": not entries}


def read_log(text):
    """The log in LOG_FORMAT as values."""
    commits = []
    for record in text.split("\x1e"):
        fields = record.lstrip("\n").split("\x1f")
        if len(fields) == 5:
            commits.append(dict(zip(("commit", "author", "email", "date", "subject"), fields)))
    return commits
