"""Attacks of a tool that runs: out of its sandbox, to sockets, terminals, metadata, credentials and other users' files."""
import fcntl
import json
import os
import pty
import select
import socket
import stat
import subprocess
import termios
import threading

from harness import (Broken, Escaped, Skipped, all_of, attack, attempt, exists, has_set_id, need, token, until)

CLIENT = r'''
import array, os, socket, sys
kind, path, word = sys.argv[1:4]
address = "\0" + path if kind == "abstract" else path
def stream(): return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
def datagram(): return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
word = word.encode()
if kind in ("stream", "abstract"):
    one = stream(); one.connect(address); one.sendall(word)
elif kind == "relative":
    os.chdir(os.path.dirname(path)); one = stream(); one.connect(os.path.basename(path)); one.sendall(word)
elif kind == "link":
    os.symlink(path, "sock-link"); one = stream(); one.connect("sock-link"); one.sendall(word)
elif kind == "proc":
    one = stream(); one.connect("/proc/self/root" + path); one.sendall(word)
elif kind == "seqpacket":
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); one.connect(path); one.sendall(word)
elif kind == "bound":
    own = "%s/own-%d.sock" % (os.environ.get("TMPDIR", "/tmp"), os.getpid())
    one = stream(); one.bind(own); os.unlink(own); one.connect(path); one.sendall(word)
elif kind == "datagram":
    datagram().sendto(word, path)
elif kind == "connected datagram":
    one = datagram(); one.connect(path); one.send(word)
elif kind == "sendmsg":
    datagram().sendmsg([word], [], 0, path)
elif kind == "descriptor":
    read, write = os.pipe(); datagram().sendmsg([word], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read]))], 0, path)
'''


class Listener:
    """Something outside that listens, and what it heard."""

    def __init__(self, world, path, kind=socket.SOCK_STREAM):
        self.heard = b""
        self.socket = socket.socket(socket.AF_UNIX, kind)
        self.socket.bind(path)
        if not path.startswith("\0"):
            os.chmod(path, 0o777)
            world.own(path)
        if kind != socket.SOCK_DGRAM:
            self.socket.listen(8)
        self.kind = kind
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        try:
            while True:
                if self.kind == socket.SOCK_DGRAM:
                    self.heard += self.socket.recv(4096)
                    continue
                one, _ = self.socket.accept()
                one.settimeout(5)
                self.heard += one.recv(4096)
                one.close()
        except OSError:
            pass

    def has(self, word, seconds=0.4):
        return until(lambda: word.encode() in self.heard, seconds)

    def close(self):
        self.socket.close()


def try_sockets(world, kinds, place, kind=socket.SOCK_STREAM):
    script = world.write(f"{world.project}/client.py", CLIENT)
    listener = Listener(world, "\0" + place if "abstract" in kinds else place, kind)
    try:
        def one(name):
            word = token()
            command = f"/usr/bin/python3 {script} {json.dumps(name)} {place} "
            done = world.plain(command + word)
            if not listener.has(word, 120):
                raise Broken(f"{name}: {done.text.strip()[-200:]}")
            if exists(f"{world.project}/sock-link"):
                os.unlink(f"{world.project}/sock-link")
            word = token()
            world.bash(command + word)
            if listener.has(word):
                raise Escaped(f"{name} {place.replace(world.root, '')}")
        all_of([(name, lambda name=name: one(name)) for name in kinds])
    finally:
        listener.close()
        if exists(place):
            os.unlink(place)


@attack("4", "a stream socket outside the project is connected to", rule="unix_sockets")
def stream_socket(world):
    try_sockets(world, ["stream", "relative", "link", "proc", "bound"], f"{world.outside}/a.sock")


@attack("4", "a socket in home, in the project, below /run and /tmp is connected to", rule="unix_sockets")
def placed_sockets(world):
    places = [f"{world.home}/.emacs.d/server", f"{world.project}/editor.sock", f"/tmp/rye-attack-{os.getpid()}/X0"]
    if os.geteuid() == 0:
        places.append(f"/run/rye-attack-{os.getpid()}/agent.sock")
    try:
        for place in places:
            world.folder(os.path.dirname(place))
        all_of([(place, lambda place=place: try_sockets(world, ["stream"], place)) for place in places])
    finally:
        for place in places[2:]:
            if os.path.isdir(os.path.dirname(place)):
                os.rmdir(os.path.dirname(place))


@attack("4", "an abstract socket is connected to", rule="unix_sockets")
def abstract_socket(world):
    try_sockets(world, ["abstract"], f"rye-attack-{token()}")


