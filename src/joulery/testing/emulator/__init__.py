"""NVIDIA boards emulated behind the real NVML binding, for tests and benchmarks without a GPU.

Examples:
    >>> from joulery.hardware import Workload
    >>> with EmulatedNode(["A100", "A100"], directory=tmp_path) as node:  # doctest: +SKIP
    ...     node.load_in_process()
    ...     node.set_load(0, Workload("matmul", compute_seconds=0.1))
    ...     gpu = joulery.hardware.nvidia.survey().devices[0]

Programs in other processes see the same boards when started with ``node.env``.
"""

from joulery.testing.emulator.board import BoardSpec, Phase
from joulery.testing.emulator.node import EmulatedNode, Shown, Truth
from joulery.testing.emulator.program import ProgramLoad

__all__ = ["BoardSpec", "EmulatedNode", "Phase", "ProgramLoad", "Shown", "Truth"]
