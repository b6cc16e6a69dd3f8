"""A small MCP server over stdio, for the page about foreign servers: three tools, no dependencies."""
import json
import math
import sys

POINT = {"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "number"}, "y": {"type": "number"}}}
TOOLS = [
    {"name": "fail", "description": "Fails.", "inputSchema": {"type": "object"}},
    {"name": "greet", "description": "Greets.", "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
    {"name": "length", "description": "The length of a vector.", "inputSchema": {
        "type": "object", "required": ["point"], "properties": {"point": POINT, "unit": {"type": "string", "enum": ["m", "km"]}}}},
]


def call(name, arguments):
    if name == "fail":
        return {"content": [{"type": "text", "text": "it failed"}], "isError": True}
    if name == "greet":
        return {"content": [{"type": "text", "text": f"Hello, {arguments.get('name', 'world')}!"}]}
    point = arguments["point"]
    result = {"length": math.hypot(point["x"], point["y"]), "unit": arguments.get("unit", "m")}
    return {"content": [{"type": "text", "text": json.dumps(result)}], "structuredContent": result}


def answer(request):
    method, parameters = request["method"], request.get("params") or {}
    if method == "initialize":
        return {"protocolVersion": parameters["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "geometry", "version": "1.0.0"}}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return call(parameters["name"], parameters.get("arguments") or {})
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}), flush=True)