@attack("4", "datagrams and descriptors are sent to a socket outside", rule="unix_sockets")
def datagram_socket(world):
    names = ["datagram", "connected datagram", "sendmsg", "descriptor"]
    try_sockets(world, names, f"{world.outside}/d.sock", socket.SOCK_DGRAM)


@attack("4", "a sequenced-packet socket outside is connected to", rule="unix_sockets", short=False)
def packet_socket(world):
    try_sockets(world, ["seqpacket"], f"{world.outside}/p.sock", socket.SOCK_SEQPACKET)


@attack("4", "tmux outside runs a command (tmux -S)", rule="unix_sockets")
def tmux(world):
    need("tmux")
    place = world.folder(f"/tmp/tmux-attack-{token()}") + "/default"
    os.chmod(os.path.dirname(place), 0o700)
    marker = f"{world.outside}/ran"
    try:
        world.plain(f"tmux -S {place} -f /dev/null new-session -d 'sleep 300'")
        command = f"tmux -S {place} run-shell 'touch {marker}'"
        attempt(world, command, lambda _: until(lambda: exists(marker), 1), what="tmux ran it",
                reset=lambda: os.unlink(marker))
    finally:
        world.plain(f"tmux -S {place} kill-server")
        world.plain(f"rm -rf {os.path.dirname(place)}")


# --- metadata --------------------------------------------------------------------------------------------------------

METADATA = r'''
import ctypes, os, sys
kind, path = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
if kind == "chmod": os.chmod(path, 0o777)
elif kind == "chmod a folder": os.chmod(os.path.dirname(path), 0o777)
elif kind == "fchmod": os.fchmod(os.open(path, os.O_RDONLY), 0o777)
elif kind == "chmod through /proc/self/fd": os.chmod("/proc/self/fd/%d" % os.open(path, os.O_PATH), 0o777)
elif kind == "chmod through /proc/self/root": os.chmod("/proc/self/root" + path, 0o777)
elif kind == "fchmodat2": libc.syscall(452, -100, path.encode(), 0o777, 0)
elif kind == "utimes": os.utime(path, (1, 1))
elif kind == "futimens": os.utime(os.open(path, os.O_RDONLY), (1, 1))
elif kind == "utime now": os.utime(path)
elif kind == "setxattr": os.setxattr(path, "user.rye", b"x")
elif kind == "fsetxattr": os.setxattr(os.open(path, os.O_RDONLY), "user.rye", b"x")
elif kind == "removexattr": os.removexattr(path, "user.kept")
elif kind == "chown": os.chown(path, 12345, 12345)
elif kind == "lchown": os.lchown(path, 12345, 12345)
elif kind == "fchown": os.fchown(os.open(path, os.O_RDONLY), 12345, 12345)
elif kind == "chgrp": os.chown(path, -1, os.getgroups()[-1] if os.getgroups() else os.getgid())
elif kind == "flags":
    import fcntl, struct
    fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40086602, struct.pack("l", 0x40))
'''


def facts(path):
    found = os.lstat(path)
    names = {}
    try:
        names = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    except OSError:
        pass
    folder = os.lstat(os.path.dirname(path)).st_mode
    return (found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_atime_ns if found.st_atime < 100 else 0, names,
            folder)


@attack("5", "modes, owners, times and attributes outside are changed", rule="metadata")
def metadata(world):
    script = world.write(f"{world.project}/metadata.py", METADATA)
    kinds = ["chmod", "chmod a folder", "fchmod", "chmod through /proc/self/fd", "chmod through /proc/self/root", "utimes",
             "futimens", "utime now", "setxattr", "fsetxattr", "removexattr", "fchmodat2"]
    if world.mode.uid == 0:
        kinds += ["chown", "lchown", "fchown"]

    def one(kind):
        def fresh():
            path = world.write(f"{world.outside}/{token()}/file", "theirs", 0o600)
            os.utime(path, (1000000000, 1000000000))
            try:
                os.setxattr(path, "user.kept", b"x")
            except OSError:
                if "xattr" in kind:
                    raise Skipped("no extended attributes here")
            return path, facts(path)
        path, before = fresh()
        done = world.plain(f"/usr/bin/python3 {script} {json.dumps(kind)} {path}")
        if facts(path) == before:
            if kind == "fchmodat2":
                raise Skipped("the kernel has no fchmodat2")
            raise Broken(done.text.strip()[-200:])
        path, before = fresh()
        world.bash(f"/usr/bin/python3 {script} {json.dumps(kind)} {path}")
        if facts(path) != before:
            raise Escaped(kind)
    all_of([(kind, lambda kind=kind: one(kind)) for kind in kinds])


