import pytest

from joulery.cli import page, picture
from joulery.errors import FileError, MissingExtraError


def test_every_page_is_one_file_in_light_and_dark():
    """A page would need the network, or glare at night."""
    text = page.html_document("T", "simulated", "joulery.cli.frontier_view", **_parts())
    assert text.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text
    assert "http" not in text.split("<body>")[0]
    assert text.count("<h1>") == 1


def test_titles_are_escaped():
    """A job's name could smuggle markup into the page."""
    text = page.html_document("<b>&", "<i>", "joulery.cli.frontier_view", **_parts())
    assert "<h1>&lt;b&gt;&amp;</h1>" in text
    assert "every figure here is &lt;i&gt;" in text


def _parts():
    names = ("objective", "rows", "sources", "summary", "svg", "versus")
    return dict.fromkeys(names, "")


def test_pictures_without_matplotlib_name_the_extra(monkeypatch):
    """The user would see an ImportError."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError) as error:
        picture.new_figure(1, 1)
    assert "joulery[plots]" in error.value.remedy


def test_a_picture_that_cannot_be_written_is_a_file_error(tmp_path):
    """A full disk would end in a traceback."""
    figure = picture.new_figure(1, 1)
    with pytest.raises(FileError, match="cannot write"):
        picture.write_figure(figure, tmp_path / "absent" / "x.png")
