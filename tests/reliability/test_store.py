"""Caches that cannot be written, are damaged, or are used by many at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

import preforked
from polyfuse.base.settings import child_environment
from polyfuse.cache import units
from polyfuse.cache.records import read_record
from polyfuse.compiler.session import forget_sessions

X = torch.randn(5, 30)


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3, -1)


def check() -> None:
    torch.compiler.reset()
    forget_sessions()
    torch.testing.assert_close(torch.compile(f, backend="polyfuse", options={"strict": True})(X), f(X))


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path, warned):
    file = tmp_path / "a-file"
    file.write_text("in the way")
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(file / "cache"))
    check()
    assert len(warned) == 1 and "cache" in warned[0]


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root may write to every folder, and the test needs one that refuses it"
)
def test_a_folder_that_is_read_only(monkeypatch, tmp_path, warned):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    check()
    tmp_path.chmod(0o700)
    assert len(warned) == 1


def files(tmp_path: Path, pattern: str) -> list[Path]:
    found = [path for path in (tmp_path / "cache").rglob(pattern) if path.is_file()]
    assert found
    return found


@pytest.mark.quick(2)
@pytest.mark.parametrize("same_size", [True, False])
@pytest.mark.parametrize("pattern", ["*.so", "kernels.txt"])
def test_a_damaged_unit_is_built_again(tmp_path, warned, pattern, same_size):
    check()
    for path in files(tmp_path, pattern):
        # A library that is in use must not be changed in place.
        content = b"\0" * path.stat().st_size if same_size else b"short"
        path.unlink()
        path.write_bytes(content)
    check()
    assert len(warned) == 1 and all("is not what was built" in text for text in warned)
    warned.clear()
    check()
    assert not warned, "it is healed"


@pytest.mark.parametrize("unseen", [2, 9])
def test_a_record_that_is_seen_before_its_content(tmp_path, warned, monkeypatch, unseen):
    """As on some file systems, where a folder that another process renames gets its name first."""
    folder, looks = tmp_path / "unit", iter(range(unseen))
    folder.mkdir()
    (folder / "kernels.txt").write_text("built")
    units.seal_unit(folder, {"a" * 52: "source"})
    monkeypatch.setattr(units, "read_record", lambda p: read_record(p) if next(looks, None) is None else {})
    assert (units.unit_kernels(folder) is None) == (unseen > 4)
    assert len(warned) == (unseen > 4)


def test_a_damaged_pointer_is_a_miss(tmp_path, warned):
    check()
    for path in files(tmp_path, "*"):
        if path.suffix not in (".so", ".cpp", ".txt", ".lock") and path.name != "contents.json":
            path.write_text("{ damaged")
    check()
    assert not warned


def test_a_unit_that_went_away(tmp_path, warned):
    check()
    for path in files(tmp_path, "*"):
        path.unlink()
    check()
    assert not warned


SCRIPT = """
import torch
torch.set_num_threads(1)
def f(x):
    return torch.softmax(x * 3, -1)
x = torch.randn(5, 30)
torch.testing.assert_close(torch.compile(f, backend="polyfuse", options={"strict": True})(x), f(x))
"""


def test_processes_share_one_folder(tmp_path):
    environment = child_environment(POLYFUSE_CACHE_DIR=str(tmp_path / "cache"))
    running = [preforked.start(SCRIPT, environment=environment) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-2000:]
    assert len(files(tmp_path, "*.so")) == 1


def test_threads_compile_at_once():
    def work(number: int) -> None:
        def function(x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x * number, -1) + number

        try:
            compiled = torch.compile(function, backend="polyfuse", options={"strict": True})
            for _ in range(3):
                torch.testing.assert_close(compiled(X), function(X))
        except Exception as error:
            failures.append(error)

    failures: list[Exception] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not failures, failures
