"""``joulery serve``: recurring jobs for teams and machines, over HTTP."""

from __future__ import annotations

import ctypes
import os
import sys
from argparse import SUPPRESS
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from joulery import grid, server, storage
from joulery.cli.dispatch import Output
from joulery.cli.options import Action, file, flag, number, option, whole
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError, MissingExtraError, UsageError
from joulery.reports import table_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from joulery.server import FirstStart
    from joulery.storage import Store, TokenRecord

_DAY_SECONDS = 86_400.0
_EXAMPLES = """\
examples:
  joulery serve
  joulery serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
  joulery serve --store postgresql://joulery@db/joulery
  joulery serve --price 0.30 --currency EUR --region DE
  joulery serve token create --team vision --rights work --days 90
  joulery serve --backup /backups/joulery.sqlite
  joulery serve --restore /backups/joulery.sqlite --replace
  joulery serve --export all.jsonl && joulery serve --store postgresql://… --restore all.jsonl
"""


def _run(arguments: argparse.Namespace) -> Output | int:
    _prepare(arguments)
    copies = [name for name in ("backup", "export", "restore") if getattr(arguments, name)]
    if len(copies) > 1:
        raise UsageError(f"--{copies[0]} and --{copies[1]} at once", remedy="give one of them")
    if arguments.replace and not arguments.restore:
        raise UsageError("--replace without --restore", remedy="name what to restore, or leave it")
    if copies:
        return _copy(arguments)
    state = arguments.cluster_state
    if state is not None and state.exists() and not state.is_dir():
        raise FileError(f"{state} is no folder", remedy="give the --state of the cluster's agent")
    config = server.ServerConfig(
        store=arguments.store,
        host=arguments.host,
        port=arguments.port,
        tls_certificate=arguments.tls_cert,
        tls_key=arguments.tls_key,
        insecure=arguments.insecure_bind,
        log_requests=arguments.log_requests,
        drain_seconds=arguments.drain_seconds,
        plans=arguments.plans,
        electricity=grid.electricity_price(
            arguments.region, arguments.co2, arguments.price, arguments.currency
        ),
        cluster_state=state,
    )
    server.serve(config, lambda ready: _ready(ready).announce(as_json=arguments.json))
    return 0


def _prepare(arguments: argparse.Namespace) -> None:
    """Settle on a store, and see that this installation can serve it."""
    _hide_password(arguments.store)
    arguments.store = arguments.store or os.environ.get("JOULERY_STORE") or None
    _check_store(arguments.store)
    needed = ("sqlalchemy", "uvicorn", "httptools", "fastapi", "prometheus_client")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"serving needs {', '.join(missing)}", remedy='pip install "joulery[server]"'
        )


def _check_store(location: str | None) -> None:
    """Refuse a server's address, which is where clients are pointed at, and a folder."""
    from joulery.client import is_server

    if location is None:
        return
    if Path(location).is_dir():
        raise FileError(f"{location} is a folder", remedy="give the path of an SQLite file")
    if is_server(location):
        raise InvalidValueError(
            f"a server keeps its jobs in a store, not at {location[:80]}",
            remedy="give --store PATH or postgresql://…, or unset JOULERY_STORE here",
        )


def _hide_password(location: str | None) -> None:
    """Overwrite a password in this process's arguments, which every user of the machine can see.

    The arguments are a part of the process's own memory, whose address the kernel states (proc(5)).
    """
    try:
        password = (urlsplit(location or "").password or "").encode()
        line = Path("/proc/self/cmdline").read_bytes()
        place = line.find(password) if password else -1
        if place >= 0:
            fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
            ctypes.memset(int(fields[45]) + place, ord("*"), len(password))
    except (OSError, ValueError):  # no such files here, or no address at all
        sys.stderr.write("joulery: a password in --store is visible to others: use JOULERY_STORE\n")


def _copy(arguments: argparse.Namespace) -> Output:
    if arguments.backup:
        kind = storage.backup(arguments.store, arguments.backup)
        return Output(
            {"backup": str(arguments.backup), "kind": kind},
            f"copied the store to {arguments.backup}",
        )
    if arguments.export:
        rows = storage.export(arguments.store, arguments.export)
        return Output(
            {"export": str(arguments.export), "rows": rows},
            f"exported {rows} rows to {arguments.export}",
        )
    counts = storage.restore(arguments.store, arguments.restore, replace=arguments.replace)
    document = {"restore": str(arguments.restore), "rows": counts}
    return Output(document, f"restored {counts['jobs']} jobs with {counts['events']} events")


def _ready(ready: FirstStart) -> Output:
    own = ready.token_file
    lines = [f"joulery serves {ready.address}, the dashboard included: log in with a token"]
    if ready.admin_token is not None:
        lines += [
            "",
            "Administrator's token, shown this once and kept nowhere:",
            f"  {ready.admin_token}",
            "Make tokens for teams with `joulery serve token create --team NAME`.",
        ]
    if own is not None:
        lines.append(f"Your own programs on this machine find theirs in {own}.")
    document = {
        "address": ready.address,
        "admin_token": ready.admin_token,
        "token_file": None if own is None else str(own),
    }
    return Output(document, "\n".join(lines))


