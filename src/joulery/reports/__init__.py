"""Reports: charts and tables as data, shown in the terminal, as an HTML page or as a PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.reports._chart import (
        Axis,
        Chart,
        Series,
        Unit,
        joules_unit,
        percent,
        seconds_unit,
    )
    from joulery.reports._cluster import agent_report, cluster_report
    from joulery.reports._disclosure import (
        DISCLOSURES,
        Figure,
        Footprint,
        footprint_report,
        phase_figure,
    )
    from joulery.reports._document import (
        Heading,
        Paragraph,
        Report,
        Table,
        page_style,
        table_of,
    )
    from joulery.reports._drawing import draw, write_png
    from joulery.reports._frontier import frontier_report
    from joulery.reports._jobs import (
        ElectricityPrice,
        electricity_price,
        energy_text,
        job_report,
        objective_words,
        overview_report,
        saved_text,
        store_report,
    )
    from joulery.reports._pipeline import PipelineView, pipeline_report
    from joulery.reports._recommendation import recommendation_report
    from joulery.reports._run import Heartbeat, run_report
    from joulery.reports._sweep import sweep_report
    from joulery.reports._terminal import Terminal, table_text

__all__ = [
    "DISCLOSURES",
    "Axis",
    "Chart",
    "ElectricityPrice",
    "Figure",
    "Footprint",
    "Heading",
    "Heartbeat",
    "Paragraph",
    "PipelineView",
    "Report",
    "Series",
    "Table",
    "Terminal",
    "Unit",
    "agent_report",
    "cluster_report",
    "draw",
    "electricity_price",
    "energy_text",
    "footprint_report",
    "frontier_report",
    "job_report",
    "joules_unit",
    "objective_words",
    "overview_report",
    "page_style",
    "percent",
    "phase_figure",
    "pipeline_report",
    "recommendation_report",
    "run_report",
    "saved_text",
    "seconds_unit",
    "store_report",
    "sweep_report",
    "table_of",
    "table_text",
    "write_png",
]

__getattr__ = lazy(__name__)
