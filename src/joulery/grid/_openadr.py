"""A small client of OpenADR 3: receive events, report what was done."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from joulery.grid._events import GridEvent
from joulery.grid._http import SignalError, request, utc_seconds
from joulery.units import finite

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>[\d.]+)S)?)?"
)
_WATTS_PER_KILOWATT = 1000.0
# Shares of the power before the event for the levels of the SIMPLE payload.
_SIMPLE_REDUCTION = {1: 0.10, 2: 0.25, 3: 0.50}


@dataclass(slots=True)
class OpenAdr:
    """A virtual end node of an OpenADR 3 server.

    Attributes:
        url: Address of the server's API.
        client_id: Name of the account.
        client_secret: Secret of the account.
        ven_name: Name under which this cluster reports.
        malformed: Errors of events of the last call that could not be read.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    ven_name: str = "joulery"
    malformed: list[str] = field(default_factory=list)
    _token: str = field(default="", repr=False)

    def authenticate(self) -> None:
        """Obtain an access token (POST /auth/token)."""
        body = request(
            f"{self.url}/auth/token",
            form={
                "grant_type": "client_credentials",
                "client_id": self.client_id,
                "client_secret": self.client_secret,
            },
        )
        self._token = str(_decode(body, dict).get("access_token", ""))
        if not self._token:
            raise SignalError("the server gives no token", remedy="check the account's secret")

    def events(self, program: str | None = None) -> list[GridEvent]:
        """Events that ask for less power (GET /events); see ``malformed`` for the rest."""
        query = {} if program is None else {"programID": program}
        events: list[GridEvent] = []
        self.malformed = []
        for raw in _decode(self._ask("events", query=query), list):
            try:
                events += grid_events(raw)
            except SignalError as error:  # one must not hide the others
                self.malformed.append(error.message)
        return events

    def report(self, event: dict[str, Any], watts: list[tuple[float, float]]) -> dict[str, Any]:
        """Report the power used, as (time, watts) (POST /reports)."""
        document = usage_report(event, watts, self.ven_name)
        return dict(_decode(self._ask("reports", document=document), dict))

    def _ask(self, path: str, **details: Any) -> bytes:
        if not self._token:
            self.authenticate()
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            return request(f"{self.url}/{path}", headers=headers, **details)
        except SignalError:
            self._token = ""  # it may have expired: the next call asks for another
            raise


def grid_events(raw: dict[str, Any]) -> list[GridEvent]:
    """The requests for less power in one OpenADR event, one for each interval."""
    events = []
    try:
        general = raw.get("intervalPeriod") or {}
        following = general.get("start")
        units = {d["payloadType"]: d.get("units") for d in raw.get("payloadDescriptors") or ()}
        for interval in raw.get("intervals") or ():
            period = general | (interval.get("intervalPeriod") or {})
            start = utc_seconds(str(interval.get("intervalPeriod", {}).get("start") or following))
            end = start + _duration(period["duration"])
            following = datetime.fromtimestamp(end, UTC).isoformat()
            event_id = f"{raw.get('id') or raw.get('eventName')}#{interval['id']}"
            name = re.sub(r"^\.|[^\w.#-]", "-", event_id)  # which is to be the name of a file
            for payload in interval["payloads"]:
                wish = _wish(payload, units.get(payload["type"]))
                if wish:
                    announced = raw.get("createdDateTime")
                    announced_seconds = utc_seconds(announced) if announced else None
                    events.append(GridEvent(name, start, end, announced=announced_seconds, **wish))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SignalError(
            f"event {raw.get('id')!r} is not as OpenADR 3 has it: {error!r}",
            remedy="ask the program's operator; the caps in force stay",
        ) from None
    return events


def _wish(payload: dict[str, Any], unit: str | None) -> dict[str, float] | None:
    kind, values = payload["type"], payload["values"]
    if kind in ("IMPORT_CAPACITY_LIMIT", "DISPATCH_SETPOINT"):
        scale = {"W": 1.0, "MW": 1e6}.get(unit or "KW", _WATTS_PER_KILOWATT)
        return {"target_watts": scale * finite(values[0], "target of an event")}
    if kind == "SIMPLE" and int(values[0]) in _SIMPLE_REDUCTION:
        return {"reduction": _SIMPLE_REDUCTION[int(values[0])]}
    return None


def usage_report(
    event: dict[str, Any], watts: list[tuple[float, float]], ven_name: str
) -> dict[str, Any]:
    """A report of the power used, as OpenADR 3 has it."""
    steps = [later[0] - earlier[0] for earlier, later in itertools.pairwise(watts)]
    seconds = round(steps[0]) if steps else 60
    intervals = [
        {
            "id": number,
            "intervalPeriod": {"start": _iso(time), "duration": f"PT{seconds}S"},
            "payloads": [{"type": "DEMAND", "values": [power / _WATTS_PER_KILOWATT]}],
        }
        for number, (time, power) in enumerate(watts)
    ]
    return {
        "objectType": "REPORT",
        "programID": event["programID"],
        "eventID": event["id"],
        "clientName": ven_name,
        "reportName": f"power of {ven_name}",
        "payloadDescriptors": [
            {"objectType": "REPORT_PAYLOAD_DESCRIPTOR", "payloadType": "DEMAND", "units": "KW"}
        ],
        "resources": [{"resourceName": "AGGREGATED_REPORT", "intervals": intervals}],
    }


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a duration: {text!r}")
    parts = {name: float(value or 0) for name, value in match.groupdict().items()}
    hours = 24 * parts["days"] + parts["hours"]
    return 3600 * hours + 60 * parts["minutes"] + parts["seconds"]


def _decode(body: bytes, kind: type) -> Any:
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, kind):
        flaw = f"the server's answer is not a JSON {kind.__name__}"
        raise SignalError(flaw, remedy="check its address")
    return document
