"""Ranks of torch.distributed that decide together: pass ``torch_ranks()`` as process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from joulery.errors import MissingExtraError, NotPossibleHereError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from types import ModuleType

    from joulery.power import ProcessGroup

T = TypeVar("T")


def torch_ranks(timeout: timedelta | None = None) -> ProcessGroup:
    """The process group of all ranks of this job, for ``joulery.Run`` and the tuner.

    Call it on every rank, after ``torch.distributed.init_process_group``. The ranks talk over a
    process group of their own on the CPU (gloo), so that nothing waits behind gradients.

    Args:
        timeout: Longest wait of one rank for another; torch's own unless given.

    Raises:
        MissingExtraError: There is no torch.
        NotPossibleHereError: torch.distributed is not initialised.
    """
    try:
        from torch import distributed
    except ImportError:
        raise MissingExtraError("ranks of torch need torch", remedy="pip install torch") from None
    if not (distributed.is_available() and distributed.is_initialized()):
        raise NotPossibleHereError(
            "torch.distributed has no process group yet",
            remedy="call torch.distributed.init_process_group first, on every rank",
        )
    return _TorchRanks(distributed, timeout)


class _TorchRanks:
    def __init__(self, distributed: ModuleType, timeout: timedelta | None) -> None:
        self._distributed = distributed
        self._group = distributed.new_group(backend="gloo", timeout=timeout)
        self.rank = int(distributed.get_rank())

    def broadcast(self, value: T) -> T:
        """Rank 0's value."""
        box: list[Any] = [value]
        self._distributed.broadcast_object_list(box, src=0, group=self._group)
        agreed: T = box[0]
        return agreed

    def all_gather(self, value: T) -> Sequence[T]:
        """Every rank's value."""
        values: list[Any] = [None] * self._distributed.get_world_size()
        self._distributed.all_gather_object(values, value, group=self._group)
        return values
