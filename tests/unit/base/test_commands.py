"""Which command is meant by a name, a variable or neither."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.process import find_command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the search path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    return tmp_path


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.touch()
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return os.fspath(path)


def compiler(named: str = "") -> tuple[str, ...]:
    return find_command("C++ compiler", ("g++", "c++", "clang++"), variable="CXX", named=named)


def test_the_first_usual_one_is_taken(folder: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="no C\\+\\+ compiler was found"):
        compiler()
    clang = program(folder, "clang++")
    assert compiler() == (clang,)
    gcc = program(folder, "g++")
    assert compiler() == (gcc,)


def test_the_environment_and_options_name_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(folder, "g++")
    cache, own = program(folder, "ccache"), program(folder, "my g++")
    monkeypatch.setenv("CXX", "ccache g++ -march=native")
    assert compiler() == (cache, "g++", "-march=native")
    assert compiler("my g++") == (own,)


@pytest.mark.parametrize("named", ["no-such-compiler", "an 'open quote", "  "])
def test_what_does_not_exist_is_not_replaced(folder: Path, named: str) -> None:
    program(folder, "g++")
    with pytest.raises(BackendUnavailableError, match="does not exist"):
        compiler(named)
