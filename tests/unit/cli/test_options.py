import errno
import os

import pytest

from joulery.cli.options import (
    count,
    duration,
    limits,
    listed,
    number,
    path,
    whole,
    write_file,
)
from joulery.errors import FileError, InvalidValueError


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("100:300:50", (300.0, 250.0, 200.0, 150.0, 100.0)),
        ("100:290:50", (250.0, 200.0, 150.0, 100.0)),
        ("150", (150.0,)),
        ("150:150:10", (150.0,)),
        ("100,250,100", (250.0, 100.0)),
        ("0.1:0.4:0.1", pytest.approx((0.4, 0.3, 0.2, 0.1))),
    ],
)
def test_limits_as_people_write_them(text, watts):
    """Ranges include their end where a step reaches it; lists are sorted and freed of repeats."""
    assert limits(text) == watts


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a", "100:200", "1:2:3:4", "200:100:10", "100:200:0", "100:200:-5"),
        *("-100:200:50", "nan", "inf", "100:inf:10", "0", "1:1e9:1", "100;200"),
    ],
)
def test_nonsense_is_refused_with_a_remedy(text):
    """A bad range must end in one line, not in a traceback or an endless sweep."""
    with pytest.raises(InvalidValueError) as raised:
        limits(text)
    assert "\n" not in str(raised.value)


def test_swapped_ends_are_put_right_in_the_remedy():
    """The most likely slip has an exact remedy."""
    with pytest.raises(InvalidValueError) as raised:
        limits("300:100:25")
    assert "100:300:25" in str(raised.value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((whole(1, 5), text) for text in ("", "0", "6", "1.5", "x", "nan", "1e3")),
        *((number(0.0, 1.0), text) for text in ("", "-0.1", "1.1", "nan", "inf", "x")),
        *((number(), text) for text in ("nan", "inf", "1_")),
        *((listed(whole(1, 5)), text) for text in ("1,x", "1,9")),
        (path, ""),
        *((read, text) for read in (duration, count) for text in ("", "x", "-1h", "5q", "nan")),
    ],
)
def test_values_out_of_range_are_refused(read, text):
    """A bad value must end in one line, not in a traceback or in nonsense hours later."""
    with pytest.raises(InvalidValueError):
        read(text)


def test_values_are_read_as_people_write_them():
    """If this fails, a documented way to write a value is refused."""
    assert (whole(-1, 5)("-1"), number(0.0)("2"), listed(whole(1, 5))("1, 5")) == (-1, 2.0, [1, 5])
    assert (duration("2h"), count("3k")) == (7200.0, 3000.0)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    """If this fails, a page that did not fit is an empty file, and the one before is lost."""
    page = tmp_path / "page.html"
    page.write_text("old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("joulery.files.write_all", full)
        with pytest.raises(FileError, match="No space left") as caught:
            write_file(page, "new", "--html")
    assert "--html" in caught.value.remedy
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


def test_pipes_and_links_stay_what_they_are(tmp_path):
    """If this fails, `--html /dev/stdout` replaces the device, or a link its file's name."""
    link, page = tmp_path / "link", tmp_path / "page.html"
    link.symlink_to(page)
    write_file(link, "text", "--html")
    assert link.is_symlink()
    assert page.read_text() == "text"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "text", "--html")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert pipe.is_fifo()
