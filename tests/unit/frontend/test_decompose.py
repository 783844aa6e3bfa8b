"""Decompositions against the operators they replace, bit for bit where eager mode allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from polyfuse.frontend.decompositions.decompose import FAMILIES, OWN, decomposition_table
from polyfuse.lowering.families import registry
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import decomp

aten = torch.ops.aten


def test_what_becomes_a_library_call_is_not_decomposed() -> None:
    names = [name for name in registry() if registry().get(name).library]
    both = [name for name in names if ops.maybe_op(name) in decomposition_table("eager")]
    # numbers in 16 bits, which it declines, what devices with kernels of their own for it keep, and operators
    # that write row by row, which get what they read laid out so
    by_rows = {name for name in both if name.startswith(("aten.normal.", "aten.poisson.", "aten.rrelu_"))}
    assert [name for name in both if name not in by_rows] == [
        "aten.linspace.default",
        "aten.native_dropout.default",
    ]
    contiguous = torch.rand(2, 3)
    assert by_rows and decomposition_table("eager")[aten.poisson.default](contiguous) is NotImplemented


def test_most_listed_names_exist() -> None:
    listed = [name for family in FAMILIES.values() for name in family]
    assert len(set(listed)) == len(listed)
    assert sum(bool(decomp.selected([name])) for name in listed) > 0.95 * len(listed)
    assert all(decomp.expand_packets([name]) for name in OWN)


def test_in_place_and_out_variants_of_own_decompositions_are_left_alone() -> None:
    assert aten.slice_scatter.out not in decomposition_table("fast") or not OWN.get("slice_scatter.out")
    assert not any("_foreach" in str(op) and op._schema.is_mutable for op in decomposition_table("fast"))


@pytest.mark.parametrize(
    ("start", "end", "step"), [(1, 3, 1), (0, 9, 1), (-2, None, 1), (2, 1, 1), (0, 4, 2), (0, 4, 1)]
)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_of_slices(start: int, end: Any, step: int, dim: int) -> None:
    base = torch.randn(4, 5, 6)
    source = torch.randn(base.movedim(dim, 0)[slice(start, end, step)].movedim(0, dim).shape)
    stop = 2**63 - 1 if end is None else end
    expected = aten.slice_backward(source, [4, 5, 6], dim, start, stop, step)
    own = decomposition_table("eager")[aten.slice_backward.default]
    assert torch.equal(own(source, [4, 5, 6], dim, start, stop, step), expected)


def test_assignments_to_parts_stay_whole() -> None:
    """What is assigned to may be written to in place."""
    table, base = decomposition_table("fast"), torch.randn(4, 5)
    assert table[aten.slice_scatter.default](base, torch.randn(2, 5), 0, 1, 3) is NotImplemented
    assert table[aten.select_scatter.default](base, torch.randn(5), 0, 1) is NotImplemented


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_added_rows_give_a_contiguous_result(dim: int) -> None:
    """Which a view of it relies on."""
    for base in (
        torch.randn(4, 5, 6),
        torch.randn(6, 5, 4).permute(2, 1, 0),
        torch.randn(5, 6).expand(4, 5, 6),
    ):
        index, rows = torch.tensor([1, 3, 1]), torch.randn(4, 5, 6).narrow(dim, 0, 3)
        expected = torch.index_add(base, dim, index, rows, alpha=2)
        actual = decomposition_table("fast")[aten.index_add.default](base, dim, index, rows, alpha=2)
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_added_rows_of_truth_values_keep_their_type() -> None:
    x, index = torch.tensor([[True, False], [False, False]]), torch.tensor([1, 1])
    actual = decomposition_table("fast")[aten.index_add.default](x, 0, index, x, alpha=2)
    assert torch.equal(actual, torch.index_add(x, 0, index, x, alpha=2))


@pytest.mark.parametrize("accumulate", [False, True])
def test_elements_put_anywhere_leave_the_strides(accumulate: bool) -> None:
    for base in (torch.randn(4, 5, 6), torch.randn(6, 5, 4).permute(2, 1, 0)):
        index, values = torch.tensor([7, 0, 119]), torch.randn(3)
        expected = aten.put(base, index, values, accumulate)
        actual = decomposition_table("fast")[aten.put.default](base, index, values, accumulate)
        assert torch.equal(actual, expected) and actual.stride() == expected.stride()


def test_gradients_of_randomised_activations_lie_as_the_noise_does() -> None:
    """Also where the gradient comes in with other strides: torch traces the result with its argument's."""
    given, x, noise = torch.randn(6, 4).t(), torch.randn(6, 4).t(), torch.rand(4, 6)
    backward = decomposition_table("fast")[aten.rrelu_with_noise_backward.default]
    for training, strides in ((True, (6, 1)), (False, (1, 4))):
        expected = aten.rrelu_with_noise_backward(given, x, noise, 0.1, 0.3, training, False)
        actual = backward(given, x, noise, 0.1, 0.3, training, False)
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == strides


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 2])
def test_gradients_of_directions_and_lengths(dim: int, dtype: torch.dtype) -> None:
    v, lengths = torch.randn(4, 3, 5, dtype=dtype), [1, 1, 1]
    lengths[dim] = v.shape[dim]
    g = torch.randn(lengths, dtype=dtype)
    weight, norms = aten._weight_norm_interface(v, g, dim)
    arguments = torch.randn_like(weight), v, g, norms, dim
    found = OWN["_weight_norm_interface_backward"](*arguments)
    for a, b in zip(found, aten._weight_norm_interface_backward(*arguments), strict=True):
        torch.testing.assert_close(a, b, check_stride=True)


