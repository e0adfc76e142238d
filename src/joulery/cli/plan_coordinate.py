"""Serve a plan to the ranks of running pipelines, until interrupted."""

from __future__ import annotations

import os
import resource
import secrets
import stat
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from joulery.cli.dispatch import signals_interrupt
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError
from joulery.governor import parse_address

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.pipeline import Coordinator, PipelinePlan

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLL_SECONDS = 0.2  # by hand
_MIN_CHARACTERS = 16  # of the secret, by hand


def listening_address(text: str, *, anywhere: bool) -> tuple[str, int]:
    """Host and port from ``HOST:PORT``.

    Raises:
        InvalidValueError: The text is malformed, or other machines could connect unintentionally.
    """
    host, port = parse_address(text)
    host = host.strip("[]")
    if host not in _LOOPBACK and not anywhere:
        raise InvalidValueError(
            f"{host} can be reached from other machines, and messages are not encrypted",
            remedy="listen at 127.0.0.1, or add --anywhere on a network that you trust",
        )
    return host, port


def token_from(path: Path, *, create: bool = True) -> str:
    """The secret that ranks must send, from a file that is created if missing.

    Args:
        path: File with the secret.
        create: Whether to create it.

    Raises:
        FileError: The file cannot be used, others may read it, or its token is too short.
    """
    try:
        if create:
            _create_token(path)
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"cannot use {path} for the token: {error}", remedy="name another --token-file"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FileError(f"others may read {path}", remedy=f"chmod 600 {path}")
    if len(token) < _MIN_CHARACTERS:
        raise FileError(
            f"{path} holds no token of {_MIN_CHARACTERS} characters or more",
            remedy="name a new file with --token-file",
        )
    return token


def _create_token(path: Path) -> None:
    """Write a new secret, unless there is one."""
    with suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")


def coordinate(plan: PipelinePlan, address: tuple[str, int], token: str) -> None:
    """Serve until SIGINT or SIGTERM, with changes of the state on stderr."""
    from joulery.pipeline import Coordinator, PlanCache, StragglerPolicy

    # One connection for each stage of each pipeline.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    plans = PlanCache(plan)
    policy = StragglerPolicy(plans, pipelines=plan.problem.config.replicas)
    # Signals are caught before the address is printed, so that an early one ends it well.
    with signals_interrupt(), Coordinator(policy, token, address) as coordinator:
        address_used = coordinator.address
        endpoint = (
            f"{address_used[0]}:{address_used[1]}"
            if isinstance(address_used, tuple)
            else str(address_used)
        )
        about = f"coordinating {policy.pipelines} × {policy.ranks} ranks at {endpoint}"
        with suppress(KeyboardInterrupt):
            _say(f"{about}; Ctrl-C ends it")
            threading.Thread(target=plans.prepare, name="joulery-prepare", daemon=True).start()
            latest = ""
            while True:
                if (state := _state(coordinator)) != latest:
                    _say(state)
                latest = state
                REAL_CLOCK.sleep(_POLL_SECONDS)
    _say("ended; ranks return to their first plan")


def _state(coordinator: Coordinator) -> str:
    """The connected ranks and the slowed-down pipelines, as text."""
    state = coordinator.state()
    slow = [f"{n} at {factor:.3f}" for n, factor in enumerate(state.factors) if factor > 1.0]
    held = "" if state.held_seconds is None else f", held at {state.held_seconds:.4g} s"
    slowed = f", slowed down: pipeline {', '.join(slow)}" if slow else ""
    return f"{state.connected} of {state.ranks} ranks{held}{slowed}"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
