"""A model server for agents: it speaks the protocols of their providers and follows a script of tool calls.

A script is a list of (tool, arguments); the step is the number of tool results in the conversation. After the last one the model
answers with a text. A tool is found by the end of its name, since each agent puts something in front of it.
"""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FINAL_TEXT = "All steps are done."


class Conversation:
    """What an agent's last request said, whatever its protocol."""

    def __init__(self, tools, results):
        self.tools, self.results = tools, results

    def tool_named(self, name):
        return next((known for known in self.tools if known == name or known.endswith(name)), None)


def text_of(content):
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        inner = content.get("text", content.get("content", content.get("output")))
        return text_of(inner) if inner is not None else json.dumps(content)
    return "" if content is None else str(content)


def read_anthropic(body):
    blocks = [block for message in body["messages"] if isinstance(message["content"], list) for block in message["content"]]
    results = [text_of(block.get("content")) for block in blocks if block["type"] == "tool_result"]
    return Conversation([tool["name"] for tool in body.get("tools", [])], results)


def read_responses(body):
    """Tools may stand in namespaces, one for each server: those are called by namespace and name."""
    tools = []
    for tool in body.get("tools", []):
        if tool.get("type") == "namespace":
            tools += [f"{tool['name']}\0{inner['name']}" for inner in tool["tools"]]
        elif tool.get("name"):
            tools.append(tool["name"])
    items = body["input"] if isinstance(body["input"], list) else []
    results = [text_of(item.get("output")) for item in items if item.get("type") == "function_call_output"]
    return Conversation(tools, results)


def read_chat(body):
    results = [text_of(message.get("content")) for message in body["messages"] if message["role"] == "tool"]
    return Conversation([tool["function"]["name"] for tool in body.get("tools") or []], results)


def read_gemini(body):
    declarations = [one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])]
    parts = [part for content in body["contents"] for part in content.get("parts", [])]
    results = [json.dumps(part["functionResponse"].get("response")) for part in parts if "functionResponse" in part]
    return Conversation([one["name"] for one in declarations], results)


def write_anthropic(call, number):
    start = {"type": "message_start", "message": {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "fake", "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1}}}
    if call:
        name, arguments = call
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": FINAL_TEXT}
    events = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events]


def write_responses(call, number):
    if call:
        name, arguments = call
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name, "arguments": json.dumps(arguments), "status": "completed"}
        if "\0" in name:
            item["namespace"], item["name"] = name.split("\0", 1)
    else:
        item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": FINAL_TEXT, "annotations": []}]}
    usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 10, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 20}
    response = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": "fake", "output": [item], "usage": usage}
    events = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    return [(event["type"], event) for event in events]


def write_chat(call, number):
    if call:
        name, arguments = call
        delta = {"role": "assistant", "tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]}
    else:
        delta = {"role": "assistant", "content": FINAL_TEXT}
    base = {"id": f"chat_{number}", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    return [
        (None, {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        (None, {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}]}),
        (None, {**base, "choices": [], "usage": usage}),
        (None, "[DONE]"),
    ]


def write_gemini(call, number):
    part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": FINAL_TEXT}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
    return [(None, {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "fake", "responseId": str(number)})]


class FakeModels:
    """The server, with the script it follows and what it was told."""

    def __init__(self, script):
        self.script, self.results, self.tools, self.requests = script, [], [], 0
        self.problems = []
        models = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                self.answer({"data": [{"id": "fake", "object": "model"}], "models": [], "object": "list"})

            def do_HEAD(self):
                self.answer({})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                try:
                    models.serve(self, self.path.split("?")[0], body)
                except (KeyError, TypeError, ValueError) as error:
                    models.problems.append(f"{self.path}: {error!r}")
                    self.answer({"error": {"message": repr(error)}}, 400)

            def answer(self, value, status=200):
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self, events):
                data = b""
                for name, event in events:
                    line = event if isinstance(event, str) else json.dumps(event)
                    data += (f"event: {name}\n" if name else "").encode() + f"data: {line}\n\n".encode()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def next_call(self, conversation):
        """The call that comes next, or None for the final text. A request that offers none of our tools is not the agent's loop."""
        self.requests += 1
        if not any("rye_" in tool for tool in conversation.tools):
            return None
        self.tools = conversation.tools
        if len(conversation.results) > len(self.results):
            self.results = conversation.results
        if len(conversation.results) >= len(self.script):
            return None
        name, arguments = self.script[len(conversation.results)]
        tool = conversation.tool_named(name)
        if tool is None:
            self.problems.append(f"{name} is not among the tools: {', '.join(conversation.tools)}")
            return None
        return tool, arguments

    def serve(self, handler, path, body):
        if path.endswith("/count_tokens") or path.endswith(":countTokens"):
            return handler.answer({"input_tokens": 10, "totalTokens": 10})
        for ending, read, write in (
            ("/messages", read_anthropic, write_anthropic),
            ("/responses", read_responses, write_responses),
            ("/chat/completions", read_chat, write_chat),
            (":streamGenerateContent", read_gemini, write_gemini),
            (":generateContent", read_gemini, write_gemini),
        ):
            if path.endswith(ending):
                events = write(self.next_call(read(body)), self.requests)
                if ending == ":generateContent":
                    return handler.answer(events[0][1])
                if body.get("stream") is False or (ending in ("/messages", "/chat/completions") and not body.get("stream")):
                    return handler.answer(whole(ending, events))
                return handler.stream(events)
        return handler.answer({})


def whole(ending, events):
    """The answer to a request that does not want a stream: always the final text."""
    if ending == "/messages":
        return {"id": "msg", "type": "message", "role": "assistant", "model": "fake", "content": [{"type": "text", "text": FINAL_TEXT}], "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 10}}
    if ending == "/responses":
        return events[-1][1]["response"]
    message = {"role": "assistant", "content": FINAL_TEXT}
    delta = events[0][1]["choices"][0]["delta"]
    if delta.get("tool_calls"):
        message = {"role": "assistant", "content": None, "tool_calls": [{key: value for key, value in call.items() if key != "index"} for call in delta["tool_calls"]]}
    return {"id": "chat", "object": "chat.completion", "created": 0, "model": "fake", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if delta.get("tool_calls") else "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}}
