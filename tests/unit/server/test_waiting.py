"""Futures of other threads."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from joulery.errors import ConflictError
from joulery.server.waiting import Bridge


def test_answers_and_errors_arrive():
    """Requests would wait for ever, or be answered with another's answer."""

    async def ask():
        bridge = Bridge(asyncio.get_running_loop())
        futures = [Future() for _ in range(100)]
        waiting = [bridge.wait(future) for future in futures]
        assert bridge.pending == 100

        def end():
            for number, future in enumerate(futures[:-1]):
                future.set_result(number)
            futures[-1].set_exception(ConflictError("m", remedy="r"))

        thread = threading.Thread(target=end)
        thread.start()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        thread.join()
        assert bridge.pending == 0
        return answers

    answers = asyncio.run(ask())
    assert answers[:-1] == list(range(99))
    assert isinstance(answers[-1], ConflictError)


def test_one_that_nobody_waits_for_any_more_harms_none():
    """A client that went away would take others' answers with it."""

    async def ask():
        bridge = Bridge(asyncio.get_running_loop())
        gone, there = Future(), Future()
        first, second = bridge.wait(gone), bridge.wait(there)
        first.cancel()
        gone.set_result(1)
        there.set_result(2)
        assert await second == 2
        with pytest.raises(asyncio.CancelledError):
            await first
        return bridge.pending

    assert asyncio.run(ask()) == 0
