"""Leases from this process: through the daemon, a watchdog, or directly on simulated boards."""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from joulery import errors
from joulery.background import PeriodicTask
from joulery.errors import (
    DeviceError,
    JouleryError,
    MissingRightsError,
    NotPossibleHereError,
    UnknownDeviceError,
)
from joulery.files import encode_line
from joulery.frontier import Origin
from joulery.governor._commands import with_commands
from joulery.governor._device import KNOBS, GovernedDevice, LeaseRequest
from joulery.governor._journal import LeaseJournal
from joulery.governor._protocol import (
    MAX_REPLY_BYTES,
    VERSION,
    FencedError,
    LeaseLostError,
    check_secrecy,
    decode,
    default_socket,
)
from joulery.governor._watchdog import watchdog_address
from joulery.hardware import Capability, Device, Obstacle, PowerLimit
from joulery.units import finite

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

_SIMULATED = "simulated"
# Devices that direct leases of this process hold, by identity.
_HELD: set[int] = set()


class Lease:
    """Lease of a device by this process; made by ``lease``.

    It is renewed from a thread, and taken again if the governor restarts.

    Args:
        connect: Function that opens a channel to a governor.
        device: Id of the device.
        ttl_seconds: Time to live without a renewal.

    Attributes:
        interruptions: Number of times that the lease was lost, and taken again where possible.
    """

    def __init__(
        self, connect: Callable[[], Connection | DirectChannel], device: str, ttl_seconds: float
    ) -> None:
        self._connect = connect
        self._terms = {"device": device, "ttl_seconds": ttl_seconds}
        self._channel: Connection | DirectChannel | None = None
        self._requested: dict[str, float | None] = {}
        self._granted: dict[str, Any] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ended = False
        self.interruptions = 0
        self._refused_share: float | None = None
        self._renewal: PeriodicTask | None = None

    @property
    def watts(self) -> float | None:
        """Power limit in force; None where the device has none."""
        return self._state("watts")

    @property
    def clock_hertz(self) -> float | None:
        """Clock that this lease pins; None when it pins none."""
        return self._state("hertz")

    @property
    def baseline_watts(self) -> float | None:
        """Limit that will be restored."""
        return self._state("baseline_watts")

    @property
    def ceiling_watts(self) -> float | None:
        """Highest limit that may be requested."""
        return self._state("ceiling_watts")

    @property
    def share_watts(self) -> float | None:
        """Power that other holders, such as a cluster's agent, leave it on average, asked anew."""
        self._renew()
        watts: float | None = self._granted.get("share_watts")
        return watts

    @property
    def overridden(self) -> bool:
        """Whether another program set the limit since; its value stands until the next set."""
        return bool(self._state("foreign_change"))

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        """Set the knobs that are given; the others stay.

        Raises:
            InvalidValueError: A value is outside the device's range, or above the cap in force.
            MissingRightsError: The policy does not allow it.
        """
        self._change(_request(watts, clock_hertz))

    def reset(self) -> None:
        """Restore the original values, and keep the lease."""
        self._change({"watts": None, "hertz": None})

    def promise(self, watts: float | None) -> None:
        """Promise other holders to keep the mean power of every second below; None for nothing."""
        self._change({"target_watts": watts})

    def follow(self, watts: float | None = None) -> float | None:
        """Set a limit within the power that other holders leave, and promise to keep to that.

        Where the policy forbids so low a limit, nothing is promised: theirs is in force anyway.

        Args:
            watts: Limit to set; None for all that they leave, or for the original one.

        Returns:
            Power that they leave, as ``share_watts``; None where nobody else has a say.
        """
        share, most = self.share_watts, None
        least, ceiling = (self._granted.get(name) for name in ("min_watts", "ceiling_watts"))
        if watts is not None and ceiling is not None:
            watts = min(watts, ceiling)  # which another program may have lowered
        limit = watts
        if share not in (None, self._refused_share):
            most = max(least or 0.0, min(share, math.inf if ceiling is None else ceiling))
            limit = most if watts is None else min(watts, most)
        request = {"watts": limit, "target_watts": most}
        if any(self._requested.get(knob) != value for knob, value in request.items()):
            try:
                self._change(request)
            except MissingRightsError:
                if most is None:
                    raise
                self._refused_share = share
                self._change({"watts": watts, "target_watts": None})
        return share

    def acquire(self, request: dict[str, float | None]) -> None:
        """Take the lease and start to renew it."""
        self._take(request)
        # The governor may have granted another time to live than was requested.
        seconds = self._granted["ttl_seconds"] / 3
        if math.isfinite(seconds):
            self._renewal = PeriodicTask(self._renew, seconds=seconds, name="joulery-lease")
            self._renewal.start()

    def release(self) -> None:
        """End the lease before its block ends; returns once the values are restored."""
        # A forked child shares the channel, but it is not the holder.
        if self._ended or not self._is_mine():
            return
        self._ended = True
        if self._renewal is not None:
            self._renewal.stop(0.0)
        with self._lock:
            # If this fails, the governor restores when the channel closes or the lease expires.
            with suppress(OSError, JouleryError):
                if self._channel is not None:
                    self._channel.ask("release", lease=self._granted["lease"])
            self._disconnect()

    def _is_mine(self) -> bool:
        """Whether this process holds the lease; a forked child does not."""
        return self._process == os.getpid()

    def _state(self, name: str) -> float | None:
        if self._renewal is None:
            self._renew()
        value: float | None = self._granted[name]
        return value

    def _change(self, request: dict[str, float | None]) -> None:
        if not self._is_mine():
            flaw = f"the lease is process {self._process}'s, not its forked child's"
            raise NotPossibleHereError(flaw, remedy="change the limit in that process")
        with self._lock:
            self._ask("set", request)

    def _renew(self) -> None:
        # An error is reported by the next change; until then the governor may have restarted.
        with self._lock, suppress(JouleryError):
            if not self._ended:
                self._ask("renew", {})

    def _ask(self, operation: str, changes: dict[str, float | None]) -> None:
        """Send a request under the lease; take the lease anew if it was lost."""
        request = self._requested | changes
        if self._channel is not None:
            with suppress(OSError, LeaseLostError):
                number = self._granted["lease"]
                self._granted = self._channel.ask(operation, lease=number, **changes)
                self._requested = request
                return
        self.interruptions += 1
        self._take(request)

    def _take(self, request: dict[str, float | None]) -> None:
        """Acquire the device over a new channel."""
        self._disconnect()
        try:
            self._channel = self._connect()
            self._granted = self._channel.ask("acquire", **self._terms, **request)
            self._requested = request
        except (OSError, JouleryError) as error:
            self._disconnect()
            if isinstance(error, JouleryError):
                raise
            remedy = "see whether `joulery governor status` works"
            raise DeviceError(f"the governor does not answer: {error}", remedy=remedy) from None

    def _disconnect(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class DirectChannel:
    """Governor of one device that ends with this process; if ``capped``, its limit is a ceiling."""

    def __init__(self, device: Device, *, capped: bool) -> None:
        if id(device) in _HELD:
            flaw = f"{device.info.name} ({device.info.id}) is held by this very process"
            raise NotPossibleHereError(flaw, remedy="release its other lease, or change that one")
        self._governed = GovernedDevice(device, LeaseJournal(), capped=capped)
        self._request = LeaseRequest()

    def ask(self, operation: str, **details: Any) -> dict[str, Any]:
        """Answer to a request."""
        governed = self._governed
        if operation == "acquire":
            governed.hold()
            _HELD.add(id(governed.device))
        governed.refresh()  # another program may have lowered the ceiling
        if operation in ("acquire", "set"):
            knobs = {name: details[name] for name in ("watts", "hertz") if name in details}
            request = replace(self._request, **knobs)
            governed.check(request)
            governed.apply(request)
            self._request = request
        return {"lease": 0, "ttl_seconds": math.inf, **governed.state()}

    def close(self) -> None:
        """Restore the device."""
        if self._governed.held:
            _HELD.discard(id(self._governed.device))
            self._governed.restore()


@contextmanager
def lease(
    device: Device,
    *,
    watts: float | None = None,
    clock_hertz: float | None = None,
    ttl_seconds: float = 30.0,
) -> Iterator[Lease]:
    """Lease a device, with its knobs set, until the block or the process ends for any reason.

    The lease comes from the daemon where one runs. Otherwise this process needs the rights to set
    the knobs, and a watchdog child restores them if the process is killed.

    Args:
        device: Device to lease.
        watts: Power limit; None leaves it for now.
        clock_hertz: Clock to pin; None leaves it for now.
        ttl_seconds: Time to live without a renewal, after which the lease ends, as when this
            process is stopped or its container paused.

    Raises:
        UnsupportedError: The device has no such knob.
        MissingRightsError: This user may not set it.
        NotPossibleHereError: Another client holds the device.
        InvalidValueError: A value is outside the device's range, or above the cap in force.
    """
    finite(ttl_seconds, "time to live in seconds", minimum=0.0)
    acquired = _acquired(device, _request(watts, clock_hertz), ttl_seconds)
    try:
        yield acquired
    finally:
        acquired.release()


def lease_obstacle(device: Device) -> Obstacle | None:
    """Reason why ``lease`` would fail now; None when it would work."""
    name = device.info.name
    if not device.capabilities & KNOBS:
        return Obstacle(name, "it has no power limit and no lockable clock", "advise instead")
    try:
        lent = None if device.info.vendor == _SIMULATED else daemon_obstacles([device])
        if lent is not None:
            return lent[device.info.id]
        if Capability.POWER_LIMIT in device.capabilities:
            # Set the limit in force once more: only trying shows whether the driver permits it.
            limit = cast("PowerLimit", with_commands(device))
            limit.set_power_limit(limit.power_limits().current_watts)
    except JouleryError as error:
        return Obstacle.from_error(name, error)
    return None


def daemon_obstacles(devices: Iterable[Device]) -> dict[str, Obstacle | None] | None:
    """Reasons, by device id, why the daemon would refuse a lease now; None without a daemon."""
    daemon = _daemon()
    if daemon is None:
        return None
    obstacles: dict[str, Obstacle | None] = {}
    with closing(daemon):
        for device in devices:
            try:
                daemon.ask("may", device=device.info.id)
                obstacles[device.info.id] = None
            except JouleryError as error:
                obstacles[device.info.id] = Obstacle.from_error(device.info.name, error)
    return obstacles


class Held(Protocol):
    """A device whose knobs this process may set, restored when its block ends.

    A ``Lease`` is one; tests and owners of a machine may hold devices in other ways.
    """

    def set(self, *, watts: float | None = None, clock_hertz: float | None = None) -> None:
        """Set the knobs that are given."""
        ...

    def reset(self) -> None:
        """Restore the original values, and keep holding."""
        ...


Hold: TypeAlias = Callable[[Device], AbstractContextManager[Held]]


@contextmanager
def held(
    devices: Iterable[Device], *, watts: float | None = None, hold: Hold | None = None
) -> Iterator[list[Held]]:
    """Hold several devices at once, all or none, and restore them when the block ends.

    Args:
        devices: Devices to hold.
        watts: Power limit of each; None leaves it for now.
        hold: Context manager that holds one device; ``lease`` by default.
    """
    with ExitStack() as stack:
        holders: list[Held] = [stack.enter_context((hold or lease)(device)) for device in devices]
        if watts is not None:
            for holder in holders:
                holder.set(watts=watts)
        yield holders


def _acquired(device: Device, request: dict[str, float | None], ttl_seconds: float) -> Lease:
    """A lease from the daemon, the watchdog or, on simulated boards, this process."""
    if device.info.vendor == _SIMULATED:
        return _direct(device, request)
    try:
        record = Lease(
            lambda: _daemon() or Connection(watchdog_address()), device.info.id, ttl_seconds
        )
        record.acquire(request)
    except UnknownDeviceError:
        # An emulated board ends with its test, so nothing can be left behind on it.
        if device.provenance.origin != Origin.SIMULATED:
            raise
        return _direct(device, request)
    return record


def _direct(device: Device, request: dict[str, float | None]) -> Lease:
    # A simulated board has no administrator whose cap would be a ceiling.
    connect = partial(DirectChannel, device, capped=device.info.vendor != _SIMULATED)
    record = Lease(connect, device.info.id, math.inf)
    record.acquire(request)
    return record


def _daemon() -> Connection | None:
    """A connection to the daemon; None where there is none."""
    path = default_socket()
    try:
        return Connection(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ConnectionRefusedError):
        return None
    except OSError as error:
        flaw = f"the governor at {path} does not answer: {error}"
        raise DeviceError(flaw, remedy="restart it") from None


def _request(watts: float | None, clock_hertz: float | None) -> dict[str, float | None]:
    knobs = {"watts": watts, "hertz": clock_hertz}
    return {
        knob: finite(value, f"{knob} to hold", minimum=0.0)
        for knob, value in knobs.items()
        if value is not None
    }


class Connection:
    """Connection to a governor, for one request at a time.

    Args:
        address: Path or name of the daemon's socket, or its host and port.
        token: Token to show to a daemon on another machine.
        tls: Context with the authority to trust; None only on this machine.
        timeout_seconds: Longest time to wait for an answer.

    Raises:
        OSError: No daemon listens there.
    """

    def __init__(
        self,
        address: Path | bytes | tuple[str, int],
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        if isinstance(address, tuple):
            check_secrecy(address, tls)
            self._channel = socket.create_connection(address, timeout_seconds)
        else:
            self._channel = _connected(address, timeout_seconds)
        try:
            if tls is not None and isinstance(address, tuple):
                self._channel = tls.wrap_socket(self._channel, server_hostname=address[0])
            self._replies = self._channel.makefile("rb")
            self.ask("hello", versions=[VERSION], **({} if token is None else {"token": token}))
        except BaseException:
            self._channel.close()
            raise

    def ask(self, operation: str, **details: Any) -> dict[str, Any]:
        """Send a request and return the answer; refusals are raised as Joulery's errors.

        An OSError means that the daemon has gone or does not answer.
        """
        self._channel.sendall(encode_line({"op": operation, **details}))
        line = self._replies.readline(MAX_REPLY_BYTES)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the governor closed the connection or does not answer")
        return checked_reply(decode(line))

    def close(self) -> None:
        """Close; the daemon restores what this connection changed."""
        self._replies.close()
        self._channel.close()


def checked_reply(reply: dict[str, Any]) -> dict[str, Any]:
    """An answer of the governor; a refusal is raised as Joulery's error."""
    if reply.get("ok") is True:
        return reply
    kinds = {**vars(errors), "LeaseLostError": LeaseLostError, "FencedError": FencedError}
    kind = kinds.get(str(reply.get("error")))
    if not (isinstance(kind, type) and issubclass(kind, JouleryError)):
        kind = DeviceError
    raise kind(str(reply.get("message")), remedy=str(reply.get("remedy")))


def _connected(address: Path | bytes, timeout_seconds: float) -> socket.socket:
    """A Unix socket whose timeouts are the kernel's.

    Python's own timeout would make a connection fail at once where clients queue up.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    interval = struct.pack("ll", int(timeout_seconds), int(timeout_seconds % 1 * 1e6))
    try:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            channel.setsockopt(socket.SOL_SOCKET, option, interval)
        channel.connect(os.fspath(address))
    except BaseException:
        channel.close()
        raise
    return channel
