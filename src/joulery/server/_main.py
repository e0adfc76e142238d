"""A server from its start to its end: socket, first tokens, log, uvicorn, periodic work, drain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import logging.handlers
import queue
import resource
import signal
import socket
import sys
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import anyio.to_thread
import uvicorn

from joulery.background import PeriodicTask
from joulery.client import read_token, write_token
from joulery.clock import REAL_CLOCK
from joulery.errors import ConflictError, FileError, cannot_listen
from joulery.jobs import check_documents
from joulery.server._app import create_app
from joulery.server._auth import ServerContext
from joulery.server._cluster_page import WATCH_SECONDS, ClusterWatch
from joulery.server._connections import ConnectionGate, HttpConnection
from joulery.storage import (
    EVERY_TEAM,
    Permission,
    Store,
    TokenRecord,
    add_token,
    decision_secret,
    default_path,
    digest_of,
    find_token,
    job_heads,
    list_tokens,
)
from joulery.units import SECONDS_PER_DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import FastAPI

    from joulery.clock import Clock
    from joulery.server._config import ServerConfig
    from joulery.storage import Transaction

# Of the log, by hand: records that wait, letters of a record, time to write the last ones.
_CAPACITY, _LONGEST, _LOG_SECONDS = 2000, 4000, 2.0


class JsonFormatter(logging.Formatter):
    """One JSON object per record; records of other packages get the event ``library``.

    Records of the server carry their members as ``extra={"fields": {…}}``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {"wall_seconds": record.created, "level": record.levelname.lower()}
        if record.name.startswith("joulery.server"):
            line["event"] = record.getMessage()
            line |= getattr(record, "fields", {})
        else:
            text = record.getMessage()[:_LONGEST]
            line |= {"event": "library", "logger": record.name, "message": text}
        if record.exc_info:
            line["where"] = "".join(traceback.format_exception(*record.exc_info))[-_LONGEST:]
        return json.dumps(line, separators=(",", ":"), default=str)


class _DroppingHandler(logging.handlers.QueueHandler):
    """Hands records to the thread that writes; drops them where it cannot keep up."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # stays in this process, so nothing has to be made picklable

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """The queue is full: losing a line is better than delaying a request."""


class _Listener(logging.handlers.QueueListener):
    """Writes records in a thread of its own."""

    def enqueue_sentinel(self) -> None:
        """Wait for room in the queue, which may be full."""
        waiting: Any = self.queue  # has more than logging needs
        waiting.put(None)


@contextmanager
def json_log(stream: TextIO | None = None, level: int = logging.INFO) -> Iterator[None]:
    """Within it, all log records and warnings are JSON lines.

    Args:
        stream: Text stream for the lines; stderr unless given.
        level: Level from which the server's own records are written.
    """
    records: queue.Queue[logging.LogRecord | None] = queue.Queue(_CAPACITY)
    writer = logging.StreamHandler(stream or sys.stderr)
    writer.setFormatter(JsonFormatter())
    listener = _Listener(records, writer)
    handler, root = _DroppingHandler(records), logging.getLogger()
    server = logging.getLogger("joulery.server")
    level_before = server.level
    root.addHandler(handler)
    server.setLevel(level)
    logging.captureWarnings(True)  # noqa: FBT003 - its only argument
    listener.start()
    try:
        yield
    finally:
        logging.captureWarnings(False)  # noqa: FBT003
        server.setLevel(level_before)
        root.removeHandler(handler)
        # The process ends even if stderr is blocked.
        stopping = threading.Thread(target=listener.stop, daemon=True)
        stopping.start()
        stopping.join(_LOG_SECONDS)


_log = logging.getLogger("joulery.server")

# Time after which a busy thread lets others go first. Every statement of SQLite gives up the
# interpreter and waits this long to get it back from a thread that draws a page (measured: with
# Python's 5 ms, decisions beside large bodies take 10 times as long as alone).
_SWITCH_SECONDS = 0.001
_BACKLOG = 2048  # connections that wait to be accepted (by hand: a cluster that starts at once)
_STOP_SECONDS = 30  # for requests to end once others are refused (by hand)
_OTHER_FILES = 200  # of the store, the log and libraries (by hand)
_READER_THREADS = 8  # by hand: no more than the store has connections for
_YEAR_SECONDS = 365 * SECONDS_PER_DAY  # that first tokens last (by hand)
_RENEWAL_SECONDS = 30 * SECONDS_PER_DAY  # before the end (by hand)


@dataclass(frozen=True, slots=True)
class FirstStart:
    """Facts for the owner once the server answers.

    Attributes:
        address: Address of the server.
        admin_token: Administrator's token, made on the first start; None later.
        token_file: File that a token for this user's programs was written to just now; None if it
            had one.
    """

    address: str
    admin_token: str | None
    token_file: Path | None


def serve(config: ServerConfig, started: Callable[[FirstStart], None]) -> None:
    """Serve until SIGTERM or SIGINT, and return when all requests have been answered.

    Args:
        config: Configuration of the server.
        started: Function that is called once requests are answered.
    """
    check_tls(config)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with bound_socket(config) as listener, Store.open(config.store) as store:
        store.check()
        with store.reading() as transaction:
            check_documents(transaction, job_heads(transaction))
        ready = prepare(store, config, address_of(config, listener))
        gate = ConnectionGate(config.limits, _most_connections(config.limits.connections))
        context = ServerContext(
            store, _secret(store), config.limits, log_requests=config.log_requests, gate=gate
        )
        with json_log(level=config.log_level):
            watch = None if config.cluster_state is None else ClusterWatch(config.cluster_state)
            if watch is not None:  # held weakly by the task, which ends with it
                PeriodicTask(watch.sample, seconds=WATCH_SECONDS, name="joulery-cluster").start()
            app = create_app(context, config.electricity, watch, config.plans, config.notice)
            uvicorn_config = _uvicorn_config(config, app, gate)
            server = _Server(uvicorn_config, lambda: started(ready))
            with asyncio.Runner(loop_factory=uvicorn_config.get_loop_factory()) as runner:
                runner.run(_serve(server, listener, config, context))


class _Server(uvicorn.Server):
    """Leaves signals to ``_serve``, and says when requests are answered."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._call_started = started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info("ready")
        self._call_started()


