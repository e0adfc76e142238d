"""``joulery governor``: the daemon that owns every power limit and clock, and its status."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery import governor
from joulery.cli.dispatch import Output
from joulery.cli.options import TLS_OPTIONS, Action, file, listen_option
from joulery.errors import MissingHardwareError, UsageError
from joulery.reports import table_of

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


def _serve(arguments: argparse.Namespace) -> int:
    config = governor.GovernorConfig(
        socket=arguments.socket or governor.default_socket(),
        state=arguments.state or governor.state_folder(),
        policy=arguments.policy,
        audit=arguments.audit,
        listen=_listening(arguments),
        certificate=arguments.tls_cert,
        key=arguments.tls_key,
    )

    text = f"joulery: the governor serves {config.socket}"
    ready = Output({"socket": config.socket}, text, aside=True)
    governor.serve(config, lambda: ready.announce(as_json=arguments.json))
    return 0


def _listening(arguments: argparse.Namespace) -> tuple[str, int] | None:
    """Address for other machines, if the options name one."""
    if arguments.listen is None and (arguments.tls_cert or arguments.tls_key):
        raise UsageError("a certificate without --listen", remedy="add --listen HOST:PORT")
    address: tuple[str, int] | None = arguments.listen
    return address


def _status(arguments: argparse.Namespace) -> Output:
    path = arguments.socket or governor.default_socket()
    try:
        with closing(governor.Connection(path)) as connection:
            answer = connection.ask("status")
    except OSError as error:
        raise MissingHardwareError(
            f"no governor answers at {path}: {error.strerror or error}",
            remedy="start one with `joulery governor serve`, as root",
        ) from None
    devices, policy = answer["devices"], answer["policy"]
    code = 1 if policy["flaw"] else 0 if devices else MissingHardwareError.exit_code
    return Output(
        {"socket": str(path), "devices": devices, "policy": policy},
        lambda: _devices_text(devices) + _policy_text(policy),
        code,
    )


def _policy_text(policy: dict[str, Any]) -> str:
    """What is wrong with the policy; empty where nothing is."""
    closed = "" if policy["rules"] else "\nNo rule of a policy: every request is refused."
    flaw = policy["flaw"] and f"\nThe policy before stays in force: {policy['flaw']}"
    return closed + flaw


def _devices_text(devices: list[dict[str, Any]]) -> str:
    if not devices:
        return "No device can be governed here; the governor looks again every 10 s."
    return table_of(
        devices,
        {
            "device": lambda device: str(device["name"]),
            "id": lambda device: str(device["id"]),
            ">limit": _limit,
            ">found": lambda device: _watts(device["baseline_watts"]),
            "changed by others": lambda device: "yes" if device["foreign_change"] else "no",
            "held by": _held_by,
        },
    )


def _limit(device: dict[str, Any]) -> str:
    default, watts = device.get("default_watts"), device["watts"]
    lowered = default is not None and watts is not None and watts < default
    return _watts(watts) + (f" (default {default:g})" if lowered else "")


def _held_by(device: dict[str, Any]) -> str:
    holders = [f"{_holder(lease)} ({_requested(lease)})" for lease in device["leases"]]
    stuck = ["its driver does not answer"] if device.get("stuck") else []
    flaw = [device["flaw"]] if device.get("flaw") else []
    waiting = "to be restored" if device["held"] else "free"
    return "; ".join([*stuck, *flaw, *(holders or [waiting])])


def _holder(lease: dict[str, Any]) -> str:
    if "uid" in lease:
        return f"process {lease['pid']} of {_user(lease['uid'])}"
    return str(lease["client"]) or "a rule with a fallback"


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


def _check(arguments: argparse.Namespace) -> Output:
    policy = governor.load_policy(arguments.file)
    boards = [device.info for device in governor.governable_devices().values()]
    unmatched = [
        number
        for number, rule in enumerate(policy.rules, 1)
        if boards and not any(map(rule.names, boards))
    ]
    lines = [
        f"rule {number}: {_who(rule)} may {_what(rule)} on {', '.join(sorted(rule.devices))}"
        + ", which no board of this machine matches" * (number in unmatched)
        for number, rule in enumerate(policy.rules, 1)
    ]
    text = "\n".join(lines or ["every request is refused"])
    return Output({"rules": len(policy.rules), "unmatched": unmatched}, text)


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
    fallback = "" if rule.fallback_watts is None else f", else {rule.fallback_watts:g} W,"
    return (" and ".join(ranges) or "hold, but change nothing") + owned + fallback


def _unit(arguments: argparse.Namespace) -> Output:
    files = {"--tls-cert": arguments.tls_cert, "--tls-key": arguments.tls_key}
    options = {name: str(path.resolve()) for name, path in files.items() if path}
    text = unit_text(_listening(arguments), options)
    return Output({"unit": text}, text)


def unit_text(address: tuple[str, int] | None, options: dict[str, str]) -> str:
    """The unit of a governor that serves an address, with further options."""
    path = Path(governor.__file__).with_name("joulery-governor.service")
    if address is not None:
        options = {"--listen": f"{address[0]}:{address[1]}"} | options
    words = [f" {name} {_quoted(value)}" for name, value in options.items()]
    values = {
        # That of the virtual environment, if there is one: its links must not be followed.
        "@PYTHON@": _quoted(sys.executable),
        "@OPTIONS@": "".join(words),
        "@PRIVATE_NETWORK@": "no" if address else "yes",
        "@FAMILIES@": "AF_UNIX AF_INET AF_INET6" if address else "AF_UNIX",
    }
    text = path.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _quoted(word: object) -> str:
    """A word as systemd reads it."""
    text = str(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'.replace("%", "%%").replace("$", "$$")


_SOCKET = file("--socket", "path of the socket", "PATH")
_NETWORK = (
    listen_option("serve other machines too, by the policy's tokens"),
    *TLS_OPTIONS,
)
_SERVE = (
    file("--policy", "access policy; without one, all is refused"),
    _SOCKET,
    file("--state", "folder of journals, root only", "DIR"),
    file("--audit", "audit log, as JSON lines"),
    *_NETWORK,
)
COMMAND = Action(
    epilog=_EXAMPLE,
    actions={
        "serve": Action(_serve, _SERVE, "run the daemon in the foreground"),
        "status": Action(_status, (_SOCKET,), "show devices, leases and foreign changes"),
        "check-policy": Action(_check, (file("file", "the policy"),), "check a policy file"),
        "unit": Action(_unit, _NETWORK, "print a systemd unit file for this installation"),
    },
)
