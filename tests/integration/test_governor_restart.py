"""Governors that die, and what the next one finds."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from joulery.errors import FileError
from joulery.governor import Connection
from joulery.testing.emulator import build
from support.governor.experiments import crash_everywhere
from support.governor.node import GovernedNode

JOB = """
import time
from joulery.governor import lease
from joulery.hardware import discover
with lease(discover()[0], watts=150, ttl_seconds=0.6) as held:
    print("held", flush=True)
    input()
    held.set(watts=160)
    print(held.watts, flush=True)
    input()
"""

SERVE = """
import sys
from joulery.cli import main
sys.exit(main(["governor", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def governed():
    """A governor on one emulated board."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    with GovernedNode() as made:
        yield made


def test_death_at_every_boundary_is_repaired(governed):
    """A governor killed between its journal and the board would leave a limit for good."""
    report = crash_everywhere(governed, step=5, seed=int(time.time()))
    assert report.boundaries > 40
    assert report.off_baseline == ()


def test_damaged_journal_is_reported_and_its_limit_lent_to_no_one(governed):
    """After a damaged journal the limit of a dead holder became the one to restore, silently."""
    device = governed.devices[0]
    holder = Connection(governed.socket)
    holder.ask("acquire", device=device, watts=250, ttl_seconds=30)
    governed.stop(signal.SIGKILL)
    holder.close()
    (journal,) = governed.state.glob("*.json")
    journal.write_bytes(journal.read_bytes().replace(b"400.0", b"250.0"))
    governed.start()
    with closing(Connection(governed.socket)) as connection:
        assert "damaged" in connection.ask("status")["devices"][0]["flaw"]
        with pytest.raises(FileError, match="damaged"):
            connection.ask("acquire", device=device, watts=200, ttl_seconds=30)
        assert governed.node.power_limit(0) == 250.0
        assert "damaged" in (governed.state / "audit.jsonl").read_text()
        governed.node.set_power_limit(0, 400.0)  # the remedy
        journal.unlink()
        reply = connection.ask("acquire", device=device, watts=200, ttl_seconds=30)
        assert reply["baseline_watts"] == 400.0
    assert governed.restored_after(0, 400.0) is not None


def test_sigterm_restores_and_cleans_up(governed):
    """Stopping the service would leave limits, a socket and a journal behind."""
    connection = Connection(governed.socket)
    connection.ask("acquire", device=governed.devices[0], watts=200, ttl_seconds=30)
    assert governed.node.power_limit(0) == 200.0
    governed.stop(signal.SIGTERM)
    connection.close()
    assert governed.node.power_limit(0) == 400.0
    assert not governed.socket.exists()
    assert list(governed.state.glob("*.json")) == []
    governed.start()


def test_foreign_value_survives_a_crash(governed):
    """Repairing over an administrator's new cap would undo it."""
    connection = Connection(governed.socket)
    connection.ask("acquire", device=governed.devices[0], watts=200, ttl_seconds=30)
    governed.node.set_power_limit(0, 170.0)
    governed.stop(signal.SIGKILL)
    connection.close()
    governed.start()
    assert governed.node.power_limit(0) == 170.0
    governed.node.set_power_limit(0, 400.0)


def test_holder_gets_its_lease_back_from_the_next_governor(governed):
    """An upgrade of the daemon would end the savings of every job on the node."""
    with subprocess.Popen(
        [sys.executable, "-c", JOB],
        env=governed.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as job:
        assert job.stdout.readline() == b"held\n"
        governed.stop(signal.SIGKILL)
        governed.start()
        job.stdin.write(b"\n")
        job.stdin.flush()
        assert job.stdout.readline() == b"160.0\n"
        assert governed.node.power_limit(0) == 160.0
        job.stdin.write(b"\n")
    assert governed.restored_after(0, 400.0) is not None


@pytest.mark.parametrize(
    ("other", "why"),
    [("--socket", "the governor's state is held by process"), ("--state", "already serves")],
)
def test_second_governor_is_refused(governed, tmp_path, other, why):
    """Two writers would undo each other's limits."""
    done = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", other, tmp_path / "other"],
        env=governed.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3
    assert why in done.stderr


def test_audit_tells_what_happened(governed):
    """An administrator could not find out who slowed a board."""
    records = [
        json.loads(line) for line in (governed.state / "audit.jsonl").read_text().splitlines()
    ]
    events = {record["event"] for record in records}
    assert {"start", "acquire", "set", "end", "restored", "foreign", "stop"} <= events
    acquired = next(record for record in records if record["event"] == "acquire")
    assert acquired["uid"] == os.getuid()
    assert acquired["device"] == governed.devices[0]
