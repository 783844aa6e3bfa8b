"""Schedules written down: what `polyfuse explain` prints can be changed and given back."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.explain import explain
from polyfuse.compiler.reports.report import reset_reports
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend

ROWS = """kernel rows on cpu {
  numerics fast
  axes i0{512} ~ 512
  raxes r0{1024} ~ 1024
  in in0: f32[524288]
  out out0: f32[512]
  loop {
    v0 = load f32 in0[1024*i0 + r0]
    v1 = reduce f32 sum (v0)
  }
  once {
    store f32 set out0[i0] = v1
  }
}
"""


def rows(device: str = "cpu") -> Kernel:
    return replace(parse(ROWS), device=device)


def backend(**options: str) -> HalideBackend:
    return HalideBackend(Settings.resolve(options={"halide.gpu": "80", **options}))


@pytest.mark.parametrize(
    ("device", "wanted", "text"), [("cpu", "unroll=2", "unroll=2"), ("cuda", "lanes=64", "lanes=64")]
)
def test_a_printed_schedule_can_be_changed_and_given_back(device, wanted, text, tmp_path):
    kernel = rows(device)
    printed = backend().emit(kernel)
    name = wanted.partition("=")[0]
    assert re.fullmatch(r"schedule [0-9a-z]{12}( \w+=\d+)+", printed.note) and text not in printed.text
    file = tmp_path / "pins.txt"
    file.write_text(f"1. rows (halide):\n     {printed.note}  # as it was\n")
    same = backend(**{"halide.pins": str(file)}).emit(kernel)
    assert same == printed
    file = tmp_path / "changed.txt"
    file.write_text(re.sub(rf"{name}=\d+", wanted, printed.note) + "\n")
    made = backend(**{"halide.pins": str(file)})
    changed = made.emit(replace(kernel, name="other"))
    assert text in changed.text and wanted in changed.note and changed.key != printed.key
    made.build([changed], tmp_path)


def test_explain_prints_schedules_and_reads_them_back(tmp_path):
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    x = torch.randn(64, 300)
    torch._dynamo.reset()
    reset_reports()
    options = {"backends": ["halide"]}
    torch.compile(function, backend="polyfuse", options=options)(x)
    explained = explain()
    (line,) = re.findall(r"schedule \w{12} .*", explained)
    file = tmp_path / "pins.txt"
    file.write_text(re.sub(r"lanes=\d+", "lanes=4", line))
    torch._dynamo.reset()
    reset_reports()
    options = {**options, "halide.pins": str(file)}
    torch.testing.assert_close(torch.compile(function, backend="polyfuse", options=options)(x), function(x))
    assert "lanes=4 " in explain()


@pytest.mark.parametrize("choice", ["lanes=3", "speed=9"])
def test_a_pin_that_makes_no_sense_is_refused(choice, tmp_path):
    kernel = rows()
    pin = backend().emit(kernel).note.split()[1]
    file = tmp_path / "pins.txt"
    file.write_text(f"schedule {pin} {choice}\n")
    with pytest.raises(UnsupportedError, match=choice):
        backend(**{"halide.pins": str(file)}).emit(kernel)


def test_blocks_have_no_more_threads_than_a_device_has(tmp_path):
    kernel = rows("cuda")
    pin = backend().emit(kernel).note.split()[1]
    file = tmp_path / "pins.txt"
    file.write_text(f"schedule {pin} lanes=1024 points=2\n")
    with pytest.raises(UnsupportedError, match="2048 threads"):
        backend(**{"halide.pins": str(file)}).emit(kernel)


def test_a_file_that_is_not_there_or_malformed_is_an_error(tmp_path):
    with pytest.raises(BackendUnavailableError, match="nowhere"):
        backend(**{"halide.pins": str(tmp_path / "nowhere")})
    (tmp_path / "pins.txt").write_text("schedule abc lanes=many\n")
    with pytest.raises(BackendUnavailableError, match="lanes=many"):
        backend(**{"halide.pins": str(tmp_path / "pins.txt")})
