"""The official Python SDK: lists and calls everything, and says what it got.

  client.py stdio|http newest|oldest
"""
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

transport, mode = sys.argv[1:3]
expected = json.load(open(os.environ["EXPECTED"]))


def plain(model):
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))


async def pages(listing, key):
    found, cursor = [], None
    while True:
        page = await (listing(cursor=cursor) if cursor else listing())
        found += plain(page)[key]
        cursor = page.next_cursor
        if not cursor:
            return found


async def main():
    async with AsyncExitStack() as stack:
        if transport == "stdio":
            where = stdio_client(StdioServerParameters(command=os.environ["RYE"], args=["mcp"], env=dict(os.environ)))
        else:
            http = create_mcp_http_client(headers={"Authorization": "Bearer " + os.environ["RYE_TOKEN"]})
            await stack.enter_async_context(http)
            where = streamable_http_client(os.environ["RYE_URL"], http_client=http)
        client = await stack.enter_async_context(Client(where, mode="auto" if mode == "newest" else "legacy"))
        got = {"client": f"python sdk, {transport}, {client.protocol_version}"}
        got["tools"] = await pages(client.list_tools, "tools")
        got["calls"] = [plain(await client.call_tool(call["name"], call["arguments"])) for call in expected["calls"]]
        got["prompts"] = await pages(client.list_prompts, "prompts")
        got["gotten"] = {name: plain(await client.get_prompt(name, prompt["arguments"]))
                         for name, prompt in expected["prompts"].items()}
        got["resources"] = await pages(client.list_resources, "resources")
        got["templates"] = await pages(client.list_resource_templates, "resourceTemplates")
        got["read"] = {uri: plain(await client.read_resource(uri)) for uri in expected["resources"]}
        json.dump(got, sys.stdout)


asyncio.run(main())
