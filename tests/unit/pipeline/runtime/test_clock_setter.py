"""Clocks and power limits of a rank's devices, through leases."""

from contextlib import contextmanager, suppress

import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError, MissingRightsError, UnsupportedError
from joulery.hardware import Capability, Faults, SimulatedGpu, Workload, settle
from joulery.pipeline import ClockSetter
from support.simulated_boards import simulated_node


class OnlyLimits(SimulatedGpu):
    """A board whose clock cannot be locked."""

    @property
    def capabilities(self):
        """All but that."""
        return super().capabilities - {Capability.CLOCK_LOCK}


@pytest.fixture
def clock():
    """Time that tests turn."""
    return VirtualClock()


def test_clocks_are_set_on_every_device_and_given_back(clock):
    """If it fails a tensor-parallel group runs at different clocks, or keeps them."""
    boards = simulated_node("A100", 2, clock)
    setter = ClockSetter(boards, clock=clock)
    setter.set(1.2e9)
    assert [board._locked_hertz for board in boards] == [1.2e9, 1.2e9]
    setter.reset()
    assert [board._locked_hertz for board in boards] == [None, None]
    setter.set(0.9e9)
    setter.release()
    assert [board._locked_hertz for board in boards] == [None, None]


def test_a_clock_between_two_supported_ones_goes_up(clock):
    """If it fails a plan made elsewhere runs slower than promised."""
    (board,) = simulated_node("A100", 1, clock)
    supported = board.supported_clocks()
    setter = ClockSetter([board], clock=clock)
    setter.set((supported[5] + supported[6]) / 2)
    assert board._locked_hertz == supported[6]
    setter.set(supported[6] * (1 + 1e-9))
    assert board._locked_hertz == supported[6]
    setter.set(None)
    assert board._locked_hertz is None
    setter.release()


def test_a_clock_that_the_board_does_not_have_is_refused(clock):
    """If it fails a plan in another unit, or of another board, locks the lowest clock."""
    (board,) = simulated_node("A100", 1, clock)
    setter = ClockSetter([board], clock=clock)
    for hertz in (1.41e6, 2 * board.supported_clocks()[-1]):
        with pytest.raises(InvalidValueError, match=r"MHz, but .* has 210 to 1410 MHz"):
            setter.set(hertz)
    assert board._locked_hertz is None
    setter.release()


def test_a_power_limit_leads_to_the_clock_where_none_can_be_locked(clock):
    """If it fails boards without clock locks run at other speeds than planned."""
    plain = simulated_node("A100", 1, clock)[0]
    board = OnlyLimits(plain.board, clock)
    load = Workload("work", 0.1, 0.03, 0.0, 0.9)
    limit_watts = settle(plain.board, load, 400.0, 1.2e9)
    setter = ClockSetter([board], clock=clock)
    board.set_load(load)
    setter.set(1.2e9, limit_watts.busy_watts)
    assert setter.uses_limits
    assert board.steady().clock_hertz == pytest.approx(1.2e9, rel=0.01)
    assert board.steady().seconds <= limit_watts.seconds
    setter.set(1.41e9, 1000.0)
    assert board.power_limits().current_watts == plain.board.default_limit_watts
    setter.set(0.3e9, 1.0)
    assert board.power_limits().current_watts == plain.board.min_limit_watts
    setter.set(0.3e9)
    assert board.power_limits().current_watts == plain.board.default_limit_watts
    setter.release()


def test_devices_without_knobs_are_refused(clock):
    """If it fails plans silently do nothing."""

    class Nothing(SimulatedGpu):
        @property
        def capabilities(self):
            return frozenset({Capability.ENERGY})

    board = Nothing(simulated_node("A100", 1, clock)[0].board, clock)
    with pytest.raises(UnsupportedError, match="neither a clock to lock nor a power limit"):
        ClockSetter([board], clock=clock).set(1e9)


def test_a_device_that_cannot_be_had_frees_the_others(clock):
    """If it fails half a group stays leased."""
    good, bad = simulated_node("A100", 2, clock)
    given_back = []

    @contextmanager
    def hold(device):
        if device is bad:
            raise MissingRightsError("may not", remedy="ask")
        try:
            yield None
        finally:
            given_back.append(device)

    with pytest.raises(MissingRightsError):
        ClockSetter([good, bad], hold=hold, clock=clock).set(1e9)
    assert given_back == [good]


def test_the_time_of_a_change_is_measured_while_the_board_shows_its_clock(clock):
    """If it fails commands are given too early or too late for the board at hand."""

    class Late(SimulatedGpu):
        def lock_clock(self, hertz):
            self.clock.call_at(self.clock.now() + 0.02, lambda: super(Late, self).lock_clock(hertz))

    board = Late(simulated_node("A100", 1, clock)[0].board, clock)
    board.set_load(Workload("work", 0.1, 0.0, 0.0, 0.3))
    setter = ClockSetter([board], clock=clock, set_seconds=0.01)
    assert setter.set_seconds == 0.01
    for hertz in (1.2e9, 0.9e9, 1.2e9):
        setter.set(hertz, watch=lambda: True)
    assert setter.set_seconds == pytest.approx(0.02, abs=0.002)
    setter.release()


def test_refusals_reach_the_caller(clock):
    """If it fails a controller believes that clocks are set."""
    board = simulated_node("A100", 1, clock, faults=Faults(no_permission=True))[0]
    setter = ClockSetter([board], clock=clock)
    with pytest.raises(MissingRightsError):
        setter.set(1e9)
    with suppress(MissingRightsError):
        setter.release()


def test_a_governor_that_keeps_callers_waiting_is_asked_earlier(clock):
    """If it fails clocks come late wherever requests are rationed."""

    @contextmanager
    def hold(device):
        class Held:
            def set(self, **_):
                clock.sleep(0.05)

            def reset(self):
                """Nothing to do."""

        yield Held()

    setter = ClockSetter(simulated_node("A100", 1, clock), hold=hold, clock=clock)
    for hertz in (1.2e9, 0.9e9, 1.2e9):
        setter.set(hertz)
    assert setter.set_seconds == pytest.approx(0.05)
    setter.release()


def test_a_change_that_takes_long_is_learned_even_piece_by_piece(clock):
    """If it fails boards slower than 60 ms are thought to be fast, and their clocks come late."""

    class Late(SimulatedGpu):
        def lock_clock(self, hertz):
            self.clock.call_at(self.clock.now() + 0.25, lambda: super(Late, self).lock_clock(hertz))

    board = Late(simulated_node("A100", 1, clock)[0].board, clock)
    board.set_load(Workload("work", 0.1, 0.0, 0.0, 0.3))
    setter = ClockSetter([board], clock=clock, set_seconds=0.01)
    busy_at = clock.now() + 0.1
    setter.set(1.2e9, watch=lambda: clock.now() < busy_at)
    assert setter.set_seconds == pytest.approx(0.1, abs=0.002)
    setter.set(0.9e9, watch=lambda: True)
    assert setter.set_seconds == pytest.approx(0.25, abs=0.002)
