"""Questions to people, and limits."""
from journals.model_server import call, fail, hang, say
from journals.scenarios.base import APPROVAL, scenario
from journals.scenarios.hooks import slow_hook
from journals.workspace import control, hook


# Questions to people.

def asks(w, replies, on_deny="tell"):
    question = (APPROVAL, {"prompt": "Deploy?", "reason": "it is built", "on_deny": on_deny})
    w.server.script(task=[call(question), *replies])
    w.run("run", "team/task", expect=6)
    w.expect_status("suspended", "approval")


@scenario("openai")
def approval_yes(w):
    asks(w, [say("Deployed.")])
    w.run("thread", "approve", w.thread(), "--message", "Go.")
    w.expect_status("completed")


@scenario("anthropic")
def approval_no(w):
    asks(w, [say("Not deployed.")])
    w.run("thread", "deny", w.thread(), "--message", "Wait.")
    w.expect_status("completed")


@scenario("openai")
def approval_no_ends(w):
    asks(w, [], on_deny="end")
    w.run("thread", "deny", w.thread(), expect=1)
    w.expect_status("error")


@scenario("openai")
def approval_of_calls(w):
    """Two calls of a risk that a person must allow, and one that needs no approval: one yes, one no."""
    w.user_config("capability_risk", """risk_levels:
  safe: {description: Reads, policy: allow}
  write: {description: Changes, policy: allow}
  elevated: {description: Runs commands, policy: approval_required}
  unrestricted: {description: Everything, policy: block}
classifications:
  - {id: asked, risk: elevated, patterns: [rye.execute.tool.team.mark, rye.execute.tool.team.break], description: Marks}
  - {id: tools, risk: write, patterns: ["rye.execute.tool.*"], description: Tools}
""")
    calls = call(("team_mark", {"text": "one"}), ("team_look", {}), ("team_break", {}))
    w.server.script(task=[calls, say("One was made.")])
    w.run("run", "team/task", expect=6)
    questions = [row["id"] for row in w.query("SELECT id FROM approvals ORDER BY id")]
    w.run("thread", "approve", questions[0], expect=None)
    w.run("thread", "deny", questions[1], expect=None)
    w.expect_status("completed")


# Limits.

def at_turn_limit(w, replies=()):
    w.server.script(task=[call(("team_mark", {"text": "one"})), *replies])
    w.run("run", "team/task", "--limit", "turns=1", expect=6)
    w.expect_status("suspended", "limit")


@scenario("openai")
def limit_turns(w):
    """Stays suspended."""
    at_turn_limit(w)


@scenario("openai")
def limit_turns_resumed(w):
    at_turn_limit(w, [say("One more turn.")])
    w.run("thread", "resume", w.thread(), "--limit", "turns=+5", "--message", "Finish it.")
    w.expect_status("completed")


@scenario("anthropic")
def limit_turns_approved(w):
    at_turn_limit(w, [call(("team_mark", {"text": "two"})), say("Two more turns.")])
    w.run("thread", "approve", w.thread(), "--limit", "turns=+5")
    w.expect_status("completed")


@scenario("openai")
def limit_turns_denied(w):
    at_turn_limit(w)
    w.run("thread", "deny", w.thread(), expect=1)
    w.expect_status("error")


@scenario("openai")
def limit_hook_fails(w):
    w.directive("limited", tools=["team.mark"], limits='turns="1"',
                hooks=hook("strict", "limit", control(action="fail", error="no more: ${limit_code}")))
    w.server.script(limited=[call(("team_mark", {"text": "one"}))])
    w.run("run", "team/limited", expect=1)
    w.expect_status("error")


@scenario("openai")
def limit_suspends_without_question(w):
    w.user_config("resilience", "limits: {enforcement: {on_exceed: suspend}}\n")
    w.user_config("hook_conditions", "builtin_hooks: []\n")
    w.server.script(task=[call(("team_mark", {"text": "one"})), say("More.")])
    w.run("run", "team/task", "--limit", "turns=1", expect=6)
    w.run("thread", "resume", w.thread(), "--limit", "turns=3")
    w.expect_status("completed")


@scenario("openai")
def limit_tokens(w):
    w.server.script(task=[call(("team_mark", {"text": "one"}), usage=(29000, 60)), say("Enough tokens.")])
    w.run("run", "team/task", "--limit", "tokens=30000", expect=6)
    w.expect_status("suspended", "limit")
    w.run("thread", "resume", w.thread(), "--limit", "tokens=+60000")
    w.expect_status("completed")


@scenario("anthropic")
def limit_spend(w):
    w.server.script(task=[call(("team_mark", {"text": "one"}), usage=(29000, 100)), say("Enough money.")])
    w.run("run", "team/task", "--limit", "spend=0.03", expect=6)
    w.expect_status("suspended", "limit")
    w.run("thread", "resume", w.thread(), "--limit", "spend=+0.1")
    w.expect_status("completed")


@scenario("openai")
def limit_time_calling(w):
    w.server.script(task=[hang(), say("In time.")])
    w.run("run", "team/task", "--limit", "duration_seconds=1", expect=6)
    w.expect_status("suspended", "limit")
    w.run("thread", "resume", w.thread(), "--limit", "duration_seconds=+60")
    w.expect_status("completed")


@scenario("openai")
def limit_time_tools(w):
    w.server.script(task=[call(("team_look", {}), ("team_wait", {}))])
    w.run("run", "team/task", "--limit", "duration_seconds=1", expect=6)
    w.expect_status("suspended", "limit")


@scenario("openai")
def limit_time_hooks(w):
    slow_hook(w)
    w.server.script(slow=[call(("team_mark", {}))])
    w.run("run", "team/slow", "--limit", "duration_seconds=1", expect=6)
    w.expect_status("suspended", "limit")


@scenario("openai")
def limit_time_before_retry(w):
    """The wait before the next attempt would be longer than the time that is left."""
    w.server.script(task=[fail(429, "rate_limit_error", retry_after="60")])
    w.run("run", "team/task", "--limit", "duration_seconds=5", expect=6)
    w.expect_status("suspended", "limit")
