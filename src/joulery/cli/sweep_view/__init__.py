"""Show a sweep: as text, as a page with six charts, as a PNG."""

from joulery.cli.sweep_view.charts import Chart, Series, charts
from joulery.cli.sweep_view.html import html_page
from joulery.cli.sweep_view.png import write_png
from joulery.cli.sweep_view.text import plan_text, sweep_text

__all__ = ["Chart", "Series", "charts", "html_page", "plan_text", "sweep_text", "write_png"]
