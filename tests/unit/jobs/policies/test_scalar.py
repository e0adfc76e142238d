"""Policies of two plain methods."""

import math

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.jobs.policies import (
    BatchChoice,
    CounterRng,
    JobBatch,
    RunEnd,
    ScalarAdapter,
    _registry as registry,
    find_policy,
    make_policy,
    policy_names,
    policy_parameters,
    register_policy,
)
from joulery.testing.workloads import made_up_workload
from support.policies import EpsilonGreedy


@pytest.fixture
def known(monkeypatch):
    """The example policy, registered for one test."""
    monkeypatch.setattr(registry, "_registered", {})
    register_policy(EpsilonGreedy)


def _decide(policy, states=None):
    """The adapter's action for a made-up job."""
    adapter = ScalarAdapter(policy)
    beliefs = adapter.start(JobBatch.of([made_up_workload().job()], [1]))
    if states is not None:
        beliefs.states[:] = states
    return adapter.decide(beliefs, np.arange(1), CounterRng.of(np.ones(1, np.uint64), np.ones(1)))


def test_a_choice_becomes_an_action():
    """A batch size, a limit or a ceiling would be lost between plug-in and run."""

    class Fixed(EpsilonGreedy):
        def decide(self, space, state, rng):
            return BatchChoice(space.batch_sizes[2], space.limits_watts[1], 500.0, self.reasons[1])

    actions = _decide(Fixed())
    assert (actions.arm[0], actions.limit[0], actions.ceiling[0]) == (2, 1, 500.0)
    assert actions.reason[0] == 1


def test_what_is_left_out_is_left_to_profiling():
    """A plug-in that names only a batch size would hold the lowest limit or stop at once."""

    class Plain:
        name = "plain"

        def decide(self, space, state, rng):
            return BatchChoice(space.default)

        def learn(self, space, state, run):
            pass

    actions = _decide(Plain())
    assert (actions.limit[0], actions.ceiling[0], actions.reason[0]) == (-1, math.inf, 0)


@pytest.mark.parametrize(
    "choice",
    [BatchChoice(7), BatchChoice(64, 1.0), BatchChoice(64, reason="a reason that nobody declared")],
)
def test_a_choice_outside_the_space_is_refused(choice):
    """A wrong plug-in would train a batch size that the owner never allowed."""

    class Wrong(EpsilonGreedy):
        def decide(self, space, state, rng):
            return choice

    with pytest.raises(InvalidValueError, match="epsilon-greedy chose"):
        _decide(Wrong())


def test_a_registered_policy_is_made_by_its_name(known):
    """`Run(policy=...)` and the command line could not reach a plug-in."""
    assert "epsilon-greedy" in policy_names()
    policy = make_policy("epsilon-greedy", epsilon=0.5, beta=2.0)
    assert policy.policy.epsilon == 0.5
    assert policy_parameters("epsilon-greedy") == {"epsilon"}


def test_an_installed_policy_is_found(monkeypatch):
    """A server could not use the policy of an installed package."""

    class Point:
        name = "epsilon-greedy"

        def load(self):
            return EpsilonGreedy

    monkeypatch.setattr(registry, "_entry_points", lambda: [Point()])
    assert find_policy("epsilon-greedy") is EpsilonGreedy
    with pytest.raises(InvalidValueError) as refusal:
        find_policy("epsilon")
    assert "epsilon-greedy" in refusal.value.remedy


def test_what_cannot_decide_is_refused():
    """A plug-in with a misspelt method would fail at night instead of when it is registered."""

    class Lacking:
        name = "lacking"

        def decide(self, space, state, rng):
            return BatchChoice(space.default)

    with pytest.raises(InvalidValueError, match="no method learn"):
        register_policy(Lacking)
    Lacking.name = "zeus"
    with pytest.raises(InvalidValueError, match="cannot have the name 'zeus'"):
        register_policy(Lacking)


def test_only_trainings_that_ended_are_learned(known):
    """A worker that died would count as a run of no cost."""
    adapter, job = make_policy("epsilon-greedy"), made_up_workload().job()
    from joulery.testing.policy_contract import Drive, abandoned

    drive = Drive(adapter, [made_up_workload()], [1])
    drive.learn(abandoned(drive.begin(np.arange(1))[1]))
    assert drive.beliefs.states == [{}]
    drive.step(np.arange(1))
    assert list(drive.beliefs.states[0]) == [job.default]
    assert RunEnd.REACHED == 0
