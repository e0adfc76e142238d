"""The contract suite that every policy for recurring jobs passes.

Subclass it in a test module, give it a policy, and pytest runs every check::

    class TestMyPolicy(PolicyContract):
        @pytest.fixture
        def policy(self):
            return MyPolicy()
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from joulery.jobs.policies import (
    ActionKind,
    Actions,
    CounterRng,
    JobBatch,
    Outcomes,
    Policy,
    RunEnd,
)
from joulery.simulate import Environment, Moment, Slices
from joulery.testing.workloads import made_up_workload

# More than any recurrence needs, less than a policy that waits for ever takes.
_PATIENCE = 200


class Drive:
    """A policy run on made-up jobs, one action at a time, every event kept.

    Args:
        policy: Policy that decides.
        workloads: Workload of each job.
        seeds: Seed of each job.
    """

    def __init__(self, policy: Policy[Any], workloads: list[Any], seeds: list[int]) -> None:
        self.policy = policy
        self.jobs = JobBatch.of([load.job() for load in workloads], seeds)
        self.beliefs = policy.start(self.jobs)
        self.events: list[tuple[str, Any, Any]] = []
        self.decisions = np.zeros(len(seeds), dtype=np.int64)
        self.reached = np.zeros(len(seeds), dtype=np.int64)
        rows = np.arange(len(seeds))
        self._environment = Environment(workloads, rows, self.jobs, Slices())

    def decide(self, rows: np.ndarray[Any, Any]) -> Actions:
        """The policy's next actions, checked for sense; nothing is begun."""
        rng = CounterRng.of(self.jobs.seeds[rows], self.decisions[rows])
        actions = self.policy.decide(self.beliefs, rows, rng)
        assert_sensible(self.policy, self.jobs, rows, actions)
        return actions

    def begin(self, rows: np.ndarray[Any, Any]) -> tuple[Actions, Outcomes]:
        """Hand the next actions out; what will become of them."""
        actions = self.decide(rows)
        self.policy.begin(self.beliefs, rows, actions)
        self.events.append(("begin", rows, actions))
        number = self.decisions[rows].copy()
        self.decisions[rows] += 1
        moment = Moment(rows, number, 0 * number, 0 * number, np.zeros(len(rows)))
        return actions, self._environment.act(actions, moment)

    def learn(self, outcomes: Outcomes) -> None:
        """Pass on to the policy how actions ended."""
        self.policy.learn(self.beliefs, outcomes)
        self.events.append(("learn", None, outcomes))
        self.reached[outcomes.job] += outcomes.end == RunEnd.REACHED

    def step(self, rows: np.ndarray[Any, Any]) -> Actions:
        """One action of each job from beginning to end."""
        actions, outcomes = self.begin(rows)
        self.learn(outcomes)
        return actions

    def rebuilt(self) -> Any:
        """Beliefs folded from the kept events alone."""
        beliefs = self.policy.start(self.jobs)
        for kind, rows, event in self.events:
            if kind == "begin":
                self.policy.begin(beliefs, rows, event)
            else:
                self.policy.learn(beliefs, event)
        return beliefs


