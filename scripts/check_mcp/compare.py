"""Compares what the clients got with what the command line gives, and with each other.

  compare.py expected.json GOT...
"""
import json
import re
import sys

# What differs from run to run.
FLEETING = {"duration_ms", "took_ms", "sandbox", "first_use", "lock", "notes"}


def steady(value):
    if isinstance(value, dict):
        return {key: steady(inner) for key, inner in value.items() if key not in FLEETING}
    if isinstance(value, list):
        return [steady(inner) for inner in value]
    return value


# Refusals that are for the user to decide about: an agent is told to tell them, whatever the command line hints at.
FOR_THE_USER = {"RYE0401", "RYE0402", "RYE0403", "RYE0404", "RYE0405", "RYE0406"}


def without_hints(answer):
    return {key: value for key, value in answer.items() if key != "hints"}


def check(what, wanted, found):
    if wanted != found:
        sys.exit(f"{what}\n  wanted {json.dumps(wanted)[:2000]}\n  found  {json.dumps(found)[:2000]}")


def named(rows, *keys):
    return {row[keys[0]]: {key: row.get(key) for key in keys} for row in rows}


expected = json.load(open(sys.argv[1]))
first = None
for path in sys.argv[2:]:
    got = json.load(open(path))
    client = got["client"]
    for call, answer in zip(expected["calls"], got["calls"], strict=True):
        what = f"{client}: {call['name']} {call['arguments']}"
        wanted = steady(call["answer"])
        # A long answer is text alone.
        text = json.loads(answer["content"][0]["text"])
        for found in (answer.get("structuredContent") or text, text):
            found = steady(found)
            if wanted.get("code") in FOR_THE_USER:
                check(what, True, found["hints"][0].startswith(("tell the user", "if you wrote it just now")))
            # Hints name calls to an agent, and commands only where it is to tell the user.
            commands = [hint for hint in found.get("hints", []) if re.search(r"\brye [a-z]", hint) and "user" not in hint]
            check(f"{what}: hints with commands", [], commands)
            check(what, without_hints(wanted), without_hints(found))
        check(what, wanted["status"] == "error", answer["isError"])
    for name, prompt in expected["prompts"].items():
        messages = got["gotten"][name]["messages"]
        check(f"{client}: prompt {name}", [("user", prompt["text"])],
              [(message["role"], message["content"]["text"]) for message in messages])
    for uri, text in expected["resources"].items():
        contents = got["read"][uri]["contents"]
        check(f"{client}: {uri}", [(uri, "text/markdown", text)],
              [(content["uri"], content["mimeType"], content["text"]) for content in contents])
    check(f"{client}: prompts", sorted(expected["prompts"]), sorted(row["name"] for row in got["prompts"]))
    check(f"{client}: resources", sorted(expected["resources"]), sorted(row["uri"] for row in got["resources"]))
    lists = {
        "tools": named(got["tools"], "name", "title", "description", "inputSchema", "outputSchema", "annotations"),
        "prompts": named(got["prompts"], "name", "title", "description", "arguments"),
        "resources": named(got["resources"], "uri", "name", "title", "mimeType", "size"),
        "templates": named(got["templates"], "uriTemplate", "name", "title", "description", "mimeType"),
    }
    check(f"{client}: five tools", 5, len(lists["tools"]))
    if first is None:
        first = (client, lists)
    check(f"{client} lists other things than {first[0]}", first[1], lists)
    print(f"same: {client} ({len(got['calls'])} calls, {len(got['gotten'])} prompts, {len(got['read'])} resources)")
