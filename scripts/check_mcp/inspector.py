"""The MCP Inspector's command line: lists and calls everything, one process each, and says what it got.

  inspector.py INSPECTOR stdio|http
"""
import json
import os
import subprocess
import sys

inspector, transport = sys.argv[1:3]
expected = json.load(open(os.environ["EXPECTED"]))
if transport == "stdio":
    target = ["-e", "HOME=" + os.environ["HOME"], os.environ["RYE"], "mcp"]
else:
    target = ["--transport", "http", "--header", "Authorization: Bearer " + os.environ["RYE_TOKEN"],
              "--server-url", os.environ["RYE_URL"]]


def ask(method, *words):
    command = [inspector, "--cli", *target, "--method", method, *words]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
    try:
        return json.loads(run.stdout)
    except ValueError:
        sys.exit(f"{command}: exit {run.returncode}\n{run.stdout.decode()}\n{run.stderr.decode()}")


def pairs(flag, arguments):
    if not arguments:
        return []
    text = lambda value: value if isinstance(value, str) else json.dumps(value)
    return [flag, *(f"{name}={text(value)}" for name, value in arguments.items())]


strict = subprocess.run([inspector, "--cli", *target, "--method", "tools/list", "--strict"],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
if strict.returncode or b"Warning" in strict.stdout + strict.stderr:
    sys.exit("the inspector's strict check complains:\n" + strict.stderr.decode())
got = {"client": f"inspector, {transport}"}
got["tools"] = ask("tools/list")["tools"]
got["calls"] = [ask("tools/call", "--tool-name", call["name"], *pairs("--tool-arg", call["arguments"]))
                for call in expected["calls"]]
got["prompts"] = ask("prompts/list")["prompts"]
got["gotten"] = {name: ask("prompts/get", "--prompt-name", name, *pairs("--prompt-args", prompt["arguments"]))
                 for name, prompt in expected["prompts"].items()}
got["resources"] = ask("resources/list")["resources"]
got["templates"] = ask("resources/templates/list")["resourceTemplates"]
got["read"] = {uri: ask("resources/read", "--uri", uri) for uri in expected["resources"]}
json.dump(got, sys.stdout)
