"""Attacks of a tool on git where the repository is not a plain `.git`: repositories in the repository, submodules, links."""
import json
import os
import signal
import shutil
import subprocess

from harness import Broken, Escaped, all_of, attack, exists, need, token, until
from repository import IDENTITY, git, repository

PLANT = ("git init -q {folder} && (cd {folder} && git " + IDENTITY + " commit -q --allow-empty -m x) && "
         "printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = {evil}\\n' > {folder}/.git/config")
LINK = "git update-index --add --cacheinfo 160000,1111111111111111111111111111111111111111,{folder}"
EVIL = "[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = {evil}\\n"


def run_all(world, cases, linked=False, then="git status; git diff"):
    """Each case: how the repository is made, then what the tool does. What the user does next with git must run nothing."""
    need("git")
    evil, marker = f"{world.outside}/evil.sh", f"{world.outside}/ran"
    world.write(evil, f"#!/bin/sh\ntouch {marker}\nexit 1\n", 0o755)
    kept = f"{world.root}/kept-{token()}"
    shutil.copytree(world.project, kept, symlinks=True)
    other = f"{world.root}/other-{token()}"
    repository(world, other)

    def fresh(setup):
        shutil.rmtree(world.project)
        if linked:
            main = f"{world.root}/{token()}"
            repository(world, main)
            git(world, f"-c protocol.file.allow=always submodule --quiet add {other} sub", main)
            git(world, "commit -q -m sub", main)
            git(world, f"worktree add -q -b {token()} {world.project}", main)
            shutil.copytree(f"{kept}/.ai", f"{world.project}/.ai", symlinks=True)
        else:
            shutil.copytree(kept, world.project, symlinks=True)
        subprocess.run(["chown", "-R", f"{world.mode.uid}:{world.mode.gid}", world.project], check=True)
        if not linked:
            repository(world, world.project)
        done = world.plain(f"set -e\n{setup}")
        if done.exit != 0:
            raise Broken(f"setup: {done.text.strip()[-200:]}")

    def one(name, setup, command):
        setup, command = (text.replace("EVIL", EVIL.format(evil=evil)).replace("OTHER", other) for text in (setup, command))
        command = command.replace("PROGRAM", evil)
        for run, is_control in ((world.plain, True), (world.bash, False)):
            fresh(setup)
            if os.path.exists(marker):
                os.unlink(marker)
            done = run(command)
            world.plain(then)
            if is_control and not os.path.exists(marker):
                raise Broken(f"the control ran nothing: {done.text.strip()[-200:]}")
            if not is_control and os.path.exists(marker):
                raise Escaped(name)
    all_of([(name, lambda name=name, setup=setup, command=command: one(name, setup, command))
            for name, (setup, command) in cases.items()])


def plant(folder):
    return "mkdir -p " + folder + " && " + PLANT.format(folder=folder, evil="PROGRAM")


@attack("7", "a repository is made in the project and put into the index, in one call", rule="read_only")
def planted(world):
    link = LINK.format(folder="sub")
    run_all(world, {
        "nested folder": ("mkdir sub", f"{plant('sub')} && {link}"),
        "index version 4": ("mkdir sub; git update-index --index-version 4", f"{plant('sub')} && {link}"),
        "split index": ("mkdir sub; git update-index --split-index", f"{plant('sub')} && {link}"),
        "a .git file": ("mkdir -p sub gd", f"{plant('gd')} && echo 'gitdir: ../gd/.git' > sub/.git && {link}"),
        "a .git link": ("mkdir -p sub gd", f"{plant('gd')} && ln -s ../gd/.git sub/.git && {link}"),
        "named before, made now": (f"mkdir sub; {link}", plant("sub")),
        "in a harmless one": ("mkdir sub", f"git init -q sub && cd sub && git {IDENTITY} commit -q --allow-empty -m x && {plant('deep')} && "
                              f"{LINK.format(folder='deep')} && cd .. && {link}"),
    })


@attack("40", "a repository that no index names waits for the user's next `git add` or checkout", rule="read_only")
def unindexed(world):
    run_all(world, {
        "nested folder": ("true", plant("sub")),
        "deep": ("mkdir -p a/b/c", plant("a/b/c/d")),
        "a .git file": ("mkdir -p sub gd", f"{plant('gd')} && mv gd/.git gd/g && echo 'gitdir: ../gd/g' > sub/.git"),
    }, then="git add . 2>/dev/null; git status; git diff")


@attack("40", "a repository that no index names lies in a folder that is closed", rule="read_only", short=False)
def closed(world):
    cases = {f"folder of mode {mode}": ("true", f"{plant('shut/sub')} && chmod {mode} shut") for mode in ("111", "311", "000")}
    cases |= {f".git of mode {mode}": ("true", f"{plant('shut')} && chmod {mode} shut/.git") for mode in ("111", "000")}
    run_all(world, cases, then="chmod 755 shut shut/.git 2>/dev/null; git add . 2>/dev/null; git status; git diff")


