"""Constants that ship with the package: fitted by ``scripts/fit_predict.py``, read on first use."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from joulery.predict._bayes import Belief


@cache
def fitted_belief(name: str) -> Belief:
    """A fitted belief by name."""
    entry = fitted()["beliefs"][name]
    return Belief(np.array(entry["mean"]), np.array(entry["covariance"]))


def fitted_on(name: str) -> frozenset[str]:
    """Devices or systems whose measurements stand behind a belief."""
    return frozenset(fitted()["beliefs"].get(name, {}).get("fitted_on", ()))


@cache
def fitted() -> dict[str, Any]:
    """The whole document."""
    text = files(__package__).joinpath("fitted.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
