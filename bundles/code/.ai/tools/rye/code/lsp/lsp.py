"""Asks a language server one question: it is started, told about one file, asked, and ended."""

__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "rye/code/lsp"
__tool_name__ = "lsp"
__tool_description__ = "Ask a language server about a file: definition, references, hover, symbols or diagnostics"

CONFIG_SCHEMA = {
    "type": "object",
    "required": ["action", "file"],
    "additionalProperties": False,
    "properties": {
        "action": {
            "type": "string",
            "enum": ["definition", "references", "hover", "symbols", "diagnostics"],
            "description": "What to ask",
        },
        "file": {"type": "string", "minLength": 1, "description": "The file, relative to the project"},
        "line": {
            "type": "integer", "minimum": 1,
            "description": "The line, from 1. Needed by definition, references and hover",
        },
        "column": {"type": "integer", "minimum": 1, "default": 1, "description": "The column, from 1, in characters"},
        "server": {
            "type": "string",
            "enum": ["pyright-langserver", "pylsp", "typescript-language-server", "rust-analyzer", "gopls", "clangd"],
            "description": "Which server; the first that is installed and fits the file if not given",
        },
        "timeout": {
            "type": "integer", "minimum": 1, "maximum": 240, "default": 60,
            "description": "Seconds the server may take in all",
        },
    },
}

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

MESSAGE_LIMIT = 32_000_000
FILE_LIMIT = 4_000_000
RESULT_LIMIT = 1000
# How long a server may be silent about a file before its last word on it is taken.
QUIET_SECONDS = 2.0

SERVERS = {
    "pyright-langserver": {"arguments": ["--stdio"], "languages": {".py": "python", ".pyi": "python"}},
    "pylsp": {"arguments": [], "languages": {".py": "python", ".pyi": "python"}},
    "typescript-language-server": {
        "arguments": ["--stdio"],
        "languages": {
            ".ts": "typescript", ".tsx": "typescriptreact", ".js": "javascript", ".jsx": "javascriptreact",
            ".mjs": "javascript", ".cjs": "javascript",
        },
    },
    "rust-analyzer": {
        "arguments": [],
        "languages": {".rs": "rust"},
        # Build scripts, macros and cargo check are code of the project.
        "options": {
            "cargo": {"buildScripts": {"enable": False}}, "procMacro": {"enable": False}, "checkOnSave": False,
        },
    },
    "gopls": {"arguments": [], "languages": {".go": "go"}},
    "clangd": {"arguments": [], "languages": {".c": "c", ".h": "c", ".cc": "cpp", ".cpp": "cpp", ".hpp": "cpp"}},
}
SEVERITIES = {1: "error", 2: "warning", 3: "info", 4: "hint"}
METHODS = {
    "definition": "textDocument/definition", "references": "textDocument/references", "hover": "textDocument/hover",
    "symbols": "textDocument/documentSymbol",
}


class Refused(Exception):
    """The question cannot be asked, or was not answered."""


def execute(params, project_path):
    root = os.path.realpath(project_path)
    try:
        path, text = read_file(root, params["file"])
        name, program = choose_server(root, path, params.get("server"))
        if params["action"] in ("definition", "references", "hover") and not params.get("line"):
            raise Refused("%s needs `line`" % params["action"])
        server = SERVERS[name]
        connection = Connection([program] + server["arguments"], root, params.get("timeout") or 60)
        try:
            return dict(ask(connection, server, root, path, text, params), success=True, server=name)
        finally:
            connection.end()
    except Refused as error:
        return {"success": False, "error": str(error)}


def read_file(root, name):
    path = os.path.realpath(os.path.join(root, name))
    if not path.startswith(root + os.sep):
        raise Refused("`%s` is outside the project" % name)
    try:
        if not os.path.isfile(path):
            raise Refused("`%s` is not a file" % name)
        with open(path, "rb") as file:
            data = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise Refused("`%s` cannot be read: %s" % (name, error.strerror))
    if len(data) > FILE_LIMIT:
        raise Refused("`%s` is larger than %s bytes" % (name, FILE_LIMIT))
    return path, data.decode("utf-8", "replace")


def choose_server(root, path, wanted):
    extension = os.path.splitext(path)[1]
    names = [wanted] if wanted else [name for name in SERVERS if extension in SERVERS[name]["languages"]]
    if wanted and extension not in SERVERS[wanted]["languages"]:
        raise Refused("`%s` does not read `%s` files" % (wanted, extension))
    if not names:
        raise Refused("no known language server reads `%s` files" % extension)
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    outside = [folder for folder in folders if not os.path.realpath(folder).startswith(root + os.sep)]
    for name in names:
        program = shutil.which(name, path=os.pathsep.join(outside)) if outside else None
        if program:
            return name, program
    raise Refused("none of these language servers is installed: %s" % ", ".join(names))


