"""Providers of carbon intensity and prices over HTTP, with a cache and a fallback."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol
from xml.etree import ElementTree as ET

from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import FileError
from joulery.grid._http import SignalError, request
from joulery.grid._signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_GRAMS_PER_KWH_FROM_POUNDS_PER_MWH = 0.45359237
# A kept answer younger than this is used without asking.
_FRESH_SECONDS = 900.0


class Provider(Protocol):
    """A source of a signal over HTTP."""

    @property
    def name(self) -> str:
        """Name and region, unique enough for a cache file."""
        ...

    def fetch(self, start: float, end: float) -> Signal:
        """The signal between two times, as far as the provider has it."""
        ...


@dataclass(frozen=True, slots=True)
class ElectricityMaps:
    """Carbon-intensity forecast of electricitymaps.com, in gCO2/kWh.

    Attributes:
        zone: Zone key, such as ``US-CAL-CISO``.
        token: API token.
        url: Address of the API.
    """

    zone: str
    token: str = field(repr=False)
    url: str = "https://api.electricitymaps.com/v3"

    @property
    def name(self) -> str:
        """Name for the cache."""
        return f"electricity-maps {self.zone}"

    def fetch(self, start: float, end: float) -> Signal:  # noqa: ARG002 - it decides how far
        """The forecast from now on."""
        body = request(
            f"{self.url}/carbon-intensity/forecast",
            query={"zone": self.zone},
            headers={"auth-token": self.token},
        )
        return _parsed(self.name, body, _electricity_maps)


def _electricity_maps(body: bytes) -> list[tuple[float, float]]:
    return [
        (_time(e["datetime"]), float(e["carbonIntensity"])) for e in json.loads(body)["forecast"]
    ]


@dataclass(frozen=True, slots=True)
class WattTime:
    """Marginal-emissions forecast of watttime.org, in gCO2/kWh.

    Attributes:
        region: Region, such as ``CAISO_NORTH``.
        user: User name.
        password: Password.
        url: Address of the API.
    """

    region: str
    user: str
    password: str = field(repr=False)
    url: str = "https://api.watttime.org"

    @property
    def name(self) -> str:
        """Name for the cache."""
        return f"watttime {self.region}"

    def fetch(self, start: float, end: float) -> Signal:
        """The forecast from now on."""
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        body = request(f"{self.url}/login", headers={"Authorization": f"Basic {login}"})
        token = _parsed_token(self.name, body, "token")
        body = request(
            f"{self.url}/v3/forecast",
            query={
                "region": self.region,
                "signal_type": "co2_moer",
                "horizon_hours": str(min(72, max(0, round((end - start) / 3600)))),
            },
            headers={"Authorization": f"Bearer {token}"},
        )
        return _parsed(self.name, body, _watttime)


def _watttime(body: bytes) -> list[tuple[float, float]]:
    document = json.loads(body)
    if (units := document["meta"].get("units")) != "lbs_co2_per_mwh":
        raise ValueError(f"unknown units {units!r}")
    scale = _GRAMS_PER_KWH_FROM_POUNDS_PER_MWH
    return [(_time(e["point_time"]), scale * float(e["value"])) for e in document["data"]]


@dataclass(frozen=True, slots=True)
class Entsoe:
    """Day-ahead prices of the ENTSO-E transparency platform, per kWh.

    Attributes:
        domain: EIC code of the bidding zone, such as ``10Y1001A1001A82H``.
        token: Security token.
        url: Address of the API.
    """

    domain: str
    token: str = field(repr=False)
    url: str = "https://web-api.tp.entsoe.eu/api"

    @property
    def name(self) -> str:
        """Name for the cache."""
        return f"entsoe {self.domain}"

    def fetch(self, start: float, end: float) -> Signal:
        """The prices of the days that hold both times."""
        query = {
            "securityToken": self.token,
            "documentType": "A44",
            "in_Domain": self.domain,
            "out_Domain": self.domain,
            "periodStart": datetime.fromtimestamp(start, UTC).strftime("%Y%m%d%H00"),
            "periodEnd": datetime.fromtimestamp(end, UTC).strftime("%Y%m%d%H00"),
        }
        return _parsed(self.name, request(self.url, query=query), _entsoe)


def _entsoe(body: bytes) -> list[tuple[float, float]]:
    # Namespaces change with every edition of the schema; the local names do not.
    root = ET.fromstring(re.sub(rb'\sxmlns="[^"]+"', b"", body, count=1))  # noqa: S314 - no entities
    rows: dict[float, float] = {}
    for period in root.iter("Period"):
        start = _time(period.findtext("timeInterval/start", ""))
        end = _time(period.findtext("timeInterval/end", ""))
        step = 60.0 * int(re.sub(r"\D", "", period.findtext("resolution", "PT60M")))
        points = {
            int(p.findtext("position", "0")): float(p.findtext("price.amount", "nan"))
            for p in period.iter("Point")
        }
        price = points[1]
        for position in range(1, round((end - start) / step) + 1):
            price = points.get(position, price)  # a repeated price is left out
            rows[start + (position - 1) * step] = price / 1000
    return sorted(rows.items())


# Direct gCO2/kWh by fuel: round figures for US plants, not from one table. Others count as 0.
_FUEL_GRAMS = {"COL": 1000.0, "NG": 430.0, "OIL": 880.0, "OTH": 550.0}


@dataclass(frozen=True, slots=True)
class Eia:
    """Direct carbon intensity from the hourly fuel mix of the US EIA, in gCO2/kWh.

    Attributes:
        respondent: Balancing authority, such as ``CISO``.
        key: API key.
        url: Address of the API.
    """

    respondent: str
    key: str = field(repr=False)
    url: str = "https://api.eia.gov/v2"

    @property
    def name(self) -> str:
        """Name for the cache."""
        return f"eia {self.respondent}"

    def fetch(self, start: float, end: float) -> Signal:
        """The past hours between two times."""
        query = {
            "api_key": self.key,
            "frequency": "hourly",
            "data[0]": "value",
            "facets[respondent][]": self.respondent,
            "start": datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%dT%H"),
            "end": datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H"),
            "length": "5000",
        }
        body = request(f"{self.url}/electricity/rto/fuel-type-data/data/", query=query)
        return _parsed(self.name, body, _eia)


def _eia(body: bytes) -> list[tuple[float, float]]:
    energy: dict[float, float] = {}
    grams: dict[float, float] = {}
    for row in json.loads(body)["response"]["data"]:
        time, amount = _time(row["period"] + ":00Z"), max(0.0, float(row["value"] or 0.0))
        energy[time] = energy.get(time, 0.0) + amount
        factor = _FUEL_GRAMS.get(row["fueltype"], 0.0)
        grams[time] = grams.get(time, 0.0) + factor * amount
    return [(time, grams[time] / total) for time, total in sorted(energy.items()) if total > 0]


def fetch_signal(
    provider: Provider,
    window: tuple[float, float],
    *,
    cache: Path,
    fallback: Signal | None = None,
    clock: Clock = REAL_CLOCK,
) -> Signal:
    """The signal of a provider, else what it said last, else the fallback.

    Args:
        provider: Source to ask.
        window: First and last time of interest, in seconds since 1970 UTC.
        cache: Folder in which the last answer is kept.
        fallback: Signal to use when there is neither an answer nor a cached one that covers the
            start.
        clock: Clock for the age of the kept answer.

    Raises:
        SignalError: No source has the signal.
    """
    start, end = window
    file = cache / (re.sub(r"[^A-Za-z0-9-]+", "_", provider.name) + ".json")
    kept = _kept(file)
    if kept is not None and clock.wall() - kept[0] < _FRESH_SECONDS and _covers(kept[1], start):
        return kept[1]
    try:
        found = provider.fetch(start, end)
    except (SignalError, FileError) as error:
        if kept is not None and _covers(kept[1], start):
            return kept[1]
        if fallback is not None:
            return fallback
        raise SignalError(
            f"{error.message}; nothing is kept from before",
            remedy="give a static region or a file as fallback",
        ) from error
    cache.mkdir(parents=True, exist_ok=True)
    entry = [clock.wall(), found.start, found.step_seconds, found.values, found.source]
    partial = file.with_suffix(".new")
    partial.write_text(json.dumps(entry), encoding="utf-8")
    partial.replace(file)
    return found


def _covers(series: Signal, time: float) -> bool:
    return series.start <= time < series.end


def _kept(file: Path) -> tuple[float, Signal] | None:
    try:
        written, start, step, values, source = json.loads(file.read_text(encoding="utf-8"))
        return float(written), Signal(start, step, tuple(values), source)
    except (OSError, ValueError, TypeError):
        return None  # an unreadable cache is no cache


def _time(text: str) -> float:
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _parsed(name: str, body: bytes, parse: Callable[[bytes], list[tuple[float, float]]]) -> Signal:
    try:
        # Providers leave out single hours now and then.
        return Signal.from_rows(parse(body), name, most_gap_steps=3)
    except (ValueError, KeyError, TypeError, ET.ParseError) as error:
        raise SignalError(
            f"{name} answers something else than it documents: {error!r}",
            remedy="try again later; if it stays so, its API has changed",
        ) from None


def _parsed_token(name: str, body: bytes, key: str) -> str:
    try:
        return str(json.loads(body)[key])
    except (ValueError, KeyError, TypeError) as error:
        raise SignalError(f"{name} gives no token: {error!r}", remedy="check the account") from None
