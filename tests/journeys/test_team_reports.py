"""Journey: a measured command becomes a report that people send on, with charts and tables."""

import xml.etree.ElementTree as ET

import pytest

pytestmark = pytest.mark.slow


def test_a_log_becomes_charts_and_a_table(world):
    """A report has figures and no pictures, or pictures that no paper or mail takes."""
    world.node.set_load(0, world.step)
    world.joulery("measure", "--log", "energy.jsonl", "--", "sleep", "2.6")
    (world.folder / "again.jsonl").write_bytes((world.folder / "energy.jsonl").read_bytes())
    world.joulery("report", "energy.jsonl", "--html", "report.html", "--charts", "power.svg")
    assert "Power over time" in (world.folder / "report.html").read_text()
    root = ET.fromstring((world.folder / "power.svg").read_text())  # noqa: S314 - our own
    assert root.tag.endswith("svg")
    table = world.joulery("report", "energy.jsonl", "--latex", "--charts", "power.pdf")["text"]
    assert (world.folder / "power.pdf").read_bytes().startswith(b"%PDF")
    assert table.count(r"\begin{tabular}") == table.count(r"\bottomrule") >= 2
    scores = world.joulery(
        *("disclose", "energy.jsonl", "--as", "sci-ai", "--grid", "FR", "--parameters", "7B"),
        *("--embodied-kg", "1"),
    )
    assert scores["provider"]["grams_per_unit"]["billion parameters"] > 1000 / 7
    assert scores["consumer"] is None
    compared = world.joulery("compare", "energy.jsonl", "again.jsonl")["runs"]
    assert compared[0]["joules"] == pytest.approx(compared[1]["joules"])
