"""A model server on 127.0.0.1 that gives the replies of a list: OpenAI chat completions and Anthropic messages, streamed
or whole.

A prompt says `Task NAME.`; the replies of each name are given in their order. Who summarises a conversation gets those of
`compaction`. A reply is a dictionary made by `say`, `call`, `fail` or `hang`, or a function that gets the request's body as
text and returns one.
"""
import http.server
import json
import re
import select
import threading
import time

USAGE = (100, 10)
STOP_WORDS = {
    "openai": {"stop": "stop", "calls": "tool_calls", "length": "length", "refusal": "content_filter", "pause": "stop"},
    "anthropic": {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "refusal": "refusal",
                  "pause": "pause_turn"},
}


def say(text, end="stop", thinking=None, usage=USAGE, break_after=None):
    """Words. `break_after`: the stream breaks off after so many pieces."""
    return {"text": text, "calls": [], "end": end, "thinking": thinking, "usage": usage, "break_after": break_after}


def call(*calls, text="", end="calls", thinking=None, usage=USAGE, break_after=None):
    """Tool calls: pairs of a name and its arguments, an object or a raw text."""
    calls = [(name, given if isinstance(given, str) else json.dumps(given)) for name, given in calls]
    return {"text": text, "calls": calls, "end": end, "thinking": thinking, "usage": usage, "break_after": break_after}


def fail(status, error_type="error", message="it failed", **headers):
    """An HTTP error; `retry_after="1"` is the header `retry-after`."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"status": status, "error": {"type": error_type, "message": message}, "headers": headers}


def hang():
    """No answer, until the client is gone."""
    return {"hang": True}


class ModelServer:
    """The server, and what it was asked."""

    def __init__(self):
        self.lock = threading.Condition()
        self.replies, self.requests = {}, []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                server.answer(self)

            def log_message(self, *words):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def script(self, **replies):
        """What is replied from now on, by the task's name; forgets what was asked before."""
        with self.lock:
            self.replies = {name: list(given) for name, given in replies.items()}
            self.requests = []

    def count(self, task=None):
        """How often the model was asked."""
        with self.lock:
            return sum(1 for name, _ in self.requests if task in (None, name))

    def left(self):
        """Replies that were not asked for."""
        with self.lock:
            return {name: len(given) for name, given in self.replies.items() if given}

    def wait_for(self, count, task=None, seconds=30):
        deadline = time.monotonic() + seconds
        while self.count(task) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the model was asked {self.count(task)} times, not {count}")
            time.sleep(0.01)

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def answer(self, handler):
        text = handler.rfile.read(int(handler.headers.get("content-length") or 0)).decode()
        found = re.search(r"Task ([a-z_]+)\.", text)
        task = found.group(1) if found else "other"
        if "The conversation below has grown" in text:
            task = "compaction"
        with self.lock:
            self.requests.append((task, text))
            number = len(self.requests)
            given = self.replies.get(task) or []
            reply = given.pop(0) if given else fail(400, "invalid_request_error", f"no reply is left for {task}")
        if callable(reply):
            reply = reply(text)
        protocol = "anthropic" if handler.path.endswith("/messages") else "openai"
        handler.close_connection = True
        try:
            self.send(handler, protocol, reply, json.loads(text), number)
        except OSError:
            pass  # the client is gone

    def send(self, handler, protocol, reply, request, number):
        if reply.get("hang"):
            while not select.select([handler.connection], [], [], 0.1)[0]:
                pass
            return
        if "status" in reply:
            error = {"error": reply["error"]}
            if protocol == "anthropic":
                error["type"] = "error"
            body = json.dumps(error).encode()
            handler.send_response(reply["status"])
            for name, value in reply["headers"].items():
                handler.send_header(name, value)
        elif request.get("stream"):
            self.stream(handler, PIECES[protocol](reply, request, number), reply["break_after"])
            return
        else:
            body = json.dumps(WHOLE[protocol](reply, request, number)).encode()
            handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(body)))
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.wfile.write(body)

    @staticmethod
    def stream(handler, pieces, break_after):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.send_header("connection", "close")
        handler.end_headers()
        for piece in pieces[:break_after]:
            data = piece.encode()
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            handler.wfile.flush()
        if break_after is None:
            handler.wfile.write(b"0\r\n\r\n")


