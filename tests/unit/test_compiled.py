"""C sources that ship with the package become libraries once."""

import ctypes

import pytest

from joulery.compiled import Sources, compile_once
from joulery.errors import JouleryError, MissingExtraError


def sources(folder, text, flags=("-shared", "-fPIC")):
    """One C file."""
    (folder / "answer.c").write_text(text, encoding="utf-8")
    return Sources("the answer", folder, ("answer.c",), flags)


def test_compiles_what_can_be_called(tmp_path):
    """If it fails no library is made, or a broken one."""
    made = compile_once(sources(tmp_path, "int answer(void) { return 42; }"), tmp_path / "a.so")
    assert ctypes.CDLL(str(made)).answer() == 42


def test_compiles_once(tmp_path):
    """If it fails every process compiles again."""
    found = sources(tmp_path, "int answer(void) { return 42; }")
    target = tmp_path / "deep" / "a.so"
    target.parent.mkdir()
    target.write_bytes(b"there already")
    assert compile_once(found, target).read_bytes() == b"there already"


def test_digest_follows_sources_and_flags(tmp_path):
    """If it fails a stale library is loaded after a change."""
    first = sources(tmp_path, "int a;").digest()
    assert sources(tmp_path, "int a;").digest() == first
    assert sources(tmp_path, "int b;").digest() != first
    assert sources(tmp_path, "int a;", ("-O0",)).digest() != first


def test_says_what_the_compiler_says(tmp_path):
    """If it fails nobody learns why there is no library."""
    with pytest.raises(JouleryError, match="the answer does not compile: ") as caught:
        compile_once(sources(tmp_path, "int answer(void) { return }"), tmp_path / "a.so")
    assert "answer.c" in caught.value.remedy
    assert not (tmp_path / "a.so").exists()


def test_no_compiler(tmp_path, monkeypatch):
    """If it fails a missing compiler looks like a bug."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match="the answer needs a C compiler"):
        compile_once(sources(tmp_path, "int a;"), tmp_path / "a.so")


def test_a_compiler_from_pypi_will_do(tmp_path, monkeypatch):
    """Somebody without gcc and without root cannot plan a pipeline."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "ziglang.py").write_text(
        "import pathlib, sys\n"
        "assert sys.argv[1:3] == ['cc', '-mcpu=baseline']\n"
        "pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_text('library')\n"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.syspath_prepend(modules)
    library = compile_once(sources(tmp_path, "int a;"), tmp_path / "a.so")
    assert library.read_text() == "library"
