"""What must keep working under the rules: git, Python's processes, pseudo-terminals, installers, foreign servers, other owners."""
import json
import os
import shutil
import subprocess

from harness import Escaped, PATH, Skipped, need, token, works
from mcp import Client
from repository import IDENTITY, git, repository


def succeeds(world, command, expected="", **more):
    """The command works through the tool, and prints what is expected."""
    answer = world.bash(command, **more)
    data = answer.get("data") or {}
    if data.get("exit_code") != 0 or expected not in answer["text"]:
        raise Escaped(f"`{command[:60]}`: {(answer['text'] or answer.get('error') or str(answer))[-400:]}")
    return answer["text"]


@works("the example and the tour's first steps run")
def examples(world):
    for words in (["execute", "examples/hello", "name=Ada"], ["run", "examples/greet", "name=Ada"], ["search", "hello"]):
        done = world.rye(*words)
        if done.exit != 0:
            raise Escaped(f"rye {' '.join(words)}: {done.text[-300:]}")


@works("git commit, branch, checkout, stash and rebase through rye/bash")
def commits(world):
    need("git")
    repository(world, world.project)
    world.write(f"{world.home}/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n")
    steps = ["echo b >> a.txt && git add a.txt && git commit -q -m second", "git checkout -q -b side && echo c > c.txt && git add c.txt && git commit -q -m third",
             "git checkout -q main && echo d >> a.txt && git stash -q && git stash pop -q && git commit -q -am fourth",
             "git rebase -q main side && git log --oneline | wc -l", "git status --short && git diff --stat && git tag v1 && git branch other && git reset -q --hard"]
    for step in steps:
        succeeds(world, step)
    if "third" not in git(world, "log --oneline", world.project).out:
        raise Escaped("the commit is missing")
    left = [name for name in (".mcp.json", ".envrc", ".claude", ".vscode", ".git/commondir") if os.path.lexists(f"{world.project}/{name}")]
    if left:
        raise Escaped(f"placeholders are left behind: {left}")


@works("git commit in a linked worktree through rye/bash")
def worktree_commit(world):
    need("git")
    main = f"{world.root}/main"
    repository(world, main)
    shutil.move(f"{world.project}/.ai", f"{world.root}/ai")
    os.rmdir(world.project)
    git(world, f"worktree add -q -b side {world.project}", main)
    shutil.move(f"{world.root}/ai", f"{world.project}/.ai")
    world.write(f"{world.home}/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n")
    succeeds(world, "echo b >> a.txt && git add a.txt && git commit -q -m second && git status --short")
    if "second" not in git(world, "log --oneline side", main).out:
        raise Escaped("the commit is missing")


@works("the git tool commits")
def git_tool(world):
    need("git")
    repository(world, world.project)
    world.write(f"{world.home}/.gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n")
    world.write(f"{world.project}/b.txt", "b\n")
    if world.rye("bundle", "enable", "ryeos-code").exit != 0:
        raise Skipped("the bundle with the git tool cannot be enabled")
    for params in ({"action": "add", "paths": ["b.txt"]}, {"action": "commit", "message": "second"}, {"action": "status"}):
        answer = world.answer("execute", "rye/code/git/git", "--params", json.dumps(params))
        if answer.get("exit") != 0:
            raise Escaped(f"{params}: {str(answer.get('error') or answer)[-300:]}")
    if "second" not in git(world, "log --oneline", world.project).out:
        raise Escaped("the commit is missing")


