"""A home and a project in which threads are started, killed and resumed, and the records they leave."""
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time

TIMEOUT = 60
KEY = "not-a-real-key-0123456789"
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TZ": "UTC", "USER": "someone",
               "LOGNAME": "someone"}

PROVIDER = """version: "1.0.0"
tool_type: provider
executor_id: null
category: rye/agent/providers/scripted
name: scripted
description: A scripted server
protocol: {protocol}
url: {url}{path}
auth: {{type: bearer, variable: SCRIPTED_MODEL_KEY}}
tier_mapping: {{fast: model-1, general: model-1}}
context_window: {window}
max_output_tokens: 500
stream: {stream}
{price}
"""
PRICED = "pricing: {model-1: {input: 1.00, output: 2.00}}"
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}

TOOL = """# version: 1.0.0
# tool_type: shell
# executor_id: rye/core/runtimes/bash/bash
# category: team
# name: {name}
# description: {description}
# config_schema: {{"type": "object", "properties": {{"text": {{"type": "string"}}}}}}

cd "$1"
{body}
"""

# `wait` and `wait_again` run until the project has a file `go`. Each run leaves a line in runs.txt. No directive may run
# `other`.
TOOLS = {
    "mark": ("Makes a mark", 'echo "mark $RYE_PARAM_TEXT" >> runs.txt\necho \'{"marked": true}\''),
    "look": ("Looks", 'echo "look $RYE_PARAM_TEXT" >> runs.txt\necho \'{"seen": 1}\''),
    "other": ("Does something else", "echo other"),
    "break": ("Fails", "echo no >&2\nexit 3"),
    "long": ("Says a lot", 'printf "%0.s0123456789 abcdefgh" $(seq 900)'),
    "wait": ("Waits", 'echo "wait $RYE_PARAM_TEXT" >> runs.txt\nuntil [ -e go ]; do sleep 0.02; done\necho done'),
    "ask": ("Calls rye", '"$RYE_PROGRAM" execute team/mark text=inner\n"$RYE_PROGRAM" execute team/other\n'
                         '"$RYE_PROGRAM" execute team/break\ntrue'),
    "start": ("Starts a thread", '"$RYE_PROGRAM" run team/work'),
}
WAIT_AGAIN = '''"""Waits, and may be run twice"""
import os
import time

__version__ = "1.0.0"
__tool_type__ = "python"
__tool_name__ = "wait_again"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "team"
__tool_description__ = "Waits, and may be run twice"
__idempotent__ = True

CONFIG_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def execute(params: dict, project_path: str) -> dict:
    with open(os.path.join(project_path, "runs.txt"), "a") as file:
        file.write(f"wait_again {params.get('text', '')}\\n")
    while not os.path.exists(os.path.join(project_path, "go")):
        time.sleep(0.02)
    return {"waited": True}
'''
SPAWN_GRANT = "rye.agent.threads.thread_directive"
ORCHESTRATE_GRANT = "rye.agent.threads.orchestrator"
APPROVAL_GRANT = "rye.agent.threads.human_approval"
GRANTS = [f"team.{name}" for name in (*TOOLS, "wait_again") if name != "other"]
GRANTS += [SPAWN_GRANT, ORCHESTRATE_GRANT, APPROVAL_GRANT]


def param(name, value):
    return f'<param name="{name}" value="{value}" />'


def control(**params):
    """The action of a hook that steers the thread."""
    params = "".join(param(name, value) for name, value in params.items())
    return ('<action primary="execute" item_type="tool" item_id="rye/agent/threads/internal/control">'
            f"{params}</action>")


def hook(name, event, action, condition=""):
    return f'<hook id="{name}" event="{event}">{condition}{action}</hook>'


def action(item, **params):
    """An action of an offline directive."""
    params = "".join(param(name, value) for name, value in params.items())
    return f'<execute item_type="tool" item_id="{item}">{params}</execute>'


