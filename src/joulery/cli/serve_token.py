"""``joulery serve token``: who may call the server."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from joulery.clock import REAL_CLOCK

if TYPE_CHECKING:
    from joulery.storage import Store

_DAY_SECONDS = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    actions = parser.add_subparsers(dest="token_action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a token and show it, this once")
    create.add_argument("--team", required=True, help="whose jobs it is for; '*' for every team")
    create.add_argument(
        "--rights", default="work", help="read, work, manage or admin; each includes those before"
    )
    create.add_argument("--days", default="90", help="until it expires (90)")
    create.add_argument("--label", default="", help="what it is for, in words")
    listing = actions.add_parser("list", help="all tokens, without themselves")
    revoke = actions.add_parser("revoke", help="make a token void, within seconds")
    revoke.add_argument("id", help="its number, from the list")
    for action in (create, listing, revoke):
        # Left alone where the same was said before the action.
        action.add_argument("--store", default=argparse.SUPPRESS, metavar="LOCATION", help="which")
        action.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON"
        )


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    from joulery.storage import Store

    actions = {"create": _create, "list": _list, "revoke": _revoke}
    with Store.open(arguments.store) as store:
        actions[arguments.token_action](arguments, store)
    return 0


def _create(arguments: argparse.Namespace, store: Store) -> None:
    from joulery.errors import InvalidValueError
    from joulery.jobs import checked_name
    from joulery.server import token_entry
    from joulery.storage import NewToken, add_token, right_named

    try:
        days = float(arguments.days)
    except ValueError:
        days = 0.0
    if not 0 < days <= 36_500:
        raise InvalidValueError(
            f"--days {arguments.days!r} is out of range", remedy="give a number up to 36500"
        )
    if arguments.label:
        checked_name(arguments.label, "a label")
    now = REAL_CLOCK.wall()
    wanted = NewToken(
        checked_name(arguments.team, "a team's name"),
        right_named(arguments.rights),
        arguments.label,
        now + days * _DAY_SECONDS,
    )
    made, record = store.write(lambda transaction: add_token(transaction, wanted, now))
    if arguments.json:
        _print_json(token_entry(record, made).to_document())
    else:
        sys.stdout.write(f"{made}\n")
        sys.stderr.write(
            f"joulery: token {record.id} for {wanted.team}, rights {wanted.right.name.lower()}, "
            f"{days:g} days; shown this once\n"
        )


def _list(arguments: argparse.Namespace, store: Store) -> None:
    from joulery.reports import table_text as table
    from joulery.server import token_entry
    from joulery.storage import list_tokens

    with store.reading() as transaction:
        found = list_tokens(transaction)
    if arguments.json:
        _print_json({"tokens": [token_entry(record).to_document() for record in found]})
        return
    now = REAL_CLOCK.wall()
    rows = [
        [
            str(record.id),
            record.token.team,
            record.token.right.name.lower(),
            _state(record, now),
            record.token.label,
        ]
        for record in found
    ]
    sys.stdout.write(table(["id", "team", "rights", "state", "label"], rows, "rllll") + "\n")


def _state(record: Any, now: float) -> str:
    if record.revoked_wall_seconds is not None:
        return "revoked"
    expires = record.token.expires_wall_seconds
    if expires is None:
        return "valid"
    days = (expires - now) / _DAY_SECONDS
    return f"valid for {days:.0f} days" if days > 0 else "expired"


def _revoke(arguments: argparse.Namespace, store: Store) -> None:
    from joulery.cli.checked import whole_number
    from joulery.server import token_entry
    from joulery.storage import revoke_token

    number = whole_number(arguments.id, "token", 1, 10**18)
    record = store.write(lambda transaction: revoke_token(transaction, number, REAL_CLOCK.wall()))
    if arguments.json:
        _print_json(token_entry(record).to_document())
    else:
        sys.stdout.write(f"token {number} of {record.token.team} is revoked\n")


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
