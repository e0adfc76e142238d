"""Group commit, on a transaction that tests can watch and break."""

import threading
from contextlib import contextmanager

import pytest

from joulery.clock import VirtualClock
from joulery.errors import ConflictError, StoreBusyError, StoreError
from joulery.storage import Subject
from joulery.storage._writer import Writer


class Book:
    """Stands for a transaction: remembers what was done, whole or not at all."""

    def __init__(self):
        self.kept, self.groups, self.failures = [], [], []
        self.pending = []

    @contextmanager
    def transaction(self):
        """One, which fails if a failure is due."""
        self.pending = []
        yield self
        if self.failures:
            raise self.failures.pop(0)
        self.groups.append(len(self.pending))
        self.kept += self.pending

    @contextmanager
    def isolated(self):
        """What fails takes back what it did."""
        before = len(self.pending)
        try:
            yield
        except BaseException:
            del self.pending[before:]
            raise

    def prepare(self, subjects):
        """Nothing to read ahead."""
        assert all(isinstance(subject, Subject) for subject in subjects)

    def flush(self):
        """Nothing waits."""


@pytest.fixture
def book():
    """An empty one."""
    return Book()


@pytest.fixture
def writer(book):
    """At work."""
    writer = Writer(book.transaction, capacity=50, group=8)
    yield writer
    writer.close()


@contextmanager
def held(writer):
    """What is submitted meanwhile waits."""
    entered, go = threading.Event(), threading.Event()
    first = writer.submit(lambda _: (entered.set(), go.wait(30)))
    assert entered.wait(30)
    try:
        yield
    finally:
        go.set()
    first.result(30)


def note(value):
    """An operation that writes a value down."""

    def operation(book):
        book.pending.append(value)
        return value

    return operation


def test_what_waits_is_committed_together(writer, book):
    """Every operation would pay for a commit of its own."""
    with held(writer):
        futures = [writer.submit(note(number)) for number in range(20)]
    assert [future.result(30) for future in futures] == list(range(20))
    assert book.kept == list(range(20))
    assert book.groups == [0, 8, 8, 4]


def test_nothing_is_acknowledged_before_the_commit(book):
    """A power cut would take what a client was told is safe."""
    committing, go = threading.Event(), threading.Event()

    @contextmanager
    def transaction():
        yield book
        committing.set()
        assert go.wait(30)

    writer = Writer(transaction)
    future = writer.submit(note(1))
    assert committing.wait(30)
    assert not future.done()
    go.set()
    assert future.result(30) == 1
    writer.close()


def test_jobs_are_taken_in_order_and_each_in_its_own(writer, book):
    """Two processes that lock jobs in other orders would wait for each other."""
    with held(writer):
        for number, job in enumerate([3, 1, 2, 1, 3]):
            writer.submit(note((job, number)), Subject(job))
    writer.submit(note("end")).result(30)
    assert book.kept == [(1, 1), (1, 3), (2, 2), (3, 0), (3, 4), "end"]


def test_a_failing_operation_fails_alone(writer, book):
    """One bad request would fail its neighbours."""

    def failing(book):
        book.pending.append("lost")
        raise ConflictError("no", remedy="none")

    with held(writer):
        futures = [writer.submit(operation) for operation in (note(1), failing, note(2))]
    assert futures[0].result(30) == 1
    assert futures[2].result(30) == 2
    with pytest.raises(ConflictError):
        futures[1].result(30)
    assert book.kept == [1, 2]


def test_a_lost_transaction_fails_all_and_the_writer_lives(writer, book):
    """A full disk would stop the server for good."""

    def arm(_):
        book.failures = [StoreError("full", remedy="none")]

    with held(writer):
        futures = [writer.submit(note(0)), writer.submit(arm), writer.submit(note(1))]
    for future in futures:
        with pytest.raises(StoreError, match="full"):
            future.result(30)
    assert writer.submit(note("after")).result(30) == "after"
    assert book.kept == ["after"]


@pytest.mark.parametrize(("times", "kept"), [(1, True), (2, True), (3, False)])
def test_a_busy_database_is_asked_again(writer, book, times, kept):
    """A moment's lock would reach a client; a long one would hang it."""
    book.failures = [StoreBusyError("locked", remedy="wait") for _ in range(times)]
    future = writer.submit(note(1))
    if kept:
        assert future.result(30) == 1
        assert book.kept == [1]
    else:
        with pytest.raises(StoreBusyError):
            future.result(30)
        assert book.kept == []


