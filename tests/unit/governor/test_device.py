"""One governed device: its values, their restore, and the thread of its driver calls."""

import asyncio
import threading

import pytest

from joulery.clock import REAL_CLOCK
from joulery.errors import DeviceError, InvalidValueError, UnsupportedError
from joulery.governor._device import DeviceWorker, GovernedDevice, LeaseRequest
from joulery.governor._journal import Intent
from joulery.hardware import Capability
from support.governor.bench import MemoryJournal, PlainBoard


class Recorded(PlainBoard):
    """A board that writes down what happens to it, in order with the journal."""

    def __init__(self):
        super().__init__()
        self.events = []

    def set_power_limit(self, watts):
        """Set and note."""
        self.events.append(("set", watts))
        super().set_power_limit(watts)


class RecordedJournal(MemoryJournal):
    """A journal that writes into the same list as the board."""

    def __init__(self, events):
        super().__init__()
        self.events = events

    def record(self, intent):
        """Keep and note."""
        self.events.append(("intend", intent.expected_watts[-1]))
        super().record(intent)


@pytest.fixture
def hardware():
    """The board itself."""
    return Recorded()


@pytest.fixture
def foreign():
    """Foreign changes that were reported."""
    return []


@pytest.fixture
def board(hardware, foreign):
    """The governed board."""
    journal = RecordedJournal(hardware.events)
    return GovernedDevice(
        hardware, journal, on_foreign=lambda **pair: foreign.append(tuple(pair.values()))
    )


def test_each_write_is_noted_before_it_is_made(board, hardware):
    """A crash between a write and its note would leave a limit without a record."""
    board.hold()
    board.apply(LeaseRequest(watts=200.0))
    board.restore()
    assert hardware.events == [
        ("intend", 200.0),
        ("set", 200.0),
        ("set", 400.0),  # the way back is in the note already
    ]
    assert board.journal.open is None


def test_nothing_is_written_where_nothing_changes(board, hardware):
    """A lease that only holds would wear out the journal and touch the board."""
    board.hold()
    board.apply(LeaseRequest())
    board.restore()
    assert hardware.events == []


@pytest.mark.parametrize("watts", [99.0, 351.0, 1e308])
def test_ceiling_is_what_was_found(board, hardware, watts):
    """A lease could raise the administrator's cap."""
    hardware.watts = 350.0
    board.hold()
    with pytest.raises(InvalidValueError) as raised:
        board.check(LeaseRequest(watts=watts))
    assert raised.value.remedy == "give 100 W to 350 W, the cap found in force"
    board.apply(LeaseRequest(watts=400.0))
    assert hardware.watts == 350.0


@pytest.mark.parametrize("value", [120.0, 380.0])
def test_foreign_value_is_reported_and_left(board, hardware, foreign, value):
    """Fighting an administrator's tool would make both useless."""
    board.hold()
    board.apply(LeaseRequest(watts=200.0))
    hardware.watts = value
    assert board.refresh() == value
    assert foreign == [(200.0, value)]
    assert board.overridden
    assert board.baseline_watts == value
    board.restore()
    assert hardware.watts == value


def test_failed_restore_is_tried_again(board, hardware):
    """A driver that fails once would leave the limit for good."""
    board.hold()
    board.apply(LeaseRequest(watts=200.0, hertz=1.2e9))
    hardware.broken = True
    with pytest.raises(DeviceError):
        board.restore()
    assert board.held
    assert board.journal.open is not None
    hardware.broken = False
    board.restore()
    assert (hardware.watts, hardware.locked_hertz) == (400.0, None)
    assert board.journal.open is None


def test_pinned_clock_is_a_ceiling_and_comes_back(board, hardware):
    """A clock that the administrator keeps pinned would be freed by the first lease."""
    board.pinned_hertz = 1.2e9
    board.hold()
    with pytest.raises(InvalidValueError):
        board.check(LeaseRequest(hertz=1.4e9))
    board.apply(LeaseRequest(hertz=1.0e9))
    assert hardware.locked_hertz == 1.0e9
    board.restore()
    assert hardware.locked_hertz == 1.2e9


def test_adopted_clock_is_freed(board, hardware):
    """Death of a holder would leave its clock pinned."""
    hardware.locked_hertz = 1.2e9
    board.journal.open = Intent(None, (), hertz=1.2e9)
    board.hold()
    board.restore()
    assert hardware.locked_hertz is None


@pytest.mark.parametrize(
    ("now", "after"),
    [
        (200.0, 350.0),  # died after the write
        (199.2, 350.0),  # after the write, on a board that keeps whole watts
        (300.0, 350.0),  # before the write
        (350.0, 350.0),  # after giving back
        (250.0, 250.0),  # another program has set it since
    ],
)
def test_adopted_limit(board, hardware, foreign, now, after):
    """The next governor would miss a limit left behind, or undo an administrator's."""
    hardware.watts = now
    board.journal.open = Intent(350.0, (300.0, 200.0))
    board.hold()
    board.restore()
    assert hardware.watts == after
    assert bool(foreign) == (now == 250.0)


def test_missing_knobs_are_said(board, hardware):
    """A board without a clock lock would fail in the driver instead."""
    hardware.capabilities = frozenset({Capability.POWER_LIMIT})
    board.hold()
    with pytest.raises(UnsupportedError):
        board.check(LeaseRequest(hertz=1.2e9))


@pytest.fixture
def gate():
    """Opened at the end, so that no thread hangs for ever."""
    made = threading.Event()
    yield made
    made.set()


def test_calls_run_in_order_and_tell_their_errors():
    """A restore could overtake the change that it undoes, or an error be lost."""
    worker, seen = DeviceWorker(REAL_CLOCK, 5.0), []

    def fail():
        raise DeviceError("broken", remedy="mend it")

    for number in range(5):
        worker.submit(lambda number=number: seen.append(number))
    with pytest.raises(DeviceError, match="broken"):
        asyncio.run(worker.run(fail))
    assert seen == [0, 1, 2, 3, 4]
    assert not worker.hangs


def test_hanging_call_is_given_up_and_later_ones_forgotten(gate):
    """A client whose request was refused would find its change made later."""
    worker, seen, ended = DeviceWorker(REAL_CLOCK, 0.05), [], []

    async def ask_thrice():
        with pytest.raises(DeviceError, match="does not answer"):
            await worker.run(gate.wait, ended.append)
        await asyncio.sleep(0.5)  # patience counts from when the thread got to the call
        assert worker.hangs
        with pytest.raises(DeviceError, match="does not answer"):
            await worker.run(lambda: seen.append("refused"))
        restore = worker.submit(lambda: seen.append("restored"))
        gate.set()
        await asyncio.wrap_future(restore)

    asyncio.run(ask_thrice())
    assert seen == ["restored"]
    assert ended[0].result() is True
    assert not worker.hangs
