"""A Restate server of a check's own: the npm package, in a temporary folder, on loopback, without telemetry.

The server is not free software in every use (Business Source License 1.1): it is installed for a check, and never bundled.
"""
import json
import os
import shutil
import subprocess
import urllib.request

from database import free_port
from harness import expect, until

PACKAGE = "@restatedev/restate-server@1.7"
CONFIG = """roles = ["http-ingress", "admin", "worker", "log-server", "metadata-server"]
listen-mode = "tcp"
bind-ip = "127.0.0.1"
bind-port = {fabric}
advertised-host = "127.0.0.1"
default-num-partitions = 4
disable-telemetry = true
rocksdb-total-memory-size = "256.0 MiB"
log-filter = "warn"
log-format = "compact"
log-disable-ansi-codes = true

[admin]
bind-port = {admin}
disable-web-ui = true

[ingress]
bind-port = {ingress}

[worker.invoker]
request-identity-private-key-pem-file = "{key}"
"""
# No request of a check goes through a proxy.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def install(folder):
    """The server's program, from npm."""
    expect(shutil.which("npm"), "npm is not installed")
    os.makedirs(folder, exist_ok=True)
    # Its only script counts installations.
    done = subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder, PACKAGE],
                          env={**os.environ, "SCARF_ANALYTICS": "false", "DO_NOT_TRACK": "1"}, capture_output=True, text=True)
    expect(done.returncode == 0, f"npm install {PACKAGE}: {done.stdout}{done.stderr}")
    found = [os.path.join(top, "restate-server") for top, _, files in os.walk(folder)
             if top.endswith("/bin") and "restate-server" in files and "/.bin" not in top]
    expect(len(found) == 1, f"{PACKAGE} has no server for this machine: {found}")
    return found[0]


def identity_key(path):
    """Makes the key by which the server signs its requests; gives its public half as the server prints it."""
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True, capture_output=True)
    public = subprocess.run(["openssl", "pkey", "-in", path, "-pubout", "-outform", "DER"], check=True, capture_output=True)
    number, text = int.from_bytes(public.stdout[-32:], "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = BASE58[digit] + text
    return f"publickeyv1_{text}"


class Restate:
    """A server with its own folder."""

    def __init__(self, folder, program=None):
        self.folder = folder
        os.makedirs(folder)
        self.program = program or os.environ.get("RESTATE_SERVER") or install(os.path.join(folder, "npm"))
        self.ingress_port, self.admin_port, self.fabric_port = free_port(), free_port(), free_port()
        self.ingress, self.admin = f"http://127.0.0.1:{self.ingress_port}", f"http://127.0.0.1:{self.admin_port}"
        self.key = identity_key(f"{folder}/identity.pem")
        with open(f"{folder}/restate.toml", "w") as file:
            file.write(CONFIG.format(fabric=self.fabric_port, admin=self.admin_port, ingress=self.ingress_port,
                                     key=f"{folder}/identity.pem"))
        self.process = None
        self.start()

    def start(self):
        environment = {**os.environ, "RESTATE_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
        words = [self.program, "--no-logo", "--config-file", f"{self.folder}/restate.toml", "--base-dir", f"{self.folder}/data"]
        with open(f"{self.folder}/log", "a") as log:
            self.process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until("Restate answers", self.is_ready)

    def is_ready(self):
        expect(self.process.poll() is None, f"Restate has ended: {self.log()[-2000:]}")
        try:
            self.get(f"{self.ingress}/restate/health")
            self.get(f"{self.admin}/health")
            return True
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process and self.process.poll() is None:
            self.kill()

    def log(self):
        with open(f"{self.folder}/log") as file:
            return file.read()

    def get(self, url):
        with OPENER.open(url, timeout=5) as response:
            return response.read()

    def query(self, sql):
        """The rows of Restate's own tables."""
        body = json.dumps({"query": sql}).encode()
        headers = {"content-type": "application/json", "accept": "application/json"}
        with OPENER.open(urllib.request.Request(f"{self.admin}/query", body, headers), timeout=30) as response:
            return json.loads(response.read())["rows"]

    def calls(self):
        """Each call that was sent: whose, under which key, how it stands and how often it was made again."""
        rows = self.query("SELECT target_service_key, idempotency_key, status, retry_count, last_failure, completion_result FROM sys_invocation")
        return [(row["target_service_key"], row.get("idempotency_key"), row["status"], row.get("retry_count") or 0, row) for row in rows]

    def send(self, key, idempotency_key=None):
        """Sends a call as a stranger who reaches the ingress would."""
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        request = urllib.request.Request(f"{self.ingress}/Thread/{key}/drive/send", headers=headers, method="POST")
        with OPENER.open(request, timeout=10) as response:
            return json.loads(response.read())["invocationId"]
