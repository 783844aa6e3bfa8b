"""The interpreter against torch itself."""

from __future__ import annotations

import numpy
import pytest
import torch

import ir_samples
from polyfuse.base.errors import IRError
from polyfuse.ir.expr import apply, const, index_value, load
from polyfuse.ir.graph import Graph, GraphInput, GraphOutput
from polyfuse.ir.interpreter import graph as interpret_graph
from polyfuse.ir.interpreter import kernel as interpret_kernel
from polyfuse.ir.interpreter import semantics
from polyfuse.ir.interpreter.interpret import run_graph, run_kernel
from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.nodes import Buffer, ExternCall, Pointwise, Reduction, Scatter, View
from polyfuse.ir.statements import Load, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, symbol

F, I = DType.f32, DType.i64


@pytest.fixture(params=[1 << 20, 7], ids=["whole", "in parts"])
def parts(request, monkeypatch):
    """Iteration spaces at once, and cut into small parts."""
    monkeypatch.setattr(interpret_kernel, "POINTS", request.param)
    monkeypatch.setattr(interpret_graph, "POINTS", request.param)


def test_softmax_with_a_row_buffer(parts):
    x, y = torch.randn(3, 5), torch.empty(3, 5)
    assert run_kernel(ir_samples.softmax_kernel(), [x, y]) is None
    torch.testing.assert_close(y, x.softmax(-1))


def test_masked_gather_and_combining_store(parts):
    table, out = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.zeros(4)
    numbers, half = torch.tensor([3, 0, 9, 3, -5 + 6]), torch.zeros(5, dtype=torch.int64)
    numbers[2] = 4
    run_kernel(ir_samples.gather_kernel(), [table, numbers, out, half, 5])
    assert out.tolist() == [1.0, 2.0, 0.0, 8.0]
    assert half.tolist() == [(3 * i + 1) // 2 for i in range(5)]


def test_operands_start_at_their_own_pointer():
    x = torch.arange(40.0)[7:22]
    wide = torch.zeros(30)
    run_kernel(ir_samples.softmax_kernel(), [x, wide[10:]])
    torch.testing.assert_close(wide[10:25].reshape(3, 5), x.reshape(3, 5).softmax(-1))
    assert not wide[:10].any() and not wide[25:].any()


def test_operands_may_be_addresses():
    x, y = torch.randn(3, 5), torch.empty(3, 5)
    run_kernel(ir_samples.softmax_kernel(), [x.data_ptr(), y.data_ptr()])
    torch.testing.assert_close(y, x.softmax(-1))


@pytest.mark.parametrize("index", [axis("i0", 4) * 3, axis("i0", 4) - 1])
def test_access_outside_is_an_error(index):
    i = axis("i0", 4)
    body = (Load("x", "in0", index, F),)
    kernel = Kernel("k", "cpu", (i,), (), (KernelArg("in0", "in", F, 4),), (), (Section(False, body),))
    with pytest.raises(IRError, match="'in0'"):
        run_kernel(kernel, [torch.zeros(4)])


def test_wrong_operands_are_named():
    kernel = ir_samples.softmax_kernel()
    with pytest.raises(IRError, match="2 operands"):
        run_kernel(kernel, [torch.zeros(3)])
    with pytest.raises(IRError, match="f32"):
        run_kernel(kernel, [torch.zeros(15).double(), torch.zeros(15)])
    with pytest.raises(IRError, match="15 elements"):
        run_kernel(kernel, [torch.zeros(14), torch.zeros(15)])


def _buffer(name, size, dtype=F, kind="temp"):
    stride, total = [], 1
    for n in reversed(size):
        stride.insert(0, total)
        total = total * n
    return Buffer(name, dtype, "cpu", tuple(size), tuple(stride), str(dtype.torch)[6:], kind)


def test_graph_with_dynamic_size_and_calls(parts):
    n = symbol("s0", 2)
    i, j, r = axis("i0", n), axis("i1", 4), axis("r0", 4)
    buffers = [_buffer("x", (n, 4), kind="input"), *(_buffer(b, (n, 4)) for b in ("c", "d"))]
    buffers.append(_buffer("b", (n,)))
    graph = Graph(
        "g",
        "inference",
        (GraphInput("x", "tensor"),),
        (GraphOutput(View("d", (4, n), (1, 4))), GraphOutput(2 * n, "symint"), GraphOutput(None, "none")),
        {b.name: b for b in buffers},
        (
            Reduction("n0", axes=(i,), raxes=(r,), outputs=("b",), index=i, kind="sum",
                      values=(load("x", 4 * i + r, F),)),
            Pointwise("n1", axes=(i, j), raxes=(), output="c", index=4 * i + j,
                      value=apply("sub", load("x", 4 * i + j, F), load("b", i, F))),
            ExternCall("n2", op="aten.relu.default", args=(View("c", (n, 4), (4, 1)),), kwargs=(),
                       outputs=("d",)),
        ),
    )  # fmt: skip
    x = torch.randn(6, 4)
    found, size, nothing = run_graph(graph, [x])
    torch.testing.assert_close(found, (x - x.sum(1, keepdim=True)).relu().t())
    assert size == 12 and nothing is None


def test_graph_mutates_its_inputs_and_calls_objects(parts):
    i = axis("i0", 6)
    buffers = [_buffer("x", (6,), kind="input"), _buffer("k", (6,), I, "constant"), _buffer("y", (6,))]
    graph = Graph(
        "g",
        "inference",
        (GraphInput("x", "tensor"),),
        (GraphOutput(View("y", (6,), (1,))),),
        {b.name: b for b in buffers},
        (
            Scatter("n0", axes=(i,), raxes=(), target="x", index=axis("@0", 6), indirect=(load("k", i, I),),
                    value=const(1.0, F), mode="add", mask=apply("lt", index_value(i), const(4, I))),
            ExternCall("n1", op="object.double", args=(View("x", (6,), (1,)),), kwargs=(), outputs=("y",)),
        ),
        objects={"k": torch.tensor([0, 2, 2, 5, 1, 1]), "double": lambda t: t * 2},
    )  # fmt: skip
    x = torch.zeros(6)
    (found,) = run_graph(graph, [x])
    assert x.tolist() == [1, 0, 2, 0, 0, 1]
    assert found.tolist() == [2, 0, 4, 0, 0, 2]


@pytest.mark.parametrize("dtype", [DType.u16, DType.u32, DType.u64])
def test_wide_unsigned_arithmetic(dtype):
    kind = semantics.dtype_of_numpy(dtype)
    top = int(numpy.iinfo(kind).max)
    a = torch.from_numpy(numpy.array([top, 1, 5, 0], dtype=kind))
    b = torch.from_numpy(numpy.array([2, top, 0, 3], dtype=kind))

    def found(op):
        return semantics.scalar(op, (a, b), dtype).numpy().tolist()

    assert found("add") == [1, 0, 5, 3]
    assert found("lt") == [False, True, False, True]
    assert found("floor_div")[:2] == [top // 2, 0]
    assert found("maximum") == [top, top, 5, 3]
    assert found("shift_left")[0] == (top << 2) & top and found("shift_left")[1] == 0


def test_integer_division_never_traps():
    for dtype in (DType.i8, DType.i16, DType.i32, DType.i64):
        low = torch.iinfo(dtype.torch).min
        a = torch.tensor([low, low, 7], dtype=dtype.torch)
        b = torch.tensor([-1, 0, -1], dtype=dtype.torch)
        assert semantics.scalar("floor_div", (a, b), dtype)[[0, 2]].tolist() == [low, -7]
        assert semantics.scalar("remainder", (a, b), dtype)[[0, 2]].tolist() == [0, 0]
        assert semantics.scalar("trunc_div", (a, b), dtype)[2] == -7


def test_reductions_of_special_values():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 3.0, nan], [-inf, 2.0, 2.0, 1.0]])
    position = torch.arange(4).expand(2, 4)
    best, at = semantics.reduce("argmax", (x, position), F)
    assert best[0].isnan() and best[1] == 2 and at.tolist() == [1, 1]
    assert semantics.reduce("min", (x,), F)[0].tolist()[1] == -inf
    mean, squares, count = semantics.reduce("welford", (torch.tensor([[1.0, 2.0, 6.0]]),), F)
    assert (mean.item(), squares.item(), count.item()) == (3.0, 14.0, 3.0)
    empty = torch.zeros(2, 0)
    assert semantics.reduce("sum", (empty,), F)[0].tolist() == [0, 0]
    assert semantics.reduce("max", (empty,), F)[0].tolist() == [-inf, -inf]
    rising = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    values, at = semantics.scan("max", (rising, torch.tensor([[5, 6, 7, 8]])), F)
    assert values.tolist() == [[1, 3, 3, 3]] and at.tolist() == [[5, 6, 7, 7]]


