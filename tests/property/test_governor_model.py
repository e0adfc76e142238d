"""Random sequences of operations on the governor against a model of what it promises."""

import random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from joulery.governor._policy import parse_policy
from support.governor.bench import Bench, Caller

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


FALLBACK = """
[[allow]]
users = [1000]
devices = [0]
limits_watts = [100, 400]
fallback_watts = 150
"""


@pytest.mark.parametrize("seed", range(30))
def test_a_fallback_only_rises_when_its_client_asks(seed):
    """A power budget is exceeded by a limit that rises by itself, after whatever sequence."""
    chance, bench = random.Random(seed), Bench()  # noqa: S311 - no secret
    bench.table.replace_policy(parse_policy(FALLBACK))
    board, client, lease = bench.boards[0], bench.callers[0], 0
    for _ in range(60):
        before, watts = board.watts, chance.randrange(100, 401, 30)
        move = chance.choice(["acquire", "set", "release", "leave", "wait", "crash", "cap"])
        asked = 0.0
        if move == "acquire":
            reply = client.ask("acquire", device="plain:0", watts=watts, ttl_seconds=5)
            lease, asked = (reply["lease"], watts) if reply["ok"] else (lease, 0.0)
        elif move == "set":
            asked = watts if client.ask("set", lease=lease, watts=watts)["ok"] else 0.0
        elif move == "release":
            client.ask("release", lease=lease)
        elif move == "leave":
            client.session.end("it disconnected")
            client = Caller(bench.table, bench._peer(0))
        elif move == "wait":
            bench.clock.sleep(chance.choice([0.5, 3.0, 12.0]))
            bench.table.tick()
        elif move == "crash":
            bench._start(parse_policy(FALLBACK))
            client = bench.callers[0]
        else:  # the administrator lowers the limit
            board.watts = chance.uniform(min(120.0, before), before)
            before = board.watts
            bench.clock.sleep(1.1)
            bench.table.tick()
        assert board.watts <= max(before, asked, 150.0) + 1e-9, move
    client.session.end("it disconnected")
    for _ in range(40):
        bench.clock.sleep(1.0)
        bench.table.tick()
    assert board.watts <= 150.0
