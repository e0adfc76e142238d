"""Operations on a store that are sure to share one transaction."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.storage import Store

_PATIENCE_SECONDS = 60.0


@contextmanager
def one_group(store: Store) -> Iterator[None]:
    """What is submitted meanwhile becomes one transaction: the writer is busy until the end."""
    release, entered = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        release.wait(_PATIENCE_SECONDS)

    first = store.submit(hold)
    assert entered.wait(_PATIENCE_SECONDS), "the writer is stuck"
    yield
    release.set()
    first.result(_PATIENCE_SECONDS)
