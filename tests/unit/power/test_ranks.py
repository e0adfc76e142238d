"""Ranks that tune together: one limit for all, the slowest sets the pace, failure is shared."""

import pytest

from joulery.errors import DeviceError
from joulery.hardware import Faults
from joulery.objectives import Cost
from joulery.power import TunerState
from support.thread_ranks import ThreadRanks, together
from support.training_loop import TrainingLoop

RANKS = 4


def test_ranks_switch_together_and_choose_for_all():
    """Ranks on different limits wait for each other: the fast ones burn power for nothing."""
    ranks = ThreadRanks(RANKS)
    objective = Cost(0.5, RANKS * 250.0)
    limits = [[] for _ in range(RANKS)]
    results = {}

    def train(rank):
        loop = TrainingLoop(seed=rank)
        if rank == 2:
            loop.slower = 1.02  # the straggler
        with loop.tuner(objective, process_group=ranks.of(rank)) as tuner:

            def step():
                tuner.step()
                limits[rank].append(loop.limit_watts)

            loop.run(step, steps=270)  # after which ranks are lowered one by one
            assert tuner.failure is None
            assert tuner.state is TunerState.HOLDING
            results[rank] = tuner.result
            choice = tuner.result.chosen.setting.power_limit_watts
            assert loop.regret(Cost(0.5, 250.0), choice) < 0.02
        assert loop.limit_watts == 250

    together(train, RANKS)
    assert limits[0] == limits[1] == limits[2] == limits[3]
    assert len(set(limits[0])) > 3
    settings = {result.chosen for result in results.values()}
    assert len(settings) == 1
    assert settings.pop().joules > 3 * 14, "the joules of all boards"


@pytest.mark.parametrize("moment", ["start", "energy", "limit"])
def test_one_failing_rank_stops_all_and_none_hangs(moment):
    """A rank that drops out silently would leave the others waiting for ever."""
    ranks = ThreadRanks(RANKS)
    states = {}

    def train(rank):
        loop = TrainingLoop(seed=rank)
        tuner = loop.tuner(Cost(0.5, RANKS * 250.0), process_group=ranks.of(rank))
        if rank == 1 and moment == "start":
            loop.gpus[0].faults = Faults(lost_at_seconds=0.0)
        loop.run(tuner.step, steps=5)
        if rank == 1 and moment == "limit":
            loop.gpus[0].faults = Faults(no_permission=True)
        if rank == 1 and moment == "energy":

            def unreadable(_):
                raise DeviceError("gone", remedy="none")

            tuner._counter.read = unreadable
        loop.run(tuner.step, steps=200)
        states[rank] = tuner.state
        tuner.close()

    together(train, RANKS)
    assert set(states.values()) == {TunerState.STOPPED}