def ask(connection, server, root, path, text, params):
    action = params["action"]
    uri = Path(path).as_uri()
    connection.request("initialize", {
        "processId": os.getpid(), "rootUri": Path(root).as_uri(),
        "workspaceFolders": [{"uri": Path(root).as_uri(), "name": os.path.basename(root)}],
        "initializationOptions": server.get("options"),
        "capabilities": {
            "general": {"positionEncodings": ["utf-16"]},
            "textDocument": {
                "hover": {"contentFormat": ["markdown", "plaintext"]},
                "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
                "publishDiagnostics": {},
            },
        },
    })
    connection.notify("initialized", {})
    language = server["languages"][os.path.splitext(path)[1]]
    connection.notify("textDocument/didOpen", {
        "textDocument": {"uri": uri, "languageId": language, "version": 1, "text": text},
    })
    if action == "diagnostics":
        found = connection.diagnostics(uri)
        return {"file": params["file"], "diagnostics": [read_diagnostic(entry) for entry in found[:RESULT_LIMIT]],
                "truncated": len(found) > RESULT_LIMIT}
    question = {"textDocument": {"uri": uri}}
    if action != "symbols":
        question["position"] = position(text, params["line"], params.get("column") or 1)
    if action == "references":
        question["context"] = {"includeDeclaration": True}
    answer = connection.request(METHODS[action], question)
    if action == "hover":
        return {"text": hover_text((answer or {}).get("contents"))}
    if action == "symbols":
        found = list(symbols(answer or [], ""))
        return {"symbols": found[:RESULT_LIMIT], "truncated": len(found) > RESULT_LIMIT}
    places = answer if isinstance(answer, list) else [answer] if answer else []
    found = [read_place(root, place) for place in places]
    return {"locations": found[:RESULT_LIMIT], "truncated": len(found) > RESULT_LIMIT}


def position(text, line, column):
    """Line and column from 1, in characters, as the protocol wants them: from 0, in UTF-16 units."""
    lines = text.split("\n")
    if line > len(lines):
        raise Refused("the file has %s lines" % len(lines))
    before = lines[line - 1][: column - 1]
    return {"line": line - 1, "character": len(before.encode("utf-16-le", "surrogatepass")) // 2}


def read_place(root, place):
    uri = place.get("targetUri") or place.get("uri") or ""
    start = (place.get("targetSelectionRange") or place.get("range"))["start"]
    path = uri
    if uri.startswith("file://"):
        from urllib.parse import unquote, urlsplit
        path = unquote(urlsplit(uri).path)
    if path.startswith(root + os.sep):
        path = os.path.relpath(path, root)
    return {"file": path, "line": start["line"] + 1, "column": start["character"] + 1}


def read_diagnostic(entry):
    start = entry["range"]["start"]
    return {
        "line": start["line"] + 1, "column": start["character"] + 1,
        "severity": SEVERITIES.get(entry.get("severity"), "error"), "code": entry.get("code"),
        "message": entry.get("message", ""),
    }


def hover_text(contents):
    if isinstance(contents, list):
        return "\n\n".join(filter(None, map(hover_text, contents)))
    if isinstance(contents, dict):
        return contents.get("value", "")
    return contents or ""


def symbols(entries, container):
    for entry in entries:
        start = (entry.get("selectionRange") or entry["location"]["range"])["start"]
        name = (container + "." if container else "") + entry["name"]
        yield {"name": name, "kind": entry["kind"], "line": start["line"] + 1, "column": start["character"] + 1}
        yield from symbols(entry.get("children") or [], name)


class Connection:
    """JSON-RPC over the standard streams of a process, with one deadline for everything."""

    def __init__(self, command, folder, seconds):
        self.deadline = time.monotonic() + seconds
        self.name = os.path.basename(command[0])
        self.last_id = 0
        self.published = {}
        self.incoming = queue.Queue()
        try:
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise Refused("`%s` cannot be started: %s" % (self.name, error))
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        try:
            while True:
                length = None
                for line in iter(lambda: self.process.stdout.readline(4096), b""):
                    if line in (b"\r\n", b"\n"):
                        break
                    name, _, value = line.partition(b":")
                    if name.strip().lower() == b"content-length":
                        length = int(value)
                if length is None or not 0 <= length <= MESSAGE_LIMIT:
                    break
                message = json.loads(self.process.stdout.read(length))
                if isinstance(message, dict):
                    self.incoming.put(message)
        except (OSError, ValueError):
            pass
        self.incoming.put(None)

    def send(self, message):
        data = json.dumps(dict(message, jsonrpc="2.0")).encode()
        try:
            self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
            self.process.stdin.flush()
        except OSError:
            raise Refused("`%s` ended early" % self.name)

    def notify(self, method, params):
        self.send({"method": method, "params": params})

    def request(self, method, params):
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        while True:
            message = self.receive(self.deadline)
            if message is None:
                raise Refused("`%s` did not answer %s in time" % (self.name, method))
            if message.get("id") == self.last_id and "method" not in message:
                if message.get("error"):
                    raise Refused("`%s`: %s" % (self.name, message["error"].get("message", "it failed")))
                return message.get("result")

    def diagnostics(self, uri):
        """The last list published for the file, once the server has been quiet for a while."""
        while uri not in self.published:
            if self.receive(self.deadline) is None:
                raise Refused("`%s` published nothing about the file in time" % self.name)
        while self.receive(min(self.deadline, time.monotonic() + QUIET_SECONDS)) is not None:
            pass
        return self.published[uri]

    def receive(self, until):
        """The next message, or none by then. What the server itself asks for is answered with nothing."""
        try:
            message = self.incoming.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None
        if message is None:
            raise Refused("`%s` ended early" % self.name)
        method = message.get("method")
        if method == "textDocument/publishDiagnostics":
            self.published[message["params"]["uri"]] = message["params"]["diagnostics"]
        elif method and "id" in message:
            items = (message.get("params") or {}).get("items") or []
            nothing = [None] * len(items) if method == "workspace/configuration" else None
            self.send({"id": message["id"], "result": nothing})
        return message

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()
        self.reader.join(5)
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except OSError:
                pass
