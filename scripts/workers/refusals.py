"""What is not signed by a listed key, or is more or another than it was, runs nowhere, and the reason says so."""
import json
import os
import shutil

import items
from harness import expect, say, until, write
from people import Person

# A runtime of a home: the workers have another one under the same name.
RUNTIME = """version: "1.0.0"
tool_type: runtime
executor_id: rye/core/primitives/subprocess
category: own
name: runner
description: Runs a script{remark}
config:
  command: /bin/bash
  args: [-p, "{{tool_path}}"]
  input_data: "{{params_json}}"
  params_env: RYE_PARAM_
  timeout: 300
  result: last_json_line
"""
STRANGERS = ("unlisted", "untrusted")
FEWER = "<permissions><execute><tool>team.mark</tool></execute></permissions>"
# Limits that a person's own settings give to directives that say nothing.
LIMITS = """limits:
  defaults: {{turns: {turns}, tokens: 200000, spend: 1.0, spend_currency: USD, spawns: 10, depth: 10, duration_seconds: 600}}
"""


class Refusals:
    """Threads that must be refused, each with words of the reason."""

    def __init__(self, world):
        self.world, self.cases = world, {}

    def add(self, label, thread, words):
        self.cases[label] = (thread, words)
        return thread

    def find(self, column, thread):
        """The row of a submission, as SQL."""
        return f"SELECT {column} FROM placements JOIN threads USING (thread) WHERE thread_id = '{thread}'"

    def prepare_forged(self):
        """The text of a submission is changed, under the same signature."""
        user, database = self.world.user, self.world.database
        thread = self.add("forged", user.submit("steps", "forged"), "forged")
        database.sql(
            f"WITH old AS (SELECT bytes FROM blob_chunks JOIN blobs USING (blob) WHERE digest = ({self.find('submission', thread)})), "
            "changed AS (SELECT convert_to(replace(convert_from(bytes, 'UTF8'), 'forged', 'gorfed'), 'UTF8') AS bytes FROM old), "
            "kept AS (INSERT INTO blobs (digest, at_ms) SELECT sha256(bytes), 0 FROM changed RETURNING blob), "
            "chunk AS (INSERT INTO blob_chunks SELECT blob, 0, bytes FROM kept, changed) "
            "UPDATE placements SET submission = (SELECT sha256(bytes) FROM changed) "
            f"WHERE thread = (SELECT thread FROM threads WHERE thread_id = '{thread}')")

    def prepare_replaced(self):
        """A submission of another thread takes the place of one."""
        user, database = self.world.user, self.world.database
        thread = self.add("replaced", user.submit("steps", "replaced"), "is one of")
        other = user.submit("plain", "other")
        database.sql(f"UPDATE placements SET submission = ({self.find('submission', other)}) "
                     f"WHERE thread = (SELECT thread FROM threads WHERE thread_id = '{thread}')")

    def prepare_swapped(self):
        """Other bytes lie under the digest of the files."""
        user, database = self.world.user, self.world.database
        user.directive("swapped")
        thread = self.add("swapped", user.submit("swapped", "swapped"), "no intact part")
        body = database.value(f"SELECT convert_from(bytes, 'UTF8')::json->>'body' FROM blob_chunks JOIN blobs USING (blob) "
                              f"WHERE digest = ({self.find('submission', thread)})")
        changed = database.sql(
            "UPDATE blob_chunks SET bytes = convert_to(replace(convert_from(bytes, 'UTF8'), 'I am the swapped', 'I am a swapped'), "
            f"'UTF8') WHERE blob = (SELECT blob FROM blobs WHERE digest = '\\x{json.loads(body)['archive']}') RETURNING blob")
        expect(changed, "the files of a submission were not found")
        os.remove(f"{user.project}/.ai/directives/team/swapped.md")

    def prepare_raised(self):
        """Limits are those of the user's settings, where the workers' allow less."""
        user = self.world.user
        path = f"{user.project}/.ai/directives/team/raised.md"
        write(path, items.directive("raised", limits=""))
        user.rye("sign", "directive", "team/raised")
        user.settle([user.key], self.world.worker_keys(), LIMITS.format(turns=500))
        self.add("raised", user.submit("raised", "raised"), "raises the limit turns to 500; this worker allows 25")
        user.settle([user.key], self.world.worker_keys())
        os.remove(path)

    def prepare_widened(self):
        """Permissions come from a directive in the user's space, which gives fewer on the workers."""
        user, name = self.world.user, "directives/base/common.md"
        for person in [user, *self.world.people]:
            given = items.PERMISSIONS if person is user else FEWER
            text = items.directive("common", permissions=given).replace("<category>team", "<category>base")
            write(f"{person.home}/.ai/{name}", text)
            person.rye("sign", "directive", "base/common", "--space", "user")
        user.directive("widened", more=' extends="base/common"', permissions="")
        self.add("widened", user.submit("widened", "widened"), "more permissions")
        os.remove(f"{user.project}/.ai/directives/team/widened.md")

    def prepare_changed(self):
        """A tool runs on a runtime in the user's space, and the workers have another one of that name."""
        user = self.world.user
        for person in [user, *self.world.people]:
            write(f"{person.home}/.ai/tools/own/runner.yaml",
                  RUNTIME.format(remark="" if person is user else ", here in another way"))
            person.rye("sign", "tool", "own/runner", "--space", "user")
        user.tool("changed", executor="own/runner")
        self.add("changed", user.submit("steps", "changed"), "lockfile")
        os.remove(f"{user.project}/.ai/tools/team/changed.sh")

    def stranger(self, name):
        """A person whose settings are the user's, with the same tools and a directive of their own."""
        world, person = self.world, Person(self.world, name)
        person.settle([world.user.key], world.worker_keys())
        shutil.copytree(f"{world.user.project}/.ai/tools", f"{person.project}/.ai/tools", dirs_exist_ok=True)
        person.trust(world.user)
        person.directive("steps")
        return person

    def prepare_strangers(self):
        """A person whom no worker lists, and one who is listed for the store and whose items no worker trusts."""
        world = self.world
        self.add("unlisted", self.stranger("unlisted").submit("steps", "unlisted"), None)
        untrusted = self.stranger("untrusted")
        self.add("untrusted", untrusted.submit("steps", "untrusted"), "not trusted")
        for person in world.people:
            person.settle([world.user.key, untrusted.key], world.worker_keys())

    def note(self, thread):
        return self.world.database.value(f"SELECT note FROM threads WHERE thread_id = '{thread}'")

    def expect_all(self):
        """Each was refused for its reason, and nothing of it ran."""
        world = self.world
        for label, (thread, words) in self.cases.items():
            if words:
                until(f"{label} is refused with `{words}`; it says `{self.note(thread)}`", lambda: words in self.note(thread))
        logs = "".join(worker.log() for worker in world.workers)
        for label, (thread, words) in self.cases.items():
            expect(world.status(thread) == "created", f"{label} is {world.status(thread)}")
            expect(not words or thread in logs, f"no worker says why {label} is not run:\n{logs}")
            expect(world.model.total(label) == 0, f"the model was asked for {label}")
            expect(world.marks.seen[f"begun {label}/0"] == 0, f"a tool of {label} ran")
            if words and label != "untrusted":
                shown = world.user.rye("thread", "show", thread)
                expect(words in " ".join(shown.split()), f"show does not say why {label} is not run:\n{shown}")


