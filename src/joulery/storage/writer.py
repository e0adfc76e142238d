"""Group commit: operations of many threads in one transaction, acknowledged once it is on the disk.

A commit that reaches the disk takes milliseconds, whatever it holds. One thread takes all
operations that have gathered during the last commit and commits them together, so durability costs
each of them little; an operation alone waits for nobody.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from joulery.clock import REAL_CLOCK
from joulery.errors import StoreBusyError, StoreError
from joulery.storage.records import NOTHING
from joulery.storage.unit_of_work import RefusedRowsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from joulery.clock import Clock
    from joulery.storage.records import Subject
    from joulery.storage.transaction import Transaction

Answer = TypeVar("Answer")

_CAPACITY = 4096  # operations that may wait
_GROUP = 256  # operations per transaction, so that other processes get their turn
_ATTEMPTS = 3
# A database that was busy for longer than this is not asked again by us: whoever waits is told to.
_PATIENCE_SECONDS = 1.5
# After this long without a write, nobody knows whether the next one would fail.
_TELLING_SECONDS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    about: Subject
    operation: Callable[[Transaction], Any]
    future: Future[Any]


def _nothing() -> None:
    """Tell nobody."""


class Writer:
    """The one thread of a process that writes.

    Args:
        transaction: Begins one, commits it on leaving, and raises :class:`StoreError` where that
            fails; then nothing of it was kept.
        capacity: Operations that may wait; more are refused.
        group: Most operations of one transaction.
        clock: Real, or a test's.
    """

    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[Transaction]],
        capacity: int = _CAPACITY,
        group: int = _GROUP,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._transaction = transaction
        self._group = group
        self._clock = clock
        self._failure: tuple[float, str] | None = None
        self._begun = False  # whether the latest transaction came to its operations
        self._waiting: queue.Queue[_Task | None] = queue.Queue(capacity)
        self.after_group: Callable[[], None] = _nothing
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="joulery-store", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(
        self, operation: Callable[[Transaction], Answer], about: Subject = NOTHING
    ) -> Future[Answer]:
        """Have ``operation`` carried out; the future ends when it is on the disk, or has failed.

        Args:
            operation: Called with the transaction, perhaps more than once, if the database asks to
                try again; what it raises undoes it, and only it.
            about: The only job that it locks, and what it looks for. Groups lock jobs in order, so
                that processes never wait for one another in a circle.

        Raises:
            StoreBusyError: Too many are waiting.
            StoreError: The store is closed.
        """
        future: Future[Answer] = Future()
        with self._closing:
            if self._closed:
                raise StoreError("the store is closed", remedy="open it again")
            try:
                self._waiting.put_nowait(_Task(about, operation, cast("Future[Any]", future)))
            except queue.Full:
                raise StoreBusyError(
                    f"{self._waiting.maxsize} operations wait for the store already",
                    remedy="make the same request again in a second",
                ) from None
        return future

    @property
    def failure(self) -> str | None:
        """Why the latest write failed, if that was a moment ago; None if all is well."""
        failure = self._failure
        if failure is None or self._clock.now() - failure[0] > _TELLING_SECONDS:
            return None
        return failure[1]

    def close(self) -> None:
        """Carry out what waits, then end."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        going = True
        while going:
            group, going = self._next_group()
            if group:
                self._carry_out(group)
                self.after_group()

    def _next_group(self) -> tuple[list[_Task], bool]:
        """What waits, at least one; and whether more may come."""
        group: list[_Task] = []
        task = self._waiting.get()
        while task is not None:
            if task.future.set_running_or_notify_cancel():
                group.append(task)
            if len(group) >= self._group:
                return group, True
            try:
                task = self._waiting.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _carry_out(self, group: list[_Task]) -> None:
        group.sort(key=lambda task: task.about.job)  # stable: each job's stay in their order
        began = self._clock.now()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answers = self._commit(group)
            except StoreError as error:
                patient = self._clock.now() - began < _PATIENCE_SECONDS
                if isinstance(error, StoreBusyError) and patient and attempt < _ATTEMPTS:
                    continue
                self._failure = self._clock.now(), error.message
                _refuse(group, error)
                if not (self._begun or patient):
                    self._turn_away(error)
                return
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it is
                self._find_culprit(group, error)
                return
            else:
                self._failure = None
                _acknowledge(group, answers)
                return

    def _turn_away(self, error: StoreError) -> None:
        """Refuse what waits: it has waited as long for the same, and would do so once more."""
        closing = False
        with suppress(queue.Empty):
            while True:
                task = self._waiting.get_nowait()
                if task is None:
                    closing = True
                elif task.future.set_running_or_notify_cancel():
                    task.future.set_exception(error)
        if closing:
            self._waiting.put(None)

    def _find_culprit(self, group: list[_Task], error: Exception) -> None:
        """Something that one of them asked for failed them all: one by one it fails only that."""
        if len(group) == 1:
            _refuse(group, error)
        else:
            for task in group:
                self._carry_out([task])

    def _commit(self, group: list[_Task]) -> list[tuple[Any, Exception | None]]:
        answers: list[tuple[Any, Exception | None]] = []
        self._begun = False
        with self._transaction() as ledger:
            self._begun = True
            ledger.prepare(task.about for task in group)
            for task in group:
                try:
                    with ledger.isolated():
                        answers.append((task.operation(ledger), None))
                except (StoreError, RefusedRowsError):
                    raise
                except Exception as error:  # noqa: BLE001 - a future carries whatever it is
                    answers.append((None, error))
            ledger.finish()
        return answers


def _acknowledge(group: list[_Task], answers: list[tuple[Any, Exception | None]]) -> None:
    for task, (answer, error) in zip(group, answers, strict=True):
        if error is None:
            task.future.set_result(answer)
        else:
            task.future.set_exception(error)


def _refuse(group: list[_Task], error: Exception) -> None:
    for task in group:
        task.future.set_exception(error)
