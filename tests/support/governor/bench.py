"""The governor without sockets, on plain boards, next to a model of what it promises.

The model knows nothing of journals, baselines or intents: it keeps what the administrator last
set and who asked for what, and says from that what every limit must be.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, JouleryError
from joulery.files import encode_line
from joulery.frontier import Origin, Provenance
from joulery.governor._device import DeviceWorker, GovernedDevice
from joulery.governor._journal import LeaseJournal
from joulery.governor._leases import LeaseTable
from joulery.governor._peer import Peer
from joulery.governor._policy import parse_policy
from joulery.governor._protocol import VERSION, decode
from joulery.governor._server import LeaseSession
from joulery.hardware import Capability, DeviceInfo, DeviceKind, PowerLimitRange

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

    from joulery.governor._journal import Intent
    from joulery.governor._policy import AccessPolicy

TTL_SECONDS = 10.0
MIN_WATTS, MAX_WATTS = 100.0, 400.0
POLICY = """
[[allow]]
users = [1000, 1001]
devices = [0]
limits_watts = [100, 400]
[[allow]]
users = [1000, 1001]
devices = [1]
limits_watts = [100, 400]
shared = "minimum"
"""


_POLICY = parse_policy(POLICY)


class PlainBoard:
    """A board with a power limit and a clock, and nothing else.

    Args:
        index: Its position, and its name.
    """

    def __init__(self, index: int = 0) -> None:
        self.info = DeviceInfo(f"plain:{index}", "Plain", DeviceKind.GPU, "plain", index)
        self.provenance = Provenance(Origin.SIMULATED, "a test")
        self.capabilities = frozenset({Capability.POWER_LIMIT, Capability.CLOCK_LOCK})
        self.watts = MAX_WATTS
        self.locked_hertz: float | None = None
        self.highest_set_watts = 0.0
        self.broken = False

    def power_limits(self) -> PowerLimitRange:
        """The range and what is in force."""
        self._check()
        return PowerLimitRange(MIN_WATTS, MAX_WATTS, MAX_WATTS, self.watts)

    def set_power_limit(self, watts: float) -> None:
        """Set the cap, and remember the highest."""
        self._check()
        self.highest_set_watts = max(self.highest_set_watts, watts)
        self.watts = watts

    def supported_clocks(self) -> tuple[float, ...]:
        """Two."""
        return (1.0e9, 1.5e9)

    def lock_clock(self, hertz: float) -> None:
        """Pin the clock."""
        self._check()
        self.locked_hertz = hertz

    def unlock_clock(self) -> None:
        """Free the clock."""
        self._check()
        self.locked_hertz = None

    def _check(self) -> None:
        if self.broken:
            raise DeviceError("the board does not answer", remedy="mend it")


class MemoryJournal(LeaseJournal):
    """A journal that outlives the governor that writes it."""

    def __init__(self) -> None:
        self.open: Intent | None = None

    def pending(self) -> Intent | None:
        """What was last intended and is not done."""
        return self.open

    def record(self, intent: Intent) -> None:
        """Keep it."""
        self.open = intent

    def clear(self) -> None:
        """Forget it."""
        self.open = None


class PromptWorker(DeviceWorker):
    """Makes each call at once, on the thread that asks."""

    hangs = is_busy = False

    def __init__(self) -> None:
        pass

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Do it."""
        future: Future[Any] = Future()
        try:
            future.set_result(call())
        except JouleryError as error:
            future.set_exception(error)
        return future

    async def run(self, call: Callable[[], Any], undo: object = None) -> Any:
        """Do it, and never wait."""
        del undo
        return call()


