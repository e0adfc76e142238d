"""Operators of one training step, whatever framework they came from."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.prediction._devices import BYTES
from joulery.prediction._kernels import ATTENTION, MATMUL, STREAM, Kernels

if TYPE_CHECKING:
    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator

# cuDNN computes convolutions of 32-bit tensors in TF32 by default; matrix products stay in FP32.
_CONVOLUTION = "convolution"
KINDS = {"matmul": MATMUL, "attention": ATTENTION, "stream": STREAM}


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of kernel in a step.

    Attributes:
        name: Name of the operator in the framework.
        kind: ``matmul``, ``attention`` or ``stream`` (traffic alone).
        phase: ``forward``, ``backward`` or ``optimizer``.
        shape: Batch, rows, columns and inner dimension; zeros for traffic.
        operations: Multiplications and additions of one run.
        traffic_bytes: Bytes read and written by one run.
        precision: Such as ``fp32`` or ``bf16``.
        count: Runs per step.
        reuse_bytes: Bytes that are read between two uses of a weight; infinite in training.
    """

    name: str
    kind: str
    phase: str
    shape: tuple[int, int, int, int]
    operations: float
    traffic_bytes: float
    precision: str
    count: int = 1
    reuse_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class Graph:
    """A training step as operators, with the memory it takes.

    Attributes:
        name: Name of the model.
        operators: Distinct operators with their counts.
        parameters: Number of trained parameters.
        parameter_bytes: Bytes of parameters.
        optimizer_bytes: Bytes of the optimizer's state.
        activation_bytes: Bytes that the forward pass keeps for the backward pass.
        transient_bytes: Peak of activations, gradients and temporaries together.
    """

    name: str
    operators: tuple[Operator, ...]
    parameters: int
    parameter_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    transient_bytes: float

    def __post_init__(self) -> None:
        if not self.operators:
            raise InvalidValueError(
                f"the step of {self.name or 'the model'} has no operators",
                remedy="capture a forward pass that computes a loss",
            )

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Graph:
        """The inverse of ``dataclasses.asdict``."""
        operators = tuple(
            Operator(**{**operator, "shape": tuple(operator["shape"])})
            for operator in document["operators"]
        )
        return cls(**{**document, "operators": operators})

    @property
    def peak_bytes(self) -> float:
        """Peak of the bytes on the device."""
        return self.parameter_bytes + self.optimizer_bytes + self.transient_bytes

    @property
    def gradient_bytes(self) -> float:
        """Bytes of all gradients, of the parameters' precision."""
        return self.parameter_bytes

    @property
    def operations(self) -> float:
        """Operations of a step."""
        return sum(operator.operations * operator.count for operator in self.operators)

    @property
    def precision(self) -> str:
        """Precision of most of the operations."""
        totals: defaultdict[str, float] = defaultdict(float)
        for operator in self.operators:
            totals[operator.precision] += operator.operations * operator.count
        return max(totals, key=totals.__getitem__)

    def kernels(self, device: Accelerator, precision: str | None = None) -> Kernels:
        """Columns of the operators on a device; products as captured where precision is None."""
        rows: list[list[float]] = []
        for operator in self.operators:
            stream = operator.kind == "stream"
            target = operator.precision if stream or precision is None else precision
            if _in_tf32(operator, device, precision):
                target = "tf32"
            scale = BYTES[target] / BYTES[operator.precision]
            batch, _, n, k = operator.shape
            weights = batch * n * k * BYTES[target] if operator.kind == "matmul" else 0.0
            if operator.phase == "optimizer":
                weights = operator.traffic_bytes
            remainder = max(operator.traffic_bytes * scale - weights, 0.0)
            rates = (1.0, 1.0) if stream else device.rates(target)
            shape = KINDS[operator.kind], *operator.shape
            cost = operator.operations, weights, remainder, operator.reuse_bytes
            rows.append([float(cell) for cell in (*shape, *cost, *rates, operator.count)])
        return Kernels(*np.array(rows, float).T)

    def convolutions_in_tf32(self, device: Accelerator, precision: str | None = None) -> Array:
        """Whether each operator is a convolution that a device computes in TF32."""
        return np.array([_in_tf32(operator, device, precision) for operator in self.operators])


def _in_tf32(operator: Operator, device: Accelerator, precision: str | None) -> bool:
    is_convolution = operator.name.startswith(_CONVOLUTION)
    wide = (precision or operator.precision) in ("fp32", "tf32")
    return is_convolution and wide and "tf32" in device.peaks
