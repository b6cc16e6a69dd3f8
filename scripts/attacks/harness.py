"""What every attack needs: a user with a home and a project, the binary under attack, and the same attempt without it.

An attack is a function that takes a World. It first shows that the attempt works where nothing defends (`control`), then makes it
through the binary, and looks from outside at what came of it. It raises Escaped when the attempt worked, and Broken when the
control did not, so that a broken harness never says "stopped".
"""
import ctypes
import json
import os
import platform
import pwd
import re
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TIMEOUT = 90
ATTACKS = []
WORKS = []


class Escaped(Exception):
    """The attack worked."""


class Broken(Exception):
    """The harness could not show that the attack would work without the defence."""


class Skipped(Exception):
    """What the attack needs is not on this machine."""


class Case:
    def __init__(self, function, finding, title, rule, is_short, users):
        self.function, self.finding, self.title = function, finding, title
        self.rule, self.is_short, self.users = rule, is_short, users


def attack(finding, title, rule=None, short=True, users=("root", "user")):
    """Registers an attack. `rule`: the rule of the sandbox that stops it, so it is made with and without namespaces."""
    def register(function):
        ATTACKS.append(Case(function, finding, title, rule, short, users))
        return function
    return register


def works(title, short=True, users=("root", "user"), sandbox=True):
    """Registers something that must keep working; the function raises Escaped when it does not."""
    def register(function):
        WORKS.append(Case(function, "", title, sandbox or None, short, users))
        return function
    return register


