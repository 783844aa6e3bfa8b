"""Launching shared objects, with one that multiplies nothing and counts what it is asked for."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cutlass_kernels import RESIDUAL, product
from polyfuse.base.digest import stable_json
from polyfuse.base.errors import KernelLaunchError, KernelLoadError
from polyfuse.ir.kernel import Kernel
from polyfuse_cutlass.launch.launcher import load_unit
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.templates import launcher
from polyfuse_cutlass.templates.candidates import library_source
from requirements import needs_gcc

pytestmark = needs_gcc

CODE = """
#include <stdlib.h>
long long numbers[12], scratch_of, prepared, started, forgotten; int prepare_fails, start_fails;
const void *scratch_seen, *stream_seen; long long first_arg; int processors_seen;
int k_KEY_prepare(const void* args, const long long* by, int processors, void** ready, long long* scratch) {
  for (int i = 0; i < 12; ++i) numbers[i] = by[i];
  first_arg = *(const long long*)args, processors_seen = processors, ++prepared;
  *scratch = scratch_of, *ready = prepare_fails ? 0 : malloc(8);
  return prepare_fails;
}
int k_KEY_start(void* ready, void* scratch, void* stream) {
  if (!ready) abort();
  scratch_seen = scratch, stream_seen = stream, ++started;
  return start_fails;
}
void k_KEY_forget(void* ready) { forgotten += ready != 0; free(ready); }
"""


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    facts = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(launcher, "current_stream", lambda device_type: lambda device: 77)
    monkeypatch.setattr(launcher, "profiler_flag", lambda: None)


def unit(folder: Path, kernel: Kernel) -> tuple[launcher.Linked, ctypes.CDLL]:
    """The kernel as a loaded unit, and its library."""
    source = library_source(kernel, None, Target(), "4.2.0")
    (folder / "code.c").write_text(CODE.replace("KEY", source.key))
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "code.so"), str(folder / "code.c")]
    subprocess.run(command, check=True)
    item = {"key": source.key, "name": "k", "symbol": source.symbol, "file": "code.so", "meta": source.meta}
    (folder / "kernels.json").write_text(stable_json({"compiler": "", "kernels": [item]}))
    made = load_unit(folder)[source.key]
    assert isinstance(made, launcher.Linked)
    return made, ctypes.CDLL(str(folder / "code.so"))


def number(library: ctypes.CDLL, name: str) -> int:
    return ctypes.c_longlong.in_dll(library, name).value


def operands(rows: int, columns: int, depth: int) -> list[torch.Tensor]:
    sizes = (rows * depth, columns * depth, columns, rows * columns, rows * columns)
    return [torch.zeros(size, dtype=torch.bfloat16) for size in sizes]


def test_the_entry_point_is_passed_where_operands_lie(tmp_path, device):
    launch, library = unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    given = operands(72, 64, 128)
    launch(*given)
    launch(*given)
    passed = list((ctypes.c_longlong * 12).in_dll(library, "numbers"))
    left, right = (one.data_ptr() for one in given[:2])
    assert passed == [72, 64, 128, 1, left, 128, 1, 0, right, 128, 1, 0]
    assert number(library, "first_arg") == left and number(library, "stream_seen") == 77
    assert number(library, "prepared") == 1 and number(library, "started") == 2
    launch(*operands(72, 64, 128))
    assert number(library, "prepared") == 2 and ctypes.c_int.in_dll(library, "processors_seen").value == 132


def test_sizes_are_known_when_it_is_launched(tmp_path, device):
    launch, library = unit(tmp_path, product(72, 64, 128, dynamic=True, epilogue=RESIDUAL))
    for rows in (5, 9):
        launch(*operands(rows, 64, 128), rows)
        assert list((ctypes.c_longlong * 12).in_dll(library, "numbers"))[:4] == [rows, 64, 128, 1]
    launch(*operands(0, 64, 128), 0)
    assert number(library, "started") == 2 and number(library, "prepared") == 2


def test_records_are_forgotten_with_the_kernel_and_when_there_are_many(tmp_path, device, monkeypatch):
    monkeypatch.setattr(launcher, "_CACHED", 2)
    launch, library = unit(tmp_path, product(72, 64, 128, dynamic=True, epilogue=RESIDUAL))
    given = operands(16, 64, 128)
    for rows in (1, 2, 3):
        launch(*given, rows)
    assert number(library, "prepared") == 3 and number(library, "forgotten") == 2
    del launch
    assert number(library, "forgotten") == 3


def test_scratch_is_lent_for_each_launch(tmp_path, device, monkeypatch):
    launch, library = unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    ctypes.c_longlong.in_dll(library, "scratch_of").value = 4096
    lent = []

    def empty(size: int, **options: object) -> torch.Tensor:
        assert options == {"dtype": torch.uint8, "device": "cuda:0"}
        lent.append(torch.zeros(size, dtype=torch.uint8))
        return lent[-1]

    monkeypatch.setattr(torch, "empty", empty)
    given = operands(72, 64, 128)
    for _ in range(2):
        launch(*given)
        assert number(library, "scratch_seen") == lent[-1].data_ptr()
    assert [one.numel() for one in lent] == [4096, 4096] and number(library, "prepared") == 1


def test_scratch_that_was_planned_is_used(tmp_path, device, monkeypatch):
    launch, library = unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    ctypes.c_longlong.in_dll(library, "scratch_of").value = 4096
    given, planned = operands(72, 64, 128), torch.zeros(4096, dtype=torch.uint8)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", None)
        launch(*given, planned)
    assert number(library, "scratch_seen") == planned.data_ptr()


def test_scratch_that_is_too_small_is_replaced(tmp_path, device, monkeypatch):
    launch, library = unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    ctypes.c_longlong.in_dll(library, "scratch_of").value = 4096
    lent = torch.zeros(4096, dtype=torch.uint8)
    monkeypatch.setattr(torch, "empty", lambda size, **options: lent[:size])
    launch(*operands(72, 64, 128), torch.zeros(4095, dtype=torch.uint8))
    assert number(library, "scratch_seen") == lent.data_ptr()


def test_scratch_that_a_kernel_does_not_ask_for_is_left_alone(tmp_path, device):
    launch, library = unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    launch(*operands(72, 64, 128), torch.zeros(4096, dtype=torch.uint8))
    assert number(library, "scratch_seen") == 0 and number(library, "started") == 1


@pytest.mark.parametrize(
    ("name", "status", "words"),
    (
        ("prepare_fails", 3, "preparing kernel k failed: CUTLASS reports status 3"),
        ("start_fails", 1700, "launching kernel k failed: CUDA reports error 700"),
    ),
)
def test_what_goes_wrong_is_reported(tmp_path, device, name, status, words):
    launch, library = unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    ctypes.c_int.in_dll(library, name).value = status
    with pytest.raises(KernelLaunchError, match=words):
        launch(*operands(72, 64, 128))


def test_missing_arguments_are_reported(tmp_path, device):
    launch, _ = unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    with pytest.raises(KernelLaunchError, match="takes 5 arguments, got 1"):
        launch(torch.zeros(1))
    with pytest.raises(KernelLaunchError, match="takes 5 arguments, got 6"):
        launch(*operands(72, 64, 128), *operands(1, 1, 1)[:2])


def test_damaged_units_are_reported(tmp_path, device):
    unit(tmp_path, product(72, 64, 128, epilogue=RESIDUAL))
    (tmp_path / "broken").mkdir()
    shutil.copy(tmp_path / "kernels.json", tmp_path / "broken" / "kernels.json")
    (tmp_path / "broken" / "code.so").write_text("nothing")
    with pytest.raises(KernelLoadError, match="cannot be loaded"):
        load_unit(tmp_path / "broken")
    (tmp_path / "broken" / "kernels.json").write_text("{")
    with pytest.raises(KernelLoadError, match="is damaged"):
        load_unit(tmp_path / "broken")
