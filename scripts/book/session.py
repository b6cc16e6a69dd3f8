"""Runs a page's commands in one shell, in an empty home, and compares what they print with what the page shows."""
import difflib
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

COMMAND_TIMEOUT_SECONDS = 300
DURATION = r"(?:now|\d[\d,]*(?:\.\d+)? (?:ms|s|min|h|d)|\d+m \d\ds)"
# What differs between two runs. The first three are bound: a later command that names one means the one of this run.
VARYING = re.compile(
    r"(?P<id>(?<![0-9A-Za-z])[0-9a-f]{12}(?:[0-9a-f]{4})?(?:[0-9a-f]{48})?(?![0-9A-Za-z]))"
    r"|(?P<time>\d{4}-\d\d-\d\d(?:T[\d:.]+Z| \d\d:\d\d [A-Z]{3,5}\b))"
    r"|(?P<stamp>\d{4}-\d\d-\d\dT\d{6}Z)"
    r"|(?P<date>\d{4}-\d\d-\d\d)"
    r"|(?P<folder>/tmp/rye-runs-\d+/rye-run-\w+)"
    rf"|(?P<duration>(?<![\w.]){DURATION}(?!\w))"
    r"|(?P<any>…)"
)
PATTERNS = {
    "time": r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z| \d\d:\d\d [A-Z]{3,5})", "stamp": r"\d{4}-\d\d-\d\dT\d{6}Z", "date": r"\d{4}-\d\d-\d\d", "folder": r"/tmp/rye-runs-\d+/rye-run-\w+",
    "duration": DURATION, "any": r"[^\n]*?",
}


def normalize(text):
    """Text without what never matters: widths of columns, spaces at the end, how long a slow run took."""
    lines = []
    for line in text.split("\n"):
        line = re.sub(rf" · {DURATION}$", "", line.rstrip())
        lead = len(line) - len(line.lstrip())
        lines.append(line[:lead] + re.sub(r" {2,}", "  ", line[lead:]))
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return "\n".join(lines)


class Bindings:
    """Which id of this run stands for which id of the page."""

    def __init__(self):
        self.actual = {}

    def pattern(self, expected):
        """A pattern for what a page shows, and the ids that it binds, by group."""
        groups, parts = {}, []
        for line in normalize(expected).split("\n"):
            if line.strip(" │") == "…":
                parts.append(r"(?:[^\n]*\n)*?")
                continue
            pieces, at = [], 0
            for match in VARYING.finditer(line):
                pieces.append(re.escape(line[at : match.start()]))
                pieces.append(self.piece(match, groups))
                at = match.end()
            pieces.append(re.escape(line[at:]))
            parts.append("".join(pieces) + r"\n")
        return re.compile("".join(parts)), groups

    def piece(self, match, groups):
        kind, text = match.lastgroup, match.group()
        if kind != "id" or not re.search(r"\d", text):
            return PATTERNS.get(kind, re.escape(text))
        if text in self.actual:
            return self.actual[text]
        if text in groups.values():
            name = next(name for name, value in groups.items() if value == text)
            return rf"(?P={name})"
        name = f"id{len(groups)}"
        groups[name] = text
        return rf"(?P<{name}>[0-9a-f]{{{len(text)}}})"

    def matches(self, expected, found):
        pattern, groups = self.pattern(expected)
        match = pattern.fullmatch(normalize(found) + "\n")
        if match:
            self.actual.update({text: match[name] for name, text in groups.items()})
        return bool(match)

    def bind_lines(self, expected, found):
        """Binds what single lines agree on, so that one changed line does not spoil the rest of a page."""
        lines = normalize(found).split("\n")
        for line in normalize(expected).split("\n"):
            if line.strip(" │") not in ("", "…"):
                any(self.matches(line, candidate) for candidate in lines)

    def command(self, text):
        """A command with the ids of this run; of a bound id, four digits or more are enough."""

        def replace(match):
            word = match.group()
            for shown, actual in self.actual.items():
                if shown == word or (len(word) >= 4 and shown.startswith(word) and re.search(r"\d", word)):
                    return actual[: len(word)] if len(word) >= 6 else actual
            return word

        return re.sub(r"(?<![0-9A-Za-z])[0-9a-f]{4,64}(?![0-9A-Za-z])", replace, text)

    def shown(self, text):
        """Output with the page's ids in place of this run's."""
        for shown, actual in self.actual.items():
            text = text.replace(actual, shown)
        return text


class Failed(Exception):
    pass


FOLDERS = []
"""The folders of all sessions, to be removed at the end."""


def remove_folders():
    """Removes the folders of ended sessions. A background process of a page ends seconds after its last thread, and may write until then."""
    deadline = time.monotonic() + 120
    while FOLDERS and time.monotonic() < deadline:
        for folder in FOLDERS:
            shutil.rmtree(folder, ignore_errors=True)
        busy = {entry for entry in FOLDERS if entry.exists() or is_used(entry)}
        FOLDERS[:] = [folder for folder in FOLDERS if folder in busy]
        if FOLDERS:
            time.sleep(0.5)
    return list(FOLDERS)


