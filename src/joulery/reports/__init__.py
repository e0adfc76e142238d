"""Reports: charts and tables as data, shown in the terminal, as an HTML page or as a PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.reports._chart import (
        Axis as Axis,
        Chart as Chart,
        Series as Series,
        Unit as Unit,
        joules_unit as joules_unit,
        percent as percent,
        seconds_unit as seconds_unit,
    )
    from joulery.reports._cluster import (
        agent_report as agent_report,
        cluster_report as cluster_report,
    )
    from joulery.reports._disclosure import (
        DISCLOSURES as DISCLOSURES,
        Figure as Figure,
        Footprint as Footprint,
        footprint_report as footprint_report,
        phase_figure as phase_figure,
    )
    from joulery.reports._document import (
        Heading as Heading,
        Paragraph as Paragraph,
        Report as Report,
        Table as Table,
        page_style as page_style,
        table_of as table_of,
    )
    from joulery.reports._drawing import draw as draw, write_png as write_png
    from joulery.reports._frontier import frontier_report as frontier_report
    from joulery.reports._jobs import (
        ElectricityPrice as ElectricityPrice,
        electricity_price as electricity_price,
        energy_text as energy_text,
        job_report as job_report,
        objective_words as objective_words,
        overview_report as overview_report,
        saved_text as saved_text,
        store_report as store_report,
    )
    from joulery.reports._pipeline import (
        PipelineView as PipelineView,
        pipeline_report as pipeline_report,
    )
    from joulery.reports._recommendation import recommendation_report as recommendation_report
    from joulery.reports._run import Heartbeat as Heartbeat, run_report as run_report
    from joulery.reports._sweep import sweep_report as sweep_report
    from joulery.reports._terminal import Terminal as Terminal, table_text as table_text


__getattr__, __dir__ = lazy(__name__)
