"""Checksums of memory: what changes them, who computes them, and the calls that trust them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.runtime.frozen import CheckedCall, CheckedCalls, Checksum, offer_checksum
from polyfuse.runtime.frozen import checksums as offers
from polyfuse_cpp.threads.source import ChecksumSource, PoolSource
from polyfuse_cpp.toolchain import find_toolchain

SIZES = (1, 3, 4, 63, 255, 256, 1000, 4096, 16384, 16391, 70001, 300_000)


@pytest.fixture(scope="module")
def source() -> ChecksumSource:
    return ChecksumSource(find_toolchain(), Settings())


@pytest.fixture(scope="module")
def checksum(source: ChecksumSource) -> Checksum:
    found = source.find(True)
    assert found is not None and source.find(False) is found
    return found


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def offered(source: ChecksumSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_OFFERED", [])
    offer_checksum(source.find)


@pytest.mark.parametrize("count", SIZES)
def test_each_change_of_a_number_changes_it(checksum: Checksum, count: int) -> None:
    numbers = torch.randn(count)

    def now() -> int:
        return checksum((numbers.data_ptr(), count * 4))

    before = now()
    assert now() == before
    positions = {0, count - 1, count // 2, *torch.randint(count, (40,)).tolist()}
    for position in positions:
        bits = numbers[position : position + 1].view(torch.int32)
        for bit in (0, 1, 15, 22, 31):
            bits ^= -(2**31) if bit == 31 else 1 << bit
            assert now() != before, (position, bit)
            bits ^= -(2**31) if bit == 31 else 1 << bit
    assert now() == before
    assert count == 1 or checksum((numbers.data_ptr(), count * 4 - 1)) != before


@pytest.mark.parametrize("apart", [1, 2, 4, 16, 64, 256, 512, 1024, 4096, 16384, 65536, 100_000])
def test_numbers_that_moved_or_changed_signs_change_it(checksum: Checksum, apart: int) -> None:
    numbers = torch.randn(300_000)
    size = numbers.numel() * 4
    before = checksum((numbers.data_ptr(), size))
    for first in (0, 5, 1000, 77_777):
        pair = torch.tensor([first, first + apart])
        were = numbers[pair]
        for other in (were.flip(0), -were, torch.stack((-were[0], were[1]))):
            numbers[pair] = other
            assert checksum((numbers.data_ptr(), size)) != before, first
            numbers[pair] = were
    numbers.zero_()
    empty = checksum((numbers.data_ptr(), size))
    numbers[apart] = -0.0
    assert checksum((numbers.data_ptr(), size)) != empty != before
    numbers.fill_(float("nan"))
    assert checksum((numbers.data_ptr(), size)) == checksum((numbers.data_ptr(), size))


def test_it_depends_neither_on_threads_nor_on_where_memory_lies(checksum: Checksum, threads: None) -> None:
    block = torch.randint(256, (3_000_017,), dtype=torch.uint8)
    moved = torch.empty(3_000_100, dtype=torch.uint8)
    pool = PoolSource(find_toolchain(), Settings())
    found = set()
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        found.add(checksum((block.data_ptr(), block.numel())))
        pool.share()  # the pool of threads is there from now on
        for offset in (0, 1, 7, 33):
            moved[offset : offset + block.numel()] = block
            found.add(checksum((moved.data_ptr() + offset, block.numel())))
    assert len(found) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_checked_call_sees_the_smallest_change(offered: None, dtype: torch.dtype) -> None:
    seen: list[torch.Tensor] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor * 2

    call = CheckedCall(double)
    weight = torch.nn.Parameter(torch.randn(24, 17, 3, 3).to(dtype), requires_grad=False)
    weight.data[3, 5] = 1e4
    made = call(weight)
    assert call(weight) is made and len(seen) == 1
    # a change that rounds away in a sum over its neighbours, and leaves no trace
    weight.data[3, 5, 1, 1].view(-1)[0] = float(torch.nextafter(torch.tensor(1e4), torch.tensor(2e4)))
    weight.data[3, 6, 0, 0] += 1e-2
    assert call(weight) is not made and torch.equal(call(weight), weight * 2) and len(seen) == 2
    weight.data = weight.data.clone()
    assert torch.equal(call(weight), weight * 2) and len(seen) == 3


def test_without_one_numbers_of_16_bits_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_OFFERED", [])
    for dtype, times in ((torch.float32, 1), (torch.bfloat16, 3)):
        seen: list[torch.Tensor] = []
        call = CheckedCall(lambda tensor, seen=seen: seen.append(tensor))
        weight = torch.nn.Parameter(torch.randn(8, 64).to(dtype), requires_grad=False)
        for _ in range(3):
            call(weight)
        assert len(seen) == times


def test_products_are_used_until_the_checksum_is_built(
    checksum: Checksum, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Checksum | None] = [None]
    monkeypatch.setattr(offers, "_OFFERED", [lambda wait: found[0]])
    seen: list[torch.Tensor] = []
    call = CheckedCall(seen.append)
    weight = torch.nn.Parameter(torch.randn(8, 64), requires_grad=False)
    call(weight)
    asked: list[int] = []
    found[0] = lambda *regions: asked.append(regions[0][1]) or checksum(*regions)
    call(weight)
    call(weight)
    assert len(seen) == 1 and asked == [2048, 2048]
    weight.data[0, 0] += 1
    call(weight)
    assert len(seen) == 2


@pytest.mark.parametrize("team", [1, 2, 3, 8])
def test_regions_are_shared_evenly_and_each_counts(checksum: Checksum, team: int, threads: None) -> None:
    sizes = (0, 1, 70_000, 64 << 10, 3 << 20, 5, 300_001, 0, 64)
    memory = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    regions = [(m.data_ptr(), m.numel()) for m in memory]
    torch.set_num_threads(1)
    alone = checksum(*regions)
    torch.set_num_threads(team)
    assert checksum(*regions) == alone
    for block in memory:
        for position in {0, len(block) // 2, len(block) - 1} if len(block) else ():
            block[position] ^= 1
            assert checksum(*regions) != alone, (len(block), position)
            block[position] ^= 1
    assert checksum(*regions) == alone
    assert checksum(*regions[2:], *regions[:2]) != alone and checksum(*regions[:-1]) != alone


def test_checked_calls_see_a_change_of_any_parameter(offered: None, checksum: Checksum) -> None:
    seen: list[int] = []

    def scaled(tensor: torch.Tensor, factor: int) -> torch.Tensor:
        seen.append(factor)
        return tensor * factor

    calls, plain = CheckedCalls(scaled), ((2,), (3,), (4,))
    weights = [torch.nn.Parameter(torch.randn(k + 3, 5), requires_grad=False) for k in range(3)]

    def right() -> bool:
        made = calls(tuple(weights), plain)
        again = calls(tuple(weights), plain)
        assert all(map(lambda one, two: one is two, made, again))
        return all(torch.equal(m, w * k) for m, w, (k,) in zip(made, weights, plain, strict=True))

    assert right() and seen == [2, 3, 4]
    weights[1].data[0, 0] += 1  # leaves no trace
    assert right() and seen == [2, 3, 4, 3]
    weights[2].data = torch.randn(5, 5)
    assert right() and seen == [2, 3, 4, 3, 4]
    weights[0] = torch.nn.Parameter(torch.randn(3, 5), requires_grad=False)
    assert right() and seen == [2, 3, 4, 3, 4, 2]
    weights.clear()
    assert not calls._known  # nothing is held of parameters that are gone


def test_checked_calls_without_a_checksum_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "_OFFERED", [])
    calls, plain = CheckedCalls(lambda tensor: tensor + 1), ((), ())
    weights = tuple(torch.nn.Parameter(torch.randn(4, 64), requires_grad=False) for _ in range(2))
    for _ in range(3):
        weights[1].data[2, 2] += 1
        assert all(map(torch.equal, calls(weights, plain), [w + 1 for w in weights]))
