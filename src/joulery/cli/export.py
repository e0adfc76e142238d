"""``joulery export``: energy and power of this machine's devices for Prometheus."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from joulery.metering import Meter

_SETTLE_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = (
        "Metrics: joulery_device_joules_total, joulery_device_watts, joulery_device_limit_watts,\n"
        "joulery_device_relative_error; one time series per device.\n\n"
        "example: joulery export --address 0.0.0.0 --port 9400"
    )
    parser.add_argument("--port", type=int, default=9400, help="TCP port (default 9400)")
    parser.add_argument(
        "--address", default="127.0.0.1", help="address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--device", action="append", metavar="NAME", help="only this device; repeat for several"
    )
    parser.add_argument("--once", action="store_true", help="print the metrics once and end")
    parser.add_argument(
        "--grafana", action="store_true", help="print a dashboard for Grafana to import, and end"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and end")


def run(arguments: argparse.Namespace) -> int:
    """Serve the metrics until interrupted."""
    from joulery.errors import InvalidValueError, MissingExtraError, NotPossibleHereError
    from joulery.metering import Meter

    if arguments.grafana:
        from joulery import integrations

        folder = Path(integrations.__file__).parent
        sys.stdout.write((folder / "grafana.json").read_text(encoding="utf-8"))
        return 0
    if not 0 <= arguments.port <= 65535:
        raise InvalidValueError(f"--port {arguments.port} is no TCP port", remedy="use 1 to 65535")
    with Meter(arguments.device) as meter:
        if arguments.json:
            sys.stdout.write(json.dumps(_document(meter), allow_nan=False) + "\n")
            return 0
        try:
            from joulery.integrations import prometheus
        except ImportError:
            raise MissingExtraError(
                "exporting needs prometheus-client", remedy="pip install 'joulery[server]'"
            ) from None
        if arguments.once:
            sys.stdout.write(prometheus.text(meter, _SETTLE_SECONDS))
            return 0
        try:
            stop = prometheus.serve(meter, arguments.port, arguments.address)
        except OSError as error:
            raise NotPossibleHereError(
                f"cannot listen on {arguments.address}:{arguments.port}: {error.strerror}",
                remedy="choose another --port or --address",
            ) from error
        sys.stderr.write(
            f"joulery: {len(meter.devices)} devices at "
            f"http://{arguments.address}:{arguments.port}/metrics, until interrupted\n"
        )
        try:
            threading.Event().wait()
        finally:
            stop()
    return 0


def _document(meter: Meter) -> dict[str, Any]:
    """Devices, with their energy and power over half a second."""
    with meter.window("export") as window:
        meter.clock.sleep(_SETTLE_SECONDS)
    return window.settle().to_dict()
