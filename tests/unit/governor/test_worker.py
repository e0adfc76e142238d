"""The thread of one device: errands in order, and what happens when one hangs."""

import asyncio
import threading

import pytest

from joulery.clock import REAL_CLOCK
from joulery.errors import DeviceError
from joulery.governor.worker import DeviceWorker


@pytest.fixture
def gate():
    """Opened at the end, so that no thread hangs for ever."""
    made = threading.Event()
    yield made
    made.set()


def test_errands_run_in_order_and_tell_their_errors():
    """A restore could overtake the change that it undoes, or an error be lost."""
    worker, seen = DeviceWorker(REAL_CLOCK, 5.0), []

    def fail():
        raise DeviceError("broken", remedy="mend it")

    for number in range(5):
        worker.start(lambda number=number: seen.append(number))
    with pytest.raises(DeviceError, match="broken"):
        asyncio.run(worker.ask(fail))
    assert seen == [0, 1, 2, 3, 4]
    assert not worker.stuck


def test_hanging_errand_is_given_up_and_later_ones_forgotten(gate):
    """A caller who was told no would find his change made later."""
    worker, seen, ended = DeviceWorker(REAL_CLOCK, 0.05), [], []

    async def ask_thrice():
        with pytest.raises(DeviceError, match="does not answer"):
            await worker.ask(gate.wait, ended.append)
        await asyncio.sleep(0.5)  # patience counts from when the thread got to the errand
        assert worker.stuck
        with pytest.raises(DeviceError, match="does not answer"):
            await worker.ask(lambda: seen.append("refused"))
        restore = worker.start(lambda: seen.append("restored"))
        gate.set()
        await asyncio.wrap_future(restore)

    asyncio.run(ask_thrice())
    assert seen == ["restored"]
    assert ended[0].result() is True
    assert not worker.stuck
