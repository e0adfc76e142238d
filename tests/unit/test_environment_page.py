"""The page of environment variables."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_variable_is_on_the_page():
    """A variable that no page names can only be found in the source."""
    page = (ROOT / "docs/reference/environment.md").read_text("utf-8")
    sources = (ROOT / "src").rglob("*.py")
    quoted = re.compile(r'"(JOULERY_[A-Z_]+|ELECTRICITYMAPS_[A-Z]+|WATTTIME_[A-Z]+|ENTSOE_[A-Z]+)"')
    variables = {name for path in sources for name in quoted.findall(path.read_text("utf-8"))}
    assert variables
    assert {name for name in variables if f"`{name}`" not in page} == set()
