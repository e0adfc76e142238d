"""Which devices are this process's, so that a job counts every joule once."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from joulery.errors import MissingHardwareError, UnknownDeviceError
from joulery.hardware import DeviceInfo, DeviceKind
from joulery.metering import _attribution as attribution, local_rank, my_devices
from joulery.metering._attribution import LocalRank, rank_share, select


@dataclass
class Fake:
    """A device that only says who it is."""

    info: DeviceInfo
    capabilities: frozenset = frozenset()


def gpu(index, vendor="nvidia", parent=None, id_=None):
    """A board, or a part of one."""
    name = id_ or f"GPU-{index}{index}{index}"
    return Fake(DeviceInfo(name, f"Board {index}", DeviceKind.GPU, vendor, index, parent=parent))


CPU = Fake(DeviceInfo("rapl:package-0", "Package 0", DeviceKind.CPU, "powercap"))
MEMORY = Fake(DeviceInfo("rapl:dram-0", "Memory 0", DeviceKind.MEMORY, "powercap"))
BOARDS = [gpu(0), gpu(1), gpu(2), gpu(3)]
MACHINE = [*BOARDS, CPU, MEMORY]


def ids(devices):
    """Their ids."""
    return [device.info.id for device in devices]


@pytest.fixture(autouse=True)
def _own_claims(tmp_path, monkeypatch):
    """Claims of one test stay its own."""
    monkeypatch.setattr(attribution.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(attribution, "_claims", {})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, None, id="alone"),
        pytest.param({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (1, 4), id="torchrun"),
        pytest.param(
            {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            (0, 2),
            id="Open MPI",
        ),
        pytest.param(
            {"MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2"},
            (1, 2),
            id="MVAPICH",
        ),
        pytest.param({"MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}, (3, 4), id="Intel MPI"),
        pytest.param(
            {"SLURM_LOCALID": "2", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, (2, 8), id="srun"
        ),
        pytest.param(
            {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),2", "SLURM_NODEID": "2"},
            (1, 2),
            id="srun, uneven nodes",
        ),
        pytest.param(
            {"SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "4", "SLURM_NTASKS_PER_NODE": "4"},
            None,
            id="a batch script is no step",
        ),
        pytest.param(
            {
                "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "4",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "1",
            },
            (1, 4),
            id="torchrun under srun",
        ),
        pytest.param({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}, None, id="beyond the last"),
        pytest.param({"LOCAL_RANK": "0"}, None, id="size missing"),
        pytest.param({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "²"}, None, id="no numbers"),
        pytest.param({"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "2"}, None, id="negative"),
    ],
)
def test_the_launcher_says_which_rank_this_is(environ, expected):
    """Every rank would count the whole node, or none its own part."""
    found = local_rank(environ)
    assert found == (None if expected is None else LocalRank(*expected))


def test_a_list_shorter_than_the_nodes_is_read_as_its_first():
    """A launcher that leaves out repetitions would make ranks lonely."""
    environ = {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "3"}
    assert local_rank(environ) == LocalRank(1, 4)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_together_count_every_device_once(size):
    """A job would count a board twice or not at all."""
    shares = [rank_share(MACHINE, LocalRank(rank, size), {}) for rank in range(size)]
    counted = [name for share in shares for name in ids(share)]
    assert sorted(counted) == sorted(ids(MACHINE))
    assert all(any(d in BOARDS for d in share) for share in shares)


def test_the_processor_belongs_to_rank_zero():
    """Each rank would add the same CPU."""
    assert CPU in rank_share(MACHINE, LocalRank(0, 2), {})
    assert CPU not in rank_share(MACHINE, LocalRank(1, 2), {})


def test_parts_go_with_their_board():
    """A slice counted by one rank would be counted again in another rank's board."""
    parts = [gpu(9, parent="GPU-000", id_="MIG-a"), gpu(9, parent="GPU-000", id_="MIG-b")]
    machine = [BOARDS[0], *parts, BOARDS[1]]
    shares = [rank_share(machine, LocalRank(rank, 2), {}) for rank in range(2)]
    assert ids(shares[0]) == ["GPU-000", "MIG-a", "MIG-b"]
    assert ids(shares[1]) == ["GPU-111"]


def test_lone_parts_are_shared_out_like_boards():
    """Ranks on slices whose boards they do not see would all count the first."""
    parts = [gpu(0, parent="GPU-x", id_="MIG-a"), gpu(1, parent="GPU-x", id_="MIG-b")]
    shares = [ids(rank_share(parts, LocalRank(rank, 2), {})) for rank in range(2)]
    assert shares == [["MIG-a"], ["MIG-b"]]


