"""``joulery governor``: what it prints."""

import argparse
import json

import pytest

from joulery.cli import governor
from joulery.errors import FileError, MissingHardwareError

POLICY = """
[[allow]]
users = ["root"]
devices = ["*"]
limits_watts = [100, 300]
clocks_mhz = [500, 900]
must_own = true
[[allow]]
users = ["*"]
devices = [0]
"""


def _run(*arguments):
    parser = argparse.ArgumentParser()
    governor.add_arguments(parser)
    return governor.run(parser.parse_args(arguments))


@pytest.fixture
def policy(tmp_path):
    """A policy file."""
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    path.chmod(0o644)
    return path


def test_policy_is_printed_in_words(policy, capsys):
    """An administrator could not see what a policy comes to."""
    assert _run("check-policy", str(policy)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "line 2: user root may set 100–300 W and pin 500–900 MHz where it owns the device on *",
        "line 8: everyone may hold, but change nothing on 0",
    ]
    _run("check-policy", str(policy), "--json")
    assert json.loads(capsys.readouterr().out) == {"rules": 2}


def test_bad_policy_is_an_error(policy):
    """A script that checks a policy before it installs it would go on."""
    policy.write_text("[[allow]]\nusers = 7\n")
    with pytest.raises(FileError, match="line 2"):
        _run("check-policy", str(policy))


def test_unit_file_keeps_the_journal(capsys):
    """The journal would be deleted with the runtime folder at each restart."""
    _run("unit")
    text = capsys.readouterr().out
    assert "RuntimeDirectoryPreserve=yes" in text
    assert "joulery governor serve" in text


def test_status_without_a_daemon(tmp_path):
    """People would see a traceback instead of what to start."""
    with pytest.raises(MissingHardwareError, match="no governor answers"):
        _run("status", "--socket", str(tmp_path / "none"))


def test_status_is_printed_as_a_table():
    """Who holds which board would be hard to see."""
    devices = [
        {
            "name": "A100",
            "id": "GPU-1",
            "held": True,
            "watts": 150.0,
            "baseline_watts": 400.0,
            "foreign_change": False,
            "leases": [{"uid": 0, "pid": 7, "watts": 150.0, "hertz": 1.2e9}],
        },
        {
            "name": "A100",
            "id": "GPU-2",
            "held": True,
            "watts": None,
            "baseline_watts": None,
            "foreign_change": True,
            "leases": [],
        },
    ]
    rows = governor._rendered(devices).splitlines()
    assert "process 7 of root (150 W, 1200 MHz)" in rows[2]
    assert "to be restored" in rows[3]
    assert governor._rendered([]) == "No device can be governed here.\n"
