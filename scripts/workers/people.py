"""Users and workers, each with a home and a key of its own, around one database."""
import json
import os
import re
import signal
import subprocess

import items
from database import Database
from harness import TIMEOUT_SECONDS, Wrong, expect, write
from servers import Marks, Model

SECRET = "FAKE_MODEL_KEY"


class Person:
    """A home with a key: a user's or a worker's."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.home = os.path.join(world.folder, name)
        self.project = os.path.join(self.home, "project")
        os.makedirs(self.project)
        self.environment = {"HOME": self.home, "PATH": "/usr/local/bin:/usr/bin:/bin", "USER": name}
        self.rye("init")
        with open(f"{self.home}/.ai/config/keys/signing/public_key.pem") as file:
            self.key = "".join(line.strip() for line in file if "-----" not in line)

    def popen(self, *words, **more):
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **more}
        return subprocess.Popen([self.world.rye, *words], cwd=self.project, env=self.environment, text=True, **given)

    def try_rye(self, *words):
        """What a command prints on standard output and standard error, and its exit code."""
        process = self.popen(*words)
        try:
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Wrong(f"{self.name}: rye {' '.join(words)} does not end") from None
        return process.returncode, output

    def rye(self, *words):
        code, output = self.try_rye(*words)
        expect(code == 0, f"{self.name}: rye {' '.join(words)}: exit {code}\n{output}")
        return output

    def stdout(self, *words):
        """What a command prints on standard output alone."""
        process = self.popen(*words, stderr=subprocess.PIPE)
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        expect(process.returncode == 0, f"{self.name}: rye {' '.join(words)}: exit {process.returncode}\n{output}{errors}")
        return output

    def json(self, *words):
        """What a command gives as JSON."""
        return json.loads(self.stdout(*words, "--json"))["data"]

    def settle(self, users, workers, limits="", store=""):
        """Writes and signs the settings; `limits` are more lines of `resilience.yaml`, `store` more of what is said of the store."""
        quote = lambda keys: ", ".join(f'"{key}"' for key in keys)
        write(f"{self.home}/.ai/config/config.yaml",
              items.CONFIG.format(url=self.world.database.url, users=quote(users), workers=quote(workers), store=store))
        self.rye("sign", "config", "config", "--space", "user")
        write(f"{self.home}/.ai/config/agent/resilience.yaml", items.RESILIENCE.format(more=limits))
        self.rye("sign", "config", "agent/resilience", "--space", "user")

    def trust(self, other):
        self.rye("keys", "trust", f"{other.home}/.ai/config/keys/signing/public_key.pem", "--space", "user", "--owner", other.name)

    def directive(self, name, **more):
        write(f"{self.project}/.ai/directives/team/{name}.md", items.directive(name, **more))
        self.rye("sign", "directive", f"team/{name}")

    def tool(self, name, executor=items.BASH):
        text = items.TOOL.format(name=name, executor=executor, port=self.world.marks.port)
        write(f"{self.project}/.ai/tools/team/{name}.sh", text)
        self.rye("sign", "tool", f"team/{name}")

    def provider(self, name, url):
        write(f"{self.project}/.ai/tools/rye/agent/providers/{name}/{name}.yaml", items.PROVIDER.format(name=name, url=url))
        self.rye("sign", "tool", f"rye/agent/providers/{name}/{name}")

    def submit(self, name, label, *more):
        output = self.rye("run", f"team/{name}", f"label={label}", "--on", "team", "--provider", "fake", "--json", *more)
        return re.search(r"thread-[0-9a-f]{12}", output).group()


class WorkerProcess:
    """A worker, and where its words go."""

    def __init__(self, person, *more, name=None):
        self.person, self.name, self.more = person, name or person.name, more
        self.log_path = os.path.join(person.world.folder, f"{self.name}.log")
        self.start()

    def start(self):
        with open(self.log_path, "a") as log:
            self.process = self.person.popen("worker", "--on", "team", "--name", self.name, "--status", "0", *self.more,
                                             stdout=log, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.terminate()
        return self.process.wait(timeout=TIMEOUT_SECONDS)

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def wake(self):
        self.process.send_signal(signal.SIGCONT)

    def log(self):
        with open(self.log_path) as file:
            return file.read()


class World:
    """A database, a model, a user with a project, and three workers that trust the user."""

    def __init__(self, folder, rye, sizes):
        self.folder, self.rye, self.sizes, self.workers = folder, rye, sizes, []
        # What else runs as long as this does.
        self.servers = []
        self.marks, self.model = Marks(), Model()
        self.database = Database(os.path.join(folder, "database"))
        try:
            self.prepare()
        except BaseException:
            self.end()
            raise

    def prepare(self):
        self.user = Person(self, "user")
        self.people = [Person(self, f"worker{number}") for number in (1, 2, 3)]
        for person in [self.user, *self.people]:
            person.settle([self.user.key], self.worker_keys())
        for person in self.people:
            person.trust(self.user)
            person.environment[SECRET] = "not-a-real-key-0123456789"
        self.user.tool("mark")
        self.user.provider("fake", self.model.url)
        for name in ("steps", "leaf", "parent", "plain"):
            self.user.directive(name)

    def worker_keys(self):
        return [person.key for person in self.people]

    def start_workers(self):
        self.workers = [WorkerProcess(person, "--secret", SECRET, "--max-threads", "300") for person in self.people]

    def add_worker(self, person, name, *more):
        """One more worker of a person."""
        self.workers.append(WorkerProcess(person, "--secret", SECRET, *more, name=name))
        return self.workers[-1]

    def end_workers(self):
        for worker in self.workers:
            worker.end()

    def end(self):
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.wake()
                worker.kill()
        for server in self.servers:
            server.end()
        self.database.end()

    def status(self, thread):
        return self.database.value(f"SELECT status FROM threads WHERE thread_id = '{thread}'")

    def is_completed(self, thread):
        return self.status(thread) == "completed"

    def statuses(self, threads):
        """How many of these threads have each status."""
        names = ", ".join(f"'{thread}'" for thread in threads)
        rows = self.database.sql(f"SELECT status, count(*) FROM threads WHERE thread_id IN ({names}) GROUP BY status")
        return {status: int(count) for status, count in rows}

    def are_completed(self, threads):
        return self.statuses(threads) == {"completed": len(threads)}
