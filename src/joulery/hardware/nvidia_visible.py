"""Which boards a process sees through ``CUDA_VISIBLE_DEVICES``.

The rules are those of the CUDA programming guide and of what its run-time does:

- unset shows every board, an empty text none;
- entries are all indices, or all UUIDs of boards (``GPU-…``), or all of MIG instances (``MIG-…``);
  the first entry decides, and the list ends where an entry is of another kind;
- a UUID may be cut short as long as it fits one device only;
- the list ends before the first entry that is invalid, so ``0,2,-1,1`` shows 0 and 2;
- a device named twice hides them all;
- an index is read as ``strtoul`` does: ``1st`` is 1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"

_NUMBER = re.compile(r"\s*\+?(\d+)", re.ASCII)


def visible_ids(
    value: str | None, boards: Sequence[str], instances: Sequence[str] = ()
) -> tuple[str, ...]:
    """Ids of the devices that a process sees, in the order in which CUDA numbers them.

    Args:
        value: What ``CUDA_VISIBLE_DEVICES`` says; None when it is not set.
        boards: UUIDs of the boards in NVML's order, which is that of the PCI bus. CUDA counts the
            same way with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; see :func:`indices_are_certain`.
        instances: UUIDs of the MIG instances.

    >>> visible_ids("1,0", ["GPU-aa", "GPU-bb"])
    ('GPU-bb', 'GPU-aa')
    """
    if value is None:
        return tuple(boards)
    entries = value.split(",")
    first = entries[0].strip()
    if first.startswith("GPU-"):
        found = _by_prefix(entries, boards, "GPU-")
    elif first.startswith("MIG-"):
        found = _by_prefix(entries, instances, "MIG-")
    else:
        found = _by_index(entries, boards)
    seen = tuple(found)
    return seen if len(set(seen)) == len(seen) else ()


def indices_are_certain(environ: Mapping[str, str], names: Sequence[str]) -> bool:
    """Whether CUDA's indices are sure to mean the same boards as NVML's.

    By default CUDA puts the fastest board first and NVML goes by PCI bus, so on a mixed machine
    an index may mean another board unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.

    Args:
        environ: The environment of the process that uses CUDA.
        names: Model names of the boards.
    """
    value = environ.get(VARIABLE)
    if value is not None and value.strip().startswith(("GPU-", "MIG-")):
        return True
    return environ.get(ORDER_VARIABLE) == "PCI_BUS_ID" or len(set(names)) <= 1


def _by_index(entries: Sequence[str], boards: Sequence[str]) -> Iterator[str]:
    for entry in entries:
        number = _NUMBER.match(entry)
        if number is None or int(number[1]) >= len(boards):
            return
        yield boards[int(number[1])]


def _by_prefix(entries: Sequence[str], ids: Sequence[str], kind: str) -> Iterator[str]:
    for entry in entries:
        prefix = entry.strip()
        matching = [one for one in ids if one.startswith(prefix)]
        if not prefix.startswith(kind) or len(matching) != 1:
            return
        yield matching[0]
