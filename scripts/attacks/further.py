"""Further ways out of the sandbox: races, paths that change under a check, native tools, runs beside each other, projects in home."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time

from harness import Broken, Escaped, all_of, attack, attempt, exists, token, until, works
from sandbox import Listener

RACE = r'''
import ctypes, os, socket, struct, sys, threading, time
outside, word = sys.argv[1], sys.argv[2].encode()
folder = os.environ.get("TMPDIR", "/tmp")
own = "%s/own-%d" % (folder, os.getpid())
server = socket.socket(socket.AF_UNIX); server.bind(own); server.listen(64)
libc = ctypes.CDLL(None, use_errno=True)
def address(path): return struct.pack("H", socket.AF_UNIX) + path.encode().ljust(108, b"\0")
good, bad = address(own), address(outside)
buffer = ctypes.create_string_buffer(good, 110)
end = time.monotonic() + 3
def flip():
    while time.monotonic() < end:
        ctypes.memmove(buffer, bad, 110); ctypes.memmove(buffer, good, 110)
threads = [threading.Thread(target=flip) for _ in range(2)]
[thread.start() for thread in threads]
while time.monotonic() < end:
    one = socket.socket(socket.AF_UNIX); one.settimeout(0.2)
    if libc.connect(one.fileno(), buffer, 110) == 0:
        try: one.send(word)
        except OSError: pass
    one.close()
    server.settimeout(0)
    try:
        while True: server.accept()[0].close()
    except OSError: pass
os.unlink(own)
'''

SWAP = r'''
import os, socket, sys, threading, time
outside, word = sys.argv[1], sys.argv[2].encode()
folder = "%s/d-%d" % (os.environ.get("TMPDIR", "/tmp"), os.getpid())
os.mkdir(folder)
server = socket.socket(socket.AF_UNIX); server.bind(folder + "/own"); server.listen(64)
os.symlink(outside, folder + "/link")
os.symlink(folder + "/own", folder + "/name")
end = time.monotonic() + 3
def flip():
    while time.monotonic() < end:
        for target in (outside, folder + "/own"):
            os.symlink(target, folder + "/next"); os.rename(folder + "/next", folder + "/name")
threading.Thread(target=flip).start()
while time.monotonic() < end:
    for path in (folder + "/name", folder + "/link"):
        one = socket.socket(socket.AF_UNIX); one.settimeout(0.2)
        try: one.connect(path); one.send(word)
        except OSError: pass
        one.close()
    server.settimeout(0)
    try:
        while True: server.accept()[0].close()
    except OSError: pass
'''

PATHS = r'''
import os, socket, sys
outside, word = sys.argv[1], sys.argv[2].encode()
folder = os.environ.get("TMPDIR", "/tmp")
depth = "../" * folder.count("/")
paths = [folder + "/" + depth + outside.lstrip("/"), "/proc/self/cwd/" + os.path.relpath(outside), "//" + outside, outside + "\0x"]
try: os.link(outside, folder + "/hard-%d" % os.getpid()); paths.append(folder + "/hard-%d" % os.getpid())
except OSError: pass
try: fd = os.open(os.path.dirname(outside), os.O_PATH); paths.append("/proc/self/fd/%d/%s" % (fd, os.path.basename(outside)))
except OSError: pass
for path in paths:
    for kind in (socket.SOCK_STREAM,):
        one = socket.socket(socket.AF_UNIX, kind)
        try: one.connect(path.encode() if "\0" not in path else path); one.sendall(word)
        except (OSError, ValueError): pass
        one.close()
'''


@attack("4", "the path of a socket changes between check and use", rule="unix_sockets", short=False)
def socket_races(world):
    def one(name, text):
        script = world.write(f"{world.project}/race.py", text)
        place = f"{world.outside}/{token()}.sock"
        listener = Listener(world, place)
        try:
            word = token()
            done = world.plain(f"/usr/bin/python3 {script} {place} {word}")
            if not listener.has(word, 120):
                raise Broken(f"the control was not heard: {done.text[-200:]}")
            word = token()
            world.bash(f"/usr/bin/python3 {script} {place} {word}")
            if listener.has(word):
                raise Escaped(name)
        finally:
            listener.close()
    all_of([("memory", lambda: one("memory", RACE)), ("links", lambda: one("links", SWAP)), ("paths", lambda: one("paths", PATHS))])


@attack("10", "from a project inside home, siblings and home are read or written", rule="hidden")
def project_in_home(world):
    project = world.folder(f"{world.home}/code/shop")
    if world.rye("init", cwd=project).exit != 0:
        raise Broken("a project in home cannot be approved")
    # Without mounts the top level is closed for new files; folders in it are open.
    world.folder(f"{project}/src")
    words = {}
    for path in ("code/other/.env", "code/.secret", ".secret", ".config/x/token", "code/shop/.visible"):
        words[path] = token()
        world.write(f"{world.home}/{path}", words[path])
    command = ("cat ../other/.env ../.secret ../../.secret ~/.config/x/token /proc/self/cwd/../other/.env .visible; ls .. ../..; "
               "echo x > ../new; echo x > ../../new; echo x > src/inside")
    done = world.plain(command, cwd=project)
    if any(word not in done.text for word in words.values()) or not exists(f"{world.home}/code/new"):
        raise Broken("the control read or wrote less")
    for made in ("code/new", "new", "code/shop/src/inside"):
        os.unlink(f"{world.home}/{made}")
    answer = world.bash(command, cwd=project)
    if words.pop("code/shop/.visible") not in answer["text"] or not exists(f"{project}/src/inside"):
        raise Broken(f"the project itself is closed: {answer['text'][-300:]}")
    read = [path for path, word in words.items() if word in answer["text"]]
    written = [made for made in ("code/new", "new") if exists(f"{world.home}/{made}")]
    if read or written:
        raise Escaped(f"read {read}, wrote {written}")


@attack("10", "native file tools read home and write what is protected")
def native_tools(world):
    world.write(f"{world.project}/.git/config", "[core]\n")
    os.symlink(world.home, f"{world.project}/out")
    secret = token()
    world.write(f"{world.home}/.secret", secret)

    def call(item, **params):
        return json.dumps(world.answer("execute", f"rye/file-system/{item}", "--params", json.dumps(params)))
    call("write", path="plain.txt", content="x")
    if not exists(f"{world.project}/plain.txt"):
        raise Broken("write does not write at all")

    def reads(path):
        if secret in call("read", path=path):
            raise Escaped(f"read {path.replace(world.home, '~')}")

    def finds(path):
        if secret in call("grep", pattern="tok[0-9a-f]+", path=path):
            raise Escaped(f"grep {path.replace(world.home, '~')}")

    def writes(path):
        word = token()
        call("write", path=path, content=word)
        real = os.path.join(world.project, path)
        if os.path.isfile(real) and word in open(real, errors="replace").read():
            raise Escaped(f"write {path}")
    protected = [".mcp.json", ".claude/settings.json", ".codex/config.toml", ".cursor/mcp.json", ".vscode/tasks.json", ".idea/x.xml", ".env", ".envrc",
                 ".husky/pre-commit", ".cargo/config.toml", ".git/config", ".git/hooks/pre-commit", ".git/commondir", ".git/config.worktree",
                 ".git/info/attributes", ".git/objects/info/alternates", ".git/modules/x/config", ".git/worktrees/x/gitdir", ".ai/config/config.yaml",
                 ".ai/lockfiles/x", ".ai/bundles/x/manifest.yaml", ".ai/threads/registry.db", "lockfiles/x.lock.json", "out/new", "../outside/new",
                 "./.ai/../.mcp.json", ".MCP.json/../.mcp.json"]
    all_of([(path, lambda path=path: reads(path)) for path in (f"{world.home}/.secret", "out/.secret", "../home/.secret", "~/.secret")]
           + [(path, lambda path=path: finds(path)) for path in (world.home, "out", "../home")]
           + [(path, lambda path=path: writes(path)) for path in protected])


@attack("22", "a run that ends frees names that another run relies on", rule="read_only")
def concurrent_runs(world):
    """Placeholders are shared by concurrent runs: the first to end must not take them from the others."""
    work = world.folder(f"{world.project}/work")
    go, marker = f"{work}/go", f"{world.project}/.mcp.json"
    command = f"for i in $(seq 2400); do [ -e work/go ] && break; sleep 0.05; done; echo {{w}} > .mcp.json; echo {{w}} > .envrc; mkdir -p .git && echo {{w}} > .git/config"
    word = token()
    world.write(go, "")
    world.plain(command.format(w=word))
    if word not in open(marker).read():
        raise Broken("the control wrote nothing")
    for old in (".mcp.json", ".envrc", "work/go"):
        os.unlink(f"{world.project}/{old}")
    shutil.rmtree(f"{world.project}/.git")
    word = token()
    words = [world.mode.rye, "--json", "execute", "rye/bash", "--params", json.dumps({"command": "touch work/begun; " + command.format(w=word)})]
    long = world.start(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, confined=True)
    if not until(lambda: exists(f"{work}/begun")):
        raise Broken("the long run does not begin")
    world.bash("true")
    world.write(go, "")
    out = long.communicate(timeout=120)[0]
    world.receipts.append((json.loads(out.decode().strip().splitlines()[-1]) or {}).get("sandbox") or {})
    for name in (".mcp.json", ".envrc", ".git/config"):
        path = f"{world.project}/{name}"
        if os.path.isfile(path) and word in open(path).read():
            raise Escaped(name)


@attack("10", "variables of the user's environment reach a tool that did not ask for them")
def environment(world):
    word = token()
    names = ["AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "DATABASE_URL", "UNHEARD_OF", "SSH_AUTH_SOCK", "NPM_TOKEN"]
    env = world.environment(**{name: f"{word}-{name}" for name in names})
    done = world.plain("env", env=env)
    if word not in done.text:
        raise Broken("the control has no such variable")
    answer = world.bash("env; cat /proc/self/environ /proc/1/environ /proc/$PPID/environ", env=env)
    found = [name for name in names if f"{word}-{name}" in answer["text"]]
    if found:
        raise Escaped(", ".join(found))


@attack("-", "shared memory and message queues outside are read", rule="hidden")
def shared_memory(world):
    word = token()
    path = world.write(f"/dev/shm/rye-attack-{os.getpid()}", word, 0o600)
    try:
        command = f"cat {path}; ls /dev/shm"
        done = world.plain(command)
        if word not in done.text:
            raise Broken("the control read nothing")
        if word in world.bash(command)["text"]:
            raise Escaped("/dev/shm")
    finally:
        os.unlink(path)


@attack("-", "the temporary folder of another run is read or written", rule="hidden")
def other_runs(world):
    word = token()
    work = world.folder(f"{world.project}/work")
    command = f"echo {word} > $TMPDIR/secret; echo $TMPDIR > work/begun; sleep 60"
    words = [world.mode.rye, "execute", "rye/bash", "--params", json.dumps({"command": command})]
    process = world.start(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, confined=True)
    try:
        if not until(lambda: exists(f"{work}/begun") and open(f"{work}/begun").read().endswith("\n")):
            raise Broken("the other run does not begin")
        place = open(f"{work}/begun").read().strip()

        def read():
            command = f"cat {place}/secret $TMPDIR/../*/secret /tmp/rye-run*/*/secret"
            attempt(world, command, lambda text: word in text, what="read")

        def write():
            command = f"echo {word} > {place}/planted"
            planted = f"{place}/planted"
            attempt(world, command, lambda _: exists(planted), what="write", reset=lambda: os.unlink(planted))
        all_of([("read", read), ("write", write)])
    finally:
        process.kill()
        process.wait()


@works("placeholders are gone after a run, and after a run that was killed")
def no_placeholders(world):
    work = world.folder(f"{world.project}/work")
    before = sorted(os.listdir(world.project))
    world.bash("true")
    if sorted(os.listdir(world.project)) != before:
        raise Escaped(f"left: {set(os.listdir(world.project)) - set(before)}")
    words = [world.mode.rye, "execute", "rye/bash", "--params", json.dumps({"command": "touch work/begun; sleep 60"})]
    process = world.start(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, confined=True)
    if not until(lambda: exists(f"{work}/begun")):
        raise Escaped("the run does not begin")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    os.unlink(f"{work}/begun")
    world.bash("true")
    left = set(os.listdir(world.project)) - set(before)
    if left:
        raise Escaped(f"left after a kill: {sorted(left)}")


@works("a project without a repository stays without one; git init outside works as before")
def git_init(world):
    world.bash("true")
    if exists(f"{world.project}/.git"):
        raise Escaped("a run leaves a .git behind")
    done = world.plain("git init -q . && git status --short")
    if done.exit != 0:
        raise Escaped(done.text[-200:])
    answer = world.bash("git status --short && git log --oneline -1; echo done")
    if "done" not in answer["text"] or "not a git repository" in answer["text"]:
        raise Escaped(answer["text"][-300:])
