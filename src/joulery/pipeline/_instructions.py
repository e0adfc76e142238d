"""The instructions of a training pipeline: what runs on which stage for which microbatch."""

from __future__ import annotations

from dataclasses import dataclass

FORWARD = "forward"
BACKWARD = "backward"
BACKWARD_INPUT = "backward_input"
BACKWARD_WEIGHT = "backward_weight"
RECOMPUTE = "recompute"
REDUCE = "reduce"
OPTIMIZER = "optimizer"

# Letters as torch.distributed.pipelining prints them, and R, G and O for what it lacks.
LETTERS = {
    "F": FORWARD,
    "B": BACKWARD,
    "I": BACKWARD_INPUT,
    "W": BACKWARD_WEIGHT,
    "R": RECOMPUTE,
    "G": REDUCE,
    "O": OPTIMIZER,
}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One piece of work on one stage.

    Attributes:
        stage: Pipeline stage (the layers), counted from 0.
        rank: Device or group of devices that runs it; instructions of a rank run one at a time.
        kind: ``forward``, ``backward``, ``backward_input``, ``backward_weight``, ``recompute``,
            ``reduce`` (gradients of replicas), ``optimizer``, or a name of the caller's own.
        microbatch: Number of the microbatch; -1 where there is none.
    """

    stage: int
    rank: int
    kind: str
    microbatch: int

    @property
    def key(self) -> tuple[int, str, int]:
        """Stage, kind and microbatch, which identify an instruction of a pipeline."""
        return self.stage, self.kind, self.microbatch

    def __str__(self) -> str:
        batch = f" of microbatch {self.microbatch}" if self.microbatch >= 0 else ""
        return f"{self.kind}{batch} on stage {self.stage}"


# The instructions of each rank, first to last.
Order = tuple[tuple[Instruction, ...], ...]
