"""Attacks of a tool on what its user's own programs obey: git, agents' and editors' start files, interpreters of the project."""
import os
import shutil
import subprocess

from harness import Broken, Escaped, Skipped, all_of, attack, exists, need, token

IDENTITY = "-c user.name=a -c user.email=a@b -c commit.gpgsign=false -c init.defaultBranch=main"


def git(world, words, cwd=None):
    """What the user does in their own terminal."""
    done = world.plain(f"git {IDENTITY} {words}", cwd=cwd)
    if done.exit != 0:
        raise Broken(f"git {words}: {done.text.strip()[-200:]}")
    return done


def repository(world, folder):
    world.folder(folder)
    git(world, "init -q", folder)
    world.write(f"{folder}/a.txt", "a\n")
    world.write(f"{folder}/.gitignore", ".ai\n*.py\n")
    git(world, "add -A", folder)
    git(world, "commit -q -m first", folder)


def look(world, folder, marker):
    """The user's next commands; whether the attacker's program ran with one of them."""
    for command in ("status", "diff", "log -1", f"{IDENTITY} commit -q --allow-empty -m next", "checkout -q -f", "submodule status"):
        world.plain(f"git {command}", cwd=folder)
    return exists(marker)


EVIL = "[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tfsmonitor = {evil}\\n\\thooksPath = {hooks}\\n"


def attempts(world):
    """What a tool tries in the project's repository; each leads to `evil` being run, if it works."""
    evil = "{p}/evil.sh"
    config = EVIL.format(evil=evil, hooks="{p}/hooks")
    return {
        "config": f"printf '{config}' >> .git/config",
        "config by rename": f"cp .git/config c && printf '{config}' >> c && mv c .git/config",
        "git config": f"git config core.fsmonitor {evil}",
        "config lock": f"cp .git/config .git/config.lock && printf '{config}' >> .git/config.lock && mv .git/config.lock .git/config",
        "hooks": f"mkdir -p .git/hooks; for h in pre-commit post-commit post-checkout; do cp {evil} .git/hooks/$h; done",
        "hooks replaced": f"mv .git/hooks .git/old; mkdir .git/hooks; cp {evil} .git/hooks/pre-commit",
        "commondir": f"mkdir -p other && cp -r .git/. other/ && printf '{config}' > other/config && printf '{{p}}/other\\n' > .git/commondir",
        "commondir relative": f"cp -r .git own && mv own .git/own && printf '{config}' > .git/own/config && printf 'own\\n' > .git/commondir",
        "git folder replaced": f"mv .git .aside && cp -r .aside .git && printf '{config}' >> .git/config",
        "git folder as a file": f"mv .git .aside && printf '{config}' >> .aside/config && printf 'gitdir: .aside\\n' > .git",
        "git folder as a link": f"mv .git .aside && printf '{config}' >> .aside/config && ln -s .aside .git",
        "config.worktree": "git config extensions.worktreeConfig true; "
                           f"printf '[core]\\n\\tfsmonitor = {evil}\\n' > .git/config.worktree",
    }


@attack("7", "the project's .git is made to run a program at the next git command", rule="read_only")
def git_folder(world):
    need("git")
    plans = attempts(world)
    # The rest needs nothing but an earlier setting of the user.
    plans["config.worktree, already on"] = plans["config.worktree"].split("; ", 1)[1]

    def one(name, plan):
        for run, is_control in ((world.plain, True), (world.bash, False)):
            folder = world.folder(f"{world.root}/{token()}") if is_control else world.project
            for old in (".git", ".aside", "other", "hooks", "c"):
                path = f"{folder}/{old}"
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                elif exists(path):
                    os.unlink(path)
            marker = f"{folder}/ran-{token()}"
            repository(world, folder)
            if "already on" in name:
                git(world, "config extensions.worktreeConfig true", folder)
            world.write(f"{folder}/evil.sh", f"#!/bin/sh\ntouch {marker}\n", 0o755)
            world.folder(f"{folder}/hooks")
            shutil.copy(f"{folder}/evil.sh", f"{folder}/hooks/pre-commit")
            done = run(plan.format(p=folder), cwd=folder) if is_control else run(plan.format(p=folder))
            found = look(world, folder, marker)
            if is_control and not found:
                raise Broken(f"the control ran nothing: {done.text.strip()[-200:]}")
            if not is_control and found:
                raise Escaped(name)
    all_of([(name, lambda name=name, plan=plan: one(name, plan)) for name, plan in plans.items()])


