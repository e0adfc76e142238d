"""Clients of recurring runs, which decide by and report to a store on this machine or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.client._backend import (
        DEFAULT_TEAM as DEFAULT_TEAM,
        STORE_VARIABLE as STORE_VARIABLE,
        DecisionBackend as DecisionBackend,
        is_server as is_server,
        open_backend as open_backend,
        read_token as read_token,
        team_of as team_of,
        write_token as write_token,
    )
    from joulery.client._history import (
        all_jobs as all_jobs,
        job_summary as job_summary,
        team_usage as team_usage,
        usage as usage,
    )
    from joulery.client._outbox import RunMeasurements as RunMeasurements
    from joulery.client._resilient import ResilientClient as ResilientClient, put_run as put_run
    from joulery.client._transport import (
        MOST_PER_PAGE as MOST_PER_PAGE,
        DecisionPage as DecisionPage,
        EnergyPage as EnergyPage,
        JobPage as JobPage,
        OutcomeReport as OutcomeReport,
        PauseState as PauseState,
        ProblemDetails as ProblemDetails,
        ProfileList as ProfileList,
        ProgressReport as ProgressReport,
        RunPage as RunPage,
        status_of as status_of,
    )


__getattr__, __dir__ = lazy(__name__)
