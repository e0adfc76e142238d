"""What every HTML page of ours has in common: one file, light and dark, no scripts, no fetching."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template


def html_document(title: str, origin: str, package: str, **parts: str) -> str:
    """A whole page around the ``body.html`` and ``style.css`` of ``package``.

    Args:
        title: What the page is about, as plain text.
        origin: How its figures came about, such as ``simulated``, as plain text.
        package: Where the two files are.
        parts: What to put into the body, as HTML.
    """
    own = resources.files(package)
    body = Template(own.joinpath("body.html").read_text("utf-8")).substitute(parts)
    opening = resources.files("joulery.cli").joinpath("page.html").read_text("utf-8")
    return Template(opening).substitute(
        title=escape(title),
        origin=escape(origin),
        style=own.joinpath("style.css").read_text("utf-8").rstrip(),
        body=body.rstrip(),
    )
