"""Leases: sharing, time to live, drivers that fail."""

import pytest

from joulery.clock import VirtualClock
from joulery.files import encode_line
from joulery.governor import lease
from joulery.governor._policy import parse_policy
from joulery.governor._server import LeaseSession
from joulery.hardware import SimulatedGpu, catalog
from support.governor.bench import Bench, at_once
from support.governor.emulated import EmulatedGovernor, EmulatedGpu


@pytest.fixture
def bench():
    """A governor on two boards, the second of them shared."""
    return Bench()


def test_second_holder_learns_who_is_first(bench):
    """People could not find out who keeps them waiting."""
    bench.acquire(0, 0, 200.0)
    reply = bench.callers[1].ask("acquire", device="plain:0", ttl_seconds=5)
    assert reply["error"] == "NotPossibleHereError"
    assert "held by process 100 of user 1000" in reply["message"]


def test_shared_board_gets_the_least(bench):
    """Sharing would let one holder's limit exceed another's."""
    bench.acquire(0, 1, 300.0)
    bench.acquire(1, 1, 200.0)
    assert bench.boards[1].watts == 200.0
    bench.hang_up(1)
    assert bench.boards[1].watts == 300.0


def test_holders_of_a_shared_board_read_what_an_agent_leaves_them(tmp_path):
    """A job does not learn of its share, takes a loose limit for it, or two hold each other low."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a secret of the agent")
    gpu = EmulatedGpu("gpu:0")
    governor = EmulatedGovernor([gpu], token, 400.0, VirtualClock(), shared=True)
    agent = governor.connect()
    number = agent.ask("acquire", device="gpu:0", ttl_seconds=60, watts=300.0)["lease"]
    with governor.lease(gpu) as first, governor.lease(gpu) as second:
        first.set(watts=350.0)
        assert second.share_watts == first.share_watts == 300.0
        assert agent.ask("set", lease=number, target_watts=220.0)["share_watts"] == 350.0
        assert gpu.cap_watts == 300.0
        assert first.follow(260.0) == second.follow() == 220.0
        assert gpu.cap_watts == 220.0
        leases = agent.ask("status")["devices"][0]["leases"]
        assert [lease["target_watts"] for lease in leases] == [220.0] * 3
        agent.ask("set", lease=number, target_watts=500.0)
        assert first.follow(260.0) == second.follow() == 500.0
        assert gpu.cap_watts == 260.0
        leases = agent.ask("status")["devices"][0]["leases"]
        assert [lease["target_watts"] for lease in leases] == [500.0, 400.0, 400.0]
        agent.ask("set", lease=number, target_watts=50.0)
        assert first.follow(260.0) == 50.0
        assert gpu.cap_watts == 100.0, "its least limit"


def test_without_an_agent_a_follower_has_what_it_asks_for():
    """A tuner that would follow a cluster's agent cannot set or restore a limit without one."""
    gpu = SimulatedGpu(catalog.board("A100"), VirtualClock())
    least, most = gpu.power_limits().min_watts, gpu.power_limits().current_watts
    with lease(gpu) as held:
        assert held.follow(least + 50) is None
        assert gpu.power_limits().current_watts == least + 50
        assert held.follow() is None
        assert gpu.power_limits().current_watts == most


def test_silent_holder_expires(bench):
    """A paused container would keep its board."""
    bench.acquire(0, 0, 200.0)
    bench.clock.sleep(9.0)
    bench.renew(0)
    bench.clock.sleep(9.0)
    bench.table.tick()
    assert bench.boards[0].watts == 200.0
    bench.clock.sleep(1.5)
    bench.table.tick()
    assert bench.boards[0].watts == 400.0


@pytest.mark.parametrize(("asked", "given"), [(0, 0.5), (7, 7), (1e9, 3600.0)])
def test_time_to_live_is_bounded(bench, asked, given):
    """A lease that never expires would outlive a paused container."""
    reply = bench.callers[0].ask("acquire", device="plain:0", ttl_seconds=asked)
    assert reply["ttl_seconds"] == given


def test_broken_driver_is_retried_until_it_works(bench):
    """A limit that could not be restored at once would never be."""
    bench.acquire(0, 0, 200.0)
    bench.boards[0].broken = True
    bench.callers[0].session.end("it disconnected")
    for _ in range(3):
        bench.clock.sleep(1.5)
        bench.table.tick()
    assert bench.boards[0].watts == 200.0
    bench.boards[0].broken = False
    bench.clock.sleep(1.5)
    bench.table.tick()
    assert bench.boards[0].watts == 400.0


def test_failed_first_change_leaves_no_lease(bench):
    """A refused request would lock the board for others."""
    reply = bench.callers[0].ask("acquire", device="plain:0", watts=50, ttl_seconds=5)
    assert reply["error"] in ("MissingRightsError", "InvalidValueError")
    bench.acquire(1, 0, 200.0)


def test_failed_change_keeps_the_old_request(bench):
    """A typing error would lose the limit that was agreed."""
    bench.acquire(0, 0, 200.0)
    (lease,) = bench.promises
    bench.boards[0].broken = True
    assert bench.callers[0].ask("set", lease=lease, watts=150)["error"] == "DeviceError"
    bench.boards[0].broken = False
    assert bench.callers[0].ask("renew", lease=lease)["watts"] == 200.0


def test_foreign_change_is_in_the_status(bench):
    """An administrator could not see that a lease was overruled."""
    bench.acquire(0, 0, 200.0)
    bench.set_as_administrator(0, 155.0)
    device = bench.callers[1].ask("status")["devices"][0]
    assert device["foreign_change"]
    assert (device["watts"], device["baseline_watts"]) == (155.0, 155.0)
    assert device["leases"][0]["watts"] == 200.0


