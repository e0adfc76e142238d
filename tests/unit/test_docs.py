"""The examples in the documentation run as they stand."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        "frontiers.md",
        "simulation.md",
        "recurring.md",
        "recurring-runs.md",
        "pipelines.md",
        "storage.md",
        "predict.md",
        "cluster.md",
        "grid.md",
        "scale.md",
    ],
)
def test_the_first_example_of_a_page_runs(page):
    """If this fails, a reader who copies the example gets an error."""
    code = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))[0]
    exec(compile(code, page, "exec"), {})  # noqa: S102 - our own documentation
