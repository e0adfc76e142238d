"""Ranks that tune together: one limit for all, the slowest sets the pace, failure is shared."""

import threading

import pytest

from joulery.errors import DeviceError
from joulery.hardware import Faults
from joulery.objectives import Cost
from joulery.power import TunerState
from support.training_loop import TrainingLoop

RANKS = 4


class ThreadRanks:
    """Ranks in threads, as torch.distributed would connect processes."""

    def __init__(self, count):
        self.slots = [None] * count
        self.barrier = threading.Barrier(count, timeout=20)

    def of(self, rank):
        """The view of one rank."""
        return _Rank(self, rank)


class _Rank:
    def __init__(self, ranks, rank):
        self._ranks = ranks
        self.rank = rank

    def all_gather(self, value):
        self._ranks.slots[self.rank] = value
        self._ranks.barrier.wait()
        values = tuple(self._ranks.slots)
        self._ranks.barrier.wait()
        return values

    def broadcast(self, value):
        return self.all_gather(value)[0]


def together(act):
    """Run one thread per rank; what they raised is raised here."""
    errors = []

    def guarded(rank):
        try:
            act(rank)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


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

            loop.run(step, steps=400)
            assert tuner.failure is None
            results[rank] = tuner.result
            choice = tuner.result.chosen.setting.power_limit_watts
            assert loop.regret(Cost(0.5, 250.0), choice) < 0.02
        assert loop.limit_watts == 250

    together(train)
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

    together(train)
    assert set(states.values()) == {TunerState.STOPPED}
