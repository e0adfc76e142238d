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
from joulery.errors import NotPossibleHereError
from joulery.metering import Meter

if TYPE_CHECKING:
    import argparse

_SETTLE_SECONDS = 0.5  # by hand


def _run(arguments: argparse.Namespace) -> Output | int:
    if arguments.grafana:
        from joulery import integrations

        folder = Path(integrations.__file__).parent
        dashboard = (folder / "grafana.json").read_text(encoding="utf-8")
        return Output(json.loads(dashboard), dashboard)
    host, port = arguments.listen
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
            raise NotPossibleHereError(
                f"cannot listen on {host}:{port}: {error.strerror}",
                remedy="choose another address with --listen",
            ) from error
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
        listen_option("address to listen on", ("127.0.0.1", 9400)),
        DEVICE_OPTION,
        flag("--grafana", "print a dashboard for Grafana to import, and end"),
    ),
    epilog="""\
Metrics: joulery_device_joules_total, joulery_device_watts, joulery_device_limit_watts,
joulery_device_relative_error; one time series per device. With --json: one document of half a
second, and the end.

example: joulery export --listen 0.0.0.0:9400""",
)
