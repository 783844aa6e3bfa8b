"""Attention of bf16 in matrix registers or by products of pairs: what becomes it, and what it computes."""

from __future__ import annotations

import math
import pickle
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyfuse import cli
from polyfuse.aot import load, package
from polyfuse.base.errors import KernelBuildError, PackageError
from polyfuse.base.settings import Settings
from polyfuse.checking import tally
from polyfuse.checking.records import Records
from polyfuse.compiler.session import forget_sessions
from polyfuse.runtime import profile
from polyfuse_cpp.attention import built, lowering
from polyfuse_cpp.attention import kernel as kernels
from polyfuse_cpp.attention.expected import Form
from polyfuse_cpp.attention.kernel import AttentionKernel, attention_kernel, attention_source
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.loading import LIBRARY
from requirements import needs_pairs

BF16 = torch.bfloat16
INF = float("inf")


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    forget_sessions()
    torch.compiler.reset()
    yield
    forget_sessions()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are called."""
    found: list[str] = []
    call = AttentionKernel.__call__

    def noted(self: AttentionKernel, *operands: Any) -> None:
        found.append(self.__name__)
        call(self, *operands)

    monkeypatch.setattr(AttentionKernel, "__call__", noted)
    return found


def random(*size: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*size) * scale).to(BF16)


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    dynamic = options.pop("dynamic", False)
    return torch.compile(function, backend="polyfuse", dynamic=dynamic, options={"strict": True, **options})


def exact(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: Any = None,
) -> Tensor:
    """In f64; a row of which all is hidden is zero."""
    q, k, v = (t.double() for t in (query, key, value))
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), -INF)
    if mask is not None:
        scores = scores.masked_fill(~mask, -INF) if mask.dtype == torch.bool else scores + mask.double()
    weights = torch.softmax(scores, -1)
    hidden = (scores == -INF).all(-1, keepdim=True)
    return torch.where(hidden, 0.0, weights) @ v


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    dynamic: bool = False,
) -> None:
    """As exact as eager mode, and laid out as its result."""

    def function(q: Tensor, k: Tensor, v: Tensor, m: Tensor | None) -> Tensor:
        grouped = k.shape[1] != q.shape[1]
        return F.scaled_dot_product_attention(q, k, v, m, is_causal=causal, scale=scale, enable_gqa=grouped)

    with torch.no_grad():
        found = compiled(function, dynamic=dynamic)(query, key, value, mask)
        eager = function(query, key, value, mask)
        expected = exact(query, key, value, mask, causal, scale)
    assert found.shape == eager.shape and found.stride() == eager.stride() and found.dtype == BF16
    found_error, eager_error = error(found, expected), error(eager, expected)
    assert found_error < 1e-2
    if scale is None or scale > 0:  # else eager mode sees what is behind a query instead of what is before it
        assert found_error <= 1.05 * eager_error + 1e-5


@needs_pairs
@pytest.mark.quick(2)
@pytest.mark.parametrize("width", [32, 64, 128, 40, 72, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_widths(width: int, causal: bool, calls: list[str]) -> None:
    q, k, v = (random(2, 3, 77, width) for _ in range(3))
    check(q, k, v, causal=causal)
    assert calls == [f"attention_{width}_plain"]


@pytest.mark.each_value
@needs_pairs
@pytest.mark.parametrize(
    "queries, keys", [(2, 600), (7, 33), (8, 1), (17, 31), (32, 32), (33, 257), (50, 700), (600, 33)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(queries: int, keys: int, causal: bool, calls: list[str]) -> None:
    check(random(1, 2, queries, 64), random(1, 2, keys, 64), random(1, 2, keys, 64), causal=causal)
    assert len(calls) == 1


@needs_pairs
@pytest.mark.quick(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [0.3, -0.2, 0.0, 2.0])
def test_scales(scale: float, causal: bool, calls: list[str]) -> None:
    check(*(random(1, 2, 48, 64) for _ in range(3)), causal=causal, scale=scale)
    assert calls == ["attention_64_plain" if scale > 0 else "attention_64_scaled"]


@needs_pairs
@pytest.mark.each_value
@pytest.mark.parametrize("size", [(50, 300), (2, 1, 50, 300), (1, 4, 1, 300), (2, 4, 50, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, BF16])
def test_masks(size: tuple[int, ...], dtype: torch.dtype, calls: list[str]) -> None:
    mask = torch.rand(size) > 0.3 if dtype == torch.bool else torch.randn(size).to(dtype)
    check(random(2, 4, 50, 64), random(2, 4, 300, 64), random(2, 4, 300, 64), mask)
    assert len(calls) == 1


@needs_pairs
def test_a_mask_whose_rows_are_no_lines_is_copied(calls: list[str]) -> None:
    """torch 2.11 gives such a one to its kernel: positions' biases, with the heads last."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    q, k, v, mask = random(2, 4, 50, 64), random(2, 4, 300, 64), random(2, 4, 300, 64), random(1, 50, 300, 4)
    with torch.no_grad():
        found = compiled(lambda q, k, v, m: kernel(q, k, v, attn_mask=m.permute(0, 3, 1, 2))[0])(
            q, k, v, mask
        )
    torch.testing.assert_close(
        found.double(), exact(q, k, v, mask.permute(0, 3, 1, 2), False, None), rtol=2e-2, atol=2e-2
    )
    assert calls == ["attention_64_added_bf16"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [(50, 1), (1, 1), (2, 1, 50, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, BF16])
def test_masks_that_repeat_along_keys_are_the_library_call(
    size: tuple[int, ...], dtype: torch.dtype, calls: list[str]
) -> None:
    mask = torch.rand(size) > 0.3 if dtype == torch.bool else random(*size)
    check(random(2, 4, 50, 32), random(2, 4, 300, 32), random(2, 4, 300, 32), mask)
    assert not calls


@needs_pairs
def test_rows_that_see_nothing_are_zero(calls: list[str]) -> None:
    mask = torch.rand(1, 1, 40, 600) > 0.5
    mask[0, 0, 3] = False
    mask[0, 0, 7, :500] = False
    q, k, v = random(1, 2, 40, 64), random(1, 2, 600, 64), random(1, 2, 600, 64)
    check(q, k, v, mask)
    with torch.no_grad():
        found = compiled(lambda *t: F.scaled_dot_product_attention(*t))(q, k, v, mask)
    assert not found[:, :, 3].any() and found[:, :, 7].any() and len(calls) == 2


@pytest.mark.quick(2)
@needs_pairs
@pytest.mark.parametrize("layout", ["heads second", "heads third", "one tensor", "expanded"])
def test_layouts(layout: str, calls: list[str]) -> None:
    if layout == "heads third":
        q, k, v = (random(2, 70, 4, 64).transpose(1, 2) for _ in range(3))
    elif layout == "one tensor":
        q, k, v = random(2, 70, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)
    elif layout == "expanded":
        q, k, v = (random(1, 4, 70, 64).expand(2, 4, 70, 64) for _ in range(3))
    else:
        q, k, v = (random(2, 4, 70, 64) for _ in range(3))
    check(q, k, v)
    assert len(calls) == 1


@needs_pairs
@pytest.mark.parametrize("causal", [False, True])
def test_heads_that_share_keys_are_not_copied(causal: bool, calls: list[str]) -> None:
    check(random(2, 6, 65, 64), random(2, 2, 65, 64), random(2, 2, 65, 64), causal=causal)
    assert len(calls) == 1


@needs_pairs
def test_sizes_that_vary(calls: list[str]) -> None:
    """One kernel serves all."""
    attention = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    function = compiled(attention, dynamic=None)
    for batch, rows in ((2, 40), (3, 41), (2, 530), (4, 9)):
        operands = [random(batch, 2, rows, 64) for _ in range(3)]
        for operand in operands:
            torch._dynamo.mark_dynamic(operand, 0)
            torch._dynamo.mark_dynamic(operand, 2)
        with torch.no_grad():
            found = function(*operands)
        eager = F.scaled_dot_product_attention(*operands, is_causal=True)
        expected = exact(*operands, causal=True)
        assert error(found, expected) <= 1.05 * error(eager, expected) + 1e-5
    assert len(calls) == 4


@needs_pairs
@pytest.mark.parametrize(
    "queries, heads, shared, keys, width", [(1, 2, 4, 1030, 64), (1, 1, 7, 257, 40), (3, 2, 3, 65, 144)]
)
def test_few_queries(queries: int, heads: int, shared: int, keys: int, width: int, calls: list[str]) -> None:
    """Rows that share a head of keys, of a cache whose last positions are hidden."""
    q, k, v = (random(2, n, m, width) for n, m in ((heads * shared, queries), (heads, keys), (heads, keys)))
    check(q, k, v, (torch.arange(keys) < keys - 3)[None, None, None])
    check(q, k, v, torch.randn(queries, keys))
    kernel = attention_kernel(width, Form.PLAIN, Settings.resolve(None, {}))
    result, logs = torch.empty_like(q), torch.empty(q.shape[:3])
    steps = [n for t in (q, k, v) for n in t.stride()[:3]]
    steps += [0, 0, 0, *result.stride()[:3], *logs.stride()]
    scale = 1040187392  # the bits of 0.125
    before = torch.get_num_threads()
    for threads in (1, 5):
        torch.set_num_threads(threads)
        kernel(q, k, v, q, result, logs, 2, heads * shared, heads, queries, keys, *steps, scale, 0, 1)
        torch.set_num_threads(before)
        assert error(result, exact(q, k, v, scale=0.125)) < 4e-3
        scores = q.double() @ k.double().repeat_interleave(shared, 1).mT * 0.125
        torch.testing.assert_close(logs.double(), scores.logsumexp(-1), rtol=1e-3, atol=1e-3)
    assert len(calls) == 4


@needs_pairs
@pytest.mark.each_value
@pytest.mark.parametrize("special", [float("nan"), INF, -INF, 3e38])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_no_number(special: float, where: int, calls: list[str]) -> None:
    """It reaches the rows that it reaches in eager mode, and no others."""
    # few queries with numbers that are none among the keys
    rows = 3 if where == 1 else 45
    operands = [random(1, 2, rows, 64), *(random(1, 2, 45, 64) for _ in range(2))]
    operands[where][0, 1, 44 if rows == 45 or where else 2, 5] = special
    with torch.no_grad():
        found = compiled(lambda *t: F.scaled_dot_product_attention(*t))(*operands)
    eager = F.scaled_dot_product_attention(*operands)
    assert torch.equal(found.isnan(), eager.isnan()) and len(calls) == 1
    torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2, equal_nan=True)


