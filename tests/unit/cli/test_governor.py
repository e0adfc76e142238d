"""``joulery governor``: what it prints."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import joulery
from joulery.cli import governor
from joulery.cli.dispatch import Output, Parser
from joulery.errors import (
    FileError,
    MissingHardwareError,
    MissingRightsError,
    UsageError,
)

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
    parser = Parser()
    parser.set_defaults(json=False)
    governor.COMMAND.define(parser)
    parsed = parser.parse_args(arguments)
    found = parsed.run(parsed)
    return found.show(as_json=parsed.json) if isinstance(found, Output) else found


@pytest.mark.parametrize("action", ["serve", "unit"])
def test_addresses_are_checked_before_anything_is_served_or_printed(action):
    """If this fails, a unit file has an address that its daemon refuses, or a useless key."""
    with pytest.raises(UsageError, match="--listen: not an address"):
        _run(action, "--listen", "nonsense")
    with pytest.raises(UsageError, match="without --listen"):
        _run(action, "--tls-cert", "c.pem", "--tls-key", "k.pem")


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
        "rule 1: user root may set 100–300 W and pin 500–900 MHz where it owns the device on *",
        "rule 2: everyone may hold, but change nothing on 0",
    ]
    _run("check-policy", str(policy), "--json")
    assert json.loads(capsys.readouterr().out) == {"rules": 2, "unmatched": []}


def test_bad_policy_is_an_error(policy):
    """A script that checks a policy before it installs it would go on."""
    policy.write_text("[[allow]]\nusers = 7\n")
    with pytest.raises(FileError, match="users is not a list"):
        _run("check-policy", str(policy))


def test_unit_file_keeps_the_journal(capsys):
    """The journal would be deleted with the runtime folder at each restart."""
    _run("unit")
    text = capsys.readouterr().out
    assert "RuntimeDirectoryPreserve=yes" in text
    assert "joulery governor serve" in text
    assert "PrivateNetwork=yes" in text
    assert "@" not in text


def _command(unit):
    line = next(row for row in unit.splitlines() if row.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$"))


def test_unit_starts_what_is_installed_here(capsys):
    """A service would not find a Joulery that was installed into a virtual environment."""
    _run("unit", "--listen", "0.0.0.0:7001", "--tls-cert", "a b.pem", "--tls-key", "k.pem")
    text = capsys.readouterr().out
    command = _command(text)
    assert command[0] == sys.executable
    assert command[-6:-1:2] == ["--listen", "--tls-cert", "--tls-key"]
    assert command[-3] == str(Path("a b.pem").resolve())
    assert "PrivateNetwork=no" in text
    root = str(Path(joulery.__file__).parents[1])  # systemd sets no such variable
    done = subprocess.run(
        [*command[: command.index("serve")], "check-policy", "/nowhere"],
        env={"PYTHONPATH": root},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot read policy" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(capsys, tmp_path):
    """The service would not start for a typing error."""
    _run("unit")
    path = tmp_path / "joulery-governor.service"
    path.write_text(capsys.readouterr().out)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert "joulery-governor.service" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
def test_serving_without_rights_says_what_to_do():
    """A user would see an internal error."""
    with tempfile.TemporaryDirectory() as folder:  # which others may enter, unlike pytest's
        Path(folder).chmod(0o755)
        state = Path(folder, "state")
        state.mkdir(mode=0o700)
        os.chown(state, 65534, 65534)
        done = _serve_as_nobody("--state", str(state), "--socket", f"{folder}/sub/socket")
        assert done.returncode == MissingRightsError.exit_code, done.stderr
        assert "run it as root" in done.stderr
        done = _serve_as_nobody("--state", f"{folder}/other", "--socket", f"{state}/socket")
        assert done.returncode == MissingRightsError.exit_code, done.stderr
        assert "be root" in done.stderr


def _serve_as_nobody(*options):
    code = (  # that user may not be allowed to read the interpreter's own files
        "import os, shutil, sys, joulery.governor._daemon, joulery.cli.governor; "
        "from joulery import governor, hardware; from joulery.cli import main, dispatch; "
        "[getattr(room, name) for room in (governor, hardware) for name in room.__all__]; "
        "os.setgid(65534); os.setuid(65534); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "governor", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_serving_does_not_replace_a_file_that_is_no_socket(tmp_path):
    """A slip in --socket would delete a user's file."""
    script = tmp_path / "train.py"
    script.write_text("pass")
    with pytest.raises(FileError, match="no socket"):
        _run("serve", "--socket", str(script), "--state", str(tmp_path / "state"))
    assert script.read_text() == "pass"
    with pytest.raises(FileError, match="audit"):
        _run(
            *("serve", "--socket", str(tmp_path / "socket"), "--state", str(tmp_path / "state")),
            *("--audit", str(tmp_path / "none" / "audit")),
        )


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
    rows = governor._devices_text(devices).splitlines()
    assert "process 7 of root (150 W, 1200 MHz)" in rows[2]
    assert "to be restored" in rows[3]
    assert (
        governor._devices_text([])
        == "No device can be governed here; the governor looks again every 10 s."
    )
