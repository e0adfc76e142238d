"""Every user, device and operation that the policy does not allow is refused."""

import itertools

import pytest

from joulery.clock import VirtualClock
from joulery.governor._device import GovernedDevice
from joulery.governor._leases import LeaseTable
from joulery.governor._peer import Peer
from joulery.governor._policy import AccessPolicy, parse_policy
from support.governor.bench import Caller, MemoryJournal, PlainBoard, PromptWorker

POLICY = """
[[allow]]               # the owner of board 0: all
users = [1001]
devices = ["plain:0"]
limits_watts = [100, 400]
clocks_mhz = [1000, 1500]

[[allow]]               # a group: limits in a range on board 1, if it runs there
groups = [2000]
devices = [1]
limits_watts = [150, 250]
must_own = true

[[allow]]               # everyone: may hold board 2, and change nothing
users = ["*"]
devices = [2]
"""
PEERS = {
    "owner": Peer(1001, frozenset({1001}), 11),
    "member running": Peer(1002, frozenset({1002, 2000}), 12),
    "member idle": Peer(1003, frozenset({2000}), 13),
    "stranger": Peer(1004, frozenset({1004}), 14),
    "root": Peer(0, frozenset({0}), 15),
}
OPERATIONS = {
    "hold": {},
    "low": {"watts": 120},
    "middle": {"watts": 200},
    "high": {"watts": 300},
    "clock": {"hertz": 1.2e9},
    "both": {"watts": 200, "hertz": 1.2e9},
    "too fast": {"hertz": 1.6e9},
}
ALLOWED = (
    {("owner", 0, operation) for operation in OPERATIONS if operation != "too fast"}
    | {("member running", 1, "hold"), ("member running", 1, "middle")}
    | {(peer, 2, "hold") for peer in PEERS}
)


def _table(policy, audit=lambda *_, **__: None):
    boards = [PlainBoard(index) for index in range(4)]
    governed = {board.info.id: GovernedDevice(board, MemoryJournal()) for board in boards}
    running = PEERS["member running"].pid
    table = LeaseTable(
        governed,
        policy,
        VirtualClock(),
        lambda peer, *_: peer.pid == running,
        audit,
        PromptWorker,
    )
    return table, boards


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("board", range(4))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_matrix(peer, board, operation):
    """A forbidden cell that is granted is a hole; an allowed one that is refused is a nuisance."""
    table, boards = _table(parse_policy(POLICY))
    caller = Caller(table, PEERS[peer])
    request = OPERATIONS[operation]
    reply = caller.ask("acquire", device=f"plain:{board}", ttl_seconds=5, **request)
    assert reply["ok"] == ((peer, board, operation) in ALLOWED), reply
    if reply["ok"]:
        assert boards[board].watts == request.get("watts", 400.0)
    else:
        assert reply["error"] == "MissingRightsError"
        assert all(each.watts == 400.0 and each.locked_hertz is None for each in boards)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_matrix_of_changes(peer, operation):
    """What may not be asked for first could be had by asking for less first."""
    table, boards = _table(parse_policy(POLICY))
    caller = Caller(table, PEERS[peer])
    lease = caller.ask("acquire", device="plain:2", ttl_seconds=5)["lease"]
    reply = caller.ask("set", lease=lease, **OPERATIONS[operation])
    assert reply["ok"] == (operation == "hold")
    assert boards[2].watts == 400.0


def test_closed_without_a_policy():
    """A daemon started without a file would be open to everyone."""
    table, _ = _table(AccessPolicy())
    for peer, board in itertools.product(PEERS.values(), range(4)):
        caller = Caller(table, peer)
        reply = caller.ask("acquire", device=f"plain:{board}", ttl_seconds=5)
        assert reply["error"] == "MissingRightsError"
        assert not caller.ask("may", device=f"plain:{board}")["ok"]


def test_no_client_can_use_anothers_lease():
    """Guessing a lease's number would let a stranger change or end it."""
    table, boards = _table(parse_policy(POLICY))
    owner, other = Caller(table, PEERS["owner"]), Caller(table, PEERS["owner"])
    lease = owner.ask("acquire", device="plain:0", watts=200, ttl_seconds=5)["lease"]
    for operation in ("set", "release", "renew"):
        assert other.ask(operation, lease=lease, watts=150)["error"] == "LeaseLostError"
    assert boards[0].watts == 200


def test_a_new_policy_ends_what_it_does_not_allow():
    """Taking a right away would have no effect on those who use it."""
    table, boards = _table(parse_policy(POLICY))
    owner = Caller(table, PEERS["owner"])
    owner.ask("acquire", device="plain:0", watts=200, ttl_seconds=5)
    table.replace_policy(parse_policy(POLICY.replace("[1001]", "[1005]")))
    assert boards[0].watts == 400.0


def test_refusals_are_audited():
    """An administrator could not see who tries doors."""
    seen = []
    table, _ = _table(AccessPolicy(), lambda event, **details: seen.append((event, details)))
    Caller(table, PEERS["stranger"]).ask("acquire", device="plain:0", ttl_seconds=5)
    ((event, details),) = seen
    assert event == "refuse"
    assert details["uid"] == 1004