PROCESSES = {
    "Pool": "import multiprocessing as m\nwith m.Pool(2) as p: print(sum(p.map(abs, range(-9, 0))))",
    "forkserver": "import multiprocessing as m\nif __name__ == '__main__':\n    c = m.get_context('forkserver')\n    with c.Pool(2) as p: print(sum(p.map(abs, range(-9, 0))))",
    "spawn": "import multiprocessing as m\nif __name__ == '__main__':\n    c = m.get_context('spawn')\n    with c.Pool(2) as p: print(sum(p.map(abs, range(-9, 0))))",
    "Manager": "import multiprocessing as m\nif __name__ == '__main__':\n    with m.Manager() as g:\n        d = g.dict(); d['a'] = 45; print(d['a'])",
    "Queue": "import multiprocessing as m\nq = m.Queue()\np = m.Process(target=q.put, args=(45,)); p.start(); print(q.get()); p.join()",
    "shared memory": "from multiprocessing import shared_memory as s\nb = s.SharedMemory(create=True, size=64); b.buf[0] = 45; print(b.buf[0]); b.close(); b.unlink()",
    "Listener": "from multiprocessing.connection import Listener, Client\nimport threading\nl = Listener(family='AF_UNIX')\nt = threading.Thread(target=lambda: l.accept().send(45)); t.start()\nprint(Client(l.address).recv()); t.join()",
    "concurrent": "from concurrent.futures import ProcessPoolExecutor as P\nif __name__ == '__main__':\n    with P(2) as p: print(sum(p.map(abs, range(-9, 0))))",
    "asyncio": "import asyncio\nasync def m():\n    p = await asyncio.create_subprocess_exec('echo', '45', stdout=-1)\n    print((await p.communicate())[0].decode().strip())\nasyncio.run(m())",
    "asyncio shell": "import asyncio\nasync def m():\n    p = await asyncio.create_subprocess_shell('echo 45; exit 0', stdout=-1)\n    print((await p.communicate())[0].decode().strip())\nasyncio.run(m())",
    "asyncio server": "import asyncio, os, tempfile\nasync def m():\n    path = os.path.join(tempfile.mkdtemp(), 's')\n    async def on(r, w): w.write(b'45'); await w.drain(); w.close()\n    s = await asyncio.start_unix_server(on, path)\n    r, w = await asyncio.open_unix_connection(path)\n    print((await r.read()).decode()); s.close()\nasyncio.run(m())",
    "socketpair": "import socket\na, b = socket.socketpair(); a.sendall(b'45'); print(b.recv(9).decode())",
}


@works("Python multiprocessing (Pool, Manager, forkserver), asyncio and sockets of the run itself")
def processes(world):
    wrong = []
    for name, text in PROCESSES.items():
        world.write(f"{world.project}/run.py", text + "\n")
        answer = world.bash("/usr/bin/python3 run.py")
        if "45" not in (answer.get("data") or {}).get("stdout", ""):
            wrong.append(f"{name}: {answer['text'].strip()[-160:]}")
    if wrong:
        raise Escaped("; ".join(wrong))


@works("tools that open a pseudo-terminal")
def terminals(world):
    world.write(f"{world.project}/t.py", "import os, pty\nm, s = pty.openpty(); os.write(s, b'45'); print(os.read(m, 9).decode(), os.ttyname(s)[:8])\n")
    succeeds(world, "/usr/bin/python3 t.py", "45")
    world.write(f"{world.project}/s.py", "import pty, sys\nsys.exit(pty.spawn(['sh', '-c', 'tty; test -t 1 && echo is-terminal']) >> 8)\n")
    succeeds(world, "/usr/bin/python3 s.py", "is-terminal")
    if shutil.which("script", path=PATH):
        succeeds(world, "script -qec 'test -t 1 && echo is-terminal' /dev/null", "is-terminal")


@works("/dev/null, /dev/shm, /proc/self and the temporary folder are usable")
def devices(world):
    succeeds(world, "echo x > /dev/null && head -c 4 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c && echo x > /dev/shm/own && "
                    "cat /dev/shm/own && test -r /proc/self/status && f=$(mktemp) && echo y > $f && cat $f && echo a | cat <(echo b)", "y")


@works("chmod, utimes and links inside the project")
def inside(world):
    succeeds(world, "touch a && chmod 755 a && touch -d 2020-01-01 a && ln -s a b && ln a c && mkdir -p d/e && mv a d/ && rm -r d && stat -c %a c", "755")


def install(world, command, settings):
    for path, text in settings.items():
        world.write(f"{world.home}/{path}", text)
    return world.bash(command)