FALLBACK = """
[[allow]]
users = [1000]
devices = [0]
limits_watts = [100, 400]
shared = "minimum"
fallback_watts = 150
[[allow]]
users = [1001]
devices = [0]
limits_watts = [100, 400]
shared = "minimum"
"""


def _pass(bench, seconds):
    """Let time pass in steps of a second; the limits seen."""
    seen = []
    for _ in range(seconds):
        bench.clock.sleep(1.0)
        bench.table.tick()
        seen.append(bench.boards[0].watts)
    return seen


def test_a_rule_with_a_fallback_never_leaves_its_board_without_one(bench):
    """A power budget is exceeded before its agent speaks, when it ends, or when it is silent."""
    bench.table.replace_policy(parse_policy(FALLBACK))
    board = bench.boards[0]
    assert board.watts == 150.0
    agent = bench.callers[0]
    reply = agent.ask("acquire", device="plain:0", ttl_seconds=3)
    assert (reply["watts"], reply["baseline_watts"]) == (150.0, 400.0)
    assert agent.ask("set", lease=reply["lease"], watts=300)["watts"] == 300.0
    seen = _pass(bench, 12)
    assert seen[1] == 300.0
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 150.0
    assert agent.ask("set", lease=reply["lease"], watts=200)["ok"] is False
    lease = agent.ask("acquire", device="plain:0", watts=320, ttl_seconds=30)["lease"]
    assert board.watts == 320.0
    assert agent.ask("release", lease=lease)["ok"]
    assert board.watts == 320.0, "until its time is over"
    assert _pass(bench, 60)[-1] == 150.0
    reply = agent.ask("acquire", device="plain:0", watts=50, ttl_seconds=30)
    assert reply["ok"] is False
    assert board.watts == 150.0


def test_the_next_agent_takes_over_though_the_last_never_hung_up(bench):
    """After a crash of its machine an agent would wait for its own lease."""
    bench.table.replace_policy(parse_policy(FALLBACK))
    old, new, user = bench.callers[0], bench.callers[2], bench.callers[1]
    first = old.ask("acquire", device="plain:0", watts=300, ttl_seconds=3600)["lease"]
    second = new.ask("acquire", device="plain:0", watts=250, ttl_seconds=3600)["lease"]
    assert bench.boards[0].watts == 250.0
    assert old.ask("set", lease=first, watts=400)["error"] == "LeaseLostError"
    tuner = user.ask("acquire", device="plain:0", watts=200, ttl_seconds=3600)["lease"]
    assert bench.boards[0].watts == 200.0, "a job's own tuner works below the cap"
    new.ask("set", lease=second, watts=180)
    user.ask("set", lease=tuner, watts=400)
    assert bench.boards[0].watts == 180.0
    old.session.end("it disconnected at last")
    assert bench.boards[0].watts == 180.0


def test_another_policy_ends_the_fallback(bench):
    """A board would stay at the fallback of a rule that is gone."""
    bench.table.replace_policy(parse_policy(FALLBACK))
    bench.callers[0].ask("acquire", device="plain:0", watts=300, ttl_seconds=30)
    bench.table.replace_policy(parse_policy("# moved by a line" + FALLBACK))
    assert bench.boards[0].watts == 300.0
    bench.table.replace_policy(parse_policy(""))
    assert bench.boards[0].watts == 400.0


def test_a_governor_that_ends_leaves_the_fallback_and_its_journal(bench):
    """Limits would rise above the budget while a governor is updated."""
    bench.table.replace_policy(parse_policy(FALLBACK))
    bench.callers[0].ask("acquire", device="plain:0", watts=300, ttl_seconds=30)
    bench.callers[0].session.end("the governor stops")
    leases = bench.table.devices["plain:0"]
    leases.rest()
    assert leases.rests
    assert bench.boards[0].watts == 150.0
    assert bench.journals[0].open.baseline_watts == 400.0
    bench._start()  # with a policy that has no fallback
    assert bench.boards[0].watts == 400.0


@pytest.mark.parametrize(
    "message",
    [
        {"op": "acquire", "device": "plain:9", "ttl_seconds": 5},
        {"op": "acquire", "device": 7, "ttl_seconds": 5},
        {"op": "acquire", "device": "plain:0"},
        {"op": "acquire", "device": "plain:0", "ttl_seconds": True},
        {"op": "acquire", "device": "plain:0", "ttl_seconds": 5, "watts": "200"},
        {"op": "acquire", "device": "plain:0", "ttl_seconds": 5, "watts": -1},
        {"op": "acquire", "device": "plain:0", "ttl_seconds": 5, "watts": 10**400},
        {"op": "set", "lease": "1"},
        {"op": "fly"},
        {"op": ["set"]},
        {},
    ],
)
def test_nonsense_is_refused_and_the_talk_goes_on(bench, message):
    """A client's mistake would end its session, or the daemon."""
    reply = bench.callers[0].ask(message.pop("op", None), **message)
    assert reply["ok"] is False
    assert reply["remedy"]
    assert bench.callers[0].ask("status")["ok"]


def test_first_word_must_be_a_greeting(bench):
    """A later version of the protocol could not be distinguished from this one."""
    session = LeaseSession(bench.table, bench.callers[0].session.peer)
    assert b"did not greet" in at_once(session.answer(encode_line({"op": "status"})))
    assert session.closing