def check_refusals(world):
    refusals = Refusals(world)
    world.end_workers()
    refusals.prepare_forged()
    refusals.prepare_replaced()
    refusals.prepare_swapped()
    refusals.prepare_raised()
    refusals.prepare_widened()
    refusals.prepare_changed()
    refusals.prepare_strangers()
    world.start_workers()
    refusals.expect_all()
    world.user.rye("thread", "cancel", *(thread for label, (thread, _) in refusals.cases.items() if label not in STRANGERS))
    # What people left whom the user does not know would not verify below.
    for label in STRANGERS:
        world.database.sql(f"DELETE FROM threads WHERE thread_id = '{refusals.cases[label][0]}'")
    say(f"refused by name, and nothing of them ran: {', '.join(refusals.cases)}")


# The columns of `threads` behind the thread's number, id and place in its tree, as a row of a thread that did not begin has them.
COLUMNS = """'created', reason, result, error, created_at, updated_at, NULL, turns, input_tokens, output_tokens, spend, elapsed_ms, limits,
    spawn_count, model, provider, capabilities, continuation_of, continuation_thread_id, chain_root_id, head_seq, head_hash, max_spend,
    max_tokens, transcript_sequence, transcript_hash, detached, revision, signer, seal, epoch, NULL, NULL, NULL, NULL, 0, NULL"""
COPY = "thread-bad000000bad"


def check_stolen_password(world):
    """The owner of the password, without a key: a row that was copied starts nothing."""
    database = world.database
    thread = world.user.submit("plain", "copied")
    until("it completes", lambda: world.is_completed(thread))
    number = int(database.value("SELECT max(thread) + 1000 FROM threads"))
    database.sql(
        f"INSERT INTO threads SELECT {number}, '{COPY}', directive, title, NULL, NULL, {number}, 0, {COLUMNS} "
        f"FROM threads WHERE thread_id = '{thread}'; "
        f"INSERT INTO placements SELECT {number}, origin, submission, {number} FROM placements JOIN threads USING (thread) "
        f"WHERE thread_id = '{thread}'")
    probes = [world.user.submit("plain", f"after.{place}") for place in range(2)]
    until("workers still take what is signed", lambda: world.are_completed(probes))
    expect(world.status(COPY) == "created", "a copied row runs")
    expect(world.model.total("copied") == 1, "the model was asked for a copied row")
    database.sql(f"DELETE FROM placements WHERE thread = {number}; DELETE FROM threads WHERE thread = {number}")
    say("a row that was copied with the database's password alone starts nothing")