@needs_pairs
@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e18])
def test_large_and_small_scores(scale: float, calls: list[str]) -> None:
    operands = [random(1, 2, 64, 64, scale=scale), random(1, 2, 300, 64, scale=scale), random(1, 2, 300, 64)]
    check(*operands)
    assert len(calls) == 1


@needs_pairs
@pytest.mark.parametrize("causal", [False, True])
def test_training(causal: bool, calls: list[str]) -> None:
    """The library's backward takes what the kernel says of its weights."""
    q, k, v = ((random(2, 3, 50, 64)).requires_grad_() for _ in range(3))
    weight = random(2, 3, 50, 64)

    def step(function: Callable[..., Tensor]) -> list[Tensor]:
        for t in (q, k, v):
            t.grad = None
        (function(q, k, v) * weight).sum().backward()
        return [t.grad for t in (q, k, v)]  # type: ignore[misc]

    def function(*t: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*t, is_causal=causal)

    found, eager = step(compiled(function)), step(function)
    assert len(calls) == 1
    for a, b in zip(found, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


@pytest.mark.quick(1)
@needs_pairs
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads: int, calls: list[str]) -> None:
    """Results have the same bits."""
    operands = [random(1, 3, 300, 64), random(1, 3, 400, 64), random(1, 3, 400, 64)]
    function, before = compiled(lambda *t: F.scaled_dot_product_attention(*t)), torch.get_num_threads()
    with torch.no_grad():
        torch.set_num_threads(1)
        alone = function(*operands)
        try:
            torch.set_num_threads(threads)
            assert torch.equal(function(*operands), alone)
        finally:
            torch.set_num_threads(before)


