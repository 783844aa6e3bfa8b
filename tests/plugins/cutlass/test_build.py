"""Building by a compiler that is a shell script: what is listed, and what a failure says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlass_kernels import GELU, product
from polyfuse.base.errors import KernelBuildError
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.space import emit
from polyfuse_cutlass.target import Target

SOURCE = emit(product(64, 64, 64, epilogue=GELU), None, Target())


def compile_options(tmp_path: Path, script: str) -> dict[str, str]:
    program = tmp_path / "nvcc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"compiler": "nvcc", "path": str(program), "version": "0", "arch": "sm_90a", "flags": "-O1"}


def test_what_is_built_is_listed_with_its_faults(tmp_path):
    """By a compiler that only prints what it was called with."""
    said = 'echo "80 bytes stack frame, 80 bytes spill stores, 72 bytes spill loads"; echo "$@" > said'
    folder = tmp_path / "unit"
    folder.mkdir()
    build_in_worker([SOURCE, SOURCE], folder, compile_options(tmp_path, said))
    (artifact,) = read_unit(folder).values()
    assert artifact.key == SOURCE.key and artifact.spilled == 80 and not artifact.serial
    command = (folder / "said").read_text()
    assert all(part in command for part in ("-cubin", "arch=compute_90a,code=sm_90a", " -O1 "))
    assert not list(folder.glob("*.cu"))


def test_errors_come_with_command_and_output(tmp_path):
    with pytest.raises(KernelBuildError) as caught:
        build_in_worker([SOURCE], tmp_path, compile_options(tmp_path, "echo no such thing; exit 3"))
    assert "no such thing" in caught.value.output and str(tmp_path / "nvcc") == caught.value.command[0]


def test_a_compiler_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    options = compile_options(tmp_path, "echo under way; sleep 1000")
    for seconds in (0.3, 3, 30, 300):  # on a busy machine, it may take any time to say something
        monkeypatch.setattr("polyfuse_cutlass.build.toolchain._SECONDS", seconds)
        with pytest.raises(KernelBuildError, match="took longer") as caught:
            build_in_worker([SOURCE], tmp_path, options)
        assert caught.value.command[0] == options["path"]
        if caught.value.output:
            break
    assert "under way" in caught.value.output
