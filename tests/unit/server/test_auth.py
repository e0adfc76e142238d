"""Who calls."""

import asyncio
import base64
import hmac

import pytest

from joulery.clock import VirtualClock
from joulery.server.auth import REMEMBERED_SECONDS, Signer, TokenCache, allows, bearer, sees
from joulery.storage.tokens import NewToken, Permission, TokenRecord, digest_of


def record(team="vision", right=Permission.WORK, expires=None, revoked=None):
    """A stored token."""
    return TokenRecord(1, NewToken(team, right, "", expires), 0.0, revoked)


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
        ([(b"authorization", b"bearer abc ")], "abc"),
        ([], None),
        ([(b"authorization", b"Basic abc")], None),
        ([(b"authorization", b"Bearer \xff")], None),
        ([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")], None),
        ([(b"authorization", b"Bearer " + b"a" * 1000)], None),
    ],
)
def test_tokens_are_read_from_one_header(headers, token):
    """A proxy and we might take different tokens for the caller's."""
    assert bearer(headers) == token


def test_a_token_is_looked_up_once_in_a_while():
    """Every request would cost a look into the store, or a revoked token would work for ever."""
    clock, book = VirtualClock(), Book(a=record())
    keeper = TokenCache(book.find, clock, 10)
    for _ in range(5):
        assert asyncio.run(keeper.verify("a")) is not None
    assert book.asked == 1
    book.tokens.clear()
    clock.sleep(REMEMBERED_SECONDS + 0.1)
    assert asyncio.run(keeper.verify("a")) is None


def test_many_at_once_cost_one_look():
    """Every few seconds all requests would queue up for the store."""
    book = Book(a=record())
    keeper = TokenCache(book.find, VirtualClock(), 10)

    async def ask():
        return await asyncio.gather(*(keeper.verify("a") for _ in range(100)))

    assert all(asyncio.run(ask()))
    assert book.asked == 1


def test_a_store_that_fails_is_asked_again():
    """One failure would keep a team out for ever."""
    book = Book(a=record())
    keeper = TokenCache(book.find, VirtualClock(), 10)
    tokens, book.tokens = book.tokens, None

    async def ask():
        with pytest.raises(AttributeError):
            await keeper.verify("a")
        book.tokens = tokens
        return await keeper.verify("a")

    assert asyncio.run(ask()) is not None


def test_unknown_expired_and_revoked_tokens_open_nothing():
    """Whoever left the team would still be let in."""
    clock = VirtualClock()
    past = clock.wall() - 1.0
    book = Book(old=record(expires=past), void=record(revoked=past), fine=record())
    keeper = TokenCache(book.find, clock, 10)
    assert asyncio.run(keeper.verify("old")) is None
    assert asyncio.run(keeper.verify("void")) is None
    assert asyncio.run(keeper.verify("made up")) is None
    assert asyncio.run(keeper.verify("fine")) is not None


def test_a_token_that_expires_while_remembered_is_refused():
    """Tokens would last longer than they say."""
    clock = VirtualClock()
    keeper = TokenCache(Book(a=record(expires=clock.wall() + 1.0)).find, clock, 10)
    assert asyncio.run(keeper.verify("a")) is not None
    clock.sleep(1.5)
    assert asyncio.run(keeper.verify("a")) is None


def test_made_up_tokens_do_not_fill_the_memory():
    """Guessing would use up the memory."""
    keeper = TokenCache(Book().find, VirtualClock(), 50)

    async def guess():
        for number in range(500):
            await keeper.verify(str(number))

    asyncio.run(guess())
    assert len(keeper._known) == 50


def test_those_let_in_before_are_known():
    """Somebody who guesses would keep out everybody at the same address."""
    clock = VirtualClock()
    keeper = TokenCache(Book(a=record()).find, clock, 10)
    assert not keeper.knows("a")
    asyncio.run(keeper.verify("a"))
    asyncio.run(keeper.verify("wrong"))
    assert keeper.knows("a")
    assert keeper.knows("wrong")
    clock.sleep(REMEMBERED_SECONDS + 1.0)
    assert keeper.knows("a")
    assert not keeper.knows("wrong")


def test_rights_include_those_before_and_end_at_the_team():
    """A reader could forget jobs, or a team see another's."""
    assert allows(record(right=Permission.MANAGE), Permission.READ)
    assert not allows(record(right=Permission.READ), Permission.WORK)
    assert sees(record("vision"), "vision")
    assert not sees(record("vision"), "speech")
    assert not sees(record("vision"), "*")
    assert sees(record("*"), "speech")


def test_decision_tokens_fit_one_decision_of_one_store():
    """A holder could report on another's decision."""
    signer = Signer(b"secret")
    token = signer.token("7.12")
    assert signer.fits("7.12", token)
    assert not signer.fits("7.13", token)
    assert not signer.fits("7.12", token[:-1])
    assert not signer.fits("7.12", None)
    assert not Signer(b"other").fits("7.12", token)


def test_decision_tokens_are_standard():
    """A mistake in our own arithmetic would make tokens that can be guessed."""
    secret = bytes(range(32))
    code = hmac.digest(secret, b"joulery decision 1:7.12", "sha256")
    assert base64.urlsafe_b64decode(Signer(secret).token("7.12") + "=") == code