@works("pip installs into a virtual environment, with the user's settings and cache", short=False)
def pip(world):
    wheel = f"{world.root}/wheels"
    world.folder(wheel)
    script = ("import zipfile\nz = zipfile.ZipFile('own-1.0-py3-none-any.whl', 'w')\nz.writestr('own.py', 'value = 45\\n')\n"
              "z.writestr('own-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: own\\nVersion: 1.0\\n')\n"
              "z.writestr('own-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
              "z.writestr('own-1.0.dist-info/RECORD', 'own.py,,\\nown-1.0.dist-info/METADATA,,\\nown-1.0.dist-info/WHEEL,,\\nown-1.0.dist-info/RECORD,,\\n')\nz.close()\n")
    made = world.plain(f"cd {wheel} && /usr/bin/python3 - <<'X'\n{script}\nX\n")
    if made.exit != 0:
        raise Skipped(made.text[-200:])
    if world.plain("/usr/bin/python3 -m venv --help").exit != 0:
        raise Skipped("python3 -m venv is not installed")
    succeeds(world, f"/usr/bin/python3 -m venv .venv && .venv/bin/pip install -q --no-index --find-links {wheel} own && "
                    ".venv/bin/python -c 'import own; print(own.value)'", "45")


@works("npm installs into the project, with the user's settings and cache", short=False)
def npm(world):
    need("npm")
    package = world.folder(f"{world.project}/own")
    world.write(f"{package}/package.json", '{"name": "own", "version": "1.0.0", "bin": {"own": "index.js"}}')
    world.write(f"{package}/index.js", "#!/usr/bin/env node\nconsole.log(45)\n", 0o755)
    world.write(f"{world.project}/package.json", '{"name": "project", "version": "1.0.0"}')
    succeeds(world, "npm install --silent --no-audit --no-fund ./own && npx --no-install own", "45")


SERVER = '''import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, result = message["method"], {}
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "own", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "add", "description": "adds", "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": str(message["params"]["arguments"]["a"] + 1)}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
'''


@works("one server serves several approved projects")
def several_projects(world):
    other = world.folder(f"{world.root}/second")
    if world.rye("init", cwd=other).exit != 0:
        raise Escaped("the second project cannot be approved")
    client = Client(world)
    for project in (world.project, other):
        _, text = client.call("rye_execute", item_type="tool", item_id="rye/bash", project_path=project, parameters={"command": "touch made; pwd"})
        if not os.path.exists(f"{project}/made"):
            raise Escaped(f"{project}: {text[-300:]}")
    client.close()


@works("a project that another uid owns, as root", users=("root",))
def other_owner(world):
    if os.geteuid() != 0:
        raise Skipped("needs root")
    subprocess.run(["chown", "-R", "12345:12345", world.project], check=True)
    world.rye("trust", world.project)
    succeeds(world, "echo x > made && cat made", "x")
    succeeds(world, "ls -la .ai/tools/examples && cat .ai/tools/examples/hello.py", "execute")


@works("a signed tool that declares a path of home reads and writes it")
def declared(world):
    world.write(f"{world.home}/.config/own/data", "45")
    world.function("own", "import os\nbase = os.path.expanduser('~/.config/own')\nopen(base + '/new', 'w').write('x')\nreturn open(base + '/data').read()",
                   head='SANDBOX = {"read": ["~/.config/own"], "write": ["~/.config/own"]}')
    answer = world.answer("execute", "team/own")
    if answer.get("data") != "45" or not os.path.exists(f"{world.home}/.config/own/new"):
        raise Escaped(str(answer.get("error") or answer)[-300:])


@works("both names of the Python runtime run a tool that defines execute", sandbox=False)
def runtime_names(world):
    for number, name in enumerate(("python_runtime", "rye/core/runtimes/python_runtime", "rye/core/runtimes/python/function")):
        text = (f'__version__ = "1.0.0"\n__tool_type__ = "python"\n__executor_id__ = "{name}"\n__category__ = "team"\n'
                '__tool_description__ = "x"\n\ndef execute(params, project_path):\n    return 45\n')
        world.write(f"{world.project}/.ai/tools/team/r{number}.py", text)
        world.sign("tool", f"team/r{number}")
        answer = world.answer("execute", f"team/r{number}")
        if answer.get("data") != 45:
            raise Escaped(f"{name}: {str(answer.get('error') or answer.get('data'))[-200:]}")


