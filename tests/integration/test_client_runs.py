"""Recurring runs in processes of their own: killed, crashing, side by side, without a server."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from http.client import HTTPConnection
from pathlib import Path

import pytest

from joulery.client import open_backend, read_token
from joulery.clock import REAL_CLOCK
from joulery.jobs import JobService
from joulery.jobs.policies import RunEnd
from joulery.storage import EventKind, Store
from support.forked import ForkedCommand
from support.server_process import log_in

pytestmark = pytest.mark.slow

# Arguments: location, how it ends, epochs, name.
TRAINING = """
import os, signal, sys, time
from joulery.clock import REAL_CLOCK
from joulery.hardware import catalog
from joulery.hardware import SimulatedGpu
from joulery.training import _live as live
from joulery.training._run import Run

live._HEARTBEAT_SECONDS = 0.2, 0.2
store, how, epochs, name = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
board = catalog.board("V100")
work = catalog.workload("resnet50", board).scaled(0.02)
gpu = SimulatedGpu(board, REAL_CLOCK)
begun = time.monotonic()
run = Run(
    name, batch_sizes=[32, 64], default_batch_size=64, target=0.9, max_epochs=1000, devices=[gpu],
    store=store,
)
size = run.batch_size
print("asked", round(time.monotonic() - begun, 3), size, flush=True)
for epoch in run.epochs():
    for _ in run.steps(range(10)):
        gpu.run(work)
    print("epoch", epoch, flush=True)
    if how == "raise" and epoch == 3:
        raise RuntimeError("bug of the user")
    if how == "exit" and epoch == 3:
        sys.exit(7)
    run.report(0.99 if epoch + 1 >= epochs else 0.5)
print("ended", round(time.monotonic() - begun, 3), run.target_reached, flush=True)
"""


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """Folders of one's own, for this process and those it starts."""
    for name in ("DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("JOULERY_STORE", "JOULERY_TOKEN", "JOULERY_TEAM"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def training(location, how="reach", epochs=4):
    """Start one in an interpreter of its own, since its end is under test."""
    return subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(location), how, str(epochs), "job"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class ForkedTraining:
    """A training in a process that has imported Joulery: faster to start by a second.

    Args:
        location: Store or server.
        epochs: Number of epochs.
    """

    def __init__(self, location, epochs=4):
        file, name = tempfile.mkstemp(prefix="training-", suffix=".err")
        os.close(file)
        self._errors = Path(name)
        arguments = [str(location), "reach", str(epochs), "job"]
        self._process = ForkedCommand(arguments, os.environ, self._errors, TRAINING)
        self.stdout = io.TextIOWrapper(self._process.stdout)
        self.send_signal = self._process.send_signal

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)
        self.stdout.close()
        self._errors.unlink()

    def output(self):
        """What it still prints to its end, and its standard error; it must succeed."""
        text = self.stdout.read()
        errors = self._errors
        assert self._process.wait(60) == 0, errors.read_text()
        return text, errors.read_text()


def until(process, words):
    """Wait for a line of output."""
    for line in process.stdout:
        if line.startswith(words):
            return line
    raise AssertionError(process.output())


def decisions(location):
    """All decisions with their outcomes."""
    backend = open_backend(location, "default", seconds=20.0)
    try:
        return [e for job in backend.jobs()[0] for e in backend.decisions(job.id)[0]]
    finally:
        backend.close()


def test_a_killed_training_is_released_with_what_it_had_cost(environ):
    """If this fails, a worker that dies blocks its batch size, or its cost is forgotten."""
    path = environ / "store.sqlite"
    with ForkedTraining(path, epochs=1000) as process:
        until(process, "epoch 8")
        process.send_signal(signal.SIGKILL)
    with Store.open(path) as store:
        with store.reading() as transaction:
            (open_one,) = transaction.decisions(1)
        assert open_one.progress["epochs"] >= 1
        assert JobService(store).expire(REAL_CLOCK.wall() + 700.0) == 1
        with store.reading() as transaction:
            events = list(transaction.events(1))
    assert events[-1].kind == EventKind.EXPIRED
    assert events[-1].body["epochs"] >= 1
    assert events[-1].body["cost"] > 0


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("exit", 7)])
def test_a_training_that_ends_itself_is_told_at_the_end_of_the_process(environ, how, code):
    """If this fails, crashes are only noticed when their lease expires."""
    path = environ / "store.sqlite"
    with training(path, how) as process:
        process.communicate(timeout=60)
    assert process.returncode == code
    (entry,) = decisions(path)
    assert entry.outcome.end == RunEnd.ABANDONED
    assert entry.outcome.epochs == 3
    assert entry.outcome.joules > 0


