"""Hooks that steer, fail, bring texts or make room."""
from journals.model_server import call, fail, say
from journals.scenarios.base import scenario
from journals.workspace import control, hook


# Hooks.

def slow_hook(w):
    """A directive whose hook waits for a file."""
    slow = '<action primary="execute" item_type="tool" item_id="team/wait"></action>'
    w.directive("slow", tools=["team.wait", "team.mark"], hooks=hook("slow", "after_step", slow))


def error_hook(w, *replies, **params):
    w.directive("fails", hooks=hook("on_error", "error", control(**params)))
    w.server.script(fails=[fail(400, "invalid_request_error"), *replies])


@scenario("openai")
def hook_retries(w):
    error_hook(w, say("It works now."), action="retry")
    w.run("run", "team/fails")
    w.expect_status("completed")


@scenario("openai")
def hook_fails(w):
    error_hook(w, action="fail", error="given up after ${attempt}")
    w.run("run", "team/fails", expect=1)
    w.expect_status("error")


@scenario("openai")
def hook_aborts(w):
    error_hook(w, action="abort")
    w.run("run", "team/fails", expect=7)
    w.expect_status("cancelled")


@scenario("openai")
def hook_suspends_at_error(w):
    error_hook(w, say("It works now."), action="suspend", suspend_reason="error")
    w.run("run", "team/fails", expect=6)
    w.expect_status("suspended", "error")
    w.run("thread", "resume", w.thread(), "--message", "The server is back.")
    w.expect_status("completed")


def step_hook(w, replies, **params):
    once = '<condition path="cost.turns" op="eq" value="1" />'
    w.directive("step", tools=["team.mark"], hooks=hook("gate", "after_step", control(**params), once))
    w.server.script(step=[call(("team_mark", {"text": "one"})), *replies])


@scenario("openai")
def hook_step_approved(w):
    step_hook(w, [say("Allowed.")], action="suspend", suspend_reason="approval", prompt="Go on?")
    w.run("run", "team/step", expect=6)
    w.expect_status("suspended", "approval")
    w.run("thread", "approve", w.thread(), "--message", "Be quick.")
    w.expect_status("completed")


@scenario("anthropic")
def hook_step_denied(w):
    step_hook(w, [say("Then not.")], action="suspend", suspend_reason="after a turn", on_deny="tell")
    w.run("run", "team/step", expect=6)
    w.run("thread", "deny", w.thread(), "--message", "Not today.")
    w.expect_status("completed")


@scenario("openai")
def hook_step_denied_ends(w):
    step_hook(w, [], action="suspend", suspend_reason="approval", prompt="Go on?", on_deny="end")
    w.run("run", "team/step", expect=6)
    w.run("thread", "deny", w.thread(), expect=1)
    w.expect_status("error")


@scenario("openai")
def hook_step_escalates(w):
    step_hook(w, [say("More it is.")], action="escalate", limit_type="spend", current_value="1")
    w.run("run", "team/step", expect=6)
    w.expect_status("suspended", "limit")
    w.run("thread", "approve", w.thread())
    w.expect_status("completed")


@scenario("openai")
def hook_step_suspends_without_question(w):
    step_hook(w, [say("On it goes.")], action="suspend", suspend_reason="budget")
    w.run("run", "team/step", expect=6)
    w.expect_status("suspended", "budget")
    w.run("thread", "resume", w.thread())
    w.expect_status("completed")


@scenario("openai")
def hook_step_fails(w):
    step_hook(w, [], action="fail", error="enough")
    w.run("run", "team/step", expect=1)
    w.expect_status("error")


@scenario("openai")
def hook_step_aborts(w):
    step_hook(w, [], action="abort")
    w.run("run", "team/step", expect=7)
    w.expect_status("cancelled")


def start_hook(w, replies):
    gate = control(action="suspend", suspend_reason="approval", prompt="May it begin?")
    w.directive("gate", hooks=hook("gate", "thread_started", gate))
    w.server.script(gate=replies)
    w.run("run", "team/gate", expect=6)
    w.expect_status("suspended", "approval")


@scenario("openai")
def hook_start_approved(w):
    start_hook(w, [say("It begins.")])
    w.run("thread", "approve", w.thread(), "--message", "Yes, begin.")
    w.expect_status("completed")


@scenario("openai")
def hook_start_denied(w):
    start_hook(w, [])
    w.run("thread", "deny", w.thread(), expect=1)
    w.expect_status("error")


@scenario("anthropic")
def hook_context(w):
    """Texts around the prompt, a system prompt, an event, a cost, a hook that fails and one that is denied."""
    for name in ("before", "after", "system"):
        w.knowledge(name, f"The text {name}.")
    load = '{{primary: load, item_type: knowledge, item_id: team/{}}}'.format
    internal = "rye/agent/threads/internal"
    w.user_config("hooks", f"""hooks:
  - {{id: system, event: build_system_prompt, action: {load("system")}, grants: [rye.load.knowledge.team.system]}}
  - {{id: before, event: thread_started, action: {load("before")}, position: before, grants: [rye.load.knowledge.team.before]}}
  - {{id: after, event: thread_started, action: {load("after")}, position: after, wrap: true, grants: [rye.load.knowledge.team.after]}}
  - id: emits
    event: after_step
    action: {{primary: execute, item_type: tool, item_id: {internal}/emitter, params: {{event_type: seen, payload: {{turns: "${{cost.turns}}"}}}}}}
  - id: adds
    event: after_step
    action: {{primary: execute, item_type: tool, item_id: {internal}/cost_tracker, params: {{operation: add, input_tokens: 5, output_tokens: 2, spend: 0.001}}}}
  - id: saves
    event: after_step
    action: {{primary: execute, item_type: tool, item_id: {internal}/state_persister, params: {{}}}}
""")
    tool = '<action primary="execute" item_type="tool" item_id="team/{}"></action>'.format
    w.directive("context", tools=["team.mark", "team.break"], hooks=(
        hook("breaks", "after_step", tool("break")) + hook("denied", "after_step", tool("other"))
        + hook("last", "after_complete", tool("mark"))))
    w.server.script(context=[call(("team_mark", {"text": "one"})), say("Done.")])
    w.run("run", "team/context")
    w.expect_status("completed")


SUMMARY = call(("directive_return", {"summary": "A mark was made."}))


@scenario("openai", window=4000)
def hook_compaction(w):
    """The context grows too long: a hook has it summarised, and old turns are removed."""
    w.user_config("coordination", "coordination: {continuation: {resume_ceiling_tokens: 60}}\n")
    w.server.script(task=[call(("team_mark", {"text": "one"}), text="First."), call(("team_look", {}), usage=(3400, 20)),
                          say("Short again.")], compaction=[SUMMARY])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai", window=4000)
def hook_context_full(w):
    """The context is full at the first turn: there is nothing to remove yet."""
    w.user_config("coordination", "coordination: {continuation: {resume_ceiling_tokens: 60}}\n")
    w.server.script(task=[call(("team_mark", {"text": "one"}), usage=(3900, 20)), say("Done.")], compaction=[SUMMARY])
    w.run("run", "team/task")
    w.expect_status("completed")
