"""`joulery store`: copies of a store, and a check of it."""

import json

import pytest

from joulery.cli import main
from joulery.storage import RunRecord, Store, put_run


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A store of its own."""
    monkeypatch.setenv("JOULERY_STORE", str(tmp_path / "store.sqlite"))


def printed(capsys, *arguments):
    """Exit code and document of a call."""
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_store_moves(capsys, tmp_path):
    """Teams cannot move to another database."""
    printed(capsys, "serve", "token", "create", "--team", "vision")
    file, other = str(tmp_path / "all.jsonl"), str(tmp_path / "other.sqlite")
    code, exported = printed(capsys, "store", "export", file)
    assert (code, exported["rows"]) == (0, 1)
    code, imported = printed(capsys, "store", "import", file, "--store", other)
    assert (code, imported["rows"]["tokens"]) == (0, 1)
    code, checked = printed(capsys, "store", "check", "--store", other)
    assert (code, checked["rows"]["tokens"]) == (0, 1)


def test_a_store_comes_back_from_its_backup(capsys, tmp_path):
    """What was learned is lost with the disk."""
    printed(capsys, "serve", "token", "create", "--team", "vision")
    copy = str(tmp_path / "copy.sqlite")
    code, copied = printed(capsys, "store", "backup", copy)
    assert (code, copied["kind"]) == (0, "sqlite")
    printed(capsys, "serve", "token", "create", "--team", "speech")
    code, restored = printed(capsys, "store", "restore", copy, "--replace")
    assert (code, restored["rows"]["tokens"]) == (0, 1)
    run = RunRecord("a", "1", "", "", "run", "", 0.0, 1.0, 1.0, ended=True, summary={})
    with Store.open(copy) as store:
        store.write(lambda transaction: put_run(transaction, run, []))
    assert main(["store", "restore", copy, "--replace"]) == 0
    assert "restored 0 jobs with 0 events, and 1 run\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "backup, restore, export, import, check"),
        (["bakup", "copy"], "did you mean backup?"),
        (["backup", "copy"], "no store"),
        (["import", "missing"], "missing"),
        (["check"], "no store"),
        (["check", "--store", "."], "folder"),
        (["check", "--store", "http://127.0.0.1:8420"], "server"),
    ],
)
def test_wrong_use_is_told_in_a_line(capsys, tmp_path, monkeypatch, arguments, word):
    """Users see a traceback, or an empty store appears where none was."""
    monkeypatch.chdir(tmp_path)
    assert main(["store", *arguments]) == 2
    message = capsys.readouterr().err
    assert word in message
    assert "→" in message
    assert not (tmp_path / "store.sqlite").exists()


@pytest.mark.parametrize("action", [["list"], ["revoke", "1"]])
def test_a_mistyped_store_is_not_made(capsys, tmp_path, action):
    """An administrator sees an empty list and takes it for the tokens of the team."""
    typo = tmp_path / "typo.sqlite"
    assert main(["serve", "token", *action, "--store", str(typo)]) == 2
    assert "no store" in capsys.readouterr().err
    assert not typo.exists()


def test_an_unknown_token_is_told(capsys):
    """A mistyped number would pass for a token that is void now."""
    printed(capsys, "serve", "token", "create", "--team", "vision")
    code, document = printed(capsys, "serve", "token", "revoke", "7")
    assert (code, "7" in document["error"]) == (2, True)


@pytest.mark.parametrize("command", [["serve"], ["store", "check"], ["jobs", "list"]])
def test_a_password_on_the_command_line_is_refused(capsys, command):
    """Every user of the machine reads it in the process list."""
    assert main([*command, "--store", "postgresql://user:s3cret@host/database"]) == 2
    message = capsys.readouterr().err
    assert "PGPASSFILE" in message
    assert "s3cret" not in message
