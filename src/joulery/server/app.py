"""The server as an ASGI application: every request goes through here, and only here.

No framework is in the way of a request: finding the operation, the caller and the limits takes
about as long as one function call of a router would. The description for people and generators is
made of the same table, with FastAPI (:mod:`joulery.server.description`).
"""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any

from joulery.errors import JouleryError, StoreError
from joulery.server.auth import allows, bearer
from joulery.server.bodies import read_body
from joulery.server.calls import Answer, Call
from joulery.server.catalogue import OPERATIONS, TABLE
from joulery.server.limits import RateLimiter
from joulery.server.metrics import NO_OPERATION
from joulery.server.operations import OPEN_TO_ALL
from joulery.server.problems import (
    INTERNAL,
    MEDIA_TYPE,
    NO_DECISION_TOKEN,
    NO_RIGHT,
    NO_TOKEN,
    Problem,
    ProblemError,
    later,
    problem_of,
)
from joulery.storage.tokens import Permission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from joulery.server.logs import Log
    from joulery.server.operations import Operation
    from joulery.server.service import Service
    from joulery.storage.tokens import TokenRecord

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

_SLOW_SECONDS = 1.0


class Application:
    """See above.

    Args:
        service: What handlers work with.
        log: Where to say what went wrong.
    """

    def __init__(self, service: Service, log: Log) -> None:
        limits = service.limits
        self._service = service
        self._log = log
        self._in_flight = 0
        self._calls = RateLimiter(limits.calls_per_second, limits.burst_calls, limits.remembered)
        self._failures = RateLimiter(
            limits.failures_per_second, 10 * limits.failures_per_second, limits.remembered
        )
        service.metrics.names = tuple(TABLE.numbers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        began = time.perf_counter()
        self._in_flight += 1
        number = NO_OPERATION
        try:
            operation, parameters = TABLE.find(scope["method"], scope["raw_path"])
            number = TABLE.numbers[operation.name]
            answer = await self._handle(operation, parameters, scope, receive)
        except ProblemError as error:
            answer = _told(error.problem)
        except JouleryError as error:
            answer = _told(problem_of(error))
            if isinstance(error, StoreError):
                self._log.say("store", error=type(error).__name__, message=error.message)
        except Exception as error:  # noqa: BLE001 - the edge: nobody outside may see our insides
            answer = _told(INTERNAL)
            self._log.say("failed", error=repr(error)[:500], where=traceback.format_exc()[-4000:])
        finally:
            self._in_flight -= 1
        await _send(send, answer)
        self._note(scope, number, answer.status, time.perf_counter() - began)

    async def _handle(
        self, operation: Operation, parameters: dict[str, str], scope: Scope, receive: Receive
    ) -> Answer:
        service = self._service
        access = operation.access
        if access is OPEN_TO_ALL:
            return await operation.handler(
                service, Call(parameters, scope["query_string"], b"", None)
            )
        if self._in_flight > service.limits.waiting_requests:
            raise ProblemError(later("too many requests are under way"))
        headers = scope["headers"]
        caller: TokenRecord | None = None
        if isinstance(access, Permission):
            caller = await self._caller(headers, scope)
            if not allows(caller, access):
                raise ProblemError(NO_RIGHT)
        else:
            self._check_decision(parameters["decision"], headers)
        body = await read_body(headers, receive, service.limits) if operation.takes else b""
        return await operation.handler(
            service, Call(parameters, scope["query_string"], body, caller)
        )

    async def _caller(self, headers: list[tuple[bytes, bytes]], scope: Scope) -> TokenRecord:
        token = bearer(headers)
        if token is None:
            raise ProblemError(NO_TOKEN)
        now = self._service.clock.now()
        keeper = self._service.doorkeeper
        # Whoever guesses is slowed down before a guess costs a look into the store; whoever was
        # let in before is not, even if somebody guesses from the same address.
        address = _address(scope)
        if self._failures.exhausted(address, now) and not keeper.knows(token):
            raise ProblemError(later("too many calls without a valid token", 429))
        record = await keeper.verify(token)
        if record is None:
            self._failures.wait_seconds(address, now)
            raise ProblemError(NO_TOKEN)
        self._slow_down(record.id, now)
        return record

    def _check_decision(self, decision: str, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._service.signer.fits(decision, bearer(headers)):
            raise ProblemError(NO_DECISION_TOKEN)
        self._slow_down(decision.partition(".")[0], self._service.clock.now())

    def _slow_down(self, caller: object, now: float) -> None:
        seconds = self._calls.wait_seconds(caller, now)
        if seconds:
            raise ProblemError(later("too many calls with this token", 429, int(seconds) + 1))

    def _note(self, scope: Scope, number: int, status: int, seconds: float) -> None:
        metrics = self._service.metrics
        metrics.observe(number, status, seconds)
        metrics.note_in_flight(self._in_flight)
        if self._log.requests or status >= 500 or seconds > _SLOW_SECONDS:
            name = "none" if number == NO_OPERATION else OPERATIONS[number].name
            self._log.say(
                "request",
                operation=name,
                method=scope["method"],
                status=status,
                seconds=round(seconds, 6),
                address=_address(scope),
            )
            metrics.note_dropped(self._log.dropped)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _told(problem: Problem) -> Answer:
    return Answer(problem.body(), problem.status, MEDIA_TYPE, problem.headers)


async def _send(send: Send, answer: Answer) -> None:
    headers = [(b"cache-control", b"no-store"), *answer.headers]
    if answer.status != 204:
        headers.append((b"content-type", answer.media_type))
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
