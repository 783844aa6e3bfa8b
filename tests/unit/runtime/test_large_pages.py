"""Values of frozen parameters, and large results, on large pages."""

from __future__ import annotations

import gc
import mmap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.program.steps import Allocate
from polyfuse.program.text.statements import may_be_large
from polyfuse.runtime import workspace
from polyfuse.runtime.frozen.values import on_large_pages
from polyfuse.runtime.workspace import FRESH, empty_strided_cpu_large
from polyfuse.symbolic import symbol

needs_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")
LARGE = 2 << 20


def values() -> list[Any]:
    return [
        torch.randn(700, 500),
        torch.randn(300, 400).bfloat16().t(),
        torch.arange(250_001),
        torch.randn(8, 9, 5, 5).to(memory_format=torch.channels_last),
    ]


@needs_pages
def test_values_stay_what_they_are() -> None:
    torch.manual_seed(0)
    before = values()
    after = on_large_pages([v.clone(memory_format=torch.preserve_format) for v in before], ())
    start = after[0].data_ptr()
    assert start % LARGE == 0
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new) and old.stride() == new.stride() and old.dtype is new.dtype
        assert start <= new.data_ptr() < start + 3 * LARGE and new.data_ptr() % 64 == 0
        assert not new.requires_grad and new._base is None


@needs_pages
def test_a_block_lives_as_long_as_one_of_its_values() -> None:
    found = on_large_pages([torch.ones(LARGE // 4), torch.full((LARGE // 4,), 2.0)], ())
    second, first = found.pop(), weakref.ref(found.pop())
    gc.collect()
    assert first() is None and bool((second == 2).all())
    second.add_(1)
    assert bool((second == 3).all())


def test_what_is_not_moved() -> None:
    parameter, packed = torch.randn(LARGE // 4), torch.randn(LARGE // 4)
    part = torch.randn(LARGE)[: LARGE // 2]
    twice = torch.randn(LARGE // 4)
    left = [parameter.detach(), part, twice, twice.view(-1, 2), torch.ones(3), 7, "text", None]
    addresses = [v.data_ptr() for v in left if isinstance(v, torch.Tensor)]
    assert on_large_pages(list(left), (parameter,)) == left  # too little is left for a page
    found = on_large_pages([*left, packed], (parameter,))
    same = [v.data_ptr() for v in found[:-1] if isinstance(v, torch.Tensor)]
    assert same[:4] == addresses[:4] and found[5:8] == [7, "text", None]
    assert torch.equal(found[-1], packed)


def asked_for(tensor: torch.Tensor) -> bool:
    """Whether the system was asked for large pages in the middle of a tensor."""
    at, here = tensor.data_ptr() + tensor.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            start, end = (int(word, 16) for word in words[0].split("-"))
            here = start <= at < end
        elif here and words[0] == "VmFlags:":
            return "hg" in words
    return False


@needs_pages
@pytest.mark.parametrize("native_host", [False, True], ids=["python", "native"])
def test_results_whose_memory_is_fresh_lie_on_large_pages(native_host: bool) -> None:
    torch.compiler.reset()
    options = {"backends": ["cpp"], "strict": True, "native_host": native_host}
    double = torch.compile(lambda x: x + x, backend="polyfuse", options=options)
    x = torch.ones(FRESH // 4 + 2, dtype=torch.float32)
    result = double(x)
    assert asked_for(result) and bool((result == 2).all())
    del result
    assert not asked_for(double(x[:1000])) and asked_for(double(x[1:]))


def test_small_results_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_advise", lambda: pytest.fail("a small tensor is asked for large pages"))
    assert empty_strided_cpu_large((FRESH // 4 - 1,), (1,), torch.float32).shape == (FRESH // 4 - 1,)
    # all of its elements are one
    assert empty_strided_cpu_large((FRESH,), (0,), torch.float32).stride() == (0,)
    assert not may_be_large(Allocate("y", (64,), (1,), "float32", "cpu"))
    assert may_be_large(Allocate("y", (FRESH // 4,), (1,), "float32", "cpu"))
    assert may_be_large(Allocate("y", (symbol("s0", 2),), (1,), "float32", "cpu"))
    assert not may_be_large(Allocate("y", (symbol("s0", 2, 64),), (1,), "float32", "cpu"))
