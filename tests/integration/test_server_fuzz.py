"""No request ends in an internal error or reveals internals."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.server_fuzz import Grammar, fuzz, serve_target

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target():
    """A server with jobs of every policy, and open decisions."""
    with serve_target() as (server, target):
        yield server, target


def test_the_grammar_of_nasty_requests(target):
    """One strange request would show a stack trace, or stop the server."""
    server, given = target
    findings = fuzz(Grammar(given, seed=1), server.port, 1500)
    assert findings.faults == []
    assert findings.statuses[200] > 30
    assert findings.statuses[400] > 100
    assert findings.statuses[422] > 100


def test_the_server_does_as_it_is_described():
    """Generated clients would meet answers that they do not know.

    In a process of its own: its cases are made when they are collected, by a plugin that takes
    seconds to import, which every worker would pay for.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "schemathesis", "-p", "no:cacheprovider",
         Path(__file__).with_name("described_server.py")],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
