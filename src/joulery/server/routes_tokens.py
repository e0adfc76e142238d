"""Tokens over HTTP: made, listed and revoked by administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.jobs.wire_entries import page_document
from joulery.jobs.wire_members import checked, checked_number, text
from joulery.server.auth import sees
from joulery.server.calls import NOTHING, answer
from joulery.server.problems import NOT_FOUND, ProblemError
from joulery.storage.tokens import NewToken, add_token, list_tokens, revoke_token, right_named

if TYPE_CHECKING:
    from joulery.server.calls import Answer, Call
    from joulery.server.service import Service
    from joulery.storage.records import Document
    from joulery.storage.tokens import TokenRecord

SECONDS_PER_DAY = 86_400.0
DEFAULT_DAYS = 90.0


def token_document(record: TokenRecord) -> Document:
    """A token as administrators see it, without itself."""
    return {
        "id": record.id,
        "team": record.token.team,
        "rights": record.token.right.name.lower(),
        "label": record.token.label,
        "created_wall_seconds": record.created_wall_seconds,
        "expires_wall_seconds": record.token.expires_wall_seconds,
        "revoked_wall_seconds": record.revoked_wall_seconds,
    }


async def create_token(service: Service, call: Call) -> Answer:
    """Make a token; it is shown this once."""
    document = checked(call.document(), "a token", ("team", "rights", "label", "days"))
    now = service.clock.wall()
    days = checked_number(document.get("days", DEFAULT_DAYS), "days")
    team = text(document, "team")
    if not team or not sees(call.token, team):
        raise ProblemError(NOT_FOUND)
    wanted = NewToken(
        team=team,
        right=right_named(text(document, "rights", "work")),
        label=text(document, "label", ""),
        expires_wall_seconds=now + days * SECONDS_PER_DAY,
    )
    made, record = await service.write(lambda ledger: add_token(ledger, wanted, now))
    return answer(token_document(record) | {"token": made}, 201)


async def show_tokens(service: Service, call: Call) -> Answer:
    """Tokens by number, void ones included."""
    after, limit, _ = call.page(service.limits.page_entries)
    team = call.token.token.team
    found = await service.read(lambda ledger: list_tokens(ledger, team, after, limit + 1))
    following = found[limit - 1].id if len(found) > limit else None
    documents = [token_document(record) for record in found[:limit]]
    return answer(page_document("tokens", documents, following))


async def void_token(service: Service, call: Call) -> Answer:
    """Revoke a token; other workers notice within seconds."""
    number, team = call.number("token"), call.token.token.team
    now = service.clock.wall()
    await service.write(lambda ledger: revoke_token(ledger, number, now, team))
    service.doorkeeper.forget_all()
    return NOTHING
