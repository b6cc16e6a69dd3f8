"""Threads that Restate calls workers for: begun, called for again when a worker dies, held while no worker runs."""
import os
import random
import re
import statistics
import subprocess
import threading
import time

from database import free_port
from faults import CALLS, MARKS, FrozenWorker, held_by
from harness import LEASE_SECONDS, expect, say, until
from restate import Restate

# A call may be with a worker that is killed as well: two pauses between calls, of 2 s each, and what the rest takes.
TAKEOVER_SECONDS = LEASE_SECONDS + 8
# Restate asks a quiet connection after 40 s, give or take a fifth, and gives it up 20 s later.
FROZEN_SECONDS = 40 * 1.2 + 20 + 8
SETTINGS = """      restate:
        ingress: "{ingress}"
        admin: "{admin}"
        endpoint: "http://127.0.0.1:{port}"
        listen: "127.0.0.1:{port}"
        identity_keys: ["{key}"]
        poll_seconds: {poll}
"""


def store_settings(world, poll=0):
    restate = world.restate
    return SETTINGS.format(ingress=restate.ingress, admin=restate.admin, port=world.port, key=restate.key, poll=poll)


def prepare(world):
    """Starts Restate and settles everybody on it. Workers look for nothing themselves."""
    world.restate, world.port = Restate(os.path.join(world.folder, "restate")), free_port()
    world.servers.append(world.restate)
    for person in [world.user, *world.people]:
        person.settle([world.user.key], world.worker_keys(), store=store_settings(world))
    world.user.directive("ask")
    say("Restate answers")


def calls_of(world, thread):
    return [call for call in world.restate.calls() if call[0] == thread]


def expect_called_once(world, threads):
    """One call each, which has ended without an error."""
    calls = world.restate.calls()
    for thread in threads:
        found = [(key, status) for own, key, status, _, _ in calls if own == thread]
        expect(found == [(f"{thread}:1", "completed")], f"calls for {thread}: {found}")


def expect_marked_once(world, label):
    marks = [world.marks.seen[f"begun {label}/{place}"] for place in range(MARKS)]
    expect(marks == [1] * MARKS, f"{label} made marks {marks}")


def until_called_off(world, threads):
    """Calls end a moment after their threads."""
    names = set(threads)
    until("the calls have ended", lambda: not [c for c in world.restate.calls() if c[0] in names and c[2] != "completed"], 30)


def until_registered(world):
    until("each worker registers", lambda: all(" registered " in f" {worker.log()}".replace("\n", " ") for worker in world.workers))


def check_calls(world):
    """Threads begin because a worker is called, children too, and a suspended one once its question is answered."""
    until_registered(world)
    user = world.user
    threads = [user.submit("steps", f"called.{number}") for number in range(6)]
    began = time.monotonic()
    until("they complete", lambda: world.are_completed(threads))
    took = time.monotonic() - began
    until_called_off(world, threads)
    expect_called_once(world, threads)
    for number in range(6):
        expect_marked_once(world, f"called.{number}")
    hosts = {row[0] for row in world.database.sql(
        "SELECT DISTINCT signer FROM threads WHERE thread_id IN (" + ", ".join(f"'{t}'" for t in threads) + ")")}
    tree = user.submit("parent", "tree-8")
    until("a fan-out completes", lambda: world.is_completed(tree))
    marks = [world.marks.seen[f"ended tree-8.{place}/0"] for place in range(8)]
    expect(marks == [1] * 8, f"marks of the children: {marks}")
    asking = user.submit("ask", "asking")
    until("it asks", lambda: world.status(asking) == "suspended")
    until("its call ends", lambda: [call[2] for call in calls_of(world, asking)] == ["completed"])
    user.rye("thread", "approve", asking)
    until("it completes once it is answered", lambda: world.is_completed(asking))
    until_called_off(world, [asking])
    keys = sorted(call[1] for call in calls_of(world, asking))
    expect(len(keys) == 2 and keys[0] == f"{asking}:1", f"calls for a thread that asked: {keys}")
    limited = user.submit("steps", "limited", "--limit", "turns=2")
    until("it stops at its limit", lambda: world.status(limited) == "suspended")
    user.rye("thread", "resume", limited, "--limit", "turns=+10")
    until("it completes with more turns", lambda: world.is_completed(limited))
    say(f"6 threads were called for once each, on {len(hosts)} workers, and completed {took:.1f} s after the last was submitted; so did 8 "
        f"children, a thread that was answered ({', '.join(key.split(':')[1] for key in keys)}), and one that was resumed")