@attack("7", "a .git is made where there was none", rule="read_only")
def new_git(world):
    need("git")
    plans = {
        "git init": "git init -q . && git config core.fsmonitor {p}/evil.sh",
        "by hand": "mkdir -p .git/objects .git/refs && echo 'ref: refs/heads/main' > .git/HEAD && "
                   "printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = {p}/evil.sh\\n' > .git/config",
        "a .git file": "git init -q elsewhere && git -C elsewhere config core.fsmonitor {p}/evil.sh && "
                       "git -C elsewhere config core.worktree {p} && echo 'gitdir: elsewhere/.git' > .git",
    }

    def one(name, plan):
        for run, is_control in ((world.plain, True), (world.bash, False)):
            folder = world.folder(f"{world.root}/{token()}") if is_control else world.project
            marker = f"{folder}/ran-{token()}"
            world.write(f"{folder}/evil.sh", f"#!/bin/sh\ntouch {marker}\n", 0o755)
            done = run(plan.format(p=folder), cwd=folder) if is_control else run(plan.format(p=folder))
            world.plain("git status; git diff", cwd=folder)
            found = exists(marker)
            for old in (".git", "elsewhere"):
                path = f"{folder}/{old}"
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                elif exists(path):
                    os.unlink(path)
            if is_control and not found:
                raise Broken(f"the control ran nothing: {done.text.strip()[-200:]}")
            if not is_control and found:
                raise Escaped(name)
    all_of([(name, lambda name=name, plan=plan: one(name, plan)) for name, plan in plans.items()])


@attack("7", "a linked worktree's .git file and its repository's files are changed", rule="read_only")
def linked_worktree(world):
    need("git")
    evil = "{p}/evil.sh"
    config = EVIL.format(evil=evil, hooks="{p}/hooks")
    plans = {
        "the .git file": f"cp -r {{m}}/.git {{p}}/.own && printf '{config}' >> {{p}}/.own/config && echo 'gitdir: {{p}}/.own' > .git",
        "the main config": f"printf '{config}' >> {{m}}/.git/config",
        "the main hooks": f"mkdir -p {{m}}/.git/hooks; cp {evil} {{m}}/.git/hooks/pre-commit",
        "commondir": f"cp -r {{m}}/.git own && printf '{config}' >> own/config && d=$(sed 's/gitdir: //' .git) && echo {{p}}/own > $d/commondir",
        "config.worktree": f"d=$(sed 's/gitdir: //' .git); printf '[core]\\n\\tfsmonitor = {evil}\\n' > $d/config.worktree",
    }

    def one(name, plan):
        for run, is_control in ((world.plain, True), (world.bash, False)):
            main = f"{world.root}/{token()}"
            repository(world, main)
            git(world, "config extensions.worktreeConfig true", main)
            folder = f"{world.root}/{token()}" if is_control else world.project
            kept = None
            if not is_control:
                kept = f"{world.root}/{token()}"
                shutil.copytree(world.project, kept, symlinks=True)
                shutil.rmtree(world.project)
            git(world, f"worktree add -q -b {token()} {folder}", main)
            if kept:
                shutil.copytree(f"{kept}/.ai", f"{world.project}/.ai", symlinks=True, dirs_exist_ok=True)
                subprocess.run(["chown", "-R", f"{world.mode.uid}:{world.mode.gid}", world.project], check=True)
            marker = f"{folder}/ran-{token()}"
            world.write(f"{folder}/evil.sh", f"#!/bin/sh\ntouch {marker}\n", 0o755)
            world.write(f"{folder}/hooks/pre-commit", f"#!/bin/sh\ntouch {marker}\n", 0o755)
            command = plan.format(p=folder, m=main)
            done = run(command, cwd=folder) if is_control else run(command)
            found = look(world, folder, marker)
            if is_control and not found:
                raise Broken(f"the control ran nothing: {done.text.strip()[-200:]}")
            if not is_control and found:
                raise Escaped(name)
    all_of([(name, lambda name=name, plan=plan: one(name, plan)) for name, plan in plans.items()])


@attack("7", "other files of .git that name a repository or a program are written", rule="read_only")
def git_parts(world):
    need("git")
    repository(world, world.project)
    git(world, "worktree add -q -b side ../side", world.project)
    world.folder(f"{world.project}/.git/modules/lib")
    world.write(f"{world.project}/.git/modules/lib/config", "[core]\n")
    paths = [".git/info/attributes", ".git/objects/info/alternates", ".git/modules/lib/config", ".git/modules/new/config",
             ".git/modules/lib/hooks/post-checkout", ".git/worktrees/side/gitdir", ".git/worktrees/side/commondir",
             ".git/worktrees/side/config.worktree", ".git/gitdir", ".git/commondir", ".git/config.worktree", ".git/hooks/new"]

    def one(path):
        real = f"{world.project}/{path}"
        before = open(real).read() if os.path.isfile(real) else None
        word = token()
        command = f"mkdir -p $(dirname {path}) && echo {word} >> {path}"

        def effect():
            return os.path.isfile(real) and word in open(real).read()
        done = world.plain(command)
        if not effect():
            raise Broken(done.text.strip()[-200:])
        if before is None:
            os.unlink(real)
        else:
            world.write(real, before)
        world.bash(command)
        found = effect()
        if before is None and exists(real):
            os.unlink(real)
        elif before is not None:
            world.write(real, before)
        if found:
            raise Escaped(path)
    all_of([(path, lambda path=path: one(path)) for path in paths])