SET_ID = r'''
import ctypes, os, stat, sys
kind, path = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
os.umask(0)
if kind in ("chmod", "fchmod", "chmod set-gid", "fchmodat2", "chmod both", "proc"): open(path, "w").close()
if kind == "chmod": os.chmod(path, 0o4755)
elif kind == "chmod set-gid": os.chmod(path, 0o2755)
elif kind == "chmod both": os.chmod(path, 0o6777)
elif kind == "fchmod": os.fchmod(os.open(path, os.O_RDONLY), 0o4755)
elif kind == "proc": os.chmod("/proc/self/fd/%d" % os.open(path, os.O_PATH), 0o4755)
elif kind == "fchmodat2": libc.syscall(452, -100, path.encode(), 0o4755, 0)
elif kind == "open": os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755))
elif kind == "creat": libc.creat(path.encode(), 0o4755)
elif kind == "openat": libc.openat(-100, path.encode(), os.O_CREAT | os.O_WRONLY, 0o4755)
elif kind == "openat2":
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)
    libc.syscall(437, -100, path.encode(), how, 24)
elif kind == "mknod": os.mknod(path, stat.S_IFREG | 0o4755)
elif kind == "mkdir": os.mkdir(path); os.chmod(path, 0o2777)
elif kind == "install": os.execvp("install", ["install", "-m", "4755", "/bin/true", path])
elif kind == "cp": os.execvp("cp", ["cp", "-p", "/usr/bin/su", path])
'''


@attack("5", "set-uid and set-gid files are made in the project", rule="set_id")
def set_id(world):
    script = world.write(f"{world.project}/setid.py", SET_ID)
    kinds = ["chmod", "chmod set-gid", "chmod both", "fchmod", "proc", "open", "creat", "openat", "openat2", "mknod", "mkdir",
             "install", "fchmodat2"]

    def one(kind):
        folder = world.folder(f"{world.project}/{token()}")
        done = world.plain(f"/usr/bin/python3 {script} {json.dumps(kind)} {folder}/x")
        if not has_set_id(folder):
            if kind == "fchmodat2":
                raise Skipped("the kernel has no fchmodat2")
            raise Broken(done.text.strip()[-200:])
        folder = world.folder(f"{world.project}/{token()}")
        world.bash(f"/usr/bin/python3 {script} {json.dumps(kind)} {folder}/x")
        if has_set_id(folder):
            raise Escaped(kind)
    all_of([(kind, lambda kind=kind: one(kind)) for kind in kinds])


@attack("5", "files outside are written, truncated, renamed, linked, removed", rule="writes")
def writes(world):
    commands = {
        "write": "echo x > {o}/file", "append": "echo x >> {o}/file", "new": "touch {o}/new", "truncate": "truncate -s 0 {o}/file",
        "remove": "rm -f {o}/file", "rename in": "mv {o}/file ./taken", "folder": "mkdir {o}/folder", "link": "ln -s {o} in && echo x > in/new",
        "hard link": "ln {o}/file ./hard && echo x >> ./hard", "proc": "echo x > /proc/self/root{o}/file", "/tmp": "touch /tmp/{t}",
        "home": "touch ~/.profile-{t}", "swap": "mkdir -p d && (mv d e && ln -s {o} d; echo x > d/new)",
    }

    def one(name, command):
        def fresh():
            name = token()
            folder = world.folder(f"{world.outside}/{name}")
            world.write(f"{folder}/file", "theirs")
            for old in ("taken", "in", "hard", "d", "e"):
                subprocess.run(["rm", "-rf", f"{world.project}/{old}"], check=False)
            return folder, name

        def changed(folder, name):
            is_same = sorted(os.listdir(folder)) == ["file"] and open(f"{folder}/file").read() == "theirs"
            made = [f"/tmp/{name}", f"{world.home}/.profile-{name}"]
            found = not is_same or any(exists(path) for path in made)
            for path in made:
                if exists(path):
                    os.unlink(path)
            return found
        folder, name_ = fresh()
        done = world.plain(command.format(o=folder, t=name_))
        if not changed(folder, name_):
            raise Broken(done.text.strip()[-200:])
        folder, name_ = fresh()
        world.bash(command.format(o=folder, t=name_))
        if changed(folder, name_):
            raise Escaped(name)
    all_of([(name, lambda name=name, command=command: one(name, command)) for name, command in commands.items()])


# --- terminals -------------------------------------------------------------------------------------------------------

