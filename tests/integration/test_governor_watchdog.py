"""Leases without the daemon: the watchdog restores what the process that it serves cannot."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from joulery.testing.emulator import EmulatedNode, build

JOB = """
import os, sys, time
from joulery.governor import lease
from joulery.hardware import discover
with lease(discover()[0], watts=150, ttl_seconds=float(sys.argv[1])) as held:
    print("held", flush=True)
    {body}
"""
# A lease that a thread uses until an exit handler ends it.
BUSY = """
import atexit, contextlib, threading
from joulery.governor import lease
from joulery.hardware import discover

def close():
    stopped.set()
    thread.join()
    leases.close()

def work():
    while not stopped.is_set():
        try:
            held.set(watts=160)
        except Exception as error:
            print(error, flush=True)

stopped, leases = threading.Event(), contextlib.ExitStack()
atexit.register(close)
held = leases.enter_context(lease(discover()[0], watts=150))
thread = threading.Thread(target=work, daemon=True)
thread.start()
"""


@pytest.fixture
def node():
    """An emulated board."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    with EmulatedNode(["A100"]) as made:
        yield made


@pytest.fixture
def start(node, tmp_path):
    """Start a job on the node."""
    environment = {
        **node.env,
        "JOULERY_GOVERNOR": "",
        "JOULERY_GOVERNOR_STATE": str(tmp_path / "state"),
    }

    @contextmanager
    def begin(body="time.sleep(60)", ttl=30.0, before=(), script=JOB, **variables):
        with subprocess.Popen(
            [*before, sys.executable, "-c", script.format(body=body), str(ttl)],
            env={**environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as job:
            try:
                yield job
            finally:
                job.kill()

    return begin


def _held(job):
    assert job.stdout.readline() == b"held\n", job.stderr.read()


def _restored(node, watts):
    deadline = time.monotonic() + 60
    while node.power_limit(0) != watts and time.monotonic() < deadline:
        time.sleep(0.002)
    return node.power_limit(0) == watts


def _watchdogs(pid):
    """Processes that watch a job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if len(words) > 5 and b"_watchdog" in words[3] and words[5] == b"%d" % pid:
                found.append(int(folder.name))
    return found


def _children(pid):
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_killed_parent(node, start, number):
    """A job killed without a daemon would leave its board slow."""
    node.set_power_limit(0, 310.25)
    with start() as job:
        _held(job)
        assert node.power_limit(0) == 150.0
        job.send_signal(number)
        assert _restored(node, 310.25)


def test_waiting_for_a_board_takes_little_of_a_core(node, start):
    """The watchdog of a dead job took a whole core while its board could not be restored."""
    node.set_power_limit(0, 310.25)
    with start() as job:
        _held(job)
        (watchdog,) = _watchdogs(job.pid)
        node.deny(0)
        job.kill()
        job.wait()
        before, began = _processor_seconds(watchdog), time.monotonic()
        time.sleep(3.0)
        used, waited = _processor_seconds(watchdog) - before, time.monotonic() - began
    node.clear_faults()
    assert used < 0.4 * waited
    assert _restored(node, 310.25)


def _processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_clean_end_leaves_no_watchdog_or_journal(node, start, tmp_path):
    """Every job would leave a process and a file behind."""
    with start(body="print(held.watts, flush=True)") as job:
        _held(job)
        assert job.stdout.readline() == b"150.0\n"
        assert job.wait(60) == 0
    assert node.power_limit(0) == 400.0
    assert list((tmp_path / "state").glob("*.json")) == []


def test_exit_handlers_still_hold_their_lease(node, start):
    """A tuner at work when its training ends would fail, as its watchdog ended before it."""
    for _ in range(3):
        with start(script=BUSY) as job:
            assert job.communicate(timeout=60) == (b"", b"")
        assert node.power_limit(0) == 400.0


def test_whole_group_and_watchdog_killed_is_repaired_by_the_next_job(node, start):
    """When a cgroup is killed the watchdog dies too; the limit must not stay for ever."""
    with start() as job:
        _held(job)
        (watchdog,) = _watchdogs(job.pid)
        os.kill(watchdog, signal.SIGKILL)
        job.kill()
        job.wait()
        time.sleep(0.05)
        assert node.power_limit(0) == 150.0
    with start(body="print(held.baseline_watts, flush=True)") as job:
        _held(job)
        assert job.stdout.readline() == b"400.0\n"
        job.wait(60)
    assert node.power_limit(0) == 400.0


def test_a_job_whose_children_are_killed_leaves_no_limit(node, start):
    """Ray kills the children of a worker that it ends: the watchdog must not be one."""
    with start() as job:
        _held(job)
        for child in _children(job.pid):
            os.kill(child, signal.SIGKILL)
        job.kill()
        assert _restored(node, 400.0)


def test_killed_watchdog_is_replaced(node, start):
    """Killing the child first would defeat the guard."""
    with start(ttl=0.6) as job:
        _held(job)
        (watchdog,) = _watchdogs(job.pid)
        os.kill(watchdog, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not set(_watchdogs(job.pid)) - {watchdog} and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.4)  # it says that it is ready before it counts
        job.kill()
        assert _restored(node, 400.0)


def test_stopped_parent(node, start):
    """A paused job would keep its board slow for as long as it is paused."""
    with start(ttl=0.6) as job:
        _held(job)
        job.send_signal(signal.SIGSTOP)
        assert _restored(node, 400.0)
        job.send_signal(signal.SIGKILL)


def test_second_job_learns_who_holds_the_board(node, start):
    """Two jobs would undo each other's limits."""
    with start() as first:
        _held(first)
        with start() as second:
            error = second.stderr.read().decode()
            assert second.wait(60) != 0
        assert f"is held by process {first.pid}" in error
        first.kill()
        assert _restored(node, 400.0)


def _may_unshare():
    command = ["unshare", "--mount", "--net", "true"]
    return shutil.which("unshare") and subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize(
    "before", [(), ("unshare", "--mount", "--net")], ids=["plain", "container"]
)
def test_jobs_with_other_state_folders_do_not_undo_each_other(node, start, tmp_path, before):
    """Containers with a /run of their own left a board at the limit of another container."""
    if before and not _may_unshare():
        pytest.skip("no right to make namespaces here")
    other = {"JOULERY_GOVERNOR_STATE": str(tmp_path / "other")}
    with start() as first:
        _held(first)
        with start(before=before, **other) as second:
            error = second.stderr.read().decode()
            assert second.wait(60) != 0
        assert "held by a governor whose state is not" in error
        assert node.power_limit(0) == 150.0
        first.kill()
        assert _restored(node, 400.0)
    with start(before=before, body="print(held.baseline_watts, flush=True)", **other) as third:
        _held(third)
        assert third.stdout.readline() == b"400.0\n"


def test_no_rights(node, start):
    """Without rights a job must hear the remedy, and nothing may be changed."""
    node.deny(None)
    with start() as job:
        assert b"MissingRightsError" in job.stderr.read()
    assert node.power_limit(0) == 400.0
