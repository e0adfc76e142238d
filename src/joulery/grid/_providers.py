"""Providers of carbon intensity and prices over HTTP, with a cache and a fallback."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import FileError, InvalidValueError, flaw_text
from joulery.files import cache_folder, write_atomic
from joulery.grid._http import SignalError, request, utc_seconds
from joulery.grid._signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_GRAMS_PER_KWH_FROM_POUNDS_PER_MWH = 0.45359237
# A kept answer younger than this is used without asking.
_FRESH_SECONDS = 900.0


class Provider:
    """A source of a signal over HTTP: ``name`` is unique enough for a cache file."""

    name: str

    def fetch(self, start: float, end: float) -> Signal:
        """The signal between two times, as far as the provider has it."""
        try:
            # Providers leave out single hours now and then.
            return Signal.from_rows(self._rows(start, end), self.name, most_gap_steps=3)
        except (ValueError, KeyError, TypeError, ET.ParseError) as error:
            raise SignalError(
                f"{self.name} does not answer as it documents: {flaw_text(error)}",
                remedy="try again later; if it stays so, its API has changed",
            ) from None

    def _rows(self, start: float, end: float) -> list[tuple[float, float]]:
        """Times and values, as the provider answers."""
        raise NotImplementedError


class ElectricityMaps(Provider):
    """Carbon-intensity forecast of electricitymaps.com, in gCO2/kWh.

    Args:
        zone: Zone key, such as ``US-CAL-CISO``.
        token: API token.
        url: Address of the API.
    """

    def __init__(
        self, zone: str, token: str, url: str = "https://api.electricitymaps.com/v3"
    ) -> None:
        self.name = f"electricity-maps {zone}"
        self._zone, self._token, self._url = zone, token, url

    def _rows(self, start: float, end: float) -> list[tuple[float, float]]:  # noqa: ARG002 - it decides
        body = request(
            f"{self._url}/carbon-intensity/forecast",
            query={"zone": self._zone},
            headers={"auth-token": self._token},
        )
        entries = json.loads(body)["forecast"]
        return [(utc_seconds(e["datetime"]), float(e["carbonIntensity"])) for e in entries]


class WattTime(Provider):
    """Marginal-emissions forecast of watttime.org, in gCO2/kWh.

    Args:
        region: Region, such as ``CAISO_NORTH``.
        user: User name.
        password: Password.
        url: Address of the API.
    """

    def __init__(
        self, region: str, user: str, password: str, url: str = "https://api.watttime.org"
    ) -> None:
        self.name = f"watttime {region}"
        self._region, self._login, self._url = region, f"{user}:{password}", url

    def _rows(self, start: float, end: float) -> list[tuple[float, float]]:
        login = base64.b64encode(self._login.encode()).decode()
        body = request(f"{self._url}/login", headers={"Authorization": f"Basic {login}"})
        token = json.loads(body)["token"]
        body = request(
            f"{self._url}/v3/forecast",
            query={
                "region": self._region,
                "signal_type": "co2_moer",
                "horizon_hours": str(min(72, max(0, round((end - start) / 3600)))),
            },
            headers={"Authorization": f"Bearer {token}"},
        )
        document = json.loads(body)
        if (units := document["meta"].get("units")) != "lbs_co2_per_mwh":
            raise ValueError(f"unknown units {units!r}")
        scale = _GRAMS_PER_KWH_FROM_POUNDS_PER_MWH
        return [(utc_seconds(e["point_time"]), scale * float(e["value"])) for e in document["data"]]


class Entsoe(Provider):
    """Day-ahead prices of the ENTSO-E transparency platform, per kWh.

    Args:
        domain: EIC code of the bidding zone, such as ``10Y1001A1001A82H``.
        token: Security token.
        url: Address of the API.
    """

    URL = "https://web-api.tp.entsoe.eu/api"

    def __init__(self, domain: str, token: str, url: str = URL) -> None:
        self.name = f"entsoe {domain}"
        self._domain, self._token, self._url = domain, token, url

    def _rows(self, start: float, end: float) -> list[tuple[float, float]]:
        query = {
            "securityToken": self._token,
            "documentType": "A44",
            "in_Domain": self._domain,
            "out_Domain": self._domain,
            "periodStart": _hour(start),
            "periodEnd": _hour(end),
        }
        rows: dict[float, float] = {}
        for _, time, price in _entsoe_rows(request(self._url, query=query), "price.amount"):
            rows[time] = price / 1000
        return sorted(rows.items())


# Direct gCO2/kWh by ENTSO-E's types of production: round figures for European plants, as for the
# US below. Others count as 0.
_PRODUCTION_GRAMS = {
    "B02": 1100.0, "B03": 900.0, "B04": 400.0, "B05": 900.0, "B06": 750.0, "B07": 1000.0,
    "B08": 1050.0, "B17": 500.0, "B20": 500.0,
}  # fmt: skip
# Areas by country, of which ENTSO-E publishes both prices and production.
_AREAS = {
    "AT": "10YAT-APG------L", "BE": "10YBE----------2", "CH": "10YCH-SWISSGRIDZ",
    "DE": "10Y1001A1001A82H", "ES": "10YES-REE------0", "FI": "10YFI-1--------U",
    "FR": "10YFR-RTE------C", "NL": "10YNL----------L", "PL": "10YPL-AREA-----S",
    "PT": "10YPT-REN------W",
}  # fmt: skip


class EntsoeProduction(Provider):
    """Direct carbon intensity of past hours, from ENTSO-E's production by type, in gCO2/kWh.

    Args:
        domain: EIC code of the area, such as ``10YFR-RTE------C``.
        token: Security token.
        url: Address of the API.
    """

    def __init__(self, domain: str, token: str, url: str = Entsoe.URL) -> None:
        self.name = f"entsoe production {domain}"
        self._domain, self._token, self._url = domain, token, url

    def _rows(self, start: float, end: float) -> list[tuple[float, float]]:
        query = {
            "securityToken": self._token,
            "documentType": "A75",
            "processType": "A16",
            "in_Domain": self._domain,
            "periodStart": _hour(start),
            "periodEnd": _hour(end),
        }
        energy, grams = defaultdict[float, float](float), defaultdict[float, float](float)
        for kind, time, megawatts in _entsoe_rows(request(self._url, query=query), "quantity"):
            energy[time] += megawatts
            grams[time] += _PRODUCTION_GRAMS.get(kind, 0.0) * megawatts
        return [(time, grams[time] / total) for time, total in sorted(energy.items()) if total > 0]


def _hour(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y%m%d%H00")


def _entsoe_rows(body: bytes, value: str) -> Iterator[tuple[str, float, float]]:
    """Type of production, time and value of every position of a document, repeated ones too."""
    # Namespaces change with every edition of the schema; the local names do not.
    plain = re.sub(rb'\sxmlns="[^"]+"', b"", body, count=1)
    for series in ET.fromstring(plain).iter("TimeSeries"):  # noqa: S314 - no entities
        if series.find("outBiddingZone_Domain.mRID") is not None and value == "quantity":
            continue  # what pumps take, not what plants give
        kind = series.findtext("MktPSRType/psrType", "")
        for period in series.iter("Period"):
            start = utc_seconds(period.findtext("timeInterval/start", ""))
            end = utc_seconds(period.findtext("timeInterval/end", ""))
            step = 60.0 * int(re.sub(r"\D", "", period.findtext("resolution", "PT60M")))
            points = {
                int(p.findtext("position", "0")): float(p.findtext(value, "nan"))
                for p in period.iter("Point")
            }
            amount = points[1]
            for position in range(1, round((end - start) / step) + 1):
                amount = points.get(position, amount)  # a repeated value is left out
                yield kind, start + (position - 1) * step, amount


# Direct gCO2/kWh by fuel: round figures for US plants, not from one table. Others count as 0.
_FUEL_GRAMS = {"COL": 1000.0, "NG": 430.0, "OIL": 880.0, "OTH": 550.0}


class Eia(Provider):
    """Direct carbon intensity of past hours, from the fuel mix of the US EIA, in gCO2/kWh.

    Args:
        respondent: Balancing authority, such as ``CISO``.
        key: API key.
        url: Address of the API.
    """

    def __init__(self, respondent: str, key: str, url: str = "https://api.eia.gov/v2") -> None:
        self.name = f"eia {respondent}"
        self._respondent, self._key, self._url = respondent, key, url

    def _rows(self, start: float, end: float) -> list[tuple[float, float]]:
        query = {
            "api_key": self._key,
            "frequency": "hourly",
            "data[0]": "value",
            "facets[respondent][]": self._respondent,
            "start": datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%dT%H"),
            "end": datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%dT%H"),
            "length": "5000",
        }
        body = request(f"{self._url}/electricity/rto/fuel-type-data/data/", query=query)
        energy, grams = defaultdict[float, float](float), defaultdict[float, float](float)
        for row in json.loads(body)["response"]["data"]:
            time = utc_seconds(row["period"] + ":00Z")
            amount = max(0.0, float(row["value"] or 0.0))
            energy[time] += amount
            grams[time] += _FUEL_GRAMS.get(row["fueltype"], 0.0) * amount
        return [(time, grams[time] / total) for time, total in sorted(energy.items()) if total > 0]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A provider by its name on the command line.

    Attributes:
        make: Class of the provider.
        keys: Variables of the environment with its credentials.
        hours: First and last hour of interest, from now.
    """

    make: Callable[..., Provider]
    keys: tuple[str, ...]
    hours: tuple[float, float]


