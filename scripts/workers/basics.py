"""One thread on workers, seen from the user's machine; labels; what a worker does on SIGTERM."""
import json
import os
import re

from harness import expect, say, until, write
from people import SECRET


def kinds_of(person, thread):
    """The events of a thread, as `thread tail` gives them."""
    lines = person.rye("thread", "tail", thread, "--json").splitlines()
    return [json.loads(line)["event_type"] for line in lines if not line.startswith('{"status')]


def check_first(world):
    """The same directive on a worker and in files has the same events."""
    user = world.user
    thread = user.submit("steps", "first")
    until("the first thread completes", lambda: world.is_completed(thread))
    shown = user.rye("thread", "show", thread)
    expect("completed" in shown and "team_mark" in shown, f"show says:\n{shown}")
    expect("valid" in user.rye("thread", "verify", thread), "the transcript does not verify at the user's machine")
    kinds = kinds_of(user, thread)
    expect(kinds.count("tool_call_result") == 3, f"tail shows {kinds}")
    expect(world.marks.seen["begun first/1"] == 1, "the tool did not run once")
    # In files: the same user, with no store in the settings.
    config = f"{user.home}/.ai/config/config.yaml"
    with open(config) as file:
        shared = file.read()
    os.remove(config)
    user.environment[SECRET] = "not-a-real-key-0123456789"
    user.rye("run", "team/steps", "label=files")
    found = re.search(r"thread-[0-9a-f]{12}", user.rye("thread", "list", "--json")).group()
    there = kinds_of(user, found)
    del user.environment[SECRET]
    write(config, shared)
    expect(there == kinds, f"in files: {there}\non a worker: {kinds}")
    say(f"one thread ran on a worker; show, verify and tail work from the user's machine; in files it has the same {len(kinds)} events")


def check_labels(world):
    """A thread waits for the worker that has what it needs."""
    user = world.user
    thread = user.submit("steps", "gpu", "--label", "gpu")
    secret = user.submit("plain", "secret", "--secret", "DEPLOY_KEY")
    until("show names the missing label", lambda: "lacks gpu" in user.rye("thread", "show", thread))
    until("show names the missing secret", lambda: "lacks secret:DEPLOY_KEY" in user.rye("thread", "show", secret))
    worker = world.workers[0]
    worker.end()
    worker.person.environment["DEPLOY_KEY"] = "value-0123456789-of-deploy"
    worker.more = (*worker.more, "--label", "gpu", "--secret", "DEPLOY_KEY")
    worker.start()
    took = until("the worker that has both runs them", lambda: world.are_completed([thread, secret]))
    stored = world.database.value("SELECT count(*) FROM workers WHERE body LIKE '%value-0123456789%'")
    expect(stored == "0", "the value of a secret is in the store")
    say(f"threads that need a label and a secret waited for the worker that has them, and completed {took:.1f} s after it began")


def check_drain(world):
    """SIGTERM lets threads end."""
    world.model.delay = 5
    threads = [world.user.submit("steps", f"drain.{number}") for number in range(4)]
    until("they run", lambda: world.statuses(threads).get("running", 0) >= 2)
    worker = world.workers[1]
    code = worker.end()
    expect(code == 0, f"a worker ended with {code} on SIGTERM")
    world.model.delay = 0.05
    until("they complete", lambda: world.are_completed(threads))
    repeated = sum(world.model.total(f"drain.{number}") for number in range(4)) - 16
    expect(repeated == 0, f"{repeated} model calls were repeated")
    worker.start()
    say("SIGTERM lets threads end: the worker ends with 0, and no call is repeated")
