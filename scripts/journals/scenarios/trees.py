"""Budgets of a tree, children, continuation."""
import signal

from journals.model_server import call, fail, hang, say
from journals.scenarios.base import ORCHESTRATE, child_of, scenario, thread_ids


# Budgets of a tree.

@scenario("openai")
def budget_refused_own(w):
    """A child spent what the parent's next call would need."""
    # Each turn costs no more than is reserved for it: a parent is charged no more than that.
    work = [call(("team_mark", {"text": str(turn)}), usage=(5500 + 1000 * turn, 5)) for turn in range(3)]
    w.server.script(task=[call(child_of()), say("Paid.")], work=[*work, say("Dear work.", usage=(8500, 5))])
    w.run("run", "team/task", "--limit", "spend=0.0293", expect=6)
    w.expect_status("suspended", "limit")
    w.run("thread", "resume", w.thread(), "--limit", "spend=+0.1")
    w.expect_status("completed")


@scenario("anthropic")
def budget_refused_by_parent(w):
    """The parent has spent what its child's call would need; the child stays suspended."""
    w.server.script(task=[call(child_of(), usage=(28500, 10)), say("It had no money.")])
    w.run("run", "team/task", "--limit", "spend=0.03", expect=6)
    w.expect_status("suspended", "budget", place=1)
    w.run("thread", "resume", w.thread(), "--limit", "spend=+0.1")
    w.expect_status("completed")


@scenario("openai", price="priced: false")
def budget_refused_tokens(w):
    """Without a price tokens are what the tree shares."""
    w.server.script(task=[call(child_of()), say("Counted.")], work=[say("Long work.", usage=(29700, 10))])
    w.run("run", "team/task", "--limit", "tokens=30000", expect=6)
    w.expect_status("suspended", "limit")
    w.run("thread", "resume", w.thread(), "--limit", "tokens=+9000")
    w.expect_status("completed")


# Children.

@scenario("openai")
def child_sync(w):
    w.server.script(task=[call(child_of(), ("team_mark", {"text": "lead"})), say("Led.")],
                    work=[call(("team_mark", {"text": "work"})), say("Worked.")])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("anthropic")
def child_async(w):
    """Two children beside their parent; it looks at them, waits for them and reads what they did."""

    def ask_for(operation, **more):
        def reply(request):
            ids = thread_ids(request)
            given = {"thread_ids": ids} if operation in ("wait_threads", "aggregate_results") else {"thread_id": ids[0]}
            return call((ORCHESTRATE, {"operation": operation, **given, **more}))
        return reply

    w.server.script(task=[call(child_of(async_exec=True), child_of(async_exec=True)), ask_for("wait_threads", timeout=30),
                          ask_for("get_status"), ask_for("read_transcript", tail_lines=3), say("All are back.")],
                    work=[say("Worked."), say("Worked too.")])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai")
def child_refused(w):
    """One child too many, a directive that does not exist, and one that is not granted."""
    w.server.script(task=[call(child_of()), call(child_of(), child_of("team/missing")),
                          call((ORCHESTRATE, {"operation": "list_active"})), say("One was enough.")],
                    work=[say("Worked.")])
    w.run("run", "team/task", "--limit", "spawns=1")
    w.expect_status("completed")


@scenario("openai")
def child_fails(w):
    w.server.script(task=[call(child_of()), say("It failed.")], work=[fail(400, "invalid_request_error", "bad")])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai")
def child_suspended(w):
    """A child at its turn limit, which its parent resumes with more."""
    w.user_config("resilience", "limits: {enforcement: {on_exceed: suspend}}\n")
    w.user_config("hook_conditions", "builtin_hooks: []\n")
    w.server.script(
        task=[call(child_of(limit_overrides={"turns": 1})),
              lambda request: call((ORCHESTRATE, {"operation": "resume_thread", "thread_id": thread_ids(request)[0],
                                                  "message": "A little more.", "limit_overrides": {"turns": 3}})),
              lambda request: call((ORCHESTRATE, {"operation": "wait_threads", "thread_ids": thread_ids(request)[:1],
                                                  "timeout": 20})), say("It made it.")],
        work=[call(("team_mark", {"text": "work"})), say("Made it.")])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai")
def child_cancelled(w):
    """A parent cancels a child that waits for the model."""
    w.server.script(
        task=[call(child_of(async_exec=True)),
              lambda request: (w.server.wait_for(1, "work"), call((ORCHESTRATE, {
                  "operation": "cancel_thread", "thread_id": thread_ids(request)[0], "reason": "not needed"})))[1],
              lambda request: call((ORCHESTRATE, {"operation": "wait_threads", "thread_ids": thread_ids(request)[:1],
                                                  "timeout": 20})), say("It is cancelled.")],
        work=[hang()])
    w.run("run", "team/task")
    w.expect_status("completed")
    w.expect_status("cancelled", place=1)


@scenario("openai")
def tool_asks(w):
    """A tool that calls rye: granted, denied, failing; and one that starts a thread."""
    w.server.script(task=[call(("team_ask", {})), call(("team_start", {})), say("Asked.")], work=[say("Worked.")])
    w.run("run", "team/task")
    w.expect_status("completed")


# Continuation.

@scenario("openai")
def continuation(w):
    w.server.script(task=[call(("team_mark", {"text": "one"})), say("Chapter one."), say("Chapter two.")])
    w.run("run", "team/task")
    w.run("run", "team/task", "--continue", w.thread(), "--message", "And then?")
    w.expect_status("completed", place=1)


@scenario("anthropic")
def continuation_of_cancelled(w):
    w.server.script(task=[say("A beginning", end="pause"), hang(), say("The rest.")])
    process = w.start("run", "team/task")
    w.server.wait_for(2)
    process.send_signal(signal.SIGINT)
    w.end(process, 7)
    w.run("run", "team/task", "--continue", w.thread())
    w.expect_status("completed", place=1)
