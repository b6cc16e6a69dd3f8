"""The threads of a project move to the team's store and back, are the same there, and are refused at work or when they differ."""
import random
import subprocess
import time

from harness import TIMEOUT_SECONDS, expect, say, until, write
from people import SECRET

# What `thread show` says of a thread in either store.
FACTS = ("status", "directive", "cost", "limits", "result", "created_at", "completed_at", "model", "children")
# Where files and the team's store are in `rye store migrate`.
TO_TEAM, TO_FILES = ("--from", "local", "--to", "team"), ("--from", "team", "--to", "local")


class Stores:
    """A user who keeps threads in files, or in the team's store, as the settings say at the time."""

    def __init__(self, world):
        self.world, self.user = world, world.user
        self.config = f"{self.user.home}/.ai/config/config.yaml"
        with open(self.config) as file:
            self.shared = file.read()
        self.local = "".join(line for line in self.shared.splitlines(True) if not line.startswith("  store: "))

    def use(self, text):
        write(self.config, text)
        self.user.rye("sign", "config", "config", "--space", "user")

    def run_local(self, name, label, *more):
        """Runs a thread in files, in this process; it may end without a result."""
        self.user.try_rye("run", f"team/{name}", f"label={label}", "--provider", "fake", "--json", *more)

    def threads(self):
        return {row["thread_id"]: row["status"] for row in self.user.json("thread", "list", "--all")["threads"]}

    def suspended(self):
        return [thread for thread, status in self.threads().items() if status == "suspended"]

    def facts(self, thread):
        """What a store says of a thread, without what is its own."""
        shown = self.user.json("thread", "show", thread)
        return {key: shown.get(key) for key in FACTS}, self.user.rye("thread", "transcript", thread)

    def migrate(self, way):
        return self.user.json("store", "migrate", *way)

    def refuse(self, way):
        code, output = self.user.try_rye("store", "migrate", *way)
        expect(code != 0, f"it was not refused: {output}")
        return code, output


def prepare(stores):
    """Threads in files: one that completed, a tree, and one that stopped at its limit. What is said of each."""
    stores.use(stores.local)
    stores.run_local("plain", "move.1")
    stores.run_local("parent", "move-2")
    stores.run_local("steps", "move.3", "--limit", "turns=2")
    until("children end", lambda: set(stores.threads().values()) == {"completed", "suspended"})
    before = {thread: stores.facts(thread) for thread in stores.threads()}
    expect(len(before) == 5, f"threads: {list(before)}")
    expect(len(stores.suspended()) == 1, f"one asks for more: {stores.threads()}")
    stores.user.rye("thread", "verify", "--all")
    return before


def move_through_kills(stores, threads):
    """The command is killed after each tree that it moved, and at any moment; gives how often it was killed."""
    kills = 0
    while kill_after_tree(stores, threads):
        kills += 1
    expect(kills > 0, "the command was never killed between two trees")
    for _ in range(stores.world.sizes.migrations):
        process = stores.user.popen("store", "migrate", *TO_TEAM)
        try:
            process.communicate(timeout=random.uniform(0.05, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
    stores.migrate(TO_TEAM)
    return kills


def kill_after_tree(stores, threads):
    """Whether the command was killed once it had moved a tree; there may be none left to move."""
    names = ", ".join(f"'{thread}'" for thread in threads)
    count = lambda: stores.world.database.value(f"SELECT count(*) FROM threads WHERE thread_id IN ({names})")
    moved, process = count(), stores.user.popen("store", "migrate", *TO_TEAM)
    while process.poll() is None and count() == moved:
        time.sleep(0.01)
    was_killed = process.poll() is None
    process.kill()
    process.communicate()
    return was_killed


def expect_moved(stores, before, asks):
    """All are in the team's store, the one that can continue only there."""
    again = stores.migrate(TO_TEAM)
    expect(not again["migrated"] and not again["removed"], f"the second time: {again}")
    expect(asks not in stores.threads(), "a thread that may be resumed is in both stores")
    stores.use(stores.shared)
    for thread, facts in before.items():
        expect(stores.facts(thread) == facts, f"{thread} is another one: {facts} {stores.facts(thread)}")
        stores.user.rye("thread", "verify", thread)


def expect_way_back(stores, before, asks):
    """The suspended one continues where it is now; all are the same after the way back."""
    code, output = stores.user.try_rye("thread", "resume", asks, "--limit", "turns=+10", "--json")
    expect(code == 0, f"resumed in the team's store: {output}")
    after = {**before, asks: stores.facts(asks)}
    expect(after[asks][0]["status"] == "completed", f"it did not complete: {after[asks]}")
    stores.migrate(TO_FILES)
    stores.use(stores.local)
    for thread, facts in after.items():
        expect(stores.facts(thread) == facts, f"{thread} is another one after the way back: {facts} {stores.facts(thread)}")
        stores.user.rye("thread", "verify", thread)


def expect_refused(stores, forged):
    """A thread at work does not move, and one whose row was changed past rye neither."""
    world, user = stores.world, stores.user
    stores.run_local("steps", "move.4", "--limit", "turns=2")
    stores.migrate(TO_TEAM)
    stores.use(stores.shared)
    [thread] = stores.suspended()
    world.model.delay = 5
    process = user.popen("thread", "resume", thread, "--limit", "turns=+10", "--json")
    until("it runs", lambda: world.status(thread) == "running")
    code, output = stores.refuse(TO_FILES)
    expect(code == 5 and "RYE1164" in output and "is running" in output, f"one at work: {code} {output}")
    world.model.delay = 0.05
    process.communicate(timeout=TIMEOUT_SECONDS)
    title = world.database.value(f"SELECT title FROM threads WHERE thread_id = '{forged}'")
    world.database.sql(f"UPDATE threads SET title = 'other' WHERE thread_id = '{forged}'")
    code, output = stores.refuse(TO_FILES)
    expect(forged in output, f"a forged row: {code} {output}")
    world.database.sql(f"UPDATE threads SET title = '{title}' WHERE thread_id = '{forged}'")


def check_migration(world):
    stores = Stores(world)
    world.user.environment[SECRET] = "not-a-real-key-0123456789"
    before = prepare(stores)
    [asks] = stores.suspended()
    kills = move_through_kills(stores, before)
    expect_moved(stores, before, asks)
    expect_way_back(stores, before, asks)
    expect_refused(stores, next(iter(before)))
    del world.user.environment[SECRET]
    say(f"{len(before)} threads moved to the team's store through {kills} kills of the command, and back; one at work and a forged one "
        "are refused")


def check_verdicts(world):
    """What a worker signed is as good in files as in the team's store."""
    user, stores = world.user, Stores(world)
    thread = user.submit("steps", "verdict")
    until("it completes", lambda: world.is_completed(thread))
    user.rye("thread", "verify", thread)
    stores.migrate(TO_FILES)
    stores.use(stores.local)
    code, output = user.try_rye("thread", "verify", thread)
    stores.use(stores.shared)
    expect(code == 0, f"a thread that a worker signed, in files: {code} {output}")
    say("a thread that a worker signed is valid in files too")
