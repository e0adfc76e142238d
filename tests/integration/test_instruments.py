"""Node meters over real sockets: PyVISA to a wattmeter, HTTP to a controller."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import DeviceError, MissingRightsError, UnsupportedError
from joulery.hardware import Capability, IntegratedPower, node
from joulery.hardware.node import _scpi as scpi
from joulery.hardware.node._redfish import RedfishMeter
from joulery.testing.device_contract import DeviceContract
from support.wattmeter import EmulatedWattMeter, WattMeterServer

CHASSIS = "/redfish/v1/Chassis/1"


@pytest.fixture
def emulated():
    """An emulated meter."""
    return EmulatedWattMeter()


@pytest.fixture
def server(emulated):
    """The meter on a local port."""
    with WattMeterServer(emulated) as server:
        yield server


@pytest.fixture
def visa(monkeypatch):
    """Open through PyVISA-py, and close what was opened."""
    opened = []

    def connect(resource):
        opened.append(connect_visa(resource, "@py"))
        return opened[-1]

    connect_visa = scpi.connect_visa
    monkeypatch.setattr(scpi, "connect_visa", connect)
    yield connect
    for session in opened:
        session.close()


def test_power_through_pyvisa(server, visa):
    """Terminators, timeouts and number formats of the real transport."""
    assert scpi.open_meter(server.resource).read_power() == 350.0


def test_concurrent_reads_do_not_mix_replies(server, visa):
    """Two samplers on one connection must each get their own answer."""
    meter = scpi.open_meter(server.resource)
    session = meter._session
    seen = set()

    def sample():
        for _ in range(20):
            seen.update({meter.read_power(), session.query("*IDN?")})

    threads = [threading.Thread(target=sample) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {350.0, "YOKOGAWA,WT310E,C2QG12345V,F1.04"}


def test_environment_to_wattmeter(server, visa):
    """The variable's resource string reaches the meter, whose power is integrated."""
    found = node.survey({"JOULERY_NODE_METER": f"visa:{server.resource}"}, VirtualClock())
    assert found.obstacles == ()
    (meter,) = found.devices
    assert isinstance(meter, IntegratedPower)
    assert meter.info.id == "scpi:WT310E:C2QG12345V"


def test_no_listener_is_an_obstacle(visa):
    """A meter that is switched off must not raise out of discovery."""
    with WattMeterServer(EmulatedWattMeter()) as closed:
        resource = closed.resource
    (obstacle,) = node.survey({"JOULERY_NODE_METER": f"visa:{resource}"}, REAL_CLOCK).obstacles
    assert resource in obstacle.subject
    assert obstacle.remedy


@pytest.mark.parametrize("resource", ["nonsense", "TCPIP0::", "USB9::x::INSTR"])
def test_a_malformed_resource_is_a_device_error(visa, resource):
    """Whatever PyVISA raises for it."""
    with pytest.raises(DeviceError, match="cannot open"):
        scpi.open_meter(resource)


def test_a_silent_meter_times_out(server, visa, emulated, monkeypatch):
    """An instrument that stops answering must not block the run for good."""
    monkeypatch.setattr(scpi, "TIMEOUT_SECONDS", 0.1)
    meter = scpi.open_meter(server.resource)
    monkeypatch.setattr(emulated, "answer", lambda command: None)
    with pytest.raises(DeviceError, match="VALUE"):
        meter.read_power()


class TestWattMeterThroughPyvisa(DeviceContract):
    """The whole contract over a real socket."""

    @pytest.fixture
    def device(self, server, visa):
        """The device under test."""
        return scpi.open_meter(server.resource)


class Controller(ThreadingHTTPServer):
    """A management controller with documents by path."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Reply)
        self.documents = {}
        self.account = None
        self.asked = []

    @property
    def url(self):
        """Where the chassis is."""
        return f"http://127.0.0.1:{self.server_address[1]}{CHASSIS}"


class _Reply(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        wanted = self.server.account
        if wanted and self.headers["Authorization"] != wanted:
            self.send_error(401)
            return
        content = self.server.documents.get(self.path)
        if isinstance(content, int):
            self.send_response(content)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
        elif content is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )

    def log_message(self, *arguments):
        """Keep the test's output clean."""


