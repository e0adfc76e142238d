"""``joulery serve``: recurring jobs for teams and machines, over HTTP."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from joulery.server import FirstStart

_EXAMPLES = """\
examples:
  joulery serve
  joulery serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
  joulery serve --store postgresql://joulery@db/joulery
  joulery serve token create --team vision --rights work --days 90
  joulery serve --backup /backups/joulery.sqlite
  joulery serve --restore /backups/joulery.sqlite --replace
  joulery serve --export all.jsonl && joulery serve --store postgresql://… --restore all.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--store", metavar="LOCATION", help="path or postgresql://…; $JOULERY_STORE, else your own"
    )
    _add_listening(parser)
    _add_copies(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    actions = parser.add_subparsers(dest="action", metavar="token", title="tokens")
    tokens = actions.add_parser("token", help="make, list and revoke tokens")
    from joulery.cli.serve_token import add_arguments as add_token_arguments

    add_token_arguments(tokens)


def _add_listening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", default="8420", help="port; 0 for any that is free (8420)")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM")
    parser.add_argument(
        "--insecure-bind",
        action="store_true",
        help="let tokens travel unencrypted beyond this machine, behind a proxy that speaks TLS",
    )
    parser.add_argument("--log-requests", action="store_true", help="log every request")
    parser.add_argument(
        "--drain-seconds",
        default="0",
        metavar="S",
        help="go on for so long when asked to stop, for load balancers to notice (0)",
    )


def _add_copies(parser: argparse.ArgumentParser) -> None:
    copies = parser.add_mutually_exclusive_group()
    copies.add_argument(
        "--backup", type=Path, metavar="FILE", help="copy the store, even while it is in use"
    )
    copies.add_argument(
        "--export", type=Path, metavar="FILE", help="write the store as lines of JSON"
    )
    copies.add_argument(
        *("--restore", "--import"),
        type=Path,
        metavar="FILE",
        dest="restore",
        help="put a backup or an export in the place of the store; stop the server before",
    )
    parser.add_argument(
        "--replace", action="store_true", help="with --restore: delete the jobs that are there"
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    import os

    _hide_password(arguments.store)
    arguments.store = arguments.store or os.environ.get("JOULERY_STORE") or None
    _check_store(arguments.store)
    _check_packages()
    if arguments.action == "token":
        from joulery.cli.serve_token import run as run_token

        return run_token(arguments)
    if arguments.backup or arguments.export or arguments.restore:
        return _copy(arguments)
    _serve(arguments)
    return 0


def _check_store(location: str | None) -> None:
    """Refuse a server's address, which is where clients are pointed at."""
    from joulery.client import is_server
    from joulery.errors import InvalidValueError

    if location is not None and is_server(location):
        raise InvalidValueError(
            f"a server keeps its jobs in a store, not at {location[:80]}",
            remedy="give --store PATH or postgresql://…, or unset JOULERY_STORE here",
        )


def _hide_password(location: str | None) -> None:
    """Overwrite a password in this process's arguments, which every user of the machine can see.

    The arguments are a part of the process's own memory, whose place the kernel tells (proc(5)).
    """
    import ctypes
    from urllib.parse import urlsplit

    try:
        password = (urlsplit(location or "").password or "").encode()
        line = Path("/proc/self/cmdline").read_bytes()
        place = line.find(password) if password else -1
        if place >= 0:
            fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
            ctypes.memset(int(fields[45]) + place, ord("*"), len(password))
    except (OSError, ValueError):  # no such files here, or no address at all
        sys.stderr.write("joulery: a password in --store is visible to others: use JOULERY_STORE\n")


def _check_packages() -> None:
    from importlib.util import find_spec

    from joulery.errors import MissingExtraError

    needed = ("sqlalchemy", "uvicorn", "fastapi", "prometheus_client")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"serving needs {', '.join(missing)}", remedy='pip install "joulery[server]"'
        )


def _copy(arguments: argparse.Namespace) -> int:
    from joulery.storage import backup, export, restore

    if arguments.backup:
        kind = backup(arguments.store, arguments.backup)
        printed: dict[str, Any] = {"backup": str(arguments.backup), "kind": kind}
        words = f"copied the store to {arguments.backup}"
    elif arguments.export:
        rows = export(arguments.store, arguments.export)
        printed = {"export": str(arguments.export), "rows": rows}
        words = f"exported {rows} rows to {arguments.export}"
    else:
        counts = restore(arguments.store, arguments.restore, replace=arguments.replace)
        printed = {"restore": str(arguments.restore), "rows": counts}
        words = f"restored {counts['jobs']} jobs with {counts['events']} events"
    sys.stdout.write((json.dumps(printed) if arguments.json else words) + "\n")
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    from joulery.cli.checked import whole_number
    from joulery.errors import InvalidValueError
    from joulery.server import ServerConfig, serve

    try:
        drain_seconds = float(arguments.drain_seconds)
    except ValueError:
        drain_seconds = -1.0
    if not 0 <= drain_seconds <= 3600:
        raise InvalidValueError(
            f"--drain-seconds {arguments.drain_seconds!r} is out of range",
            remedy="give 0 to 3600 seconds",
        )
    config = ServerConfig(
        store=arguments.store,
        host=arguments.host,
        port=whole_number(arguments.port, "--port", 0, 65535),
        tls_certificate=arguments.tls_cert,
        tls_key=arguments.tls_key,
        insecure=arguments.insecure_bind,
        log_requests=arguments.log_requests,
        drain_seconds=drain_seconds,
    )
    serve(config, lambda ready: _tell(ready, as_json=arguments.json))


def _tell(ready: FirstStart, *, as_json: bool) -> None:
    file = ready.token_file
    if as_json:
        document = {
            "address": ready.address,
            "admin_token": ready.admin_token,
            "token_file": None if file is None else str(file),
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        lines = [f"joulery serves {ready.address}"]
        if ready.admin_token is not None:
            lines += [
                "",
                "Administrator's token, shown this once and kept nowhere:",
                f"  {ready.admin_token}",
                "Make tokens for teams with `joulery serve token create --team NAME`.",
            ]
        if file is not None:
            lines.append(f"Your own programs on this machine find theirs in {file}.")
        sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
