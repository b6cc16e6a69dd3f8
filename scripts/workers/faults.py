"""Workers that are killed, frozen and cut off, and a database that restarts, while threads run."""
import collections
import random
import threading
import time

from harness import LEASE_SECONDS, Wrong, expect, say, until

# A thread of `steps` asks a model four times and makes three marks.
CALLS, MARKS = 4, 3
# How many threads are kept at work.
LIVE = 6
TAKEOVER_SECONDS = LEASE_SECONDS + 5
RESTART_SECONDS = 10


def held_by(world, worker):
    rows = world.database.sql(f"SELECT thread_id FROM threads WHERE host = 'worker:{worker.name}' AND completed_at IS NULL")
    return [row[0] for row in rows]


def takeover(world, worker, threads):
    """Seconds until none of these threads is this worker's."""
    return until(f"what {worker.name} had is taken over", lambda: not set(held_by(world, worker)) & set(threads))


class Faults:
    def __init__(self, world):
        self.world, self.threads, self.before = world, [], collections.Counter(world.model.asked)
        self.interruptions, self.longest_restart, self.longest_takeover = 0, 0.0, 0.0

    def keep_busy(self):
        """Submits threads until enough are at work."""
        counts = self.world.statuses(self.threads) if self.threads else {}
        live = counts.get("created", 0) + counts.get("running", 0)
        for _ in range(min(LIVE - live, 2)):
            self.threads.append(self.world.user.submit("steps", f"fault.{len(self.threads)}"))

    def kill(self, worker):
        worker.kill()
        worker.start()

    def leave(self, worker):
        """A worker that is killed and does not come back."""
        threads = held_by(self.world, worker)
        worker.kill()
        self.longest_takeover = max(self.longest_takeover, takeover(self.world, worker, threads))
        worker.start()

    def freeze(self, worker):
        threads = held_by(self.world, worker)
        worker.freeze()
        self.longest_takeover = max(self.longest_takeover, takeover(self.world, worker, threads))
        time.sleep(1)
        worker.wake()

    def restart(self, _):
        database = self.world.database
        database.stop()
        time.sleep(0.3)
        database.start()
        began = time.monotonic()
        probe = self.world.user.submit("plain", f"probe.{self.interruptions}")
        until("work continues after a restart", lambda: self.world.is_completed(probe))
        self.longest_restart = max(self.longest_restart, time.monotonic() - began)

    def cut(self, _):
        self.world.database.cut_connections()

    def run(self, deeds):
        for number, deed in enumerate(deeds):
            self.keep_busy()
            time.sleep(random.uniform(0.1, 0.8))
            getattr(self, deed)(random.choice(self.world.workers))
            self.interruptions += 1
            if (number + 1) % 20 == 0:
                say(f"  {number + 1} of {len(deeds)}, {len(self.threads)} threads")
        until("all threads complete", lambda: self.world.are_completed(self.threads), 300)

    def takeovers(self, undisturbed):
        """How often each thread changed hands; `undisturbed` is one that never did."""
        epochs = dict(self.world.database.sql("SELECT thread_id, epoch FROM threads"))
        return [int(epochs[thread]) - int(epochs[undisturbed]) for thread in self.threads]

    def expect_exactly_once(self, undisturbed):
        """What the model and the marks saw, against what is recorded; gives how many calls were repeated."""
        asked, repeated = self.world.model.asked - self.before, 0
        for number, takeovers in enumerate(self.takeovers(undisturbed)):
            label = f"fault.{number}"
            counts = [asked[label, done] for done in range(CALLS)]
            expect(min(counts) >= 1, f"{label} did not ask each call: {counts}")
            more = sum(counts) - CALLS
            expect(more <= takeovers, f"{label} repeated {more} calls, and was taken over {takeovers} times")
            repeated += more
            marks = [self.world.marks.seen[f"begun {label}/{place}"] for place in range(MARKS)]
            expect(max(marks) <= 1, f"{label} made marks {marks}")
            expect(min(marks) == 1 or takeovers > 0, f"{label} made marks {marks} without a takeover")
        return repeated