@pytest.fixture
def controller():
    """A running management controller."""
    controller = Controller()
    thread = threading.Thread(target=controller.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield controller
    controller.shutdown()
    controller.server_close()
    thread.join()


def test_redfish_power(controller):
    """The resource that most controllers have."""
    controller.documents[f"{CHASSIS}/Power"] = {"PowerControl": [{"PowerConsumedWatts": 344}]}
    assert RedfishMeter(controller.url).read_power() == 344.0


def test_redfish_environment_metrics(controller):
    """The resource of newer controllers, tried second."""
    controller.documents[f"{CHASSIS}/EnvironmentMetrics"] = {"PowerWatts": {"Reading": 371.5}}
    assert RedfishMeter(controller.url).read_power() == 371.5
    assert controller.asked == [f"{CHASSIS}/Power", f"{CHASSIS}/EnvironmentMetrics"]


def test_redfish_without_power(controller):
    """A chassis that is only a shelf."""
    with pytest.raises(UnsupportedError):
        RedfishMeter(controller.url).read_power()


def test_redfish_account(controller):
    """The right account reads, the wrong one gets a remedy."""
    controller.account = "Basic " + base64.b64encode(b"me:secret").decode()
    controller.documents[f"{CHASSIS}/Power"] = {"PowerControl": [{"PowerConsumedWatts": 344}]}
    assert RedfishMeter(controller.url, "me", "secret").read_power() == 344.0
    with pytest.raises(MissingRightsError, match="JOULERY_REDFISH_USER"):
        RedfishMeter(controller.url, "me", "wrong").read_power()


@pytest.mark.parametrize("status", [302, 500, 503])
def test_redfish_other_answers(controller, status):
    """Redirects are not followed: the password belongs to this controller."""
    controller.documents[f"{CHASSIS}/Power"] = status
    with pytest.raises(DeviceError, match=str(status)):
        RedfishMeter(controller.url).read_power()


def test_redfish_garbage(controller):
    """A login page is not a reading."""
    controller.documents[f"{CHASSIS}/Power"] = b"<html>"
    with pytest.raises(DeviceError, match="not JSON"):
        RedfishMeter(controller.url).read_power()


def test_redfish_unreachable(controller):
    """A controller that is off, by address and through the environment."""
    url = controller.url.replace(str(controller.server_address[1]), "9")
    with pytest.raises(DeviceError, match="does not answer"):
        RedfishMeter(url).read_power()
    found = node.survey({"JOULERY_NODE_METER": f"redfish:{url}"}, REAL_CLOCK)
    assert "does not answer" in found.obstacles[0].reason


def test_redfish_refuses_a_plain_server_over_tls(controller):
    """A broken handshake is a device error, not an ssl one."""
    with pytest.raises(DeviceError):
        RedfishMeter(controller.url.replace("http:", "https:")).read_power()


def test_redfish_with_a_missing_authority_file(controller):
    """A wrong JOULERY_REDFISH_CA is reported, not raised as an OSError."""
    url = controller.url.replace("http:", "https:")
    with pytest.raises(DeviceError, match="JOULERY_REDFISH_CA"):
        RedfishMeter(url, ca_file="/nonexistent/ca.pem").read_power()


def test_redfish_counts_through_the_environment(controller):
    """From the variable to joules."""
    controller.documents[f"{CHASSIS}/Power"] = {"PowerControl": [{"PowerConsumedWatts": 200}]}
    clock = VirtualClock()
    (meter,) = node.survey({"JOULERY_NODE_METER": f"redfish:{controller.url}"}, clock).devices
    meter.read_energy()
    clock.sleep(2.0)
    assert meter.read_energy().joules == 400.0
    assert Capability.ENERGY in meter.capabilities
