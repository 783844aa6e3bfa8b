"""A text that a test built is not compiled again by another; what fails is."""

from __future__ import annotations

import pytest

import built_libraries
from polyfuse.base import process
from polyfuse.base.errors import KernelBuildError
from polyfuse_cpp import toolchain
from polyfuse_cpp.isa import ISAS
from polyfuse_cpp.toolchain import build_library, find_toolchain


def test_each_text_is_compiled_once(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "run_program", process.run_program)
    (tmp_path / "store").mkdir()
    built_libraries.keep(tmp_path / "store")
    compiled, real = [], process.run_program
    monkeypatch.setattr(process, "run_program", lambda c, **o: (compiled.append(c), real(c, **o))[1])
    text = tmp_path / "k.cpp"
    for number, (source, isa) in enumerate(((1, "scalar"), (1, "scalar"), (2, "scalar"), (2, "avx2"))):
        text.write_text(f'extern "C" int f() {{ return {source}; }}')
        build_library(find_toolchain(), ISAS[isa], text, tmp_path / f"{number}.so")
    first, again, other, wide = ((tmp_path / f"{number}.so").read_bytes() for number in range(4))
    assert len(compiled) == 3 and first == again and first != other and wide
    text.write_text("no C++")
    for _ in range(2):
        with pytest.raises(KernelBuildError):
            build_library(find_toolchain(), ISAS["scalar"], text, tmp_path / "bad.so")
