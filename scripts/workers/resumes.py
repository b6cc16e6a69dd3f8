"""Threads that stopped on workers: what their user asks continues them, and what was changed past rye does not."""
from harness import expect, say, until
from people import Person

LEDGER = "its row of the ledger was changed"


def stop_at_limit(world, label):
    """A thread that a worker suspended at a limit of its turns."""
    thread = world.user.submit("steps", label, "--limit", "turns=2")
    until("it stops at its limit", lambda: world.status(thread) == "suspended")
    return thread


def stop_without_provider(world, label):
    """A thread that a worker suspended because no provider answers."""
    world.model.is_down = True
    thread = world.user.submit("plain", label)
    until("it stops because no provider answers", lambda: world.status(thread) == "suspended")
    world.model.is_down = False
    return thread


def expect_worker_refused(world, thread):
    """A worker's key asks for nothing."""
    code, output = world.people[0].try_rye("thread", "resume", thread)
    expect(code != 0 and "RYE1158" in output, f"the request of a worker's key: {code} {output}")


def expect_stranger_refused(world, thread, name):
    """A person whom only their own settings list asks; workers refuse it, and look at the thread again after 30 s."""
    stranger = Person(world, name)
    stranger.settle([world.user.key, stranger.key], world.worker_keys())
    stranger.trust(world.user)
    stranger.rye("thread", "resume", thread)
    until("workers refuse the request of a stranger",
          lambda: "no listed person signed" in str(world.user.json("thread", "show", thread)["note"]))


def check_resume(world):
    user = world.user
    thread = stop_at_limit(world, "limited")
    user.rye("thread", "resume", thread, "--limit", "turns=+10")
    until("it completes with more turns", lambda: world.is_completed(thread))
    thread = stop_without_provider(world, "unavailable")
    expect_worker_refused(world, thread)
    for number in range(world.sizes.strangers):
        expect_stranger_refused(world, thread, f"stranger{number}")
    expect(world.status(thread) == "suspended", "another than its user resumed a thread")
    output = user.rye("thread", "resume", thread, "--limit", "turns=77", "--message", "go on")
    expect("resume requested" in output, output)
    took = until("it completes once its user asks", lambda: world.is_completed(thread))
    limits = user.json("thread", "show", thread)["limits"]
    expect(limits.get("turns") == 77, f"the raised limit: {limits}")
    code, output = user.try_rye("thread", "resume", thread)
    expect(code != 0 and "has ended" in output, f"a thread that has ended: {output}")
    say(f"threads that stopped at a limit and without a provider complete when their user asks, here after {took:.1f} s; "
        f"in vain asks a worker's key{', and a stranger' if world.sizes.strangers else ''}")


def check_ledger(world):
    """The maximum of a thread is raised in the database alone, after its user asked to resume it."""
    user, database = world.user, world.database
    thread = stop_at_limit(world, "ledger")
    world.end_workers()
    user.rye("thread", "resume", thread, "--limit", "turns=+10")
    before = database.value(f"SELECT max_spend FROM budget_ledger WHERE thread_id = '{thread}'")
    database.sql(f"UPDATE budget_ledger SET max_spend = NULL WHERE thread_id = '{thread}'")
    code, output = user.try_rye("thread", "verify", thread)
    expect(code == 4 and LEDGER in output, f"a raised maximum in the ledger: {code} {output}")
    code, output = user.try_rye("thread", "resume", thread)
    expect(code == 4 and LEDGER in output, f"resumed with a raised maximum: {code} {output}")
    world.start_workers()
    until("a worker refuses it", lambda: any(LEDGER in worker.log() for worker in world.workers))
    expect(world.status(thread) == "suspended", "a worker ran a thread whose ledger was changed")
    world.end_workers()
    database.sql(f"UPDATE budget_ledger SET max_spend = {before} WHERE thread_id = '{thread}'")
    user.rye("thread", "verify", thread)
    # Workers that refused it would look at it again after 30 s.
    world.start_workers()
    until("it completes once the ledger is as it was", lambda: world.is_completed(thread))
    say("a ledger that was changed past rye is refused by `thread verify`, `thread resume` and workers")
