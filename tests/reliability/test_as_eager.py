"""What eager mode refuses is refused, and what it computes exactly stays exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x[0, 0], 3),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[0], 3),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 3),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[0], 3),
    "softmax": lambda x: x.softmax(-1),
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
}


def outcome(function: Callable[..., Tensor], *args: Tensor) -> Tensor | type[Exception]:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_types_that_eager_mode_refuses(name, dtype):
    torch.compiler.reset()
    x = torch.arange(4 * 4 * 4 * 4).view(1, 4, 4, 4, 4).to(dtype)
    assert outcome(REFUSED[name], x) is NotImplementedError
    assert outcome(torch.compile(REFUSED[name], backend="polyfuse"), x) is NotImplementedError


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: (x.argmax(0), x.argmin(0)), torch.bool),
        (F.relu, torch.bool),
        (lambda x: torch.addcdiv(x, x, x), torch.bool),
        (lambda x: F.group_norm(x, 1), torch.complex64),
        (lambda x: F.mse_loss(x, x + 1), torch.complex64),
        (lambda x: torch.mvlgamma(x, 1), torch.bool),
        (lambda x: 1.5 - x, torch.bool),
        (lambda x: x.float() - x, torch.bool),
        (lambda x: torch.clamp(x, x, x), torch.bool),
        (torch.special.log_ndtr, torch.float16),
        (F.celu, torch.int32),
        (F.hardshrink, torch.int32),
        (lambda x: F.soft_margin_loss(x, x), torch.int32),
        (lambda x: torch.special.xlog1py(x, 2), torch.complex64),
        (lambda x: torch.xlogy(x, 2), torch.complex64),
        (lambda x: F.glu(x, 0), torch.complex64),
        (lambda x: x.clamp(min=0), torch.complex64),
        (lambda x: F.gelu(x, approximate="tanh"), torch.complex64),
        (F.logsigmoid, torch.complex64),
        (lambda x: F.fold(x[:1, :1].expand(4, 9), 4, 2), torch.int64),
    ],
)
def test_types_that_tracing_does_not_refuse(function, dtype):
    torch.compiler.reset()
    x = torch.ones(2, 3).to(dtype)
    refused = outcome(function, x)
    assert refused in (RuntimeError, NotImplementedError)
    assert outcome(torch.compile(function, backend="polyfuse"), x) is refused


def test_a_type_that_tracing_alone_refuses():
    torch.compiler.reset()
    x = torch.tensor([1j, complex("nan"), complex(0, float("inf"))])
    assert torch.equal(torch.compile(torch.nan_to_num, backend="polyfuse")(x), torch.nan_to_num(x))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: F.avg_pool2d(x, 2), torch.int64),
        (lambda x: F.max_pool2d(x, 2), torch.int32),
        (lambda x: F.interpolate(x, scale_factor=2), torch.uint8),
        (lambda x: x.abs().cumsum(0), torch.int64),
    ],
)
def test_types_that_it_takes(function, dtype):
    torch.compiler.reset()
    x = torch.arange(64).view(1, 4, 4, 4).to(dtype)
    options = {"strict": True}
    assert torch.equal(torch.compile(function, backend="polyfuse", options=options)(x), function(x))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dim", [0, 1])
def test_matmuls_side_by_side_have_the_numbers_of_eager_mode(dim):
    """A library that writes rows apart adds up in another order, 6e-4 away in this case."""
    torch.compiler.reset()
    torch.manual_seed(0)
    a, b = (torch.randn(100, 10000) for _ in range(2))
    c, d = (torch.randn(10000, 7) for _ in range(2))

    def joined(a, b, c, d):
        return torch.cat([a @ c, b @ d], dim)

    options = {"numerics": "eager"}
    assert torch.equal(
        torch.compile(joined, backend="polyfuse", options=options)(a, b, c, d), joined(a, b, c, d)
    )
    torch.compiler.reset()
    true = joined(a.double(), b.double(), c.double(), d.double())
    fast = torch.compile(joined, backend="polyfuse")(a, b, c, d)
    assert (fast - true).norm() < 3e-6 * true.norm()


def spread(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(0, 8, (rows,), generator=generator), torch.rand(rows, 16, generator=generator)


SUMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "masked": lambda z, i, v: torch.ops.aten._unsafe_masked_index_put_accumulate(
        z, (i > 1)[:, None].expand_as(v), [i[:, None].expand_as(v), torch.arange(v.shape[1])], v
    ),
    "index_put": lambda z, i, v: z.index_put([i], v, accumulate=True),
    "index_add": lambda z, i, v: z.index_add(0, i, v),
    "scatter_add": lambda z, i, v: z.scatter_add(0, i[:, None].expand_as(v), v),
    "embedding": lambda z, i, v: torch.ops.aten.embedding_dense_backward(v, i, 8, -1, False) + z,
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SUMS)
def test_half_precision_is_added_up_in_single_precision(name, dtype):
    torch.compiler.reset()
    index, values = spread(1500)
    values, start = values.to(dtype), torch.zeros(8, 16, dtype=dtype)
    true = SUMS[name](start.double(), index, values.double())
    got = torch.compile(SUMS[name], backend="polyfuse")(start, index, values)
    eager = SUMS[name](start, index, values)

    def error(found: Tensor) -> float:
        return float((found.double() - true).norm() / true.norm())

    assert error(got) <= min(torch.finfo(dtype).eps / 2, error(eager) * 1.01)


class Plain(torch.Tensor):
    """A subclass that sees functions, and changes nothing."""


class Scaled(torch.nn.Parameter):
    """A kind of parameter of a user's own."""