@pytest.mark.parametrize("train", [True, False, None])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_the_operator(train: bool | None, p: float, dtype: torch.dtype) -> None:
    x = torch.randn(64, dtype=dtype)
    torch.manual_seed(1)
    expected = torch.native_dropout(x, p, train)
    torch.manual_seed(1)
    actual = decomposition_table("eager")[aten.native_dropout.default](x, p, train)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


POINTWISE = {
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "gelu": lambda x, y: F.gelu(x) + F.gelu(y, approximate="tanh"),
    "silu": lambda x, y: F.silu(x),
    "mish": lambda x, y: F.mish(x),
    "hardswish": lambda x, y: F.hardswish(x),
    "elu": lambda x, y: F.elu(x, 0.7),
    "softplus": lambda x, y: F.softplus(x),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.4),
    "layer_norm": lambda x, y: F.layer_norm(x, (16,), y[0], y[1]),
    "group_norm": lambda x, y: F.group_norm(x.view(2, 4, 16), 2),
    "rms_norm": lambda x, y: F.rms_norm(x, (16,), y[0]),
    "floor_divide": lambda x, y: torch.floor_divide(x, y),
    "nan_to_num": lambda x, y: torch.nan_to_num(x / 0.0),
}


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", sorted(POINTWISE))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_that_of_eager_mode(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 16, dtype=dtype), torch.randn(8, 16, dtype=dtype)
    module = make_fx(POINTWISE[name], decomposition_table=dict(decomposition_table("eager")))(x, y)
    expected, actual = POINTWISE[name](x, y), module(x, y)
    assert actual.dtype == expected.dtype and actual.stride() == expected.stride()
    one_step = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    torch.testing.assert_close(actual, expected, rtol=one_step, atol=one_step / 4, equal_nan=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integers_promote_as_in_eager_mode(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 1], [3, 1, 2]]).to(dtype)

    def function(x: torch.Tensor) -> Any:
        spread = x.float()
        return (
            x.all(),
            x.all(0),
            torch.count_nonzero(x),
            x.sum(),
            torch.rsub(x.int(), 2),
            torch.masked_fill(x, x == 1, 0),
            torch.stack([x, x]),
            torch.tril(x),
            torch.roll(x, 1, 1),
            torch.logaddexp(spread, spread),
            torch.xlogy(x, spread),
        )

    module = make_fx(function, decomposition_table=dict(decomposition_table("fast")))(x)
    for actual, expected in zip(module(x), function(x), strict=True):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_bytes_are_resized_by_the_library() -> None:
    image = torch.randint(0, 255, (1, 3, 8, 8), dtype=torch.uint8)
    function = lambda x: F.interpolate(x, size=(5, 5), mode="bilinear")  # noqa: E731
    module = make_fx(function, decomposition_table=dict(decomposition_table("fast")))(image)
    assert torch.equal(module(image), function(image))


def test_a_norm_of_groups_without_pixels_has_gradients() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.autograd.grad(F.group_norm(x, 2, w, w).sum(), (x, w))

    args = torch.rand(2, 4, 0, requires_grad=True), torch.rand(4, requires_grad=True)
    module = make_fx(step, decomposition_table=dict(decomposition_table()))(*args)
    torch.testing.assert_close(module(*args), step(*args), equal_nan=True)