# Older figures say nothing about now; by hand: ENTSO-E and EIA publish within some hours.
_LATEST_SECONDS = 12 * 3600.0
_DAY_AHEAD, _DAY_BEFORE = (0.0, 24.0), (-24.0, 0.0)
_KINDS = {
    "electricitymaps": _Kind(ElectricityMaps, ("ELECTRICITYMAPS_TOKEN",), _DAY_AHEAD),
    "watttime": _Kind(WattTime, ("WATTTIME_USER", "WATTTIME_PASSWORD"), _DAY_AHEAD),
    "entsoe": _Kind(EntsoeProduction, ("ENTSOE_TOKEN",), _DAY_BEFORE),
    "entsoe-prices": _Kind(Entsoe, ("ENTSOE_TOKEN",), _DAY_AHEAD),
    "eia": _Kind(Eia, ("EIA_API_KEY",), _DAY_BEFORE),
}


def provider_signal(
    source: str, environ: Mapping[str, str] | None = None, clock: Clock = REAL_CLOCK
) -> Signal | None:
    """The signal of a provider that a text such as ``electricitymaps:DE`` names; else None.

    Keys come from the environment: ``ELECTRICITYMAPS_TOKEN``, ``WATTTIME_USER`` and
    ``WATTTIME_PASSWORD``, ``ENTSOE_TOKEN``, ``EIA_API_KEY``. A variable such as
    ``ELECTRICITYMAPS_URL`` names another address, of a proxy say.

    Raises:
        InvalidValueError: A key is missing, or there is no such provider.
        SignalError: The provider does not answer, and nothing is kept from before.
    """
    name, separator, region = source.partition(":")
    if not separator or name.upper() in {"C", "D"}:  # a path of another system
        return None
    kind = _KINDS.get(name)
    if kind is None or not region:
        raise InvalidValueError(
            f"no provider {source!r}", remedy=f"use one of {', '.join(_KINDS)}, with a region"
        )
    environ = os.environ if environ is None else environ
    missing = [key for key in kind.keys if not environ.get(key)]
    if missing:
        raise InvalidValueError(f"{name} needs a key", remedy=f"export {missing[0]}=…")
    area = _AREAS.get(region, region) if name.startswith("entsoe") else region
    url = environ.get(f"{name.split('-')[0].upper()}_URL")
    options = {"url": url} if url else {}
    provider = kind.make(area, *(environ[key] for key in kind.keys), **options)
    now = clock.wall()
    window = now + 3600 * kind.hours[0], now + 3600 * kind.hours[1]
    signal = fetch_signal(provider, window, cache=cache_folder() / "grid", clock=clock)
    # Past hours are published late: the last one counts until there is another.
    late = max(0, math.ceil((now + signal.step_seconds - signal.end) / signal.step_seconds))
    if late * signal.step_seconds > _LATEST_SECONDS:
        raise SignalError(
            f"{provider.name} ends {(now - signal.end) / 3600:.0f} h ago",
            remedy="check the region and the provider's status page",
        )
    return replace(signal, values=signal.values + signal.values[-1:] * late)


