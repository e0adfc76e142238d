"""Providers of carbon intensity and prices over HTTP, with a cache and a fallback."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from joulery.clock import REAL_CLOCK, Clock
from joulery.errors import FileError
from joulery.files import write_atomic
from joulery.grid._http import SignalError, request, utc_seconds
from joulery.grid._signal import Signal

if TYPE_CHECKING:
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
                f"{self.name} does not answer as it documents: {error!r}",
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

    def __init__(
        self, domain: str, token: str, url: str = "https://web-api.tp.entsoe.eu/api"
    ) -> None:
        self.name = f"entsoe {domain}"
        self._domain, self._token, self._url = domain, token, url

    def _rows(self, start: float, end: float) -> list[tuple[float, float]]:
        query = {
            "securityToken": self._token,
            "documentType": "A44",
            "in_Domain": self._domain,
            "out_Domain": self._domain,
            "periodStart": datetime.fromtimestamp(start, UTC).strftime("%Y%m%d%H00"),
            "periodEnd": datetime.fromtimestamp(end, UTC).strftime("%Y%m%d%H00"),
        }
        body = request(self._url, query=query)
        # Namespaces change with every edition of the schema; the local names do not.
        plain = re.sub(rb'\sxmlns="[^"]+"', b"", body, count=1)
        rows: dict[float, float] = {}
        for period in ET.fromstring(plain).iter("Period"):  # noqa: S314 - no entities
            start = utc_seconds(period.findtext("timeInterval/start", ""))
            end = utc_seconds(period.findtext("timeInterval/end", ""))
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
