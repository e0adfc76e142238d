"""Examples of documentation pages, run by ``scripts/run_pages.py``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def complaints(page: str) -> list[str]:
    """What differs from what a page shows, or fails. Changes this process: call it in another."""
    spec = importlib.util.spec_from_file_location("run_pages", ROOT / "scripts" / "run_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    complaints_of_page: list[str] = module.run_page(ROOT / page).complaints
    return complaints_of_page
