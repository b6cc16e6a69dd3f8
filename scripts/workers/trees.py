"""Trees over several workers: fan-out, a race for a budget, and cancelling all of a tree."""
from harness import expect, say, until
from servers import USAGE

# What `fake-1` asks for a call, in nano-dollars: see the provider.
CALL_COST = USAGE[0] * 10 + USAGE[1] * 100_000


def children(world, thread, condition="true"):
    return int(world.database.value(f"SELECT count(*) FROM threads WHERE parent_id = '{thread}' AND {condition}"))


def workers_of(world, thread):
    """How many keys signed the children of a thread."""
    return int(world.database.value(f"SELECT count(DISTINCT signer) FROM threads WHERE parent_id = '{thread}'"))


def check_fan_out(world):
    """Children run on all workers, each once."""
    count = world.sizes.tree // 4
    thread = world.user.submit("parent", f"tree-{count}")
    took = until("the fan-out completes", lambda: world.is_completed(thread))
    marks = [world.marks.seen[f"ended tree-{count}.{place}/0"] for place in range(count)]
    expect(marks == [1] * count, f"marks of the children: {marks}")
    say(f"{count} children ran on {workers_of(world, thread)} workers in {took:.1f} s")


def check_race(world):
    """Many threads at once want money for a third of them: exactly a third of the calls are made."""
    count, places = world.sizes.race, world.sizes.places
    world.model.delay = 1.5
    # Half a call more than the places cost, as a call reserves a little more than it costs.
    world.user.directive("race", model="fake-free", spend=f"{(places + 0.5) * CALL_COST / 1e9:.9f}")
    world.user.directive("racer", model="fake-1")
    thread = world.user.submit("race", f"race-{count}")
    until("all have begun", lambda: children(world, thread) == count)
    until("none is at work", lambda: children(world, thread, "status IN ('created', 'running')") == 0)
    world.model.delay = 0.05
    asked = [world.model.total(f"race-{count}.{place}") for place in range(count)]
    spent = int(world.database.value(f"SELECT subtree_spend FROM budget_ledger WHERE thread_id = '{thread}'"))
    completed = children(world, thread, "status = 'completed'")
    say(f"{count} threads on {workers_of(world, thread)} workers wanted money for {places} calls: {sum(asked)} calls were made, "
        f"{completed} threads completed, {spent / CALL_COST:.2f} calls were paid for")
    expect((sum(asked), completed, spent) == (places, places, places * CALL_COST), f"{sum(asked)} calls, {completed} completed, {spent} paid")
    expect(max(asked) == 1, "a thread was paid for twice")
    world.user.try_rye("thread", "cancel", thread)


def check_cancel(world):
    """A tree ends as a whole, wherever its threads wait for a model."""
    count = world.sizes.tree
    world.model.held |= {f"long-{count}.{place}" for place in range(count)}
    thread = world.user.submit("parent", f"long-{count}")
    until("all children run", lambda: children(world, thread, "status = 'running'") == count)
    until("all wait for the model", lambda: sum(world.model.total(f"long-{count}.{place}") for place in range(count)) == count)
    took_part = workers_of(world, thread)
    live = (f"SELECT count(*) FROM threads WHERE completed_at IS NULL AND root = "
            f"(SELECT thread FROM threads WHERE thread_id = '{thread}')")
    process = world.user.popen("thread", "cancel", thread)
    took = until("the tree has ended", lambda: world.database.value(live) == "0")
    expect(process.wait() == 0, "thread cancel failed")
    say(f"a tree of {count + 1} over {took_part} workers was cancelled in {took:.1f} s")
    expect(took <= 5 + world.sizes.patience, f"cancelling took {took:.1f} s")
