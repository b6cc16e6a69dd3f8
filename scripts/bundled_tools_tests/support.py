"""Loads bundled tools, and runs a runtime's loader the way the engine does."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest

BUNDLES = pathlib.Path(__file__).resolve().parents[2] / "bundles"
RUNTIMES = BUNDLES / "core/.ai/tools/rye/core/runtimes"
CODE = BUNDLES / "code/.ai/tools/rye/code"


def tool(name):
    """The module of `rye/code/<name>/<name>`."""
    path = CODE / name / (name + ".py")
    spec = importlib.util.spec_from_file_location("tool_" + name, str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(path, mark="    - |"):
    """The program in a runtime's or tool's YAML: its one block of text in `args` that begins with `mark`."""
    lines = path.read_text().splitlines()
    start = lines.index(mark) + 1
    block = []
    for line in lines[start:]:
        if line.strip() and not line.startswith("      "):
            break
        block.append(line[6:])
    return "\n".join(block).rstrip() + "\n"


class Answer:
    """What a run did."""

    def __init__(self, done, result):
        self.exit = done.returncode
        self.stdout = done.stdout.decode()
        self.stderr = done.stderr.decode()
        self.text = result
        self.result = json.loads(result) if result else None


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = os.path.realpath(temporary.name)
        self.project = os.path.join(self.folder, "project")
        os.mkdir(self.project)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def environment(self, runtime, more):
        """The variables a runtime sets, on top of what a child needs."""
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        environment.update(re.findall(r'^    ([A-Z][A-Z0-9_]*): "(.*)"$', runtime.read_text(), re.MULTILINE))
        environment.update(more)
        return environment

    def run_channel(self, runtime, command, params, more=()):
        """Runs `command` with the result channel; `params` is text on standard input."""
        reading, writing = os.pipe()
        environment = self.environment(runtime, dict(more, RYE_RESULT_FD=str(writing)))
        process = subprocess.Popen(
            command, cwd=self.project, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, pass_fds=(writing,),
        )
        os.close(writing)
        result = []

        def drain():
            with os.fdopen(reading, "rb") as stream:
                result.append(stream.read())

        thread = threading.Thread(target=drain)
        thread.start()
        stdout, stderr = process.communicate(params.encode())
        thread.join()
        return Answer(subprocess.CompletedProcess(command, process.returncode, stdout, stderr), result[0].decode())

    def run_plain(self, runtime, command, params, more=()):
        done = subprocess.run(
            command, cwd=self.project, env=self.environment(runtime, dict(more)), input=params.encode(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        return Answer(done, "")
