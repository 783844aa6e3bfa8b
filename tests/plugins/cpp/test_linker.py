"""Which linker builds kernels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from polyfuse.base.errors import KernelBuildError
from polyfuse_cpp.isa import detect_isa
from polyfuse_cpp.toolchain import Toolchain, build_library, find_toolchain


def with_a_linker_that_is_not_there() -> Toolchain:
    return dataclasses.replace(find_toolchain(), linker="nowhere-to-be-found")


def test_where_the_quick_linker_fails_the_usual_one_is_taken(tmp_path: Path) -> None:
    source = tmp_path / "unit.cpp"
    source.write_text('extern "C" int one() { return 1; }\n', encoding="utf-8")
    for attempt in ("first", "second"):
        library = tmp_path / f"{attempt}.so"
        build_library(with_a_linker_that_is_not_there(), detect_isa(), source, library)
        assert library.stat().st_size > 0


def test_code_that_does_not_compile_fails_with_both(tmp_path: Path) -> None:
    source = tmp_path / "unit.cpp"
    source.write_text("this is no C++\n", encoding="utf-8")
    with pytest.raises(KernelBuildError, match="building"):
        build_library(with_a_linker_that_is_not_there(), detect_isa(), source, tmp_path / "unit.so")