@works("unshadowing: accept the project's tool, remove it, accept the user's again", sandbox=False)
def unshadow(world):
    world.function("same", "return 'user'", space=f"{world.home}/.ai")
    if world.answer("execute", "team/same").get("data") != "user":
        raise Escaped("the user's tool does not run")
    path = world.function("same", "return 'project'")
    world.rye("lock", "update", "team/same")
    if world.answer("execute", "team/same").get("data") != "project":
        raise Escaped("the project's tool does not run after lock update")
    os.unlink(path)
    world.rye("lock", "update", "team/same")
    answer = world.answer("execute", "team/same")
    if answer.get("data") != "user":
        raise Escaped(f"after it is removed: {answer.get('error')}")


def serve(world, name, command, words):
    item = ('version: "1.0.0"\ntool_type: mcp-server\nexecutor_id: null\ncategory: mcp/servers\n'
            f'name: {name}\ndescription: x\nconfig:\n  transport: stdio\n  command: {command}\n  args: {json.dumps(words)}\n')
    world.write(f"{world.project}/.ai/tools/mcp/servers/{name}.yaml", item)
    world.sign("tool", f"mcp/servers/{name}")
    answer = world.answer("execute", "rye/mcp/connect", "--params",
                          json.dumps({"server": f"mcp/servers/{name}", "tool": "add", "arguments": {"a": 44}}))
    if "45" not in json.dumps(answer.get("data")):
        listed = world.answer("execute", "rye/mcp/discover", "--params", json.dumps({"server": f"mcp/servers/{name}"}))
        if "add" not in json.dumps(listed.get("data")):
            raise Escaped(f"{name}: {str(listed.get('error') or listed)[-300:]}")


@works("a foreign MCP server answers: a script, and a program of node_modules by npx")
def foreign_server(world):
    serve(world, "script", "/usr/bin/python3", [world.write(f"{world.project}/server.py", SERVER)])
    if not shutil.which("npx", path=PATH):
        return
    package = world.folder(f"{world.project}/own")
    world.write(f"{package}/package.json", '{"name": "own", "version": "1.0.0", "bin": {"own": "index.js"}}')
    world.write(f"{package}/index.js", "#!/usr/bin/env node\nrequire('child_process').spawn('/usr/bin/python3', ['server.py'], {stdio: 'inherit'})\n", 0o755)
    world.write(f"{world.project}/package.json", '{"name": "project", "version": "1.0.0"}')
    if world.plain("npm install --silent --no-audit --no-fund ./own").exit != 0:
        return
    serve(world, "npx", "npx", ["--no-install", "own"])


@works("npx and uvx fetch a server from the network", short=False)
def fetched_server(world):
    import socket
    try:
        socket.create_connection(("registry.npmjs.org", 443), timeout=3).close()
    except OSError:
        raise Skipped("there is no network") from None
    need("npx")
    item = 'version: "1.0.0"\ntool_type: mcp-server\nexecutor_id: null\ncategory: mcp/servers\nname: {}\ndescription: x\nconfig:\n  transport: stdio\n  timeout: 120\n  command: {}\n  args: {}\nsandbox: {{write: {}}}\n'
    servers = [("memory", "npx", ["-y", "@modelcontextprotocol/server-memory"], "create_entities", ["~/.npm"])]
    if shutil.which("uvx", path=PATH):
        servers.append(("time", "uvx", ["mcp-server-time"], "get_current_time", ["~/.cache/uv", "~/.local/share/uv"]))
    for name, command, words, expected, paths in servers:
        for path in paths:
            world.folder(path.replace("~", world.home))
        world.write(f"{world.project}/.ai/tools/mcp/servers/{name}.yaml", item.format(name, command, json.dumps(words), json.dumps(paths)))
        world.sign("tool", f"mcp/servers/{name}")
        answer = world.answer("execute", "rye/mcp/discover", "--params", json.dumps({"server": f"mcp/servers/{name}"}), timeout=240)
        if expected not in json.dumps(answer.get("data")):
            raise Escaped(f"{command}: {str(answer.get('error') or answer)[-400:]}")