def words(text):
    return re.findall(r"\S+\s*", text)


def openai_usage(reply):
    given, made = reply["usage"]
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def openai_calls(reply, number):
    return [{"id": f"call_{number}_{place}", "type": "function", "function": {"name": name, "arguments": given}}
            for place, (name, given) in enumerate(reply["calls"])]


def openai_whole(reply, request, number):
    message = {"role": "assistant", "content": reply["text"] or None}
    if reply["thinking"]:
        message["reasoning_content"] = reply["thinking"]
    if reply["calls"]:
        message["tool_calls"] = openai_calls(reply, number)
    finish = STOP_WORDS["openai"][reply["end"]]
    return {"id": f"c{number}", "object": "chat.completion", "created": 0, "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": openai_usage(reply)}


def openai_pieces(reply, request, number):
    def piece(choices, usage=None):
        return "data: " + json.dumps({"id": f"c{number}", "object": "chat.completion.chunk", "created": 0,
                                      "model": request["model"], "choices": choices, "usage": usage}) + "\n\n"

    def delta(given, finish=None):
        return piece([{"index": 0, "delta": given, "finish_reason": finish}])

    pieces = [delta({"role": "assistant", "content": None})]
    pieces += [delta({"reasoning_content": word}) for word in words(reply["thinking"] or "")]
    pieces += [delta({"content": word}) for word in words(reply["text"])]
    for place, made in enumerate(openai_calls(reply, number)):
        function = made["function"]
        pieces.append(delta({"tool_calls": [{**made, "index": place, "function": {**function, "arguments": ""}}]}))
        pieces.append(delta({"tool_calls": [{"index": place, "function": {"arguments": function["arguments"]}}]}))
    pieces.append(delta({}, STOP_WORDS["openai"][reply["end"]]))
    pieces.append(piece([], openai_usage(reply)))
    return pieces + ["data: [DONE]\n\n"]


def anthropic_input(given):
    try:
        return json.loads(given)
    except ValueError:
        return {}


def anthropic_whole(reply, request, number):
    blocks = []
    if reply["thinking"]:
        blocks.append({"type": "thinking", "thinking": reply["thinking"], "signature": "signed"})
    if reply["text"]:
        blocks.append({"type": "text", "text": reply["text"]})
    blocks += [{"type": "tool_use", "id": f"toolu_{number}_{place}", "name": name, "input": anthropic_input(given)}
               for place, (name, given) in enumerate(reply["calls"])]
    given, made = reply["usage"]
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": request["model"], "content": blocks,
            "stop_reason": STOP_WORDS["anthropic"][reply["end"]], "stop_sequence": None,
            "usage": {"input_tokens": given, "cache_read_input_tokens": 0, "output_tokens": made}}


def anthropic_pieces(reply, request, number):
    pieces = []

    def event(kind, **fields):
        pieces.append(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n")

    def block(index, begin, deltas):
        event("content_block_start", index=index, content_block=begin)
        for delta in deltas:
            event("content_block_delta", index=index, delta=delta)
        event("content_block_stop", index=index)

    given, made = reply["usage"]
    event("message_start", message={"id": f"msg_{number}", "type": "message", "role": "assistant",
                                    "model": request["model"], "content": [],
                                    "usage": {"input_tokens": given, "output_tokens": 1}})
    index = 0
    if reply["thinking"]:
        deltas = [{"type": "thinking_delta", "thinking": word} for word in words(reply["thinking"])]
        deltas.append({"type": "signature_delta", "signature": "signed"})
        block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if reply["text"]:
        deltas = [{"type": "text_delta", "text": word} for word in words(reply["text"])]
        block(index, {"type": "text", "text": ""}, deltas)
        index += 1
    for place, (name, arguments) in enumerate(reply["calls"]):
        begin = {"type": "tool_use", "id": f"toolu_{number}_{place}", "name": name, "input": {}}
        block(index, begin, [{"type": "input_json_delta", "partial_json": arguments}])
        index += 1
    event("message_delta", delta={"stop_reason": STOP_WORDS["anthropic"][reply["end"]], "stop_sequence": None},
          usage={"output_tokens": made})
    event("message_stop")
    return pieces


PIECES = {"openai": openai_pieces, "anthropic": anthropic_pieces}
WHOLE = {"openai": openai_whole, "anthropic": anthropic_whole}
