"""A load for ``joulery calibrate``: matrix products that come and go on every CUDA device."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

_STEP_SECONDS = 12.0  # by hand
_SIZE = 4096  # rows of a matrix, by hand


def main() -> None:
    """Work until the process is ended; each device rests in steps of its own."""
    import torch

    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if not devices:
        sys.exit("PyTorch sees no CUDA device")
    matrices = [torch.randn(_SIZE, _SIZE, device=device) / 64 for device in devices]
    orders = [random.Random(number) for number in range(len(devices))]  # noqa: S311
    while True:
        working = [m for m, order in zip(matrices, orders, strict=True) if order.random() < 0.5]
        _work(working, time.monotonic() + _STEP_SECONDS)


def _work(matrices: list[Any], until: float) -> None:
    import torch

    while time.monotonic() < until:
        for matrix in matrices:
            for _ in range(8):
                torch.mm(matrix, matrix)
        for matrix in matrices:
            torch.cuda.synchronize(matrix.device)
        if not matrices:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
