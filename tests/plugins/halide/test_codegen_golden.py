"""The programs of a few kernels, so that a change of the generator shows what it changes.

They are written for vectors of 16 numbers and for 108 multiprocessors, whatever this machine has.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config
from polyfuse.testing.conformance import all_cases
from polyfuse_halide.codegen.device_kernel import device_kernel_text
from polyfuse_halide.codegen.kernel import KernelText, kernel_text
from polyfuse_halide.schedules.automatic import automatic_text

LANES, MULTIPROCESSORS = 16, 108

ON_CPU = (
    *("softmax_local", "layer_norm", "sum_column", "argmax_row", "scan_sum_row", "copy_transposed"),
    *("dynamic", "dynamic_scatter", "rows_by_number"),
)
ON_DEVICE = ("softmax_local", "copy_transposed", "permuted_add", "scan_sum_row")


def kernel(name: str) -> Kernel:
    """A kernel of the conformance kit."""
    return next(case.kernel for case in all_cases(True) if case.kernel.name == name)


def shown(found: KernelText) -> str:
    return f"{found.text}\n{found.meta}"


@pytest.mark.parametrize("name", ON_CPU)
def test_text(name, golden):
    golden(f"halide/{name}.txt", shown(kernel_text(kernel(name), LANES)))


def test_text_by_a_configuration(golden):
    config = Config.of(lanes=8, unroll=2, grain=4096)
    golden("halide/layer_norm_configured.txt", shown(kernel_text(kernel("layer_norm"), LANES, config)))


def test_checked_text(golden):
    golden("halide/gather_checked.txt", shown(kernel_text(kernel("rows_by_number"), LANES, checked=True)))


def test_text_for_an_automatic_scheduler(golden):
    golden("halide/automatic.txt", shown(automatic_text(kernel("sum_column"), "Mullapudi2016", LANES)))


@pytest.mark.parametrize("name", ON_DEVICE)
def test_text_for_a_device(name, golden):
    on_device = replace(kernel(name), device="cuda")
    golden(f"halide/device_{name}.txt", shown(device_kernel_text(on_device, MULTIPROCESSORS)))
