"""What users add to nvcc's commands, and which nvcc it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfuse_cuda import toolchain
from polyfuse_cutlass.build.toolchain import nvcc_flags
from polyfuse_cutlass.manifest import polyfuse_manifest


def test_options_become_flags_and_those_of_the_user_stand_last() -> None:
    assert nvcc_flags({}) == []
    options = {"flags": "-O1 '-DA=b c'", "debug": "1", "fast_math": "1", "keep": "1"}
    assert nvcc_flags(options) == ["-lineinfo", "-g", "--use_fast_math", "-keep", "-O1", "-DA=b c"]
    assert {"debug", "fast_math", "keep", "flags"} <= set(polyfuse_manifest().options)


@pytest.mark.parametrize("variable", ["NVCC", "CUDACXX"])
def test_a_variable_names_the_compiler(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my-nvcc"
    program.write_text("#!/bin/sh\necho 'release 13.0, V13.0.1'\n")
    program.chmod(0o755)
    for name in ("NVCC", "CUDACXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(program))
    found = toolchain.find_compiler("nvcc")
    assert (found.path, found.version) == (str(program), "release 13.0, V13.0.1")
