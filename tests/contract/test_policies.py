"""The policy contract, run over every policy that can be made by name."""

import numpy as np
import pytest

from joulery.jobs.policies import OraclePolicy, ScalarAdapter, ZeusPolicy, make_policy
from joulery.testing.policy_contract import PolicyContract
from support.policies import EpsilonGreedy


class TestJoulery(PolicyContract):
    @pytest.fixture
    def policy(self):
        """The policy under test."""
        return make_policy("joulery")


class TestZeus(PolicyContract):
    @pytest.fixture
    def policy(self):
        """The policy under test."""
        return make_policy("zeus")


class TestZeusWindowed(PolicyContract):
    @pytest.fixture
    def policy(self):
        """The policy under test."""
        return ZeusPolicy(window=5)


class TestGrid(PolicyContract):
    @pytest.fixture
    def policy(self):
        """The policy under test."""
        return make_policy("grid")


class TestDefault(PolicyContract):
    @pytest.fixture
    def policy(self):
        """The policy under test."""
        return make_policy("default")


class _AnyOracle:
    """An oracle for however many jobs there are: the smallest batch size, the lowest limit."""

    def __getattr__(self, name):
        return getattr(OraclePolicy(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)), name)

    def start(self, jobs):
        """As many settings as jobs."""
        zeros = np.zeros(len(jobs), dtype=np.int64)
        return OraclePolicy(zeros, zeros).start(jobs)


class TestOracle(PolicyContract):
    @pytest.fixture
    def policy(self):
        """The policy under test."""
        return _AnyOracle()


class TestScalar(PolicyContract):
    @pytest.fixture
    def policy(self):
        """The policy under test."""
        return ScalarAdapter(EpsilonGreedy())
