"""The kit's matmuls: right in those that generate them, and wrong ones are noticed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, PluginManager, Source
from polyfuse.reference.backend import InterpreterBackend
from polyfuse.testing.cases.matmul import matmul_cases
from polyfuse.testing.conformance import Run
from polyfuse.testing.matrix import Status


class Careless(InterpreterBackend):
    """Multiplies the left operand with itself."""

    name = "careless"

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        source = super().emit(kernel, config)
        return replace(source, text=re.sub(r"(dot\w*) \((\w+), \w+\)", r"\1 (\2, \2)", source.text), key="")


def test_wrong_matmuls_fail():
    matrix = Run(Careless(Settings.resolve())).matrix(tuple(matmul_cases(quick=True)), contract=False)
    assert {cell.status for cell in matrix.cells} == {Status.FAIL}


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ("f32", "bf16", "i8"))
def test_the_cpus_matmuls_pass(dtype):
    backend = PluginManager(Settings.resolve()).backend("cpp")
    cases = [case for case in matmul_cases(quick=True) if case.parts[0].column == dtype]
    matrix = Run(backend).matrix(cases, contract=False)
    assert len(matrix.cells) >= 3 and matrix.ok
    assert not any(cell.status is Status.REFUSED for cell in matrix.cells)