def _by_columns(*size: int) -> torch.Tensor:
    return torch.rand(size[::-1]).permute(*range(len(size))[::-1])


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.native_batch_norm.default, (_by_columns(3, 4, 5), None, None, None, None, True, 0.1, 1e-5)),
        (
            aten.native_batch_norm.default,
            (
                torch.rand(3, 4, 5, 6).to(memory_format=torch.channels_last),
                *(torch.ones(4) for _ in range(4)),
                False,
                0.1,
                1e-5,
            ),
        ),
        (aten.masked_scatter.default, (_by_columns(4, 5), _by_columns(4, 5) > 0.5, torch.rand(20))),
        (
            aten.nll_loss2d_forward.default,
            (_by_columns(2, 3, 4, 5), torch.ones(2, 4, 5, dtype=torch.int64), None, 0, -100),
        ),
        (aten.channel_shuffle.default, (torch.rand(2, 4, 3, 3).to(memory_format=torch.channels_last), 2)),
        (aten.floor_divide.default, (_by_columns(4, 5), torch.tensor(0.25))),
        (aten.heaviside.default, (_by_columns(4, 1, 5), _by_columns(4, 5))),
        (aten.logaddexp.default, (_by_columns(4, 1, 5), _by_columns(4, 5))),
        (aten.native_dropout_backward.default, (_by_columns(4, 5), _by_columns(4, 5) > 0.5, 2.0)),
    ],
    ids=[str(number) for number in range(9)],
)
def test_results_lie_as_those_of_operators(op: Any, args: tuple[Any, ...]) -> None:
    expected, actual = op(*args), decomposition_table("fast")[op](*args)
    first, other = (v if isinstance(v, torch.Tensor) else v[0] for v in (expected, actual))
    torch.testing.assert_close(other, first)
    assert other.stride() == first.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails_of_the_normal_distribution(dtype: torch.dtype) -> None:
    """As near to what f64 gives as eager mode is, in both tails, at their border and at what is no number."""
    edges = torch.tensor(
        [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, -1.0, -1.0000001, -1e10, -1e20]
    )
    x = torch.cat([torch.randn(4000) * 4, torch.linspace(-200, 12, 4001), edges]).to(dtype)
    own = decomposition_table("fast")[aten.special_log_ndtr.default]
    found, eager, exact = own(x), torch.special.log_ndtr(x), torch.special.log_ndtr(x.double())
    torch.testing.assert_close(found, eager, rtol=2e-5, atol=1e-38, equal_nan=True)
    tail = (x < -1) & (x > -1e9)
    torch.testing.assert_close(found[tail].double(), exact[tail], rtol=5e-7, atol=0)


@pytest.mark.parametrize(("least", "most"), [(-128, 127), (-5, 255)])
def test_fake_quantization_rounds_to_the_same_levels(least: int, most: int) -> None:
    """Bit for bit, at halves, at what is beyond all levels or integers, and at what is no number."""
    edges = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e30, -1e30])
    table, channels = decomposition_table("fast"), torch.tensor([3, -4, 0], dtype=torch.int32)
    for scale in (0.1, 0.25, 1e-30):
        x = torch.cat([torch.randn(600) * 100 * scale, (torch.arange(-300, 300) / 2) * scale, edges])
        step, zero = torch.tensor([scale]), torch.tensor([3], dtype=torch.int32)
        cases: list[tuple[Any, tuple[Any, ...]]] = [
            (aten.fake_quantize_per_tensor_affine_cachemask.default, (x, scale, 3)),
            (
                aten.fake_quantize_per_channel_affine_cachemask.default,
                (torch.stack([x, x, x], 1), step * torch.tensor([1, 2, 3]), channels, 1),
            ),
        ]
        by_tensors = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
        cases += [(by_tensors, (x, step, zero, torch.tensor([rounds]))) for rounds in (0, 1)]
        for op, args in cases:
            for found, wanted in zip(table[op](*args, least, most), op(*args, least, most), strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
                assert torch.equal(found.signbit(), wanted.signbit())
    declined = table[aten.fake_quantize_per_tensor_affine_cachemask.default](x.double(), 0.1, 3, least, most)
    assert declined is NotImplemented


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_of_two_that_the_type_does_not_hold(dtype: torch.dtype) -> None:
    """`frexp` gives 128 for f32's largest numbers, and 2 to the 128th is infinite there."""
    own, limits = decomposition_table("fast")[aten.ldexp.Tensor], torch.finfo(dtype)
    largest, exponent = torch.frexp(torch.tensor([limits.max, limits.min, 3.0, 0.0], dtype=dtype))
    assert torch.equal(own(largest, exponent), torch.tensor([limits.max, limits.min, 3.0, 0.0], dtype=dtype))
    x = torch.tensor([1.0, -0.75, -0.0, float("inf"), float("nan"), limits.tiny, 1e30, -1e-30], dtype=dtype)
    for n in (0, 1, -7, 128, -149, 277, 1023, -1074, 2098, -(1 << 30)):
        with np.errstate(over="ignore", under="ignore"):
            wanted = torch.from_numpy(np.ldexp(x.numpy(), n))
        found = own(x, torch.tensor(n))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit(), wanted.signbit())
    assert own(x, torch.tensor(0.5)) is not NotImplemented  # torch's steps