def test_random_numbers_match_the_published_generator():
    from polyfuse.ir.random import draw, philox

    # known answers of Philox 4x32-10
    words = philox(numpy.uint64([0, 0xFFFFFFFFFFFFFFFF]), numpy.uint64([0, 0xFFFFFFFFFFFFFFFF]))
    assert [int(w[0]) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    seeds, offsets = torch.tensor([7]), torch.arange(20000)
    uniform = draw("uniform", seeds, offsets)
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.01
    normal = draw("normal", seeds, offsets)
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    assert draw("bits", seeds, offsets).unique().numel() == 20000


def plain(buffers: tuple[KernelArg, ...], *body: Statement) -> Kernel:
    """A kernel without loops."""
    return Kernel("plain", "cpu", (), (), buffers, (), (Section(False, body),))


def fetch(target: str, buffer: str, index: int, dtype: DType) -> Statement:
    return Load(target, buffer, index, dtype)


def put(value: str, buffer: str, index: int, dtype: DType) -> Statement:
    return Store(buffer, index, value, dtype)


@pytest.mark.parametrize("dtype", [F, DType.u16, DType.bool])
def test_what_is_loaded_stays_when_its_address_is_written_to(dtype):
    """A kernel without loops exchanges two elements in place; another writes a result over its operand."""
    kernel = plain(
        (KernelArg("x", "inout", dtype, 2),),
        fetch("a", "x", 0, dtype),
        fetch("b", "x", 1, dtype),
        put("b", "x", 0, dtype),
        put("a", "x", 1, dtype),
    )
    x = torch.tensor([0, 3]).to(dtype.torch)
    run_kernel(kernel, [x])
    assert torch.equal(x, torch.tensor([3, 0]).to(dtype.torch))
    arguments = (KernelArg("x", "in", dtype, 1), KernelArg("y", "out", dtype, 1))
    same = torch.ones(1).to(dtype.torch)
    run_kernel(plain(arguments, fetch("a", "x", 0, dtype), put("a", "y", 0, dtype)), [same, same])
    assert same.tolist() == [1]
