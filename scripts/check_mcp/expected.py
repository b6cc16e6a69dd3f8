"""What every client must get, from the command line: one answer per call, the prompts, the resources.

  expected.py RYE > expected.json
"""
import json
import subprocess
import sys

rye = sys.argv[1]


def cli(*words):
    run = subprocess.run([rye, "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return json.loads(run.stdout)


CALLS = [
    ("rye_search", {"query": "hello"}, ["search", "hello"]),
    ("rye_search", {"query": "*", "item_type": "knowledge", "source": "system", "limit": 3},
     ["search", "*", "--type", "knowledge", "--space", "system", "--limit", "3"]),
    ("rye_load", {"item_type": "knowledge", "item_id": "examples/style"}, ["load", "knowledge", "examples/style"]),
    ("rye_load", {"item_id": "tool:team/unsigned"}, ["load", "tool:team/unsigned"]),
    ("rye_fetch", {"item_id": "examples/greet"}, ["fetch", "examples/greet"]),
    ("rye_fetch", {"query": "greet", "scope": "directive"}, ["fetch", "--query", "greet", "--scope", "directive"]),
    ("rye_execute", {"item_type": "tool", "item_id": "examples/hello", "parameters": {"name": "Ada"}},
     ["execute", "tool", "examples/hello", "name=Ada"]),
    ("rye_execute", {"item_id": "directive:examples/greet", "parameters": {"name": "Ada"}},
     ["execute", "directive", "examples/greet", "name=Ada"]),
    ("rye_execute", {"item_id": "tool:examples/hello", "parameters": {"nmae": "Ada"}, "dry_run": True},
     ["execute", "tool", "examples/hello", "nmae=Ada", "--dry-run"]),
    ("rye_sign", {"item_type": "tool", "item_id": "examples/hello"}, ["sign", "tool", "examples/hello"]),
    ("rye_sign", {"item_type": "tool", "item_id": "team/unsigned"}, ["sign", "tool", "team/unsigned"]),
]


def items(item_type, spaces=("project", "user", "system")):
    found = cli("search", "*", "--type", item_type, "--limit", "1000")["data"]["results"]
    return sorted(row["item_id"] for row in found if row["coverage"] == "full" and row["space"].split(":")[0] in spaces)


calls = [{"name": name, "arguments": {**arguments, "detail": "full"}, "answer": cli(*words)} for name, arguments, words in CALLS]
prompts = {}
# Rye's own directives are not offered as prompts.
for item in items("directive", ("project", "user")):
    declared = cli("load", "directive", item)["data"]["metadata"]["inputs"] or []
    arguments = {given["name"]: "some" for given in declared if given["required"]}
    words = [f"{name}={value}" for name, value in arguments.items()]
    prompts[item] = {"arguments": arguments, "text": cli("execute", "directive", item, *words)["your_directions"]}
resources = {f"rye://knowledge/{item}": cli("load", "knowledge", item)["data"]["content"] for item in items("knowledge")}
assert prompts and len(resources) >= 4
json.dump({"calls": calls, "prompts": prompts, "resources": resources}, sys.stdout)
