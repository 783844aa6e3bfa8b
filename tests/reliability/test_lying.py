"""The option `check` finds each defect that the lying backend plants, names it, and gives right results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils import _pytree as pytree

from polyfuse.base.settings import Settings
from polyfuse.checking.launch import check_launch
from polyfuse.checking.operands import layout_of
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.plugin import PluginManager
from polyfuse.testing.conformance import all_cases
from polyfuse.testing.lying import defect
from polyfuse.testing.lying.installed import installed
from polyfuse.testing.lying.programs import PROGRAMS, Program

ALL = [pytest.param(program, id=program.name) for program in PROGRAMS]
# What only built kernels show as they are: vectors, tails, stores beside a buffer, several launches.
BUILT = ("store-outside", "tail-unwritten", "narrow-accumulator", "rounding-left-out", "race", "stale-memory")


@pytest.fixture(autouse=True)
def lying() -> Iterator[None]:
    with installed():
        yield


def run(program: Program, backend: str, planted: str, check: str) -> None:
    """Call the program as often as it has inputs; all results are those of eager mode."""
    options = {
        "backends": ["lying"],
        "lying.backend": backend,
        "lying.defect": planted,
        "check": check,
        **program.options,
    }
    compiled = torch.compile(
        program.function, backend="polyfuse", options=options, dynamic=program.dynamic or None
    )
    for inputs in program.inputs:
        expected, found = program.function(*inputs()), compiled(*inputs())
        for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


def assert_caught(program: Program, backend: str, warned: list[str]) -> None:
    launches = defect(program.defect).launches
    run(program, backend, program.defect, "first" if launches == 1 else "all")
    assert warned, f"{program.defect} was not caught"
    text = warned[0]
    assert "'lying'" in text and "fused_" in text, text
    if "could not be launched" in text:
        assert program.defect in ("launch-raises", "store-outside")
        return
    assert "aten." in text and 'File "' in text and "polyfuse replay" in text, text
    if program.defect == "store-outside":
        assert "beside" in text
    elif program.defect == "input-overwritten":
        assert "changed its input" in text
    else:
        assert "elements differ" in text and "] is " in text


@pytest.mark.quick(6)
@pytest.mark.parametrize("program", ALL)
def test_it_is_caught_and_named(program: Program, warned: list[str]) -> None:
    assert_caught(program, "interpreter", warned)


@pytest.mark.quick(2)
@pytest.mark.parametrize("program", [p for p in ALL if p.id in BUILT])
def test_it_is_caught_in_built_kernels(program: Program, warned: list[str]) -> None:
    assert_caught(program, "cpp", warned)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpp", "halide"])
@pytest.mark.parametrize("program", ALL)
def test_each_is_caught_in_built_kernels(
    program: Program, backend: str, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYFUSE_DISABLE")
    if backend not in PluginManager(Settings.resolve()).order("cpu"):
        pytest.skip(f"{backend} is not installed")
    assert_caught(program, backend, warned)


@pytest.mark.quick(3)
@pytest.mark.parametrize("program", ALL[:: len(ALL) // 8])
def test_nothing_is_said_where_nothing_is_planted(program: Program, warned: list[str]) -> None:
    """A defect that the program has nothing for leaves an honest backend."""
    other = "lost-update" if program.defect != "lost-update" else "rounding-mode"
    run(program, "interpreter", other, "all")
    assert not warned


def test_a_kernel_barred_for_one_version_of_a_backend_is_not_for_others(warned: list[str]) -> None:
    """Several bars on a kernel stand for all its configurations, not for what another version makes of it."""
    affine = [program for program in PROGRAMS if program.function is PROGRAMS[0].function][:4]
    for number, program in enumerate(affine):
        torch.compiler.reset()
        run(program, "interpreter", program.defect, "first")
        assert len(warned) == number + 1, program.defect


@pytest.mark.parametrize("name", ["tail-unwritten", "element-unwritten", "last-row-unwritten"])
def test_elements_left_out_are_found_where_memory_holds_their_values(name: str) -> None:
    """As memory often does that is used again, after eager mode or the call before."""
    case = next(c for c in all_cases(quick=True) if defect(name).applies(c.kernel))
    wrong = defect(name).planted(case.kernel)
    operands = case.runs[0]()
    run_kernel(case.kernel, operands)
    layout = layout_of(case.kernel, operands)
    assert wrong is not None and layout is not None
    assert not check_launch(case.kernel, lambda *o: run_kernel(case.kernel, o), operands, layout).problem
    found = check_launch(case.kernel, lambda *o: run_kernel(wrong, o), operands, layout)
    assert "elements differ" in found.problem


def test_without_the_check_the_defect_shows() -> None:
    """The programs prove something: what they compute is wrong when nobody looks."""
    wrong = 0
    for program in PROGRAMS[::5]:
        torch.compiler.reset()
        try:
            run(program, "interpreter", program.defect, "off")
        except (AssertionError, RuntimeError):
            wrong += 1
    assert wrong >= 7