def _uvicorn_config(config: ServerConfig, app: FastAPI, gate: ConnectionGate) -> uvicorn.Config:
    files = config.tls_certificate, config.tls_key
    certificate, key = (None if file is None else str(file) for file in files)
    limits = config.limits
    protocol: Any = partial(HttpConnection, gate=gate, limits=limits)
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(limits.idle_seconds),
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        backlog=_BACKLOG,
    )


def _most_connections(connections: int) -> int:
    """Number of connections that the process has file descriptors for, at most those configured."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = connections + _OTHER_FILES
    if soft < files and (hard == resource.RLIM_INFINITY or soft < hard):
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(16, soft - _OTHER_FILES))


async def _serve(
    server: _Server, listener: socket.socket, config: ServerConfig, context: ServerContext
) -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens = _READER_THREADS
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _drain, config, context, server)
    releasing = loop.create_task(_release_expired(config.expire_seconds, context))
    try:
        await server.serve([listener])
    finally:
        releasing.cancel()
        await asyncio.gather(releasing, return_exceptions=True)
        _log.info("stopped")


def _drain(config: ServerConfig, context: ServerContext, server: _Server) -> None:
    """Stop being ready, then stop; at once where that is asked for twice."""
    if context.draining:
        server.should_exit = True
        return
    context.draining = True
    _log.info("draining", extra={"fields": {"seconds": config.drain_seconds}})
    loop = asyncio.get_running_loop()
    loop.call_later(config.drain_seconds, setattr, server, "should_exit", True)  # noqa: FBT003


async def _release_expired(interval_seconds: float, context: ServerContext) -> None:
    """Release decisions whose leases have ended, from time to time."""
    while True:
        await asyncio.sleep(interval_seconds)
        try:
            released = await asyncio.to_thread(context.jobs.expire)
        except Exception as error:  # noqa: BLE001 - an edge: whatever it was, try again later
            _log.warning("expiry", extra={"fields": {"message": repr(error)[:500]}})
            continue
        if released:
            context.metrics.expired.inc(released)
            _log.info("expired", extra={"fields": {"decisions": released}})


def bound_socket(config: ServerConfig) -> socket.socket:
    """A socket that listens at the server's address.

    Raises:
        InvalidValueError: There is no such address.
        NotPossibleHereError: It is taken, or this user may not listen there.
    """
    target = f"{config.host} port {config.port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise cannot_listen(target, error) from None


def address_of(config: ServerConfig, listener: socket.socket) -> str:
    """The address at which programs of this machine find the server."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - it is undone
    return f"{config.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_tls(config: ServerConfig) -> None:
    """Check that the certificate and its key can be used, before anything is started.

    Raises:
        FileError: They cannot.
    """
    if config.tls_certificate is None:
        return
    import ssl

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.tls_certificate, config.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # errors of ssl are among the former
        raise FileError(
            f"cannot use {config.tls_certificate} with {config.tls_key}: "
            f"{error.strerror if isinstance(error, OSError) else error}",
            remedy="give a certificate and its own key without a password, both in PEM format",
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


def prepare(
    store: Store,
    config: ServerConfig,
    address: str,
    tokens: Path | None = None,
    clock: Clock = REAL_CLOCK,
) -> FirstStart:
    """Make the tokens that the owner of a store lacks."""
    now = clock.wall()
    _close_to_others(config.store)
    admin = store.write(lambda transaction: _first_token(transaction, now))
    token = read_token(address, tokens)
    with store.reading() as transaction:
        usable = token is not None and _lasts(transaction, token, now)
    if usable:
        return FirstStart(address, admin, None)
    words, expires = f"programs at {address}", now + _YEAR_SECONDS
    record = TokenRecord(EVERY_TEAM, Permission.MANAGE, words, expires)
    local, _ = store.write(lambda transaction: add_token(transaction, record, now))
    return FirstStart(address, admin, write_token(address, local, tokens))


def _secret(store: Store) -> bytes:
    """The secret of a store, made once by the process that comes first."""
    with contextlib.suppress(ConflictError):  # another process made it at the same moment
        return store.write(decision_secret)
    return store.write(decision_secret)


def _first_token(transaction: Transaction, now: float) -> str | None:
    if list_tokens(transaction):
        return None
    record = TokenRecord(EVERY_TEAM, Permission.MANAGE, "first start", now + _YEAR_SECONDS)
    return add_token(transaction, record, now)[0]


def _lasts(transaction: Transaction, token: str, now: float) -> bool:
    record = find_token(transaction, digest_of(token))
    return record is not None and record.valid(now + _RENEWAL_SECONDS)


def _close_to_others(location: str | None) -> None:
    """Make the file of a store unreadable for others, who could make tokens of decisions."""
    store = default_path() if location is None else location
    if "://" in str(store):
        return
    for end in ("", "-wal", "-shm"):
        path = Path(f"{store}{end}")
        with contextlib.suppress(OSError):  # another user's file, or none
            mode = path.stat().st_mode
            # A group that may write was given that right, one that may only read was not.
            closed_mode = mode & (0o770 if mode & 0o020 else 0o700)
            if mode & 0o077 != closed_mode & 0o077:
                path.chmod(closed_mode)
