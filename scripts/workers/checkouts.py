"""The files of a project that travel with a thread: a snapshot or a commit, what a worker's tool sees of them, and the patch."""
import glob
import os
import re
import subprocess

import items
from harness import expect, say, until, write

EDIT = """# version: 1.0.0
# tool_type: shell
# executor_id: rye/core/runtimes/bash/bash
# category: team
# name: edit
# description: Changes the project
# config_schema: {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}

seen="$(find . -type f -not -path './.ai/*' -not -path './lockfiles/*' | sort | tr '\\n' ' ')"
printf '%s\\n' "$RYE_PARAM_TEXT" >> src/a.txt
mkdir -p new target
printf 'new\\n' > "new/$RYE_PARAM_TEXT.txt"
printf 'built\\n' > target/out.o
rm -f src/gone.txt
chmod +x run.sh
sleep "$(cat wait.txt 2>/dev/null || echo 0)"
printf '{"seen": "%s"}\\n' "$seen"
"""
TOOLS = "<tool>team.mark</tool>"
FILES = {"src/a.txt": "one\n", "src/gone.txt": "gone\n", "run.sh": "#!/bin/sh\n", ".gitignore": "target/\n*.log\n",
         "debug.log": "built\n", ".env": "PASSWORD=secret-0123456789\n", "keys/server.pem": "key\n"}


def read(path):
    with open(path) as file:
        return file.read()


def prepare_checkouts(world):
    """A tool that changes its project, a directive that may call it, and a project with files to leave out."""
    user = world.user
    write(f"{user.project}/.ai/tools/team/edit.sh", EDIT)
    user.rye("sign", "tool", "team/edit")
    permissions = items.PERMISSIONS.replace(TOOLS, f"{TOOLS}<tool>team.edit</tool>")
    user.directive("edit", permissions=permissions)
    user.directive("snapshot", permissions=f"{permissions}<checkout>snapshot</checkout>")
    for path, content in FILES.items():
        write(f"{user.project}/{path}", content)


def trees(person):
    """The folders in which a worker keeps the files of threads."""
    return glob.glob(f"{person.home}/.cache/rye/stores/*/trees-*/thread-*")


def has_edited(person, label):
    """Whether the tool of a thread has changed the files that this worker keeps for it."""
    return any(os.path.exists(f"{folder}/project/new/{label}.txt") for folder in trees(person))


def submit_snapshot(world, label):
    """A thread with the project's files, for which its directive asks; what is left out is said."""
    output = world.user.rye("run", "team/snapshot", f"label={label}", "--on", "team", "--provider", "fake")
    expect(".env (looks like a secret)" in output and "keys/server.pem" in output, f"what is left out: {output}")
    return re.search(r"thread-[0-9a-f]{12}", output).group()


def expect_seen(user, thread):
    """The tool saw the project's files, and neither secrets nor what git ignores."""
    transcript = user.rye("thread", "transcript", thread)
    expect("./src/a.txt" in transcript and "./run.sh" in transcript, f"the tool did not see the project's files: {transcript}")
    for secret in ("server.pem", "debug.log", "secret-0123456789"):
        expect(secret not in transcript, f"the worker had {secret}: {transcript}")
    shown = user.rye("thread", "show", thread)
    expect("4 files" in shown and f"rye thread patch {thread}" in shown, f"thread show: {shown}")


def expect_printed(user, thread, label):
    """Printing the patch changes nothing; it fits `git apply`."""
    patch = user.stdout("thread", "patch", thread)
    expect(f"+{label}" in patch and "target/" not in patch, f"the patch: {patch}")
    check = subprocess.run(["git", "apply", "--check", "-"], cwd=user.project, input=patch, capture_output=True, text=True)
    expect(check.returncode == 0, f"git apply --check: {check.stderr}\n{patch}")
    expect_untouched(user)


def expect_untouched(user, changed=()):
    """The project's files are as they were, but for those that the check changed itself."""
    for path, content in FILES.items():
        expect(path in changed or read(f"{user.project}/{path}") == content, f"{path} was changed")
    expect(not os.path.exists(f"{user.project}/new"), "a file was made")
    expect(not os.access(f"{user.project}/run.sh", os.X_OK), "run.sh was made a program")


