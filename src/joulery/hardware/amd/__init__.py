"""AMD GPUs, through AMD SMI."""

from joulery.hardware.amd._device import AmdGpu, survey

__all__ = ["AmdGpu", "survey"]
