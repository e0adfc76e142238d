"""The examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "src"
FRAMEWORKS = ROOT / "joulery" / "integrations"  # their examples need models


def with_examples():
    """Modules whose docstrings have examples."""
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in ROOT.rglob("*.py")
        if ">>> " in path.read_text(encoding="utf-8") and FRAMEWORKS not in path.parents
    )


@pytest.mark.parametrize("name", with_examples())
def test_examples_give_what_they_say(name):
    """If this fails, the reference shows something that is not so."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
