"""The log."""

import io
import json
import logging
import threading
import warnings

from joulery.server._main import json_log

LOG = logging.getLogger("joulery.server")


def lines_of(work):
    """The lines that are logged meanwhile."""
    stream = io.StringIO()
    with json_log(stream):
        work()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_are_json_with_a_time():
    """Nothing could collect the log."""
    (line,) = lines_of(lambda: LOG.info("ready", extra={"fields": {"port": 1}}))
    assert line.pop("wall_seconds") > 1.7e9
    assert line == {"level": "info", "event": "ready", "port": 1}


def test_failures_say_where():
    """A failure could not be found."""

    def fail():
        try:
            1 / 0  # noqa: B018 - to fail
        except ZeroDivisionError:
            LOG.exception("failed")

    (line,) = lines_of(fail)
    assert line["event"] == "failed"
    assert "ZeroDivisionError: division" in line["where"]


class Stuck(io.StringIO):
    """A stream whose reader is stuck."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def write(self, text):
        """Wait."""
        self.gate.wait(20.0)
        return super().write(text)


def test_a_reader_that_is_stuck_delays_no_request(capsys):
    """A full pipe would stop the server."""
    stream = Stuck()
    with json_log(stream):
        for number in range(20_000):
            LOG.info("request", extra={"fields": {"number": number}})
        stream.gate.set()
    assert 0 < stream.getvalue().count("\n") < 20_000
    assert capsys.readouterr().err == ""


def test_libraries_and_warnings_are_json_too():
    """Lines that are no JSON would break whatever collects the log."""

    def work():
        logging.getLogger("a.library").error("broken %s", "pipe")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("overflow", RuntimeWarning, stacklevel=1)

    lines = lines_of(work)
    assert [one["logger"] for one in lines] == ["a.library", "py.warnings"]
    assert lines[0]["message"] == "broken pipe"
    assert "overflow" in lines[1]["message"]
