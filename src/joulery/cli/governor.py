"""``joulery governor``: the daemon that owns every power limit and clock, and its status."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

_EXAMPLE = """\
The policy is closed by default. A file that lets the group `gpu` set limits on what it runs on:

  [[allow]]
  groups = ["gpu"]
  devices = ["*"]
  limits_watts = [100, 300]
  must_own = true

examples:
  joulery governor serve --policy /etc/joulery/governor.toml
  joulery governor status
  joulery governor unit > /etc/systemd/system/joulery-governor.service
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = f"Every action takes --json.\n\n{_EXAMPLE}"
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument(
        "--policy", type=Path, metavar="FILE", help="access policy; without one, all is refused"
    )
    serve.add_argument("--socket", type=Path, metavar="PATH", help="path of the socket")
    serve.add_argument("--state", type=Path, metavar="DIR", help="folder of journals, root only")
    serve.add_argument("--audit", type=Path, metavar="FILE", help="audit log, as JSON lines")
    status = actions.add_parser("status", help="show devices, leases and foreign changes")
    status.add_argument("--socket", type=Path, metavar="PATH", help="path of the socket")
    check = actions.add_parser("check-policy", help="check a policy file")
    check.add_argument("file", type=Path, help="the policy")
    unit = actions.add_parser("unit", help="print a systemd unit file")
    for action in (serve, status, check, unit):
        action.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    actions = {"serve": _serve, "status": _status, "check-policy": _check, "unit": _unit}
    actions[arguments.action](arguments)
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    from joulery.governor import GovernorConfig, default_socket, serve, state_folder

    config = GovernorConfig(
        socket=arguments.socket or default_socket(),
        state=arguments.state or state_folder(),
        policy=arguments.policy,
        audit=arguments.audit,
    )

    def announce() -> None:
        if arguments.json:
            sys.stdout.write(json.dumps({"socket": str(config.socket)}) + "\n")
            sys.stdout.flush()
        else:
            sys.stderr.write(f"joulery: the governor serves {config.socket}\n")

    serve(config, announce)


def _status(arguments: argparse.Namespace) -> None:
    from contextlib import closing

    from joulery.errors import MissingHardwareError
    from joulery.governor import Connection, default_socket

    path = arguments.socket or default_socket()
    try:
        with closing(Connection(path)) as connection:
            devices = connection.ask("status")["devices"]
    except OSError as error:
        raise MissingHardwareError(
            f"no governor answers at {path}: {error.strerror or error}",
            remedy="start one with `joulery governor serve`, as root",
        ) from None
    if arguments.json:
        sys.stdout.write(json.dumps({"socket": str(path), "devices": devices}) + "\n")
    else:
        sys.stdout.write(_rendered(devices))


def _rendered(devices: list[dict[str, Any]]) -> str:
    from joulery.reports import table_text as table

    rows = []
    for device in devices:
        holders = [
            f"process {lease['pid']} of {_user(lease['uid'])} ({_requested(lease)})"
            for lease in device["leases"]
        ]
        waiting = "to be restored" if device["held"] else "free"
        stuck = ["its driver does not answer"] if device.get("stuck") else []
        rows.append(
            [
                str(device["name"]),
                str(device["id"]),
                _watts(device["watts"]),
                _watts(device["baseline_watts"]),
                "yes" if device["foreign_change"] else "no",
                "; ".join([*stuck, *(holders or [waiting])]),
            ]
        )
    headers = ["device", "id", "limit", "found", "changed by others", "held by"]
    return (table(headers, rows, "llrrll") if rows else "No device can be governed here.") + "\n"


def _requested(lease: dict[str, Any]) -> str:
    clock = "" if lease["hertz"] is None else f"{lease['hertz'] / 1e6:g} MHz"
    return ", ".join(filter(None, [_watts(lease["watts"]), clock]))


def _watts(watts: float | None) -> str:
    return "–" if watts is None else f"{watts:g} W"


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _check(arguments: argparse.Namespace) -> None:
    from joulery.governor import load_policy

    policy = load_policy(arguments.file)
    if arguments.json:
        sys.stdout.write(json.dumps({"rules": len(policy.rules)}) + "\n")
        return
    lines = [
        f"line {rule.line}: {_who(rule)} may {_what(rule)} on {', '.join(sorted(rule.devices))}"
        for rule in policy.rules
    ]
    sys.stdout.write("\n".join(lines or ["every request is refused"]) + "\n")


def _who(rule: Any) -> str:
    if rule.uids is None:
        return "everyone"
    users = [f"user {_user(uid)}" for uid in sorted(rule.uids)]
    return ", ".join([*users, *(f"group {gid}" for gid in sorted(rule.gids))])


def _what(rule: Any) -> str:
    ranges = []
    if rule.limits_watts:
        ranges.append("set {:g}–{:g} W".format(*rule.limits_watts))
    if rule.clocks_hertz:
        low, high = (hertz / 1e6 for hertz in rule.clocks_hertz)
        ranges.append(f"pin {low:g}–{high:g} MHz")
    owned = " where it owns the device" if rule.must_own else ""
    return (" and ".join(ranges) or "hold, but change nothing") + owned


def _unit(arguments: argparse.Namespace) -> None:
    import joulery.governor

    path = Path(joulery.governor.__file__).with_name("joulery-governor.service")
    text = path.read_text(encoding="utf-8")
    sys.stdout.write(json.dumps({"unit": text}) + "\n" if arguments.json else text)
