"""Small functions that a sweep once found wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from models import checks
from polyfuse.base.errors import PolyfuseError
from requirements import HALIDE


def block_diagonal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A part of width one beside zeros: one element read for some lanes only."""
    left = torch.cat([a, torch.zeros(5, 5)], 1)
    return torch.cat([left, torch.cat([b, torch.zeros(5, 4)], 1)])


def diagonal_scatter(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diagonal_scatter(b @ b.t(), a[:4, 0], offset=-1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [block_diagonal, diagonal_scatter])
def test_found_by_a_sweep(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    arguments = torch.randn(5, 1), torch.randn(5, 2)
    compiled = checks.compile_function(function, dynamic=False)
    checks.assert_close([compiled(*arguments)], [function(*arguments)], "output")


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_zero_keeps_its_sign_at_a_limit(count: int, dtype: torch.dtype) -> None:
    edges = torch.tensor([-0.0, 0.0, math.nan, -1.0, 2.0, math.inf, -math.inf, 5.0], dtype=dtype)
    x = edges.repeat(5)[:count]

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        limited = F.relu(x), F.relu6(x), x.clamp(min=0.0), x.clamp(-0.0, 1.0), x.clamp(max=0.0)
        return [*limited, x.clamp(math.nan, 1.0), F.hardtanh(x, 0.0, 1.0)]

    for found, expected in zip(checks.compile_function(function)(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        numbers = ~expected.isnan()
        assert torch.equal(found[numbers].signbit(), expected[numbers].signbit())


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_power_is_a_root_where_eager_mode_takes_one(dtype: torch.dtype) -> None:
    x = torch.tensor([-math.inf, -0.0, 0.0, math.inf, -1.0, 4.0, math.nan], dtype=dtype)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x**0.5, x**-0.5, x ** torch.full_like(x, 0.5), x ** torch.full_like(x, -0.5)]

    for found, expected in zip(checks.compile_function(function)(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        numbers = ~expected.isnan()
        assert torch.equal(found[numbers].signbit(), expected[numbers].signbit())


def test_memory_that_is_given_back_is_read_before() -> None:
    """As sharded training gives back gathered parameters; nothing in the schema of the call says so."""

    def function(x: torch.Tensor) -> torch.Tensor:
        early = torch.sin(x + 1)
        x.untyped_storage().resize_(0)
        return torch.cos(early)

    x = torch.randn(23)
    expected = torch.cos(torch.sin(x + 1))
    torch.testing.assert_close(checks.compile_function(function, dynamic=False)(x), expected)
    assert x.untyped_storage().size() == 0


def checked_number(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    number = n.item()
    torch._check(number == 3)
    return x + number


def checked_size(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    number = n.item()
    torch._check(number == x.size(0))
    return x + number


def checked_count(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    found = n.nonzero()
    torch._check(found.size(0) == 1)
    return x[found[:, 0]] * 2


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [checked_number, checked_size, checked_count])
def test_what_a_check_says_of_data_is_checked(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Torch puts the number in everywhere, in the condition of its own check too."""
    flags = function is checked_count
    good = torch.tensor([0, 0, 1]) if flags else torch.tensor(3)
    bad = (torch.tensor([1, 1, 0]), torch.tensor([0, 0, 0])) if flags else (torch.tensor(4), torch.tensor(-3))
    x = torch.randn(3)
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = checks.compile_function(function)
        torch.testing.assert_close(compiled(x, good), function(x, good))
        for other in bad:
            with pytest.raises((RuntimeError, PolyfuseError)):
                compiled(x, other)
        torch.testing.assert_close(compiled(x, good), function(x, good))


@pytest.mark.usefixtures("interpreted_kernels")
def test_gradients_that_are_traced_when_they_run() -> None:
    """Compiled autograd hands its graph a list of tensors."""
    model, twin = (torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh()) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    x = torch.randn(5, 4)
    with torch._dynamo.config.patch(compiled_autograd=True):
        step = torch.compile(lambda: twin(x).square().sum().backward(), backend="polyfuse")
        step()
        step()
    for _ in range(2):
        model(x).square().sum().backward()
    found, expected = ([p.grad for p in m.parameters()] for m in (twin, model))
    torch.testing.assert_close(found, expected)


VIEWS_OF_COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": lambda x: x[1].clone().unsqueeze(0) + 1,
    "clones": lambda x: x[1:].clone().clone().view(-1, 5)[1:] * 2,
    "conversion": lambda x: x[1].double().float().view(1, 5) + 1,
    "dropout": lambda x: F.dropout(x[1], 0.5, training=False).view(5, 1) * 2,
    "padding": lambda x: F.pad(x[1], (0, 0)).view(5, 1) @ x[:1],
    "product": lambda x: (x[1] * 1).view(5, 1) @ x[:1],
    "concatenation": lambda x: torch.cat([x[1:]]).view(-1, 1) + 1,
    "parts": lambda x: x[1:].clone().split([2, 3], 1)[1] + 1,
    "strides": lambda x: x[1].clone().as_strided((3,), (1,), 1) + 1,
    "constant": lambda x: torch.arange(5.0).add(1)[2:].unsqueeze(1).expand(3, 5) + x[1],
    "constant expanded": lambda x: (
        torch.tensor([1.0, 2, 3, 4, 5, 6])[1:].view(5, 1).expand(5, 4000) + x[:1].t()
    ),
    "constant strides": lambda x: torch.tensor([1.0, 2, 3, 4, 5, 6])[1:].as_strided((5,), (1,), 0) + x[:1],
    "constant transposed": lambda x: (
        torch.tensor([[1.0, 2, 3], [4, 5, 6]]).t().expand(x.shape[0], 3, 2).sum() + x.sum(1)[:, None]
    ),
    "constant transposed and read": lambda x: (
        torch.tensor([[1.0, 2, 3], [4, 5, 6]]).t().expand(x.shape[0], 3, 2) + x[:, :3, None]
    ),
}


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS_OF_COPIES)
def test_views_of_copies_of_parts(name: str, dynamic: bool) -> None:
    """A copy begins its memory, what it was copied from may not: a view knows where it begins."""
    function = VIEWS_OF_COPIES[name]
    compiled = checks.compile_function(function, dynamic=dynamic)
    for rows in (3, 4):
        x = torch.randn(rows, 5, requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        exact = x.detach().double().requires_grad_()
        found, expected = compiled(twin), function(x)
        torch.testing.assert_close(found, expected)
        for result in (found, expected, function(exact)):
            result.square().sum().backward()
        # sums of up to 4000 numbers, in any order: an error of 64 roundings of the largest
        truth = exact.grad
        assert truth is not None and twin.grad is not None
        assert (twin.grad - truth).abs().max() <= 64 * 2**-24 * truth.abs().max()


def test_copies_of_inputs_that_begin_elsewhere() -> None:
    whole = torch.randn(4, 5)
    compiled = checks.compile_function(lambda x: x.clone().view(5, 1) + 1, dynamic=False)
    for row in whole:
        torch.testing.assert_close(compiled(row), row.view(5, 1) + 1)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_computed_into_a_view_leaves_the_strides_of_the_whole(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        both = torch.zeros(2, *x.shape)
        torch.mul(x, x, out=both[1])
        return [both, both.as_strided((3, 2), (1, 3), x.numel()) + 1]

    x = torch.randn(7, 5).t()
    found, expected = checks.compile_function(function, dynamic=dynamic)(x), function(x)
    checks.assert_close(found, expected, "output")
    assert [y.stride() for y in found] == [y.stride() for y in expected]


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "halide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_numbers_do_not_vary(dtype: torch.dtype, backend: str) -> None:
    """Rows, columns and blocks; the mean of odd counts of a number is not that number, until corrected."""
    if backend == "halide":
        pytest.importorskip("halide", reason=HALIDE)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        spreads = [x.var(-1), x.std((0, 2)), x.transpose(1, 2).contiguous().var(1), torch.var_mean(x)[0]]
        return [*spreads, F.layer_norm(x, x.shape[-1:]), F.group_norm(x, 2), F.instance_norm(x)]

    compiled = checks.compile_function(function, dynamic=False, options={"backends": [backend]})
    for number in (3.3, -1234.567, 1e5):
        for found in compiled(torch.full((2, 4, 1001), number, dtype=dtype)):
            assert torch.count_nonzero(found) == 0, number


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "halide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 64), (300, 40), pytest.param(None, marks=pytest.mark.slow)])
def test_moments_of_infinities(shape: tuple[int, int] | None, dtype: torch.dtype, backend: str) -> None:
    """Not last in its row: eager mode, which moves the mean from number to number, has infinity only then."""
    if backend == "halide":
        pytest.importorskip("halide", reason=HALIDE)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        pairs = [torch.var_mean(x, -1), torch.var_mean(x, 0), torch.std_mean(x, -1), torch.var_mean(x)]
        rows = F.layer_norm(x, x.shape[-1:]), F.group_norm(x, 4), F.rms_norm(x, x.shape[-1:])
        return [*(t for pair in pairs for t in pair), x.mean(-1), x.var(0), *rows]

    def running(x: torch.Tensor) -> list[torch.Tensor]:
        mean, variance = torch.zeros_like(x[0]), torch.ones_like(x[0])
        return [F.batch_norm(x, mean, variance, training=True), variance]

    compiled = [
        checks.compile_function(f, dynamic=shape is None, options={"backends": [backend]})
        for f in (function, running)
    ]
    for special in ((math.inf,), (-math.inf,), (math.inf, math.inf), (math.inf, -math.inf), (math.nan,)):
        for size in (shape,) if shape else ((8, 64), (300, 40)):
            x = torch.randn(size, dtype=torch.float64).to(dtype)
            for number, value in enumerate(special):
                x[number, 3] = x[0, 5 + number] = value
            for eager, other in zip((function, running), compiled, strict=True):
                for found, expected in zip(other(x), eager(x), strict=True):
                    for kind in (math.inf, -math.inf):
                        assert torch.equal(found == kind, expected == kind), special
                    assert torch.equal(found.isnan(), expected.isnan()), special


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(4, 1), (4, 0), (1, 1), (0, 3)])
def test_means_of_rows_without_a_variance(shape: tuple[int, ...]) -> None:
    """One number has a mean, though no variance."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        pairs = [
            torch.var_mean(x, -1),
            torch.std_mean(x, 0),
            torch.var_mean(x),
            torch.var_mean(x, -1, correction=0),
        ]
        return [t for pair in pairs for t in pair]

    x = torch.randn(shape)
    for found, expected in zip(checks.compile_function(function)(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "halide"])
@pytest.mark.parametrize("shape", [(2, 8, 9000), (70000, 8), (2, 8, 200, 200)])
def test_running_mean_of_long_columns_with_an_infinity(shape: tuple[int, ...], backend: str) -> None:
    """Infinite wherever the infinity is, in whatever parts the column is read."""
    if backend == "halide":
        pytest.importorskip("halide", reason=HALIDE)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        mean, variance = torch.zeros(8), torch.ones(8)
        return [F.batch_norm(x, mean, variance, training=True).sum(), mean, variance]

    other = checks.compile_function(function, options={"backends": [backend]})
    layouts = (torch.contiguous_format, torch.channels_last) if len(shape) == 4 else (torch.preserve_format,)
    for layout in layouts:
        for position in (0, 1, 40, -1):
            x = torch.randn(shape).contiguous(memory_format=layout) if len(shape) == 4 else torch.randn(shape)
            for channel, value in enumerate((math.inf, -math.inf, math.nan)):
                x[tuple(channel if d == 1 else min(position, n - 1) for d, n in enumerate(shape))] = value
            for found, expected in zip(other(x), function(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_written_through_keeps_rows_that_lie_apart(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole, part = (torch.empty_strided(x.size(), (2 * x.size(1), 1)).fill_(3) for _ in range(2))
        like = torch.empty_strided(x.size(), x.stride())
        whole[:] = x + x
        part[1:3] = x[:2]
        part[:, 1] = 5
        like[:] = x * 3
        return whole, part, like

    compiled = checks.compile_function(function, dynamic=dynamic)
    for x in (torch.randn(16, 16)[:, :8], torch.randn(12, 20)[:, 3:11]):
        for found, expected in zip(compiled(x), function(x), strict=True):
            assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.usefixtures("interpreted_kernels")
def test_a_write_to_a_part_of_a_size_that_comes_from_data() -> None:
    def function(a: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        joined = torch.cat([a, torch.zeros(2, 3, x[0].item(), 4)], 2)
        joined[:, :, :5, :] = torch.full((2, 3, 5, 4), 7.0)
        turned = torch.zeros(4, x.nonzero().shape[0] + 5).t()
        turned[:5] = a[0, 0, :5]
        turned[:, 1] = 7
        return joined, turned

    a = torch.randn(2, 3, 5, 4)
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = checks.compile_function(function)
        for x in (torch.tensor([3, 0, 2]), torch.tensor([0, 4, 0]), torch.tensor([1, 1, 1])):
            for found, expected in zip(compiled(a, x), function(a, x), strict=True):
                assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear"])
def test_a_batch_that_comes_from_data_is_resampled(mode: str) -> None:
    def function(x: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = x[chosen.nonzero().squeeze(1)]
        return F.interpolate(batch, scale_factor=2, mode=mode), F.interpolate(batch, size=(7, 3), mode=mode)

    x = torch.randn(6, 2, 4, 5)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = checks.compile_function(function)
        for chosen in (torch.tensor([1, 0, 1, 1, 0, 0]), torch.tensor([0, 0, 0, 0, 1, 0]), torch.ones(6)):
            torch.testing.assert_close(compiled(x, chosen), function(x, chosen))


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_numbers_of_python(dtype: torch.dtype) -> None:
    """Dynamo traces them in single precision and passes them in double precision."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        drawn = random.uniform(0, 1)
        return x * drawn + random.uniform(1, 2), torch.full((3,), drawn) * random.randint(3, 9), drawn

    x = torch.randn(3, 4, dtype=dtype)
    compiled = checks.compile_function(function)
    for seed in range(3):
        random.seed(seed)
        found = compiled(x)
        random.seed(seed)
        # both numbers are rounded to single precision, by at most 2**-25 and 2**-24
        off = 2.0**-24 * (1 + float(x.abs().max()))
        torch.testing.assert_close(found, function(x), rtol=1.3e-6, atol=off)
