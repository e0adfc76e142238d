"""The energy log: sessions add up, damage is survived and reported."""

import json
import math
import os
import threading
from pathlib import Path

import pytest

from joulery.clock import VirtualClock
from joulery.errors import FileError
from joulery.frontier import Origin, Provenance
from joulery.hardware import DeviceInfo, DeviceKind
from joulery.metering import SCHEMA, EnergyLog, Measurement, Meter
from joulery.metering._measurement import DeviceMeasurement


class Growing:
    """Stands in for a window: what it measured is what a test says."""

    def __init__(self, joules=0.0, error=0.01, kind=DeviceKind.GPU):
        self.error, self.kind = error, kind
        self.now(joules)

    def now(self, joules, seconds=None):
        """Let it stand at ``joules``, and a tenth of that in seconds."""
        parts = [("a", 0.75 * joules), ("b", 0.25 * joules)]
        devices = tuple(
            DeviceMeasurement(
                DeviceInfo(name, name, self.kind, "fake"),
                part,
                math.nan,
                math.nan,
                math.nan,
                Provenance(Origin.MEASURED, "fake", self.error),
            )
            for name, part in parts
        )
        elapsed = 0.1 * joules if seconds is None else seconds
        self.measurement = Measurement("w", elapsed, devices, started_at_wall=1.7e9)


@pytest.fixture
def log(tmp_path):
    """A log that does not exist yet, written only at the beginning and end of sessions."""
    return EnergyLog(tmp_path / "energy.log", interval_seconds=3600.0)


def session(log, joules, label=""):
    """Record one session that ends at ``joules``."""
    window = Growing()
    with log.recording(window, label):
        window.now(joules)


def documents(log):
    """Its lines, parsed."""
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def test_sessions_add_up(log):
    """A run that was restarted would show only its last part."""
    for joules in (100.0, 40.0, 7.0):
        session(log, joules)
    totals = log.totals()
    assert totals.joules == pytest.approx(147.0)
    assert totals.seconds == pytest.approx(14.7)
    assert totals.devices == pytest.approx({"a": 110.25, "b": 36.75})
    assert (totals.sessions, totals.unfinished, totals.damaged_lines) == (3, 0, ())
    assert totals.provenance.origin is Origin.MEASURED
    assert totals.provenance.relative_error < 0.01


def test_lines_are_strict_json_with_what_is_needed(log):
    """Other tools could not read the log."""
    session(log, 100.0, "python train.py")
    first, last = documents(log)
    assert (first["final"], last["final"]) == (False, True)
    assert last["schema"] == SCHEMA
    assert last["label"] == "python train.py"
    assert last["joules"] == 100.0
    assert last["devices"] == {"a": 75.0, "b": 25.0}
    assert first["session"] == last["session"]


def test_hardware_is_named(log):
    """Nobody could say on which boards or processors a training ran."""
    session(log, 100.0)
    assert log.totals().accelerators == {"a": "a", "b": "b"}
    assert log.totals().processors == {}
    with log.recording(Growing(kind=DeviceKind.CPU)):
        pass
    assert log.totals().processors == {"a": "a", "b": "b"}
    log.path.write_text(log.path.read_text().replace('"processors":{},', ""))
    assert log.totals().processors is None  # a session does not say


def test_each_device_has_its_name_and_provenance(log):
    """The sum would not say which part of it was assumed, and how far off that may be."""
    for joules in (100.0, 40.0):
        session(log, joules)
    totals = log.totals()
    assert totals.names == {"a": "a", "b": "b"}
    assert totals.provenances["b"].source == "fake"
    assert totals.provenances["b"].origin is Origin.MEASURED
    assert totals.provenances["b"].relative_error < 0.01
    old = documents(log)[-1] | {"session": "old"}
    del old["device_figures"]
    with log.path.open("a") as file:
        file.write(json.dumps(old) + "\n")
    totals = log.totals()
    assert totals.joules == pytest.approx(180.0)
    assert totals.devices["b"] == pytest.approx(45.0)
    assert totals.provenances == {}


