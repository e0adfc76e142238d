"""``joulery store``: copies of a store, and a check of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from joulery import storage
from joulery.cli.dispatch import Output
from joulery.cli.options import Action, file, flag, location, option
from joulery.errors import FileError, InvalidValueError
from joulery.reports import count_text

if TYPE_CHECKING:
    import argparse


def store_location(arguments: argparse.Namespace) -> str | None:
    """Location of the store that the options or the environment name; None for the user's own.

    Args:
        arguments: Parsed options, ``store`` among them.

    Raises:
        FileError: It is a folder.
        InvalidValueError: It is the address of a server.
    """
    from joulery.client import is_server

    location_text: str | None = arguments.store or os.environ.get("JOULERY_STORE") or None
    if location_text is not None and Path(location_text).is_dir():
        raise FileError(f"{location_text} is a folder", remedy="give the path of an SQLite file")
    if location_text is not None and is_server(location_text):
        raise InvalidValueError(
            f"{location_text[:80]} is a server, not a store",
            remedy="give --store PATH or postgresql://…, or unset JOULERY_STORE here",
        )
    return location_text


def open_existing(arguments: argparse.Namespace) -> storage.Store:
    """The store that the options name, for commands that are not to make one.

    Raises:
        FileError: There is none.
    """
    location_text = store_location(arguments)
    path = location_text or storage.default_path()
    if "://" not in str(path) and not Path(path).is_file():
        raise FileError(f"no store at {path}", remedy="give its path with --store")
    return storage.Store.open(location_text)


def _backup(arguments: argparse.Namespace) -> Output:
    kind = storage.backup(store_location(arguments), arguments.file, replace=arguments.replace)
    document = {"backup": str(arguments.file), "kind": kind}
    return Output(document, f"copied the store to {arguments.file}")


def _export(arguments: argparse.Namespace) -> Output:
    rows = storage.export(store_location(arguments), arguments.file, replace=arguments.replace)
    document = {"export": str(arguments.file), "rows": rows}
    return Output(document, f"exported {rows} rows to {arguments.file}")


def _restore(arguments: argparse.Namespace) -> Output:
    location_text = store_location(arguments)
    restored = storage.restore(location_text, arguments.file, replace=arguments.replace)
    rows, replaced = restored.rows, restored.replaced
    document = {
        "restore": str(arguments.file),
        "rows": rows,
        "replaced": None if replaced is None else str(replaced),
    }
    counts = [count_text(rows[f"{noun}s"], noun) for noun in ("job", "event", "run")]
    text = "restored {} with {}, and {}".format(*counts)
    if replaced is not None:
        text += (
            f"\nwhat was there before is kept in {replaced}: delete it once the new store serves"
        )
    return Output(document, text)


def _check(arguments: argparse.Namespace) -> Output:
    path = store_location(arguments) or storage.default_path()
    with open_existing(arguments) as store:
        store.check()
        counts = store.counts()
    rows = ", ".join(f"{number} {table}" for table, number in counts.items())
    return Output({"store": str(path), "rows": counts}, f"{path} is sound: {rows}")


STORE_TEXT = "path or postgresql://… ($JOULERY_STORE, or your own store)"
_STORE = option("--store", STORE_TEXT, "LOCATION", location)
_REPLACE = flag("--replace", "replace what is there, which is kept in a file beside")
_OVERWRITE = flag("--replace", "replace the file if it exists")
COMMAND = Action(
    epilog="""\
examples:
  joulery store backup /backups/joulery.sqlite --replace
  joulery store restore /backups/joulery.sqlite --replace
  joulery store export all.jsonl && joulery store import all.jsonl --store postgresql://joulery@db/joulery
  joulery store check
""",
    actions={
        "backup": Action(
            _backup,
            (file("file", "copy to write"), _OVERWRITE, _STORE),
            "copy the store, even while in use",
        ),
        "restore": Action(
            _restore,
            (file("file", "backup to read"), _REPLACE, _STORE),
            "put a backup in the place of the store; restart the server after it",
        ),
        "export": Action(
            _export,
            (file("file", "file to write"), _OVERWRITE, _STORE),
            "write the store as lines of JSON",
        ),
        "import": Action(
            _restore,
            (file("file", "export to read"), _REPLACE, _STORE),
            "fill the store from an export, of any database; restart the server after it",
        ),
        "check": Action(_check, (_STORE,), "read the whole store, and count its rows"),
    },
)