class PolicyContract:
    """The checks that every policy passes; subclass and override ``policy``."""

    @pytest.fixture
    def policy(self) -> Policy[Any]:
        """The policy under test."""
        pytest.fail("override the `policy` fixture with the policy to test")

    def test_says_what_it_is(self, policy: Policy[Any]) -> None:
        """Logs name the policy and the reason of every action."""
        assert policy.name.strip()
        assert policy.reasons
        assert all(reason.strip() for reason in policy.reasons)

    def test_deciding_changes_nothing(self, policy: Policy[Any]) -> None:
        """A server may ask twice; the same history and rng give the same decision."""
        drive = _drive(policy, 2)
        everyone = np.arange(2)
        for _ in range(40):
            before = copy.deepcopy(drive.beliefs)
            first, second = drive.decide(everyone), drive.decide(everyone)
            assert_identical(first, second)
            assert_identical(before, drive.beliefs)
            drive.step(everyone)

    def test_beliefs_are_rebuilt_from_events(self, policy: Policy[Any]) -> None:
        """A server that restarts must go on exactly where it was."""
        drive = _drive(policy, 3)
        for _ in range(40):
            drive.step(np.arange(3))
        assert_identical(drive.rebuilt(), drive.beliefs)

    def test_company_does_not_matter(self, policy: Policy[Any]) -> None:
        """A job's decisions must not depend on the other jobs of its batch."""
        loads = _workloads()
        together = Drive(policy, loads, [5, 6, 7])
        alone = [Drive(policy, [load], [5 + i]) for i, load in enumerate(loads)]
        for _ in range(40):
            actions = together.step(np.arange(3))
            for job, drive in enumerate(alone):
                action = drive.step(np.arange(1))
                assert (action.kind[0], action.arm[0]) == (actions.kind[job], actions.arm[job])
                assert action.limit[0] == actions.limit[job]
                assert action.ceiling[0] == pytest.approx(actions.ceiling[job], rel=1e-9)

    def test_order_of_rows_does_not_matter(self, policy: Policy[Any]) -> None:
        """Jobs are decided in whatever order they are asked for."""
        drive = _drive(policy, 3)
        for _ in range(15):
            drive.step(np.arange(3))
        forward, backward = drive.decide(np.arange(3)), drive.decide(np.arange(3)[::-1])
        assert forward.arm.tolist() == backward.arm[::-1].tolist()
        assert forward.ceiling.tolist() == backward.ceiling[::-1].tolist()

    def test_recurrences_come_to_an_end(self, policy: Policy[Any]) -> None:
        """A job that only ever probes, or stops every run, never gets its model."""
        drive = _drive(policy, 2)
        for _ in range(_PATIENCE):
            drive.step(np.arange(2))
        assert (drive.reached >= _PATIENCE // 20).all()

    def test_single_batch_size(self, policy: Policy[Any]) -> None:
        """A set of one leaves the batch size alone and must still run."""
        drive = Drive(policy, [made_up_workload((64,), default=64)], [1])
        for _ in range(20):
            assert drive.step(np.arange(1)).arm[0] == 0
        assert drive.reached[0] > 0

    def test_single_limit(self, policy: Policy[Any]) -> None:
        """One power limit leaves nothing to choose, and must still run."""
        drive = Drive(policy, [made_up_workload(limits_watts=(200.0,))], [1])
        for _ in range(30):
            drive.step(np.arange(1))
        assert drive.reached[0] > 0

    def test_fifty_pending(self, policy: Policy[Any]) -> None:
        """Fifty submissions before the first result must all get something to run."""
        drive = _drive(policy, 1)
        pending = [drive.begin(np.arange(1))[1] for _ in range(50)]
        for number in np.random.default_rng(3).permutation(len(pending)):
            drive.learn(pending[number])
        before = drive.reached[0]
        for _ in range(_PATIENCE):
            drive.step(np.arange(1))
        assert drive.reached[0] > before
        assert_identical(drive.rebuilt(), drive.beliefs)

    def test_results_in_any_order(self, policy: Policy[Any]) -> None:
        """Overlapping runs end in another order than they began, some never."""
        chance = np.random.default_rng(11)
        drive = _drive(policy, 1)
        pending: list[Outcomes] = []
        for _ in range(_PATIENCE):
            pending.append(drive.begin(np.arange(1))[1])
            if len(pending) > 10:
                outcomes = pending.pop(int(chance.integers(len(pending))))
                drive.learn(abandoned(outcomes) if chance.random() < 0.3 else outcomes)
        assert drive.reached[0] > 20

    def test_everything_abandoned(self, policy: Policy[Any]) -> None:
        """Workers that die show nothing about batch sizes; the job continues once they live."""
        drive = _drive(policy, 1)
        for _ in range(60):
            drive.learn(abandoned(drive.begin(np.arange(1))[1]))
        for _ in range(_PATIENCE):
            drive.step(np.arange(1))
        assert drive.reached[0] > 10

    def test_everything_fails(self, policy: Policy[Any]) -> None:
        """A job in which no run reaches its target must still get something to try next."""
        drive = _drive(policy, 1)
        for _ in range(100):
            _, outcomes = drive.begin(np.arange(1))
            end = np.where(outcomes.kind == ActionKind.TRAIN, RunEnd.EXHAUSTED, outcomes.end)
            drive.learn(dataclasses.replace(outcomes, end=end))
        drive.decide(np.arange(1))


def abandoned(outcomes: Outcomes) -> Outcomes:
    """The same actions, of which nothing was ever heard."""
    unknown = np.full(len(outcomes.job), np.nan)
    blank = np.full(outcomes.epoch_seconds.shape, np.nan)
    return dataclasses.replace(
        outcomes,
        end=np.full(len(outcomes.job), RunEnd.ABANDONED),
        limit=np.full(len(outcomes.job), -1),
        epochs=unknown,
        seconds=unknown,
        joules=unknown,
        cost=unknown,
        epoch_seconds=blank,
        epoch_joules=blank,
        relative_error=blank,
    )


def assert_sensible(
    policy: Policy[Any], jobs: JobBatch, rows: np.ndarray[Any, Any], actions: Actions
) -> None:
    """Actions stay within the job's set, with ceilings above nothing and reasons that exist."""
    assert actions.kind.shape == actions.arm.shape == actions.limit.shape == (len(rows),)
    assert np.isin(actions.kind, list(ActionKind)).all()
    assert (actions.arm >= 0).all()
    assert jobs.valid[rows, actions.arm].all()
    limits = np.maximum(1, np.isfinite(jobs.limits_watts[rows]).sum(axis=1))
    assert ((actions.limit >= -1) & (actions.limit < limits)).all()
    assert (actions.ceiling > 0).all()
    assert ((actions.reason >= 0) & (actions.reason < len(policy.reasons))).all()
    if actions.probe_limits is not None:
        assert actions.probe_limits.shape == (len(rows), jobs.limits_watts.shape[1])
        assert actions.probe_limits.dtype == np.bool_


def assert_identical(first: Any, second: Any) -> None:
    """Equal bit for bit, through dataclasses, sequences and arrays; NaN equals NaN."""
    assert type(first) is type(second)
    if isinstance(first, np.ndarray):
        assert first.dtype == second.dtype
        is_number = np.issubdtype(first.dtype, np.number)
        assert np.array_equal(first, second, equal_nan=bool(is_number))
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for left_item, right_item in zip(first, second, strict=True):
            assert_identical(left_item, right_item)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_identical(value, second[key])
    elif dataclasses.is_dataclass(first):
        for part in dataclasses.fields(first):
            assert_identical(getattr(first, part.name), getattr(second, part.name))
    elif hasattr(first, "__dict__"):
        assert_identical(vars(first), vars(second))
    else:
        assert first == second


def _workloads() -> list[Any]:
    """Three that differ in what a batch pads: number of batch sizes, number of limits."""
    return [
        made_up_workload(),
        made_up_workload((8, 16, 32, 64, 128, 256, 512, 1024), best=32, never=(1024,)),
        made_up_workload((32, 64, 128), default=128, limits_watts=(100.0, 250.0)),
    ]


def _drive(policy: Policy[Any], jobs: int) -> Drive:
    return Drive(policy, _workloads()[:jobs], list(range(1, jobs + 1)))