def test_two_processes_at_once_share_a_file(environ):
    """If this fails, trainings on one machine lose each other's reports, or wait for each other."""
    path = environ / "store.sqlite"
    rounds = 2
    for _ in range(rounds):
        with ForkedTraining(path) as first, ForkedTraining(path) as second:
            first.output()
            second.output()
    entries = decisions(path)
    assert len(entries) == 2 * rounds
    assert {entry.outcome.end for entry in entries} <= {RunEnd.REACHED, RunEnd.STOPPED}
    assert len({entry.decision.recurrence for entry in entries}) == 2 * rounds


class Server:
    """A server that can be killed and started again at the same place."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        """Serve; return once it answers."""
        store = ["--store", str(self.folder / "server.sqlite")]
        self.process = ForkedCommand(
            ["serve", "--listen", f"127.0.0.1:{self.port}", "--json", *store],
            os.environ,
            self.folder / "server.log",
        )
        json.loads(self.process.stdout.readline())

    def kill(self):
        """End it at once, if it runs."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)
            self.process.stdout.close()
            self.process = None


@pytest.fixture
def server(environ):
    """A server, started."""
    made = Server(environ)
    made.start()
    yield made
    made.kill()


def test_a_server_that_dies_in_the_middle_changes_nothing_and_hears_of_it_later(server):
    """If this fails, an outage stops a training, delays it, or loses what it found out."""
    with ForkedTraining(server.url, epochs=12) as process:
        until(process, "epoch 3")
        server.kill()
        output, errors = process.output()
    assert "ended" in output
    assert output.strip().endswith("True")
    assert "later, by another run" in errors

    with ForkedTraining(server.url) as process:  # no server at all
        output, errors = process.output()
    asked = float(output.split()[1])
    assert asked < 2.0 + 18.0  # the bound, and imports on a busy machine
    assert "no backend answers: the default" in errors

    server.start()
    with ForkedTraining(server.url) as process:
        process.output()
    entries = decisions(server.url)
    assert [entry.outcome.end for entry in entries] == [RunEnd.REACHED] * 3
    assert entries[0].outcome.epochs == 12
    (unasked,) = [entry for entry in entries if entry.key.endswith("-instead")]
    assert unasked.decision.batch_size == entries[0].decision.batch_size
    assert unasked.outcome.epochs == 4
    assert not list((server.folder / "state").rglob("*.jsonl")) or not any(
        path.stat().st_size for path in (server.folder / "state").rglob("*.jsonl")
    )


def test_a_server_shows_what_a_training_does(server):
    """If this fails, people who watch a run see neither its devices nor what tuning does."""
    with ForkedTraining(server.url, epochs=30) as process:
        process.output()
    (entry,) = decisions(server.url)
    browser = HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = log_in(server.url, read_token(server.url))
    browser.request("GET", f"/jobs/1/runs/{entry.number}", headers=headers)
    text = browser.getresponse().read().decode()
    browser.close()
    for words in ("Power by device", "power limit", "Core clock by device", "Training steps"):
        assert words in text, words
    # Which phases a heartbeat meets depends on how busy the machine is.
    assert any(words in text for words in ("warming up", "profiling", "holding", "training"))


def test_a_run_needs_no_store_packages_to_talk_to_a_server():
    """If this fails, training images must carry a database library."""
    code = (
        "import sys; import joulery.client._http, joulery.client._resilient; "
        "import joulery.client._backend, joulery.training._attempt; "
        "print('sqlalchemy' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize("how", ["reach", "exit"])
def test_runs_leave_their_energy_and_frontiers_behind(server, environ, how):
    """If this fails, what runs measured ends with their processes."""
    for location in (environ / "store.sqlite", server.url):
        with training(location, how) as process:
            process.communicate(timeout=60)
        (entry,) = decisions(location)
        backend = open_backend(location, "default", seconds=20.0)
        (used,), (profile,) = backend.energy(1)[0], backend.profiles(1)
        backend.close()
        assert (used.decision, used.origin) == (entry.decision.id, "simulated")
        assert used.joules == pytest.approx(entry.outcome.joules)
        assert profile.batch_size == entry.decision.batch_size
        assert {point.provenance.origin for point in profile.frontier} == {"simulated"}


def test_local_and_remote_learn_the_same(server, environ):
    """If this fails, a server decides otherwise than the library alone."""
    path = environ / "store.sqlite"
    for location in (path, server.url):
        with ForkedTraining(location) as process:
            process.output()
    (local,), (remote,) = decisions(path), decisions(server.url)
    assert local.decision.batch_size == remote.decision.batch_size
    assert local.outcome.epochs == remote.outcome.epochs == 4
    assert min(local.outcome.seconds, remote.outcome.seconds) > 0
    backend = open_backend(path)
    assert backend.jobs()[0][0].device == "V100"
    backend.close()
