"""Who calls."""

import asyncio
import base64
import hmac
import struct

import pytest
from starlette.requests import Request

from joulery.clock import VirtualClock
from joulery.server._auth import (
    CACHED_SECONDS,
    Signer,
    TokenCache,
    bearer_token,
    may_see,
    named_team,
)
from joulery.storage import Permission, TokenRecord, digest_of


def record(team="vision", right=Permission.WORK):
    """A stored token."""
    return TokenRecord(team, right, "", None, 0.0, None, 1)


class Book:
    """A store of tokens that counts how often it is asked."""

    def __init__(self, **tokens):
        self.tokens = {digest_of(name): value for name, value in tokens.items()}
        self.asked = 0

    async def find(self, digest):
        """Look one up."""
        self.asked += 1
        return self.tokens.get(digest)


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        ([(b"authorization", b"Bearer abc")], "abc"),
        ([(b"authorization", b"bearer abc")], "abc"),
        ([], ""),
        ([(b"authorization", b"Basic abc")], ""),
        ([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")], ""),
    ],
)
def test_tokens_are_read_from_one_header(headers, token):
    """A proxy and we might take different tokens for the caller's."""
    assert bearer_token(Request({"type": "http", "headers": headers})) == token


def test_a_token_is_looked_up_once_in_a_while():
    """Every request would cost a look into the store, or a revoked token would work for ever."""
    clock, book = VirtualClock(), Book(a=record())
    cache = TokenCache(book.find, clock, 10)
    for _ in range(5):
        assert asyncio.run(cache.find("a")) is not None
    assert book.asked == 1
    book.tokens.clear()
    clock.sleep(CACHED_SECONDS + 0.1)
    assert asyncio.run(cache.find("a")) is None


def test_many_at_once_cost_one_look():
    """Every few seconds all requests would queue up for the store."""
    book = Book(a=record())
    cache = TokenCache(book.find, VirtualClock(), 10)

    async def ask():
        return await asyncio.gather(*(cache.find("a") for _ in range(100)))

    assert all(asyncio.run(ask()))
    assert book.asked == 1


def test_a_store_that_fails_is_asked_again():
    """One failure would keep a team out for ever."""
    book = Book(a=record())
    cache = TokenCache(book.find, VirtualClock(), 10)
    tokens, book.tokens = book.tokens, None

    async def ask():
        with pytest.raises(AttributeError):
            await cache.find("a")
        book.tokens = tokens
        return await cache.find("a")

    assert asyncio.run(ask()) is not None


def test_made_up_tokens_do_not_fill_the_memory():
    """Guessing would use up the memory."""
    cache = TokenCache(Book().find, VirtualClock(), 50)

    async def guess():
        for number in range(500):
            await cache.find(str(number))

    asyncio.run(guess())
    assert len(cache._known) == 50


def test_those_let_in_before_are_known():
    """A client that guesses would lock out all others at the same address."""
    clock = VirtualClock()
    cache = TokenCache(Book(a=record()).find, clock, 10)
    assert not cache.is_known("a")
    asyncio.run(cache.find("a"))
    asyncio.run(cache.find("wrong"))
    assert cache.is_known("a")
    assert cache.is_known("wrong")
    clock.sleep(CACHED_SECONDS + 1.0)
    assert cache.is_known("a")
    assert not cache.is_known("wrong")


def test_rights_end_at_the_team():
    """A team could see another's jobs."""
    assert may_see(record("vision"), "vision")
    assert not may_see(record("vision"), "speech")
    assert not may_see(record("vision"), "*")
    assert may_see(record("*"), "speech")


def test_the_default_team_is_that_of_the_token():
    """Whoever has the token of a team is told that no record exists, until JOULERY_TEAM is set."""
    vision = record("vision")
    assert named_team(vision, "default") == "vision"
    assert named_team(vision, "speech%2Fa") == "speech/a"
    assert named_team(record("*"), "default") == "default"


def test_decision_tokens_fit_one_decision_of_one_store():
    """A holder could report on another's decision."""
    signer = Signer(b"secret")
    token = signer.token("7.12", 1.8e9)
    assert signer.issued("7.12", token) == 1.8e9
    later = signer.token("7.12", 1.8e9 + 1e-6)  # of a store that was restored in between
    assert later != token
    assert signer.issued("7.12", later) == 1.8e9 + 1e-6
    for wrong in (token[:-1], "A" + token[1:], None, "", "ÿ", "🙂" * 20, "=" * 54):
        assert signer.issued("7.12", wrong) is None
    assert signer.issued("7.13", token) is None
    assert Signer(b"other").issued("7.12", token) is None


def test_decision_tokens_are_standard():
    """A mistake in our own arithmetic would make tokens that can be guessed."""
    secret = bytes(range(32))
    nonce = struct.pack(">d", 1.8e9)
    code = hmac.digest(secret, b"joulery decision 2:" + nonce + b"7.12", "sha256")
    token = Signer(secret).token("7.12", 1.8e9)
    assert base64.urlsafe_b64decode(token + "==") == nonce + code
