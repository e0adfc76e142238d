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
    _add_network(serve)
    status = actions.add_parser("status", help="show devices, leases and foreign changes")
    status.add_argument("--socket", type=Path, metavar="PATH", help="path of the socket")
    check = actions.add_parser("check-policy", help="check a policy file")
    check.add_argument("file", type=Path, help="the policy")
    unit = actions.add_parser("unit", help="print a systemd unit file for this installation")
    _add_network(unit)
    for action in (serve, status, check, unit):
        action.add_argument("--json", action="store_true", help="print one JSON document")


def _add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="serve other machines too, by the policy's tokens"
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE", help="for TLS")
    parser.add_argument("--key", type=Path, metavar="FILE", help="for TLS")


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    actions = {"serve": _serve, "status": _status, "check-policy": _check, "unit": _unit}
    actions[arguments.action](arguments)
    return 0


def _serve(arguments: argparse.Namespace) -> None:
    from joulery.governor import GovernorConfig, default_socket, parse_address, serve, state_folder

    config = GovernorConfig(
        socket=arguments.socket or default_socket(),
        state=arguments.state or state_folder(),
        policy=arguments.policy,
        audit=arguments.audit,
        listen=parse_address(arguments.listen) if arguments.listen else None,
        certificate=arguments.certificate,
        key=arguments.key,
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
        holders = [f"{_holder(lease)} ({_requested(lease)})" for lease in device["leases"]]
        waiting = "to be restored" if device["held"] else "free"
        stuck = ["its driver does not answer"] if device.get("stuck") else []
        flaw = [device["flaw"]] if device.get("flaw") else []
        default, limit = device.get("default_watts"), _watts(device["watts"])
        if default is not None and device["watts"] is not None and device["watts"] < default:
            limit += f" (default {default:g})"
        rows.append(
            [
                str(device["name"]),
                str(device["id"]),
                limit,
                _watts(device["baseline_watts"]),
                "yes" if device["foreign_change"] else "no",
                "; ".join([*stuck, *flaw, *(holders or [waiting])]),
            ]
        )
    headers = ["device", "id", "limit", "found", "changed by others", "held by"]
    return (table(headers, rows, "llrrll") if rows else "No device can be governed here.") + "\n"


def _holder(lease: dict[str, Any]) -> str:
    if "uid" in lease:
        return f"process {lease['pid']} of {_user(lease['uid'])}"
    return str(lease["client"]) or "the fallback of its rule"


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
    groups = [f"group {gid}" for gid in sorted(rule.gids)]
    return ", ".join([*users, *groups, *(f"client {name}" for name in sorted(rule.tokens))])


def _what(rule: Any) -> str:
    ranges = []
    if rule.limits_watts:
        ranges.append("set {:g}–{:g} W".format(*rule.limits_watts))
    if rule.clocks_hertz:
        low, high = (hertz / 1e6 for hertz in rule.clocks_hertz)
        ranges.append(f"pin {low:g}–{high:g} MHz")
    owned = " where it owns the device" if rule.must_own else ""
    kept = "" if rule.fallback_watts is None else f", else {rule.fallback_watts:g} W,"
    return (" and ".join(ranges) or "hold, but change nothing") + owned + kept


def _unit(arguments: argparse.Namespace) -> None:
    import joulery.governor

    path = Path(joulery.governor.__file__).with_name("joulery-governor.service")
    options = {"--listen": arguments.listen} | {
        f"--{name}": vars(arguments)[name] and vars(arguments)[name].resolve()
        for name in ("certificate", "key")
    }
    given = [f" {name} {_quoted(value)}" for name, value in options.items() if value]
    values = {
        # That of the virtual environment, if there is one: its links must not be followed.
        "@PYTHON@": _quoted(sys.executable),
        "@OPTIONS@": "".join(given),
        "@PRIVATE_NETWORK@": "no" if arguments.listen else "yes",
        "@FAMILIES@": "AF_UNIX AF_INET AF_INET6" if arguments.listen else "AF_UNIX",
    }
    text = path.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(name, value)
    sys.stdout.write(json.dumps({"unit": text}) + "\n" if arguments.json else text)


def _quoted(word: object) -> str:
    """A word as systemd reads it."""
    text = str(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'.replace("%", "%%").replace("$", "$$")
