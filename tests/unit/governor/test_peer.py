"""Whether a caller has a device, as the kernel and the driver show it."""

from dataclasses import replace

import pytest

from joulery.governor._peer import OPEN, SLURM, Peer, owns
from joulery.hardware import Capability, Telemetry
from support.governor.bench import PlainBoard

PEER = Peer(1000, frozenset({1000}), 50)


class Board(PlainBoard):
    """A board whose driver tells which processes run on it."""

    def __init__(self, *pids):
        super().__init__(2)
        self.capabilities |= {Capability.TELEMETRY}
        self._pids = pids

    def telemetry(self):
        """The processes."""
        return Telemetry(process_ids=self._pids)


@pytest.fixture
def proc(tmp_path):
    """A made-up /proc with the caller, its child and a stranger."""
    for pid, parent in ((50, 1), (60, 50), (61, 60), (70, 1)):
        folder = tmp_path / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (py) x) S {parent} 1 1")
        (folder / "cgroup").write_text("0::/user.slice")
        (folder / "environ").write_bytes(b"")
    (tmp_path / "50" / "task" / "50" / "children").write_text("60 ")
    gpus = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    gpus.mkdir(parents=True)
    (gpus / "information").write_text("GPU UUID: \t plain:2\nDevice Minor: \t 5\n")
    return tmp_path


@pytest.mark.parametrize(("pid", "owned"), [(50, True), (61, True), (70, False), (99, False)])
def test_processes_on_the_board(proc, pid, owned):
    """A job's workers run on its board; a stranger's do not make it the job's."""
    assert owns(PEER, Board(pid), OPEN, proc) is owned


@pytest.mark.parametrize(
    ("holder", "file", "owned"),
    [
        (50, "/dev/nvidia5", True),
        (60, "/dev/nvidia5", True),
        (70, "/dev/nvidia5", False),
        (50, "/dev/nvidia2", False),  # the board's index is not its device's number
        (50, "/dev/nvidiactl", False),
    ],
)
def test_open_device_file(proc, holder, file, owned):
    """Before its first kernel a job is known by its open device file only."""
    (proc / str(holder) / "fd" / "7").symlink_to(file)
    assert owns(PEER, Board(), OPEN, proc) is owned


@pytest.mark.parametrize(
    ("cgroup", "gpus", "how", "owned"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7/step_0", "0,2-3", SLURM, True),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0", "0,2-3", OPEN, False),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0", "0,3", SLURM, False),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0", "x,9" * 50, SLURM, False),
        ("0::/user.slice/session-1", "0,2-3", SLURM, False),
    ],
)
def test_slurm_allocation(proc, cgroup, gpus, how, owned):
    """The environment counts inside a job only, and where the policy says so."""
    (proc / "50" / "cgroup").write_text(cgroup)
    (proc / "50" / "environ").write_bytes(b"A=1\0SLURM_JOB_GPUS=" + gpus.encode() + b"\0")
    assert owns(PEER, Board(), how, proc) is owned


def test_slurm_does_not_count_gaudi_modules(proc):
    """Who was allocated card 2 would set the limit of module 2, which is another's."""
    (proc / "50" / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0")
    (proc / "50" / "environ").write_bytes(b"SLURM_JOB_GPUS=2\0")
    card = Board()
    assert owns(PEER, card, SLURM, proc)
    card.info = replace(card.info, vendor="gaudi")
    assert not owns(PEER, card, SLURM, proc)
