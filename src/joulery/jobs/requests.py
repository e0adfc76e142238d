"""What the desk is asked: to define a job, and what to run next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.jobs.models import checked_name
from joulery.jobs.validation import check_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.jobs.job import Job
    from joulery.storage.records import Document


@dataclass(frozen=True, slots=True)
class Definition:
    """A job to be defined.

    Attributes:
        job: What may be chosen, under its name.
        device: Kind of device that it runs on, such as "V100"; empty leaves that open.
        policy: That chooses; see :func:`joulery.jobs.policies.registry.policy_names`.
        parameters: Of the policy.
    """

    job: Job
    device: str = ""
    policy: str = "joulery"
    parameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """A decision that is asked for.

    Attributes:
        key: Chosen by the client; the same key gives the same decision.
        after: An earlier decision of the same recurrence: this one goes on with it, after a probe
            or a training that did not reach the target. None begins a recurrence.
        probing: Whether probes can be made; if not, see :mod:`joulery.jobs.grants`.
        only: The batch size that will be run whatever is chosen, by one who observes or who could
            ask nobody; what comes of it is learned like anything else.
        ran_seconds: How long that has been run already, where nobody could be asked before; see
            :func:`joulery.jobs.validation.check_request`.
    """

    key: str
    after: str | None = None
    probing: bool = False
    only: int | None = None
    ran_seconds: float | None = None

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            InvalidValueError: The key, or how long it has been run, is out of bounds.
        """
        checked_name(self.key, "a key")
        check_request(self.only, self.ran_seconds)

    def to_document(self) -> Document:
        """As it is stored beside its decision, all but the key."""
        document: Document = {"after": self.after}
        if not self.probing:
            document["probing"] = False
        if self.only is not None:
            document["only"] = int(self.only)
        if self.ran_seconds is not None:
            document["ran_seconds"] = float(self.ran_seconds)
        return document
