"""The order of statements in long bodies."""

from __future__ import annotations

import dataclasses

import torch

from cpp_kernels import KernelBuilder, compiled
from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.ir.statements import Load, Store
from polyfuse.ir.types import DType
from polyfuse_cpp.cuts.order import used_early

STEPS, SIZE = 12, 50


def largest() -> Kernel:
    """The largest of twelve neighbours, and then where it is: of all the comparisons."""
    k = KernelBuilder({"x0": SIZE})
    k.arg("a"), k.out("o"), k.out("p")
    s = k.section()
    items = [s.load("a", k["x0"] + step) for step in range(STEPS)]
    tops = [items[0]]
    for item in items[1:]:
        tops.append(s.op("maximum", tops[-1], item))
    s.store("o", k["x0"], tops[-1])
    tests = [s.op("gt", item, top) for item, top in zip(items[1:], tops, strict=False)]
    position = s.const(0.0)
    for step, test in enumerate(tests, 1):
        position = s.op("where", test, s.const(float(step)), position)
    s.store("p", k["x0"], position)
    return k.build()


def test_a_value_is_used_while_it_is_at_hand() -> None:
    kernel = used_early(largest())
    body = kernel.sections[0].body
    assert sorted(map(repr, body)) == sorted(map(repr, largest().sections[0].body))
    known: set[str] = set()
    for stmt in body:
        assert known.issuperset(stmt.args)
        known.update(stmt.targets)
    last = {stmt.op: at for at, stmt in enumerate(body)}  # the last of each
    first_test = next(at for at, stmt in enumerate(body) if stmt.op == "gt")
    assert first_test < last["maximum"]


def test_what_is_reordered_computes_the_same() -> None:
    a, o, p = torch.randn(SIZE + STEPS - 1), torch.empty(SIZE), torch.empty(SIZE)
    compiled(largest(), "")(a, o, p)
    best, at = a.unfold(0, STEPS, 1).max(1)
    assert torch.equal(o, best) and torch.equal(p, at.float())


def test_positions_by_index_are_used_as_early_as_constants() -> None:
    k = KernelBuilder({"x0": SIZE})
    k.arg("a"), k.out("o"), k.out("p", DType.i64)
    s = k.section()
    top, tests = s.load("a", k["x0"]), list[str]()
    for step in range(1, STEPS):
        item = s.load("a", k["x0"] + step)
        tests.append(s.op("gt", item, top))
        top = s.op("maximum", top, item)
    s.store("o", k["x0"], top)
    position = s.index(k["x0"])
    for step, test in enumerate(tests, 1):
        position = s.op("where", test, s.index(k["x0"] + step), position)
    s.store("p", k["x0"], position)
    kernel = k.build()
    body = used_early(kernel).sections[0].body
    tests_and_uses = [stmt.op for stmt in body if stmt.op in ("gt", "where")]
    assert tests_and_uses == ["gt", "where"] * (STEPS - 1)
    a, o, p = torch.randn(SIZE + STEPS - 1), torch.empty(SIZE), torch.empty(SIZE, dtype=torch.int64)
    compiled(kernel, "")(a, o, p)
    best, at = a.unfold(0, STEPS, 1).max(1)
    assert torch.equal(o, best) and torch.equal(p, at + torch.arange(SIZE))


def test_what_a_later_section_uses_stays() -> None:
    k = KernelBuilder({"x0": 8}, {"r0": 8})
    k.arg("a"), k.out("o")
    first, loop, last = k.section(), k.section(looped=True), k.section()
    scale = first.const(2.0)
    total = loop.reduce("sum", loop.load("a", k["x0"] * 8 + k["r0"]))
    last.store("o", k["x0"], last.op("mul", total, scale))
    kernel = k.build()
    assert scale in {t for p in used_early(kernel).sections for stmt in p.body for t in stmt.targets}


def test_short_bodies_stay_as_they_are() -> None:
    k = KernelBuilder({"x0": 8})
    k.arg("a"), k.out("o")
    s = k.section()
    s.store("o", k["x0"], s.op("neg", s.load("a", k["x0"])))
    kernel = k.build()
    assert used_early(kernel) is kernel


def rows_with_positions() -> Kernel:
    """The largest of twelve neighbours, and what stands at its position in another argument."""
    k = KernelBuilder({"x0": SIZE})
    k.arg("a"), k.arg("b"), k.out("o"), k.out("p")
    s = k.section()
    items = [s.load("a", k["x0"] + step) for step in range(STEPS)]
    tops = [items[0]]
    for item in items[1:]:
        tops.append(s.op("maximum", tops[-1], item))
    s.store("o", k["x0"], tops[-1])
    tests = [s.op("gt", item, top) for item, top in zip(items[1:], tops, strict=False)]
    position = s.load("b", k["x0"])
    for step, test in enumerate(tests, 1):
        position = s.op("where", test, s.load("b", k["x0"] + step), position)
    s.store("p", k["x0"], position)
    return k.build()


def test_what_is_read_once_is_read_when_it_is_used() -> None:
    kernel = used_early(rows_with_positions())
    body = kernel.sections[0].body
    known: set[str] = set()
    for stmt in body:
        assert known.issuperset(stmt.args)
        known.update(stmt.targets)
    kinds = [stmt.op for stmt in body]
    assert sorted(kinds) == sorted(stmt.op for stmt in rows_with_positions().sections[0].body)
    # the first choice is made before the last comparison
    assert kinds.index("where") < max(n for n, kind in enumerate(kinds) if kind == "gt")


def test_what_may_be_written_meanwhile_is_read_where_it_was() -> None:
    kernel = dataclasses.replace(rows_with_positions(), aliases=(Alias("p", "b"),))
    moved = used_early(kernel)

    def touched(kernel: Kernel) -> list[tuple[str, str]]:
        body = kernel.sections[0].body
        return [(s.op, s.buffer) for s in body if isinstance(s, (Load, Store)) and s.buffer != "a"]

    assert touched(moved) == touched(kernel)
    assert touched(used_early(rows_with_positions())) != touched(kernel)


def test_reading_late_computes_the_same() -> None:
    a, b = torch.randn(SIZE + STEPS - 1), torch.randn(SIZE + STEPS - 1)
    o, p = torch.empty(SIZE), torch.empty(SIZE)
    compiled(rows_with_positions(), "")(a, b, o, p)
    best, at = a.unfold(0, STEPS, 1).max(1)
    assert torch.equal(o, best) and torch.equal(p, b[torch.arange(SIZE) + at])