@attack("7", "a submodule's repository is made to run a program: embedded, or with a quoted path", rule="read_only", short=False)
def submodules(world):
    clone, add = "git -c advice.addEmbeddedRepo=false clone -q OTHER {0} && git add {0} 2>/dev/null", "git -c protocol.file.allow=always submodule --quiet add --name sub OTHER {0}"
    cases = {}
    for name in ("emb", "'a#b'", "'a;b'", "'a\"b'", "'a\\b'", "'a b '"):
        cases[f"config of embedded {name}"] = (clone.format(name), f"printf 'EVIL' > {name}/.git/config")
        cases[f".git file of {name}"] = (add.format(name), f"cp -r .git/modules/sub gd; printf 'EVIL' > gd/config; echo \"gitdir: $PWD/gd\" > {name}/.git")
    cases["embedded one replaced"] = (clone.format("emb"), f"rm -rf emb; {plant('emb')}")
    run_all(world, cases)


@attack("7", "a submodule of a linked worktree is made to run a program", rule="read_only", short=False)
def worktree_submodules(world):
    run_all(world, {
        "its config": ("git -c protocol.file.allow=always submodule --quiet update --init",
                       "printf 'EVIL' > $(git -C sub rev-parse --absolute-git-dir)/config"),
    }, linked=True)


@attack("7", "a repository is led elsewhere by commondir, links, or a file behind a link", rule="read_only", short=False)
def steps(world):
    share = "mkdir shared; for n in config objects refs info hooks; do mv .git/$n shared; done; echo ../shared > .git/commondir"
    separate = "mv .git shared; mkdir gd; cp shared/HEAD gd; mv shared/index gd; echo ../shared > gd/commondir; echo 'gitdir: gd' > .git"
    chain = "mv .git gd; ln -s gd one; ln -s one .git"
    through = "mkdir real; mv .git real/gd; ln -s real lnk; echo 'gitdir: lnk/gd' > .git"
    file = "mv .git gd; echo 'gitdir: gd' > gitfile; ln -s gitfile .git"
    copy = "cp -r {0} x; printf 'EVIL' > x/config; "
    run_all(world, {
        "config of a commondir": (share, "printf 'EVIL' > shared/config"),
        "config behind file and commondir": (separate, "printf 'EVIL' > shared/config"),
        "commondir of a separate folder": (separate, copy.format("shared") + "echo ../x > gd/commondir"),
        "link in a chain": (chain, copy.format("gd") + "ln -sfn x one"),
        "config at the end of a chain": (chain, "printf 'EVIL' > gd/config"),
        "link in a gitdir": (through, "mkdir z; cp -r real/gd z/gd; printf 'EVIL' > z/gd/config; ln -sfn z lnk"),
        "file behind a link": (file, copy.format("gd") + "echo 'gitdir: x' > gitfile"),
    })


@attack("7", "a killed run leaves a repository that the next git status obeys", rule="read_only")
def killed(world):
    need("git")
    evil, marker = f"{world.outside}/evil.sh", f"{world.outside}/ran"
    world.write(evil, f"#!/bin/sh\ntouch {marker}\nexit 1\n", 0o755)
    repository(world, world.project)
    world.folder(f"{world.project}/sub")
    planting = f"{plant('sub')} && {LINK.format(folder='sub')} ; touch sub/planted; sleep 600".replace("PROGRAM", evil)
    command = f"touch sub/ready; until [ -e sub/stopped ]; do sleep 0.05; done; {planting}"
    process = world.start([world.mode.rye, "execute", "rye/bash", "--params", json.dumps({"command": command})], confined=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait_for(name):
        if not until(lambda: exists(f"{world.project}/sub/{name}")):
            raise Broken(f"the tool did not get there: {name}")

    wait_for("ready")
    # While rye stands still it sees nothing of what the tool does; otherwise it ends the run at once.
    os.kill(process.pid, signal.SIGSTOP)
    world.write(f"{world.project}/sub/stopped", "")
    wait_for("planted")
    process.kill()
    process.wait()
    world.plain("git status; git diff")
    # Without mounts `.git` is closed for new files, and the index stays.
    if not os.path.exists(marker) and world.mode.has_namespaces:
        raise Broken("the control ran nothing")
    if os.path.exists(marker):
        os.unlink(marker)
    world.bash("true")
    world.plain("git status; git diff")
    if os.path.exists(marker):
        raise Escaped("git status ran it")


@attack("22", "config, lockfiles and start files of a project inside the project are changed or made", rule="read_only")
def inner_project(world):
    inner = world.folder(f"{world.project}/inner")
    world.folder(f"{inner}/.ai/tools")
    if world.rye("trust", "inner").exit != 0:
        raise Broken("rye trust inner")
    names = [".ai/config/agent/x.yaml", ".ai/lockfiles/x.json", ".ai/bundles/x/y", ".ai/threads/x", "lockfiles/x", ".mcp.json",
             ".claude/settings.json", ".envrc", ".git/config"]

    def one(name):
        path, word = f"{inner}/{name}", token()
        command = f"mkdir -p $(dirname {path}) && echo {word} > {path}"
        before = os.path.exists(os.path.dirname(path))
        world.plain(command)
        if not os.path.exists(path):
            raise Broken("the control made nothing")
        os.unlink(path)
        if not before:
            shutil.rmtree(f"{inner}/{name.split('/')[0]}") if not name.startswith(".ai") else shutil.rmtree(os.path.dirname(path))
        world.bash(command)
        if os.path.exists(path):
            raise Escaped(name)
    all_of([(name, lambda name=name: one(name)) for name in names])
