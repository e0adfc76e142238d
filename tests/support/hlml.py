"""Emulated Gaudi cards: a small libhlml.so behind the real ``pyhlml``, and its state.

The binding opens the library by a path that only root could write. The dynamic linker takes a
loaded library of that soname for the file, so it is enough to have loaded the emulated one.
"""

import ctypes
import importlib.util
import mmap
import os
from functools import cache
from pathlib import Path

import pytest

from joulery.compiled import Sources, compile_once, compiler
from joulery.files import cache_folder
from joulery.hardware._gaudi import LIBRARY

NOT_SUPPORTED, IS_LOST, UNKNOWN = 3, 15, 49  # status codes of hlml.h
_VARIABLE = "HLML_EMULATOR_STATE"
_FUNCTIONS = (
    *("handle", "name", "uuid", "serial", "module", "energy", "power", "range", "default"),
    *("limit", "set", "load", "clock", "temperature", "throttles"),
)
_NUMBERS = (
    *("module", "milliwatts", "lowest", "highest", "standard", "limit", "keeps_limit"),
    *("percent", "megahertz", "celsius"),
)
_SOURCES = Sources(
    purpose="the emulated HLML",
    folder=Path(__file__).parent,
    files=("hlml.c",),
    flags=("-std=gnu11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", f"-Wl,-soname,{LIBRARY}"),
)


class Card(ctypes.Structure):
    """One card, as the library reads it at each call."""

    _fields_ = [
        ("millijoules", ctypes.c_uint64),
        ("throttles", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in _NUMBERS),
        *(
            ("name", ctypes.c_char * 32),
            ("uuid", ctypes.c_char * 64),
            ("serial", ctypes.c_char * 32),
        ),
        ("codes", ctypes.c_int32 * len(_FUNCTIONS)),
    ]

    def fail(self, code, *functions):
        """Have functions answer with this code; all unless named."""
        for function in functions or _FUNCTIONS:
            self.codes[_FUNCTIONS.index(function)] = code


class _State(ctypes.Structure):
    _fields_ = [("init_code", ctypes.c_int32), ("count", ctypes.c_uint32), ("cards", Card * 8)]


@cache
def _load():
    target = cache_folder() / "emulator" / f"libhlml-{_SOURCES.digest()}.so"
    return ctypes.CDLL(str(compile_once(_SOURCES, target)))


def require_binding():
    """Skip where the binding is not installed, unless it has to be there."""
    if importlib.util.find_spec("pyhlml") is None and os.environ.get("CI") != "true":
        pytest.skip("there is no pyhlml (pip install habana-pyhlml)")


def emulate_cards(monkeypatch, folder, count=1):
    """The state of a machine with Gaudi 3 cards, whose modules count down from the last."""
    if compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated HLML cannot be built")
    require_binding()
    _load()
    path = folder / "hlml-state"
    path.write_bytes(bytes(ctypes.sizeof(_State)))
    with path.open("r+b") as file:
        state = _State.from_buffer(mmap.mmap(file.fileno(), 0))
    state.count = count
    for number, card in enumerate(state.cards[:count]):
        card.millijoules, card.milliwatts = 5_000_000, 412_000
        card.lowest, card.highest = 450_000, 850_000
        card.standard = card.limit = 850_000
        card.percent, card.megahertz, card.celsius = 87, 1600, 61
        card.module = count - 1 - number
        card.name, card.serial = b"HL-325L", f"AN{number}".encode()
        card.uuid = f"01P4-HL3090A0-18-U4T286-22-05-0{number}".encode()
    monkeypatch.setenv(_VARIABLE, str(path))
    return state
