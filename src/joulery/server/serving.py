"""One worker: the application on a socket, until it is told to stop and has finished."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

from joulery.errors import ConflictError, JouleryError
from joulery.server import errands
from joulery.server.app import Application
from joulery.server.desk_line import DeskLine
from joulery.server.logs import Log, libraries_told
from joulery.server.protocol import protocol_with
from joulery.server.service import Service
from joulery.storage.store import Store
from joulery.storage.tokens import decision_secret

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from joulery.server.desk_start import Started
    from joulery.server.metrics import Metrics
    from joulery.server.settings import Settings


class _Server(uvicorn.Server):
    """Leaves signals to us, and says when it has begun.

    Args:
        config: Of uvicorn.
        started: Called once requests are answered.
    """

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._begun()


def _nothing() -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """One process that serves.

    Attributes:
        settings: How.
        listener: A socket that listens already.
        metrics: To count in.
        desk: That decides.
        number: Of the worker.
        started: Called once requests are answered.
        lifeline: A file that is at its end when the process that watches over us is gone; None
            where there is none.
    """

    settings: Settings
    listener: socket.socket
    metrics: Metrics
    desk: Started
    number: int = 0
    started: Callable[[], None] = _nothing
    lifeline: int | None = None


def serve(worker: Worker) -> None:
    """Serve until SIGTERM or SIGINT, and return when everything under way has been answered."""
    _raise_file_limit()
    log = Log(worker.number, requests=worker.settings.log_requests)
    try:
        with (
            libraries_told(log),
            Store.open(worker.settings.store) as store,
            asyncio.Runner(loop_factory=_loop()) as runner,
        ):
            runner.run(_serve(worker, store, log))
    finally:
        log.close()


def secret_of(store: Store) -> bytes:
    """The secret of a store, made once by whoever comes first."""
    with contextlib.suppress(ConflictError):  # another process made it at the same moment
        return store.write(decision_secret)
    return store.write(decision_secret)


async def _serve(worker: Worker, store: Store, log: Log) -> None:
    settings = worker.settings
    async with DeskLine(worker.desk, settings.store, worker.number, log) as office:
        service = Service(store, office, secret_of(store), settings.limits, worker.metrics)
        await _serve_with(worker, service, log)


async def _serve_with(worker: Worker, service: Service, log: Log) -> None:
    settings = worker.settings

    def started() -> None:
        log.say("ready")
        worker.started()

    server = _Server(_config(settings, Application(service, log)), started)
    loop = asyncio.get_running_loop()
    ending = settings, service, server, log
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _drain, *ending)
    if worker.lifeline is not None:
        loop.add_reader(worker.lifeline, _orphaned, worker.lifeline, ending)
    chores = [loop.create_task(_chores(settings, service, server, log))]
    if worker.number == 0:  # one for all
        chores.append(loop.create_task(_refresh(service, log)))
    try:
        await server.serve([worker.listener])
    finally:
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
        service.close()
        log.say("stopped")


def _orphaned(lifeline: int, ending: tuple[Settings, Service, _Server, Log]) -> None:
    asyncio.get_running_loop().remove_reader(lifeline)
    _drain(*ending)


def _drain(settings: Settings, service: Service, server: _Server, log: Log) -> None:
    """Be ready no more, then stop."""
    if service.draining:  # asked twice: at once
        server.should_exit = True
        return
    service.draining = True
    log.say("draining", seconds=settings.drain_seconds)
    loop = asyncio.get_running_loop()
    loop.call_later(settings.drain_seconds, setattr, server, "should_exit", True)  # noqa: FBT003


async def _refresh(service: Service, log: Log) -> None:
    """After an upgrade, fold histories anew beside the requests, before one has to wait for it."""
    try:
        count = await service.office.ask(errands.refresh)
    except JouleryError as error:  # the server is being stopped, or decisions will do it
        log.say("refresh", error=type(error).__name__, message=error.message)
        return
    if count:
        log.say("refreshed", jobs=count)


async def _chores(settings: Settings, service: Service, server: _Server, log: Log) -> None:
    """Release decisions of silent holders, from time to time."""
    while True:
        await asyncio.sleep(settings.expire_seconds)
        service.metrics.note_connections(len(server.server_state.connections))
        service.metrics.note_waiting(service.waiting_for_store)
        try:
            released = await service.office.ask(errands.expire)
        except Exception as error:  # noqa: BLE001 - an edge: whatever it was, try again later
            log.say("expiry", error=type(error).__name__, message=str(error)[:500])
            continue
        if released:
            service.metrics.count_expired(released)
            log.say("expired", decisions=released)


def _config(settings: Settings, application: Application) -> uvicorn.Config:
    files = settings.tls_certificate, settings.tls_key
    certificate, key = (None if file is None else str(file) for file in files)
    return uvicorn.Config(
        application,
        http=protocol_with(settings.limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(settings.limits.idle_seconds),
        timeout_graceful_shutdown=round(settings.stop_seconds),
        ssl_certfile=certificate,
        ssl_keyfile=key,
        backlog=2048,
    )


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # slower, but all the same
        return None
    make: Any = uvloop.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = make
    return factory


def _raise_file_limit() -> None:
    """Every connection is a file; the usual limit is a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