def directive(name, tools=(), directives=(), limits="", hooks="", outputs="", actions=""):
    """A directive `team/NAME`, whose prompt says `Task NAME.`"""
    grants = "".join(f"<tool>{tool}</tool>" for tool in tools)
    grants += "".join(f"<directive>{directive}</directive>" for directive in directives)
    permissions = f"<permissions><execute>{grants}</execute></permissions>" if grants else ""
    outputs = f"<outputs>{outputs}</outputs>" if outputs else ""
    process = f"<process>{actions}</process>" if actions else ""
    hooks = f"<hooks>{hooks}</hooks>" if hooks else ""
    return f"""# {name}

```xml
<directive name="{name}" version="1.0.0">
<metadata>
<description>Does a task</description>
<category>team</category>
<author>team</author>
{f"<limits {limits} />" if limits else ""}
{permissions}
{hooks}
</metadata>
{outputs}
{process}
</directive>
```

Task {name}.
"""


class WorkspaceError(Exception):
    """Something is not as it must be."""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def read_database(path):
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)


class Signer:
    """A home with a key, in which items are signed once: workspaces copy what is signed, and so share templates."""

    def __init__(self, folder, rye, server):
        self.rye, self.server, self.signed = os.path.abspath(rye), server, {}
        self.home, self.project = f"{folder}/home", f"{folder}/project"
        for path in (self.home, self.project):
            os.makedirs(path)
        self.run("init", "-q")
        self.keys = f"{folder}/keys"
        shutil.copytree(f"{self.home}/.ai", self.keys, symlinks=True)

    def run(self, *words):
        environment = {**ENVIRONMENT, "HOME": self.home}
        done = subprocess.run([self.rye, *words], cwd=self.project, env=environment, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=TIMEOUT)
        if done.returncode != 0:
            raise WorkspaceError(f"rye {' '.join(words)}: {done.stdout}{done.stderr}")

    def sign(self, path, text, space="project"):
        """The signed text of an item at this path below `.ai`."""
        key = (path, text, space)
        if key not in self.signed:
            full = f"{self.home if space == 'user' else self.project}/.ai/{path}"
            write(full, text)
            kind, _, item = path.partition("/")
            kind = kind if kind in ("knowledge", "config") else kind.removesuffix("s")
            self.run("sign", kind, os.path.splitext(item)[0], "--space", space)
            with open(full) as file:
                self.signed[key] = file.read()
            os.remove(full)
        return self.signed[key]


