"""What the instructions of a pipeline are called, in full and in one letter."""

from __future__ import annotations

FORWARD = "forward"
BACKWARD = "backward"
BACKWARD_INPUT = "backward_input"
BACKWARD_WEIGHT = "backward_weight"
RECOMPUTE = "recompute"
OPTIMIZER = "optimizer"

# Letters as torch.distributed.pipelining prints them, and R and O for what it lacks.
LETTERS = {
    "F": FORWARD,
    "B": BACKWARD,
    "I": BACKWARD_INPUT,
    "W": BACKWARD_WEIGHT,
    "R": RECOMPUTE,
    "O": OPTIMIZER,
}