@pytest.mark.quick(1)
@needs_pairs
@pytest.mark.parametrize("shared", [1, 3])
def test_many_heads(shared: int) -> None:
    """Each of several threads has whole heads."""
    q, (k, v) = random(5, 4 * shared, 70, 64), (random(5, 4, 90, 64) for _ in range(2))
    function = compiled(lambda *t: F.scaled_dot_product_attention(*t, enable_gqa=shared > 1))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.no_grad():
                found = function(q, k, v)
            assert error(found, exact(q, k, v)) < 4e-3
    finally:
        torch.set_num_threads(before)


@needs_pairs
def test_no_keys_and_many_keys() -> None:
    """Rows of no keys are zero; what many keys take is not held."""
    kernel = attention_kernel(64, Form.PLAIN, Settings.resolve(None, {}))
    for keys, queries in ((0, 40), (5000, 40), (0, 2), (5000, 2)):
        q, k, v = random(1, 2, queries, 64), random(1, 2, keys, 64), random(1, 2, keys, 64)
        result = torch.full((1, 2, queries, 64), float("nan"), dtype=BF16)
        scale = 1040187392  # the bits of 0.125
        steps = [*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], 0, 0, 0, *result.stride()[:3], 0, 0, 0]
        kernel(q, k, v, q, result, result, 1, 2, 2, queries, keys, *steps, scale, 0, 0)
        if keys:
            assert error(result, exact(q, k, v)) < 4e-3
        else:
            assert not result.any()


