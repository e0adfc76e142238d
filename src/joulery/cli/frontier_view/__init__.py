"""Draw a frontier: in the terminal, as a self-contained HTML page, as a PNG."""

from joulery.cli.frontier_view.axis import Unit, joules_unit, seconds_unit
from joulery.cli.frontier_view.html import html_page
from joulery.cli.frontier_view.png import write_png
from joulery.cli.frontier_view.terminal import Canvas, terminal_plot
from joulery.cli.frontier_view.view import FrontierView, Kind, Mark

__all__ = [
    "Canvas",
    "FrontierView",
    "Kind",
    "Mark",
    "Unit",
    "html_page",
    "joules_unit",
    "seconds_unit",
    "terminal_plot",
    "write_png",
]
