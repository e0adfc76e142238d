"""What goes to PostgreSQL in one message, on a connection that only listens."""

import pytest

from joulery.storage import bulk
from joulery.storage.lines import PostgresqlLine

COUNTS = (bulk.COUNT, [{"of": 1, "to_events": 2, "to_recurrences": 1}])
COUNTED = """EXECUTE joulery_count('[{"of":1,"to_events":2,"to_recurrences":1}]')"""


class Listener:
    """Stands for a connection."""

    def __init__(self):
        self.info = {}
        self.heard = []

    def exec_driver_sql(self, message, execution_options):
        """Note a message, but for those that prepare."""
        assert execution_options == {"no_parameters": True}
        if message.startswith("PREPARE"):
            assert not self.info
            assert message.count("PREPARE joulery_") == len(bulk.READS) + len(bulk.WRITES)
        else:
            self.heard.append(message)


@pytest.fixture
def listener():
    """One that heard nothing yet."""
    return Listener()


@pytest.fixture
def line(listener):
    """To the listener."""
    return PostgresqlLine(listener)


def test_nothing_to_say_is_not_said(line, listener):
    """An operation that only waits in the group would wait for the database as well."""
    assert line.read([(bulk.LOCK, []), (bulk.DECISIONS_AT, [])]) == [(), ()]
    line.write([])
    line.finish([])
    assert listener.heard == []


def test_writing_begins_and_commits_along_the_way(line, listener):
    """Each of them would be waited for alone."""
    line.finish([COUNTS])
    assert listener.heard == [f"BEGIN;{COUNTED};COMMIT"]


def test_a_transaction_begins_once(line, listener):
    """What follows would be kept although the transaction is rolled back, or PostgreSQL warns."""
    assert line.connection is line.connection is listener
    line.write([COUNTS])
    line.finish([COUNTS])
    assert listener.heard == ["BEGIN", COUNTED, f"{COUNTED};COMMIT"]


def test_what_follows_a_commit_is_a_transaction_of_its_own(line, listener):
    """It would be kept whatever becomes of it."""
    line.finish([COUNTS])
    assert line.connection is listener
    assert listener.heard[1:] == ["BEGIN"]


def test_quotes_end_no_literal(line, listener):
    """Whoever chooses a key would write statements."""
    line.write([(bulk.ADD_EVENT, [{"body": "'); DROP TABLE jobs; --"}])])
    (message,) = listener.heard
    assert message.endswith("""'[{"body":"''); DROP TABLE jobs; --"}]')""")


def test_of_changes_to_one_row_the_last_counts(line, listener):
    """PostgreSQL would take any of them."""
    line.write([(bulk.CLOSE, [{"of": 1, "number": 2, "to": state} for state in (1, 2)])])
    assert listener.heard == ["""BEGIN;EXECUTE joulery_close('[{"of":1,"number":2,"to":2}]')"""]


@pytest.mark.parametrize("statement", [*bulk.READS, *bulk.WRITES], ids=lambda one: one.name)
def test_statements_have_one_parameter_and_a_name_of_their_own(statement):
    """A statement could not be prepared, which is found out by none but PostgreSQL."""
    assert statement.postgresql_text.count("$") == 1
    assert "$1" in statement.postgresql_text
    assert [one.name for one in (*bulk.READS, *bulk.WRITES)].count(statement.name) == 1