def at_once(answer: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of a coroutine that has nothing to wait for."""
    try:
        answer.send(None)
    except StopIteration as result:
        value: bytes = result.value
        return value
    raise AssertionError("a prompt worker leaves nothing to wait for")


class Caller:
    """A caller's end of a session."""

    def __init__(self, table: LeaseTable, peer: Peer) -> None:
        self.session = LeaseSession(table, peer)
        self.ask("hello", versions=[VERSION])

    def ask(self, operation: str, **details: Any) -> dict[str, Any]:
        """The answer to one request."""
        return decode(at_once(self.session.answer(encode_line({"op": operation, **details}))))


@dataclass(slots=True)
class _Promise:
    """What the model knows of a lease."""

    caller: int
    board: int
    watts: float | None
    expires_at: float


class Bench:
    """A governor and its model, driven side by side.

    Lease values are multiples of ten watts and administrators' values are not, so that each limit
    shows who has set it.
    """

    boards_count = 2
    callers_count = 4

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.boards = [PlainBoard(index) for index in range(self.boards_count)]
        self.journals = [MemoryJournal() for _ in self.boards]
        self.admin = [board.watts for board in self.boards]
        self.overridden = [False] * self.boards_count
        self.promises: dict[int, _Promise] = {}
        self._start()

    def acquire(self, caller: int, board: int, watts: float | None) -> None:
        """Ask for a device."""
        wish = {} if watts is None else {"watts": watts}
        name = self.boards[board].info.id
        reply = self._ask(caller, "acquire", device=name, ttl_seconds=TTL_SECONDS, **wish)
        taken = [promise for promise in self.promises.values() if promise.board == board]
        shared = board == 1
        free = shared and all(promise.caller != caller for promise in taken)
        allowed = (free or not taken) and (watts is None or watts <= self.admin[board])
        assert reply["ok"] == allowed, reply
        if allowed:
            expires = self.clock.now() + TTL_SECONDS
            self.promises[reply["lease"]] = _Promise(caller, board, watts, expires)
        if allowed or not taken:
            self.overridden[board] = False

    def change(self, caller: int, lease: int, watts: float | None) -> None:
        """Ask for another limit under a lease, one's own or another's."""
        promise = self.promises.get(lease)
        reply = self._ask(caller, "set", lease=lease, watts=watts)
        mine = promise is not None and promise.caller == caller
        allowed = mine and promise and (watts is None or watts <= self.admin[promise.board])
        assert reply["ok"] == bool(allowed), reply
        if allowed and promise:
            promise.watts = watts
            self.overridden[promise.board] = False

    def release(self, caller: int, lease: int) -> None:
        """Give a lease back, one's own or another's."""
        promise = self.promises.get(lease)
        reply = self._ask(caller, "release", lease=lease)
        assert reply["ok"] == (promise is not None and promise.caller == caller), reply
        if reply["ok"]:
            self._forget(lambda number, _: number == lease)

    def renew(self, caller: int) -> None:
        """Show a sign of life."""
        self._ask(caller, "status")

    def hang_up(self, caller: int) -> None:
        """Die."""
        self.callers[caller].session.end("it hung up")
        self._forget(lambda _, promise: promise.caller == caller)
        self.callers[caller] = Caller(self.table, self._peer(caller))

    def set_as_administrator(self, board: int, watts: float) -> None:
        """Set a limit behind the governor's back."""
        self.boards[board].watts = self.admin[board] = watts
        held = any(promise.board == board for promise in self.promises.values())
        self.overridden[board] = held

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.sleep(seconds)
        self.table.tick()
        now = self.clock.now()
        self._forget(lambda _, promise: promise.expires_at <= now)

    def crash(self) -> None:
        """Kill the governor and start another on the same journal."""
        self.promises.clear()
        self.overridden = [False] * self.boards_count
        self._start()

    def check(self) -> None:
        """Compare every limit with what the model says."""
        for index, board in enumerate(self.boards):
            wishes = [promise.watts for promise in self.promises.values() if promise.board == index]
            asked = [watts for watts in wishes if watts is not None]
            expected = self.admin[index]
            if asked and not self.overridden[index]:
                expected = min(*asked, expected)
            assert board.watts == expected, (index, board.watts, expected)
            assert board.watts <= self.admin[index], "above the administrator's cap"

    def play(self, chance: random.Random) -> None:
        """Do one thing at random."""
        caller, board = chance.randrange(self.callers_count), chance.randrange(self.boards_count)
        watts = chance.choice([None, *range(100, 401, 30)])
        lease = chance.choice([*self.promises, 0])
        moves: list[tuple[int, Callable[[], None]]] = [
            (6, lambda: self.acquire(caller, board, watts)),
            (6, lambda: self.change(caller, lease, watts)),
            (3, lambda: self.release(caller, lease)),
            (2, lambda: self.renew(caller)),
            (2, lambda: self.hang_up(caller)),
            (2, lambda: self.set_as_administrator(board, chance.randrange(105, 400, 10))),
            (2, lambda: self.sleep(chance.choice([0.1, 3.0, 11.0]))),
            (1, self.crash),
        ]
        weights = [weight for weight, _ in moves]
        chance.choices([move for _, move in moves], weights)[0]()
        self.check()

    def _start(self, policy: AccessPolicy = _POLICY) -> None:
        pairs = zip(self.boards, self.journals, strict=True)
        governed = {board.info.id: GovernedDevice(board, journal) for board, journal in pairs}
        for each in governed.values():
            if each.journal.pending():
                each.hold()
        self.table = LeaseTable(
            governed,
            policy,
            self.clock,
            lambda *_: True,
            lambda *_, **__: None,
            PromptWorker,
        )
        self.clock.sleep(2.0)
        self.table.tick()
        self.callers = [
            Caller(self.table, self._peer(number)) for number in range(self.callers_count)
        ]

    def _ask(self, caller: int, operation: str, **details: Any) -> dict[str, Any]:
        reply = self.callers[caller].ask(operation, **details)
        for promise in self.promises.values():
            if promise.caller == caller:
                promise.expires_at = self.clock.now() + TTL_SECONDS
        return reply

    def _peer(self, caller: int) -> Peer:
        return Peer(1000 + caller % 2, frozenset({1000}), 100 + caller)

    def _forget(self, ends: Callable[[int, _Promise], bool]) -> None:
        """End leases; the last one to leave a board takes a foreign change's mark along."""
        for number, promise in list(self.promises.items()):
            if ends(number, promise):
                del self.promises[number]
                if not any(other.board == promise.board for other in self.promises.values()):
                    self.overridden[promise.board] = False