class Locked:
    """A database that another program has locked: nothing begins, and each try takes seconds."""

    def __init__(self, book, clock, seconds):
        self.book, self.clock, self.seconds = book, clock, seconds
        self.locked = threading.Event()
        self.locked.set()
        self.tries, self.trying, self.go_on = 0, threading.Event(), threading.Event()

    @contextmanager
    def transaction(self):
        """One, once it is not locked any more."""
        if self.locked.is_set():
            self.tries += 1
            self.trying.set()
            assert self.go_on.wait(30)
            self.clock.sleep(self.seconds)
            raise StoreBusyError("locked", remedy="wait")
        with self.book.transaction() as book:
            yield book


@pytest.mark.parametrize(("seconds", "tries"), [(4.0, 1), (0.1, 6)])
def test_a_locked_database_is_not_waited_for_again_and_again(book, seconds, tries):
    """Every request would hang for as many times as it is tried, and those behind it longer."""
    clock = VirtualClock()
    database = Locked(book, clock, seconds)
    writer = Writer(database.transaction, clock=clock)
    first = writer.submit(note("first"))
    assert database.trying.wait(30)
    behind = writer.submit(note("behind"))
    database.go_on.set()
    for future in (first, behind):
        with pytest.raises(StoreBusyError):
            future.result(30)
    assert database.tries == tries
    database.locked.clear()
    assert writer.submit(note("later")).result(30) == "later"
    writer.close()
    assert book.kept == ["later"]


def test_those_behind_a_locked_database_are_told_while_closing(book):
    """A server that stops while its store is locked would never end."""
    clock = VirtualClock()
    database = Locked(book, clock, 4.0)
    writer = Writer(database.transaction, clock=clock)
    futures = [writer.submit(note(0))]
    assert database.trying.wait(30)
    futures.append(writer.submit(note(1)))
    closing = threading.Thread(target=writer.close)
    closing.start()
    while not writer._closed:
        threading.Event().wait(0.001)
    database.go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    for future in futures:
        with pytest.raises(StoreBusyError):
            future.result(0)


def test_a_failed_write_is_known_until_one_succeeds_or_it_is_long_ago(book):
    """Readiness would not know, or a server nobody writes to would be out for ever."""
    clock = VirtualClock()
    writer = Writer(book.transaction, clock=clock)
    assert writer.failure is None
    book.failures = [StoreError("full", remedy="none")]
    with pytest.raises(StoreError):
        writer.submit(note(1)).result(30)
    assert writer.failure == "full"
    clock.sleep(11.0)
    assert writer.failure is None
    book.failures = [StoreError("full", remedy="none")]
    with pytest.raises(StoreError):
        writer.submit(note(2)).result(30)
    assert writer.failure == "full"
    writer.submit(note(3)).result(30)
    assert writer.failure is None
    writer.close()


def test_whoever_breaks_the_commit_is_found(writer, book):
    """What one operation asked for would fail all that were committed with it."""

    @contextmanager
    def picky():
        with Book.transaction(book) as inner:
            yield inner
            if "bad" in inner.pending:
                raise ConflictError("clash", remedy="none")

    writer._transaction = picky
    with held(writer):
        futures = [writer.submit(note(value)) for value in ("a", "bad", "b")]
    assert (futures[0].result(30), futures[2].result(30)) == ("a", "b")
    with pytest.raises(ConflictError):
        futures[1].result(30)
    assert book.kept == ["a", "b"]


def test_too_many_are_refused_at_once(writer):
    """Memory would grow until the server dies."""
    with held(writer):
        for number in range(50):
            writer.submit(note(number))
        with pytest.raises(StoreBusyError, match="50 operations"):
            writer.submit(note("one too many"))
    assert writer.submit(note("later")).result(30) == "later"


def test_what_was_cancelled_is_not_done(writer, book):
    """A client that hung up would still get a decision that nobody runs."""
    with held(writer):
        future = writer.submit(note("cancelled"))
        assert future.cancel()
    writer.submit(note("next")).result(30)
    assert book.kept == ["next"]


def test_closing_finishes_and_takes_no_more(writer, book):
    """A server that drains would lose what it has accepted."""
    futures = [writer.submit(note(number)) for number in range(10)]
    writer.close()
    writer.close()
    assert [future.result(0) for future in futures] == list(range(10))
    with pytest.raises(StoreError, match="closed"):
        writer.submit(note("late"))
