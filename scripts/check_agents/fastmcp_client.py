"""The smallest agent on fastmcp's client: asks the model at argv[1], calls the tools it names, until it answers with a text."""
import asyncio
import json
import sys
import urllib.request

from fastmcp import Client
from fastmcp.client.transports import StdioTransport


def ask(base, messages, tools):
    body = json.dumps({"model": "fake", "messages": messages, "tools": tools}).encode()
    request = urllib.request.Request(f"{base}/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


async def main(base):
    async with Client(StdioTransport("rye", ["mcp"])) as client:
        tools = [
            {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.inputSchema}}
            for tool in await client.list_tools()
        ]
        messages = [{"role": "user", "content": "Follow the steps."}]
        while calls := (message := ask(base, messages, tools)).get("tool_calls"):
            messages.append(message)
            for call in calls:
                function = call["function"]
                result = await client.call_tool(function["name"], json.loads(function["arguments"]), raise_on_error=False)
                text = "\n".join(getattr(part, "text", "") for part in result.content)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        print(message["content"])


asyncio.run(main(sys.argv[1]))
