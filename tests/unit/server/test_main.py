"""What a server makes before it serves."""

import stat

import pytest

from joulery.client import read_token
from joulery.clock import VirtualClock
from joulery.server import ServerConfig
from joulery.server._main import address_of, bound_socket, prepare as prepare_opened
from joulery.storage import Permission, Store, digest_of, find_token, list_tokens, revoke_token

ADDRESS = "http://127.0.0.1:8420"
_DAY_SECONDS = 86_400.0


@pytest.fixture
def config(tmp_path):
    """Of a server that never ran."""
    return ServerConfig(store=str(tmp_path / "store.sqlite"), port=0)


def prepare(config, address, file, clock):
    """The tokens of a store that is opened for it."""
    with Store.open(config.store) as store:
        return prepare_opened(store, config, address, file, clock)


def right_of(config, token):
    """What a token allows."""
    with Store.open(config.store) as store, store.reading() as transaction:
        return find_token(transaction, digest_of(token)).right


def test_tokens_are_made_once(config, tmp_path):
    """Every start would leave another token that opens everything."""
    clock, file = VirtualClock(), tmp_path / "tokens.json"
    first = prepare(config, ADDRESS, file, clock)
    again = prepare(config, ADDRESS, file, clock)
    assert right_of(config, first.admin_token) is Permission.MANAGE
    assert right_of(config, read_token(ADDRESS, file)) is Permission.MANAGE
    assert (again.admin_token, again.token_file) == (None, None)
    mode = stat.S_IMODE((tmp_path / "store.sqlite").stat().st_mode)
    assert not mode & 0o007


@pytest.mark.parametrize("lost", ["file", "revoked", "expiring", "moved"])
def test_programs_of_the_owner_get_in_again(config, tmp_path, lost):
    """Training on the server's machine would stop without a word."""
    clock, file = VirtualClock(), tmp_path / "tokens.json"
    prepare(config, ADDRESS, file, clock)
    before, address = read_token(ADDRESS, file), ADDRESS
    if lost == "file":
        file.unlink()
    elif lost == "revoked":
        with Store.open(config.store) as store:
            with store.reading() as transaction:
                number = list_tokens(transaction)[-1].id
            store.write(lambda transaction: revoke_token(transaction, number, clock.wall()))
    elif lost == "expiring":
        clock.sleep(350 * _DAY_SECONDS)
    else:
        address = "http://127.0.0.1:9000"
    assert prepare(config, address, file, clock).token_file == file
    assert read_token(address, file) not in (None, before)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])  # noqa: S104
def test_the_address_is_one_to_connect_to(host, shown):
    """Clients would get an address that cannot be connected to."""
    config = ServerConfig(host=host, port=0, insecure=True)
    with bound_socket(config) as listener:
        port = listener.getsockname()[1]
        assert address_of(config, listener) == f"http://{shown}:{port}"
