"""Worlds for journeys: emulated boards whose assumptions differ from run to run.

A journey uses commands and the public API only, and is judged by the truth of the emulator. Every
draw follows from a seed, which a failing test prints; JOULERY_JOURNEY_SEED repeats it. With CI=true
it follows from the commit: a commit is judged alike every time, the next one on other boards.
"""

import os
import random
import subprocess
from pathlib import Path

import pytest

from joulery.testing.emulator import EmulatedNode, build
from support.journeys import Assumptions, World


def _choose_seed():
    """The seed that was asked for, in CI that of the commit, otherwise a new one."""
    if seed := os.environ.get("JOULERY_JOURNEY_SEED"):
        return int(seed)
    if os.environ.get("CI") == "true":
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        if commit:
            return int(commit, 16) % 10**6
    return random.SystemRandom().randrange(10**6)


SEED = _choose_seed()


@pytest.fixture
def draw(request):
    """Random numbers of this journey; the seed is printed if it fails."""
    print(f"repeat with JOULERY_JOURNEY_SEED={SEED}")  # noqa: T201 - pytest shows it on failure
    return random.Random(f"{SEED} {request.node.name}")  # noqa: S311 - not for secrets


@pytest.fixture
def make_world(tmp_path, draw):
    """Function that makes a world with so many boards."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    nodes = []

    def make(boards=1, change=lambda spec: spec):
        assumptions = Assumptions.drawn(draw)
        print(assumptions)  # noqa: T201 - pytest shows it on failure
        node = EmulatedNode([change(assumptions.spec)] * boards, directory=tmp_path)
        nodes.append(node.__enter__())
        return World(node, assumptions, tmp_path, draw)

    yield make
    for node in nodes:
        node.__exit__()


@pytest.fixture
def world(make_world):
    """A world with one board."""
    return make_world()
