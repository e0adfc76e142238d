"""Which accelerators a process may use, by variables and the device cgroup."""

from dataclasses import dataclass

import pytest

from joulery.hardware import DeviceInfo, DeviceKind, visible_devices
from joulery.hardware._visibility import cuda_visible_ids, rocm_visible_indices


@dataclass
class Fake:
    """A device that only says who it is."""

    info: DeviceInfo


def board(id_, index, vendor="nvidia", parent=None):
    """A board or a part of one."""
    return Fake(DeviceInfo(id_, id_, DeviceKind.GPU, vendor, index, parent=parent))


CPU = Fake(DeviceInfo("rapl:package-0", "CPU", DeviceKind.CPU, "powercap"))
NVIDIA = [board("GPU-aa", 0), board("GPU-bb", 1), board("GPU-cc", 2)]
PARTS = [board("MIG-b1", 0, parent="GPU-bb"), board("MIG-b2", 1, parent="GPU-bb")]
AMD = [board(f"{letter * 2}-11", n, "amd") for n, letter in enumerate("xyz")]


def seen(devices, environ, cgroup):
    """Ids of what stays visible."""
    return [device.info.id for device in visible_devices(devices, environ, cgroup)]


@pytest.fixture
def cgroup(tmp_path):
    """A device cgroup that is not there."""
    return tmp_path / "devices.list"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, ["GPU-aa", "GPU-bb", "GPU-cc"], id="nothing restricts"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, ["GPU-bb"], id="CUDA index"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "GPU-c"}, ["GPU-cc"], id="CUDA UUID"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, [], id="CUDA empty"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "-1"}, [], id="CUDA none"),
        pytest.param({"SLURM_JOB_GPUS": "0,2"}, ["GPU-aa", "GPU-cc"], id="Slurm job"),
        pytest.param(
            {"SLURM_STEP_GPUS": "2", "SLURM_JOB_GPUS": "0,2"}, ["GPU-cc"], id="Slurm step"
        ),
        pytest.param({"SLURM_JOB_GPUS": ""}, ["GPU-aa", "GPU-bb", "GPU-cc"], id="Slurm says none"),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "1,2"}, ["GPU-aa"], id="CUDA first"
        ),
        pytest.param(
            {"NVIDIA_VISIBLE_DEVICES": "all"}, ["GPU-aa", "GPU-bb", "GPU-cc"], id="container all"
        ),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "void"}, [], id="container void"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "none"}, [], id="container none"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": ""}, [], id="container empty"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "GPU-bb"}, ["GPU-bb"], id="container UUID"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "2,0"}, ["GPU-aa", "GPU-cc"], id="container index"),
        pytest.param(
            {"SLURM_JOB_GPUS": "1", "NVIDIA_VISIBLE_DEVICES": "all"}, ["GPU-bb"], id="Slurm first"
        ),
    ],
)
def test_variables_hide_boards(environ, expected, cgroup):
    """A job would be charged for its neighbours' boards, or miss its own."""
    assert seen([*NVIDIA, CPU], environ, cgroup) == [*expected, "rapl:package-0"]


def test_parts_of_visible_boards_stay(cgroup):
    """The doctor could not list what a board is split into."""
    devices = [*NVIDIA[:2], *PARTS]
    assert seen(devices, {"CUDA_VISIBLE_DEVICES": "1"}, cgroup) == ["GPU-bb", "MIG-b1", "MIG-b2"]
    assert seen(devices, {"CUDA_VISIBLE_DEVICES": "0"}, cgroup) == ["GPU-aa"]


def test_a_job_on_one_part_sees_only_that(cgroup):
    """A job on a slice would be charged for the whole board."""
    devices = [*NVIDIA, *PARTS]
    assert seen(devices, {"CUDA_VISIBLE_DEVICES": "MIG-b2"}, cgroup) == ["MIG-b2"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["a *:* rwm"], ["GPU-aa", "GPU-bb", "GPU-cc"], id="all"),
        pytest.param(["c 195:* rwm"], ["GPU-aa", "GPU-bb", "GPU-cc"], id="all of NVIDIA"),
        pytest.param(["b *:* rwm", "c 195:2 rw"], ["GPU-cc"], id="block devices do not matter"),
        pytest.param(["c *:* m", "c 195:0 rwm"], ["GPU-aa"], id="mknod everywhere is no access"),
        pytest.param(["c 1:3 rwm", "c 195:1 rwm", "c 195:255 rw"], ["GPU-bb"], id="one"),
        pytest.param(["c 195:255 rwm", "c 195:254 rwm"], [], id="only the control nodes"),
        pytest.param(["c 1:3 rwm", "b 195:0 rwm"], [], id="none"),
        pytest.param(["", "garbage"], [], id="unreadable lines"),
    ],
)
def test_the_device_cgroup_hides_boards(lines, expected, cgroup):
    """Boards that the kernel refuses would be counted."""
    cgroup.write_text("\n".join(lines) + "\n")
    assert seen(NVIDIA, {}, cgroup) == expected