def check_snapshot(world):
    user, label = world.user, "snapshot"
    thread = submit_snapshot(world, label)
    until("it completes", lambda: world.is_completed(thread))
    expect_seen(user, thread)
    expect_printed(user, thread, label)
    write(f"{user.project}/src/a.txt", "mine\n")
    code, output = user.try_rye("thread", "patch", thread, "--apply")
    expect(code == 5 and "RYE1163" in output, f"a conflict: {code} {output}")
    expect(read(f"{user.project}/src/a.txt") == "mine\n", "a file that differs was changed")
    expect_untouched(user, changed=["src/a.txt"])
    write(f"{user.project}/src/a.txt", FILES["src/a.txt"])
    user.rye("thread", "patch", thread, "--apply")
    expect(read(f"{user.project}/src/a.txt") == f"one\n{label}\n", "the file was not changed")
    expect(os.access(f"{user.project}/run.sh", os.X_OK) and not os.path.exists(f"{user.project}/src/gone.txt"), "not all was applied")
    expect(read(f"{user.project}/new/{label}.txt") == "new\n", "the new file is missing")
    expect(not os.path.exists(f"{user.project}/target"), "what git ignores came back")
    took = until("the folders of the tree are gone", lambda: not any(trees(person) for person in world.people), 30 + world.sizes.patience)
    say(f"a snapshot travels without secrets, its patch comes back and is applied by hand; the worker's folders went after {took:.1f} s")


class Repository:
    """A repository with two commits; tools of the second one take their time."""

    def __init__(self, world, name):
        self.folder = os.path.join(world.folder, name)
        os.makedirs(self.folder)
        self.git("init", "-q")
        write(f"{self.folder}/src/a.txt", "of the commit\n")
        write(f"{self.folder}/run.sh", "#!/bin/sh\n")
        # Items of a checkout are never used.
        write(f"{self.folder}/.ai/tools/team/edit.sh", "exit 1\n")
        self.first = self.commit("one")
        write(f"{self.folder}/src/a.txt", "later\n")
        write(f"{self.folder}/wait.txt", "8\n")
        self.second = self.commit("two")

    def git(self, *words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", self.folder, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message):
        self.git("add", "-A")
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD")

    def source(self, commit):
        return f"git+file://{self.folder}@{commit}"


def check_commit(world):
    user, repository = world.user, Repository(world, "repository")
    thread = user.submit("edit", "commit", "--checkout", repository.source(repository.first))
    until("thread show names the label", lambda: "lacks checkout:git" in user.rye("thread", "show", thread))
    elsewhere = world.add_worker(world.people[0], "elsewhere", "--checkout-from", "git+https://a.example/")
    until("a worker that fetches from elsewhere refuses", lambda: "may not fetch from" in user.rye("thread", "show", thread))
    elsewhere.end()
    allowed = world.add_worker(world.people[1], "allowed", "--checkout-from", f"git+file://{world.folder}")
    until("it completes", lambda: world.is_completed(thread))
    allowed.end()
    patch = user.stdout("thread", "patch", thread)
    expect(" of the commit" in patch and "-of the commit" not in patch and "+commit" in patch, f"the patch: {patch}")
    code, output = user.try_rye("run", "team/edit", "label=x", "--on", "team", "--checkout", repository.source("main"))
    expect(code == 2 and "invalid checkout" in output, f"a branch: {code} {output}")
    say("a commit is fetched by a worker that may, and by no other; a branch is refused")


def check_killed(world):
    """A worker is killed in the middle of its tool: the next one begins with fresh files, and the patch says so."""
    user, person, repository = world.user, world.people[1], Repository(world, "slow")
    worker = world.add_worker(person, "killed", "--checkout-from", f"git+file://{world.folder}")
    thread = user.submit("edit", "killed", "--checkout", repository.source(repository.second))
    until("the tool runs", lambda: has_edited(person, "killed"))
    worker.kill()
    expect(trees(person), "a killed worker cannot have removed its folder")
    worker.start()
    until("the folders of the killed worker are gone", lambda: not has_edited(person, "killed"), 30 + world.sizes.patience)
    until("it completes", lambda: world.is_completed(thread))
    worker.end()
    code, output = user.try_rye("thread", "patch", thread, "--apply")
    expect(code == 5 and "incomplete" in output, f"an incomplete patch: {code} {output}")
    expect(not os.path.exists(f"{user.project}/new/killed.txt"), "an incomplete patch was applied")
    say("a killed worker's folders go when it starts again, and the patch of its thread is incomplete")
