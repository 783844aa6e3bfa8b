"""Classes of sizes, the graph of a class, and which program a call runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse.compiler import stages
from polyfuse.compiler.session import CompileSession
from polyfuse.compiler.sizes.choosing import chosen_by_size
from polyfuse.compiler.sizes.classes import SizeClasses, SizeSymbol
from polyfuse.compiler.sizes.graphs import SizedGraph, classes_of
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer
from polyfuse.ir.resized import host_symbols
from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.verify import verify_graph
from polyfuse.plugin import TargetInfo
from polyfuse.schedule import Claims
from polyfuse.symbolic import free_symbols, host

ROWS, COLUMNS = SizeSymbol("s0", 0, 2, None, True), SizeSymbol("s1", 3, 0, 500, False)
CLASSES = SizeClasses((ROWS, COLUMNS), (40, 7), (16, 128), 8)


def test_a_class_is_a_range_and_whether_a_size_is_a_multiple():
    assert CLASSES.key((15, 15)) == CLASSES.key((2, 0)) == ((0, False), (0, False))
    assert CLASSES.key((16, 16)) == ((1, True), (1, False))
    assert CLASSES.key((17, 127)) == ((1, False), (1, False))
    assert CLASSES.key((4000, 128)) == ((2, True), (2, False))
    assert CLASSES.key((object(), 3)) == ()
    assert [CLASSES.bounds(ROWS, k) for k in range(3)] == [(2, 15), (16, 127), (128, None)]
    assert [CLASSES.bounds(COLUMNS, k) for k in range(3)] == [(0, 15), (16, 127), (128, 500)]


def test_sizes_ahead_are_combined_and_limited():
    found = CLASSES.ahead((1, 64, 1000))
    assert found[CLASSES.key((40, 7))] == (40, 7)
    assert set(found) == {CLASSES.key((a, b)) for a in (40, 64, 1000) for b in (7, 64)}
    many = SizeClasses((ROWS,), (2,), tuple(range(3, 99)), 1)
    assert len(many.ahead(range(2, 99))) == 32 and not many.allows(32)


@cache
def _graph() -> Graph:
    found: list[Graph] = []
    original = stages.SizedGraph.of

    def recorded(claims: Claims, session: CompileSession) -> SizedGraph | None:
        found.append(claims.graph)
        return None

    stages.SizedGraph.of = staticmethod(recorded)  # type: ignore[method-assign]
    try:
        function = torch.compile(
            lambda x: (x * x.shape[1]).sum(-1) + x.shape[0],
            backend="polyfuse",
            dynamic=True,
            options={"graph_cache": False, "backends": "interpreter"},
        )
        function(torch.ones(40, 7))
    finally:
        stages.SizedGraph.of = original  # type: ignore[method-assign]
    return found[0]


def test_the_graph_of_a_class_has_its_bounds_and_multiples():
    graph = _graph()
    info = TargetInfo(size_classes=(16, 128), size_multiple=8)
    classes = classes_of(graph, [info])
    assert classes is not None and classes.met == (40, 7)
    sized = SizedGraph(Claims(graph, {}, (), ()), classes)
    for sizes in ((40, 7), (39, 1000), (8, 64)):
        made = sized.of_class(classes.key(sizes), sizes).graph
        verify_graph(made)
        assert parse(text(made)) == made
        written = text(made)
        for item, size in zip(classes.symbols, sizes):
            name = f"{item.name}_8th" if size % 8 == 0 else item.name
            assert made.symbol_hints[name] == (size // 8 if size % 8 == 0 else size)
            assert f"{name}{{" in written
        assert [n.origins for n in made.nodes] == [n.origins for n in graph.nodes]
    assert sized.of_class((), (1, 2)).graph is graph
    assert classes_of(graph, [TargetInfo()]) is None


def test_a_size_that_the_host_computes_is_no_multiple():
    graph = _graph()
    item = next(item for item in graph.inputs if item.kind == "symint")
    assert item.value is not None and not host_symbols(graph)
    (name,) = free_symbols(item.value)
    root = Buffer("root", DType.f32, "cpu", (host(f"math.isqrt({name})", (item.value,)),), (1,), "float32")
    graph = replace(graph, buffers={**graph.buffers, "root": root})
    assert host_symbols(graph) == {name}
    classes = classes_of(graph, [TargetInfo(size_multiple=8)])
    assert classes is not None
    assert {item.name for item in classes.symbols if not item.multiples} == {name}


def test_programs_are_made_once_and_one_that_fails_is_replaced_by_one_for_all():
    made: list[Any] = []

    def compiled(key: Any, sizes: tuple[Any, ...]) -> Any:
        made.append((key, sizes))
        if sizes[0] > 1000:
            raise RuntimeError("planted")
        return lambda args: (key, args)

    classes = SizeClasses((ROWS,), (40,), (16, 128), 1)
    first = lambda args: "first"  # noqa: E731
    programs = chosen_by_size(classes, first, compiled, None, "g", {})
    assert programs([50]) is first and not made
    assert programs([3]) is programs([4]) and programs([3]) is not first
    assert made == [(((0, False),), (3,))]
    with pytest.raises(RuntimeError, match="planted"):
        programs([2000])
    eager = lambda args: "eager"  # noqa: E731
    programs = chosen_by_size(classes, first, compiled, eager, "g", {})
    assert programs([2000]) is eager and programs([50]) is first
    assert programs.status.text().startswith("3 programs")


def test_the_option_takes_integers():
    assert Settings.resolve(None, {"sizes": [1, 64]}).sizes == (1, 64)
    assert Settings.resolve(None, {"sizes": "1, 64"}).sizes == (1, 64)
    for wrong in ([1.5], "a", 3, [-1]):
        with pytest.raises(InvalidOptionError, match="sizes"):
            Settings.resolve(None, {"sizes": wrong})


def test_a_size_that_data_decide_counts_as_in_the_last_call():
    computed = SizeSymbol("u0", None, 0, None, False)
    classes = SizeClasses((ROWS, computed), (40, 64), (16, 128), 8)
    assert classes.positions == (0,) and classes.noted == {"u0": 64}
    seen = classes.noted
    programs = chosen_by_size(
        classes, list, lambda key, sizes: dict if sizes[1] > 64 else set, None, "g", seen
    )
    assert programs([40]) is list
    seen["u0"] = 500
    assert programs([40]) is dict
    seen["u0"] = 100
    assert programs([40]) is list
