"""Tokens in the store, on every database."""

import pytest

from joulery.errors import InvalidValueError, UnknownRecordError
from joulery.storage import (
    Permission,
    Store,
    TokenRecord,
    add_token,
    decision_secret,
    digest_of,
    find_token,
    list_tokens,
    revoke_token,
    right_named,
)


@pytest.fixture
def store(location):
    """An empty store."""
    with Store.open(location) as store:
        yield store


def made(store, team="vision", right=Permission.WORK, expires=None):
    """A token and what is stored of it."""
    wanted = TokenRecord(team, right, "for tests", expires)
    return store.write(lambda transaction: add_token(transaction, wanted, 100.0))


def test_a_token_is_found_by_its_digest_only(store):
    """A thief of the database would have every team's tokens."""
    text, record = made(store)
    with store.reading() as transaction:
        assert find_token(transaction, digest_of(text)) == record
        assert find_token(transaction, text.encode()) is None
        assert find_token(transaction, digest_of(text[:-1])) is None
        assert len(list_tokens(transaction)) == 1


def test_tokens_end(store):
    """Tokens would be good for ever."""
    _, record = made(store, expires=200.0)
    assert record.valid(199.0)
    assert not record.valid(200.0)
    revoked = store.write(lambda transaction: revoke_token(transaction, record.id, 150.0))
    assert not revoked.valid(151.0)
    again = store.write(lambda transaction: revoke_token(transaction, record.id, 170.0))
    assert again.revoked_wall_seconds == 150.0


def test_tokens_are_listed_and_revoked_by_number(store):
    """An owner could not find a token, or would revoke another one."""
    _, first = made(store)
    _, second = made(store, "speech", Permission.MANAGE)
    with store.reading() as transaction:
        assert list_tokens(transaction) == [first, second]
    store.write(lambda transaction: revoke_token(transaction, first.id, 1.0))
    with store.reading() as transaction:
        assert list_tokens(transaction)[1] == second
    with pytest.raises(UnknownRecordError):
        store.write(lambda transaction: revoke_token(transaction, 999, 1.0))


def test_the_secret_is_chosen_once(store):
    """Decisions handed out before a restart could not be reported on."""
    first = store.write(decision_secret)
    assert store.write(decision_secret) == first
    assert len(first) == 32


def test_unknown_rights_are_refused():
    """A misspelt right would be taken for another."""
    assert right_named("manage") is Permission.MANAGE
    with pytest.raises(InvalidValueError, match="owner"):
        right_named("owner")
