"""Functions of every family on a real device: values, gradients, and that kernels of our own compute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfuse.compiler.reports.report import last_reports

pytestmark = pytest.mark.gpu
SEED = 7

Function = Callable[..., Any]
HALF = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALF)


def compiled(function: Function, dynamic: bool = False, **options: Any) -> Function:
    found: Function = torch.compile(
        function, backend="polyfuse", dynamic=dynamic, options={"strict": True, **options}
    )
    return found


def on_device(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda", dtype=dtype, requires_grad=grad)


def kernels() -> list[str]:
    """Backends of the launches so far."""
    return [launch.backend for report in last_reports() for launch in report.launches]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 2e-2, "atol": 2e-2} if dtype in HALF else {"rtol": 1e-4, "atol": 1e-5}


def check(function: Function, *args: Any, own: bool = True, **close: float) -> None:
    """The compiled function gives what eager mode gives in double precision rounded, or as close as it."""
    expected, actual = function(*args), compiled(function)(*args)
    close = close or tolerance(next(a.dtype for a in args if isinstance(a, torch.Tensor)))
    torch.testing.assert_close(actual, expected, equal_nan=True, **close)
    if own:
        assert set(kernels()) == {"triton"}, last_reports()


ONE: dict[str, Function] = {
    "chain": lambda x: (x * 2 + 1).relu() - x.abs().sqrt(),
    "transcendental": lambda x: x.exp().log1p() + x.sin() * x.tanh() + torch.erf(x),
    "gelu": lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x),
    "transposed": lambda x: x.t().contiguous() * 2,
    "sum last": lambda x: x.sum(-1),
    "sum first": lambda x: x.sum(0),
    "sum all": lambda x: x.float().sum(),
    "mean and variance": lambda x: torch.var_mean(x.float(), -1),
    "extremes": lambda x: (x.amax(-1), x.amin(0), x.max()),
    "positions": lambda x: (x.argmax(-1), x.argmin(0), x.max(1).indices),
    "product": lambda x: (1 + x.float() / 1000).prod(-1),
    "truth": lambda x: ((x > 3).any(-1), (x < 5).all(0)),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms norm": lambda x: x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype),
    "running sum": lambda x: x.float().cumsum(-1),
    "running extreme": lambda x: x.cummax(-1),
    "running sum of columns": lambda x: x.float().cumsum(0),
    "joined": lambda x: torch.cat([x, x * 2, x[:, :7]], 1),
    "padded": lambda x: F.pad(x, (3, 2, 1, 0), value=2.0),
    "flipped": lambda x: x.flip(0).roll(3, 1),
    "chosen": lambda x: torch.where(x > 0, x, x * 0.1).clamp(-1, 2),
    "rounded": lambda x: (x * 10).round() + (x * 10).floor() + (x * 3).trunc(),
    "bits": lambda x: ((x * 100).to(torch.int32) & 255) << 2,
    "whole division": lambda x: torch.div((x * 50).to(torch.int64), 7, rounding_mode="floor"),
    "remainder": lambda x: (x * 50).to(torch.int32) % 7,
    "wide": lambda x: (x.double() + 1e-9).exp().to(x.dtype),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ONE)
def test_one_operand(name: str, dtype: torch.dtype) -> None:
    check(ONE[name], on_device(133, 517, dtype=dtype))


LONG: dict[str, Function] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "variance": lambda x: x.var(-1),
    "maximum": lambda x: x.amax(-1),
    "position": lambda x: x.argmax(-1),
    "truth": lambda x: (x > 4.5).any(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "running sum": lambda x: x.double().cumsum(-1),
}


@pytest.mark.parametrize("shape", [(1, 10_000_019), (32, 1_000_000), (3, 65_537), (1000, 20_000)], ids=str)
@pytest.mark.parametrize("name", LONG)
def test_few_long_rows(name: str, shape: tuple[int, int]) -> None:
    check(LONG[name], on_device(*shape), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["sum", "mean", "variance", "maximum", "position"])
def test_few_long_columns(name: str) -> None:
    check(lambda x: LONG[name](x.t()), on_device(500_000, 24), rtol=2e-4, atol=2e-4)


def test_edge_values_in_long_reductions() -> None:
    x = on_device(6, 300_001)
    x[0, 5], x[1, 299_999], x[2], x[3, 7] = float("nan"), float("inf"), -float("inf"), -float("inf")
    check(lambda x: (x.amax(1), x.amin(1), x.argmax(1), x.argmin(1), torch.softmax(x, 1)), x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm_in_training(layout: torch.memory_format, dtype: torch.dtype) -> None:
    def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = F.batch_norm(x, None, None, w, b, training=True).relu()
        return y, *torch.autograd.grad(y.float().square().mean(), (x, w, b))

    x = on_device(32, 64, 56, 56, dtype=dtype).to(memory_format=layout).requires_grad_()
    w, b = on_device(64, grad=True), on_device(64, grad=True)
    for a, e in zip(compiled(step)(x, w, b), step(x, w, b), strict=True):
        error = (a.double() - e.double()).abs().max() / e.double().abs().max()
        assert error < (2e-2 if dtype in HALF else 1e-3)


INDEXING: dict[str, Function] = {
    "gather": lambda x, i: x.gather(1, i),
    "rows": lambda x, i: x[i[:, 0]],
    "embedding": lambda x, i: F.embedding(i[:, 0], x),
    "added": lambda x, i: torch.zeros_like(x).scatter_add(1, i, x),
    "largest": lambda x, i: x.scatter_reduce(1, i, x * 2, "amax"),
    "written": lambda x, i: torch.zeros_like(x).index_put((torch.arange(5, device=x.device),), x[:5]),
    "accumulated": lambda x, i: torch.zeros_like(x).index_put((i[:, 0],), x, accumulate=True),
    "masked": lambda x, i: x.masked_fill(i > 20, -1.0),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", INDEXING)
def test_indices_given_by_data(name: str, dtype: torch.dtype) -> None:
    x, i = on_device(64, 50, dtype=dtype), torch.randint(0, 50, (64, 50), device="cuda")
    check(INDEXING[name], x, i, **({"rtol": 5e-2, "atol": 5e-2} if dtype in HALF else {}))


IMAGES: dict[str, Function] = {
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "bilinear": lambda x: F.interpolate(x, size=(31, 17), mode="bilinear", align_corners=False),
    "group norm": lambda x: F.group_norm(x, 4),
    "reflected": lambda x: F.pad(x, (2, 1, 3, 0), mode="reflect"),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", IMAGES)
def test_images_and_their_gradients(name: str, layout: torch.memory_format) -> None:
    def step(x: torch.Tensor) -> Any:
        y = IMAGES[name](x)
        return y, torch.autograd.grad(y.square().sum(), x)[0]

    x = on_device(3, 8, 22, 26).to(memory_format=layout).requires_grad_()
    # against the contiguous layout: eager mode's own gradient of average pooling is wrong in the other one
    wanted = step(x.detach().contiguous().requires_grad_())
    for actual, expected in zip(compiled(step)(x), wanted, strict=True):
        torch.testing.assert_close(actual.contiguous(), expected, rtol=1e-3, atol=1e-4)
    assert set(kernels()) == {"triton"}, last_reports()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention(dtype: torch.dtype) -> None:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        y = F.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1
        return y, *torch.autograd.grad(y.float().square().sum(), (q, k, v))

    args = [on_device(2, 4, 128, 64, dtype=dtype, grad=True) for _ in range(3)]
    for a, e in zip(compiled(step)(*args), step(*args), strict=True):
        torch.testing.assert_close(a, e, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [3, 64])
def test_convolution(channels: int, dtype: torch.dtype) -> None:
    torch.backends.cudnn.allow_tf32 = False
    model = torch.nn.Sequential(
        torch.nn.Conv2d(channels, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 32, 1),
    ).to("cuda", dtype)  # fmt: skip
    x = on_device(4, channels, 32, 32, dtype=dtype)
    expected = model(x)
    actual = compiled(model)(x)
    torch.testing.assert_close(actual, expected, rtol=5e-2, atol=5e-2)
    assert actual.stride() == expected.stride()


def test_eight_bits() -> None:
    x = torch.cat([on_device(1000) * 100, torch.tensor([0.0, -0.0, 448.0, 500.0, 7e4], device="cuda")])
    for narrow in (torch.float8_e4m3fn, torch.float8_e5m2):
        torch._dynamo.reset()

        def quantised(x: torch.Tensor, narrow: torch.dtype = narrow) -> Any:
            small = (x * 3).to(narrow)
            return small, small.float() + 1

        expected, actual = quantised(x), compiled(quantised)(x)
        assert torch.equal(actual[0].view(torch.uint8), expected[0].view(torch.uint8))
        expected, actual = expected[1], actual[1]
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_sizes_known_when_called() -> None:
    run = compiled(lambda x: (torch.softmax(x, -1), x.sum(0), x.sum()), dynamic=True)
    for shape in ((3, 5), (128, 1000), (2, 300_000), (70_000, 3), (257, 129)):
        x = on_device(*shape)
        expected = torch.softmax(x, -1), x.sum(0), x.sum()
        torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-3)


def test_more_elements_than_32_bits_count() -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip(
            "less than 40 GiB of the GPU's memory are free, and the test computes on more than 2**31 elements"
        )
    x = torch.zeros(2**31 + 1000, dtype=torch.bfloat16, device="cuda")
    x[-5:] = 3
    y = compiled(lambda x: x * 2 + 1)(x)
    assert y[-5:].tolist() == [7.0] * 5 and y[:5].tolist() == [1.0] * 5
    assert compiled(lambda x: x.float().sum())(x).item() == 15


def test_dropout_keeps_its_share_and_its_gradient() -> None:
    x = torch.ones(1000, 1000, device="cuda", requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.25))(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, y.detach())
    assert 0.24 < (y == 0).float().mean().item() < 0.26


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_optimizer_steps(kind: Any) -> None:
    def parameters() -> list[torch.Tensor]:
        torch.manual_seed(1)
        return [on_device(n, 33, grad=True) for n in (20, 64, 64)]

    mine, theirs = parameters(), parameters()
    ours, eagers = kind(mine, lr=0.1), kind(theirs, lr=0.1)
    run = compiled(ours.step, strict=False)
    for _ in range(3):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        with torch.no_grad():
            run()
        eagers.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
