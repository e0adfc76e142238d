"""Heartbeats in the background: as long as a run lives, and no longer."""

import threading

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.training._background import HeartbeatTask, heartbeat_seconds


class Heart:
    """Counts its beats."""

    def __init__(self, error=None):
        self.beats = threading.Semaphore(0)
        self.count = 0
        self.error = error

    def beat(self):
        """Once more."""
        self.count += 1
        self.beats.release()
        if self.error is not None:
            raise self.error


def test_a_heart_beats_until_it_is_stopped_or_gone():
    """If this fails, leases of living runs expire, or those of forgotten ones never do."""
    clock = VirtualClock()
    who = Heart()
    task = HeartbeatTask(who.beat, 10.0, clock)
    task.start()
    clock.sleep(35.0)
    assert who.count == 3
    task.stop()
    clock.sleep(35.0)
    assert who.count == 3
    gone = Heart()
    HeartbeatTask(gone.beat, 10.0, clock).start()
    del gone
    clock.sleep(35.0)


def test_a_beat_that_fails_is_followed_by_another():
    """If this fails, one hiccup ends all signs of life."""
    who = Heart(ValueError("hiccup"))
    task = HeartbeatTask(who.beat, 0.005, REAL_CLOCK)
    task.start()
    for _ in range(3):
        assert who.beats.acquire(timeout=5.0)
    task.stop()


def test_heartbeats_leave_room_for_lost_ones():
    """If this fails, one lost heartbeat costs a lease, or a short lease floods the server."""
    assert heartbeat_seconds(100.0) == 20.0
    assert heartbeat_seconds(1.0) == 1.0
    assert heartbeat_seconds(1e9) == 60.0
