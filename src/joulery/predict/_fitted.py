"""Beliefs that ship with the package: fitted by ``scripts/fit_predict.py``, read on first use."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import numpy as np

from joulery.predict._bayes import Belief


@cache
def belief(name: str) -> Belief:
    """A fitted belief by name."""
    document = json.loads(files(__package__).joinpath("fitted.json").read_text(encoding="utf-8"))
    entry = document["beliefs"][name]
    return Belief(np.array(entry["mean"]), np.array(entry["covariance"]))