def fetch_signal(
    provider: Provider,
    window: tuple[float, float],
    *,
    cache: Path,
    fallback: Signal | None = None,
    clock: Clock = REAL_CLOCK,
) -> Signal:
    """The signal of a provider, else its last answer, else the fallback.

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
    cached = _read_cache(file)
    if cached is not None and not cached[1].start <= start < cached[1].end:
        cached = None
    if cached is not None and clock.wall() - cached[0] < _FRESH_SECONDS:
        return cached[1]
    try:
        signal = provider.fetch(start, end)
    except (SignalError, FileError) as error:
        substitute = fallback if cached is None else cached[1]
        if substitute is not None:
            return substitute
        raise SignalError(
            f"{error.message}; nothing is kept from before",
            remedy="give a static region or a file as fallback",
        ) from error
    cache.mkdir(parents=True, exist_ok=True)
    entry = [clock.wall(), signal.start, signal.step_seconds, signal.values, signal.source]
    write_atomic(file, json.dumps(entry).encode())
    return signal


def _read_cache(file: Path) -> tuple[float, Signal] | None:
    try:
        written, start, step, values, source = json.loads(file.read_text(encoding="utf-8"))
        return float(written), Signal(start, step, tuple(values), source)
    except (OSError, ValueError, TypeError):
        return None  # an unreadable cache is no cache
