"""The world around workers: a model that counts what it is asked, and a place where tools leave marks."""
import collections
import http.server
import json
import re
import socket
import threading
import time

SPAWN, LEAD, MARK = "rye_agent_threads_thread_directive", "rye_agent_threads_orchestrator", "team_mark"
APPROVAL, EDIT = "rye_agent_threads_human_approval", "team_edit"
# What each kind of parent starts.
CHILDREN = {"parent": "team/leaf", "race": "team/racer", "many": "bench/four"}
# What a call costs: tokens in and out.
USAGE = (50, 10)


class Marks:
    """Counts the marks that tools make, over a socket: workers share no folder."""

    def __init__(self):
        self.seen, self.lock = collections.Counter(), threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.read, args=(connection,), daemon=True).start()

    def read(self, connection):
        with connection, connection.makefile() as lines:
            for line in lines:
                with self.lock:
                    self.seen[line.strip()] += 1


def turns(kind, label, results):
    """What each thread does: turns of calls."""
    mark = lambda place: (MARK, {"text": f"{label}/{place}"})
    if kind in CHILDREN:
        count = int(label.split("-")[1])
        spawn = lambda child: (SPAWN, {"directive_name": CHILDREN[kind], "inputs": {"label": child}, "async_exec": True})
        spawned = [json.loads(text).get("thread_id") for text in results[:count]] if len(results) >= count else []
        wait = (LEAD, {"operation": "wait_threads", "thread_ids": spawned, "timeout": 3000})
        return [[spawn(f"{label}.{place}") for place in range(count)], [wait], *([[mark("end")]] if kind == "parent" else [])]
    if kind == "ask":
        return [[(APPROVAL, {"prompt": f"May {label} continue?", "reason": "a check"})], [mark(1)]]
    if kind in ("edit", "snapshot"):
        return [[(EDIT, {"text": label})], [mark("end")]]
    if kind in ("steps", "leaf"):
        return [[mark(place)] for place in range(3 if kind == "steps" else 1)]
    return []


class Model:
    """A model server that counts what it is asked, by who asks and how far they are."""

    def __init__(self):
        self.asked, self.lock, self.delay = collections.Counter(), threading.Lock(), 0.05
        # Who gets no answer for a long time; and who once so many results are there.
        self.held, self.held_at = set(), {}
        # Whether it says that it is unavailable.
        self.is_down = False
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if model.is_down:
                    self.send_error(503)
                    return
                try:
                    label, done, answer = model.answer(body)
                    is_held = label in model.held or model.held_at.get(label) == done
                    time.sleep(600 if is_held else model.delay)
                    self.send_response(200)
                    self.send_header("content-type", "text/event-stream")
                    self.send_header("content-length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    self.close_connection = True

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 512

            def handle_error(self, *_):
                pass  # A killed process does not listen.

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def total(self, label):
        """How often a thread asked."""
        with self.lock:
            return sum(count for (asker, _), count in self.asked.items() if asker == label)

    def answer(self, body):
        texts = [m["content"] if isinstance(m["content"], str) else json.dumps(m["content"]) for m in body["messages"]]
        results = [text for m, text in zip(body["messages"], texts) if m["role"] == "tool"]
        kind, label = re.search(r"I am the (\w+) ([\w./-]+)\.", " ".join(texts)).groups()
        with self.lock:
            self.asked[label, len(results)] += 1
        calls, before = [], 0
        for turn in turns(kind, label, results):
            if before == len(results):
                calls = turn
                break
            before += len(turn)
        delta = {"role": "assistant", "content": None if calls else "done"}
        if calls:
            delta["tool_calls"] = [
                {"index": place, "id": f"call_{len(results)}_{place}", "type": "function",
                 "function": {"name": name, "arguments": json.dumps(given)}} for place, (name, given) in enumerate(calls)]
        usage = {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
                  {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]},
                  {"choices": [], "usage": usage}]
        common = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        events = "".join(f"data: {json.dumps({**common, **chunk})}\n\n" for chunk in chunks)
        return label, len(results), events.encode() + b"data: [DONE]\n\n"
