"""The order of statements in long bodies."""

from __future__ import annotations

import torch

from cpp_kernels import KernelBuilder, compiled
from polyfuse.ir.kernel import Kernel
from polyfuse_cpp.loops.order import used_early

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
    place = s.const(0.0)
    for step, test in enumerate(tests, 1):
        place = s.op("where", test, s.const(float(step)), place)
    s.store("p", k["x0"], place)
    return k.build()


def test_a_value_is_used_while_it_is_at_hand() -> None:
    kernel = used_early(largest())
    body = kernel.sections[0].body
    assert sorted(map(repr, body)) == sorted(map(repr, largest().sections[0].body))
    known: set[str] = set()
    for stmt in body:
        assert known.issuperset(stmt.args)
        known.update(stmt.targets)
    places = {stmt.op: place for place, stmt in enumerate(body)}  # the last of each
    first_test = next(place for place, stmt in enumerate(body) if stmt.op == "gt")
    assert first_test < places["maximum"]


def test_what_is_reordered_computes_the_same() -> None:
    a, o, p = torch.randn(SIZE + STEPS - 1), torch.empty(SIZE), torch.empty(SIZE)
    compiled(largest(), "")(a, o, p)
    best, place = a.unfold(0, STEPS, 1).max(1)
    assert torch.equal(o, best) and torch.equal(p, place.float())


def test_short_bodies_stay_as_they_are() -> None:
    k = KernelBuilder({"x0": 8})
    k.arg("a"), k.out("o")
    s = k.section()
    s.store("o", k["x0"], s.op("neg", s.load("a", k["x0"])))
    kernel = k.build()
    assert used_early(kernel) is kernel
