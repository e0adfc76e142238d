"""Whole-node power from a management controller that speaks Redfish.

Reads ``PowerControl[].PowerConsumedWatts`` of a chassis' ``Power`` resource, or
``PowerWatts.Reading`` of ``EnvironmentMetrics`` on controllers that dropped the former.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from joulery.errors import (
    DeviceError,
    InvalidValueError,
    JouleryError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import Capability, DeviceInfo, DeviceKind

TIMEOUT_SECONDS = 5.0  # by hand: slow controllers take some seconds

# A power document is a few kilobytes; nothing larger is worth parsing.
_LONGEST_REPLY_BYTES = 1 << 20
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class RedfishMeter:
    """The node's power as its management controller states it.

    ``ca_file`` is the certificate authority of the controller, for self-signed ones.
    """

    def __init__(
        self, chassis_url: str, user: str = "", password: str = "", ca_file: str | None = None
    ) -> None:
        self._url = url = urlsplit(chassis_url.rstrip("/"))
        self._user, self._password, self._ca_file = user, password, ca_file
        _check_url(chassis_url, user)
        path, name = f"{url.netloc}{url.path}", f"BMC of {url.hostname}"
        self.info = DeviceInfo(f"redfish:{path}", name, DeviceKind.NODE, "redfish")
        self.provenance = Provenance(Origin.MEASURED, "Redfish power reading")
        self.capabilities = frozenset({Capability.POWER})

    def read_power(self) -> float:
        """Watts of the whole chassis."""
        for resource, find in (("Power", power_consumed), ("EnvironmentMetrics", power_reading)):
            document = self._get(f"{self._url.path}/{resource}")
            watts = None if document is None else find(document)
            if watts is not None:
                return watts
        raise UnsupportedError(
            f"{self.info.id} states no power",
            remedy="give the URL of the chassis that has a Power or EnvironmentMetrics resource",
        )

    def _get(self, path: str) -> Any:
        """The JSON document at ``path``; None when there is none."""
        try:
            connection = self._connection()
            try:
                connection.request("GET", path, headers=self._headers())
                reply = connection.getresponse()
                body = reply.read(_LONGEST_REPLY_BYTES)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as failure:
            raise DeviceError(
                f"{self._url.netloc} does not answer: {failure or type(failure).__name__}",
                remedy="check the address, the network and JOULERY_REDFISH_CA",
            ) from None
        if reply.status == http.client.NOT_FOUND:
            return None
        if reply.status != http.client.OK:
            raise _refused(self._url.netloc, reply.status)
        try:
            return json.loads(body)
        except ValueError:
            raise DeviceError(
                f"{self._url.netloc}{path} is not JSON", remedy="check that it is a Redfish URL"
            ) from None

    def _connection(self) -> http.client.HTTPConnection:
        # http.client neither follows redirects nor uses proxies, so the password goes to the
        # controller named and nowhere else.
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        context = ssl.create_default_context(cafile=self._ca_file)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=context)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._user:
            pair = f"{self._user}:{self._password}".encode()
            headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        return headers


def power_consumed(document: Any) -> float | None:
    """Watts of a ``Power`` resource: the sum over its power domains; None if it has none."""
    controls = document.get("PowerControl") if isinstance(document, dict) else None
    if not isinstance(controls, list):
        return None
    readings = [_watts(control, "PowerConsumedWatts") for control in controls]
    numbers = [watts for watts in readings if watts is not None]
    return sum(numbers) if numbers else None


def power_reading(document: Any) -> float | None:
    """Watts of an ``EnvironmentMetrics`` resource; None if it has none."""
    return _watts(document.get("PowerWatts"), "Reading") if isinstance(document, dict) else None


def _watts(part: Any, name: str) -> float | None:
    """A positive number; controllers write null or 0 while they do not know."""
    value = part.get(name) if isinstance(part, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return float(value)


def _check_url(chassis_url: str, user: str) -> None:
    url = urlsplit(chassis_url)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise InvalidValueError(
            f"not a Redfish URL: {chassis_url!r}",
            remedy='write "https://bmc.example.org/redfish/v1/Chassis/1"',
        )
    if url.username or url.password:
        raise InvalidValueError(
            f"credentials in the URL of {url.hostname}",
            remedy="put them into JOULERY_REDFISH_USER and JOULERY_REDFISH_PASSWORD",
        )
    if url.scheme == "http" and user and url.hostname not in _LOOPBACK:
        raise InvalidValueError(
            f"would send a password to {url.hostname} in the clear", remedy="use https"
        )


def _refused(url: str, status: int) -> JouleryError:
    if status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
        return MissingRightsError(
            f"{url} refuses this account (HTTP {status})",
            remedy="set JOULERY_REDFISH_USER and JOULERY_REDFISH_PASSWORD to a read-only account",
        )
    return DeviceError(f"{url} answers HTTP {status}", remedy="check the chassis URL")
