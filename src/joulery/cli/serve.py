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
  joulery serve --export all.jsonl && joulery serve --store postgresql://… --import all.jsonl
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
        "--import", type=Path, metavar="FILE", dest="import_file", help="read such a file"
    )
    parser.add_argument(
        "--replace", action="store_true", help="with --import: delete the jobs that are there"
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    import os

    if arguments.store is None:
        # Where clients are pointed at a server, this is the server's address.
        named = os.environ.get("JOULERY_STORE", "")
        arguments.store = None if named.startswith(("http:", "https:")) else named or None
    _check_packages()
    if arguments.action == "token":
        from joulery.cli.serve_token import run as run_token

        return run_token(arguments)
    if arguments.backup or arguments.export or arguments.import_file:
        return _copy(arguments)
    _serve(arguments)
    return 0


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
        counts = restore(arguments.store, arguments.import_file, replace=arguments.replace)
        printed = {"import": str(arguments.import_file), "rows": counts}
        words = f"imported {counts['jobs']} jobs with {counts['events']} events"
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
