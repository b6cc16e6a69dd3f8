"""Answers and failures of the model, and what the thread returns."""
import re

from journals.model_server import call, fail, say
from journals.scenarios.base import scenario
from journals.workspace import hook


# Answers, in both protocols.

def use_tools(w):
    calls = call(("team_mark", {"text": "one"}), ("team_look", {"text": "two"}), ("team_mark", '{"text": "cut'),
                 ("team_break", {}), ("team_missing", {}),
                 ("rye_execute", {"item_type": "tool", "item_id": "rye/file-system/read", "parameters": {"path": "a"}}),
                 text="I will look.", thinking="First a mark.")
    w.server.script(task=[calls, call(("team_look", {"text": "three"})), say("All done.", thinking="That was it.")])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai")
def openai_tools(w):
    use_tools(w)


@scenario("anthropic")
def anthropic_tools(w):
    use_tools(w)


@scenario("openai", stream=False)
def openai_whole(w):
    use_tools(w)


@scenario("anthropic", stream=False)
def anthropic_whole(w):
    use_tools(w)


def cut_off(w):
    w.server.script(task=[say("The first half", end="length"), say(" and the second.")])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai")
def openai_cut(w):
    cut_off(w)


@scenario("anthropic")
def anthropic_cut(w):
    cut_off(w)


@scenario("openai")
def openai_cut_call(w):
    w.server.script(task=[call(("team_mark", '{"te'), end="length"), say("Never mind.")])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai")
def openai_cut_often(w):
    w.server.script(task=[say(f"Part {number}. ", end="length") for number in range(3)])
    w.run("run", "team/task", expect=1)
    w.expect_status("error")


@scenario("anthropic")
def anthropic_paused(w):
    w.server.script(task=[say("A moment.", end="pause"), say("Here it is.")])
    w.run("run", "team/task")
    w.expect_status("completed")


def refused(w):
    w.server.script(task=[say("I will not.", end="refusal")])
    w.run("run", "team/task", expect=1)
    w.expect_status("error")


@scenario("openai")
def openai_refusal(w):
    refused(w)


@scenario("anthropic")
def anthropic_refusal(w):
    refused(w)


@scenario("openai")
def openai_empty(w):
    w.server.script(task=[say("")])
    w.run("run", "team/task", expect=1)
    w.expect_status("error")


# Failures of the model, in both protocols.

def retried(w):
    w.server.script(task=[
        fail(429, "rate_limit_error", "slow down", retry_after="1"), fail(500, "api_error", retry_after_ms="20"),
        say("This stream breaks off here", break_after=4), say("At last."),
    ])
    w.run("run", "team/task")
    w.expect_status("completed")


@scenario("openai")
def openai_retries(w):
    retried(w)


@scenario("anthropic")
def anthropic_retries(w):
    retried(w)


@scenario("openai")
def openai_gives_up(w):
    w.server.script(task=[fail(503, "overloaded", retry_after_ms="10") for _ in range(4)])
    w.run("run", "team/task", expect=1)
    w.expect_status("error")


@scenario("openai")
def openai_invalid_request(w):
    w.server.script(task=[fail(400, "invalid_request_error", "no such model")])
    w.run("run", "team/task", expect=1)
    w.expect_status("error")


@scenario("anthropic")
def anthropic_unauthorized(w):
    w.server.script(task=[fail(401, "authentication_error", "unknown key")])
    w.run("run", "team/task", expect=1)
    w.expect_status("error")


# Outputs.

OUTPUTS = ('<output name="words" type="integer" required="true">How many</output>'
           '<output name="note" type="string">A remark</output>')


@scenario("openai")
def outputs_returned(w):
    """Reminded, refused for what is missing and for what is unknown, then taken."""
    note = '<action primary="execute" item_type="tool" item_id="rye/agent/threads/internal/emitter">' \
           '<param name="event_type">returned</param></action>'
    w.directive("outputs", outputs=OUTPUTS, hooks=hook("note", "directive_return", note))
    w.server.script(outputs=[say("There are three."), call(("directive_return", {"note": "none"})),
                             call(("directive_return", {"words": 3, "letters": 9})),
                             call(("directive_return", {"words": 3, "note": "short"}), ("directive_return", {"words": 4}))])
    w.run("run", "team/outputs")
    w.expect_status("completed")


@scenario("anthropic")
def outputs_error(w):
    w.directive("outputs", outputs=OUTPUTS)
    w.server.script(outputs=[call(("directive_return", {"status": "error", "error_detail": "no such file"}))])
    w.run("run", "team/outputs", expect=1)
    w.expect_status("error")


@scenario("openai")
def outputs_missing(w):
    w.directive("outputs", outputs=OUTPUTS)
    w.server.script(outputs=[say("Three."), say("Three, I said."), say("Three!")])
    w.run("run", "team/outputs", expect=1)
    w.expect_status("error")


@scenario("openai")
def artifact(w):
    """A result that is too long for the model, of which it reads a part; and one of which it was not told."""

    def read(request):
        found = re.search(r'artifact_ref[\\": ]+([^\\" ]+)', request.split("tool_call_id")[-1]) or \
            re.search(r'(art[a-z0-9_:/-]+[0-9a-f]{8,})', request)
        return call(("read_artifact", {"artifact_ref": found.group(1), "offset": 5, "limit": 50}),
                    ("read_artifact", {"artifact_ref": "artifact-of-another-thread"}))

    w.server.script(task=[call(("team_long", {})), read, say("Read.")])
    w.run("run", "team/task")
    w.expect_status("completed")
