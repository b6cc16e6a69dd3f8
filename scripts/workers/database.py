"""A PostgreSQL of a check's own: in a folder, on a socket there and on loopback, as a user without rights.

`python3 scripts/workers/database.py COMMAND…` runs a command with the address of one in RYE_TEST_POSTGRES.
"""
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

from harness import expect

# Ends each answer of psql.
END = "--end-of-answer--"
SETTINGS = """listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
max_connections = 400
log_min_messages = fatal
"""


def find_programs():
    """The folder of pg_ctl and its like; `None` where there is none."""
    found = [top for top, _, files in os.walk("/usr/lib/postgresql") if "pg_ctl" in files]
    on_path = shutil.which("pg_ctl")
    return sorted(found)[-1] if found else os.path.dirname(on_path) if on_path else None


def install():
    if find_programs() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run("apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql", shell=True,
                       check=True, stdout=subprocess.DEVNULL)
    programs = find_programs()
    expect(programs, "PostgreSQL is not installed: apt-get install postgresql")
    return programs


def free_port():
    """A port that nobody has, below those that the system gives to connections: none of these takes it before the server does."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


class Database:
    """A server with one database, `rye`; workers use the schema `team` of it."""

    def __init__(self, folder):
        self.programs, self.folder = install(), folder
        os.makedirs(folder)
        os.chmod(folder, 0o755)
        self.drop = []
        if os.geteuid() == 0:
            # The server refuses to run as root.
            shutil.chown(folder, "postgres")
            self.drop = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "env", f"HOME={folder}"]
        self.run("initdb", "-D", f"{folder}/data", "-U", "rye", "--auth=trust", "--no-sync")
        self.port = free_port()
        with open(f"{folder}/data/postgresql.conf", "a") as conf:
            conf.write(SETTINGS.format(port=self.port, folder=folder))
        self.start()
        self.run("createdb", "-h", folder, "-p", str(self.port), "-U", "rye", "rye")
        self.lock, self.console = threading.Lock(), self.open_console()
        self.url = f"postgres://rye@/rye?host={folder}&port={self.port}"

    def run(self, program, *words):
        subprocess.run([*self.drop, os.path.join(self.programs, program), *words], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    def start(self):
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-w", "-t", "60", "-l", f"{self.folder}/server.log", "start")

    def stop(self):
        """Ends it without warning, as a power cut does."""
        self.run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-w", "stop")

    def end(self):
        self.console.kill()
        self.console.wait()
        self.stop()

    def cut_connections(self):
        """Cuts half of the connections of rye's processes."""
        self.sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                 "WHERE application_name = 'rye' AND random() < 0.5")

    def open_console(self):
        """One psql for all questions: starting one for each would take more of the machine than what is checked."""
        words = [*self.drop, os.path.join(self.programs, "psql"), "-h", self.folder, "-p", str(self.port), "-U", "rye", "-d", "rye",
                 "-X", "-q", "-A", "-t"]
        environment = {**os.environ, "PGOPTIONS": "-c search_path=team"}
        return subprocess.Popen(words, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def sql(self, text):
        """The rows that statements give, each a list of texts."""
        with self.lock:
            lines = self.ask(text)
            if lines is None:
                # The server was started again since.
                self.console.wait()
                self.console = self.open_console()
                lines = self.ask(text)
        expect(lines is not None, f"the database does not answer: {text}")
        errors = [line for line in lines if line.startswith(("ERROR:", "FATAL:", "psql:"))]
        expect(not errors, f"{text}: {lines}")
        return [line.split("|") for line in lines]

    def ask(self, text):
        """The lines of an answer; `None` when the connection has ended."""
        lines = []
        try:
            self.console.stdin.write(f"{text};\n\\echo {END}\n")
            self.console.stdin.flush()
        except OSError:
            return None
        for line in self.console.stdout:
            if line.rstrip("\n") == END:
                return lines
            lines.append(line.rstrip("\n"))
        return None

    def value(self, text):
        """The one value that a statement gives; empty where there is no row."""
        rows = self.sql(text)
        return rows[0][0] if rows else ""

    def pids(self):
        """The server's processes."""
        with open(f"{self.folder}/data/postmaster.pid") as file:
            first = file.readline().strip()
        children = subprocess.run(["pgrep", "-P", first], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in (first, *children)]


def main():
    folder = tempfile.mkdtemp(prefix="rye-postgres.")
    os.chmod(folder, 0o755)
    try:
        database = Database(os.path.join(folder, "database"))
        try:
            return subprocess.run(sys.argv[1:], env={**os.environ, "RYE_TEST_POSTGRES": database.url}).returncode
        finally:
            database.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
