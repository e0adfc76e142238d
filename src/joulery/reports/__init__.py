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
    from joulery.reports._disclosure import DISCLOSURES as DISCLOSURES
    from joulery.reports._document import (
        Block as Block,
        Heading as Heading,
        Paragraph as Paragraph,
        Report as Report,
        Table as Table,
        page_style as page_style,
        table_of as table_of,
    )
    from joulery.reports._drawing import Drawing as Drawing, draw as draw, write_png as write_png
    from joulery.reports._footprint import (
        Figure as Figure,
        Footprint as Footprint,
        footprint_report as footprint_report,
        jobs_footprint as jobs_footprint,
        log_footprint as log_footprint,
        usage_report as usage_report,
    )
    from joulery.reports._frontier import (
        draw_before_after as draw_before_after,
        frontier_report as frontier_report,
    )
    from joulery.reports._job_charts import jobs_chart as jobs_chart
    from joulery.reports._jobs import job_report as job_report
    from joulery.reports._logged_runs import (
        comparison_report as comparison_report,
        logged_run_report as logged_run_report,
        power_chart as power_chart,
        run_state as run_state,
        runs_table as runs_table,
        slowdown_text as slowdown_text,
    )
    from joulery.reports._overview import (
        Measure as Measure,
        OtherRuns as OtherRuns,
        OverviewRange as OverviewRange,
        all_time as all_time,
        overview_report as overview_report,
        running_report as running_report,
        store_report as store_report,
        suitable_unit as suitable_unit,
    )
    from joulery.reports._pipeline import (
        PipelineView as PipelineView,
        pipeline_report as pipeline_report,
    )
    from joulery.reports._recommendation import recommendation_report as recommendation_report
    from joulery.reports._run import run_report as run_report
    from joulery.reports._sweep import sweep_report as sweep_report
    from joulery.reports._terminal import Terminal as Terminal, table_text as table_text
    from joulery.reports._text import (
        count_text as count_text,
        date_text as date_text,
        describe_objective as describe_objective,
        energy_text as energy_text,
        saved_text as saved_text,
        simulated_text as simulated_text,
    )


__getattr__, __dir__ = lazy(__name__)
