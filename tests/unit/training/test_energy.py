"""Seconds and joules of an attempt: by epoch, by device, over all ranks."""

import math

import pytest

from joulery.clock import VirtualClock
from joulery.frontier import Origin, Provenance
from joulery.hardware import SimulatedGpu, catalog
from joulery.metering import Meter
from joulery.training._energy import (
    NOTHING,
    DeviceEnergy,
    EnergyAccount,
    Usage,
    _over_ranks,
    devices_over_ranks,
    epoch_cost,
)
from joulery.training._tuning import LimitState

MEASURED = Provenance(Origin.MEASURED, "a counter", 0.02)


def test_an_account_keeps_training_and_the_rest_apart():
    """If this fails, epochs are judged by figures that leave validation out, or count it twice."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    work = catalog.workload("resnet50", gpu.board).scaled(0.2)
    with Meter([gpu], clock=clock) as meter:
        account = EnergyAccount(meter)
        for _ in range(3):
            account.begin_epoch(LimitState(250.0, 0))
            account.begin_training(None)
            for _ in range(30):
                gpu.run(work)
            account.end_training(30)
            clock.sleep(4.0)
            account.end_epoch(LimitState(250.0, 0))
        account.close()
        total = account.total()
        clock.sleep(100.0)
        assert account.here() == total
    assert account.epochs == 3
    assert account.outside_training().seconds == pytest.approx(4.0, rel=0.01)
    (held,) = account.epoch_costs()
    assert held.limit_watts == 250.0
    assert held.epoch_seconds == pytest.approx(total.seconds / 3)
    assert held.relative_error >= 0.005


def test_a_rank_without_devices_adds_nothing():
    """If this fails, one rank without a device of its own makes the energy of all unknown."""
    with Meter([], clock=VirtualClock()) as meter:
        account = EnergyAccount(meter)
        account.begin_epoch()
        account.end_epoch()
        assert account.total() == NOTHING
        assert account.last_epoch().known


def test_figures_say_how_sure_they_are():
    """If this fails, one noisy epoch counts as certain."""
    assert epoch_cost(None, []) is None
    assert epoch_cost(None, [Usage(10.0, 0.0)]) is None
    assert epoch_cost(None, [Usage(10.0, 100.0)]).relative_error == 0.02
    noisy = epoch_cost(None, [Usage(10.0, 100.0), Usage(14.0, 140.0)])
    assert noisy.relative_error > 0.1
    assert epoch_cost(None, [Usage(10.0, 100.0)] * 50).relative_error == 0.005


def test_ranks_add_joules_and_wait_for_the_slowest():
    """If this fails, a job on four boards seems to use one."""

    class Ranks:
        rank = 0

        def broadcast(self, value):
            return value

        def all_gather(self, value):
            return [value, (12.0, 50.0)]

    assert _over_ranks(Usage(10.0, 100.0), Ranks()) == Usage(12.0, 150.0)
    assert _over_ranks(NOTHING, None) == NOTHING
    assert not Usage(1.0, math.nan).known


class TwoMachines:
    """Rank 0 of two, whose boards are counted alike."""

    rank = 0

    def all_gather(self, value):
        """Both."""
        return [value, value]


def test_boards_of_other_machines_keep_their_names_apart():
    """If this fails, the second machine's energy is refused as reported before."""
    mine = (DeviceEnergy("gpu:0", "V100", 1.0, 2.0, MEASURED),)
    together = devices_over_ranks(mine, TwoMachines())
    assert [one.id for one in together] == ["gpu:0 of rank 0", "gpu:0 of rank 1"]
    assert devices_over_ranks(mine, None) == mine


def test_an_epoch_in_which_the_limit_was_changed_belongs_to_no_limit():
    """If this fails, an epoch with probes counts as one of the limit at its ends."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    gpu.set_load(catalog.workload("resnet50", gpu.board))
    before, after = LimitState(250.0, 0), LimitState(250.0, 2)
    with Meter([gpu], clock=clock) as meter:
        account = EnergyAccount(meter)
        for seconds, first, last in ((10.0, before, after), (20.0, after, after)):
            account.begin_epoch(first)
            clock.sleep(seconds)
            account.end_epoch(last)
        seconds = {one.limit_watts: one.epoch_seconds for one in account.epoch_costs()}
        assert seconds == {250.0: pytest.approx(20.0), None: pytest.approx(10.0)}
        account.close()