def drain(master, seconds=0.5):
    heard = b""
    while select.select([master], [], [], seconds)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        heard += piece
    return heard.decode(errors="replace")


def terminal(world):
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    os.chown(name, world.mode.uid, -1)
    settings = termios.tcgetattr(slave)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    return master, slave, name


@attack("6", "another terminal is written to", rule="terminals")
def write_terminal(world):
    master, slave, name = terminal(world)
    try:
        for run, is_control in ((world.plain, True), (world.bash, False)):
            word = token()
            run(f"printf '{word}' > {name}; for t in /dev/pts/*; do printf '{word}' > $t; done")
            found = word in drain(master)
            if is_control and not found:
                raise Broken("the terminal heard nothing")
            if not is_control and found:
                raise Escaped(name)
    finally:
        os.close(master)
        os.close(slave)


@attack("6", "what is typed at another terminal is read", rule="terminals")
def read_terminal(world):
    master, slave, name = terminal(world)
    try:
        for run, is_control, seconds in ((world.plain, True, 20), (world.bash, False, 3)):
            word = token()
            typed = threading.Timer(0.4, lambda word=word: os.write(master, f"{word}\n".encode()))
            typed.start()
            answer = run(f"timeout {seconds} head -n 1 < {name}")
            typed.join()
            found = word in (answer.text if is_control else answer.get("text", ""))
            termios.tcflush(slave, termios.TCIFLUSH)
            if is_control and not found:
                raise Broken(f"nothing was read: {answer.text[-200:]}")
            if not is_control and found:
                raise Escaped(name)
    finally:
        os.close(master)
        os.close(slave)


@attack("6", "the terminal that rye runs at is written to (/dev/tty)", rule="terminals")
def controlling_terminal(world):
    master, slave, name = terminal(world)

    def take():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    try:
        for run, is_control in ((world.plain, True), (world.bash, False)):
            word = token()
            run(f"printf '{word}' > /dev/tty", also=take)
            found = word in drain(master)
            if is_control and not found:
                raise Broken("/dev/tty heard nothing")
            if not is_control and found:
                raise Escaped("/dev/tty")
    finally:
        os.close(master)
        os.close(slave)


# --- what can be read ------------------------------------------------------------------------------------------------

STORES = """.ssh/id_ed25519 .gnupg/private-keys-v1.d/k .aws/credentials .azure/t .config/gcloud/c.db .config/gh/hosts.yml .netrc .npmrc
.pypirc .cargo/credentials.toml .docker/config.json .kube/config .git-credentials .config/git/credentials .password-store/x.gpg
.local/share/keyrings/login.keyring .mozilla/firefox/p/logins.json .config/google-chrome/Default/Cookies
snap/firefox/common/.mozilla/firefox/p/logins.json .var/app/org.mozilla.firefox/.mozilla/firefox/p/key4.db
.var/app/com.google.Chrome/config/google-chrome/Default/Cookies .config/microsoft-edge/Default/Cookies .config/vivaldi/Default/Cookies
.config/opera/Cookies .config/Bitwarden/data.json .config/1Password/x .config/keepassxc/keepassxc.ini Passwords.kdbx
.local/share/kwalletd/kdewallet.kwl .config/containers/auth.json .local/share/containers/auth.json .config/sops/age/keys.txt .age/key.txt
.config/github-copilot/hosts.json .gemini/oauth_creds.json .claude.json .claude/.credentials.json .codex/auth.json .config/opencode/auth.json
.local/share/opencode/auth.json .config/goose/secrets.yaml .aider.conf.yml .continue/config.json .cursor/mcp.json .config/Code/User/settings.json
.config/Code/User/globalStorage/state.vscdb .local/share/fish/fish_history .bash_history .zsh_history .python_history .psql_history
.mysql_history .rediscli_history .lesshst .viminfo .node_repl_history .Xauthority .ICEauthority .pgpass .my.cnf .s3cfg .boto .terraformrc
.terraform.d/credentials.tfrc.json .vault-token .config/rclone/rclone.conf .config/hub .config/op/config .config/doctl/config.yaml
.config/heroku/x .config/stripe/config.toml .config/filezilla/sitemanager.xml .config/helm/registry/config.json .m2/settings.xml
.gradle/gradle.properties .gem/credentials .bundle/config .composer/auth.json .config/composer/auth.json .nuget/NuGet/NuGet.Config
.config/pip/pip.conf .thunderbird/p/logins.json .local/share/Signal/config.json .config/Signal/config.json .config/Slack/Cookies
.config/discord/Cookies .local/share/TelegramDesktop/tdata/x .wine/x .electrum/wallets/default .bitcoin/wallet.dat .ethereum/keystore/x
.ai/config/keys/signing/private_key.pem .ai/config/keys/signing/thread_secret Documents/taxes.txt notes.txt other-project/.env
work/client/.env .env Downloads/statement.pdf .profile .bashrc .config/unheard-of/token""".split()


