"""IR text: what is printed reads back as the same data."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ir_samples
from polyfuse.base.errors import ParseError
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.expr import const, index_value, load
from polyfuse.ir.nodes import SymbolPath
from polyfuse.ir.statements import Constant
from polyfuse.ir.text.parse import parse, parse_graph, parse_kernel
from polyfuse.ir.text.print import Printer, text
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, host, maximum, minimum, symbol


@pytest.mark.parametrize("kernel", [ir_samples.softmax_kernel(), ir_samples.gather_kernel()])
def test_kernel_round_trip(kernel):
    assert parse_kernel(text(kernel)) == kernel
    assert text(parse(text(kernel, comments=False))) == text(kernel, comments=False)


def test_graph_round_trip():
    graph = ir_samples.graph()
    found = parse_graph(text(graph))
    assert found == graph
    assert text(found) == text(graph, comments=False)


def test_node_and_expression_round_trip():
    for node in ir_samples.graph().nodes:
        assert parse(text(node)) == node
        for expr in getattr(node, "expressions", tuple)():
            assert parse(text(expr)) is expr


def test_golden_texts(golden):
    golden("ir/softmax_kernel.txt", text(ir_samples.softmax_kernel()))
    golden("ir/gather_kernel.txt", text(ir_samples.gather_kernel()))
    golden("ir/graph.txt", text(ir_samples.graph()))


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1.5, 1e-45, -1e30, math.inf, -math.inf, math.nan, 1e22, 0.1, 3.4028235e38]
)
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
def test_float_constants(value, dtype):
    expr = const(value, dtype)
    assert parse(text(expr)) is expr
    printer = Printer()
    assert "const" in printer.statement(Constant("v", expr.value, dtype))


def test_integer_and_bool_constants():
    for value, dtype in ((-5, DType.i8), (2**64 - 1, DType.u64), (-(2**63), DType.i64), (True, DType.bool)):
        expr = const(value, dtype)
        assert parse(text(expr)) is expr


def test_odd_names_are_quoted():
    expr = load("a b/c", 3, DType.f32)
    assert '"a b/c"' in text(expr)
    assert parse(text(expr)) is expr


def test_axes_of_one_name_and_two_sizes():
    index = axis("@0", 5) * 7 + axis("i0", symbol("s0")) + axis("i0", 4) * 3
    assert parse(text(index)) is index
    expr = index_value(index)
    assert parse(text(expr)) is expr


def test_digest_ignores_graph_name_and_comments():
    from dataclasses import replace

    graph = ir_samples.graph()
    assert ir_digest(graph) == ir_digest(replace(graph, name="other"))
    assert ir_digest(graph) != ir_digest(replace(graph, nodes=graph.nodes[:-1]))


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        ("kernel k on cpu {\n  numerics fast\n  axes i0{3}\n  in a: q32[3]\n}", "q32"),
        ("kernel k on cpu {\n  numerics fast\n  once {\n    x = load f32 a[i9]\n  }\n}", "i9"),
        ("something else", "something"),
        ("index 3 + ", "name is expected"),
        ("index 3 $", "begins no word"),
        ("expr {\n  yield %0\n}", "%0"),
    ],
)
def test_errors_name_the_line(broken, part):
    with pytest.raises(ParseError, match="line") as caught:
        parse(broken)
    assert part in str(caught.value)


_SYMBOL = symbol("s0", 1, 9)
_LEAVES = st.one_of(
    st.integers(-9, 9),
    st.sampled_from(
        [axis("i0", 6), axis("i1", _SYMBOL), _SYMBOL, symbol("u0"), host("s0 ** 2", [_SYMBOL], 1)]
    ),
)


def _grow(inner):
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        pair.map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(1, 9)).map(lambda p: p[0] // p[1]),
        st.tuples(inner, st.integers(1, 9)).map(lambda p: p[0] % p[1]),
        inner.map(lambda x: x // _SYMBOL),
        inner.map(lambda x: x % _SYMBOL),
        pair.map(lambda p: minimum(*p)),
        pair.map(lambda p: maximum(*p)),
    )


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.recursive(_LEAVES, _grow, max_leaves=8))
def test_any_index_round_trips(index: IndexLike):
    found = parse(text(index))
    assert found is index or found == index


def test_paths_of_unbacked_symbols():
    for words, path in {
        "item:1": SymbolPath("item", 1),
        "size:0:2": SymbolPath("size", 0, 2),
        "stride:3:1": SymbolPath("stride", 3, 1),
    }.items():
        assert SymbolPath.of(words) == path and str(path) == words
    for words in ("item", "size:0", "width:0:1", "size:0:x"):
        with pytest.raises(ValueError):
            SymbolPath.of(words)