def check_faults(world):
    sizes = world.sizes
    undisturbed = world.user.submit("steps", "undisturbed")
    until("it completes", lambda: world.is_completed(undisturbed))
    deeds = ["kill"] * sizes.kills + ["restart"] * sizes.restarts + ["cut"] * sizes.cuts
    if sizes.kills >= 100:
        deeds += ["freeze", "leave"]
    random.shuffle(deeds)
    faults = Faults(world)
    faults.run(deeds)
    repeated = faults.expect_exactly_once(undisturbed)
    for thread, takeovers in zip(faults.threads, faults.takeovers(undisturbed)):
        if takeovers > 0:
            expect("valid" in world.user.rye("thread", "verify", thread), f"the transcript of {thread} is not whole")
    taken = f"; another worker had a thread after {faults.longest_takeover:.1f} s at most" if faults.longest_takeover else ""
    say(f"{len(faults.threads)} threads through {', '.join(f'{deeds.count(deed)} {deed}s' for deed in dict.fromkeys(sorted(deeds)))}: "
        f"all completed, those taken over verify, {repeated} model calls repeated, no mark twice; work continued at most "
        f"{faults.longest_restart:.1f} s after a restart{taken}")
    expect(faults.longest_restart <= RESTART_SECONDS + sizes.patience, f"work continued {faults.longest_restart:.1f} s after a restart")
    expect(faults.longest_takeover <= TAKEOVER_SECONDS + sizes.patience, f"a takeover took {faults.longest_takeover:.1f} s")


class FrozenWorker:
    """A worker that is frozen while it waits for a model; what becomes of its thread is watched meanwhile."""

    def __init__(self, world):
        self.world, self.taken_after = world, None
        world.model.held.add("frozen")
        self.thread = world.user.submit("steps", "frozen")
        until("a worker has it, and asks the model", lambda: world.model.total("frozen") == 1)
        world.model.held.remove("frozen")
        self.first = self.holder()
        self.worker = next(worker for worker in world.workers if self.first == f"worker:{worker.name}")
        self.worker.freeze()
        self.frozen_at = time.monotonic()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def holder(self):
        return self.world.database.value(f"SELECT coalesce(host, '') FROM threads WHERE thread_id = '{self.thread}'")

    def watch(self):
        try:
            until("another worker has the thread", lambda: self.holder() not in ("", self.first))
        except Wrong:
            return
        self.taken_after = time.monotonic() - self.frozen_at

    def expect_fenced(self):
        """Another has its thread within the lease, and what it writes once it is woken is refused."""
        world = self.world
        self.watcher.join()
        expect(self.taken_after is not None, "no other worker took the thread of a frozen one")
        self.worker.wake()
        until("it completes", lambda: world.is_completed(self.thread))
        until("the frozen worker sees that it lost the thread", lambda: f"{self.thread} was taken" in self.worker.log())
        expect(self.taken_after <= TAKEOVER_SECONDS + world.sizes.patience, f"the takeover took {self.taken_after:.1f} s")
        marks = [world.marks.seen[f"begun frozen/{place}"] for place in range(MARKS)]
        expect(marks == [1] * MARKS, f"marks: {marks}")
        asked = [world.model.asked["frozen", done] for done in range(CALLS)]
        expect(asked == [2, 1, 1, 1], f"model calls: {asked}")
        expect("valid" in world.user.rye("thread", "verify", self.thread), "the transcript is not whole")
        say(f"a frozen worker's thread continued elsewhere after {self.taken_after:.1f} s; woken, the first changed nothing")


def begin_takeover(world):
    """Freezes a worker; the checks until `end_takeover` run on the others."""
    world.frozen = FrozenWorker(world)


def end_takeover(world):
    world.frozen.expect_fenced()
