"""Whole-node meters that environment variables name.

``JOULERY_NODE_METER`` holds one or more of these, separated by blanks:

- ``visa:TCPIP0::192.0.2.7::INSTR`` a wattmeter (``joulery.hardware.node._scpi``)
- ``ipmi:`` this node's management controller, ``ipmi:HOST`` another's, as
  ``JOULERY_IPMI_USER`` with the password in ``IPMI_PASSWORD`` (``joulery.hardware.node._ipmi``)
- ``redfish:https://HOST/redfish/v1/Chassis/1`` as ``JOULERY_REDFISH_USER`` with
  ``JOULERY_REDFISH_PASSWORD``, certificate authority in ``JOULERY_REDFISH_CA``
  (``joulery.hardware.node._redfish``)

A node's energy contains that of its CPUs and GPUs, and must not be added to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError, JouleryError
from joulery.hardware._device import Obstacle, Survey
from joulery.hardware._integrated import with_energy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.clock import Clock
    from joulery.hardware._device import Device
    from joulery.hardware._integrated import PoweredDevice

VARIABLE = "JOULERY_NODE_METER"


def survey(environ: Mapping[str, str], clock: Clock = REAL_CLOCK) -> Survey:
    """The meters that ``environ`` names, each tried once, and the obstacles to using others."""
    devices: list[Device] = []
    obstacles: list[Obstacle] = []
    for specification in environ.get(VARIABLE, "").split():
        try:
            devices.append(open_node_meter(specification, environ, clock))
        except JouleryError as error:
            obstacles.append(Obstacle.from_error(f"node meter {specification}", error))
    return Survey(tuple(devices), tuple(obstacles))


def check_node_meters(environ: Mapping[str, str]) -> None:
    """Refuse a variable that names a kind of meter that there is not.

    Raises:
        InvalidValueError: A word does not specify a meter.
    """
    for specification in environ.get(VARIABLE, "").split():
        _parsed(specification)


def _parsed(specification: str) -> tuple[str, str]:
    """Kind and address of a meter."""
    kind, separator, address = specification.partition(":")
    if not separator or kind not in {"visa", "ipmi", "redfish"}:
        raise InvalidValueError(
            f"unknown node meter {specification!r} in {VARIABLE}",
            remedy='write "visa:RESOURCE", "ipmi:", "ipmi:HOST" or "redfish:URL"',
        )
    return kind, address


def open_node_meter(
    specification: str, environ: Mapping[str, str], clock: Clock = REAL_CLOCK
) -> Device:
    """The meter that a specification such as ``ipmi:`` names, once it has answered.

    Its power is integrated to energy.
    """
    kind, address = _parsed(specification)
    meter: PoweredDevice
    if kind == "visa":
        from joulery.hardware.node import _scpi as scpi

        meter = scpi.open_meter(address)
    elif kind == "ipmi":
        from joulery.hardware.node import _ipmi as ipmi

        meter = ipmi.IpmiMeter(address, environ.get("JOULERY_IPMI_USER", ""))
    else:
        from joulery.hardware.node import _redfish as redfish

        names = ("JOULERY_REDFISH_USER", "JOULERY_REDFISH_PASSWORD", "JOULERY_REDFISH_CA")
        user, password, authority = (environ.get(name, "") for name in names)
        meter = redfish.RedfishMeter(address, user, password, authority or None)
    meter.read_power()
    return with_energy(meter, clock)