def _with_store(
    act: Callable[[argparse.Namespace, Store], Output],
) -> Callable[[argparse.Namespace], Output]:
    """The action on the store that the options name."""

    def run(arguments: argparse.Namespace) -> Output:
        _prepare(arguments)
        with storage.Store.open(arguments.store) as store:
            return act(arguments, store)

    return run


def _create(arguments: argparse.Namespace, store: Store) -> Output:
    from joulery.jobs import checked_name

    if arguments.label:
        checked_name(arguments.label, "a label")
    now = REAL_CLOCK.wall()
    wanted = storage.TokenRecord(
        checked_name(arguments.team, "a team's name"),
        storage.right_named(arguments.rights),
        arguments.label,
        now + arguments.days * _DAY_SECONDS,
    )
    made, record = store.write(lambda transaction: storage.add_token(transaction, wanted, now))
    if not arguments.json:
        sys.stderr.write(
            f"joulery: token {record.id} for {wanted.team}, rights {wanted.right.name.lower()}, "
            f"{arguments.days:g} days; shown this once\n"
        )
    return Output(record.to_document() | {"token": made}, made)


def _list(_: argparse.Namespace, store: Store) -> Output:
    with store.reading() as transaction:
        found = storage.list_tokens(transaction)
    tokens = table_of(
        found,
        {
            ">id": lambda one: str(one.id),
            "team": lambda one: one.team,
            "rights": lambda one: one.right.name.lower(),
            "state": _state,
            "label": lambda one: one.label,
        },
    )
    return Output({"tokens": [one.to_document() for one in found]}, tokens)


def _state(record: TokenRecord) -> str:
    if record.revoked_wall_seconds is not None:
        return "revoked"
    expires = record.expires_wall_seconds
    if expires is None:
        return "valid"
    days = (expires - REAL_CLOCK.wall()) / _DAY_SECONDS
    return f"valid for {days:.0f} days" if days > 0 else "expired"


def _revoke(arguments: argparse.Namespace, store: Store) -> Output:
    record = store.write(
        lambda transaction: storage.revoke_token(transaction, arguments.id, REAL_CLOCK.wall())
    )
    text = f"token {arguments.id} of {record.team} is revoked"
    return Output(record.to_document(), text)


_STORE = "path or postgresql://…; $JOULERY_STORE, else your own"
# Left alone where the same was said before the action.
_TOKEN_STORE = option("--store", _STORE, "LOCATION", default=SUPPRESS)
_CREATE = (
    option("--team", "whose jobs it is for; '*' for every team", required=True),
    option("--rights", "read, work or manage; each includes those before", default="work"),
    option("--days", "until it expires (90)", read=number(1e-6, 36_500), default=90.0),
    option("--label", "what it is for, in words", read=str, default=""),
    _TOKEN_STORE,
)
_TOKEN = Action(
    summary="make, list and revoke tokens",
    actions={
        "create": Action(_with_store(_create), _CREATE, "make a token and show it, this once"),
        "list": Action(_with_store(_list), (_TOKEN_STORE,), "all tokens, without themselves"),
        "revoke": Action(
            _with_store(_revoke),
            (option("id", "its number, from the list", read=whole(1, 10**18)), _TOKEN_STORE),
            "make a token void, within seconds",
        ),
    },
)
COMMAND = Action(
    _run,
    (
        option("--store", _STORE, "LOCATION"),
        option("--host", "address to listen on (127.0.0.1)", default="127.0.0.1"),
        option("--port", "port; 0 for any that is free (8420)", read=whole(0, 65535), default=8420),
        file("--tls-cert", "certificate, PEM"),
        file("--tls-key", "its key, PEM"),
        flag(
            "--insecure-bind",
            "let tokens travel unencrypted beyond this machine, behind a proxy that speaks TLS",
        ),
        flag("--log-requests", "log every request"),
        option(
            "--drain-seconds",
            "go on for so long when asked to stop, for load balancers to notice (0)",
            "S",
            number(0, 3600),
            default=0.0,
        ),
        option("--region", "dashboard: region whose yearly mean carbon intensity applies (WORLD)"),
        option("--co2", "dashboard: carbon intensity in gCO2/kWh", "G", number(0.0)),
        option("--price", "dashboard: price of a kWh", "P", number(0.0)),
        option("--currency", "dashboard: currency of the price", read=str, default=""),
        file("--cluster-state", "dashboard: state folder of a `joulery cluster agent`", "DIR"),
        file("--plans", "dashboard: folder of saved plans and recommendations", "DIR"),
        file("--backup", "copy the store, even while it is in use"),
        file("--export", "write the store as lines of JSON"),
        file(
            "--restore --import",
            "put a backup or an export in the place of the store; stop the server before",
        ),
        flag("--replace", "with --restore: delete the jobs that are there"),
    ),
    epilog=_EXAMPLES,
    actions={"token": _TOKEN},
)
