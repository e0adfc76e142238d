"""NVIDIA GPUs and their MIG instances, through NVML."""

from joulery.hardware.nvidia._device import MigInstance, NvidiaGpu, survey

__all__ = ["MigInstance", "NvidiaGpu", "survey"]
