"""Libraries that end too early are refused before they are mapped."""

from __future__ import annotations

import subprocess

import pytest

from polyfuse.base.errors import KernelLoadError
from polyfuse.runtime.libraries import SharedLibrary


def test_a_library_cut_anywhere_is_refused(tmp_path):
    whole = tmp_path / "whole.so"
    text = "int table[9000] = {1}; int seven(void) { return 7; }"
    command = ["g++", "-shared", "-fPIC", "-x", "c", "-", "-o", str(whole)]
    subprocess.run(command, input=text, text=True, check=True)
    assert SharedLibrary(whole).function("seven")() == 7
    content = whole.read_bytes()
    for end in (0, 10, 63, 64, 500, 5000, len(content) // 2, len(content) - 1):
        cut = tmp_path / f"{end}.so"
        cut.write_bytes(content[:end])
        with pytest.raises(KernelLoadError, match="cannot be loaded"):
            SharedLibrary(cut)
