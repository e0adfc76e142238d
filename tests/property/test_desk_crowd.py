"""Whole lives of jobs whose clients lie, die, or cannot probe; `scripts/prove_desk.py` has more."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulery.jobs.models import Measured, Outcome
from joulery.jobs.policies.base import RunEnd
from joulery.jobs.policies.counter_rng import CounterRng
from joulery.jobs.replay import ROW, action_document, outcome_document
from joulery.jobs.report import Verdict
from joulery.simulate import drift
from joulery.storage.records import Event, EventKind
from joulery.testing.crowd import LIES, Circumstances, Crowd, lives, says_nothing
from joulery.testing.workloads import made_up_workload

LOAD = made_up_workload()
HONEST = Circumstances(40)
FIRST_TWO_LIE = (4, 318)  # seeds with a liar in each of the first two recurrences


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("policy", ["joulery", "zeus", "grid"])
def test_every_recurrence_ends_whatever_liars_say(policy, lie):
    """One report of a wonder would stop every training of everybody for ever."""
    about = dataclasses.replace(HONEST, liars=0.1, lie=LIES[lie])
    each = [Crowd(LOAD, policy, seed, about).live() for seed in range(2)]
    assert [life.failed for life in each] == [0, 0]


@pytest.fixture(scope="module")
def silent():
    """Lives of those who would lie, had they not kept silent."""
    about = dataclasses.replace(HONEST, liars=0.1, lie=says_nothing)
    return lives(LOAD, "joulery", range(8), about)


@pytest.mark.parametrize("lie", LIES)
def test_liars_cost_little(lie, silent):
    """A tenth of liars would cost more than the policy saves."""
    about = dataclasses.replace(HONEST, liars=0.1, lie=LIES[lie])
    times, error = lives(LOAD, "joulery", range(8), about).over(silent)
    assert times - 2 * error < 1.1


@pytest.mark.parametrize("lie", LIES)
def test_no_liar_costs_more_than_finding_him_out(lie):
    """Those who come after a liar would pay for his word again and again."""
    about = dataclasses.replace(HONEST, liars=0.1, lie=LIES[lie])
    for seed in FIRST_TWO_LIE:
        misled = Crowd(LOAD, "joulery", seed, about).live()
        alone = Crowd(LOAD, "joulery", seed, dataclasses.replace(about, lie=says_nothing)).live()
        assert misled.regret() - alone.regret() < 6.0


@pytest.mark.parametrize("only", [16, 64, 256, 512])
def test_liars_who_pick_their_batch_size_cost_no_more(only, silent):
    """Whoever may say what was run could tell wonders of what nobody else has tried."""
    about = dataclasses.replace(HONEST, liars=0.1, lie=LIES["anything"], only=only)
    times, error = lives(LOAD, "joulery", range(8), about).over(silent)
    assert times - 2 * error < 1.3
    misled = lives(LOAD, "joulery", range(8), dataclasses.replace(about, lie=LIES["wonders"]))
    times, error = misled.over(silent)
    assert times - 2 * error < 1.3
    assert misled.failed == 0


DRIFTS = {
    "none": drift.none,
    "twice": lambda load: drift.scaled(load, 20, 2.0),
    "moves": lambda load: drift.optimum_moves(load, 20),
    "discarded": lambda load: drift.discarded_becomes_best(load, 20),
}


@pytest.mark.parametrize("change", DRIFTS)
@pytest.mark.parametrize("policy", ["joulery", "zeus"])
def test_the_honest_pay_nothing_for_being_judged(policy, change):
    """What keeps liars out would slow down everybody else."""
    judged = dataclasses.replace(HONEST, drift=DRIFTS[change])
    credulous = dataclasses.replace(judged, defended=False)
    with_it = lives(LOAD, policy, range(2), judged)
    assert with_it.mean <= 1.03 * lives(LOAD, policy, range(2), credulous).mean
    assert with_it.doubted < 0.01


@pytest.mark.parametrize("policy", ["joulery", "zeus", "grid"])
def test_half_of_the_clients_may_die(policy):
    """Workers die; what they were trying would never be tried again."""
    about = Circumstances(80, clients=20, killed=0.5)
    life = Crowd(LOAD, policy, 3, about).live()
    assert life.failed == 0
    assert len(life.costs) == 80
    assert set(life.batch_sizes[-10:]) <= {32, 64, 128}


@pytest.mark.parametrize("policy", ["joulery", "zeus", "grid"])
def test_recurrences_end_without_probes(policy):
    """Those who only train would be stopped again and again."""
    life = Crowd(LOAD, policy, 5, dataclasses.replace(HONEST, probing=False)).live()
    assert life.failed == 0
    hard = made_up_workload(never=(16, 32, 512))
    life = Crowd(hard, policy, 5, dataclasses.replace(HONEST, probing=False)).live()
    assert life.failed == 0


def test_a_job_that_really_changes_is_followed():
    """What keeps liars out would keep the truth out."""
    about = Circumstances(60, drift=lambda load: drift.scaled(load, 30, 2.5))
    folded = Crowd(LOAD, "joulery", 2, about)
    folded.live()
    history = folded._folded.history
    assert history.latest[-1].standing == Verdict.BELIEVED
    assert history.latest[-1].log_epochs > math.log(20.0)


def choice_after(order):
    """The next choice after sixteen runs at once that are reported on in some order."""
    folded = Crowd(LOAD, "joulery", 1, HONEST)._folded
    job, bodies = folded.job, []
    for number in range(16):
        draws = CounterRng.of(folded.lanes.seeds, np.array([number]))
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
        folded.beliefs, ROW, CounterRng.of(folded.lanes.seeds, np.array([99]))
    )
    assert folded.beliefs.under_way.sum() == 0
    return int(last.arm[0])


@given(order=st.permutations(range(16)))
@settings(max_examples=8)
def test_reports_in_any_order_lead_to_the_same_choice(order):
    """What a team gets would hang on whose network was slow."""
    assert choice_after(order) == choice_after(range(16))
