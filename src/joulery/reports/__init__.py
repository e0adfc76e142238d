"""Reports: charts and tables as data, shown in the terminal, as an HTML page or as a PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.reports._chart import (
        Axis,
        Bar,
        Chart,
        Gantt,
        Series,
        Unit,
        joules_unit,
        round_ticks,
        seconds_unit,
    )
    from joulery.reports._cluster import cluster_report
    from joulery.reports._document import (
        Details,
        Grid,
        Heading,
        HeatLegend,
        Paragraph,
        Report,
        Table,
        html_page,
    )
    from joulery.reports._drawing import draw, palette_css, series_symbol, svg, write_png
    from joulery.reports._frontier import frontier_chart, frontier_report, frontier_table
    from joulery.reports._pipeline import PipelineView, pipeline_report
    from joulery.reports._recommendation import recommendation_chart, recommendation_report
    from joulery.reports._sweep import sweep_charts, sweep_plan_text, sweep_report
    from joulery.reports._terminal import Terminal, plot, table_text

__all__ = [
    "Axis",
    "Bar",
    "Chart",
    "Details",
    "Gantt",
    "Grid",
    "Heading",
    "HeatLegend",
    "Paragraph",
    "PipelineView",
    "Report",
    "Series",
    "Table",
    "Terminal",
    "Unit",
    "cluster_report",
    "draw",
    "frontier_chart",
    "frontier_report",
    "frontier_table",
    "html_page",
    "joules_unit",
    "palette_css",
    "pipeline_report",
    "plot",
    "recommendation_chart",
    "recommendation_report",
    "round_ticks",
    "seconds_unit",
    "series_symbol",
    "svg",
    "sweep_charts",
    "sweep_plan_text",
    "sweep_report",
    "table_text",
    "write_png",
]

__getattr__ = lazy(__name__)
