"""Group commit: operations of many threads in one transaction, acknowledged once it is durable.

A commit that reaches the disk takes milliseconds, whatever it holds. One thread takes all
operations that have gathered during the last commit and commits them together, so durability costs
each of them little; an operation that is alone waits for no other.
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
from joulery.storage._records import Subject
from joulery.storage._transaction import RefusedRowsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from joulery.clock import Clock
    from joulery.storage._transaction import Transaction

Answer = TypeVar("Answer")

_CAPACITY = 4096  # operations that may wait (by hand: some seconds of them)
_CLOSE_SECONDS = 60.0  # by hand: a suspended database must not keep a process from ending
_GROUP = 256  # operations per transaction (by hand: other processes write in between)
_ATTEMPTS = 3  # of a group (by hand: deadlocks of PostgreSQL end with the first)
# A database that was busy for longer is not tried again here, but by the client (by hand).
_RETRY_SECONDS = 1.5
# After this long a past failure says nothing about the next write (by hand).
_FAILURE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    subject: Subject
    operation: Callable[[Transaction], Any]
    future: Future[Any]


class Writer:
    """The one thread of a process that writes; it starts with the first operation.

    Args:
        transaction: Factory of a transaction, which commits on leaving and raises
            ``StoreError`` where that fails; then nothing of it was kept.
        capacity: Operations that may wait; more are refused.
        group: Most operations of one transaction.
        clock: Real or virtual clock.
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
        self._begun = False  # whether the latest transaction got as far as its operations
        self._waiting: queue.Queue[_Task | None] = queue.Queue(capacity)
        self._closing = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(
        self, operation: Callable[[Transaction], Answer], subject_or_job: Subject | int = 0
    ) -> Future[Answer]:
        """Have ``operation`` executed; the future ends when it is durable, or has failed.

        Args:
            operation: Function of the transaction, called more than once if the database asks to
                retry; what it raises undoes it, and only it.
            subject_or_job: The only job that it locks, and what it looks for; a number stands for
                the job.
                Groups lock jobs in order, so that processes never wait for one another in a circle.

        Raises:
            StoreBusyError: Too many operations are waiting.
            StoreError: The store is closed.
        """
        future: Future[Answer] = Future()
        subject = Subject(subject_or_job) if isinstance(subject_or_job, int) else subject_or_job
        with self._closing:
            if self._closed:
                raise StoreError("the store is closed", remedy="open it again")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="joulery-store", daemon=True
                )
                self._thread.start()
            try:
                self._waiting.put_nowait(_Task(subject, operation, cast("Future[Any]", future)))
            except queue.Full:
                raise StoreBusyError(
                    f"{self._waiting.maxsize} operations wait for the store already",
                    remedy="make the same request again in a second",
                ) from None
        return future

    @property
    def failure(self) -> str | None:
        """Error of the latest write, if it failed seconds ago; None if writes succeed."""
        failure = self._failure
        if failure is None or self._clock.now() - failure[0] > _FAILURE_SECONDS:
            return None
        return failure[1]

    def close(self) -> None:
        """Execute what waits, then end the thread."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_CLOSE_SECONDS)

    def _work(self) -> None:
        going = True
        while going:
            group, going = self._next_group()
            if group:
                self._execute(group)

    def _next_group(self) -> tuple[list[_Task], bool]:
        """Waiting tasks, at least one; and whether more may come."""
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

    def _execute(self, group: list[_Task]) -> None:
        group.sort(key=lambda task: task.subject.job)  # stable: each job's stay in their order
        began = self._clock.now()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answers = self._commit(group)
            except StoreError as error:
                soon = self._clock.now() - began < _RETRY_SECONDS
                if isinstance(error, StoreBusyError) and soon and attempt < _ATTEMPTS:
                    continue
                self._fail(group, error, all_waiting=not (self._begun or soon))
            except Exception as error:  # noqa: BLE001 - the futures carry it, whatever it is
                # What one operation asked for failed them all: one by one it fails only that one.
                if len(group) == 1:
                    group[0].future.set_exception(error)
                else:
                    for task in group:
                        self._execute([task])
            else:
                self._failure = None
                for task, (answer, failure) in zip(group, answers, strict=True):
                    if failure is None:
                        task.future.set_result(answer)
                    else:
                        task.future.set_exception(failure)
            return

    def _fail(self, group: list[_Task], error: StoreError, *, all_waiting: bool) -> None:
        """Refuse a group; and what waits, where it has waited as long for the same lock."""
        self._failure = self._clock.now(), error.message
        for task in group:
            task.future.set_exception(error)
        with suppress(queue.Empty):
            while all_waiting:
                waiting = self._waiting.get_nowait()
                if waiting is None:
                    self._waiting.put(None)
                    return
                if waiting.future.set_running_or_notify_cancel():
                    waiting.future.set_exception(error)

    def _commit(self, group: list[_Task]) -> list[tuple[Any, Exception | None]]:
        answers: list[tuple[Any, Exception | None]] = []
        self._begun = False
        with self._transaction() as transaction:
            self._begun = True
            transaction.prepare(task.subject for task in group)
            for task in group:
                try:
                    with transaction.isolated():
                        answers.append((task.operation(transaction), None))
                except (StoreError, RefusedRowsError):
                    raise
                except Exception as error:  # noqa: BLE001 - a future carries whatever it is
                    answers.append((None, error))
            transaction.flush()
        return answers
