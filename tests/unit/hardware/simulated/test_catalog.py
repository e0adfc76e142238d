"""Accelerators by name."""

import pytest

from joulery.errors import InvalidValueError, UnknownDeviceError
from joulery.hardware import Workload, catalog
from joulery.hardware.simulated import _physics as physics


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v100", "V100"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("nvidia a40", "A40"),
        ("rtx6000", "RTX6000"),
        ("Quadro RTX 6000", "RTX6000"),
        ("NVIDIA RTX A6000", "A6000"),
        ("p100", "P100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("mi300x", "MI300X"),
        ("AMD Instinct MI250X", "MI250X"),
    ],
)
def test_drivers_and_people_find_their_board(name, expected):
    """A board that the driver names would not be found."""
    assert catalog.specs(name).name == expected
    assert catalog.board(name).name == expected


def test_no_alias_leads_to_two_boards():
    """A name would silently mean the board that happens to come first."""
    owners = {}
    for name in catalog.names():
        stated = catalog.specs(name)
        for spelling in {name, stated.full_name, *stated.aliases}:
            assert catalog.specs(spelling).name == name
            assert owners.setdefault(spelling.lower(), name) == name


def test_unknown_name_suggests_near_ones():
    """A typo would leave the reader without a hint, or with a page of names."""
    with pytest.raises(UnknownDeviceError, match=r"the nearest are .*A100"):
        catalog.board("A1000")
    with pytest.raises(UnknownDeviceError) as caught:
        catalog.specs("??")
    assert "nearest" not in caught.value.remedy
    assert "A100" in caught.value.remedy


@pytest.mark.parametrize("name", catalog.names())
def test_every_board_is_sound_and_runs(name):
    """A typo in the data would only show in use of that board."""
    board, stated = catalog.board(name), catalog.specs(name)
    assert stated.source
    assert board.source
    assert stated.vendor in ("nvidia", "amd")
    assert 2010 <= stated.year <= 2030
    assert (stated.base_clock_hertz or 0) < stated.boost_clock_hertz < 3e9
    assert 1e11 < stated.memory_bytes_per_second < 2e13
    assert 4e9 <= stated.memory_bytes < 1e12
    assert stated.fp32_flops is None or 1e12 < stated.fp32_flops < 1e15
    assert stated.tensor_flops is None or 1e13 < stated.tensor_flops < 1e16
    work = Workload("dense", compute_seconds=0.1)
    full = physics.settle(board, work, board.max_limit_watts)
    capped = physics.settle(board, work, board.min_limit_watts)
    assert board.idle_watts < capped.watts < full.watts <= board.max_limit_watts
    assert capped.seconds > full.seconds


def test_fitted_boards_say_what_they_were_fitted_to():
    """A derived constant would pass for a measured one."""
    assert {board.name for board in catalog.fitted_boards()} == {"V100", "A40", "A100"}
    assert all("fitted" in board.source for board in catalog.fitted_boards())
    derived = catalog.board("RTX6000")
    assert not derived.fitted
    assert "derived" in derived.source


def test_same_chip_takes_the_shares_of_its_sibling():
    """A V100 on another card would behave like an average board."""
    sibling, board = catalog.board("V100"), catalog.board("V100-SXM2")
    assert board.voltage_floor == sibling.voltage_floor
    assert board.awake_watts / 300 == pytest.approx(sibling.awake_watts / 250)
    assert not board.fitted


def test_derived_awake_power_stays_below_every_share_seen():
    """Host-bound work on an unmeasured board could not be fitted from above."""
    lowest = min(b.awake_watts / b.default_limit_watts for b in catalog.fitted_boards())
    board = catalog.board("P100")
    assert board.awake_watts / board.default_limit_watts < lowest


def test_workload_scales_with_the_board():
    """Demos on other boards would run at the speed of the measured one."""
    slow = catalog.workload("bert", catalog.board("P100"))
    fast = catalog.workload("bert", catalog.board("H100"))
    assert slow.compute_seconds > 4 * fast.compute_seconds
    assert slow.host_seconds == fast.host_seconds


@pytest.mark.parametrize("name", catalog.workload_names())
def test_every_reference_workload_runs_everywhere(name):
    """A typo in the data would only show in use of that workload."""
    for board_name in ("V100", "A100", "B200", "MI300X"):
        board = catalog.board(board_name)
        state = physics.settle(board, catalog.workload(name, board), board.default_limit_watts)
        assert 0 < state.seconds < 60
        assert board.idle_watts < state.watts <= board.default_limit_watts


def test_reference_workloads_differ_as_their_names_say():
    """A compute-bound demo would show memory-bound behaviour."""
    board = catalog.board("V100")

    def slowdown(name):
        work = catalog.workload(name, board)
        return physics.settle(board, work, 125).seconds / physics.settle(board, work, 250).seconds

    assert slowdown("host-bound") == pytest.approx(1.0)
    assert slowdown("host-bound") < slowdown("memory-bound") < slowdown("compute-bound")


def test_unknown_workload_is_refused_with_the_known_ones():
    """A typo would leave the reader without a hint."""
    with pytest.raises(InvalidValueError, match="resnet50"):
        catalog.workload("resnet5000", catalog.board("V100"))


@pytest.mark.parametrize(
    ("name", "mebibytes"), [("h100", 81559), ("h200", 143771), ("b200", 183359), ("l4", 23034)]
)
def test_memory_is_what_the_driver_states(name, mebibytes):
    """Plans would be said to fit into what error correction takes, or be refused on an H200."""
    assert catalog.specs(name).memory_bytes == mebibytes << 20
