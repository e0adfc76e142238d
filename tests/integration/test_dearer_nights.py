"""A nightly job of one training per night whose epochs become dearer, or cheaper."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from joulery.clock import VirtualClock
from joulery.jobs import Definition, JobService, Measured, Outcome, Request
from joulery.jobs.policies import Actions, JobBatch, RunEnd
from joulery.simulate import Environment, Moment, Slices
from joulery.storage import Store
from joulery.testing.workloads import made_up_workload

CHANGE, NIGHTS = 30, 90
ROW = np.zeros(1, dtype=np.int64)


class Nights:
    """Decisions of a service, replayed on a workload whose epochs change in cost."""

    def __init__(self, store, factor, seed):
        load = made_up_workload()
        dear = dataclasses.replace(load, epoch_seconds=factor * load.epoch_seconds)
        self.job, self.clock = load.job(), VirtualClock()
        self.service = JobService(store, self.clock)
        self.number = self.service.define(Definition(self.job), seed=seed).id
        batch = JobBatch.of([self.job], [seed])
        self.worlds = [Environment([one], ROW, batch, Slices()) for one in (load, dear)]

    def run(self, night):
        """One night; its end."""
        decision = self.service.decide(self.number, Request(f"{night}"))
        sizes, limits = self.job.batch_sizes, self.job.limits_watts
        held, probed = decision.power_limit_watts, decision.probe_limits_watts
        actions = Actions(
            kind=ROW,
            arm=np.array([sizes.index(decision.batch_size)]),
            limit=np.array([-1 if held is None else limits.index(held)]),
            ceiling=np.array([decision.cost_ceiling_joules]),
            reason=ROW,
            probe_limits=np.array([[watts in probed for watts in limits]]),
        )
        moment = Moment(ROW, np.array([night]), ROW, ROW, np.zeros(1))
        results = self.worlds[night >= CHANGE].act(actions, moment)
        outcome = Outcome(
            RunEnd(int(results.end[0])),
            float(results.epochs[0]),
            float(results.seconds[0]),
            float(results.joules[0]),
            limits[int(results.limit[0])],
            tuple(
                Measured(watts, *(float(figures[0, at]) for figures in self._figures(results)))
                for at, watts in enumerate(limits)
                if np.isfinite(results.epoch_seconds[0, at])
            ),
        )
        self.clock.sleep(outcome.seconds)
        self.service.report(decision, outcome, f"{night}")
        return outcome.end

    def _figures(self, results):
        return results.epoch_seconds, results.epoch_joules, results.relative_error


@pytest.mark.parametrize(("factor", "seed"), [(0.1, 0), (4.0, 1), (15.0, 0)])
def test_a_change_of_cost_takes_one_night_at_most(tmp_path, factor, seed):
    """A job that becomes dear would leave no model night after night."""
    with Store.open(str(tmp_path / "store.sqlite")) as store:
        nights = Nights(store, factor, seed)
        ends = [nights.run(night) for night in range(NIGHTS)]
    lost = [end != RunEnd.REACHED for end in ends]
    assert sum(lost[CHANGE:]) <= 1
    assert not any(first and second for first, second in pairwise(lost))