def test_ranks_that_see_only_their_own_board_each_count_it():
    """Slurm hides the other boards; a rank would then count none."""
    for rank in range(3):
        share = rank_share([BOARDS[rank], CPU], LocalRank(rank, 4), {})
        assert BOARDS[rank] in share
        assert (CPU in share) == (rank == 0)


def test_a_process_that_claimed_a_board_keeps_it():
    """A second meter in the same process would measure nothing."""
    for _ in range(2):
        assert ids(rank_share([BOARDS[0]], LocalRank(1, 2), {})) == ["GPU-000"]


CLAIM = """
import sys, tempfile
from joulery.metering._attribution import _claim
tempfile.gettempdir = lambda: sys.argv[1]
print(_claim("GPU-shared/0", {"SLURM_JOB_ID": sys.argv[2]}), flush=True)
sys.stdin.readline()
"""


def test_of_two_processes_on_one_board_one_counts_it(tmp_path):
    """Ranks that share a board would each count all of it."""

    def rank(job):
        return subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(tmp_path), job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    with rank("7") as first, rank("7") as second, rank("8") as stranger:
        answers = sorted(process.stdout.readline().strip() for process in (first, second))
        assert answers == ["False", "True"]
        assert stranger.stdout.readline().strip() == "True"
    with rank("7") as later:
        assert later.stdout.readline().strip() == "True"


def test_nowhere_to_agree_counts_rather_than_loses(monkeypatch):
    """A node without a writable /tmp would measure nothing."""
    monkeypatch.setattr(attribution.tempfile, "gettempdir", lambda: "/dev/null")
    assert ids(rank_share([BOARDS[0]], LocalRank(1, 2), {})) == ["GPU-000"]


@pytest.fixture
def machine(monkeypatch):
    """A machine with four boards, a CPU and its memory."""
    monkeypatch.setattr("joulery.hardware.discover", lambda *args, **options: list(MACHINE))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["gpu"], ["GPU-000", "GPU-111", "GPU-222", "GPU-333"]),
        (["GPU:1"], ["GPU-111"]),
        (["nvidia:3"], ["GPU-333"]),
        (["powercap"], ["rapl:package-0", "rapl:dram-0"]),
        (["cpu", "memory"], ["rapl:package-0", "rapl:dram-0"]),
        (["GPU-22"], ["GPU-222"]),
        (["rapl:package-0"], ["rapl:package-0"]),
        (["gpu:0", "nvidia:0", "GPU-000"], ["GPU-000"]),
    ],
)
def test_devices_go_by_kind_vendor_position_and_id(machine, wanted, expected):
    """A device could not be named the way the doctor lists it."""
    assert ids(select(wanted)) == expected


@pytest.mark.parametrize("name", ["gpu:9", "tpu", "", "G", "nvidia:x"])
def test_an_unknown_name_is_refused_with_what_there_is(machine, name):
    """A typo would silently measure something else."""
    with pytest.raises(UnknownDeviceError, match="rapl:package-0"):
        select([name])


@pytest.mark.parametrize("name", ["amd", "node", "intel:0"])
def test_a_kind_that_is_missing_here_is_no_typo(machine, name):
    """A script cannot tell a wrong name from a machine without such hardware."""
    with pytest.raises(MissingHardwareError, match="rapl:package-0"):
        select([name])


def test_given_devices_pass_through_unprobed(monkeypatch):
    """Tests and simulations would need real hardware."""

    def fail(*args, **options):
        raise AssertionError

    monkeypatch.setattr("joulery.hardware.discover", fail)
    assert select([BOARDS[0], CPU]) == [BOARDS[0], CPU]


def test_a_job_of_its_own_counts_what_it_may_see(machine):
    """Boards that the launcher hides would be charged to this job."""
    found = my_devices(environ={"CUDA_VISIBLE_DEVICES": "1,2"})
    assert ids(found) == ["GPU-111", "GPU-222", "rapl:package-0", "rapl:dram-0"]


def test_a_rank_counts_its_share_of_what_it_may_see(machine):
    """Ranks would count boards of the neighbours."""
    environ = {"CUDA_VISIBLE_DEVICES": "1,2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert ids(my_devices(environ=environ)) == ["GPU-222"]


def test_boards_bound_to_tasks_are_all_counted():
    """If this fails, half of the boards that Slurm binds to a task are not counted at all."""
    boards = [gpu(0, id_="bound-0"), gpu(1, id_="bound-1")]
    environ = {"SLURM_GPUS_PER_TASK": "2", "SLURM_JOB_ID": "bound-test"}
    assert rank_share(boards, LocalRank(1, 2), environ) == boards