# --- running as another user, and without namespaces -------------------------------------------------------------------

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
CLONE_NEW = 0x7E020080  # every CLONE_NEW* flag of clone and unshare
NUMBERS = {
    "x86_64": {"clone": 56, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "clone3": 435,
               "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442, "chroot": 161},
    "aarch64": {"clone": 220, "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "clone3": 435,
                "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442, "chroot": 51},
}


def no_namespaces():
    """Refuses namespaces and mounts by a system call filter, as most container runtimes do."""
    import struct
    numbers = NUMBERS[platform.machine()]
    load, jump_equal, jump_set, give = 0x20, 0x15, 0x45, 0x06
    allow, refuse, absent = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
    program = [(load, 0, 0, 0)]
    for name, number in numbers.items():
        if name == "clone":
            program += [(jump_equal, 0, 4, number), (load, 0, 0, 16), (jump_set, 0, 1, CLONE_NEW), (give, 0, 0, refuse),
                        (load, 0, 0, 0)]
        else:
            program += [(jump_equal, 0, 1, number), (give, 0, 0, absent if name == "clone3" else refuse)]
    program.append((give, 0, 0, allow))
    code = b"".join(struct.pack("HBBI", *one) for one in program)
    text = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    whole = Program(len(program), ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0) != 0:
        os._exit(99)


class Mode:
    """Who attacks, and whether namespaces are there."""

    def __init__(self, user, has_namespaces, rye, base, account):
        self.user, self.has_namespaces, self.rye, self.base, self.account = user, has_namespaces, rye, base, account

    @property
    def name(self):
        return f"{self.user}, {'namespaces' if self.has_namespaces else 'no namespaces'}"

    @property
    def uid(self):
        return self.account.pw_uid

    @property
    def gid(self):
        return self.account.pw_gid

    def become(self, confined=True, also=None):
        uid, gid, name = self.uid, self.gid, self.account.pw_name
        is_other = uid != os.geteuid()

        def enter():
            os.umask(0o022)
            if is_other:
                os.initgroups(name, gid)
                os.setgid(gid)
                os.setuid(uid)
            if also:
                also()
            if confined and not self.has_namespaces:
                no_namespaces()
        return enter


# --- a user with a home and a project --------------------------------------------------------------------------------

class Done:
    def __init__(self, exit, out, err):
        self.exit, self.out, self.err = exit, out, err

    @property
    def text(self):
        return self.out + self.err

    def json(self):
        for line in reversed(self.out.strip().splitlines()):
            try:
                return json.loads(line)
            except ValueError:
                continue
        return {}


class World:
    """A home, a project that its user approved, a folder outside of both, and the processes that were started."""

    def __init__(self, mode, is_ready=True):
        self.mode = mode
        self.root = tempfile.mkdtemp(prefix="w-", dir=mode.base)
        os.chmod(self.root, 0o755)
        os.chown(self.root, mode.uid, mode.gid)
        self.home, self.project = f"{self.root}/home", f"{self.root}/project"
        self.outside, self.cache = f"{self.root}/outside", f"{self.root}/cache"
        self.started, self.receipts = [], []
        for folder in (self.home, self.project, self.outside, self.cache):
            self.folder(folder)
        if is_ready:
            done = self.rye("init")
            if done.exit != 0:
                raise Broken(f"rye init: {done.text.strip()[-300:]}")

    def close(self):
        for process in self.started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
            process.wait()
        subprocess.run(["chmod", "-R", "u+rwX", self.root], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.root, ignore_errors=True)

    def own(self, path):
        os.chown(path, self.mode.uid, self.mode.gid, follow_symlinks=False)

    def folder(self, path):
        missing = []
        at = path
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for one in reversed(missing):
            os.mkdir(one)
            self.own(one)
        return path

    def write(self, path, text, mode=None):
        self.folder(os.path.dirname(path))
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        if mode is not None:
            os.chmod(path, mode)
        self.own(path)
        return path

    def environment(self, **more):
        given = {"PATH": PATH, "HOME": self.home, "XDG_CACHE_HOME": self.cache, "USER": self.mode.account.pw_name,
                 "LANG": "C.UTF-8"}
        given.update({name: value for name, value in more.items() if value is not None})
        return given

    def run(self, words, cwd=None, env=None, input=None, confined=True, timeout=TIMEOUT, also=None):
        try:
            done = subprocess.run(words, cwd=cwd or self.project, env=env or self.environment(), input=input, timeout=timeout,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=self.mode.become(confined, also),
                                  **({} if input is not None else {"stdin": subprocess.DEVNULL}))
        except subprocess.TimeoutExpired as error:
            return Done(124, (error.stdout or b"").decode(errors="replace"), "timed out")
        return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def start(self, words, cwd=None, env=None, **more):
        process = subprocess.Popen(words, cwd=cwd or self.project, env=env or self.environment(), start_new_session=True,
                                   preexec_fn=self.mode.become(more.pop("confined", False)), **more)
        self.started.append(process)
        return process

    def rye(self, *words, **more):
        return self.run([self.mode.rye, *words], **more)

    def answer(self, *words, **more):
        done = self.rye("--json", *words, **more)
        answer = done.json()
        answer.setdefault("exit", done.exit)
        answer.setdefault("err", done.err)
        if answer.get("sandbox"):
            self.receipts.append(answer["sandbox"])
        return answer

    def bash(self, command, **more):
        """Runs a command through the tool `rye/bash`; what it printed is in `text`."""
        answer = self.answer("execute", "rye/bash", "--params", json.dumps({"command": command}), **more)
        data = answer.get("data") or {}
        answer["text"] = "".join(str(data.get(name) or "") for name in ("stdout", "stderr")) if isinstance(data, dict) else ""
        return answer

    def plain(self, command, **more):
        """The same command without rye: the control."""
        return self.run(["bash", "-c", command], confined=False, **more)

    def sign(self, *words, **more):
        done = self.rye("sign", *words, **more)
        if done.exit != 0:
            raise Broken(f"rye sign {' '.join(words)}: {done.text.strip()[-300:]}")
        return done

    def function(self, name, body, head="", space=None):
        """A signed Python tool `team/NAME` of the project."""
        base = space or f"{self.project}/.ai"
        text = ('__version__ = "1.0.0"\n__executor_id__ = "rye/core/runtimes/python/function"\n'
                f'__tool_type__ = "python"\n__category__ = "team"\n__tool_description__ = "{name}"\n{head}\n\n'
                "def execute(params, project_path):\n" + "".join(f"    {line}\n" for line in body.strip("\n").splitlines()))
        path = self.write(f"{base}/tools/team/{name}.py", text)
        self.sign("tool", f"team/{name}", *(["--space", "user"] if space else []))
        return path


def token():
    return "tok" + secrets.token_hex(8)


def attempt(world, command, effect, *, what, reset=None, control=True, run=None):
    """Makes an attempt without and with the sandbox. `effect(output)` says, from outside, whether it worked."""
    if control:
        done = world.plain(command)
        if not effect(done.text):
            raise Broken(f"{what}: the control did nothing: {done.text.strip()[-300:]}")
    if reset:
        reset()
    answer = (run or world.bash)(command)
    if answer.get("exit") == 124 or ("data" not in answer and not answer.get("code")):
        raise Broken(f"{what}: rye gave no answer: {str(answer)[-300:]}")
    if effect(answer.get("text", "")):
        raise Escaped(what)


def all_of(variants):
    """Runs every variant; says which ones worked, all at once."""
    escaped, broken, count = [], [], 0
    for name, variant in variants:
        count += 1
        try:
            variant()
        except Escaped as error:
            escaped.append(str(error) or name)
        except Broken as error:
            broken.append(f"{name}: {error}")
        except Skipped:
            count -= 1
    if broken:
        raise Broken("; ".join(broken))
    if escaped:
        raise Escaped(f"{len(escaped)} of {count}: " + ", ".join(escaped))
    if count == 0:
        raise Skipped("nothing to try with here")


def missing_rules(receipts):
    """The rules that receipts say nothing enforces."""
    names = set()
    for receipt in receipts:
        rows = receipt.get("rows") or []
        enforced = {row["rule"] for row in rows if row.get("is_enforced")}
        names |= {row["rule"] for row in rows if not row.get("is_enforced")} - enforced
    return sorted(names)


def judge(case, mode):
    """The word for one attack, and what to say about it."""
    world = None
    try:
        world = World(mode)
        try:
            case.function(world)
            return "stopped", ""
        except Escaped as error:
            said = str(error)
            if not case.rule or mode.has_namespaces:
                return "NOT", said
            rules = missing_rules(world.receipts)
            if case.rule not in rules:
                return "NOT", f"{said}; the receipt does not say that `{case.rule}` is not enforced"
            refusing = World(mode)
            try:
                settings = 'version: "1.0.0"\ncategory: execution\non_missing: refuse\n'
                refusing.write(f"{refusing.home}/.ai/config/execution/sandbox.yaml", settings)
                refusing.sign("config", "execution/sandbox", "--space", "user")
                answer = refusing.bash("echo ran")
                if "ran" in answer.get("text", "") or answer.get("exit") == 0:
                    return "NOT", f"{said}; on_missing: refuse ran it"
            finally:
                refusing.close()
            return "reported", f"not enforced: {', '.join(rules)} ({said})"
    except Skipped as error:
        return "skipped", str(error)
    except Broken as error:
        return "NOT", f"harness: {error}"
    finally:
        if world:
            world.close()


def until(is_so, seconds=120):
    """Waits for something that another process does; machines may be slow. An effect that must not come is given fewer seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if is_so():
            return True
        time.sleep(0.02)
    return False


def need(program):
    found = shutil.which(program, path=PATH)
    if not found:
        raise Skipped(f"{program} is not installed")
    return found


def exists(path):
    return os.path.lexists(path)


def has_set_id(folder):
    for parent, folders, files in os.walk(folder):
        for name in files + folders:
            if os.lstat(os.path.join(parent, name)).st_mode & (stat.S_ISUID | stat.S_ISGID):
                return os.path.join(parent, name)
    return None
