"""Reports that could not be delivered are kept, and delivered once."""

import os
import stat
import subprocess
import sys
import threading

import pytest
from msgspec.structs import replace

from joulery.client import RunMeasurements
from joulery.client._outbox import Outbox, PendingReport
from joulery.errors import ConflictError, FileError, MissingRightsError, StoreBusyError
from joulery.frontier import OperatingPoint, Setting
from joulery.jobs import Decision, Definition, EnergyEntry, Job, Measured, Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost, LeastEnergy

DECISION = Decision(
    "7.1", 0, ActionKind.TRAIN, 64, 150.0, (125.0,), float("inf"), "why", 1.7e9, "tok"
)
OUTCOME = Outcome(RunEnd.REACHED, 9.0, 100.0, 2e4, 150.0, (Measured(150.0, 11.0, 2200.0, 0.01),))

JOB = Job("nightly", (64, 128), 64, Cost(0.5, 300.0), LeastEnergy(0.05), 40, (125.0, 150.0))
DEFINITION = Definition(JOB, "V100", "zeus", {"beta": 3.0})
REQUEST = Request("key-instead", None, only=64, ran_seconds=90.5)
MEASURED = RunMeasurements(
    64,
    "V100",
    (OperatingPoint(11.0, 2200.0, Setting(power_limit_watts=150.0, batch_size=64)),),
    (EnergyEntry("7.1", "gpu 0", 100.0, 2e4, "measured", "a counter"),),
    "an epoch",
)
OFFLINE = PendingReport("team", DEFINITION, REQUEST, None, OUTCOME, "key", MEASURED)


def entry(number):
    """A report on decision ``number``."""
    return replace(OFFLINE, decision=replace(DECISION, id=f"7.{number}"), key=f"key{number}")


@pytest.fixture
def outbox(tmp_path):
    """An empty outbox."""
    return Outbox(tmp_path / "deep" / "down" / "j.jsonl")


def test_what_is_kept_comes_back_as_it_was(outbox):
    """If this fails, a report is delivered with other figures than were measured."""
    outbox.append(entry(1))
    outbox.append(OFFLINE)
    outbox.append(replace(entry(2), outcome=None))
    assert outbox.entries() == [entry(1), OFFLINE, replace(entry(2), outcome=None)]


def test_only_its_owner_can_read_it(outbox):
    """If this fails, tokens of decisions leak to other users of the machine."""
    outbox.append(entry(1))
    assert stat.S_IMODE(outbox._path.stat().st_mode) == 0o600
    assert stat.S_IMODE(outbox._path.parent.stat().st_mode) == 0o700


def test_what_was_delivered_is_gone_and_the_rest_is_not(outbox):
    """If this fails, reports are lost, or delivered for ever."""
    for number in range(5):
        outbox.append(entry(number))
    sent = []

    def send(one):
        if one.key == "key3":
            raise StoreBusyError("down", remedy="wait")
        sent.append(one.key)

    assert outbox.deliver(send) == 3
    assert sent == ["key0", "key1", "key2"]
    assert [one.key for one in outbox.entries()] == ["key3", "key4"]
    assert outbox.deliver(lambda _: None) == 2
    assert not outbox.waiting


def test_what_is_refused_for_good_does_not_block_the_rest(outbox):
    """If this fails, one bad report keeps all later ones from being delivered."""
    for number in range(3):
        outbox.append(entry(number))
    sent = []

    def send(one):
        if one.key == "key0":
            raise ConflictError("reported before", remedy="none")
        if one.key == "key1":
            raise MissingRightsError("not now", remedy="none")
        sent.append(one.key)

    outbox.deliver(send)
    assert sent == ["key2"]
    assert [one.key for one in outbox.entries()] == ["key1"]


def test_a_torn_tail_costs_nothing_but_itself(outbox):
    """If this fails, a crash in the middle of a write loses other reports."""
    outbox.append(entry(1))
    with outbox._path.open("ab") as file:
        file.write(entry(2).to_json()[:-19])
    outbox.append(entry(3))
    assert [one.key for one in outbox.entries()] == ["key1", "key3"]
    assert outbox.deliver(lambda _: None) == 3
    assert not outbox.waiting


def test_it_does_not_grow_without_bound(tmp_path):
    """If this fails, a server that is gone for months fills the disk."""
    small = Outbox(tmp_path / "j.jsonl", largest_bytes=5000)
    for number in range(100):
        small.append(entry(number))
    assert small._path.stat().st_size <= 5000
    kept = [one.key for one in small.entries()]
    assert kept[-1] == "key99"
    assert kept == sorted(kept, key=lambda key: int(key[3:]))


def test_a_folder_that_cannot_be_written_is_said_to_be(tmp_path):
    """If this fails, a report is lost in silence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot keep"):
        Outbox(tmp_path / "file" / "j.jsonl").append(entry(1))


def test_only_one_delivers_at_a_time(outbox):
    """If this fails, every process of a cluster job sends every report."""
    outbox.append(entry(1))
    inside, go_on = threading.Event(), threading.Event()
    sent = []

    def slow(one):
        sent.append(one.key)
        inside.set()
        go_on.wait(60.0)

    thread = threading.Thread(target=outbox.deliver, args=(slow,))
    thread.start()
    inside.wait(60.0)
    assert outbox.deliver(lambda one: sent.append(one.key)) == 0
    outbox.append(entry(2))
    go_on.set()
    thread.join()
    assert sent == ["key1"]
    assert [one.key for one in outbox.entries()] == ["key2"]


_WRITER = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from msgspec.structs import replace
from joulery.client._outbox import Outbox, PendingReport
from joulery.jobs._models import Decision, Definition, Job, Outcome, Request
from joulery.jobs.policies._base import ActionKind, RunEnd
from joulery.objectives import Cost
decision = Decision("7.1", 0, ActionKind.TRAIN, 64, None, (), float("inf"), "why", 1.7e9, "tok")
outcome = Outcome(RunEnd.REACHED, 9.0, 100.0, 2e4)
job = Definition(Job("nightly", (64, 128), 64, Cost(0.5, 300.0)))
outbox = Outbox(Path(sys.argv[1]))
for number in range(60):
    key = f"{sys.argv[2]}-{number}"
    outbox.append(PendingReport("team", job, Request(key), decision, outcome, key))
"""


def test_several_processes_write_while_one_delivers(tmp_path):
    """If this fails, processes on one machine lose each other's reports."""
    path = tmp_path / "j.jsonl"
    source = os.path.dirname(os.path.dirname(sys.modules["joulery"].__file__))  # noqa: PTH120
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(name), source])
        for name in range(3)
    ]
    outbox, sent = Outbox(path), []
    while any(writer.poll() is None for writer in writers):
        outbox.deliver(lambda one: sent.append(one.key))
    outbox.deliver(lambda one: sent.append(one.key))
    assert all(writer.returncode == 0 for writer in writers)
    assert sorted(sent) == sorted(f"{name}-{number}" for name in range(3) for number in range(60))
