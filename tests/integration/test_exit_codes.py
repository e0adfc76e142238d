"""One exit code for each cause, whichever command meets it."""

import json
import pickle
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from joulery import errors
from joulery.errors import FileError, MissingRightsError, NotPossibleHereError, cannot_listen

JOULERY = str(Path(sys.executable).with_name("joulery"))
SITE = "--nodes n[1-2] --boards 2 --budget 4kW --overhead 500 --fallback 150 --limits 100,400"


def _joulery(words, folder, **options):
    return subprocess.run(
        [JOULERY, *words.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "JOULERY_STORE": ""},
        **options,
    )


def _no_room():
    """Files stay empty, as on a full disk; pipes do not."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("doctor --bundle bundle.json", "bundle.json"),
        ("report points.json --html page.html", "page.html"),
        ("cluster event --state state --id peak --reduce 25% --duration 1h", "peak"),
        ("demo --out demo", "demo"),
        ("sweep --simulate rtx6000x8 --out sweep", "sweep"),
    ],
    ids=lambda value: value.split()[0],
)
def test_a_full_disk_is_a_failure_that_names_the_file(tmp_path, words, file):
    """A job script cannot tell a full disk from a typing error, or does not learn which disk."""
    (tmp_path / "points.json").write_text(
        '{"points": [{"seconds": 1, "joules": 300, "power_limit_watts": 300}]}'
    )
    (tmp_path / "state/events").mkdir(parents=True)
    done = _joulery(f"{words} --json", tmp_path, preexec_fn=_no_room)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["exit_code"], file in document["error"]) == (1, True)
    assert "File too large" in document["error"]
    assert document["error"] in done.stderr


def test_keys_of_a_cluster_are_not_left_empty(tmp_path):
    """A second run, after room was made, keeps an empty key and installs it on the nodes."""
    words = f"cluster init --json --out site {SITE}"
    assert _joulery(words, tmp_path).returncode == 0
    key = tmp_path / "site/n1/node.key"
    key.unlink()
    key.symlink_to("/dev/full")
    done = _joulery(words, tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 1
    assert document["error"] == f"cannot use {key}: No space left on device"
    assert not key.is_symlink()
    assert _joulery(words, tmp_path).returncode == 0
    assert key.stat().st_size > 100


def test_an_address_in_use_is_not_possible_here(tmp_path):
    """One command calls a taken port wrong use, the other does not."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        policy = tmp_path / "governor.toml"
        policy.write_text("")
        for words in (
            f"serve --listen {address}",
            f"export --listen {address}",
            f"governor serve --policy {policy} --socket s --state state --listen {address}",
        ):
            done = _joulery(words, tmp_path)
            assert done.returncode == 3, done.stderr
            assert "Address already in use" in done.stderr
            assert "choose another address with --listen" in done.stderr


@pytest.mark.parametrize(
    ("number", "kind"),
    [(13, MissingRightsError), (98, NotPossibleHereError), (99, NotPossibleHereError)],
)
def test_listening_fails_by_its_cause(number, kind):
    """Whoever may not use a port is told to choose another machine."""
    error = cannot_listen("127.0.0.1:80", OSError(number, "words of asyncio"))
    assert type(error) is kind
    assert error.exit_code == 3
    assert "words of asyncio" not in error.message
    unknown = cannot_listen("nowhere:80", socket.gaierror(-2, "Name or service not known"))
    assert unknown.exit_code == 2


@pytest.mark.parametrize(
    ("number", "code"), [(2, 2), (20, 2), (13, 3), (30, 3), (28, 1), (5, 1), (122, 1)]
)
def test_a_file_error_has_the_code_of_its_cause(number, code):
    """Exit codes of files differ by the function that met the error."""
    try:
        raise OSError(number, "the reason", "jobs.json")  # noqa: TRY301 - it must be handled here
    except OSError as reason:
        error = FileError(f"cannot read jobs.json: {reason}", remedy="mend it")
    assert error.exit_code == code
    assert pickle.loads(pickle.dumps(error)).exit_code == code  # noqa: S301 - our own bytes
    assert error.message == "cannot read jobs.json: the reason"
    assert FileError("cannot be parsed", remedy="mend it").exit_code == 2


def test_the_page_of_commands_states_every_code():
    """Scripts branch on codes that no page explains."""
    page = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text("utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert [row for row in rows if row.isdigit()] == ["0", "1", "2", "3", "127", "130"]
    assert {errors.JouleryError.exit_code, errors.UsageError.exit_code} == {1, 2}
