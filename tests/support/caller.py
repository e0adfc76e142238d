"""Requests to the server's application, without a network."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from joulery.clock import VirtualClock
from joulery.server._app import create_app
from joulery.server._auth import ServerContext
from joulery.storage import (
    Permission,
    TokenRecord,
    add_token,
    begin_session,
    digest_of,
    find_token,
)
from support.server_process import JOB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.server._config import Limits
    from joulery.storage import Store, Transaction


SAME_ORIGIN = [(b"host", b"jobs.example:8420"), (b"origin", b"http://jobs.example:8420")]


class Caller:
    """Asks an application as a server would.

    Args:
        store: Opened store.
        limits: Limits of the server.
    """

    def __init__(self, store: Store, limits: Limits) -> None:
        self.clock = VirtualClock()
        record = TokenRecord("*", Permission.MANAGE)
        self.token, _ = store.write(lambda transaction: add_token(transaction, record, 0.0))
        self.context = ServerContext(store, b"secret", limits, self.clock)
        self.application = create_app(self.context)

    async def ask(
        self,
        method: str,
        path: str,
        document: Any = None,
        token: str | None = None,
        parts: Iterable[bytes | None] | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> tuple[int, dict[bytes, bytes], Any]:
        """Status, headers and document of the answer."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        waiting = [body] if parts is None else list(parts)
        path, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                (b"authorization", f"Bearer {token or self.token}".encode()),
                (b"content-type", b"application/json"),
                *headers,
            ],
            "client": ("10.0.0.1", 1),
        }
        messages: list[Any] = []

        async def receive() -> Any:
            if not waiting:
                return {"type": "http.disconnect"}
            part = waiting.pop(0)
            if part is None:
                await asyncio.sleep(60)
            return {"type": "http.request", "body": part, "more_body": bool(waiting)}

        async def send(message: Any) -> None:
            messages.append(message)

        await self.application(scope, receive, send)
        start, *parts = messages
        content = b"".join(part.get("body", b"") for part in parts)
        answer_headers = dict(start["headers"])
        is_json = content and b"json" in answer_headers.get(b"content-type", b"")
        return start["status"], answer_headers, json.loads(content) if is_json else content

    def browser(self, token: str | None = None) -> list[tuple[bytes, bytes]]:
        """Headers of a browser that has logged in with a token."""

        def begin(transaction: Transaction) -> str:
            record = find_token(transaction, digest_of(token or self.token))
            assert record is not None
            return begin_session(transaction, record.id, self.clock.wall())

        session = self.context.store.write(begin)
        cookie = f"joulery_session={session}".encode()
        return [(b"cookie", cookie), *SAME_ORIGIN, (b"accept", b"text/html,*/*;q=0.8")]

    async def job(self) -> int:
        """A job that was defined."""
        document = {"job": JOB, "policy": "zeus"}
        status, _, answer = await self.ask("POST", "/v1/teams/vision/jobs", document)
        assert status == 200
        return int(answer["id"])
