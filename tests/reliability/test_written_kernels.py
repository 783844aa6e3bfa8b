"""Kernels that plugins wrote by hand are compared with what their plugins expect, and barred where wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from polyfuse import cli
from polyfuse.base.errors import BackendError
from polyfuse.checking import records, tally
from polyfuse.compiler.reports.report import last_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.nodes import ExternCall
from polyfuse.plugin import Expected, Lowering, LoweringContext, TensorValue
from polyfuse.reference.backend import InterpreterBackend

Sort = Callable[..., None]


def right(x: Tensor, values: Tensor, positions: Tensor, count: int) -> None:
    """What the kernel should do: rows in order, and where their numbers were."""
    torch.sort(x, stable=True, out=(values, positions))


class Sorting:
    """A kernel of the plugin, called with a matrix, its sorted rows, where each was, and their length."""

    __name__ = "rows_in_order"
    plugin = "toy"
    key = "a sorting kernel"
    storable = True
    defect: ClassVar[Sort] = right
    calls: ClassVar[list[str]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Sorting, ()

    def __call__(self, *operands: Any) -> None:
        Sorting.calls.append("kernel")
        Sorting.defect(*operands)

    def by_library(self, *operands: Any) -> None:
        Sorting.calls.append("library")
        right(*operands)

    def expected(self, *operands: Any) -> Expected | None:
        x, _, _, count = operands
        if count < 4:
            return None
        values, positions = torch.sort(x.double(), stable=True)
        zero = torch.zeros(x.shape, dtype=torch.float64)
        return Expected("aten.sort.default", (x,), {}, {1: (values, zero), 2: (positions.double(), zero)})


def _lowered(
    ctx: LoweringContext, node: Any, value: TensorValue, dim: Any = -1, descending: Any = False
) -> tuple[TensorValue, ...]:
    view = ctx.realize(value)
    results = [ctx.stored(fake) for fake in node.meta["val"]]
    views = [ctx.realize(result) for result in results]
    name = ctx.add_object("sorting_", Sorting())
    outputs = tuple(v.buffer for v in views)
    ctx.emit(ExternCall(ctx.fresh("call"), name, (view, *views, value.size[-1]), (), outputs, "into"))
    return tuple(results)


def polyfuse_lowerings(device_type: str) -> Mapping[str, Lowering]:
    return {"aten.sort.default": Lowering(_lowered, library=True)} if device_type == "cpu" else {}


@pytest.fixture(autouse=True)
def plugin_with_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fake_plugins import serve

    serve(monkeypatch, tmp_path, InterpreterBackend, {"polyfuse_lowerings": polyfuse_lowerings})
    monkeypatch.setattr(Sorting, "defect", right)
    monkeypatch.setattr(Sorting, "calls", [])
    tally.begin(forget=False)
    records._OPEN.clear()


def anew() -> None:
    """As in a process that begins."""
    torch.compiler.reset()
    forget_sessions()
    records._OPEN.clear()
    tally.begin(forget=False)
    Sorting.calls.clear()


def planted(monkeypatch: pytest.MonkeyPatch, defect: Sort) -> None:
    monkeypatch.setattr(Sorting, "defect", staticmethod(defect))


def swapped(x: Tensor, values: Tensor, positions: Tensor, count: int) -> None:
    """Of one row, two numbers are exchanged."""
    right(x, values, positions, count)
    values[3, :2] = values[3, :2].flip(0)


def coarse(x: Tensor, values: Tensor, positions: Tensor, count: int) -> None:
    right(x, values, positions, count)
    values.copy_(values.bfloat16().float())


def elsewhere(x: Tensor, values: Tensor, positions: Tensor, count: int) -> None:
    """An index is off by one."""
    right(x, values, positions, count)
    positions[-1, -1] += 1


def row_left_out(x: Tensor, values: Tensor, positions: Tensor, count: int) -> None:
    """The last row is as it was, which is right where memory is used again."""
    before = values[-1].clone()
    right(x, values, positions, count)
    values[-1] = before


def input_changed(x: Tensor, values: Tensor, positions: Tensor, count: int) -> None:
    right(x, values, positions, count)
    x[0, 0] += 1


def beside(x: Tensor, values: Tensor, positions: Tensor, count: int) -> None:
    right(x, values, positions, count)
    end = values.storage_offset() + values.numel()
    if values.untyped_storage().nbytes() // 4 > end:
        values.as_strided((1,), (1,), end).zero_()


DEFECTS = (swapped, coarse, elsewhere, row_left_out, input_changed, beside)
X = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))


def ordered(x: Tensor) -> tuple[Tensor, Tensor]:
    values, positions = torch.sort(x)
    return values * 2, positions


def agrees(x: Tensor = X, **options: Any) -> None:
    compiled = torch.compile(ordered, backend="polyfuse", options={"check": "first", **options})
    given = x.clone()
    for found, wanted in zip(compiled(given), ordered(x), strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(given, x)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_kernel_is_named_and_replaced(monkeypatch, warned, capsys, defect):
    planted(monkeypatch, defect)
    agrees()
    (text,) = warned
    assert "kernel rows_in_order of backend 'toy', made of aten.sort.default at File" in text
    assert "torch.sort(x)" in text and "what its plugin expects of it" in text
    (found,) = tally.result().findings
    assert f"polyfuse replay {found.repro}" in text
    assert Sorting.calls == ["kernel", "library"]
    assert cli.main(["replay", found.repro]) == 1
    said = capsys.readouterr().out
    assert f"found: rows_in_order: {found.problem}" in said and "now: " in said
    planted(monkeypatch, right)
    torch.compiler.reset()  # the same code would run as it was compiled
    assert cli.main(["replay", found.repro]) == 0
    assert "now: it agrees" in capsys.readouterr().out


@pytest.mark.parametrize("check", ["off", "first"])
def test_it_is_barred_in_later_processes(monkeypatch, warned, check):
    planted(monkeypatch, swapped)
    agrees()
    for _ in range(2):
        anew()
        agrees(check=check)
        assert Sorting.calls == ["library"] and not tally.result().findings
    assert len(warned) == 1


def test_agreement_is_remembered(warned):
    agrees()
    assert tally.result().launches == 2  # the product is a kernel of its own
    assert Sorting.calls == ["kernel"]
    anew()
    agrees()
    assert not tally.result().launches and Sorting.calls == ["kernel"] and not warned


def test_a_stored_graph_is_checked():
    agrees(check="off")
    assert Sorting.calls == ["kernel"] and not tally.result().launches
    anew()
    agrees()
    assert tally.result().launches


def test_all_checks_each_launch_and_first_the_first_of_each_kind():
    run = torch.compile(ordered, backend="polyfuse", dynamic=True, options={"check": "all"})
    for _ in range(3):
        run(X)
    every = tally.result().launches
    anew()
    run = torch.compile(ordered, backend="polyfuse", dynamic=True, options={"check": "first"})
    for columns in (80, 81, 82, 80, 81, 96):  # two kinds: multiples of 16 and others
        run(torch.randn(7, columns))
    assert every >= 3 and len(tally.result().kernels["a sorting kernel"]) == 2


def test_what_the_library_computes_is_not_checked():
    agrees(X[:, :3].contiguous())
    assert Sorting.calls == ["kernel"] and "a sorting kernel" not in tally.result().kernels


def test_strict_raises(monkeypatch):
    planted(monkeypatch, swapped)
    with pytest.raises(BackendError, match="rows_in_order"):
        agrees(strict=True)


def test_check_names_it(monkeypatch, tmp_path, capsys):
    planted(monkeypatch, elsewhere)
    program = tmp_path / "program.py"
    program.write_text("import torch\ntorch.compile(torch.sort, backend='polyfuse')(torch.randn(5, 7))\n")
    for name in ("POLYFUSE_CHECK", "POLYFUSE_GRAPH_CACHE"):
        monkeypatch.setenv(name, "")  # restored afterwards
    assert cli.main(["check", str(program)]) == 1
    said = capsys.readouterr().out
    assert "kernel rows_in_order of backend 'toy'" in said and "result1[4, 6] is" in said


def test_reports_say_where_it_comes_from():
    agrees()
    assert any(call.startswith("object.sorting_") for call in last_reports()[-1].calls)