@needs_pairs
def test_what_the_library_computes(calls: list[str]) -> None:
    """One query a head, wide heads, other types, and where somebody asked for the library."""
    one, wide, f32 = random(1, 2, 1, 64), random(1, 2, 40, 264), torch.randn(1, 2, 40, 64)
    attention = lambda *t: F.scaled_dot_product_attention(*t)  # noqa: E731
    with torch.no_grad():
        for operand in (one, wide, f32):
            torch.compiler.reset()
            found = compiled(attention)(operand, operand, operand)
            torch.testing.assert_close(found, attention(operand, operand, operand), rtol=2e-2, atol=2e-2)
        q = random(1, 2, 40, 64)
        for options in ({"gemm": "library"}, {"numerics": "eager"}, {"cpp.isa": "avx2"}):
            torch.compiler.reset()
            forget_sessions()
            compiled(attention, **options)(q, q, q)
    assert not calls


@needs_pairs
@pytest.mark.parametrize("built", [True, False])
def test_packages_hold_the_kernel(built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded as generated kernels are; without a compiler for it, the call stays the library's."""

    class Model(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, q) * 2

    def refused(kernel: AttentionKernel) -> None:
        raise KernelBuildError("the compiler is too old", "install another")

    q = random(1, 2, 40, 64)
    with torch.no_grad():
        expected = compiled(Model())(q) if built else Model()(q)
    if not built:
        monkeypatch.setattr(AttentionKernel, "located", refused)
    found = load(package(Model(), (q,), path=tmp_path / "model.zip"))
    entry = found.description.entries["forward"]
    assert len(entry.calls) == built
    assert ("aten._scaled_dot_product_flash_attention_for_cpu.default" in entry.operators) is not built
    assert torch.equal(found(q), expected)


@pytest.fixture
def half_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library for f32 uses half of each register of AVX-512, as on CPUs of other makers than its own."""
    monkeypatch.setattr(lowering, "mkl_leaves_lanes", lambda: True)


@needs_pairs
@pytest.mark.parametrize(
    "sizes, shared, more",
    [
        ((2, 3, 257, 257, 64), 1, {}),
        pytest.param((1, 2, 70, 300, 40), 2, {"causal": True}, marks=pytest.mark.slow),
        ((1, 2, 50, 300, 40), 1, {"masked": True, "check": "first"}),
        pytest.param((1, 2, 65, 33, 144), 1, {"scale": -0.4}, marks=pytest.mark.slow),
        ((1, 2, 3, 300, 72), 4, {"masked": True, "check": "first"}),
    ],
    ids=str,
)
def test_f32(
    sizes: tuple[int, ...], shared: int, more: dict[str, Any], calls: list[str], half_registers: None
) -> None:
    """As exact as eager mode; the last key is seen by itself, and a block has rows that there are not."""
    images, heads, queries, keys, width = sizes
    q = torch.randn(images, queries, heads * shared, width).transpose(1, 2)
    k, v = (torch.randn(images, keys, heads, width).transpose(1, 2) for _ in range(2))
    mask = torch.rand(queries, keys) > 0.3 if "masked" in more else None
    causal, scale = more.get("causal", False), more.get("scale")

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=shared > 1
        )

    tally.begin(forget=True)
    with torch.no_grad():
        found = compiled(function, check=more.get("check", "off"))(q, k, v)
    findings = tally.result().findings
    tally.begin(forget=False)
    expected = exact(q, k, v, mask, causal, scale)
    assert error(found, expected) < 2e-6 and found.stride() == function(q, k, v).stride() and not findings
    assert len(calls) == 1 and calls[0].endswith("_f32")


@needs_pairs
def test_f32_that_sees_much_and_training(calls: list[str], half_registers: None) -> None:
    """Large scores are subtracted before they are multiplied, numbers that are none stay in their rows, and
    the library's backward takes the logarithms.
    """
    q, k, v = (torch.randn(1, 2, 70, 32) * scale for scale in (40, 20, 1))
    q[0, 1, 3, 2], q[0, 1, 5, 2] = float("nan"), INF
    q.requires_grad_()
    function = lambda q: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    found, eager = compiled(function)(q), function(q)
    # scores of some thousands are rounded by 2e-4, on both sides
    torch.testing.assert_close(found, eager, rtol=1e-2, atol=1e-3, equal_nan=True)
    (grad,) = torch.autograd.grad(found[:, 0].sum(), q)
    torch.testing.assert_close(
        grad[:, 0], torch.autograd.grad(eager[:, 0].sum(), q)[0][:, 0], rtol=1e-2, atol=1e-2
    )
    assert len(calls) == 1


@needs_pairs
def test_which_calls_of_f32_are_kernels(
    calls: list[str], half_registers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = torch.randn(1, 2, 64, 32)
    with torch.no_grad():
        for q in (torch.randn(1, 2, 40, 32), torch.randn(1, 2, 4, 32)):
            compiled(lambda q: F.scaled_dot_product_attention(q, k, k))(q)
        monkeypatch.setattr(lowering, "mkl_leaves_lanes", lambda: False)
        torch.compiler.reset()
        compiled(lambda q: F.scaled_dot_product_attention(q, k, k))(torch.randn(1, 2, 60, 32))
        assert not calls
        # many scores are a kernel's where the library uses whole registers, too
        compiled(lambda q: F.scaled_dot_product_attention(q, k, k))(torch.randn(1, 2, 1024, 32))
    assert len(calls) == 1


@needs_pairs
@pytest.mark.parametrize("built", [True, False])
def test_packages_hold_the_kernel_of_a_branch(
    built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            attention = lambda q: F.scaled_dot_product_attention(q, q, q)  # noqa: E731
            return torch.cond(q.sum() > 0, attention, lambda q: q * 2, (q,))

    def refused(kernel: AttentionKernel) -> None:
        raise KernelBuildError("the compiler is too old", "install another")

    if not built:
        monkeypatch.setattr(AttentionKernel, "located", refused)
    q = random(1, 2, 40, 64).abs()
    found = load(package(Model(), (q,), path=tmp_path / "model.zip"))
    assert any(function.calls for function in found.description.entries["forward"].functions) is built
    torch.testing.assert_close(found(q), F.scaled_dot_product_attention(q, q, q), rtol=2e-2, atol=2e-2)
    assert torch.equal(found(-q), -q * 2)


@needs_pairs
def test_packages_hold_no_kernel_that_was_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, q) * 2

    monkeypatch.setattr(Records, "barred", lambda *_: "it differed")
    with pytest.raises(PackageError, match="attention_64_plain, which is barred here"):
        package(Model(), (random(1, 2, 40, 64),), path=tmp_path / "model.zip")


@needs_pairs
def test_it_is_in_the_profile() -> None:
    profile.forget()
    q = random(1, 2, 40, 64)
    function = compiled(lambda q: F.scaled_dot_product_attention(q, q, q) * 2, profile=True)
    with torch.no_grad():
        for _ in range(3):
            function(q)
    rows = [line.split() for line in profile.report().splitlines()]
    profile.forget()
    assert [row[2] for row in rows if row[-1] == "attention_64_plain"] == ["2"]


@pytest.mark.slow
@needs_pairs
def test_programs_with_it_are_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[str]
) -> None:
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "1")
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    q = random(1, 2, 40, 64)
    function = lambda q: F.scaled_dot_product_attention(q, q, q) * 2  # noqa: E731
    found = []
    for _ in range(2):
        forget_sessions()
        torch.compiler.reset()
        with torch.no_grad():
            found.append(compiled(function)(q))
    assert torch.equal(*found) and len(calls) == 2


def test_one_kernel_for_equal_options() -> None:
    settings = Settings.resolve(None, {})
    kernel = attention_kernel(64, Form.PLAIN, settings)
    assert kernel is attention_kernel(64, Form.PLAIN, settings)
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    assert kernel is not attention_kernel(64, Form.ADDED, settings)


def test_a_kernel_that_cannot_be_built_is_the_library_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise OSError("no assembler")

    monkeypatch.setattr(built, "_load", broken)
    kernel = AttentionKernel(64, Form.ADDED, Settings.resolve(None, {}))
    q, mask = random(2, 2, 20, 64), torch.randn(20, 20)
    result, logs = torch.empty(2, 20, 2, 64, dtype=BF16).transpose(1, 2), torch.empty(2, 2, 20)
    scale = 1052770304  # the bits of 0.375
    kernel(q, q, q, mask, result, logs, 2, 2, 2, 20, 20, *(0,) * 18, scale, 0, 1)
    assert "no assembler" in caplog.text
    expected = F.scaled_dot_product_attention(q, q, q, mask.to(BF16), scale=0.375)
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    sums = (q.float() @ q.float().mT * 0.375 + mask).logsumexp(-1)
    torch.testing.assert_close(logs, sums, rtol=1e-2, atol=1e-2)


def test_text() -> None:
    source = attention_source(80, Form.ADDED_BF16, "avx512")
    assert "attention<80>(c, attention_rule<3>{});" in source.text
    signature, features, isa = source.meta.split(";")
    assert (signature, features, isa) == ("p" * 6 + "i" * 26, "attention", "avx512")
    assert math.prod(source.text.count(f"i64 {name}_{k}") for name in kernels.STRIDED for k in range(3)) == 1


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="this CPU is no x86-64, for which the test compiles"
)
@pytest.mark.parametrize("registers", [True, False])
def test_kernels_compile_on_any_x86(registers: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    every = ("PF_DOT_BF16", "PF_AMX")[: 1 + registers]
    monkeypatch.setattr("polyfuse_cpp.backend.dot_instructions", lambda: every)
    backend = CppBackend(Settings.resolve(None, {"cpp.isa": "avx512"}))
    sources = [
        attention_source(width, form, "avx512") for width, form in ((16, Form.PLAIN), (32, Form.ADDED_BF16))
    ]
    backend.build(sources, tmp_path)
    assert set(backend.load(tmp_path)) == {source.key for source in sources}
    products = re.findall(rb"\xc4\xe2[\x42-\x7a]\x5c", (tmp_path / LIBRARY).read_bytes())  # tdpbf16ps
    assert len(products) >= 4 if registers else not products


@needs_pairs
@pytest.mark.parametrize("queries", [70, 3])
def test_products_of_pairs_without_matrix_registers(
    queries: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyfuse_cpp.backend.dot_instructions", lambda: ("PF_DOT_BF16",))
    monkeypatch.setattr(kernels, "_KERNELS", {})
    q, (k, v) = random(2, 4, queries, 40), (random(2, 2, 300, 40) for _ in range(2))
    check(q, k, v, causal=True)
    assert calls == ["attention_40_plain"]


def test_nothing_changes_without_products_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "has_pair_products", lambda isa: False)
    q = random(1, 2, 40, 64)
    with torch.no_grad():
        found = compiled(lambda q: F.scaled_dot_product_attention(q, q, q))(q)
    assert torch.equal(found, F.scaled_dot_product_attention(q, q, q))


def twice_one(launch: Any, *operands: Any) -> None:
    launch(*operands)
    operands[4][0, 1, 3, 5] *= 1.5


def last_row_left_out(launch: Any, *operands: Any) -> None:
    before = operands[4][:, :, -1].clone()
    launch(*operands)
    operands[4][:, :, -1] = before


def last_key_left_out(launch: Any, *operands: Any) -> None:
    launch(*operands[:10], operands[10] - 1, *operands[11:])


def first_head_for_all(launch: Any, *operands: Any) -> None:
    launch(*operands[:12], 0, *operands[13:])


def causal(launch: Any, *operands: Any) -> None:
    launch(*operands[:-2], 1, operands[-1])


def other_scale(launch: Any, *operands: Any) -> None:
    launch(*operands[:-3], operands[-3] + (1 << 18), *operands[-2:])


def swapped(launch: Any, *operands: Any) -> None:
    launch(operands[0], operands[2], operands[1], *operands[3:])


def wrong_logs(launch: Any, *operands: Any) -> None:
    launch(*operands)
    operands[5][0, 0, 7] += 0.1


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let the built kernel be called by a function."""
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "_KERNELS", {})
    built = AttentionKernel._found

    def plant(defect: Callable[..., None]) -> None:
        def found(self: AttentionKernel) -> Any:
            launch = built(self)
            return lambda *operands: defect(launch, *operands)

        monkeypatch.setattr(AttentionKernel, "_found", found)

    tally.begin(forget=True)
    yield plant
    tally.begin(forget=False)


