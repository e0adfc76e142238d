"""A new objective is one class: the tuner, policies, planner, sweeps and reports all take it."""

import numpy as np
import pytest

from joulery.frontier import OperatingPoint
from joulery.hardware import catalog, settle
from joulery.jobs.policies import BayesianPolicy, DefaultPolicy
from joulery.objectives import UNBOUNDED, Totals, choose
from joulery.pipeline import plan_pipeline, profiles_from_rows
from joulery.power import TunerState
from joulery.reports import Terminal, frontier_report
from joulery.simulate import SimulationConfig, simulate, summaries
from joulery.sweep import FinishedRun, SweepTable
from joulery.testing.workloads import made_up_workload
from support.pipelines import random_rows
from support.training_loop import TrainingLoop


class EnergyDelaySquared:
    """joules × seconds², which prefers speed more than the energy-delay product does."""

    bounds = UNBOUNDED

    def value(self, seconds, joules, reference):
        """The product, as floats or arrays."""
        return joules * seconds**2


OWN = EnergyDelaySquared()


def test_the_tuner_takes_it():
    """The tuner would need a branch for every objective."""
    loop = TrainingLoop(["V100"], 0.1, seed=1)
    with loop.tuner(OWN) as tuner:
        loop.run(tuner.step, until=lambda: tuner.state is TunerState.HOLDING)
        chosen = tuner.result.chosen.setting.power_limit_watts
    assert loop.regret(OWN, chosen) < 0.01


def test_the_policy_and_the_simulator_take_it():
    """The policy would minimise something else than it is judged by."""
    load = made_up_workload()
    options = SimulationConfig(objective=OWN)
    log = simulate([load], BayesianPolicy(OWN), 40, range(4), options)
    (found,) = summaries(log)
    default = simulate([load], DefaultPolicy(), 40, range(4), options)
    assert (log.cost >= 0).all()
    assert found.regret_mean < 0.5 * summaries(default)[0].regret_mean


def test_the_planner_takes_it():
    """A plan would have to be searched for by hand."""
    plan = plan_pipeline(
        profiles_from_rows(random_rows(3, 1), source="random"), schedule="1f1b", microbatches=6
    )
    chosen = plan.choose(OWN)
    values = [OWN.value(one.seconds, one.joules, plan.full_clocks) for one in plan.frontier_plans]
    assert OWN.value(chosen.seconds, chosen.joules, plan.full_clocks) == min(values)


def test_sweeps_and_reports_take_it():
    """A limit that was chosen could not be shown."""
    board = catalog.board("V100")
    work = catalog.workload("resnet50", board)
    runs = []
    for watts in (120.0, 160.0, 200.0, 250.0):
        steady = settle(board, work, watts)
        runs.append(FinishedRun(0, 1, watts, 0, steady.seconds, steady.seconds * steady.watts))
    frontier = SweepTable.of(runs, 250.0, "V100").frontier()
    chosen = choose(OWN, frontier)
    values = {point: OWN.value(point.seconds, point.joules, chosen) for point in frontier}
    assert values[chosen] == min(values.values())
    assert isinstance(chosen, OperatingPoint)
    text = frontier_report(frontier, "a sweep", chosen=chosen).text(Terminal(90))
    assert f"chosen {chosen.setting.power_limit_watts:g} W" in text


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_arrays_keep_their_shape(shape):
    """Optimizers score whole tables at once."""
    assert OWN.value(np.ones(shape), np.ones(shape), Totals(1.0, 1.0)).shape == shape