class Workspace:
    """One home with one project, and a scripted model."""

    def __init__(self, folder, rye, signer, protocol, stream=True, price=PRICED, window=100000):
        self.folder, self.rye, self.signer, self.protocol = folder, os.path.abspath(rye), signer, protocol
        self.server = signer.server
        self.home, self.project = f"{folder}/home", f"{folder}/project"
        os.makedirs(self.project)
        shutil.copytree(signer.keys, f"{self.home}/.ai", symlinks=True)
        self.environment = {**ENVIRONMENT, "HOME": self.home}
        self.run("init", "-q")
        # What `init` brings along as examples is not needed.
        for kind in ("directives", "tools", "knowledge"):
            shutil.rmtree(f"{self.project}/.ai/{kind}/examples", ignore_errors=True)
        for name, (description, body) in TOOLS.items():
            self.item(f"tools/team/{name}.sh", TOOL.format(name=name, description=description, body=body))
        self.item("tools/team/wait_again.py", WAIT_AGAIN)
        self.directive("task", tools=GRANTS, directives=["team.work"])
        self.directive("work", tools=["team.mark", "team.wait"])
        if protocol != "offline":
            self.environment["SCRIPTED_MODEL_KEY"] = KEY
            self.item("tools/rye/agent/providers/scripted/scripted.yaml", PROVIDER.format(
                protocol=protocol, url=self.server.url, path=PATHS[protocol], price=price, stream=str(stream).lower(),
                window=window))

    def item(self, path, text, space="project"):
        """Writes a signed item."""
        root = self.home if space == "user" else self.project
        write(f"{root}/.ai/{path}", self.signer.sign(path, text, space))

    def directive(self, name, **parts):
        self.item(f"directives/team/{name}.md", directive(name, **parts))

    def knowledge(self, name, text):
        head = (f"```yaml\nname: {name}\ntitle: {name}\ndescription: A text\nentry_type: reference\ncategory: team\n"
                'version: "1.0.0"\n```\n')
        self.item(f"knowledge/team/{name}.md", f"{head}\n{text}\n")

    def user_config(self, name, text):
        """A file of the user's configuration."""
        head = f'version: "1.0.0"\ncategory: agent\nname: {name}\n'
        self.item(f"config/agent/{name}.yaml", head + text, space="user")

    def run(self, *words, expect=0, rye=None):
        """Runs rye to its end; its exit code must be the expected one, or any if that is None."""
        done = subprocess.run([rye or self.rye, *words], cwd=self.project, env=self.environment, capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT)
        if expect is not None and done.returncode != expect:
            raise WorkspaceError(f"{self.folder}: rye {' '.join(words)}: exit {done.returncode}, not {expect}\n"
                                 f"{done.stdout}{done.stderr}")
        return done

    def start(self, *words, rye=None):
        return subprocess.Popen([rye or self.rye, *words], cwd=self.project, env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def kill(self, process):
        """Kills a process of ours, as a crash would."""
        if process.poll() is not None:
            raise WorkspaceError(f"{self.folder}: it ended before it was killed:\n{process.stdout.read()}")
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def end(self, process, expect):
        output, _ = process.communicate(timeout=TIMEOUT)
        if process.returncode != expect:
            raise WorkspaceError(f"{self.folder}: exit {process.returncode}, not {expect}\n{output}")

    def touch(self, name):
        write(f"{self.project}/{name}", "")

    def ran(self, line):
        """How often a tool left this line."""
        try:
            with open(f"{self.project}/runs.txt") as file:
                return file.read().splitlines().count(line)
        except FileNotFoundError:
            return 0

    def wait_until(self, what, is_true):
        deadline = time.monotonic() + TIMEOUT
        while not is_true():
            if time.monotonic() > deadline:
                raise WorkspaceError(f"{self.folder}: waited in vain for {what}")
            time.sleep(0.01)

    def wait_for_run(self, line, count=1):
        self.wait_until(f"`{line}`", lambda: self.ran(line) >= count)

    def wait_for_event(self, event, count=1):
        def is_there():
            records = [record for thread in self.threads() for record in self.records(thread["thread_id"])]
            return sum(record["body"].get("event") == event for record in records) >= count
        self.wait_until(f"the event {event}", is_there)

    @property
    def database(self):
        return f"{self.project}/.ai/threads/registry.db"

    def query(self, sql, *values):
        if not os.path.exists(self.database):
            return []
        connection = read_database(self.database)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(sql, values)]
        except sqlite3.OperationalError:
            return []  # its tables are not there yet
        finally:
            connection.close()

    def threads(self):
        return self.query("SELECT * FROM threads ORDER BY thread")

    def thread(self, place=0):
        """The id of the first, or of another thread."""
        return self.threads()[place]["thread_id"]

    def status(self, place=0):
        row = self.threads()[place]
        return (row["status"], row["reason"])

    def expect_status(self, status, reason=None, place=0):
        if self.status(place) != (status, reason):
            row = self.threads()[place]
            raise WorkspaceError(f"{self.folder}: {self.status(place)}, not {(status, reason)}: {row['error']}")

    def records(self, thread_id):
        rows = self.query("SELECT at_ms, sequence, body FROM journal JOIN threads USING (thread)"
                          " WHERE thread_id = ? ORDER BY seq", thread_id)
        return [{**row, "body": json.loads(row["body"])} for row in rows]

    def blob(self, digest):
        """The bytes of a part that threads share."""
        return bytes(self.query("SELECT bytes FROM blobs WHERE digest = ?", bytes.fromhex(digest))[0]["bytes"])


def copy_program(rye, folder):
    """A copy of the binary that is called `rye`: tools find it by that name."""
    os.makedirs(folder)
    return shutil.copy(rye, f"{folder}/rye")


def processes_in(folder):
    """The processes that work in this folder, or have it among their words."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        try:
            place = os.readlink(f"/proc/{name}/cwd")
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if place.startswith(folder + "/") or folder + "/" in words:
            found.append(f"{name} {words.strip()}")
    return found


def wait_for_processes(folder, seconds=120):
    """Waits until no process is left there; the background process ends by itself soon after its last thread."""
    deadline = time.monotonic() + seconds
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        raise WorkspaceError("processes are left:\n" + "\n".join(left))
