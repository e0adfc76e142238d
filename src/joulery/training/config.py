"""What a run is to minimise and whether it only observes, as its code or its environment says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.objectives import Objective

OBJECTIVE_VARIABLE = "JOULERY_OBJECTIVE"
OBSERVE_VARIABLE = "JOULERY_OBSERVE"
DEFAULT_OBJECTIVE = "cost:eta=0.5"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What a run wants; the environment is looked at when it is asked for.

    Attributes:
        given_objective: In the code, if it is.
        given_observe: Likewise.
        environ: Tells what ``joulery run`` was told.
    """

    given_objective: Objective | str | None
    given_observe: bool | None
    environ: Mapping[str, str]

    @property
    def objective(self) -> Objective | str:
        """What to minimise."""
        return self.given_objective or self.environ.get(OBJECTIVE_VARIABLE) or DEFAULT_OBJECTIVE

    @property
    def observe(self) -> bool:
        """Whether to leave batch size and limit alone."""
        if self.given_observe is None:
            return bool(self.environ.get(OBSERVE_VARIABLE))
        return self.given_observe