def check_labels(world):
    """A worker without a label leaves a thread to the next call, which may reach another worker."""
    thread = world.user.submit("steps", "labelled", "--label", "gpu")
    until("a worker says what it lacks",
          lambda: any("does not offer gpu" in str(call[4].get("last_failure")) for call in calls_of(world, thread)))
    worker = world.add_worker(world.people[0], "gpu", "--label", "gpu")
    took = until("it runs where the label is", lambda: world.is_completed(thread))
    until_called_off(world, [thread])
    expect_called_once(world, [thread])
    expect_marked_once(world, "labelled")
    worker.end()
    world.workers.remove(worker)
    say(f"a thread that needs a label was called for again until the one of four workers that has it took it: {took:.1f} s after that began")


def check_no_worker(world):
    """Threads that are submitted while no worker runs begin when one comes."""
    until_registered(world)
    world.end_workers()
    threads = [world.user.submit("steps", f"early.{number}") for number in range(5)]
    time.sleep(3)
    expect(world.statuses(threads) == {"created": 5}, f"without a worker: {world.statuses(threads)}")
    held = [call[1] for call in world.restate.calls() if call[0] in threads and call[2] != "completed"]
    expect(sorted(held) == sorted(f"{thread}:1" for thread in threads), f"Restate holds {held}")
    began = time.monotonic()
    world.workers[0].start()
    until("the first begins", lambda: world.statuses(threads).get("created", 0) < 5)
    first = time.monotonic() - began
    until("all complete", lambda: world.are_completed(threads))
    took = time.monotonic() - began
    until_called_off(world, threads)
    expect_called_once(world, threads)
    for number in range(5):
        expect_marked_once(world, f"early.{number}")
    for worker in world.workers[1:]:
        worker.start()
    say(f"5 threads that were submitted while no worker ran began {first:.1f} s after one was started, and completed after {took:.1f} s")


class Kills:
    """Workers that are killed in the middle of a thread that they were called for. Each is replaced by one of another name, which
    cannot know that the process is gone: the lease has to end."""

    def __init__(self, world):
        self.world, self.threads, self.killed_at, self.takeovers = world, [], {}, []
        self.lock, self.is_over = threading.Lock(), False
        self.before = dict(world.model.asked)
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        """Notes how long each thread waits for another worker."""
        while not self.is_over:
            time.sleep(0.2)
            with self.lock:
                waiting = dict(self.killed_at)
            if not waiting:
                continue
            names = ", ".join(f"'{thread}'" for thread in waiting)
            rows = self.world.database.sql(f"SELECT thread_id, coalesce(host, '') FROM threads WHERE thread_id IN ({names})")
            with self.lock:
                for thread, host in rows:
                    first, at = waiting[thread]
                    if host != first and self.killed_at.get(thread) == waiting[thread]:
                        del self.killed_at[thread]
                        self.takeovers.append(time.monotonic() - at)

    def kill_one(self, number):
        world, label = self.world, f"kill.{number}"
        turn = random.randrange(1, CALLS)
        world.model.held_at[label] = turn
        thread = world.user.submit("steps", label)
        self.threads.append(thread)
        until("a worker is in the middle of it", lambda: world.model.asked[label, turn] == 1)
        host = world.database.value(f"SELECT host FROM threads WHERE thread_id = '{thread}'")
        worker = next(worker for worker in world.workers if host == f"worker:{worker.name}")
        held = held_by(world, worker)
        worker.kill()
        with self.lock:
            for one in held:
                self.killed_at[one] = (host, time.monotonic())
        del world.model.held_at[label]
        world.workers.remove(worker)
        world.add_worker(worker.person, f"{worker.person.name}.{number}", "--max-threads", "300")

    def expect_exactly_once(self, undisturbed):
        world = self.world
        epochs = dict(world.database.sql("SELECT thread_id, epoch FROM threads"))
        repeated = 0
        for number, thread in enumerate(self.threads):
            label, taken = f"kill.{number}", int(epochs[thread]) - int(epochs[undisturbed])
            expect(taken >= 1, f"{label} was not taken over")
            counts = [world.model.asked[label, done] for done in range(CALLS)]
            expect(min(counts) >= 1 and sum(counts) - CALLS <= taken, f"{label} asked {counts}, and was taken over {taken} times")
            repeated += sum(counts) - CALLS
            marks = [world.marks.seen[f"begun {label}/{place}"] for place in range(MARKS)]
            # One that was taken over again may have been at its tool, which is not called again.
            expect(max(marks) <= 1 and (min(marks) == 1 or taken > 1), f"{label} made marks {marks}, and was taken over {taken} times")
        return repeated