def is_used(folder):
    """Whether a process still works in the folder, or in one that was there."""
    for entry in pathlib.Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(entry).startswith(f"{folder}/"):
                return True
        except OSError:
            continue
    return False


class Session:
    """A shell in `~/shop`, an empty project in an empty home."""

    def __init__(self, rye):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rye-docs-"))
        FOLDERS.append(self.folder)
        self.home = self.folder / "home"
        (self.home / "shop").mkdir(parents=True)
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "rye").symlink_to(rye)
        extra = {os.path.dirname(found) for name in ("node", "python3", "git") if (found := shutil.which(name))}
        environment = {
            "HOME": str(self.home), "PATH": ":".join([str(programs), *sorted(extra), "/usr/local/bin", "/usr/bin", "/bin"]),
            "LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120", "TZ": "UTC", "SHELL": "/bin/bash", "PS1": "", "PS2": "",
            "RYE_HOMES": str(self.folder), "RYE_REPOSITORY": str(pathlib.Path(__file__).resolve().parent.parent.parent),
            "GIT_AUTHOR_NAME": "ada", "GIT_AUTHOR_EMAIL": "ada@example.org", "GIT_COMMITTER_NAME": "ada", "GIT_COMMITTER_EMAIL": "ada@example.org",
            "USER": "ada", "LOGNAME": "ada",
        }
        self.bindings = Bindings()
        self.buffer = b""
        self.shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=self.home / "shop", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )
        self.run('source "$RYE_REPOSITORY/scripts/book/prelude.sh"')

    def run(self, command):
        """What a command prints, both streams in order, each home as `~`; and its exit code."""
        mark = f"\x01{time.monotonic_ns()}"
        script = f"{{ {command}\n}} </dev/null 2>&1\nprintf '\\n{mark} %d\\n' $?\n"
        self.shell.stdin.write(script.encode())
        self.shell.stdin.flush()
        deadline = time.monotonic() + COMMAND_TIMEOUT_SECONDS
        while True:
            if match := re.search(rb"\n" + mark.encode() + rb" (\d+)\n", self.buffer):
                output, self.buffer = self.buffer[: match.start()], self.buffer[match.end() :]
                return self.readable(output.decode(errors="replace")), int(match[1])
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.shell.stdout], [], [], left)[0]:
                raise Failed(f"no end after {COMMAND_TIMEOUT_SECONDS} s: {command}\n{self.buffer.decode(errors='replace')[-600:]}")
            data = os.read(self.shell.stdout.fileno(), 65536)
            if not data:
                raise Failed(f"the shell ended: {command}\n{self.buffer.decode(errors='replace')[-600:]}")
            self.buffer += data

    def readable(self, output):
        output = output.replace(str(self.folder / "bin/rye"), "/usr/local/bin/rye")
        output = re.sub(rf"{re.escape(str(self.folder))}/[a-z]+", "~", output)
        return output.replace("\r", "").rstrip("\n")

    def setup(self, script):
        output, code = self.run(script if "\n" not in script else f"set -e\n{script}\nset +e")
        if code:
            raise Failed(f"setup ended with {code}:\n{script}\n{output}")
        self.bindings.actual.update(re.findall(r"^bind (\w+) (\w+)$", output, re.M))

    def write(self, path, text):
        target = self.home / path[2:] if path.startswith("~/") else pathlib.Path(os.readlink(f"/proc/{self.shell.pid}/cwd")) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def close(self):
        try:
            self.run("for thread in $(rye thread list --json 2>/dev/null | grep -o 'thread-[0-9a-f]*' | sort -u); do rye -q thread cancel $thread; done >/dev/null 2>&1")
        except (Failed, OSError):
            pass
        try:
            os.killpg(self.shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.shell.wait()


def commands(text):
    """(command, what it prints, first line, last line) of a console block; lines count from the block's first."""
    found, lines, at = [], text.split("\n"), 0
    while at < len(lines):
        if not lines[at].startswith("$ "):
            if lines[at].strip() and not found:
                raise Failed(f"a console block starts with `$ `: {lines[at]}")
            at += 1
            continue
        first, command = at, [lines[at][2:]]
        while command[-1].endswith("\\") or needs_more("\n".join(command)):
            at += 1
            if at >= len(lines):
                raise Failed(f"a command without an end: {command[0]}")
            command.append(lines[at].removeprefix("> "))
        at += 1
        begin = at
        while at < len(lines) and not lines[at].startswith("$ "):
            at += 1
        found.append(("\n".join(command), "\n".join(lines[begin:at]), first, begin, at))
    return found


def needs_more(command):
    """Whether a here-document is still open."""
    match = re.search(r"<<-?'?(\w+)'?", command)
    return bool(match) and not re.search(rf"^{match[1]}$", command, re.M)


def difference(expected, found, bindings):
    shown = bindings.shown(normalize(found))
    lines = difflib.unified_diff(normalize(expected).split("\n"), shown.split("\n"), "page", "rye", lineterm="", n=1)
    return "\n".join(f"    {line}" for line in list(lines)[2:])
