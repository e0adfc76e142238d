"""Access policy of the governor: which clients may set which values on which devices."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, MissingRightsError
from joulery.governor._peer import OPEN, SLURM, Peer
from joulery.units import HERTZ_PER_MEGAHERTZ

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.governor._device import LeaseRequest
    from joulery.hardware import Device, DeviceInfo

ANY = "*"
# Secrets that can be guessed are none.
_LEAST_TOKEN_LENGTH = 16
_MUST_OWN = {False: "", True: OPEN, SLURM: SLURM}
_KEYS = {
    "allow": {
        *("users", "groups", "tokens", "devices", "limits_watts", "clocks_mhz", "must_own"),
        *("shared", "fallback_watts"),
    },
    "pinned": {"devices", "clock_mhz"},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One ``[[allow]]`` table.

    Attributes:
        uids: Ids of users; None for everyone.
        gids: Ids of groups.
        tokens: Names of clients on other machines.
        devices: Device ids, indices, ``gpu``, ``gpu:0``, ``nvidia:0`` or ``*``.
        limits_watts: Range of power limits; None for none at all.
        clocks_hertz: Range of clocks; None for none at all.
        must_own: Proof of use of the device that a client needs; empty for none.
        shared: Whether holders share the device at the lowest value that any requests.
        fallback_watts: Limit in force while no client holds the device by this rule; None for
            the original limit.
    """

    uids: frozenset[int] | None
    gids: frozenset[int]
    devices: frozenset[str]
    tokens: frozenset[str] = frozenset()
    limits_watts: tuple[float, float] | None = None
    clocks_hertz: tuple[float, float] | None = None
    must_own: str = ""
    shared: bool = False
    fallback_watts: float | None = None

    def covers(self, peer: Peer, info: DeviceInfo) -> bool:
        """Whether the rule applies to this client and device."""
        if peer.uid < 0:
            return peer.client in self.tokens and self.names(info)
        who = self.uids is None or peer.uid in self.uids or bool(peer.gids & self.gids)
        return who and self.names(info)

    def names(self, info: DeviceInfo) -> bool:
        """Whether the rule applies to this device."""
        return bool(_names(info) & self.devices)

    def flaw(self, request: LeaseRequest) -> str:
        """Part of a request that the rule does not allow; empty when it allows all of it."""
        checks = (
            ("power limit", "W", 1.0, request.watts, self.limits_watts),
            ("clock", "MHz", HERTZ_PER_MEGAHERTZ, request.hertz, self.clocks_hertz),
        )
        for knob, unit, scale, value, bounds in checks:
            if value is None:
                continue
            if bounds is None:
                return f"setting the {knob} is not allowed"
            if not bounds[0] <= value <= bounds[1]:
                low, high = (f"{bound / scale:g}" for bound in bounds)
                return f"{knob} {value / scale:g} {unit} is outside {low} to {high} {unit}"
        return ""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The rules of a file; without a rule, every request is refused.

    Attributes:
        rules: Rules of what is allowed.
        clients: Name of each client on another machine, by the digest of its token.
        pinned: Names of devices with the clock in hertz at which the administrator keeps them.
    """

    rules: tuple[Rule, ...] = ()
    pinned: tuple[tuple[frozenset[str], float], ...] = ()
    clients: tuple[tuple[str, str], ...] = ()

    def permit(
        self,
        peer: Peer,
        device: Device,
        request: LeaseRequest,
        owns: Callable[[Peer, Device, str], bool],
    ) -> Rule:
        """The rule that allows all of ``request``; else MissingRightsError with the reason."""
        reason = "no rule of the policy covers it"
        for rule in self.rules:
            if not rule.covers(peer, device.info):
                continue
            reason = rule.flaw(request)
            if not reason and rule.must_own and not owns(peer, device, rule.must_own):
                reason = "the client must own the device: run on it or have its device file open"
            if not reason:
                return rule
        subject = f"{device.info.name} ({device.info.id})"
        remedy = "ask the machine's administrator for a rule in the governor's policy"
        who = f"user {peer.uid}" if peer.uid >= 0 else f"client {peer.client}"
        raise MissingRightsError(f"{who} may not: {reason}, on {subject}", remedy=remedy)

    def identify(self, token: object) -> Peer:
        """The client on another machine that has a token; else MissingRightsError."""
        name = dict(self.clients).get(_digest(token)) if isinstance(token, str) else None
        if name is None:
            raise MissingRightsError("wrong token", remedy="give one that the policy names")
        return Peer(client=name)

    def pinned_hertz(self, info: DeviceInfo) -> float | None:
        """Clock at which the administrator keeps a device, if the file states one."""
        return next((hertz for names, hertz in self.pinned if names & _names(info)), None)


def load_policy(path: Path) -> AccessPolicy:
    """Read a policy.

    Raises:
        FileError: It cannot be read, others may write it, or a line of it is wrong.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        flaw = f"cannot read policy {path}: {error}"
        raise FileError(flaw, remedy="check the path and the encoding") from None
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        remedy = f"chown root {path} && chmod go-w {path}"
        raise FileError(f"others than root may write policy {path}", remedy=remedy)
    return parse_policy(text, str(path), path.parent)


