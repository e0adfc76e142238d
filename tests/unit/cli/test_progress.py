"""Progress on stderr: one line on a terminal, few lines in a log."""

import io
import json
import sys

import pytest

from joulery.cli import main
from joulery.cli.progress import Progress
from joulery.clock import VirtualClock

MODEL = {"layers": 4, "hidden": 512, "heads": 8, "feedforward": 2048, "vocabulary": 32000}
MODEL |= {"sequence": 512}
PROFILE = """\
stage,instruction,frequency,time,energy
0,forward,1400,0.1,30
0,backward,1400,0.2,60
1,forward,1400,0.1,30
1,backward,1400,0.2,60
"""


class Terminal(io.StringIO):
    """A stderr that claims to be a terminal."""

    def isatty(self):
        """It is."""
        return True


@pytest.fixture
def stderr(monkeypatch):
    """Puts another stderr in place, once the test itself runs."""

    def become(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return become


def test_a_terminal_shows_one_line_that_is_overwritten(stderr):
    """Leftovers of a longer line would read as part of a shorter one."""
    terminal = stderr(Terminal())
    shown = Progress(VirtualClock())
    shown.show("step 100")
    shown.show("step 7")
    shown.show("x")
    shown.done()
    assert terminal.getvalue() == "\rstep 100\rstep 7  \rx     \r \r"


def test_done_leaves_nothing_and_may_be_repeated(stderr):
    """The command's own output starts on a clean line."""
    terminal = stderr(Terminal())
    shown = Progress(VirtualClock())
    shown.done()
    shown.show("abc")
    shown.done()
    shown.done()
    assert terminal.getvalue() == "\rabc\r   \r"


def test_a_log_gets_ever_fewer_lines(stderr):
    """A day of training must not fill a log file."""
    log = stderr(io.StringIO())
    clock = VirtualClock()
    shown = Progress(clock)
    for _ in range(24 * 3600):
        clock.sleep(1.0)
        shown.show(f"{clock.now():g}")
    shown.done()
    lines = [float(line) for line in log.getvalue().splitlines()]
    assert lines[:4] == [2, 4, 8, 16]
    assert len(lines) == 16
    assert "\r" not in log.getvalue()


def test_a_log_gets_a_line_once_until_there_is_news(stderr):
    """A run without an estimate repeats itself, as if it began again."""
    log = stderr(io.StringIO())
    clock = VirtualClock()
    progress = Progress(clock)
    for text in ["run 1 of 2"] * 20 + ["run 2 of 2"] * 20:
        clock.sleep(1.0)
        progress.show(text)
    assert log.getvalue() == "run 1 of 2\nrun 2 of 2\n"


def test_short_work_says_nothing_in_a_log(stderr):
    """What is over in two seconds needs no progress."""
    log = stderr(io.StringIO())
    clock = VirtualClock()
    shown = Progress(clock)
    clock.sleep(1.9)
    shown.show("almost")
    shown.done()
    assert log.getvalue() == ""


def test_a_terminal_can_be_silent_at_first_too(stderr):
    """Figures of the first moments mislead more than they help."""
    terminal = stderr(Terminal())
    clock = VirtualClock()
    shown = Progress(clock, silent_seconds=2.0)
    shown.show("early")
    clock.sleep(2.0)
    shown.show("now")
    assert terminal.getvalue() == "\rnow"


def test_a_narrow_terminal_gets_a_line_that_does_not_wrap(stderr, monkeypatch):
    """A wrapped line cannot be overwritten and fills the screen."""
    monkeypatch.setenv("COLUMNS", "10")
    terminal = stderr(Terminal())
    Progress(VirtualClock()).show("a long line of progress")
    assert terminal.getvalue() == "\ra long li"


@pytest.mark.parametrize("command", ["recommend", "plan"])
def test_commands_that_take_seconds_say_how_far_they_are(stderr, tmp_path, capsys, command):
    """Somebody who compares many devices or plans a long pipeline takes the command for hung."""
    model, profile = tmp_path / "model.json", tmp_path / "profile.csv"
    model.write_text(json.dumps(MODEL), encoding="utf-8")
    profile.write_text(PROFILE, encoding="utf-8")
    arguments = {
        "recommend": f"recommend --model {model} --device h100 --tokens 1B --max-devices 2 --fresh",
        "plan": f"plan pipeline --profile {profile} --microbatches 4",
    }
    terminal = stderr(Terminal())
    assert main(arguments[command].split()) == 0
    assert f"\rjoulery {command}: " in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
    assert "joulery" not in capsys.readouterr().out.partition("\n")[0]
