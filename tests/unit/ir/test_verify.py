"""The verifiers: good IR passes, and each broken rule is named with the statement that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ir_samples
from polyfuse.base.errors import VerifyError
from polyfuse.ir.expr import Expr, apply, const, load
from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.nodes import ExternCall, Pointwise, View
from polyfuse.ir.statements import Compute, Constant, IndexValue, Load, Reduce, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.verify import verify_expr, verify_graph, verify_kernel
from polyfuse.symbolic import axis, symbol

F, I, B = DType.f32, DType.i64, DType.bool
AXIS, REDUCED = axis("i0", 4), axis("r0", 3)
LOAD = Load("x", "in0", 3 * AXIS + REDUCED, F)
ONCE = Load("y", "in0", AXIS, F)
ARGS = (KernelArg("in0", "in", F, 12), KernelArg("out0", "out", F, 4))


def store(value: str, index=AXIS, dtype=F, name="out0") -> Store:
    return Store(name, index, value, dtype)


def kernel(*sections: Section, args=ARGS) -> Kernel:
    return Kernel("k", "cpu", (AXIS,), (REDUCED,), args, (), sections)


def once(*body: Statement) -> Section:
    return Section(False, body)


def loop(*body: Statement) -> Section:
    return Section(True, body)


SUM = Reduce(("s",), "sum", ("x",), F)


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
        (kernel(once(Compute("z", "sinus", (), F))), "unknown"),
        (kernel(once(ONCE, Compute("z", "exp", ("y",), I))), "not i64"),
        (kernel(once(ONCE, Compute("z", "add", ("y",), F))), "2 operands"),
        (kernel(once(ONCE, Compute("z", "bitwise_and", ("y", "y"), F))), "does not take f32"),
        (kernel(once(ONCE, Compute("z", "where", ("y", "y", "y"), F))), "not bool"),
        (kernel(once(Constant("z", 300, DType.i8))), "does not fit"),
        (kernel(once(Constant("z", 1, F))), "not a float"),
        (kernel(once(LOAD)), "axis r0"),
        (kernel(once(replace(ONCE, index=AXIS + axis("@0", 3)))), "0 indirect operands"),
        (kernel(once(replace(ONCE, index=AXIS + symbol("s9")))), "s9"),
        (kernel(once(replace(ONCE, index=4 * AXIS))), "reaches element 12"),
        (kernel(once(replace(ONCE, index=AXIS - 1))), "before the first"),
        (kernel(once(replace(ONCE, buffer="in9"))), "'in9' is not declared"),
        (kernel(once(replace(ONCE, buffer="out0"))), "before anything is stored"),
        (kernel(once(ONCE, store("y", name="in0"))), "is an input"),
        (kernel(once(ONCE, store("y", dtype=I))), "stored as i64"),
        (kernel(once(ONCE, replace(store("y"), mode="put"))), "'put'"),
        (kernel(once(ONCE, replace(SUM, args=("y",)))), "not looped"),
        (kernel(loop(LOAD, replace(SUM, kind="mean"))), "'mean' is unknown"),
        (kernel(loop(LOAD, replace(SUM, targets=("s", "t")))), "defines 1 values"),
        (kernel(loop(LOAD, Reduce(("s",), "any", ("x",), F))), "does not take f32"),
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


def test_a_masked_access_may_name_indices_outside():
    masked = Load("z", "in0", AXIS + 11, F, (), "ok", "y")
    first = IndexValue("i", AXIS)
    verify_kernel(kernel(once(ONCE, first, Compute("ok", "lt", ("i", "i"), B), masked)))


def test_the_message_shows_the_neighbours():
    fill = [Constant(f"c{i}", float(i), F) for i in range(12)]
    bad = kernel(once(*fill[:6], Compute("bad", "add", ("c1", "c9"), F), *fill[6:]))
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
