"""What tells one state of installed code from another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyfuse.base import code
from polyfuse.base.code import code_digest, code_stamp


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "some_package_of_a_test"
    (folder / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/text.h"):
        write(folder / name, "1")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def write(path: Path, text: str, age: float = 1000.0) -> None:
    """Write a file that was changed that many seconds before this process began, however long it has run."""
    path.write_text(text)
    when = code._BEGUN - age
    os.utime(path, (when, when))


def stamp(package: Path) -> str:
    code_stamp.cache_clear()
    return code_stamp(package.name)


def test_equal_files_have_equal_stamps(package):
    first = stamp(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_text("made by Python")
    assert first and stamp(package) == first


@pytest.mark.parametrize("name", ["__init__.py", "inner/text.h", "inner/new.py"])
def test_a_file_that_is_changed_or_added_is_seen(package, name):
    first = stamp(package)
    write(package / name, "22", age=2000.0)
    assert stamp(package) not in ("", first)


def test_a_file_that_is_newer_than_the_process_has_no_stamp(package):
    write(package / "inner/text.h", "1", age=-1000.0)
    assert stamp(package) == ""


def test_what_has_no_files(package):
    assert code_stamp("no_such_package_of_a_test") == ""
    assert code_stamp("sys") == ""


def digest_of(package: Path, memory: Path) -> str:
    code_stamp.cache_clear()
    code_digest.cache_clear()
    return code_digest(package.name, memory)


def test_digests_do_not_depend_on_times_and_folders(package, tmp_path):
    first = digest_of(package, tmp_path / "memory")
    for name in ("__init__.py", "inner/text.h"):
        write(package / name, "1", age=5000.0)
    assert first and digest_of(package, tmp_path / "memory") == first
    write(package / "inner/text.h", "2", age=6000.0)
    assert digest_of(package, tmp_path / "memory") not in ("", first)
    write(package / "inner/text.h", "1", age=-1000.0)
    assert digest_of(package, tmp_path / "memory") == ""
    assert code_digest("sys", tmp_path) == ""


def test_digests_are_remembered_by_the_stamp(package, tmp_path):
    first = digest_of(package, tmp_path / "memory")
    (remembered,) = (tmp_path / "memory").iterdir()
    assert remembered.name == code_stamp(package.name) and remembered.read_text() == first
    remembered.write_text(first[::-1])
    assert digest_of(package, tmp_path / "memory") == first[::-1], "the files are not read again"
    remembered.write_text("damaged")
    assert digest_of(package, tmp_path / "memory") == first and remembered.read_text() == first
    (tmp_path / "file").touch()
    assert digest_of(package, tmp_path / "file") == first, "a memory that cannot be written costs time alone"


def test_a_module_without_a_folder_has_a_digest(monkeypatch, tmp_path):
    write(tmp_path / "one_module_of_a_test.py", "1")
    monkeypatch.syspath_prepend(tmp_path)
    assert digest_of(tmp_path / "one_module_of_a_test", tmp_path / "memory")
