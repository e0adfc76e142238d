"""Policies that break one promise each: the contract must notice."""

import dataclasses

import numpy as np
import pytest

from joulery.jobs.policies import ActionKind, RunEnd, ZeusPolicy
from joulery.testing.policy_contract import PolicyContract

CONTRACT = PolicyContract()


class Broken:
    """Zeus but for one broken promise."""

    def __init__(self):
        self.sound = ZeusPolicy()

    def __getattr__(self, name):
        return getattr(self.sound, name)

    def decide(self, beliefs, rows, numbers):
        """As the sound one, spoilt."""
        return self.spoil(self.sound.decide(beliefs, rows, numbers), beliefs, rows)

    def spoil(self, actions, beliefs, rows):
        """To be overridden."""
        return actions


class Nameless(Broken):
    name = " "


class LearnsWhileDeciding(Broken):
    def spoil(self, actions, beliefs, rows):
        """Break the promise."""
        beliefs.least[rows] = beliefs.least[rows] * 0.5
        return actions


class OutsideTheSet(Broken):
    def spoil(self, actions, beliefs, rows):
        """Break the promise."""
        return dataclasses.replace(actions, arm=actions.arm + 4)


class NoSuchLimit(Broken):
    def spoil(self, actions, beliefs, rows):
        """Break the promise."""
        return dataclasses.replace(actions, limit=np.full(len(rows), 9))


class FreeLunch(Broken):
    def spoil(self, actions, beliefs, rows):
        """Break the promise."""
        return dataclasses.replace(actions, ceiling=np.zeros(len(rows)))


class Reasonless(Broken):
    def spoil(self, actions, beliefs, rows):
        """Break the promise."""
        return dataclasses.replace(actions, reason=np.full(len(rows), 7))


class LooksAtTheOthers(Broken):
    def spoil(self, actions, beliefs, rows):
        """Break the promise."""
        if len(rows) > 2:
            return dataclasses.replace(actions, arm=np.zeros_like(actions.arm))
        return actions


class RemembersInItself(Broken):
    """Keeps what it learnt outside the beliefs."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def learn(self, beliefs, outcomes):
        """Counts in the policy, not in the beliefs."""
        self.seen += 1
        self.sound.learn(beliefs, outcomes)
        beliefs.least[:] += self.seen


class OnlyProbes(Broken):
    def spoil(self, actions, beliefs, rows):
        """Break the promise."""
        return dataclasses.replace(actions, kind=np.full(len(rows), ActionKind.PROBE))


class WaitsForTheLost(Broken):
    """Takes an abandoned training for one that still runs."""

    def learn(self, beliefs, outcomes):
        """Forgets to clear what was abandoned."""
        if (outcomes.end == RunEnd.ABANDONED).any():
            beliefs.least[outcomes.job] = 1.0
            return
        self.sound.learn(beliefs, outcomes)


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        (Nameless, "test_says_what_it_is"),
        (LearnsWhileDeciding, "test_deciding_changes_nothing"),
        (OutsideTheSet, "test_recurrences_come_to_an_end"),
        (NoSuchLimit, "test_single_limit"),
        (FreeLunch, "test_fifty_pending"),
        (Reasonless, "test_results_in_any_order"),
        (LooksAtTheOthers, "test_company_does_not_matter"),
        (RemembersInItself, "test_beliefs_are_rebuilt_from_events"),
        (OnlyProbes, "test_recurrences_come_to_an_end"),
        (WaitsForTheLost, "test_everything_abandoned"),
    ],
)
def test_broken_promise_is_noticed(policy, promise):
    """A suite that lets a broken policy pass protects nobody."""
    with pytest.raises((AssertionError, IndexError)):
        getattr(CONTRACT, promise)(policy())


@pytest.mark.parametrize("promise", [name for name in dir(CONTRACT) if name.startswith("test_")])
def test_sound_policy_passes(promise):
    """The wrapper itself breaks nothing."""
    getattr(CONTRACT, promise)(Broken())
