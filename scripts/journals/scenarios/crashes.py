"""Threads without a model, crashes, cancellation."""
import signal

from journals.model_server import call, fail, hang, say
from journals.scenarios.base import child_of, scenario
from journals.scenarios.hooks import slow_hook
from journals.scenarios.people import at_turn_limit
from journals.workspace import APPROVAL_GRANT, ORCHESTRATE_GRANT, SPAWN_GRANT, action, hook


# Without a model.

@scenario("offline")
def offline_actions(w):
    w.directive("plan", tools=["team.mark", "team.look"], actions=(
        action("team/mark", text="one") + action("team/look", text="two")),
        outputs='<output name="seen" type="integer">Seen</output>')
    w.run("run", "team/plan")
    w.expect_status("completed")


@scenario("offline")
def offline_fails(w):
    """An action that fails; how the thread ends is what the recorded binary does."""
    w.directive("plan", tools=["team.mark", "team.break"], actions=(
        action("team/mark", text="one") + action("team/break") + action("team/mark", text="never")))
    w.run("run", "team/plan", expect=None)


@scenario("offline")
def offline_children(w):
    w.directive("work", tools=["team.mark"], actions=action("team/mark", text="child"))
    w.directive("plan", tools=["team.mark", SPAWN_GRANT, ORCHESTRATE_GRANT], actions=(
        action("rye/agent/threads/thread_directive", directive_name="team/work")
        + action("rye/agent/threads/thread_directive", directive_name="team/work", async_exec="true")
        + action("rye/agent/threads/orchestrator", operation="wait_threads", thread_ids="${last.thread_id}")))
    w.run("run", "team/plan")
    w.expect_status("completed")


@scenario("offline")
def offline_approval(w):
    w.directive("plan", tools=["team.mark", APPROVAL_GRANT], actions=(
        action("rye/agent/threads/human_approval", prompt="Mark?", on_deny="end") + action("team/mark", text="one")))
    w.run("run", "team/plan", expect=6)
    w.run("thread", "approve", w.thread())
    w.expect_status("completed")


# Crashes.

def crash(w, name, ready):
    """Runs a directive, kills it when it is ready, and resumes it."""
    process = w.start("run", f"team/{name}")
    ready()
    w.kill(process)
    w.touch("go")
    w.run("thread", "resume", w.thread())
    w.expect_status("completed")


def crash_calling(w):
    w.server.script(task=[call(("team_mark", {"text": "one"})), hang(), say("Back again.")])
    crash(w, "task", lambda: w.server.wait_for(2))


@scenario("openai")
def interrupted_calling_openai(w):
    crash_calling(w)


@scenario("anthropic")
def interrupted_calling_anthropic(w):
    crash_calling(w)


@scenario("openai")
def interrupted_new(w):
    """A background thread starts without an owner and is claimed by the daemon."""
    w.server.script(task=[say("Later.")])
    w.run("run", "team/task", "--async")
    w.run("thread", "wait", w.thread())
    w.expect_status("completed")


@scenario("openai")
def interrupted_hook(w):
    """A hook of unknown outcome."""
    slow_hook(w)
    w.server.script(slow=[call(("team_mark", {"text": "one"})), say("Hooked.")])
    crash(w, "slow", lambda: w.wait_for_run("wait "))


@scenario("openai")
def interrupted_sleeping(w):
    w.server.script(task=[fail(429, "rate_limit_error", retry_after="30"), say("Awake.")])
    crash(w, "task", lambda: w.wait_for_event("hook_done"))


@scenario("openai")
def interrupted_tools(w):
    """A call that ended, one that may be made again, and one of unknown outcome."""
    w.server.script(task=[call(("team_mark", {"text": "one"}), ("team_wait", {}), ("team_wait_again", {})), say("Known.")])

    def ready():
        w.wait_for_run("wait ")
        w.wait_for_run("wait_again ")
        w.wait_for_event("tool_done")
    crash(w, "task", ready)


@scenario("anthropic")
def interrupted_child(w):
    """Parent and child die together, and are resumed together."""
    w.server.script(task=[call(child_of()), say("Led.")], work=[hang(), say("Worked.")])
    crash(w, "task", lambda: w.server.wait_for(1, "work"))


@scenario("openai")
def interrupted_twice(w):
    w.server.script(task=[hang(), hang(), say("The third time.")])
    process = w.start("run", "team/task")
    w.server.wait_for(1)
    w.kill(process)
    process = w.start("thread", "resume", w.thread())
    w.server.wait_for(2)
    w.kill(process)
    w.run("thread", "resume", w.thread())
    w.expect_status("completed")


@scenario("openai")
def interrupted_after_resume(w):
    """Suspended at a limit, resumed, then killed."""
    at_turn_limit(w, [hang(), say("After all.")])
    process = w.start("thread", "resume", w.thread(), "--limit", "turns=+5")
    w.server.wait_for(2)
    w.kill(process)
    w.run("thread", "resume", w.thread())
    w.expect_status("completed")


@scenario("offline")
def interrupted_offline(w):
    w.directive("crash", tools=["team.mark", "team.wait"], actions=(
        action("team/mark", text="one") + action("team/wait") + action("team/mark", text="two")))
    process = w.start("run", "team/crash")
    w.wait_for_run("wait ")
    w.kill(process)
    w.touch("go")
    w.run("thread", "resume", w.thread(), expect=None)


# Cancellation.

def cancel(w, name, ready, by_signal=False):
    process = w.start("run", f"team/{name}")
    ready()
    if by_signal:
        process.send_signal(signal.SIGINT)
    else:
        w.run("thread", "cancel", w.thread())
    w.end(process, 7)
    w.expect_status("cancelled")


@scenario("openai")
def cancelled_calling(w):
    w.server.script(task=[hang()])
    cancel(w, "task", lambda: w.server.wait_for(1), by_signal=True)


@scenario("anthropic")
def cancelled_tools(w):
    w.server.script(task=[call(("team_mark", {"text": "one"}), ("team_wait", {}), ("team_wait", {}))])
    cancel(w, "task", lambda: (w.wait_for_run("wait "), w.wait_for_event("tool_done")))


@scenario("openai")
def cancelled_sleeping(w):
    w.server.script(task=[fail(429, "rate_limit_error", retry_after="30")])
    cancel(w, "task", lambda: w.wait_for_event("hook_done"))


@scenario("openai")
def cancelled_hooks(w):
    slow_hook(w)
    w.server.script(slow=[call(("team_mark", {"text": "one"}))])
    cancel(w, "slow", lambda: w.wait_for_run("wait "))


@scenario("openai")
def cancelled_while_ending(w):
    """The thread ends as it was going to: its last hook runs already."""
    last = '<action primary="execute" item_type="tool" item_id="team/wait"></action>'
    w.directive("last", tools=["team.wait"], hooks=hook("last", "after_complete", last))
    w.server.script(last=[say("Done.")])
    process = w.start("run", "team/last")
    w.wait_for_run("wait ")
    w.run("thread", "cancel", w.thread())
    w.end(process, 0)
    w.expect_status("completed")


@scenario("openai")
def cancelled_children(w):
    w.server.script(task=[call(child_of(), child_of(async_exec=True))], work=[hang(), hang()])
    cancel(w, "task", lambda: w.server.wait_for(2, "work"))
