import json
import sys

import pytest
from papers.zeus.claims import Claim, claim_rows, headline, span_text
from papers.zeus.drawings import draw
from papers.zeus.output import WrittenFigure, html_page, new_folder, write_reproduction
from papers.zeus.tables import Figure, Table

from joulery.errors import FileError


def _potential(gpus=("v100",)):
    columns = ("gpu", "workload", "default_batch_size", "batch_size_only", "limit_only", "joint")
    rows = [
        dict(zip(columns, (gpu, load, 32, 0.9, 0.8, 0.7), strict=True))
        for gpu in gpus
        for load in ("squad", "own<job>")
    ]
    return Figure.of("fig01_15_savings_potential", (1, 15), "Energy", rows, "A remark.")


CLAIM = Claim(
    "Fig. 6/23",
    "energy saved in the last five recurrences",
    "v100",
    "%",
    (15.3, 75.8),
    {"zeus": (17.0, 74.0), "joulery": (18.0, 75.0)},
    0.4,
)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        ((15.3, 75.8), "15.3 to 75.8 %"),
        ((-60.1, 2.97), "−60.1 to 2.97 %"),
        ((25093.8, 25093.8), "25,094 %"),
        (None, "–"),
    ],
)
def test_ranges_read_well(span, text):
    """People would stumble over signs and digits."""
    assert span_text(span, "%") == text


def test_claims_show_published_beside_ours():
    """The one comparison that people came for would be missing."""
    (row,) = claim_rows([CLAIM])
    assert row[3:6] == ("15.3 to 75.8 %", "17.0 to 74.0 %", "18.0 to 75.0 %")
    assert row[-1] == "0.40 %"


def test_the_headline_says_what_against_what_and_how_sure():
    """A reader would see a percentage of nobody knows what."""
    ((figure, words),) = headline([CLAIM], 100)
    assert figure == "18.0 to 75.0 %"
    for part in ("Default", "joulery", "zeus here: 17.0 to 74.0 %", "100 seeds", "0.40 points"):
        assert part in words


def test_without_policies_there_is_no_headline():
    """A run of Fig. 1 alone would fail."""
    claim = Claim("Fig. 1/15", "x", "v100", "%", None, {"traces": (1.0, 2.0)})
    assert headline([claim], 10) == []
    assert claim_rows([claim])[0][4] == "1.00 to 2.00 %"


def test_a_drawing_is_a_picture(tmp_path):
    """The folder would lack its picture."""
    (path,) = draw(_potential(("v100", "a40")), tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_drawings_are_the_same_every_time(tmp_path):
    """Two runs could not be compared by their files."""
    first = draw(_potential(), tmp_path)[0].read_bytes()
    assert draw(_potential(), tmp_path)[0].read_bytes() == first


def test_tables_without_a_drawing_are_left_as_tables(tmp_path):
    """The table of optima would fail for want of a picture."""
    assert draw(Figure("optima", (), "", (Table("optima", ()),)), tmp_path) == []


def test_the_page_names_everything_and_escapes_it():
    """A dataset's name could break the page."""
    written = [WrittenFigure(_potential(), ("x.png",), ("fig01_15_savings_potential.csv",))]
    page = html_page(written, [CLAIM], ["P100: summary_power_p100.csv"], 7)
    assert "own&lt;job&gt;" in page
    assert "own<job>" not in page
    assert 'src="x.png"' in page
    assert 'href="fig01_15_savings_potential.csv"' in page
    assert "summary_power_p100.csv" in page
    assert page.index("18.0 to 75.0 %") < page.index("Fig. 1/15")


def test_everything_is_written_and_summarised(tmp_path):
    """The folder would lack what the summary promises."""
    document, _ = write_reproduction([_potential()], tmp_path, 3, ["P100"], ["a remark"])
    assert json.loads((tmp_path / "reproduce.json").read_text()) == json.loads(json.dumps(document))
    for figure in document["figures"]:
        for name in figure["files"]:
            assert (tmp_path / name).stat().st_size > 0
    assert (tmp_path / "index.html").exists()
    assert document["missing"] == ["P100"]


def test_the_folder_appears_when_all_is_done(tmp_path):
    """Half of a result could be taken for all of it."""
    out = tmp_path / "out"
    with new_folder(out) as folder:
        (folder / "reproduce.json").write_text("{}")
        assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_leaves_the_earlier_result(tmp_path):
    """An interrupted run would destroy what was there."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "reproduce.json").write_text("old")

    def interrupted():
        with new_folder(out) as folder:
            (folder / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (out / "reproduce.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_new_result_replaces_the_earlier_one(tmp_path):
    """Figures of two runs would lie side by side."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "reproduce.json").write_text("old")
    (out / "stale.png").write_text("old")
    with new_folder(out) as folder:
        (folder / "reproduce.json").write_text("new")
    assert [path.name for path in out.iterdir()] == ["reproduce.json"]


def test_a_folder_with_other_things_is_not_touched(tmp_path):
    """Somebody's files would be deleted."""
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FileError, match="holds other things"), new_folder(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").exists()


def test_without_matplotlib_there_are_tables_and_a_page(tmp_path, monkeypatch):
    """If this fails, a plain `pip install` cannot reproduce anything."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "papers.zeus.drawings")
    document, _ = write_reproduction([_potential()], tmp_path, 3, [], [])
    assert "matplotlib" in document["remarks"][0]
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".json", ".html"}
