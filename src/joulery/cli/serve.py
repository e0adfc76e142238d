"""``joulery serve``: recurring jobs for teams and machines, over HTTP."""

from __future__ import annotations

import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import TYPE_CHECKING

from joulery import grid, server, storage
from joulery.cli.dispatch import Output
from joulery.cli.extras import require
from joulery.cli.options import (
    GRID_OPTION,
    TLS_OPTIONS,
    Action,
    file,
    flag,
    listen_option,
    location,
    number,
    option,
    quantity,
    whole,
)
from joulery.cli.store import STORE_TEXT, open_existing, store_location
from joulery.clock import REAL_CLOCK
from joulery.documents import check_name
from joulery.errors import FileError
from joulery.reports import table_of
from joulery.units import SECONDS_PER_DAY, human_duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from joulery.server import FirstStart
    from joulery.storage import Store, TokenRecord

_CENTURY = 36_525 * SECONDS_PER_DAY  # by hand: longer is a typing error
_EXAMPLES = """\
examples:
  joulery serve
  joulery serve --listen 0.0.0.0:8420 --tls-cert server.pem --tls-key server.key
  joulery serve --store postgresql://joulery@db/joulery
  joulery serve --price 0.30 --currency EUR --grid DE
  joulery serve token create --team vision --rights work --expires 90d
"""


def _run(arguments: argparse.Namespace) -> int:
    require("server")
    store = store_location(arguments)
    state = arguments.cluster_state
    if state is not None and state.exists() and not state.is_dir():
        raise FileError(
            f"{state} is not a folder", remedy="give the --state of the cluster's agent"
        )
    host, port = arguments.listen
    config = server.ServerConfig(
        store=store,
        host=host.strip("[]"),
        port=port,
        tls_certificate=arguments.tls_cert,
        tls_key=arguments.tls_key,
        insecure=arguments.insecure_bind,
        log_requests=arguments.log_requests,
        drain_seconds=arguments.drain,
        plans=arguments.plans,
        electricity=grid.electricity_price(arguments.grid, arguments.price, arguments.currency),
        cluster_state=state,
    )
    path = store or str(storage.default_path())
    new_store = path if "://" not in path and not Path(path).exists() else None
    server.serve(config, lambda ready: _ready(ready, new_store).announce(as_json=arguments.json))
    return 0


def _ready(ready: FirstStart, new_store: str | None) -> Output:
    token_file = ready.token_file
    lines = [f"joulery serves {ready.address}, the dashboard included: log in with a token"]
    if new_store is not None:  # or its disk is not mounted
        lines.append(f"There was no store at {new_store}: a new one is made.")
    if ready.admin_token is not None:
        lines += [
            "",
            "Administrator's token, shown this once and kept nowhere:",
            f"  {ready.admin_token}",
            "Make tokens for teams with `joulery serve token create --team NAME`.",
        ]
    if token_file is not None:
        lines.append(f"Your own programs on this machine find theirs in {token_file}.")
    document = {
        "address": ready.address,
        "admin_token": ready.admin_token,
        "token_file": None if token_file is None else str(token_file),
        "new_store": new_store,
    }
    return Output(document, "\n".join(lines))


def _with_store(
    act: Callable[[argparse.Namespace, Store], Output],
    open_store: Callable[[argparse.Namespace], Store] = open_existing,
) -> Callable[[argparse.Namespace], Output]:
    """The action on the store that the options name."""

    def run(arguments: argparse.Namespace) -> Output:
        with open_store(arguments) as store:
            return act(arguments, store)

    return run


def _create(arguments: argparse.Namespace, store: Store) -> Output:
    if arguments.label:
        check_name(arguments.label, "a label")
    now = REAL_CLOCK.wall()
    draft = storage.TokenRecord(
        check_name(arguments.team, "a team's name"),
        storage.right_named(arguments.rights),
        arguments.label,
        now + arguments.expires,
    )
    token, record = store.write(lambda transaction: storage.add_token(transaction, draft, now))
    if not arguments.json:
        sys.stderr.write(
            f"joulery: token {record.id} for {draft.team}, rights {draft.right.name.lower()}, "
            f"{_lifetime(arguments.expires)}; shown this once\n"
        )
    return Output(record.to_document() | {"token": token}, token)


def _list(_: argparse.Namespace, store: Store) -> Output:
    with store.reading() as transaction:
        records = storage.list_tokens(transaction)
    tokens = table_of(
        records,
        {
            ">id": lambda record: str(record.id),
            "team": lambda record: record.team,
            "rights": lambda record: record.right.name.lower(),
            "state": _state,
            "label": lambda record: record.label,
        },
    )
    return Output({"tokens": [record.to_document() for record in records]}, tokens)


def _state(record: TokenRecord) -> str:
    if record.revoked_wall_seconds is not None:
        return "revoked"
    expires = record.expires_wall_seconds
    if expires is None:
        return "valid"
    seconds = expires - REAL_CLOCK.wall()
    return f"valid for {_lifetime(seconds)}" if seconds > 0 else "expired"


def _lifetime(seconds: float) -> str:
    days = seconds / SECONDS_PER_DAY
    return f"{days:.0f} days" if round(days) > 1 else human_duration(seconds)


def _revoke(arguments: argparse.Namespace, store: Store) -> Output:
    record = store.write(
        lambda transaction: storage.revoke_token(transaction, arguments.id, REAL_CLOCK.wall())
    )
    text = f"token {arguments.id} of {record.team} is revoked"
    return Output(record.to_document(), text)


# Left alone where the same was said before the action.
_TOKEN_STORE = option("--store", STORE_TEXT, "LOCATION", location, default=SUPPRESS)
_CREATE = (
    option("--team", "whose jobs it is for; '*' for every team", required=True),
    option("--rights", "read, work or manage; each includes those before", default="work"),
    option("--expires", "lifetime (90d)", "TIME", quantity("s", 0.1, _CENTURY), default="90d"),
    option("--label", "purpose of the token", read=str, default=""),
    _TOKEN_STORE,
)
_TOKEN = Action(
    summary="make, list and revoke tokens",
    actions={
        "create": Action(
            _with_store(_create, lambda arguments: storage.Store.open(store_location(arguments))),
            _CREATE,
            "make a token and show it, this once",
        ),
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
        option("--store", STORE_TEXT, "LOCATION", location),
        listen_option("address to listen on; port 0 for any that is free", ("127.0.0.1", 8420)),
        *TLS_OPTIONS,
        flag(
            "--insecure-bind",
            "let tokens travel unencrypted beyond this machine, behind a proxy that speaks TLS",
        ),
        flag("--log-requests", "log every request"),
        option(
            "--drain",
            "keep answering for so long when asked to stop, for load balancers to notice (0)",
            "TIME",
            quantity("s", 0.0, 3600.0),
            default=0.0,
        ),
        GRID_OPTION,
        option("--price", "dashboard: price of a kWh", "P", number(0.0)),
        option("--currency", "dashboard: currency of the price", read=str, default=""),
        file("--cluster-state", "dashboard: state folder of a `joulery cluster agent`", "DIR"),
        file("--plans", "dashboard: folder of saved plans and recommendations", "DIR"),
    ),
    epilog=_EXAMPLES,
    actions={"token": _TOKEN},
)
