"""What the checks of workers share: how much of each is done, what is expected, and waiting for it."""
import dataclasses
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STARTED = time.monotonic()
# How long anything may take that has no bound of its own.
TIMEOUT_SECONDS = 180
# How long a worker's lease holds without a heartbeat.
LEASE_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much of each is done."""

    kills: int
    restarts: int
    cuts: int
    race: int
    tree: int
    migrations: int
    # Workers that are killed in the middle of a thread that they were called for.
    called: int
    strangers: int
    # How many seconds more than rye promises are allowed: the short form runs on CI's machine, which is slow.
    patience: int

    @property
    def places(self):
        return self.race // 3


SHORT = Sizes(kills=4, restarts=1, cuts=2, race=60, tree=40, migrations=3, called=3, strangers=0, patience=60)
FULL = Sizes(kills=100, restarts=20, cuts=20, race=300, tree=500, migrations=20, called=50, strangers=1, patience=0)


class Wrong(Exception):
    """What does not hold."""


def expect(holds, what):
    if not holds:
        raise Wrong(what)


def say(text):
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def until(what, holds, seconds=TIMEOUT_SECONDS):
    """Waits until something holds; gives how long that took."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if holds():
            return time.monotonic() - began
        time.sleep(0.1)
    raise Wrong(f"not within {seconds} s: {what}")
