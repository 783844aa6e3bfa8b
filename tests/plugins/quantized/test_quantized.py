"""Operators on quantised numbers: equal to eager mode, and part of the kernels around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports

# The module registers the operators; where torch has moved it away, there is nothing to lower.
pytest.importorskip(
    "torch.ao.quantization.fx._decomposed", reason="this torch has no module that registers the operators"
)
ops = torch.ops.quantized_decomposed

RANGES = {torch.int8: (-128, 127), torch.uint8: (0, 255), torch.int16: (-32768, 32767)}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    reset_reports()
    yield


def check(function, *args, dynamic: bool = False, **options) -> GraphReport:
    """Exactly as in eager mode."""
    options = {"backends": ["interpreter"], "numerics": "eager", **options}
    compiled = torch.compile(function, backend="polyfuse", options=options, dynamic=dynamic)
    torch.testing.assert_close(compiled(*args), function(*args), rtol=0, atol=0, equal_nan=True)
    return last_reports()[-1]


def values(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(size) * 10
    flat = x.view(-1)
    edges = [float("inf"), -float("inf"), 0.0, -0.0, 0.05, 0.15, 0.25, -0.35, 1e30, -1e-30]
    flat[: len(edges)] = torch.tensor(edges)[: flat.numel()]
    return x.to(dtype)


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", RANGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_there_and_back(kind, dtype):
    low, high = RANGES[kind]

    def function(x):
        q = ops.quantize_per_tensor.default(x, 0.1, 3, low, high, kind)
        return q, ops.dequantize_per_tensor.default(q, 0.1, 3, low, high, kind)

    report = check(function, values(5, 7, dtype=dtype), strict=True)
    assert report.calls == () and not report.fallbacks


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [(), (1,), (0, 3), (3, 1, 4)], ids=str)
def test_sizes(size):
    function = lambda x: ops.quantize_per_tensor.default(x * 2, 0.03, 0, -127, 127, torch.int8)  # noqa: E731
    check(function, torch.randn(size), strict=True)


def test_unknown_sizes():
    function = lambda x: ops.quantize_per_tensor.default(x, 0.5, 1, 0, 255, torch.uint8) + 1  # noqa: E731
    assert check(function, values(6, 5), dynamic=True, strict=True).calls == ()


@pytest.mark.quick(1)
@pytest.mark.parametrize("scale", [torch.tensor(0.07), torch.tensor([0.07], dtype=torch.float64)])
def test_parameters_in_tensors(scale):
    def function(x, scale, zero_point):
        q = ops.quantize_per_tensor.tensor(x, scale, zero_point, -128, 127, torch.int8)
        return ops.dequantize_per_tensor.tensor(q, scale, zero_point, -128, 127, torch.int8)

    zero_point = torch.full(scale.shape, -5, dtype=torch.int64)
    assert not check(function, values(4, 6), scale, zero_point, strict=True).fallbacks
    assert not check(function, torch.tensor(3.25), scale, zero_point, strict=True).fallbacks


@pytest.mark.quick(2)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("scales", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("zeros", [torch.int64, torch.int32, torch.float32], ids=str)
def test_parameters_of_channels(axis, scales, zeros):
    x = values(3, 4, 5)
    count = x.shape[axis]
    scale, zero = torch.rand(count, dtype=scales) + 0.01, torch.randint(-9, 9, (count,)).to(zeros)

    def function(x, scale, zero):
        q = ops.quantize_per_channel.default(x, scale, zero, axis % 3, -128, 127, torch.int8)
        back = ops.dequantize_per_channel.default(q, scale, zero, axis % 3, -128, 127, torch.int8)
        bare = ops.dequantize_per_channel.default(q, scale, None, axis % 3, -128, 127, torch.int8)
        return q, back, bare

    assert not check(function, x, scale, zero, strict=True).fallbacks


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_parameters_of_rows(dtype):
    x = values(3, 4, 5, dtype=dtype)
    scale = torch.rand(3, 4, 1) + 0.01
    zero = torch.randint(-9, 9, (3, 4, 1))

    def function(x, scale, zero):
        q = ops.quantize_per_token.default(x, scale, zero, -128, 127, torch.int8)
        return q, ops.dequantize_per_token.default(q, scale, zero, -128, 127, torch.int8, torch.float32)

    assert not check(function, x, scale, zero, strict=True).fallbacks


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda x: ops.quantize_per_tensor.default(x, 0.1, 0, -(2**31), 2**31 - 1, torch.int32),
            "does not hold the limits",
        ),
        (
            lambda x: ops.dequantize_per_tensor.default(
                x.to(torch.int8), 0.1, 0, -128, 127, torch.int8, out_dtype=torch.bfloat16
            ),
            "rounded at each step",
        ),
    ],
)
def test_what_is_declined_is_called(function, reason):
    ((_, why),) = check(function, torch.randn(4, 5)).fallbacks
    assert "'quantized' declined" in why and reason in why


def test_the_generated_code_agrees():
    def function(x, scale, zero):
        q = ops.quantize_per_tensor.default(x * 3, 0.25, 2, -128, 127, torch.int8)
        rows = ops.quantize_per_channel.default(x, scale, zero, 1, 0, 255, torch.uint8)
        return ops.dequantize_per_tensor.default(q, 0.25, 2, -128, 127, torch.int8) + 1, rows

    x = values(33, 70)
    report = check(function, x, torch.rand(70) + 0.1, torch.randint(0, 99, (70,)), backends=(), strict=True)
    assert {launch.backend for launch in report.launches} == {"cpp"} and report.calls == ()


def cancelled(report: GraphReport) -> int:
    return dict(report.rewrites).get("quantized.cancel-conversions", 0)


def parameters(low: int = -128, high: int = 127, scale: float = 0.1):
    return (scale, 3, low, high, torch.int8)


PLAIN = parameters()


def requantized(q, view=lambda x: x, first=PLAIN, second=PLAIN):
    x = ops.dequantize_per_tensor.default(q, *first)
    return ops.quantize_per_tensor.default(view(x), *second) + 1


VIEWS = {
    "none": lambda x: x,
    "view": lambda x: x.view(8, 32),
    "permute": lambda x: x.permute(1, 0),
    "several": lambda x: x.unsqueeze(0).permute(2, 0, 1).squeeze(1),
    "part": lambda x: x.view(4, 4, 16)[2][1:3],
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_conversions_that_undo_each_other_go(view):
    every = torch.arange(-128, 128, dtype=torch.int8).view(16, 16)
    report = check(lambda q: requantized(q, view), every, strict=True)
    assert cancelled(report) == 1
    ops = {op for launch in report.launches for op in launch.ops}
    assert not any("quantize" in op for op in ops)


@pytest.mark.quick(2)
@pytest.mark.parametrize("scale", [1e-25, 0.1, 1 / 3, 7e20])
def test_they_undo_each_other_for_every_number(scale):
    both = parameters(scale=scale)
    every = torch.arange(-128, 128, dtype=torch.int8)
    assert cancelled(check(lambda q: requantized(q, first=both, second=both), every)) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (parameters(), parameters(scale=0.2)),
        (parameters(low=-127), parameters(low=-127)),
        (parameters(scale=1e-40), parameters(scale=1e-40)),
    ],
)
def test_others_stay(first, second):
    every = torch.arange(-128, 128, dtype=torch.int8)
    assert cancelled(check(lambda q: requantized(q, first=first, second=second), every)) == 0


def test_a_result_is_not_the_callers_tensor():
    def function(q):
        return ops.quantize_per_tensor.default(
            ops.dequantize_per_tensor.default(q, *parameters()), *parameters()
        )

    q = torch.arange(-128, 128, dtype=torch.int8)
    compiled = torch.compile(function, backend="polyfuse", options={"backends": ["interpreter"]})
    result = compiled(q)
    assert torch.equal(result, q) and result.data_ptr() != q.data_ptr()


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", [torch.uint8, torch.int8], ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("window", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "ceil_mode": True}])
def test_maxima_of_windows_are_taken_of_bytes(kind, last, window):
    how = (0.1, 3, *RANGES[kind], kind)

    def function(x):
        q = ops.quantize_per_tensor.default(x, *how)
        y = torch.nn.functional.max_pool2d(ops.dequantize_per_tensor.default(q, *how), 3, **window)
        return ops.quantize_per_tensor.default(y, *how)

    x = values(2, 4, 13, 18)
    x = x.to(memory_format=torch.channels_last) if last else x
    report = check(function, x, backends=(), numerics="fast", strict=True)
    assert cancelled(report) == 1 and report.calls == ()


@pytest.mark.slow
def test_maxima_with_positions_or_another_scale_are_not_cancelled():
    def positions(x):
        q = ops.quantize_per_tensor.default(x, *parameters())
        y = torch.nn.functional.max_pool2d(
            ops.dequantize_per_tensor.default(q, *parameters()), 3, return_indices=True
        )
        return ops.quantize_per_tensor.default(y[0], *parameters()), y[1]

    def scaled(x):
        q = ops.quantize_per_tensor.default(x, *parameters())
        y = torch.nn.functional.max_pool2d(ops.dequantize_per_tensor.default(q, *parameters()), 3)
        return ops.quantize_per_tensor.default(y, *parameters(scale=0.2))

    for function in (positions, scaled):
        compiled = torch.compile(function, backend="polyfuse", options={"strict": True})
        x = values(2, 4, 9, 12)
        for found, expected in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert cancelled(last_reports()[-1]) == 0
