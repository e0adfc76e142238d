"""A small client of OpenADR 3: receive events, report what was done."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from joulery.errors import flaw_text
from joulery.grid._events import GridEvent
from joulery.grid._http import SignalError, request, utc_seconds
from joulery.units import finite

_DURATION = re.compile(
    r"P(?:(?P<years>\d+)Y)?(?:(?P<months>\d+)M)?(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>[\d.]+)S)?)?"
)
_SECONDS = {
    "years": 365 * 86400.0, "months": 30 * 86400.0, "weeks": 7 * 86400.0, "days": 86400.0,
    "hours": 3600.0, "minutes": 60.0, "seconds": 1.0,
}  # fmt: skip
# P9999Y means until it is cancelled, which calendars cannot hold.
_LONGEST_SECONDS = 100 * 365 * 86400.0
# Events in one answer: servers may give fewer, by default 50.
_PAGE = 50
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
        ven_name: Name under which this cluster reports, and for which events may be meant.
        targets: Further names that this cluster goes by: groups, resources, locations.
        malformed: Errors of events of the last call that could not be read.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    ven_name: str = "joulery"
    targets: tuple[str, ...] = ()
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
        """Events that ask this cluster for less power (GET /events, all pages).

        See ``malformed`` for those that could not be read.
        """
        events: list[GridEvent] = []
        self.malformed = []
        for raw in self.raw_events(program):
            try:
                if _is_meant(raw, {self.ven_name, *self.targets}):
                    events += grid_events(raw)
            except SignalError as error:  # one must not hide the others
                self.malformed.append(error.message)
        return events

    def raw_events(self, program: str | None = None) -> list[dict[str, Any]]:
        """All events of a program as the server has them, page by page."""
        query = {} if program is None else {"programID": program}
        rows: list[dict[str, Any]] = []
        while True:
            paging = {"skip": str(len(rows)), "limit": str(_PAGE)}
            page = _decode(self._ask("events", query=query | paging), list)
            known = {str(row.get("id")) for row in rows if isinstance(row, dict)}
            # A server may give fewer than asked for; one that knows no pages gives all again.
            new = [
                row for row in page if not isinstance(row, dict) or str(row.get("id")) not in known
            ]
            rows += new
            if not new:
                return rows

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
            f"event {raw.get('id')!r} is not as OpenADR 3 has it: {flaw_text(error)}",
            remedy="ask the program's operator; the caps in force stay",
        ) from None
    return events


def _is_meant(raw: Any, names: set[str]) -> bool:
    """Whether an event has no targets, or names this cluster among them."""
    targets = raw.get("targets") if isinstance(raw, dict) else None
    if not targets or not isinstance(targets, list):
        return True
    words: set[str] = set()
    for target in targets:  # objects with a type and values in 3.0, plain names since 3.1
        values = target.get("values") if isinstance(target, dict) else [target]
        words |= {str(value) for value in values or ()}
    return bool(words & names)


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
    seconds = sum(_SECONDS[name] * amount for name, amount in parts.items())
    return min(seconds, _LONGEST_SECONDS)


def _decode(body: bytes, kind: type) -> Any:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, kind):
        flaw = f"the server's answer is not a JSON {kind.__name__}"
        raise SignalError(flaw, remedy="check its address")
    return document
