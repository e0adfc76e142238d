"""``joulery doctor --selftest``: its load, and what it prints."""

import time
from pathlib import Path

import pytest

import joulery.hardware
from joulery.cli import doctor_selftest, main
from joulery.hardware import Survey
from joulery.metering import SelfTest


def test_a_machine_without_boards_is_told_what_to_do(monkeypatch, capsys):
    """Somebody without a GPU gets a traceback instead of the way to try it."""
    monkeypatch.setattr(joulery.hardware, "survey", Survey)
    assert main(["doctor", "--selftest"]) == 3
    assert "joulery emulate a100 --" in capsys.readouterr().err


@pytest.mark.slow
def test_the_load_of_torch_works_only_while_it_is_busy():
    """Bursts that do not end make every sensor look slow."""
    pytest.importorskip("torch")
    with doctor_selftest.TorchLoad("cpu", size=64) as load:
        assert load.steps() == 0
        load.set_busy(True)
        deadline = time.monotonic() + 60
        while load.steps() < 10 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert load.steps() >= 10
        load.set_busy(False)
        steps = -1  # a step may be under way on a busy machine
        while load.steps() > steps and time.monotonic() < deadline:
            steps = load.steps()
            time.sleep(0.5)
        assert load.steps() == steps


def test_a_limit_that_was_not_restored_cannot_be_overlooked():
    """The one thing that a user must act on stands among a dozen lines."""
    result = SelfTest("A100", restored=False)
    result.add("restored afterwards", "400 W", "200 W", agrees=False)
    text = doctor_selftest._text(result, Path("out.json"))
    assert "NOT as before" in text
    assert "0 agree, 1 differ, 0 could not be compared" in text
