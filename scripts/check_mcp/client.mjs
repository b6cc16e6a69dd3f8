// The official TypeScript SDK: lists and calls everything, and says what it got.
//
//   client.mjs stdio|http
import { readFileSync } from "node:fs";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const transport = process.argv[2];
const expected = JSON.parse(readFileSync(process.env.EXPECTED, "utf8"));
const where =
  transport === "stdio"
    ? new StdioClientTransport({ command: process.env.RYE, args: ["mcp"], env: process.env })
    : new StreamableHTTPClientTransport(new URL(process.env.RYE_URL), {
        requestInit: { headers: { Authorization: `Bearer ${process.env.RYE_TOKEN}` } },
      });
const client = new Client({ name: "check", version: "1" });
await client.connect(where);

async function pages(list, key) {
  const found = [];
  let cursor;
  do {
    const page = await list.call(client, cursor ? { cursor } : {});
    found.push(...page[key]);
    cursor = page.nextCursor;
  } while (cursor);
  return found;
}

const got = { client: `typescript sdk, ${transport}` };
got.tools = await pages(client.listTools, "tools");
got.calls = [];
for (const call of expected.calls) {
  got.calls.push(await client.callTool({ name: call.name, arguments: call.arguments }));
}
got.prompts = await pages(client.listPrompts, "prompts");
got.gotten = {};
for (const [name, prompt] of Object.entries(expected.prompts)) {
  got.gotten[name] = await client.getPrompt({ name, arguments: prompt.arguments });
}
got.resources = await pages(client.listResources, "resources");
got.templates = await pages(client.listResourceTemplates, "resourceTemplates");
got.read = {};
for (const uri of Object.keys(expected.resources)) {
  got.read[uri] = await client.readResource({ uri });
}
await client.close();
process.stdout.write(JSON.stringify(got));
