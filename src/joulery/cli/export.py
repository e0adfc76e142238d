"""``joulery export``: energy and power of this machine's devices for Prometheus."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.cli.dispatch import Output
from joulery.cli.extras import require
from joulery.cli.measure import DEVICE_OPTION
from joulery.cli.options import Action, flag, listen_option
from joulery.errors import UsageError, cannot_listen
from joulery.metering import Meter

if TYPE_CHECKING:
    import argparse

_ADDRESS = ("127.0.0.1", 9400)
_SETTLE_SECONDS = 0.5  # by hand


def _run(arguments: argparse.Namespace) -> Output | int:
    if arguments.grafana:
        from joulery import integrations

        folder = Path(integrations.__file__).parent
        dashboard = (folder / "grafana.json").read_text(encoding="utf-8")
        return Output(json.loads(dashboard), dashboard)
    if arguments.json and arguments.listen is not None:
        raise UsageError(
            "--json prints one account and ends, --listen serves until interrupted",
            remedy="leave one of them out",
        )
    host, port = arguments.listen or _ADDRESS
    with Meter(arguments.device) as meter:
        if arguments.json:
            with meter.window("export") as window:
                meter.clock.sleep(_SETTLE_SECONDS)
            return Output(window.settle().to_dict(), "")
        require("server", "prometheus_client")
        from joulery.integrations import prometheus

        try:
            stop = prometheus.serve(meter, port, host)
        except OSError as error:
            raise cannot_listen(f"{host}:{port}", error) from None
        sys.stderr.write(
            f"joulery: {len(meter.devices)} device{'s' * (len(meter.devices) != 1)} at "
            f"http://{host}:{port}/metrics, until interrupted\n"
        )
        try:
            threading.Event().wait()
        finally:
            stop()
    return 0


COMMAND = Action(
    _run,
    (
        listen_option("address to listen on ({}:{})".format(*_ADDRESS)),
        DEVICE_OPTION,
        flag("--grafana", "print a dashboard for Grafana to import, and end"),
    ),
    epilog="""\
Metrics: joulery_device_joules_total, joulery_device_watts, joulery_device_limit_watts,
joulery_device_default_limit_watts, joulery_device_relative_error; one time series per
device. With --json: one document of half a second, and the end.

example: joulery export --listen 0.0.0.0:9400""",
)
