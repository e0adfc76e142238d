"""One board: what was found, what is in force, and how it comes back."""

import pytest

from joulery.errors import DeviceError, InvalidValueError, UnsupportedError
from joulery.governor.board import GovernedDevice, LeaseRequest
from joulery.governor.journal import Intent
from joulery.hardware.device import Capability
from joulery.testing.governor.bench import MemoryJournal, PlainBoard


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

    def intend(self, intent):
        """Keep and note."""
        self.events.append(("intend", intent.expected_watts[-1]))
        super().intend(intent)


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
    """A crash between a write and its note would leave a limit that nobody knows of."""
    board.begin()
    board.apply(LeaseRequest(watts=200.0))
    board.finish()
    assert hardware.events == [
        ("intend", 200.0),
        ("set", 200.0),
        ("set", 400.0),  # the way back is in the note already
    ]
    assert board.journal.open is None


def test_nothing_is_written_where_nothing_changes(board, hardware):
    """A lease that only holds would wear out the journal and touch the board."""
    board.begin()
    board.apply(LeaseRequest())
    board.finish()
    assert hardware.events == []


@pytest.mark.parametrize("watts", [99.0, 351.0, 1e308])
def test_ceiling_is_what_was_found(board, hardware, watts):
    """A lease could raise the administrator's cap."""
    hardware.watts = 350.0
    board.begin()
    with pytest.raises(InvalidValueError) as raised:
        board.check(LeaseRequest(watts=watts))
    assert raised.value.remedy == "give 100 W to 350 W, the cap found in force"
    board.apply(LeaseRequest(watts=400.0))
    assert hardware.watts == 350.0


@pytest.mark.parametrize("value", [120.0, 380.0])
def test_foreign_value_is_reported_and_left(board, hardware, foreign, value):
    """Fighting an administrator's tool would make both useless."""
    board.begin()
    board.apply(LeaseRequest(watts=200.0))
    hardware.watts = value
    assert board.look() == value
    assert foreign == [(200.0, value)]
    assert board.overridden
    assert board.baseline_watts == value
    board.finish()
    assert hardware.watts == value


def test_failed_restore_is_tried_again(board, hardware):
    """A driver that fails once would leave the limit for good."""
    board.begin()
    board.apply(LeaseRequest(watts=200.0, hertz=1.2e9))
    hardware.broken = True
    with pytest.raises(DeviceError):
        board.finish()
    assert board.held
    assert board.journal.open is not None
    hardware.broken = False
    board.finish()
    assert (hardware.watts, hardware.locked_hertz) == (400.0, None)
    assert board.journal.open is None


def test_pinned_clock_is_a_ceiling_and_comes_back(board, hardware):
    """A clock that the administrator keeps pinned would be freed by the first lease."""
    board.pinned_hertz = 1.2e9
    board.begin()
    with pytest.raises(InvalidValueError):
        board.check(LeaseRequest(hertz=1.4e9))
    board.apply(LeaseRequest(hertz=1.0e9))
    assert hardware.locked_hertz == 1.0e9
    board.finish()
    assert hardware.locked_hertz == 1.2e9


def test_adopted_clock_is_freed(board, hardware):
    """Death of a holder would leave its clock pinned."""
    hardware.locked_hertz = 1.2e9
    board.journal.open = Intent(None, (), hertz=1.2e9)
    board.begin()
    board.finish()
    assert hardware.locked_hertz is None


@pytest.mark.parametrize(
    ("now", "after"),
    [
        (200.0, 350.0),  # died after the write
        (199.2, 350.0),  # after the write, on a board that keeps whole watts
        (300.0, 350.0),  # before the write
        (350.0, 350.0),  # after giving back
        (250.0, 250.0),  # somebody else has set it since
    ],
)
def test_adopted_limit(board, hardware, foreign, now, after):
    """The next governor would miss a limit left behind, or undo an administrator's."""
    hardware.watts = now
    board.journal.open = Intent(350.0, (300.0, 200.0))
    board.begin()
    board.finish()
    assert hardware.watts == after
    assert bool(foreign) == (now == 250.0)


def test_missing_knobs_are_said(board, hardware):
    """A board without a clock lock would fail in the driver instead."""
    hardware.capabilities = frozenset({Capability.POWER_LIMIT})
    board.begin()
    with pytest.raises(UnsupportedError):
        board.check(LeaseRequest(hertz=1.2e9))
