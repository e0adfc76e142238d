"""Processes that write to the same file take turns."""

import itertools
import subprocess
import sys
import time

from joulery.storage.turns import Turns

WRITING_OFTEN = """
import os, sys, time
from pathlib import Path
from joulery.storage.turns import Turns
path, name = sys.argv[1:]
turns = Turns(Path(path), 30.0)
log = os.open(path + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(50):
    with turns.taken():
        os.write(log, name.encode())
        time.sleep(0.002)
"""
HOLDING = """
import sys, time
from pathlib import Path
from joulery.storage.turns import Turns
with Turns(Path(sys.argv[1]), 30.0).taken():
    print("held", flush=True)
    time.sleep(60)
"""


def _process(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout.readline()  # it has got so far
    return process


def test_whoever_waits_is_next(tmp_path):
    """One of two busy processes could keep the other waiting for seconds."""
    path = tmp_path / "turns"
    both = [_process(WRITING_OFTEN, path, name) for name in "ab"]
    for process in both:
        process.stdin.write("go\n")
    for process in both:
        process.communicate(timeout=60)
    order = (tmp_path / "turns.log").read_text()
    changes = sum(before != after for before, after in itertools.pairwise(order))
    assert len(order) == 100
    # Without turns, one of them would write almost all of its own before the other comes in.
    assert changes > 60


def test_a_turn_that_nobody_ends_is_not_waited_for_for_ever(tmp_path):
    """A process that is stopped while it writes would stop all others."""
    holder = _process(HOLDING, tmp_path / "turns")
    turns = Turns(tmp_path / "turns", 0.1)
    begin = time.monotonic()
    with turns.taken():
        waited = time.monotonic() - begin
    holder.kill()
    holder.communicate()
    assert 0.1 <= waited < 20.0
    begin = time.monotonic()
    with Turns(tmp_path / "turns", 20.0).taken():  # that of a process that died is over
        assert time.monotonic() - begin < 20.0
    turns.close()


def test_a_folder_that_cannot_be_written_to(tmp_path):
    """The store says what is wrong with its folder; turns do not."""
    with Turns(tmp_path / "missing" / "turns", 0.1).taken():
        pass
