"""Accelerators of the catalog, and of files."""

import json

import pytest

from joulery.errors import FileError, UnknownDeviceError
from joulery.prediction import accelerator

SELFTEST = {"board": "NVIDIA A100", "provenance": "measured"}


def test_a_self_test_stands_for_its_board(tmp_path):
    """A board whose vendor ships other limits is predicted at limits that it does not take."""
    path = tmp_path / "mine.json"
    specs = {"min_limit_watts": 150.0, "default_limit_watts": 350.0, "max_limit_watts": 350.0}
    path.write_text(json.dumps(SELFTEST | {"specs": specs}), encoding="utf-8")
    board, usual = accelerator(str(path)), accelerator("a100")
    assert (board.min_limit_watts, board.limit_watts) == (150.0, 350.0)
    assert board.idle_watts == usual.idle_watts
    assert board.name == usual.name
    assert board.observed == ("default limit 350 W (measured)", "min limit 150 W (measured)")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"board": "A100"},
        SELFTEST,
        SELFTEST | {"specs": []},
        SELFTEST | {"specs": {"min_limit_watts": "150"}},
        SELFTEST | {"specs": {"min_limit_watts": -1}},
        SELFTEST | {"specs": {"min_limit_watts": 500}},
        SELFTEST | {"specs": {}, "provenance": "hearsay"},
        SELFTEST | {"specs": {}, "board": None},
    ],
)
def test_another_file_is_refused(tmp_path, document):
    """A file of something else ends a prediction in a traceback, or passes for a board."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FileError, match="other") as caught:
        accelerator(path)
    assert "selftest" in caught.value.remedy


def test_a_board_outside_the_catalog_is_named(tmp_path):
    """A self-test has no bandwidth and no peak, so a board that nobody describes is guessed."""
    path = tmp_path / "mine.json"
    document = SELFTEST | {"board": "Chip 9000", "specs": {}}
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UnknownDeviceError, match="Chip 9000"):
        accelerator(path)
