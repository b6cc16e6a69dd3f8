"""What the scripts that check workers do alike: options, a world in a temporary folder, one check after another, and its end."""
import argparse
import os
import random
import shutil
import signal
import sys
import tempfile

from harness import FULL, SHORT, Wrong, say
from people import World

RYE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target/debug/rye")


def run(name, description, checks, prepare=None):
    """Runs the checks that are asked for in one world; `prepare` gives it more before its workers start."""
    options = argparse.ArgumentParser(prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("rye", nargs="?", default=RYE)
    options.add_argument("--short", action="store_true", help="less of each, in at most two minutes")
    options.add_argument("--only", default="", metavar="TEXT", help="the checks whose name holds TEXT")
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), metavar="N",
                         help="the moments of an earlier check again, as far as the machine does")
    given = options.parse_args()
    chosen = [check for check in checks if given.only in check.__name__]
    if not chosen:
        options.error(f"no check holds `{given.only}`: {', '.join(check.__name__ for check in checks)}")
    rye = os.path.abspath(given.rye)
    random.seed(given.seed)
    say(f"seed {given.seed}, {rye}")
    folder = tempfile.mkdtemp(prefix=f"rye-{name}.")
    os.chmod(folder, 0o755)
    world = None
    # Nothing is left behind when it is ended from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        world = World(folder, rye, SHORT if given.short else FULL)
        if prepare:
            prepare(world)
        world.start_workers()
        say("prepared")
        for check in chosen:
            check(world)
        print("ok")
    except Wrong as wrong:
        for worker in world.workers if world else []:
            sys.stderr.write(f"--- {worker.name}\n{worker.log()[-2000:]}\n")
        sys.exit(f"{name} (seed {given.seed}): {wrong}")
    finally:
        if world:
            world.end()
        shutil.rmtree(folder, ignore_errors=True)