START_FILES = [".mcp.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/commands/x.md", ".codex/config.toml",
               ".cursor/mcp.json", ".cursor/rules/x.mdc", ".vscode/tasks.json", ".vscode/settings.json", ".idea/workspace.xml", ".env", ".envrc",
               ".husky/pre-commit", ".cargo/config.toml", ".cargo/config"]
KEPT = [".ai/config/config.yaml", ".ai/config/agent/hooks.yaml", ".ai/config/keys/trusted/x.toml", ".ai/lockfiles/x", ".ai/bundles/x",
        ".ai/threads/registry.db", ".ai/bundles.toml", ".ai/bundles.lock", "lockfiles/x@1.0.0.lock.json"]


def write_protected(world, paths, is_there):
    def one(path):
        real = f"{world.project}/{path}"
        top = f"{world.project}/{path.split('/')[0]}"

        def fresh():
            if path.split("/")[0] not in (".ai", "lockfiles"):
                shutil.rmtree(top, ignore_errors=True)
            if exists(top) and not os.path.isdir(top):
                os.unlink(top)
            if is_there:
                world.write(real, "as it was\n")
            elif exists(real):
                os.unlink(real)
        ways = {"write": f"mkdir -p $(dirname {path}); echo {{w}} >> {path}",
                "rename": f"mkdir -p $(dirname {path}); echo {{w}} > x.tmp; mv -f x.tmp {path}"}
        if "/" in path and not path.startswith(".ai"):
            folder = path.split("/")[0]
            ways["folder"] = f"mkdir -p n/$(dirname {path}); echo {{w}} > n/{path}; mv {folder} old-{folder}; mv n/{folder} {folder}"
        for name, way in ways.items():
            for run, is_control in ((world.plain, True), (world.bash, False)):
                fresh()
                word = token()
                done = run(way.format(w=word))
                found = os.path.isfile(real) and word in open(real, errors="replace").read()
                for left in ("n", f"old-{path.split('/')[0]}", "x.tmp"):
                    subprocess.run(["rm", "-rf", f"{world.project}/{left}"], check=False)
                if is_control and not found:
                    raise Broken(f"{name}: {done.text.strip()[-200:]}")
                if not is_control and found:
                    raise Escaped(f"{path} ({name})")
            fresh()
            if not is_there and exists(real):
                os.unlink(real)
    all_of([(path, lambda path=path: one(path)) for path in paths])


@attack("22", "start files of agents and editors that exist are changed", rule="read_only")
def start_files(world):
    write_protected(world, START_FILES, True)


@attack("22, 26", "start files of agents and editors that are missing are made", rule="read_only")
def new_start_files(world):
    write_protected(world, START_FILES, False)


@attack("-", "config, lockfiles, bundles and threads of the project are changed or made", rule="read_only")
def kept(world):
    write_protected(world, KEPT, True)
    write_protected(world, [path for path in KEPT if "threads" not in path], False)


@attack("18", "an interpreter planted in .venv or node_modules runs and takes a secret")
def planted_interpreter(world):
    world.function("plain", "return 1")
    world.function("secret", "return 1", head='ENV_CONFIG = {"env": {"DEPLOY_KEY": "${DEPLOY_KEY}"}}\nSANDBOX = {"level": "strict"}')
    env = world.environment(DEPLOY_KEY="s3cret-" + token())
    for name in ("plain", "secret"):
        answer = world.answer("execute", f"team/{name}", env=env)
        if answer.get("data") != 1:
            raise Broken(f"the tool does not run: {str(answer)[-300:]}")
    marker = f"{world.project}/planted-ran"
    planted = f"#!/bin/sh\\nenv > {marker}\\nexec /usr/bin/python3 \"$@\"\\n"
    names = ["python", "python3", "python3.11"]
    for name in names:
        command = f"mkdir -p .venv/bin && printf '{planted}' > .venv/bin/{name} && chmod +x .venv/bin/{name} && .venv/bin/{name} -c 1"
        world.plain(command)
        if not exists(marker):
            raise Broken("the planted interpreter does not run")
        os.unlink(marker)
        shutil.rmtree(f"{world.project}/.venv")
    made = world.bash("; ".join(
        f"mkdir -p .venv/bin && printf '{planted}' > .venv/bin/{name} && chmod +x .venv/bin/{name}" for name in names))
    if not exists(f"{world.project}/.venv/bin/python"):
        raise Broken(f".venv is not writable: {made['text'][-200:]}")
    for words in (["execute", "team/plain"], ["execute", "team/secret"], ["execute", "team/secret", "--locked"]):
        world.answer(*words, env=env)
        if exists(marker):
            raise Escaped(" ".join(words) + (" gave it the secret" if env["DEPLOY_KEY"] in open(marker).read() else ""))
