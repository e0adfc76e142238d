"""``joulery export``: devices of this machine for Prometheus."""

import json
import socket

from joulery.cli import main


def test_the_dashboard_draws_what_is_exported(capsys):
    """If this fails, Grafana shows empty panels."""
    assert main(["export", "--grafana"]) == 0
    dashboard = json.loads(capsys.readouterr().out)
    drawn = json.dumps([panel["targets"] for panel in dashboard["panels"]])
    assert "joulery_device_joules_total" in drawn
    assert "joulery_device_watts" in drawn


def test_a_port_in_use_is_named(capsys):
    """If this fails, a second exporter ends in a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["export", "--listen", f"127.0.0.1:{port}"]) == 3
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_one_account_and_an_address_are_not_both(capsys):
    """`--json --listen` ends after half a second, and nobody learns that nothing listens."""
    assert main(["export", "--json", "--listen", "127.0.0.1:8421"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert "--listen serves until interrupted" in document["error"]
