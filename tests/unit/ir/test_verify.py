"""The verifiers: good IR passes, and each broken rule is named with the statement that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ir_samples
from polyfuse.base.errors import VerifyError
from polyfuse.ir.expr import Expr, apply, const, load
from polyfuse.ir.kernel import Kernel, KernelArg, Section, Stmt
from polyfuse.ir.nodes import ExternCall, Pointwise, View
from polyfuse.ir.types import DType
from polyfuse.ir.verify import verify_expr, verify_graph, verify_kernel
from polyfuse.symbolic import axis, symbol

F, I, B = DType.f32, DType.i64, DType.bool
AXIS, REDUCED = axis("i0", 4), axis("r0", 3)
LOAD = Stmt(("x",), "load", (), F, ("in0", 3 * AXIS + REDUCED, 0, False))
ONCE = Stmt(("y",), "load", (), F, ("in0", AXIS, 0, False))
ARGS = (KernelArg("in0", "in", F, 12), KernelArg("out0", "out", F, 4))


def store(value: str, index=AXIS, dtype=F, name="out0") -> Stmt:
    return Stmt((), "store", (value,), dtype, (name, index, 0, "set", False))


def kernel(*sections: Section, args=ARGS) -> Kernel:
    return Kernel("k", "cpu", (AXIS,), (REDUCED,), args, (), sections)


def once(*body: Stmt) -> Section:
    return Section(False, body)


def loop(*body: Stmt) -> Section:
    return Section(True, body)


SUM = Stmt(("s",), "reduce", ("x",), F, ("sum",))


def test_samples_are_well_formed():
    verify_kernel(ir_samples.softmax_kernel())
    verify_kernel(ir_samples.gather_kernel())
    verify_kernel(kernel(loop(LOAD, SUM), once(store("s"))))
    verify_graph(ir_samples.graph())


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (kernel(once(store("nothing"))), "'nothing'"),
        (kernel(loop(LOAD, SUM, store("s"))), "known only outside"),
        (kernel(loop(LOAD), once(store("x"))), "known only outside"),
        (kernel(once(ONCE, ONCE)), "defined twice"),
        (kernel(once(Stmt(("z",), "sinus", (), F))), "unknown"),
        (kernel(once(ONCE, Stmt(("z",), "exp", ("y",), I))), "not i64"),
        (kernel(once(ONCE, Stmt(("z",), "add", ("y",), F))), "2 operands"),
        (kernel(once(ONCE, Stmt(("z",), "bitwise_and", ("y", "y"), F))), "does not take f32"),
        (kernel(once(ONCE, Stmt(("z",), "where", ("y", "y", "y"), F))), "not bool"),
        (kernel(once(Stmt(("z",), "const", (), DType.i8, (300,)))), "does not fit"),
        (kernel(once(Stmt(("z",), "const", (), F, (1,)))), "not a float"),
        (kernel(once(LOAD)), "axis r0"),
        (kernel(once(replace(ONCE, attrs=("in0", AXIS + axis("@0", 3), 0, False)))), "0 indirect operands"),
        (kernel(once(replace(ONCE, attrs=("in0", AXIS + symbol("s9"), 0, False)))), "s9"),
        (kernel(once(replace(ONCE, attrs=("in0", 4 * AXIS, 0, False)))), "reaches element 12"),
        (kernel(once(replace(ONCE, attrs=("in0", AXIS - 1, 0, False)))), "before the first"),
        (kernel(once(replace(ONCE, attrs=("in9", AXIS, 0, False)))), "'in9' is not declared"),
        (kernel(once(replace(ONCE, attrs=("out0", AXIS, 0, False)))), "before anything is stored"),
        (kernel(once(ONCE, store("y", name="in0"))), "is an input"),
        (kernel(once(ONCE, store("y", dtype=I))), "stored as i64"),
        (kernel(once(ONCE, replace(store("y"), attrs=("out0", AXIS, 0, "put", False)))), "'put'"),
        (kernel(once(ONCE, replace(SUM, args=("y",)))), "not looped"),
        (kernel(loop(LOAD, replace(SUM, attrs=("mean",)))), "'mean' is unknown"),
        (kernel(loop(LOAD, replace(SUM, targets=("s", "t")))), "defines 1 values"),
        (kernel(loop(LOAD, Stmt(("s",), "reduce", ("x",), F, ("any",)))), "does not take f32"),
        (replace(kernel(loop(LOAD)), raxes=()), "without reduction axes"),
        (kernel(args=(*ARGS, ARGS[0])), "declared twice"),
        (kernel(args=(KernelArg("a", "pointer", F, 3),)), "unknown kind"),
        (kernel(args=(KernelArg("a", "in", F, symbol("s3")),)), "s3"),
        (replace(kernel(), size_hints=(1,)), "size hints"),
    ],
)
def test_broken_kernels(bad, part):
    with pytest.raises(VerifyError) as caught:
        verify_kernel(bad)
    assert part in str(caught.value)


def test_a_masked_access_may_name_places_outside():
    masked = Stmt(("z",), "load", ("ok", "y"), F, ("in0", AXIS + 11, 0, True))
    first = Stmt(("i",), "index", (), I, (AXIS,))
    verify_kernel(kernel(once(ONCE, first, Stmt(("ok",), "lt", ("i", "i"), B), masked)))


def test_the_message_shows_the_neighbours():
    fill = [Stmt((f"c{i}",), "const", (), F, (float(i),)) for i in range(12)]
    bad = kernel(once(*fill[:6], Stmt(("bad",), "add", ("c1", "c9"), F), *fill[6:]))
    with pytest.raises(VerifyError) as caught:
        verify_kernel(bad)
    text = str(caught.value)
    assert "  >   bad = add f32 (c1, c9)" in text
    assert "c5 = const" in text and "c0 = const" not in text


def _with_node(node, at=-1):
    graph = ir_samples.graph()
    nodes = list(graph.nodes)
    nodes.insert(at if at >= 0 else len(nodes), node)
    return replace(graph, nodes=tuple(nodes))


N = symbol("s0", 2)
ROW = axis("i0", N)


def pointwise(value: Expr, output="o", index=ROW) -> Pointwise:
    return Pointwise("bad", axes=(ROW,), raxes=(), output=output, index=index, value=value)


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (_with_node(pointwise(load("c", ROW, F)), at=0), "before anything is written"),
        (_with_node(pointwise(load("zz", ROW, F))), "'zz', which is not declared"),
        (_with_node(pointwise(load("x", ROW, I))), "holds f32, not i64"),
        (_with_node(pointwise(load("p", ROW, I))), "written to buffer 'o'"),
        (_with_node(pointwise(load("x", axis("i7", 3), F))), "axis i7"),
        (_with_node(pointwise(load("x", 4 * ROW + 4, F))), "reaches element"),
        (_with_node(pointwise(load("x", ROW * symbol("u3", 0), F))), "u3"),
        (_with_node(pointwise(const(0, F), index=ROW + N)), "reaches element"),
        (_with_node(pointwise(const(0, F), output="zz")), "writes buffer 'zz'"),
        (_with_node(ExternCall("bad", op="aten.relu.default", args=(View("zz", (1,), (1,)),), kwargs=(),
                               outputs=("o",))), "'zz'"),
        (_with_node(ExternCall("bad", op="a.b.c", args=(), kwargs=(), outputs=("o", "h"))), "2 outputs"),
        (_with_node(ir_samples.graph().nodes[0]), "used twice"),
    ],
)  # fmt: skip
def test_broken_graphs(bad, part):
    with pytest.raises(VerifyError) as caught:
        verify_graph(bad)
    assert part in str(caught.value)


def test_broken_expression_is_marked():
    bad = Expr("add", (load("x", ROW, F), const(1, I)), F)
    with pytest.raises(VerifyError, match="one type") as caught:
        verify_expr(apply("exp", bad), (ROW,))
    assert "  > %2 = add" in str(caught.value)