DEFECTS = (twice_one, last_row_left_out, last_key_left_out, first_head_for_all, other_scale, causal, swapped)


@needs_pairs
@pytest.mark.quick(3)
@pytest.mark.parametrize("defect", [*DEFECTS, wrong_logs])
def test_a_wrong_kernel_is_named_and_replaced(defect: Any, planted: Any, capsys: Any) -> None:
    planted(defect)
    training = defect is wrong_logs
    operands = [random(1, 2, 45, 64).requires_grad_(training) for _ in range(3)]
    found = compiled(lambda *t: F.scaled_dot_product_attention(*t), check="first", strict=False)(*operands)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*operands), rtol=2e-2, atol=2e-2)
    (finding,) = tally.result().findings
    assert finding.backend == "cpp" and "flash_attention" in finding.operators[0]
    assert finding.problem.startswith("result1[0, 0, 7] is " if training else "result0[0, ")
    if not training:
        torch.compiler.reset()
        assert cli.main(["replay", finding.repro]) == 1
        assert "now: result0[0, " in capsys.readouterr().out


@needs_pairs
@pytest.mark.quick(1)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e18])
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "shared", "scaled", "training"])
def test_a_right_kernel_is_not_reported(scale: float, kind: str, planted: Any) -> None:
    q = random(2, 4, 70, 40, scale=scale)
    k, v = (random(2, 2 if kind == "shared" else 4, 300, 40, scale=scale) for _ in range(2))
    mask = torch.rand(2, 1, 70, 300) > 0.4 if kind == "masked" else None
    if mask is not None:
        mask[0, 0, 5] = False
    if kind == "training":
        q.requires_grad_()
    q.data[0, 1, 3, 2] = float("nan")

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        more = {"is_causal": kind == "causal", "enable_gqa": kind == "shared"}
        return F.scaled_dot_product_attention(q, k, v, mask, scale=-0.3 if kind == "scaled" else None, **more)

    compiled(function, check="first")(q, k, v)
    found = tally.result()
    assert not found.findings and not found.skipped and found.kernels