def parse_policy(text: str, name: str = "policy", folder: Path = Path()) -> AccessPolicy:
    """A policy from its text; relative paths of token files start from ``folder``."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{name}: {error}", remedy="write it as TOML") from None
    for key in document:
        if key not in _KEYS or not isinstance(document[key], list):
            flaw = f"{name}: unknown table {key!r}"
            raise FileError(flaw, remedy="use [[allow]] and [[pinned]] only")

    def tables(kind: str) -> list[_Table]:
        return [_Table(kind, row, name, n) for n, row in enumerate(document.get(kind, []), 1)]

    return AccessPolicy(
        tuple(_rule(table) for table in tables("allow")),
        tuple((table.devices(), table.clock_hertz()) for table in tables("pinned")),
        tuple(pair for table in tables("allow") for pair in table.tokens(folder)),
    )


def _rule(table: _Table) -> Rule:
    if not any(map(table.words, ("users", "groups", "tokens"))):
        raise table.error("users", "names neither users nor groups", 'give users = ["name"]')
    must_own, shared = table.row.get("must_own", False), table.row.get("shared", "")
    if not isinstance(must_own, (bool, str)) or must_own not in _MUST_OWN:
        raise table.error("must_own", f"cannot be {must_own!r}", 'true, false or "slurm"')
    if shared not in ("", "minimum"):
        raise table.error("shared", f"cannot be {shared!r}", 'give "minimum" or leave it out')
    return Rule(
        uids=None if ANY in table.words("users") else table.ids("users", pwd.getpwnam),
        gids=table.ids("groups", grp.getgrnam),
        devices=table.devices(),
        tokens=frozenset(table.words("tokens")),
        limits_watts=table.range("limits_watts"),
        clocks_hertz=table.range("clocks_mhz", HERTZ_PER_MEGAHERTZ),
        must_own=_MUST_OWN[must_own],
        shared=shared == "minimum",
        fallback_watts=table.amount("fallback_watts"),
    )


class _Table:
    """One table of the file, with its name and number for messages."""

    def __init__(self, kind: str, row: Any, name: str, number: int) -> None:
        self.row: dict[str, Any] = row if isinstance(row, dict) else {}
        self._place = f"{name}, [[{kind}]] {number}"
        for key in self.row:
            if key not in _KEYS[kind]:
                raise self.error(key, "is unknown", f"known are {', '.join(sorted(_KEYS[kind]))}")

    def error(self, key: str, flaw: str, remedy: str) -> FileError:
        """The error for a key, with the table's place."""
        return FileError(f"{self._place}: {key} {flaw}", remedy=remedy)

    def words(self, key: str) -> list[str]:
        """A list of names or numbers, as text."""
        value = self.row.get(key, [])
        if not isinstance(value, list) or any(type(word) not in (str, int) for word in value):
            raise self.error(key, "is not a list of names or numbers", 'write it as ["a", "b"]')
        return [str(word) for word in value]

    def devices(self) -> frozenset[str]:
        """The names of devices."""
        if not self.words("devices"):
            raise self.error("devices", "names no device", 'give devices = ["*"], ids or indices')
        return frozenset(self.words("devices"))

    def ids(self, key: str, lookup: Callable[[str], Any]) -> frozenset[int]:
        """The numbers of users or groups, which the system's tables have in the third place."""
        numbers = set()
        for word in self.words(key):
            try:
                numbers.add(int(word) if word.isdecimal() else lookup(word)[2])
            except KeyError:
                flaw = f"names no {key.removesuffix('s')} {word!r}"
                raise self.error(key, flaw, "use a known name or number") from None
        return frozenset(numbers)

    def range(self, key: str, unit: float = 1.0) -> tuple[float, float] | None:
        """A pair of numbers in order."""
        pair = self.row.get(key)
        if pair is None:
            return None
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_amount, pair)):
            raise self.error(key, "is not a pair of positive numbers", "write it as [least, most]")
        if pair[0] > pair[1]:
            raise self.error(key, "starts above its end", "write it as [least, most]")
        return pair[0] * unit, pair[1] * unit

    def amount(self, key: str) -> float | None:
        """A positive number."""
        if key in self.row and not _is_amount(self.row[key]):
            raise self.error(key, "is not a positive number", "give one number")
        return float(self.row[key]) if key in self.row else None

    def clock_hertz(self) -> float:
        """The clock of a pinned device."""
        megahertz = self.amount("clock_mhz")
        if megahertz is None:
            raise self.error("clock_mhz", "is missing", "give a clock in MHz")
        return megahertz * HERTZ_PER_MEGAHERTZ

    def tokens(self, folder: Path) -> list[tuple[str, str]]:
        """Digest and name of the token in each file."""
        pairs = []
        for word in self.words("tokens"):
            try:
                with (folder / word).open("rb") as file:
                    mode, token = os.fstat(file.fileno()).st_mode, file.read().decode().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise self.error("tokens", f"cannot be read: {error}", "name a file") from None
            if mode & 0o077 or len(token) < _LEAST_TOKEN_LENGTH:
                flaw = f"{word} is short or readable by others"
                raise self.error("tokens", flaw, "umask 077; openssl rand -hex 32 > FILE")
            pairs.append((_digest(token), word))
        return pairs


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _is_amount(value: Any) -> bool:
    # In watts or megahertz; larger values are typing errors.
    return type(value) in (int, float) and 0 < value < 1e9


def _names(info: DeviceInfo) -> frozenset[str]:
    kinds = (info.kind.value, info.vendor.lower())
    positions = (f"{kind}:{info.index}" for kind in kinds)
    return frozenset({ANY, info.id, str(info.index), *kinds, *positions})
