"""Kernels that are wrong are found by the option `check`, barred, reported and replaced; those that are right
are checked once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfuse import cli
from polyfuse.base.errors import BackendError
from polyfuse.checking import checked, familiar, launch, records, tally
from polyfuse.compiler.reports.report import last_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Config, Launchable, Source
from polyfuse.reference.backend import InterpreterBackend

Defect = Callable[[Kernel, tuple[Any, ...]], None]


@pytest.fixture(autouse=True)
def counted():
    tally.begin(forget=False)
    records._OPEN.clear()


def planted(defect: Defect) -> type:
    """The interpreter, with something done to what it computed."""

    class OnTrial(InterpreterBackend):
        def load(self, folder: Path) -> Mapping[str, Launchable]:
            return {key: self.spoilt(kernel.kernel) for key, kernel in super().load(folder).items()}  # type: ignore[attr-defined]

        def spoilt(self, kernel: Kernel) -> Launchable:
            def launch(*operands: Any) -> None:
                defect(kernel, operands)

            return launch

    return OnTrial


def honest(kernel: Kernel, operands: tuple[Any, ...]) -> None:
    run_kernel(kernel, operands)


def results(kernel: Kernel, operands: tuple[Any, ...]) -> list[torch.Tensor]:
    return [
        o.as_strided((int(a.numel),), (1,))  # type: ignore[arg-type]
        for a, o in zip(kernel.args, operands, strict=True)
        if a.kind != "in" and a.kind != "size"
    ]


def nudged(kernel: Kernel, operands: tuple[Any, ...]) -> None:
    """The last element is off by a little."""
    run_kernel(kernel, operands)
    last = results(kernel, operands)[0][-1:]
    last.mul_(1 + 1e-4).add_(1e-6)


def without_nan(kernel: Kernel, operands: tuple[Any, ...]) -> None:
    run_kernel(kernel, operands)
    results(kernel, operands)[0].nan_to_num_(nan=0.0)


def beside(kernel: Kernel, operands: tuple[Any, ...]) -> None:
    """What lies behind the result is written to, where that is memory."""
    run_kernel(kernel, operands)
    out = results(kernel, operands)[0]
    end = out.storage_offset() + out.numel()
    if out.untyped_storage().nbytes() // out.element_size() > end:
        out.as_strided((1,), (1,), end).zero_()


def input_changed(kernel: Kernel, operands: tuple[Any, ...]) -> None:
    run_kernel(kernel, operands)
    operands[0].as_strided((1,), (1,)).add_(1)


def one_short(kernel: Kernel, operands: tuple[Any, ...]) -> None:
    """A reduction misses its last element."""
    short = [o.clone() if isinstance(o, torch.Tensor) else o for o in operands]
    short[0].select(-1, -1).zero_()
    run_kernel(kernel, short)
    for mine, right in zip(results(kernel, operands), results(kernel, tuple(short)), strict=True):
        mine.copy_(right)


def model(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).sum(-1)


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


X = torch.linspace(-3, 5, 300).reshape(20, 15)
WITH_NAN = X.clone().index_fill_(1, torch.tensor([3]), float("nan"))


def compiled(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
    return torch.compile(function, backend="polyfuse", options={"check": "first", **options})


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("defect", "function", "given"),
    [
        (nudged, pointwise, X),
        (nudged, model, X),
        (without_nan, pointwise, WITH_NAN),
        (beside, pointwise, X),
        (input_changed, pointwise, X),
        (one_short, model, X.exp()),
    ],
)
def test_wrong_kernels_are_named_and_replaced(install, warned, defect, function, given):
    install(planted(defect))
    before = given.clone()
    torch.testing.assert_close(compiled(function)(given), function(before), equal_nan=True)
    torch.testing.assert_close(given, before, equal_nan=True, rtol=0, atol=0)
    (text,) = warned
    assert "of backend 'toy'" in text and "aten." in text and "polyfuse replay" in text
    assert "return " in text  # the model's line
    (found,) = tally.result().findings
    assert found.backend == "toy" and Path(found.repro).is_file()
    (launched,) = last_reports()[-1].launches
    assert launched.backend == "cpp" and "differs from the interpreter" in launched.provider.reason


def test_the_file_shows_it_again(install, warned, capsys):
    install(planted(nudged))
    compiled(pointwise)(X)
    repro = tally.result().findings[0].repro
    assert cli.main(["replay", repro]) == 1
    assert "[19, 14]" in warned[0]
    assert "now: out0[" in capsys.readouterr().out


def test_barred_kernels_are_not_used_by_later_processes(install, warned):
    install(planted(nudged))
    compiled(pointwise)(X)
    for _ in range(2):
        torch.compiler.reset()
        forget_sessions()
        records._OPEN.clear()
        tally.begin(forget=False)
        torch.testing.assert_close(compiled(pointwise, check="off")(X), pointwise(X), rtol=0, atol=0)
        assert not tally.result().findings
    assert len(warned) == 1


def test_agreement_is_remembered(install):
    install(planted(honest))
    compiled(model)(X)
    assert tally.result().launches == 1
    for _ in range(2):
        torch.compiler.reset()
        forget_sessions()
        records._OPEN.clear()
        tally.begin(forget=False)
        torch.testing.assert_close(compiled(model)(X), model(X))
        assert tally.result().launches == 0


def test_kernels_of_stored_graphs_are_checked():
    """Graphs of a plugin that is no file are not stored: this is the C++ backend."""
    compiled(pointwise, check="off")(X)
    torch.compiler.reset()
    forget_sessions()
    torch.testing.assert_close(compiled(pointwise)(X), pointwise(X), rtol=0, atol=0)
    assert last_reports()[-1].cached and tally.result().launches == 1


def test_all_checks_every_launch(install):
    install(planted(honest))
    run = compiled(model, check="all")
    for _ in range(3):
        run(X)
    assert tally.result().launches == 3


def test_each_kind_of_sizes_is_checked(install):
    install(planted(honest))
    run = torch.compile(model, backend="polyfuse", dynamic=True, options={"check": "first"})
    for columns in (16, 32, 17, 33, 48):
        run(torch.randn(5, columns))
    assert tally.result().launches == 2


def test_launches_like_those_that_agreed_are_not_looked_at(install, monkeypatch):
    install(planted(honest))
    looked = []
    layout = checked.layout_of
    monkeypatch.setattr(checked, "layout_of", lambda *a: looked.append(1) or layout(*a))
    run = torch.compile(model, backend="polyfuse", dynamic=True, options={"check": "first"})
    memory = torch.randn(5 * 48 + 1)
    for columns, first, looks in (
        (16, 0, 1),  # checked
        (16, 0, 1),  # agreed
        *[(16, 0, 0)] * 3,
        (32, 0, 1),
        *[(32, 0, 0)] * 2,
        (16, 0, 0),
        (16, 1, 1),  # elsewhere: checked
        (16, 1, 1),
        (16, 1, 0),
    ):
        looked.clear()
        x = memory[first : first + 5 * columns].view(5, columns)
        torch.testing.assert_close(run(x), model(x))
        assert len(looked) == looks, (columns, first)
    assert tally.result().launches == 2


def test_launches_on_the_same_memory_are_known_by_their_addresses(install, monkeypatch):
    install(planted(honest))
    asked, entered = [], []
    numbers, enter = familiar.FamiliarLaunches._numbers, checked.CheckedKernel.__call__
    monkeypatch.setattr(familiar.FamiliarLaunches, "_numbers", lambda *a: asked.append(1) or numbers(*a))
    monkeypatch.setattr(checked.CheckedKernel, "__call__", lambda *a: entered.append(1) or enter(*a))
    into = torch.compile(
        lambda x, out: out.copy_(model(x)), backend="polyfuse", dynamic=True, options={"check": "first"}
    )
    memory, out = torch.randn(5 * 48 + 1), torch.empty(5)

    def agrees(x: torch.Tensor) -> None:
        torch.testing.assert_close(into(x, out), model(x))

    x, moved = memory[: 5 * 16].view(5, 16), memory[1 : 1 + 5 * 16].view(5, 16)
    for _ in range(3):  # checked, agreed, remembered
        agrees(x)
    asked.clear(), entered.clear()
    for _ in range(5):
        agrees(x)
    assert not asked and not entered
    # aligned in another way, and another size at the same address: looked at, not known
    agrees(moved)
    assert tally.result().launches == 2
    wide = memory[: 5 * 48].view(5, 48)
    for _ in range(3):
        agrees(wide)
        agrees(x)
    assert tally.result().launches == 2


def test_strict_raises(install):
    install(planted(nudged))
    with pytest.raises(BackendError, match=r"'toy'.*differs from the interpreter"):
        compiled(pointwise, strict=True)(X)


def tunable(defect: Defect) -> type:
    class Tunable(planted(defect)):  # type: ignore[misc]
        def configs(self, kernel: Kernel) -> tuple[Config, ...]:
            return tuple(Config((("x", n),)) for n in (1, 2))

        def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
            source = super().emit(kernel)
            return replace(source, text=f"{source.text}# {config}\n")

    return Tunable


def test_the_winner_of_tuning_is_checked_in_any_mode(install, warned):
    install(tunable(nudged))
    run = compiled(pointwise, check="off", tune_kernels=True, tune_in_process=True)
    torch.testing.assert_close(run(X), pointwise(X), rtol=0, atol=0)
    assert any("of backend 'toy' (x=" in text for text in warned)


def test_winners_of_sizes_that_vary_are_known_by_their_sizes(install, monkeypatch):
    install(tunable(honest))
    entered = []
    enter = checked.CheckedKernel.__call__
    monkeypatch.setattr(checked.CheckedKernel, "__call__", lambda *a: entered.append(1) or enter(*a))
    options = {"check": "off", "tune_kernels": True, "tune_in_process": True}
    run = torch.compile(model, backend="polyfuse", dynamic=True, options=options)
    memory = torch.randn(5 * 48 + 1)
    for columns, first, entries in (
        *[(16, 0, 1)] * 3,  # checked, agreed, known
        *[(16, 0, 0), (16, 1, 0)] * 2,  # wherever it is, as with a winner of one size
        *[(48, 0, 1), (48, 0, 0)],
        (16, 1, 0),
    ):
        entered.clear()
        x = memory[first : first + 5 * columns].view(5, columns)
        torch.testing.assert_close(run(x), model(x))
        assert len(entered) == entries, (columns, first)
    assert tally.result().launches == 1


@pytest.mark.parametrize("right", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_winner_of_tuning_is_checked_before_a_native_program_calls_it(warned, monkeypatch, right):
    if not right:
        monkeypatch.setattr(launch, "agree", lambda found, *_: torch.zeros_like(found, dtype=torch.bool))
    options = {"tune_kernels": True, "tune_in_process": True, "native_host": True}
    run = compiled(model, check="off", **options)
    for _ in range(3):
        torch.testing.assert_close(run(X), model(X))
    assert tally.result().launches == 1 and bool(warned) is not right
    host = last_reports()[-1].host
    assert host is not None and bool(host.refused) is not right


def test_a_rounding_left_out_is_found(install, warned):
    """With `numerics="eager"`, an intermediate is rounded to 16 bits: one that is not is seen."""

    def unrounded(kernel: Kernel, operands: tuple[Any, ...]) -> None:
        run_kernel(kernel, operands)
        a, b = (o.float() for o in operands[:2])
        results(kernel, operands)[0].copy_((a * b + a).bfloat16().reshape(-1))

    install(planted(unrounded))
    a, b = torch.randn(2, 4096).bfloat16()
    with torch.no_grad():
        found = compiled(lambda a, b: a * b + a, numerics="eager")(a, b)
    torch.testing.assert_close(found, a * b + a, rtol=0, atol=0)
    assert len(warned) == 1


def whisper_block(x, w, p, g, c):
    y = F.gelu(torch.mm(w, x)).t() + p
    return y, F.layer_norm(y, (384,), g, c)


def overwritten(kernel: Kernel, operands: tuple[Any, ...]) -> None:
    """The first result lies where the first input does, and the row is computed again from there."""
    run_kernel(kernel, operands)
    outs = [i for i, a in enumerate(kernel.args) if a.kind == "out"]
    if len(outs) == 2:
        again = [o.clone() if isinstance(o, torch.Tensor) else o for o in operands]
        again[0].copy_(operands[outs[0]])
        run_kernel(kernel, again)
        operands[outs[1]].copy_(again[outs[1]])


def whisper_operands():
    torch.manual_seed(0)
    shapes = (16, 150), (384, 16), (150, 384), (384,), (384,)
    return [torch.randn(shape).bfloat16() for shape in shapes]


PROGRAM = """
import torch
from test_checking import whisper_block, whisper_operands

with torch.no_grad():
    print(len(torch.compile(whisper_block, backend="polyfuse")(*whisper_operands())))
"""


def test_a_program_with_a_row_read_after_it_was_overwritten(install, tmp_path, capsys, monkeypatch):
    """Whisper's encoder on GPUs, when its kernel read a row again from where a result had been stored."""
    install(planted(overwritten))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for name in ("POLYFUSE_CHECK", "POLYFUSE_GRAPH_CACHE"):
        monkeypatch.setenv(name, "")  # restored afterwards
    for _ in range(2):  # the outcome is the same again, although the kernel is barred by then
        assert cli.main(["check", str(program)]) == 1
        said = capsys.readouterr().out
        assert "of backend 'toy'" in said and "aten.erf" in said and "F.gelu" in said and "out1[" in said
        torch.compiler.reset()
        forget_sessions()


def test_a_program_that_is_right(install, tmp_path, capsys, monkeypatch):
    install(planted(honest))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for name in ("POLYFUSE_CHECK", "POLYFUSE_GRAPH_CACHE"):
        monkeypatch.setenv(name, "")
    assert cli.main(["check", str(program)]) == 0
    assert "1 kernel, 1 launch checked: all agree" in capsys.readouterr().out
