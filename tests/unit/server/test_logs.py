"""The log."""

import json
import logging
import os
import warnings

from joulery.clock import VirtualClock
from joulery.server.logs import Log, libraries_told


def test_lines_are_json_with_a_time():
    """Nothing could collect the log."""
    read, write = os.pipe()
    log = Log(3, clock=VirtualClock(wall_seconds=5.0), descriptor=write)
    log.say("ready", port=1)
    log.close()
    os.close(write)
    with os.fdopen(read) as lines:
        assert json.loads(lines.read()) == {
            "wall_seconds": 5.0,
            "worker": 3,
            "event": "ready",
            "port": 1,
        }


def test_a_reader_that_sleeps_delays_nobody():
    """A full pipe would stop the server."""
    read, write = os.pipe()
    log = Log(descriptor=write)
    for number in range(20_000):
        log.say("request", number=number)
    assert log.dropped > 0
    os.close(read)
    log.close(10.0)  # its thread may not write to whoever gets the descriptor next
    os.close(write)


def test_libraries_and_warnings_are_told_as_json():
    """Lines that are no JSON would break whatever collects the log."""
    read, write = os.pipe()
    log = Log(descriptor=write)
    with libraries_told(log):
        logging.getLogger("a.library").error("broken %s", "pipe")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("overflow", RuntimeWarning, stacklevel=1)
    log.close()
    os.close(write)
    with os.fdopen(read) as lines:
        told = [json.loads(line) for line in lines]
    assert [one["logger"] for one in told] == ["a.library", "py.warnings"]
    assert told[0]["message"] == "broken pipe"
    assert "overflow" in told[1]["message"]
