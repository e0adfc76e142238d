"""PyTorch for tests, imported by the first that uses it.

Every worker of a parallel run imports every test file, and most run none that needs torch, whose
import takes seconds and 200 MB. A test that uses it where it is missing is skipped.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest


class _Module:
    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_pytest", "_mock", "pytest")):  # asked when files are collected
            raise AttributeError(name)
        return getattr(pytest.importorskip("torch"), name)


torch: Any = _Module()
# For tests whose processes import torch: skipped where it is missing, unless it has to be there.
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None and os.environ.get("CI") != "true",
    reason="torch is not installed",
)