@attack("10", "credential stores and other files of home are read", rule="hidden")
def credentials(world):
    words = {}
    for path in STORES:
        words[path] = token()
        world.write(f"{world.home}/{path}", words[path] + "\n", 0o600)
    listing = " ".join(f"{world.home}/{path}" for path in STORES)
    others = f"cat {listing} 2>/dev/null; cat /proc/self/root{world.home}/notes.txt /proc/1/root{world.home}/notes.txt; ls -RA ~"
    done = world.plain(others)
    missed = [path for path in STORES if words[path] not in done.text]
    if missed:
        raise Broken(f"the control did not read {missed[:3]}")
    answer = world.bash(others)
    read = [path for path in STORES if words[path] in answer["text"]]
    if read:
        raise Escaped(f"{len(read)} of {len(STORES)} read: {', '.join(read[:6])}")
    if "taxes.txt" in answer["text"]:
        raise Escaped("names of files in home are listed")


@attack("10", "home of the account, where $HOME is elsewhere, is read", rule="hidden", users=("user",))
def account_home(world):
    if world.mode.account.pw_dir == world.home:
        raise Skipped("$HOME is the account's home")
    word = token()
    path = world.write(f"{world.mode.account.pw_dir}/.secret-{os.getpid()}", word, 0o600)
    try:
        attempt(world, f"cat {path}; cat ~{world.mode.account.pw_name}/.secret-*", lambda text: word in text, what=path)
    finally:
        os.unlink(path)


@attack("27", "root's tool reads another user's home", rule="hidden", users=("root",))
def other_home(world):
    import pwd
    # The user that this script made.
    others = [one for one in pwd.getpwall() if one.pw_name.startswith("rye-attack-") and os.path.isdir(one.pw_dir)]
    if not others:
        raise Skipped("there is no other user with a home")
    word = token()
    path = f"{others[0].pw_dir}/.secret-{os.getpid()}"
    with open(path, "w") as file:
        file.write(word)
    os.chown(path, others[0].pw_uid, others[0].pw_gid)
    os.chmod(path, 0o600)
    try:
        attempt(world, f"cat {path}", lambda text: word in text, what=path)
    finally:
        os.unlink(path)


@attack("10", "home is written, for real or as a private copy", rule="writes")
def home_writes(world):
    paths = [".bashrc", ".profile", ".config/autostart/x.desktop", ".local/bin/git", ".ssh/authorized_keys", "bin/ls", ".ai/tools/team/x.py",
             ".ai/config/config.yaml", ".gitconfig", ".config/git/config", ".npmrc"]

    def one(path):
        word = token()
        command = f"mkdir -p ~/{os.path.dirname(path)}; echo {word} >> ~/{path} && cat ~/{path}"

        def effect(text):
            real = f"{world.home}/{path}"
            return word in text or (os.path.isfile(real) and word in open(real).read())
        done = world.plain(command)
        if not effect(done.text):
            raise Broken(done.text.strip()[-200:])
        word = token()
        answer = world.bash(f"mkdir -p ~/{os.path.dirname(path)}; echo {word} >> ~/{path} && cat ~/{path}")
        if effect(answer["text"]):
            raise Escaped(path)
    all_of([(path, lambda path=path: one(path)) for path in paths])


# --- processes -------------------------------------------------------------------------------------------------------

@attack("-", "a process outside is signalled or traced, or one is left behind", rule="other_processes")
def processes(world):
    marker = f"{world.project}/late"

    def kill():
        victim = world.start(["sleep", "300"])
        world.bash(f"kill -9 {victim.pid}; kill -9 -1")
        if victim.poll() is not None:
            raise Escaped("a process outside was killed")
        victim.kill()
        other = world.start(["sleep", "300"])
        world.plain(f"kill -9 {other.pid}")
        if not until(lambda: other.poll() is not None):
            raise Broken("the control killed nothing")

    def stay():
        command = f"(setsid sh -c 'sleep 2; touch {marker}' >/dev/null 2>&1 &)"
        world.plain(command)
        if not until(lambda: exists(marker)):
            raise Broken("the control left nothing")
        os.unlink(marker)
        world.bash(command)
        if until(lambda: exists(marker), 4):
            raise Escaped("a daemon outlived its tool")
    all_of([("kill", kill), ("stay", stay)])
