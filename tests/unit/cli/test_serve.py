"""``joulery serve`` without serving."""

import json
import sys

import pytest

from joulery.cli import main


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    """Nothing of the user's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("JOULERY_STORE", raising=False)


def printed(capsys, *arguments):
    """Exit code and what was printed as JSON."""
    code = main(["serve", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_tokens_are_made_listed_and_revoked(capsys):
    """Clients could not get access."""
    options = ("--team", "vision", "--rights", "manage", "--expires", "2d", "--label", "ci")
    code, made = printed(capsys, "token", "create", *options)
    assert code == 0
    assert made["token"].startswith("joulery_")
    assert made["expires_wall_seconds"] - made["created_wall_seconds"] == 2 * 86400
    _, listed = printed(capsys, "token", "list")
    del made["token"]
    assert listed["tokens"] == [made]
    assert main(["serve", "token", "list"]) == 0
    table = capsys.readouterr().out
    assert "manage" in table
    assert "valid for 2 days" in table
    _, revoked = printed(capsys, "token", "revoke", str(made["id"]))
    assert revoked["revoked_wall_seconds"] is not None
    assert main(["serve", "token", "list"]) == 0
    assert "revoked" in capsys.readouterr().out


def test_only_the_token_is_on_stdout(capsys):
    """A script could not take it up."""
    assert main(["serve", "token", "create", "--team", "vision"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("joulery_")
    assert len(printed.out.split()) == 1
    assert "90 days" in printed.err
    assert main(["serve", "token", "create", "--team", "v", "--expires", "3h"]) == 0
    assert "3 h 00 min" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["token"], "create, list, revoke"),
        (["token", "create"], "--team"),
        (["token", "create", "--team", "v", "--rights", "owner"], "owner"),
        (["token", "create", "--team", "v", "--expires", "-1d"], "--expires"),
        (["token", "create", "--team", "v", "--expires", "x"], "--expires"),
        (["token", "create", "--team", "a\nb"], "team"),
        (["token", "revoke", "7"], "no store"),
        (["token", "revoke", "x"], "x"),
        (["--listen", "0.0.0.0:8420"], "unencrypted"),
        (["--listen", "256.1.1.1:8420", "--insecure-bind"], "256"),
        (["--listen", "127.0.0.1:70000"], "--listen"),
        (["--drain", "nan"], "--drain"),
        (["--tls-cert", "c.pem"], "certificate"),
        (["--store", "mysql://x", "--listen", "127.0.0.1:0"], "mysql"),
        (["--store", "."], "folder"),
        (["--cluster-state", sys.executable, "--listen", "127.0.0.1:0"], "not a folder"),
        (["--grid", ""], "--grid"),
    ],
)
def test_wrong_use_is_told_in_a_line(capsys, tmp_path, monkeypatch, arguments, word):
    """Users would see a traceback, or a server that is not what they asked for."""
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments]) == 2
    message = capsys.readouterr().err
    assert word in message
    assert "→" in message


def test_the_address_may_be_taken(capsys):
    """A second server would end with a traceback."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 3
    assert "choose another address with --listen" in capsys.readouterr().err


def test_the_address_of_a_server_is_no_store(monkeypatch, capsys):
    """A server would quietly keep its jobs elsewhere than everybody believes."""
    monkeypatch.setenv("JOULERY_STORE", "http://127.0.0.1:8420")
    assert main(["serve"]) == 2
    assert "JOULERY_STORE" in capsys.readouterr().err
