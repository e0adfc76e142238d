"""Servers, clients and databases are killed at any moment; what was acknowledged is kept, once.

Reduced; ``scripts/stress_recurring_service.py`` kills ten thousand.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def kill_test(program, *options):
    """The result of a kill test, in a process of its own since it forks."""
    command = [sys.executable, "-m", f"support.kill_test.{program}", *map(str, options)]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, check=False, capture_output=True, timeout=240, env=environment)
    assert done.stdout, done.stderr.decode()
    return json.loads(done.stdout)


def test_kills_on_sqlite_lose_nothing():
    """Clients delete what was acknowledged; a server that forgets it loses it for good."""
    result = kill_test("driver", "--kills", 16, "--seed", 3, "--clients", 6)
    assert result["violations"] == []
    assert result["kills"] == 16
    assert result["counts"]["reports acknowledged"] > 5
    assert result["counts"]["acknowledged over HTTP"] > 5


@pytest.mark.usefixtures("_postgresql_installed")
def test_kills_and_crashes_on_postgresql_lose_nothing():
    """The same where many machines write, and the database itself crashes."""
    options = ("--kills", 16, "--crash-every", 8, "--seed", 4, "--clients", 5, "--writers", 1)
    result = kill_test("driver", "--database", "postgresql", *options)
    assert result["violations"] == []
    assert result["killed"]["database"] == 2
    assert result["counts"]["reports acknowledged"] > 2


def test_trainings_go_on_while_their_server_dies():
    """A training that waits for a dead server, or loses its report, costs more than it saves."""
    result = kill_test("soak", "--seconds", 5, "--reports", 60, "--seed", 2)
    assert result["violations"] == []
    assert result["killed"]["server"] >= 1
    assert result["counts"]["reports acknowledged"] > 20