def test_running_totals_are_written_in_between(log):
    """A kill would lose everything since the session began."""
    log = EnergyLog(log.path, interval_seconds=0.005)
    window = Growing()
    with log.recording(window):
        window.now(50.0)
        written = threading.Event()
        for _ in range(400):
            if len(documents(log)) >= 3:
                break
            written.wait(0.005)
        lines = documents(log)
    assert len(lines) >= 3
    assert lines[-1]["joules"] == 50.0
    assert not lines[-1]["final"]


def test_a_killed_session_counts_up_to_its_last_line(log):
    """Energy of crashed runs would vanish from the total."""
    session(log, 100.0)
    session(log, 30.0)
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(lines[:-1]))  # the second one never said goodbye
    totals = log.totals()
    assert totals.sessions == 2
    assert totals.unfinished == 1
    assert totals.joules == pytest.approx(100.0)


@pytest.mark.parametrize("kept", [1, 20, -2])
def test_a_torn_last_line_is_skipped_and_the_next_session_stands_alone(log, kept):
    """One crash would make the log unreadable, or swallow the next session."""
    session(log, 100.0)
    session(log, 30.0)
    lines = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])
    assert log.totals().damaged_lines == (4,)
    session(log, 5.0)
    totals = log.totals()
    assert totals.joules == pytest.approx(105.0)
    assert totals.damaged_lines == (4,)
    assert totals.sessions == 3


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1, 2]",
        "null",
        '{"schema": "joulery.energy-log/2"}',
        json.dumps({"schema": SCHEMA, "session": "x", "seconds": 1.0, "devices": {}}),
        json.dumps({"schema": SCHEMA, "session": "x", "provenance": "measured", "devices": {}}),
        json.dumps(
            {"schema": SCHEMA, "session": "x", "provenance": "measured", "devices": {"a": 1.0}}
            | {"seconds": 1.0, "joules": 1.0, "relative_error": None}
            | {"systematic_error_joules": None, "device_figures": {"a": {"name": "a"}}}
        ),
    ],
)
def test_a_foreign_line_is_reported_and_skipped(log, line):
    """A stray line would end in a traceback or in a wrong sum."""
    session(log, 100.0)
    with log.path.open("a") as file:
        file.write(line + "\n")
    totals = log.totals()
    assert totals.damaged_lines == (3,)
    assert totals.joules == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", "1"),
        ("seconds", -1.0),
        ("joules", math.nan),
        ("joules", -5.0),
        ("devices", [1.0]),
        ("devices", {"a": "1"}),
        ("relative_error", -0.1),
        ("provenance", "guessed"),
        ("session", 7),
    ],
)
def test_a_line_with_a_bad_value_is_damaged(log, key, value):
    """A corrupted number would poison the sum."""
    session(log, 100.0)
    document = documents(log)[-1] | {key: value}
    with log.path.open("a") as file:
        file.write(json.dumps(document) + "\n")
    totals = log.totals()
    assert totals.damaged_lines == (3,)
    assert totals.joules == pytest.approx(100.0)


def test_sessions_may_overlap(log):
    """Ranks that share a log would overwrite each other."""
    first, second = Growing(), Growing()
    with log.recording(first):
        with log.recording(second):
            first.now(10.0)
            second.now(20.0)
        first.now(11.0)
    assert log.totals().joules == pytest.approx(31.0)
    assert log.totals().sessions == 2


def test_unknown_energy_is_none_and_not_zero(log):
    """A machine without counters would log free training."""
    clock = VirtualClock()
    with Meter([], clock=clock) as meter, meter.window() as window, log.recording(window):
        clock.sleep(5.0)
    totals = log.totals()
    assert totals.joules is None
    assert totals.seconds == pytest.approx(5.0)
    assert totals.provenance.origin is Origin.ASSUMED


def test_a_session_with_unknown_energy_does_not_hide_the_others(log):
    """One failed session would make the whole run unknown."""
    session(log, 100.0)
    session(log, math.nan)
    window = Growing()
    with log.recording(window):
        window.now(math.nan, seconds=5.0)
    assert log.totals().joules == pytest.approx(100.0)
    assert log.totals().sessions == 3


def test_a_window_that_never_began_can_be_logged(log):
    """A slip in bookkeeping would raise into the measured code."""
    meter = Meter([], clock=VirtualClock())
    with log.recording(meter.window()):
        pass
    assert log.totals().seconds == 0.0