def test_the_cgroup_narrows_what_variables_show(cgroup):
    """A variable could show what the kernel refuses."""
    cgroup.write_text("c 195:1 rwm\n")
    assert seen(NVIDIA, {"CUDA_VISIBLE_DEVICES": "0,1"}, cgroup) == ["GPU-bb"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, ["xx-11", "yy-11", "zz-11"], id="nothing restricts"),
        pytest.param({"ROCR_VISIBLE_DEVICES": "2"}, ["zz-11"], id="ROCr"),
        pytest.param({"HIP_VISIBLE_DEVICES": "0,1"}, ["xx-11", "yy-11"], id="HIP"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, ["yy-11"], id="HIP reads CUDA's"),
        pytest.param(
            {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["zz-11"], id="both"
        ),
        pytest.param({"ROCR_VISIBLE_DEVICES": ""}, [], id="empty"),
        pytest.param(
            {"SLURM_JOB_GPUS": "0", "NVIDIA_VISIBLE_DEVICES": "void"},
            ["xx-11", "yy-11", "zz-11"],
            id="NVIDIA's variables do not matter",
        ),
    ],
)
def test_amd_has_its_own_variables(environ, expected, cgroup):
    """Boards of the other vendor would follow the wrong variable."""
    assert seen(AMD, environ, cgroup) == expected


def test_a_machine_without_accelerators_stays_as_it_is(cgroup):
    """Processors would be hidden along with boards."""
    assert seen([CPU], {"CUDA_VISIBLE_DEVICES": ""}, cgroup) == ["rapl:package-0"]


BOARDS = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"]
INSTANCES = ["MIG-11", "MIG-12", "MIG-21"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, BOARDS, id="unset shows all"),
        pytest.param("", [], id="empty shows none"),
        pytest.param("-1", [], id="minus one shows none"),
        pytest.param("NoDevFiles", [], id="a scheduler's word for none"),
        pytest.param("2,1", ["GPU-bb33", "GPU-aa22"], id="order of the list"),
        pytest.param("0,2,-1,1", ["GPU-aa11", "GPU-bb33"], id="stops at the invalid one"),
        pytest.param("0,9,1", ["GPU-aa11"], id="stops beyond the last board"),
        pytest.param("0,,1", ["GPU-aa11"], id="stops at an empty entry"),
        pytest.param("0,1,", ["GPU-aa11", "GPU-aa22"], id="trailing comma"),
        pytest.param(" 1 , 0", ["GPU-aa22", "GPU-aa11"], id="blanks"),
        pytest.param("1st,+2nd", ["GPU-aa22", "GPU-bb33"], id="as strtoul reads"),
        pytest.param("0,0", [], id="a board twice hides all"),
        pytest.param("0,GPU-bb33", ["GPU-aa11"], id="indices, then a UUID"),
        pytest.param("GPU-bb33,GPU-aa11", ["GPU-bb33", "GPU-aa11"], id="whole UUIDs"),
        pytest.param("GPU-b,GPU-c", ["GPU-bb33", "GPU-cc44"], id="cut short"),
        pytest.param("GPU-cc44,GPU-aa", ["GPU-cc44"], id="fits two boards"),
        pytest.param("GPU-dd,GPU-cc44", [], id="fits none"),
        pytest.param("GPU-bb,GPU-bb33", [], id="a board twice by two names"),
        pytest.param("GPU-bb33,0", ["GPU-bb33"], id="a UUID, then an index"),
        pytest.param("MIG-21,MIG-11", ["MIG-21", "MIG-11"], id="instances"),
        pytest.param("MIG-2", ["MIG-21"], id="instance cut short"),
        pytest.param("MIG-21,GPU-bb33", ["MIG-21"], id="an instance, then a board"),
        pytest.param("٣", [], id="digits of another script"),
    ],
)
def test_cuda_visible_ids(value, expected):
    """A process would be billed for boards that it cannot use."""
    assert list(cuda_visible_ids(value, BOARDS, INSTANCES)) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 2, 3)),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ({"HIP_VISIBLE_DEVICES": "3"}, (3,)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (1,)),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}, (3,)),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1,0"}, (1, 3)),
        ({"ROCR_VISIBLE_DEVICES": "GPU-BB,0"}, (1, 0)),
        ({"ROCR_VISIBLE_DEVICES": "0,9,1"}, (0,)),
        ({"ROCR_VISIBLE_DEVICES": "0,-1,1"}, (0,)),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
        ({"HIP_VISIBLE_DEVICES": ""}, ()),
        ({"ROCR_VISIBLE_DEVICES": " 1 , 1 , 2 "}, (1, 2)),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ()),
    ],
)
def test_rocm_visible_indices(environ, expected):
    """A job would be billed for GPUs that it cannot even see."""
    assert rocm_visible_indices(environ, ("aa", "bb", "cc", "dd")) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1,5", ["b", "f"]), (" 5 ", ["f"]), ("all", ["b", "d", "f"]), ("", ["b", "d", "f"])],
)
def test_gaudi_modules(cgroup, value, expected):
    """A job on two of eight cards would be billed for all."""
    cards = [board(name, index, "gaudi") for name, index in (("b", 1), ("d", 3), ("f", 5))]
    names = seen([CPU, *cards, *AMD], {"HABANA_VISIBLE_MODULES": value}, cgroup)
    assert names == [CPU.info.id, *expected, *(gpu.info.id for gpu in AMD)]