@pytest.mark.quick(2)
@pytest.mark.parametrize("backends", [("interpreter",), ()], ids=["interpreter", "all"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.as_subclass(Plain),
        Scaled,
        lambda x: TwoTensor(x, x * 2),
        lambda x: TwoTensor(x, x * 2).requires_grad_(),
    ],
    ids=["function", "parameter", "dispatch", "dispatch with gradients"],
)
def test_subclasses_of_tensors(make, backends):
    torch.compiler.reset()

    def function(x: Tensor) -> Tensor:
        return (x @ x * 2 + 1).softmax(-1) @ x.t()

    options = {"backends": backends} if backends else {}
    x = make(torch.arange(16.0).view(4, 4).sin())
    want, got = function(x), torch.compile(function, backend="polyfuse", options=options)(x)
    assert type(got) is type(want)
    parts = (lambda t: (t.a, t.b)) if isinstance(want, TwoTensor) else (lambda t: (t,))
    for mine, theirs in zip(parts(got), parts(want), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach())
    if x.requires_grad:
        got.sum().backward()
        mine = x.grad
        x.grad = None
        function(x).sum().backward()
        for a, b in zip(
            parts(mine) if isinstance(mine, TwoTensor) else (mine,),
            parts(x.grad) if isinstance(x.grad, TwoTensor) else (x.grad,),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "halide", "interpreter"])
def test_a_mean_that_is_moved_on_from_infinity_is_no_number(backend):
    torch._dynamo.reset()
    shapes = ((3, 7), -1), ((6, 40), 0), ((3, 4, 5), (0, 2)), ((5,), None), ((1, 9000), 1), ((4, 1), 1)

    def moments(given):
        return [torch.var_mean(x, dims) for x, (_, dims) in zip(given, shapes, strict=True)]

    compiled = torch.compile(moments, backend="polyfuse", options={"backends": (backend, "interpreter")})
    for positions in ({}, {0: -torch.inf}, {1: -torch.inf, 0: torch.inf}, {0: torch.inf}):
        given = [torch.randn(shape) for shape, _ in shapes]
        for x in given:
            for position, value in positions.items():
                x.view(-1)[position] = value
        for found, wanted in zip(compiled(given), moments(given), strict=True):
            torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_between_two_in_sixteen_bits(dtype, dynamic):
    """Eager mode counts on from rounded numbers by a rounded step."""
    torch._dynamo.reset()

    def function(x):
        return torch.linspace(-3.3, 2.7, x.shape[0], dtype=dtype), x + torch.linspace(
            0, 100, x.shape[0], dtype=dtype
        )

    compiled = torch.compile(function, backend="polyfuse", dynamic=dynamic, options={"strict": True})
    for count in (7, 129, 1000):
        x = torch.zeros(count, dtype=dtype)
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
