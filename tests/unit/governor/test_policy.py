"""Policy files: what they say, and what is wrong with them."""

import os

import pytest

from joulery.errors import FileError, MissingRightsError
from joulery.governor import load_policy
from joulery.governor._device import LeaseRequest
from joulery.governor._policy import parse_policy
from joulery.hardware import DeviceInfo, DeviceKind
from support.governor.bench import PlainBoard

INFO = DeviceInfo("GPU-1", "A100", DeviceKind.GPU, "nvidia", 3)
GOOD = """
[[allow]]
users = ["root", 1001, "1002"]
groups = ["root"]
devices = ["GPU-1", 7]
limits_watts = [100, 250.5]
clocks_mhz = [500, 1400]
must_own = "slurm"
shared = "minimum"

[[pinned]]
devices = ["nvidia:3"]
clock_mhz = 1200
"""


def test_everything_that_can_be_said():
    """A rule would mean something else than its author wrote."""
    policy = parse_policy(GOOD)
    (rule,) = policy.rules
    assert rule.uids == {0, 1001, 1002}
    assert rule.gids == {0}
    assert rule.devices == {"GPU-1", "7"}
    assert rule.limits_watts == (100.0, 250.5)
    assert rule.clocks_hertz == (500e6, 1400e6)
    assert rule.must_own == "slurm"
    assert rule.shared
    assert policy.pinned_hertz(INFO) == 1.2e9


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("[[allow]]", "[[alow]]", "unknown table 'alow'"),
        ("[[allow]]", "[[allow]", "at line 2"),
        ("must_own", "must_have", "must_have is unknown"),
        ('"root", 1001', '"no-such-user"', "no user 'no-such-user'"),
        ('["root"]', '["no-such-group"]', "no group 'no-such-group'"),
        ('["root"]', '"root"', "groups is not a list"),
        ('["GPU-1", 7]', "[]", "names no device"),
        ("[100, 250.5]", "[300, 250]", "starts above its end"),
        ("[100, 250.5]", "[100]", "not a pair"),
        ("[100, 250.5]", "[nan, 250]", "not a pair"),
        ("[100, 250.5]", "[true, 250]", "not a pair"),
        ("[100, 250.5]", f"[100, {'9' * 400}]", "not a pair"),
        ("[500, 1400]", "[-1, 1400]", "not a pair"),
        ('"slurm"', '"perhaps"', "must_own cannot be"),
        ('"slurm"', "[1]", "must_own cannot be"),
        ('"minimum"', '"maximum"', "shared cannot be"),
        ("clock_mhz = 1200", "clock_mhz = 0", "not a positive number"),
    ],
)
def test_mistakes_are_reported_with_their_table(old, new, what):
    """An administrator would search a long file for what is wrong."""
    with pytest.raises(FileError) as raised:
        parse_policy(GOOD.replace(old, new, 1), "policy.toml")
    assert what in raised.value.message
    assert raised.value.message.startswith("policy.toml")
    assert raised.value.remedy


def test_rule_without_anyone():
    """A rule that forgot its users must not mean everyone."""
    with pytest.raises(FileError, match="neither users nor groups"):
        parse_policy('[[allow]]\ndevices = ["*"]')


def test_file_that_others_may_write(tmp_path):
    """Anyone could write themselves a rule."""
    path = tmp_path / "policy.toml"
    path.write_text(GOOD)
    path.chmod(0o644)
    assert len(load_policy(path).rules) == 1
    path.chmod(0o664)
    with pytest.raises(FileError, match="others than root"):
        load_policy(path)
    if os.geteuid() == 0:
        path.chmod(0o600)
        os.chown(path, 1234, 1234)
        with pytest.raises(FileError, match="others than root"):
            load_policy(path)


def test_missing_file(tmp_path):
    """A typing error in the path would open or crash the daemon."""
    with pytest.raises(FileError, match="cannot read policy"):
        load_policy(tmp_path / "none.toml")


def test_clients_on_other_machines_are_known_by_tokens(tmp_path):
    """Everyone on the network could set limits, or a token would open another's rule."""
    for name in ("agent", "other"):
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_text(f"the secret of {name}\n")
    text = '[[allow]]\ntokens = ["agent"]\ndevices = [0]\nlimits_watts = [100, 300]\n'
    text += '[[allow]]\ntokens = ["other"]\ndevices = ["*"]\n'
    text += '[[allow]]\nusers = ["*"]\ndevices = ["*"]\nlimits_watts = [1, 999]\n'
    policy = parse_policy(text, folder=tmp_path)
    agent, other = (policy.identify(f"the secret of {name}") for name in ("agent", "other"))
    request = LeaseRequest(watts=200.0)
    assert policy.permit(agent, PlainBoard(), request, lambda *_: True) == policy.rules[0]
    with pytest.raises(MissingRightsError, match="client other may not: setting the power limit"):
        policy.permit(other, PlainBoard(), request, lambda *_: True)
    for guess in ("", "the secret of no one", None, 7):
        with pytest.raises(MissingRightsError, match="wrong token"):
            policy.identify(guess)
    (tmp_path / "agent").chmod(0o644)
    with pytest.raises(FileError, match=r"\[\[allow\]\] 1: tokens agent is short or readable"):
        parse_policy(text, folder=tmp_path)
    (tmp_path / "agent").unlink()
    with pytest.raises(FileError, match=r"\[\[allow\]\] 1: tokens cannot be read"):
        parse_policy(text, folder=tmp_path)