def test_an_empty_log_is_nothing(log):
    """A run killed before its first line would be an error."""
    log.path.touch()
    totals = log.totals()
    assert (totals.sessions, totals.joules) == (0, None)


def test_the_blocks_own_error_passes_and_the_session_is_final(log):
    """A failed training would be logged as killed, or its error be lost."""
    window = Growing()

    def fail():
        with log.recording(window):
            window.now(9.0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert log.totals().joules == pytest.approx(9.0)
    assert log.totals().unfinished == 0


def test_a_missing_log_is_a_file_error(log):
    """A typo in the path would end in a traceback."""
    with pytest.raises(FileError, match=r"energy\.log"):
        log.totals()


def test_a_file_that_is_no_log_is_a_file_error(log):
    """Any text file would add up to nothing."""
    log.path.write_text("hello\nworld\n")
    with pytest.raises(FileError, match="line 1"):
        log.totals()
    log.path.write_bytes(bytes(range(256)))
    with pytest.raises(FileError):
        log.totals()


@pytest.mark.parametrize("path", ["/no/such/folder/energy.log", "/"])
def test_an_unwritable_path_is_refused_before_measuring(path):
    """Hours of training would be measured for a log that cannot be written."""
    with pytest.raises(FileError, match="cannot open"), EnergyLog(path).recording(Growing()):
        pytest.fail("the block must not run")


def test_a_full_disk_is_refused_before_measuring():
    """The first line would be lost without a word."""
    with (
        pytest.raises(FileError, match="cannot write"),
        EnergyLog("/dev/full").recording(Growing()),
    ):
        pytest.fail("the block must not run")


def failing_disk(monkeypatch, window, joules):
    """From here on the disk is full."""

    def full(descriptor):
        raise OSError(28, "No space left on device")

    window.now(joules)
    monkeypatch.setattr(os, "fdatasync", full)


def test_a_disk_that_fills_up_is_reported_at_the_end(log, monkeypatch):
    """A log without its last line would pass for complete."""
    window = Growing()
    with pytest.raises(FileError, match="No space left"), log.recording(window):
        failing_disk(monkeypatch, window, 5.0)


def test_a_full_disk_does_not_hide_the_blocks_own_error(log, monkeypatch):
    """The reason why training failed would be lost."""
    window = Growing()

    def fail():
        with log.recording(window):
            failing_disk(monkeypatch, window, 5.0)
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_a_disk_that_fills_up_in_between_does_not_disturb_the_work(log, monkeypatch):
    """The measured code would suffer from its log."""
    log = EnergyLog(log.path, interval_seconds=0.001)
    window, healthy = Growing(), os.fdatasync
    with log.recording(window):
        failing_disk(monkeypatch, window, 5.0)
        threading.Event().wait(0.02)
        monkeypatch.setattr(os, "fdatasync", healthy)
    assert log.totals().joules == pytest.approx(5.0)


def test_no_descriptor_is_left_open(log):
    """Every session would leak a file."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        session(log, 1.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("content", [b"import os\n", b"no line end", b"\xff\x00", b'{"a": 1}\n'])
def test_a_file_of_another_kind_is_left_alone(log, content):
    """If this fails, `--log train.py` damages a source file."""
    log.path.write_bytes(content)
    with pytest.raises(FileError, match="another kind"):
        session(log, 1.0)
    assert log.path.read_bytes() == content


@pytest.mark.parametrize(
    ("origin", "shared", "expected"),
    [
        ("assumed", 50.0, 0.5),
        ("measured", 0.0, 0.125),
        ("measured", 30.0, 0.316),
    ],
)
def test_errors_that_sessions_share_do_not_average_out(log, origin, shared, expected):
    """Sixteen sessions of one guess would pass for sixteen independent measurements."""
    for number in range(16):
        line = {
            "schema": SCHEMA,
            "session": str(number),
            "final": True,
            "seconds": 1.0,
            "joules": 100.0,
            "provenance": origin,
            "relative_error": 0.5,
            "systematic_error_joules": shared,
            "devices": {"cpu": 100.0},
        }
        with log.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    assert log.totals().provenance.relative_error == pytest.approx(expected, rel=0.01)
