"""Servers, workers, clients and databases die at any moment; what was acknowledged is kept, once.

Reduced; ``scripts/stress_service.py`` kills ten thousand.
"""

import json
import subprocess
import sys

import pytest


def blown_over(program, *options):
    """What a storm did, in a process of its own since it forks."""
    command = [sys.executable, "-m", f"joulery.testing.storm.{program}", *map(str, options)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=240)
    assert done.stdout, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.timeout(300)
def test_kills_on_sqlite_lose_nothing():
    """Clients delete what was acknowledged; a server that forgets it loses it for good."""
    toll = blown_over("driver", "--kills", 24, "--seed", 3, "--clients", 6)
    assert toll["violations"] == []
    assert toll["kills"] == 24
    assert toll["counts"]["reports acknowledged"] > 5
    assert toll["counts"]["acknowledged over HTTP"] > 5


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_postgresql_installed")
def test_kills_and_crashes_on_postgresql_lose_nothing():
    """The same where many machines write, and the database itself crashes."""
    options = ("--kills", 16, "--crash-every", 8, "--seed", 4, "--clients", 5, "--writers", 1)
    toll = blown_over("driver", "--database", "postgresql", *options)
    assert toll["violations"] == []
    assert toll["killed"]["database"] == 2
    assert toll["counts"]["reports acknowledged"] > 2


@pytest.mark.timeout(300)
def test_killed_workers_of_one_server_lose_nothing():
    """A worker that dies must not take along what others have acknowledged."""
    options = ("--kills", 12, "--pause-seconds", 0.1, "--clients", 2, "--writers", 0, "--seed", 6)
    toll = blown_over("driver", "--supervised", *options)
    assert toll["violations"] == []
    assert {"worker", "desk"} & toll["killed"].keys()
    assert toll["counts"]["acknowledged over HTTP"] > 5


@pytest.mark.timeout(300)
def test_trainings_go_on_while_their_server_dies():
    """A training that waits for a dead server, or loses its report, costs more than it saves."""
    toll = blown_over("soak", "--seconds", 5, "--seed", 2)
    assert toll["violations"] == []
    assert toll["killed"]["server"] >= 1
    assert toll["counts"]["reports acknowledged"] > 20
