"""One training iteration as a graph of instructions, each with a choice of clocks.

What schedules produce and the planner consumes. Time is a convex-cost project: every instruction
may run faster for more energy, edges say what must end before what starts, and while a device
waits it draws its blocking power. So with T the time of the iteration

    joules = sum over instructions of (joules_i - blocking_i * seconds_i) + (sum of blocking) * T

and the planner minimises the first sum for each T (Chung et al., "Perseus", SOSP'24, §4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from joulery.frontier import Frontier


@dataclass(frozen=True, slots=True)
class Instruction:
    """One piece of work on one stage.

    Attributes:
        stage: Pipeline stage (the layers), counted from 0.
        rank: Device or group of devices that runs it; instructions of a rank run one at a time.
        kind: ``forward``, ``backward``, ``backward_input``, ``backward_weight``, ``recompute``,
            ``optimizer``, or any name of one's own.
        microbatch: Which microbatch; -1 where there is none.
    """

    stage: int
    rank: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        batch = f" of microbatch {self.microbatch}" if self.microbatch >= 0 else ""
        return f"{self.kind}{batch} on stage {self.stage}"


@dataclass(frozen=True, slots=True)
class Problem:
    """An iteration to plan. Instructions are numbered; arrays refer to these numbers.

    Attributes:
        instructions: In any order that respects no edge in particular.
        profiles: Choices of (seconds, joules, clock), one frontier per distinct piece of work.
        profile_of: (instructions,), position in ``profiles``.
        edge_from: (edges,), instruction that must end ...
        edge_to: (edges,), ... before this one starts ...
        edge_seconds: (edges,), ... and this much time must pass between: communication.
        blocking_watts: (ranks,), what all devices of a rank draw together while they wait.
    """

    instructions: tuple[Instruction, ...]
    profiles: tuple[Frontier, ...]
    profile_of: NDArray[np.int64]
    edge_from: NDArray[np.int64]
    edge_to: NDArray[np.int64]
    edge_seconds: NDArray[np.float64]
    blocking_watts: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.instructions)
