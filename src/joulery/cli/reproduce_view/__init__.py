"""Draw the figures of a reproduced publication, and one page about them."""

from joulery.cli.reproduce_view.drawings import draw
from joulery.cli.reproduce_view.html import Shown, html_page
from joulery.cli.reproduce_view.words import claim_rows, headline

__all__ = ["Shown", "claim_rows", "draw", "headline", "html_page"]