def check_kills(world):
    """Workers are killed with -9 in the middle of threads: Restate calls for each until another worker has it."""
    undisturbed = world.user.submit("steps", "undisturbed")
    until("it completes", lambda: world.is_completed(undisturbed))
    # A call that waits may be with a worker that is killed as well: not with most of them at once.
    for number in range(world.sizes.called // 15):
        world.add_worker(world.people[number % 3], f"more{number}", "--max-threads", "300")
    kills = Kills(world)
    for number in range(world.sizes.called):
        kills.kill_one(number)
        time.sleep(random.uniform(0.5, 2))
        if (number + 1) % 10 == 0:
            say(f"  {number + 1} of {world.sizes.called}")
    until("all threads complete", lambda: world.are_completed(kills.threads), 300)
    until_called_off(world, kills.threads)
    until("each has another worker", lambda: not kills.killed_at)
    kills.is_over = True
    kills.watcher.join()
    expect_called_once(world, kills.threads)
    repeated = kills.expect_exactly_once(undisturbed)
    for thread in kills.threads:
        expect("valid" in world.user.rye("thread", "verify", thread), f"the transcript of {thread} is not whole")
    # Some threads had ended just before their worker was killed.
    takeovers = [seconds for seconds in kills.takeovers if seconds > 1]
    shortest, median, longest = min(takeovers), statistics.median(takeovers), max(takeovers)
    say(f"{world.sizes.called} workers were killed in the middle of a thread: each thread had another worker after {shortest:.1f} to "
        f"{longest:.1f} s (median {median:.1f}), by the same call made again; all completed and verify, {repeated} model calls were repeated, no mark was made twice")
    expect(longest <= TAKEOVER_SECONDS + world.sizes.patience, f"a takeover took {longest:.1f} s")


def check_frozen(world):
    """A frozen worker keeps its connection: Restate notices after its keep-alive, and calls another one."""
    if world.sizes.called < 10:
        return
    until_registered(world)
    frozen = FrozenWorker(world)
    frozen.watcher.join()
    expect(frozen.taken_after is not None, "no other worker took the thread of a frozen one")
    frozen.worker.wake()
    until("it completes", lambda: world.is_completed(frozen.thread))
    until_called_off(world, [frozen.thread])
    expect_called_once(world, [frozen.thread])
    expect_marked_once(world, "frozen")
    say(f"a frozen worker's thread continued elsewhere after {frozen.taken_after:.1f} s; woken, the first changed nothing")
    expect(frozen.taken_after <= FROZEN_SECONDS + world.sizes.patience, f"the takeover took {frozen.taken_after:.1f} s")


def check_down(world):
    """Restate is down: it is said by name, nothing is lost, and a worker that looks itself goes on."""
    user, restate = world.user, world.restate
    until_registered(world)
    restate.kill()
    output = user.rye("run", "team/steps", "label=down.0", "--on", "team", "--provider", "fake")
    expect("was not handed over" in output and restate.ingress in output, f"submitted without Restate:\n{output}")
    first = re.search(r"thread-[0-9a-f]{12}", output).group()
    time.sleep(2)
    expect(world.status(first) == "created", "a thread began without a call")
    # A worker that looks by itself, as without the setting.
    person = world.people[1]
    person.settle([user.key], world.worker_keys(), store=store_settings(world, poll=1))
    looking = world.add_worker(person, "looking")
    until("it completes without a call", lambda: world.is_completed(first))
    looking.end()
    world.workers.remove(looking)
    person.settle([user.key], world.worker_keys(), store=store_settings(world))
    second = user.submit("steps", "down.1")
    code, output = user.try_rye("thread", "resume", second)
    expect(code == 1 and "RYE1165" in output, f"handed over again without Restate: {code} {output}")
    restate.start()
    expect(world.status(second) == "created", "a thread began without a call")
    user.try_rye("thread", "resume", second)
    until("it completes once it is handed over", lambda: world.is_completed(second))
    until_called_off(world, [second])
    expect_called_once(world, [second])
    for label in ("down.0", "down.1"):
        expect_marked_once(world, label)
    say("without Restate, submitting says so by name and loses nothing; looked for by a worker, or handed over again, the threads complete")


def check_drain(world):
    """A worker that ends gives its thread back, and another one is called for it."""
    until_registered(world)
    leaving = world.add_worker(world.people[0], "leaving", "--label", "drain", "--drain-seconds", "1")
    world.model.held_at["drained"] = 1
    thread = world.user.submit("steps", "drained", "--label", "drain")
    until("it is in the middle", lambda: world.model.asked["drained", 1] == 1)
    staying = world.add_worker(world.people[1], "staying", "--label", "drain")
    until_registered(world)
    del world.model.held_at["drained"]
    code = leaving.end()
    expect(code == 0, f"a worker ended with {code} on SIGTERM")
    host = world.database.value(f"SELECT coalesce(host, '') FROM threads WHERE thread_id = '{thread}'")
    expect(host != "worker:leaving", "it was not given back")
    took = until("it completes on the other worker", lambda: world.is_completed(thread))
    until_called_off(world, [thread])
    expect_marked_once(world, "drained")
    asked = [world.model.asked["drained", done] for done in range(CALLS)]
    expect(asked == [1, 2, 1, 1], f"model calls: {asked}")
    for worker in (leaving, staying):
        world.workers.remove(worker)
    staying.end()
    say(f"a worker that ended on SIGTERM gave its thread back, which completed on the one of four others that fits {took:.1f} s later")


def request(world, path, *more):
    """A request to the workers' endpoint as a stranger makes it: the status, and what it says."""
    words = ["curl", "-s", "--noproxy", "*", "--http2-prior-knowledge", "-m", "10", "-o", "-", "-w", "\n%{http_code}", *more]
    done = subprocess.run([*words, f"http://127.0.0.1:{world.port}{path}"], capture_output=True, text=True)
    text, _, status = done.stdout.rpartition("\n")
    return status, text


def check_strangers(world):
    """Whoever reaches endpoint or ingress starts nothing."""
    count = lambda: world.database.value("SELECT count(*) || '/' || coalesce(sum(epoch), 0) FROM threads")
    until_registered(world)
    _, here = world.user.try_rye("run", "team/plain", "label=here", "--provider", "offline", "--json")
    found = re.search(r"thread-[0-9a-f]{12}", here)
    expect(found, f"a thread of the user's machine: {here}")
    own = found.group()
    before, asked = count(), sum(world.model.asked.values())
    for path in ("/discover", "/invoke/Thread/drive"):
        status, text = request(world, path, "-H", "accept: application/vnd.restate.endpointmanifest.v4+json")
        expect(status == "401", f"unsigned {path}: {status} {text}")
        forged = "eyJhbGciOiJFZERTQSJ9.eyJhdWQiOiIvZGlzY292ZXIifQ." + "A" * 86
        status, text = request(world, path, "-H", "x-restate-signature-scheme: v1", "-H", f"x-restate-jwt-v1: {forged}")
        expect(status == "401", f"forged {path}: {status} {text}")
    for path in ("/", "/health", "/invoke/Other/drive", "/invoke/Thread/drive/x", "/invoke/Thread/../drive"):
        expect(request(world, path)[0] == "404", path)
    expect(any("refused a request" in worker.log() for worker in world.workers), "no worker says that it refused a request")
    # Signed by Restate, but of threads that are not there, or were never submitted.
    calls = [world.restate.send(key) for key in ("thread-000000000000", own, "no-thread", "%20%27%3B--")]
    ended = lambda: [row for row in world.restate.query("SELECT id, status, completion_result FROM sys_invocation")
                     if row["id"] in calls and row["status"] == "completed"]
    until("the calls have failed", lambda: len(ended()) == len(calls))
    expect({row["completion_result"] for row in ended()} == {"failure"}, f"calls of strangers: {ended()}")
    expect(count() == before and sum(world.model.asked.values()) == asked, "a call of a stranger changed something")
    say("unsigned and forged requests to the endpoint are refused; calls for threads that are not there or were not submitted fail for good")
