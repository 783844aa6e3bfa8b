"""Libraries that end too early are refused before they are mapped, and what others hold is given back."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from polyfuse.base.errors import KernelLoadError
from polyfuse.runtime.libraries import SharedLibrary


def built(path: Path, text: str) -> Path:
    command = ["g++", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)
    return path


def test_what_a_library_holds_is_given_back_when_its_last_user_is_gone(tmp_path):
    text = "int* seen; void watch(int* at) { seen = at; } void polyfuse_unload(void) { ++*seen; }"
    path, other = built(tmp_path / "holding.so", text), built(tmp_path / "other.so", "int x;")
    seen = ctypes.c_int(0)
    first, second = SharedLibrary(path), SharedLibrary(path)
    first.function("watch")(ctypes.byref(seen))
    counts = []
    for _ in range(4):
        SharedLibrary(other)  # closes what was unused before the one opened last
        counts.append(seen.value)
    assert counts == [0] * 4
    del first
    for _ in range(3):
        SharedLibrary(other)
    assert seen.value == 0, "the second one has the same library"
    del second
    for _ in range(3):
        SharedLibrary(other)
    assert seen.value == 1
    assert "holding.so" not in Path("/proc/self/maps").read_text()


def test_a_library_cut_anywhere_is_refused(tmp_path):
    whole = built(tmp_path / "whole.so", "int table[9000] = {1}; int seven(void) { return 7; }")
    assert SharedLibrary(whole).function("seven")() == 7
    content = whole.read_bytes()
    for end in (0, 10, 63, 64, 500, 5000, len(content) // 2, len(content) - 1):
        cut = tmp_path / f"{end}.so"
        cut.write_bytes(content[:end])
        with pytest.raises(KernelLoadError, match="cannot be loaded"):
            SharedLibrary(cut)
