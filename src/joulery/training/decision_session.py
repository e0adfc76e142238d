"""How a recurring run asks what to run: which job it is, whom it asks, one answer for all ranks."""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.client.places import STORE_VARIABLE, is_server, team_of
from joulery.errors import InvalidValueError, NotPossibleHereError
from joulery.jobs.models import ASKED_FOR
from joulery.jobs.requests import Definition, Request
from joulery.metering.meter import Meter

if TYPE_CHECKING:
    from joulery.client.backend import DecisionBackend
    from joulery.client.resilient import ResilientClient
    from joulery.jobs.job import Job
    from joulery.jobs.models import Decision
    from joulery.objectives import Objective
    from joulery.training.environment import RunEnvironment
    from joulery.training.job_settings import Recurring

_log = logging.getLogger("joulery")

REMOTE_SECONDS = 2.0
LOCAL_SECONDS = 10.0  # the first use of a store makes its tables
_REQUEST_SHARE = 0.9
_MOST_PROBES = 12


class DecisionSession:
    """Asks for the decisions of one recurrence.

    With several processes, all of them call the same methods in the same order, and rank 0 alone
    asks.

    Args:
        settings: The job as its owner states it.
        site: Where it runs.
        objective: What to minimise.
        observe: Run the default, whatever would be chosen.

    Attributes:
        job: What may be chosen; None before it is prepared.
        definition: The same as it is defined, with the kind of device; likewise.
        meter: Of this job's devices; likewise.
        clerk: Who is asked and told; None on all ranks but one.
        only: What is run whatever would be chosen; what comes of it teaches all the same.
    """

    def __init__(
        self,
        settings: Recurring,
        site: RunEnvironment,
        objective: Objective | str,
        *,
        observe: bool,
    ) -> None:
        self.job: Job | None = None
        self.definition: Definition | None = None
        self.meter: Meter | None = None
        self.clerk: ResilientClient | None = None
        self.only = settings.usual if observe and settings.fixed is None else settings.fixed
        self._settings = settings
        self._site = site
        self._objective = objective
        self._observe = observe
        self._key = uuid.uuid4().hex
        self._asked = 0

    @property
    def usual(self) -> int:
        """The batch size that is run unless another one is decided."""
        return self._settings.usual if self.only is None else self.only

    @property
    def key(self) -> str:
        """Of the latest decision and of the report on it."""
        return f"{self._key}-{self._asked}"

    def prepare(self) -> None:
        """Prepare on every rank or on none: one that cannot must not leave the others waiting."""
        if self.job is not None:
            return
        ranks = self._site.ranks
        if ranks is None:
            self._prepare()
            return
        failed: Exception | None = None
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 - raised below, once all know
            failed = error
        ready = all(ranks.gather(failed is None))
        if failed is not None:
            raise failed
        if not ready:
            raise NotPossibleHereError(
                "another rank could not begin", remedy="see what it says on stderr"
            )

    def _prepare(self) -> None:
        settings, site = self._settings, self._site
        if site.processes > 1 and site.ranks is None:
            raise InvalidValueError(
                "several processes train together and cannot agree on a batch size",
                remedy="give Run a group; for torch, joulery.integrations.torch_ranks",
            )
        if settings.target is None and len(settings.batch_sizes) > 1:
            raise InvalidValueError(
                "batch sizes cannot be compared without a target",
                remedy="give Run the metric that a run should reach: target=0.76",
            )
        job, device = settings.job(self._objective, site)
        self.meter = Meter(site.boards() or site.metered(), clock=site.clock)
        definition = Definition(job, device, settings.policy)
        if site.ranks is None or site.ranks.rank == 0:
            self.clerk = self._new_clerk(definition)
        self.job, self.definition = job, definition

    def _new_clerk(self, definition: Definition) -> ResilientClient:
        from joulery.client.opening import open_backend
        from joulery.client.resilient import Order, ResilientClient

        settings, clock = self._settings, self._site.clock
        location = str(settings.store or os.environ.get(STORE_VARIABLE) or "")
        bound = REMOTE_SECONDS if is_server(location) else LOCAL_SECONDS

        def opened() -> DecisionBackend:
            # A little less than the bound, so that what went wrong can still be told.
            seconds = _REQUEST_SHARE * bound
            return open_backend(
                location or None, settings.team, settings.token, seconds=seconds, clock=clock
            )

        return ResilientClient(
            opened,
            location.rstrip("/") if is_server(location) else str(Path(location).resolve()),
            bound,
            Order(definition, team_of(settings.team)),
            clock=clock,
        )

    def decide(self, after: str | None, *, probing: bool) -> Decision:
        """What to run next, the same on every rank.

        Args:
            after: An earlier decision of the recurrence; None begins it.
            probing: Whether probes can be made, and tell something.
        """
        ranks = self._site.ranks
        if ranks is None:
            return self._decided(after, probing=probing)
        decision: Decision | None = None
        if ranks.rank == 0:
            # The others wait for an answer, whatever goes wrong here.
            try:
                decision = self._decided(after, probing=False)
            except Exception:
                ranks.agree(None)
                raise
        decision = ranks.agree(decision)
        if decision is None:
            raise NotPossibleHereError(
                "rank 0 could not find out what to run", remedy="see what it says on stderr"
            )
        return decision

    def _decided(self, after: str | None, *, probing: bool) -> Decision:
        clerk = self.clerk
        assert clerk is not None  # noqa: S101 - prepared
        can_probe = (
            probing
            and self.only is None
            and self._asked < _MOST_PROBES
            and bool(self._site.boards())
        )
        self._asked += 1
        decision = clerk.decide(Request(self.key, after, can_probe, self.only))
        self._say_inherited(clerk, decision)
        self._say_what_would_be_run(decision)
        return decision

    def _say_inherited(self, clerk: ResilientClient, decision: Decision) -> None:
        new = self._asked == 1 and decision.id and decision.recurrence == 0
        if new and clerk.defined is not None and clerk.defined.said:
            _log.warning("joulery: %s: %s", self._settings.name, clerk.defined.said)

    def _say_what_would_be_run(self, decision: Decision) -> None:
        if self._observe and decision.reason.startswith(ASKED_FOR):
            size, reason = decision.batch_size, decision.reason
            _log.warning("joulery: observing at batch size %d: %s", size, reason)

    def close(self) -> None:
        """Let go of whom was asked, and of the meter. May be called twice."""
        clerk, self.clerk = self.clerk, None
        if clerk is not None:
            clerk.close()
        meter, self.meter = self.meter, None
        if meter is not None:
            meter.close()
