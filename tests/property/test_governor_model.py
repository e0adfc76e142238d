"""Random sequences of operations on the governor against a model of what it promises."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.governor.bench import Bench

CALLERS = st.integers(0, Bench.callers_count - 1)
BOARDS = st.integers(0, Bench.boards_count - 1)
LEASE_WATTS = st.none() | st.integers(10, 40).map(lambda tens: 10.0 * tens)
# Never what a lease asks for, so that each limit shows who has set it.
ADMIN_WATTS = st.integers(10, 39).map(lambda tens: 10.0 * tens + 5.0)


class GovernorMachine(RuleBasedStateMachine):
    """Every operation that changes something, in any order."""

    def __init__(self):
        super().__init__()
        self.bench = Bench()

    def lease(self, pick):
        """A lease that exists, or one that does not."""
        return [*self.bench.promises, 0][pick % (len(self.bench.promises) + 1)]

    @rule(caller=CALLERS, board=BOARDS, watts=LEASE_WATTS)
    def acquire(self, caller, board, watts):
        """Ask for a device."""
        self.bench.acquire(caller, board, watts)

    @rule(caller=CALLERS, pick=st.integers(0, 7), watts=LEASE_WATTS)
    def change(self, caller, pick, watts):
        """Ask for another limit."""
        self.bench.change(caller, self.lease(pick), watts)

    @rule(caller=CALLERS, pick=st.integers(0, 7))
    def release(self, caller, pick):
        """Give back."""
        self.bench.release(caller, self.lease(pick))

    @rule(caller=CALLERS)
    def hang_up(self, caller):
        """Die."""
        self.bench.hang_up(caller)

    @rule(board=BOARDS, watts=ADMIN_WATTS)
    def administrate(self, board, watts):
        """Set a limit behind the governor's back."""
        self.bench.set_as_administrator(board, watts)

    @rule(seconds=st.sampled_from([0.1, 3.0, 11.0]))
    def sleep(self, seconds):
        """Let time pass."""
        self.bench.sleep(seconds)

    @rule()
    def crash(self):
        """Kill the governor."""
        self.bench.crash()

    @invariant()
    def limits_are_as_promised(self):
        """A limit above the cap, or one that was not restored, would be a broken promise."""
        self.bench.check()


TestGovernorMachine = GovernorMachine.TestCase
TestGovernorMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_long_random_runs_follow_the_model():
    """Rare orders of events would break promises that short sequences keep."""
    for seed in range(200):
        chance, bench = random.Random(seed), Bench()  # noqa: S311 - no secret
        for _ in range(30):
            bench.play(chance)
