import pytest

from joulery.hardware.nvidia_visible import indices_are_certain, visible_ids

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
def test_visible_ids(value, expected):
    """A process would be billed for boards that it cannot use."""
    assert list(visible_ids(value, BOARDS, INSTANCES)) == expected


@pytest.mark.parametrize(
    ("environ", "names", "certain"),
    [
        ({}, ["A100", "A100"], True),
        ({}, ["A100", "T4"], False),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["A100", "T4"], True),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, ["A100", "T4"], False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa11"}, ["A100", "T4"], True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["A100", "T4"], False),
        ({}, [], True),
    ],
)
def test_indices_are_certain(environ, names, certain):
    """On a mixed machine an index would silently mean another board."""
    assert indices_are_certain(environ, names) is certain
