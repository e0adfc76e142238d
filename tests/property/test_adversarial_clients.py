"""Histories of jobs whose clients report falsely, die, or cannot probe.

`scripts/stress_jobs.py` has more of them.
"""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.jobs import Measured, Outcome
from joulery.jobs._replay import ROW, action_document, outcome_document
from joulery.jobs.policies import CounterRng, RunEnd
from joulery.simulate import discarded_becomes_best, optimum_moves, scale_epochs
from joulery.storage import Event, EventKind
from joulery.testing.workloads import made_up_workload
from support.adversarial_clients import (
    FALSE_REPORTS,
    ClientSimulation,
    Regrets,
    Scenario,
    reports_nothing,
    simulate,
)

LOAD = made_up_workload()
HONEST = Scenario(40)
SEEDS = range(4)
FIRST_TWO_FALSE = (4, 318, 404)  # seeds whose first two recurrences report falsely


def false_reports(kind):
    """A tenth of the clients reports falsely."""
    report = FALSE_REPORTS.get(kind, reports_nothing)
    return dataclasses.replace(HONEST, adversarial_share=0.1, false_report=report)


def histories_of(kind):
    """Logs by seed; every test of a kind of report judges the same histories."""
    seeds = (*SEEDS, *FIRST_TWO_FALSE)
    about = false_reports(kind)
    return {seed: ClientSimulation(LOAD, "joulery", seed, about).run() for seed in seeds}


@pytest.fixture(scope="module", params=FALSE_REPORTS)
def histories(request):
    """Logs of each kind of false report."""
    return histories_of(request.param)


@pytest.fixture(scope="module")
def silent():
    """Logs where the same clients report nothing."""
    return histories_of("silence")


def regrets(histories, seeds=SEEDS):
    """Regrets of the histories of some seeds."""
    return Regrets.of([histories[seed] for seed in seeds])


def test_every_recurrence_ends_in_spite_of_false_reports(histories):
    """One report that is too good to be true would stop every later training."""
    assert all(log.failed == 0 for log in histories.values())


def test_false_reports_cost_little(histories, silent):
    """A tenth of false reports would cost more than the policy saves."""
    times, error = regrets(histories).over(regrets(silent))
    assert times - 2 * error < 1.1


def test_two_false_reports_cost_no_more_than_finding_them(histories, silent):
    """Later recurrences would pay for one false report again and again."""
    extra = regrets(histories, FIRST_TWO_FALSE).mean - regrets(silent, FIRST_TWO_FALSE).mean
    assert extra < 5.0


def test_a_job_recovers_within_twenty_honest_runs(histories):
    """One false report would ruin a job for good."""
    for log in histories.values():
        assert np.median(log.regrets[20:]) < 0.1
        assert np.mean(log.regrets[20:]) < 0.25


@pytest.mark.parametrize("kind", FALSE_REPORTS)
@pytest.mark.parametrize("policy", ["zeus", "grid"])
def test_other_policies_end_in_spite_of_false_reports(policy, kind):
    """One report that is too good to be true would stop every later training."""
    assert ClientSimulation(LOAD, policy, 0, false_reports(kind)).run().failed == 0


@pytest.mark.parametrize(("only", "kind"), [(16, "wonders"), (512, "anything")])
def test_false_reports_on_a_selected_batch_size_cost_no_more(only, kind, silent):
    """A client that selects its batch size could praise one that no other has tried."""
    about = dataclasses.replace(false_reports(kind), only=only)
    misled = simulate(LOAD, "joulery", SEEDS, about)
    times, error = misled.over(regrets(silent))
    assert times - 2 * error < 1.3
    assert misled.failed == 0


DRIFTS = {
    "none": lambda load: load,
    "twice": lambda load: scale_epochs(load, 20, 2.0),
    "moves": lambda load: optimum_moves(load, 20),
    "discarded": lambda load: discarded_becomes_best(load, 20),
}


@pytest.mark.parametrize(
    ("policy", "change"), [*(("joulery", change) for change in DRIFTS), ("zeus", "twice")]
)
def test_honest_jobs_lose_nothing_to_the_filter(policy, change):
    """What keeps false reports out would slow down honest jobs."""
    judged = dataclasses.replace(HONEST, drift=DRIFTS[change])
    credulous = dataclasses.replace(judged, defended=False)
    with_it = simulate(LOAD, policy, range(2), judged)
    assert with_it.mean <= 1.03 * simulate(LOAD, policy, range(2), credulous).mean
    assert with_it.doubted < 0.01


@pytest.mark.parametrize("policy", ["joulery", "zeus", "grid"])
def test_half_of_the_clients_may_die(policy):
    """Workers die; what they were trying would never be tried again."""
    about = Scenario(80, clients=20, killed=0.5)
    life = ClientSimulation(LOAD, policy, 3, about).run()
    assert life.failed == 0
    assert len(life.costs) == 80
    assert set(life.batch_sizes[-10:]) <= {32, 64, 128}


@pytest.mark.parametrize("policy", ["joulery", "zeus", "grid"])
def test_recurrences_end_without_probes(policy):
    """Clients that only train would be stopped again and again."""
    life = ClientSimulation(LOAD, policy, 5, dataclasses.replace(HONEST, probing=False)).run()
    assert life.failed == 0
    hard = made_up_workload(never=(16, 32, 512))
    life = ClientSimulation(hard, policy, 5, dataclasses.replace(HONEST, probing=False)).run()
    assert life.failed == 0


def test_a_job_that_really_changes_is_followed():
    """What keeps false reports out would keep the truth out."""
    about = Scenario(60, drift=lambda load: scale_epochs(load, 30, 2.5))
    folded = ClientSimulation(LOAD, "joulery", 2, about)
    folded.run()
    latest = folded._state.reports.latest[-1]
    assert not latest.quarantined
    assert latest.log_epochs[0] > math.log(20.0)


def choice_after(order):
    """The next choice after sixteen runs at once that are reported on in some order."""
    folded = ClientSimulation(LOAD, "joulery", 1, HONEST)._state
    job, bodies = folded.job, []
    for number in range(16):
        draws = CounterRng.of(folded.batch.seeds, np.array([number]))
        action = action_document(folded.policy.decide(folded.beliefs, ROW, draws), job)
        event = {"action": action, "recurrence": number}
        folded.fold(Event(number + 1, EventKind.ISSUED, number + 1, event, 0.0))
        epochs = 12.0 + 3 * action["arm"] + number % 3
        measured = (Measured(200.0, 90.0, 9000.0, 0.005),)
        told = Outcome(RunEnd.REACHED, epochs, 90 * epochs, 9000 * epochs, 200.0, measured)
        bodies.append(outcome_document(told, job, action, number))
    for place, number in enumerate(order):
        folded.fold(Event(17 + place, EventKind.OUTCOME, number + 1, bodies[number], 0.0))
    last = folded.policy.decide(
        folded.beliefs, ROW, CounterRng.of(folded.batch.seeds, np.array([99]))
    )
    assert folded.beliefs.under_way.sum() == 0
    return int(last.arm[0])


@given(order=st.permutations(range(16)))
@settings(max_examples=8)
def test_reports_in_any_order_lead_to_the_same_choice(order):
    """What a team gets would depend on whose network was slow."""
    assert choice_after(order) == choice_after(range(16))
