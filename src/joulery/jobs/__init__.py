"""Choose the batch size of a job that is trained again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.jobs._choice import (
        SettingChoice as SettingChoice,
        choose_setting as choose_setting,
    )
    from joulery.jobs._documents import (
        check_documents as check_documents,
        decision_page as decision_page,
        job_entry as job_entry,
    )
    from joulery.jobs._models import (
        LONGEST_BEFORE_SECONDS as LONGEST_BEFORE_SECONDS,
        MOST_LIVE_DEVICES as MOST_LIVE_DEVICES,
        BatchSize as BatchSize,
        Decision as Decision,
        DecisionEntry as DecisionEntry,
        DecisionLease as DecisionLease,
        Definition as Definition,
        EnergyEntry as EnergyEntry,
        Job as Job,
        JobEntry as JobEntry,
        LiveDevice as LiveDevice,
        LiveState as LiveState,
        Measured as Measured,
        Outcome as Outcome,
        ProfileEntry as ProfileEntry,
        Receipt as Receipt,
        Request as Request,
        parse_decision_id as parse_decision_id,
    )
    from joulery.jobs._posterior import JobBeliefs as JobBeliefs, job_beliefs as job_beliefs
    from joulery.jobs._run_history import (
        RunHistory as RunHistory,
        RunProgress as RunProgress,
        run_history as run_history,
        total_watts as total_watts,
    )
    from joulery.jobs._run_log import (
        RunCurve as RunCurve,
        RunDevice as RunDevice,
        RunEntry as RunEntry,
        run_entry as run_entry,
        thinned as thinned,
    )
    from joulery.jobs._savings import (
        OpenRun as OpenRun,
        PeriodSavings as PeriodSavings,
        PeriodUnit as PeriodUnit,
        SavingsHistory as SavingsHistory,
        open_runs as open_runs,
        savings_history as savings_history,
    )
    from joulery.jobs._service import JobService as JobService
    from joulery.jobs._summary import (
        BatchSizeSummary as BatchSizeSummary,
        JobSummary as JobSummary,
        RecurrenceSummary as RecurrenceSummary,
        Saved as Saved,
        Savings as Savings,
        energy_provenance as energy_provenance,
        saved_energy as saved_energy,
    )
    from joulery.jobs._totals import (
        EndedRecurrence as EndedRecurrence,
        JobTotals as JobTotals,
        job_totals as job_totals,
    )


__getattr__, __dir__ = lazy(__name__)
