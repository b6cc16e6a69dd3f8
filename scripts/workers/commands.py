"""Every command of `rye thread`, MCP and the page's API on the shared store, from the user's machine."""
import http.client
import json
import re
import subprocess

from harness import TIMEOUT_SECONDS, Wrong, expect, say, until


def ask(world, label):
    """A thread on a worker that waits for a person; its name and the question's."""
    thread = world.user.submit("ask", label)
    until("it asks", lambda: world.status(thread) == "suspended")
    questions = world.user.json("thread", "approvals", thread)["approvals"]
    expect(len(questions) == 1, f"questions of {thread}: {questions}")
    return thread, questions[0]["id"]


def hold(world, label):
    """A thread on a worker that waits for a slow model."""
    world.model.held.add(label)
    thread = world.user.submit("plain", label)
    until("it asks the model", lambda: world.model.total(label) == 1)
    return thread


def check_commands(world):
    user, worker = world.user, world.people[0]
    user.directive("ask")
    thread = user.submit("steps", "commands")
    waited = user.json("thread", "wait", thread)
    expect("completed" in json.dumps(waited), f"wait gives {waited}")
    expect(thread in user.rye("thread", "list"), "list does not have it")
    for words in (["tree", thread], ["cost", thread], ["transcript", thread], ["transcript", thread, "--markdown"], ["verify", thread],
                  ["tail", thread], ["show", thread], ["replay", thread]):
        output = user.rye("thread", *words)
        expect(output.strip(), f"thread {words[0]} says nothing")
    yes, question = ask(world, "yes")
    code, output = worker.try_rye("thread", "approve", question)
    expect(code != 0, f"a worker's key answered a question: {output}")
    expect(world.status(yes) == "suspended", "a worker's answer let it continue")
    user.rye("thread", "approve", question)
    until("it continues with a yes", lambda: world.is_completed(yes))
    no, question = ask(world, "no")
    user.rye("thread", "deny", question)
    until("it continues with a no", lambda: world.is_completed(no))
    expect(world.marks.seen["begun yes/1"] == 1 and world.marks.seen["begun no/1"] == 1, "they did not end as they should")
    held = hold(world, "cancelled")
    user.rye("thread", "cancel", held, "--reason", "enough")
    took = until("it is cancelled", lambda: world.status(held) == "cancelled")
    expect("enough" in user.rye("thread", "show", held), "show does not have the reason")
    say(f"list, show, tree, tail, transcript, cost, verify, replay, wait, approvals, approve, deny work; cancelling took {took:.1f} s")


class Mcp:
    """`rye mcp` over standard input and output."""

    def __init__(self, person):
        self.process = person.popen("mcp", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.number = 0
        self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "check", "version": "1"}})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def request(self, method, params):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self.number and "method" not in message:
                expect("result" in message, f"{method}: {message}")
                return message["result"]
        raise Wrong(f"rye mcp ended at {method}")

    def lead(self, operation, **parameters):
        """Calls the orchestrator."""
        result = self.request("tools/call", {"name": "rye_execute", "arguments": {
            "item_id": "tool:rye/agent/threads/orchestrator", "parameters": {"operation": operation, **parameters}}})
        text = result["content"][0]["text"]
        expect(not result.get("isError"), f"{operation}: {text}")
        return text

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=TIMEOUT_SECONDS)


def check_mcp(world):
    thread, held = world.user.submit("steps", "mcp"), hold(world, "mcp-held")
    client = Mcp(world.user)
    try:
        waited = client.lead("wait_threads", thread_ids=[thread], timeout=60)
        expect("completed" in waited, f"wait_threads: {waited}")
        expect("completed" in client.lead("get_status", thread_id=thread), "get_status does not have it")
        active = client.lead("list_active")
        expect(held in active, f"list_active does not have {held}: {active}")
        expect("team_mark" in client.lead("read_transcript", thread_id=thread, tail_lines=50), "read_transcript does not have it")
        resource = client.request("resources/read", {"uri": f"rye://threads/{thread}"})
        expect("completed" in json.dumps(resource), f"the resource: {resource}")
        client.lead("cancel_thread", thread_id=held, reason="enough")
        until("it is cancelled", lambda: world.status(held) == "cancelled")
    finally:
        client.end()
    say("MCP: wait_threads, get_status, list_active, read_transcript, cancel_thread and the resource work")


class Page:
    """`rye ui` and a session of it."""

    def __init__(self, person):
        self.process = person.popen("--json", "ui", "--port", "0", stderr=subprocess.DEVNULL)
        data = json.loads(self.process.stdout.readline())["data"]
        self.address, self.token = re.search(r"//([^/]+)/", data["url"]).group(1), None
        self.token = self.call("POST", "/session", {"code": data["code"]})["token"]

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_SECONDS)
        headers = {"Origin": f"http://{self.address}", "Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        expect(answer.status == 200, f"{method} {path}: {answer.status} {text}")
        return json.loads(text)["data"] if "json" in answer.headers["content-type"] and not path.endswith("jsonl") else text

    def events(self):
        """The stream of events."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {self.token}", "Origin": f"http://{self.address}"})
        answer = connection.getresponse()
        expect(answer.status == 200, f"/events: {answer.status}")
        return answer

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=TIMEOUT_SECONDS)


def is_news(page, line, thread):
    """Whether a line of the stream brings a thread, or says that lists are to be read again which have it."""
    is_reset = line.startswith(b"event: reset")
    return thread.encode() in line or is_reset and thread in json.dumps(page.call("GET", "/threads?limit=1000"))


def check_page(world):
    world.user.directive("ask")
    page = Page(world.user)
    try:
        events = page.events()
        thread = world.user.submit("steps", "page")
        expect(any(is_news(page, line, thread) for line in events), "the stream says nothing of a thread on a worker")
        until("it completes", lambda: world.is_completed(thread))
        listed = page.call("GET", "/threads?limit=1000")
        expect(thread in json.dumps(listed), "/threads does not have it")
        for part in ("", "/tree", "/timeline", "/verify", "/cost", "/transcript", "/transcript.md", "/transcript.jsonl"):
            data = page.call("GET", f"/threads/{thread}{part}")
            expect(data, f"/threads/…{part} is empty")
        expect("valid" in json.dumps(page.call("GET", f"/threads/{thread}/verify")), "the transcript does not verify")
        for path in ("/trees", "/cost", "/approvals"):
            page.call("GET", path)
        asking, question = ask(world, "page-yes")
        shown = next(one for one in page.call("GET", "/approvals")["approvals"] if one["id"] == question)
        page.call("POST", f"/approvals/{question}", {"digest": shown["digest"], "approved": True})
        until("it continues with a yes from the page", lambda: world.is_completed(asking))
        held = hold(world, "page-held")
        page.call("POST", f"/threads/{held}/cancel", {"reason": "enough"})
        until("it is cancelled", lambda: world.status(held) == "cancelled")
    finally:
        page.end()
    say("the page: list, tree, timeline, transcript, verify, cost, events, an answer and a cancellation work")
