"""Choose the batch size of a job that is trained again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.jobs._job import BatchSize, Job, PowerLimit
    from joulery.jobs._models import (
        ASKED_FOR,
        MOST_PER_PAGE,
        Decision,
        DecisionEntry,
        DecisionLease,
        DecisionPage,
        Definition,
        EnergyEntry,
        EnergyPage,
        JobEntry,
        JobPage,
        Measured,
        Moment,
        Outcome,
        OutcomeReport,
        PauseState,
        ProfileEntry,
        ProfileList,
        ProgressReport,
        Receipt,
        Request,
        checked_name,
        parse_decision_id,
    )
    from joulery.jobs._pages import (
        decision_page,
        energy_page,
        job_entry,
        job_page,
        keep_profile,
        note_energy,
        profile_list,
    )
    from joulery.jobs._schema import (
        LARGEST_ID,
        Codec,
        Constraint,
        Count,
        JsonModel,
        Name,
        NotJsonError,
        Text,
        from_bytes,
        to_bytes,
    )
    from joulery.jobs._service import JobService
    from joulery.jobs._summary import (
        BatchSizeSummary,
        EnergyUsed,
        JobMeasurements,
        JobSummary,
        RecurrenceSummary,
        RunSums,
        Saved,
        Savings,
        saved_share,
        summarize,
    )
    from joulery.jobs._validation import LONGEST_BEFORE_SECONDS
    from joulery.jobs._warm_start import WarmStart, warm_started_curve

__all__ = [
    "ASKED_FOR",
    "LARGEST_ID",
    "LONGEST_BEFORE_SECONDS",
    "MOST_PER_PAGE",
    "BatchSize",
    "BatchSizeSummary",
    "Codec",
    "Constraint",
    "Count",
    "Decision",
    "DecisionEntry",
    "DecisionLease",
    "DecisionPage",
    "Definition",
    "EnergyEntry",
    "EnergyPage",
    "EnergyUsed",
    "Job",
    "JobEntry",
    "JobMeasurements",
    "JobPage",
    "JobService",
    "JobSummary",
    "JsonModel",
    "Measured",
    "Moment",
    "Name",
    "NotJsonError",
    "Outcome",
    "OutcomeReport",
    "PauseState",
    "PowerLimit",
    "ProfileEntry",
    "ProfileList",
    "ProgressReport",
    "Receipt",
    "RecurrenceSummary",
    "Request",
    "RunSums",
    "Saved",
    "Savings",
    "Text",
    "WarmStart",
    "checked_name",
    "decision_page",
    "energy_page",
    "from_bytes",
    "job_entry",
    "job_page",
    "keep_profile",
    "note_energy",
    "parse_decision_id",
    "profile_list",
    "saved_share",
    "summarize",
    "to_bytes",
    "warm_started_curve",
]

__getattr__ = lazy(__name__)
