"""Sums through symmetric memory: which are chosen, and that they equal eager mode, by the operators' plain
forms in a group that does its work only when it is waited for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from requirements import DISTRIBUTED, has_distributed

if not has_distributed():
    pytest.skip(DISTRIBUTED, allow_module_level=True)

import delayed_group
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports
from polyfuse.torch_compat import groups, symmetric

functional = torch.ops._c10d_functional
wait = functional.wait_tensor
RANKS = delayed_group.RANKS
X, W = torch.randn(6, 8), torch.randn(8, 16)


@pytest.fixture(scope="module")
def group() -> Iterator[delayed_group.DelayedGroup]:
    found = delayed_group.start()
    yield found
    delayed_group.stop()


@pytest.fixture
def chosen(group: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """Compile a function with symmetric memory in its group, compare it with eager mode, and say which
    rewrites applied."""
    from polyfuse.frontend.rewrites import collectives as rewrites

    monkeypatch.setattr(rewrites, "symmetric_groups", lambda how: ("0",) if how != "off" else ())
    monkeypatch.setattr(symmetric, "is_supported", lambda value, name: name == "0" and value.dim() > 0)

    def run(function: Callable[..., Any], *args: torch.Tensor, **options: Any) -> dict[str, int]:
        torch._dynamo.reset()
        given = {"backends": ["interpreter"], "strict": True, "graph_cache": False}
        given |= options
        expected = function(*(x.clone() for x in args))
        compiled = torch.compile(function, backend="polyfuse", options=given)
        torch.testing.assert_close(compiled(*args), expected)
        rewrites = last_reports()[-1].rewrites
        return {name: count for name, count in rewrites if name.startswith("symmetric")}

    return run


def gather(x: torch.Tensor) -> torch.Tensor:
    return wait(functional.all_gather_into_tensor(x, RANKS, "0"))


def total(x: torch.Tensor) -> torch.Tensor:
    return wait(functional.all_reduce(x, "sum", "0"))


class _Total(torch.autograd.Function):
    """The sum over ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return total(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return total(gradient.contiguous())


def test_short_sums(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return total(x @ w).relu() + 1

    assert chosen(f, X, W) == {"symmetric-sums": 1}
    monkeypatch.setattr(symmetric, "LARGEST_SUM", 6 * 16 * 4 - 1)
    monkeypatch.setattr(symmetric, "LARGEST_EXCHANGE", 0)
    assert chosen(f, X, W) == {}


def test_it_can_be_turned_off_and_takes_no_other_collective(chosen: Any) -> None:
    function = lambda x, w: total(gather(x) @ w)  # noqa: E731
    assert chosen(function, X, W) == {"symmetric-sums": 1}
    assert chosen(function, X, W, symmetric_memory="off") == {}


@dataclass
class Exchanges:
    """What a program did: slot and `first` of each exchange, and of each operand that was made in its slot.

    What was read too late, or written by somebody else, shows: an exchange fills what the one before used
    with NaN.
    """

    seen: list[tuple[int, bool]] = field(default_factory=list)
    operands: list[tuple[int, bool]] = field(default_factory=list)
    _slots: dict[tuple[int, Any], list[torch.Tensor]] = field(default_factory=dict)
    _last: tuple[torch.Tensor, torch.Tensor] | None = None

    def exchange(self, x: torch.Tensor, slot: int, first: bool, name: str) -> torch.Tensor:
        self.seen.append((slot, first))
        _, other = self._parts(slot, x.shape)
        if self._last is not None:
            torch.testing.assert_close(self._last[0], self._last[1])
            self._last[0].fill_(torch.nan)
            self._parts(1 - slot, self._last[0].shape)[0].fill_(torch.nan)
        other.copy_(x)
        self._last = other, x.clone()
        return other

    def operand(
        self, size: list[int], dtype: torch.dtype, device: Any, slot: int, first: bool, name: str
    ) -> torch.Tensor:
        self.operands.append((slot, first))
        return self._parts(slot, torch.Size(size))[0]

    def _parts(self, slot: int, size: torch.Size) -> list[torch.Tensor]:
        memory = self._slots.setdefault((slot, size.numel()), [torch.empty(size.numel()) for _ in range(2)])
        return [part.view(size) for part in memory]


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchanges]:
    found = Exchanges()
    library = torch.library.Library("polyfuse_symmetric", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        library.impl("exchange", found.exchange, "CPU", allow_override=True)
        library.impl("operand", found.operand, "CompositeExplicitAutograd", allow_override=True)
    yield found
    library._destroy()


def test_sums_are_added_where_they_are_read(chosen: Any, exchanges: Exchanges) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = total(x @ w)
        z = y + total((y * 2) @ w.t() @ w).relu()
        return total(z.sin()) + y

    for backends in (["interpreter"], ["cpp"]):
        exchanges.seen.clear()
        exchanges.operands.clear()
        assert chosen(f, X, W * 0.1, backends=backends) == {"symmetric-sums": 3}
        assert exchanges.seen == [(0, False), (1, False), (0, False)]
        assert exchanges.operands == [(0, True), (1, False)]  # what a matmul makes needs no copy


def test_operands_that_others_read_are_copied(chosen: Any, exchanges: Exchanges) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        first = total(y.clone())
        later = x.cos() @ w
        z = total(first @ w.t())
        # one was made before the exchange before it, and one is read besides
        return z @ w + total(later) + y.sin()

    assert chosen(f, X, W, bucket_collectives=0) == {"symmetric-sums": 3}
    assert exchanges.seen == [(0, True), (1, False), (0, False)]
    assert exchanges.operands == [(1, False)]


def test_sums_are_fused_with_what_reads_them(chosen: Any, exchanges: Exchanges) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = y + total(x)
        return torch.nn.functional.rms_norm(z, (8,)) * z

    assert chosen(f, X, X.flip(0), backends=["cpp"]) == {"symmetric-sums": 1}
    assert last_reports()[-1].kernels == 1


def test_gradients_of_long_sums(chosen: Any, exchanges: Exchanges) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        loss = functional_sum(functional_sum(x @ w).relu() @ w.t()).square().sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, (x, w))])

    def functional_sum(x: torch.Tensor) -> torch.Tensor:
        return _Total.apply(x)

    chosen(f, X, W)
    # forward and backward each begin anew
    assert [slot for slot, _ in exchanges.seen] == [0, 1, 0, 1]
    assert exchanges.operands == [(0, True), (1, False)]  # none in the backward is a matmul's


def test_other_sums_are_messages(chosen: Any, exchanges: Exchanges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "LARGEST_SUM", 6 * 8 * 4)
    monkeypatch.setattr(symmetric, "LARGEST_EXCHANGE", 6 * 8 * 4)
    assert chosen(lambda x, w: total(x @ w), X, W) == {}
    assert chosen(lambda x, w: total(x), X, W) == {"symmetric-sums": 1}
    assert len(exchanges.seen) == 1
    monkeypatch.setattr(symmetric, "EXCHANGING", 3)
    assert chosen(lambda x, w: total(x), X, W) == {"symmetric-sums": 1}  # by one operator
    monkeypatch.setattr(symmetric, "LARGEST_SUM", 0)
    assert chosen(lambda x, w: total(x), X, W) == {}
    assert len(exchanges.seen) == 1


def test_graphs_with_branches_do_not_exchange(chosen: Any, exchanges: Exchanges) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = total(x @ w)
        return torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,)) + y

    assert chosen(f, X, W) == {"symmetric-sums": 1}
    assert not exchanges.seen


def test_what_is_supported(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half = torch.empty(4, 8, dtype=torch.bfloat16, device="meta")
    monkeypatch.setattr(symmetric, "symmetric_groups", lambda: ("0",))
    assert not symmetric.is_supported(half, "0")  # on no GPU

    class OnGpu:
        device, dtype, shape = torch.device("cuda", 0), torch.bfloat16, (4, 8)

        def numel(self) -> int:
            return 32

        def element_size(self) -> int:
            return 2

    value: Any = OnGpu()
    assert symmetric.is_supported(value, "0")
    assert not symmetric.is_supported(value, "1")
    value.shape = (4, 7)
    assert not symmetric.is_supported(value, "0")
    value.shape, value.dtype = (4, 8), torch.float32
    assert not symmetric.is_supported(value, "0")


def test_groups_for_which_symmetric_memory_was_enabled(group: Any) -> None:
    from torch.distributed import _symmetric_memory

    assert groups.symmetric_groups() == ()
    with _symmetric_memory._test_mode():
        assert groups.symmetric_groups() == ("0",)


@pytest.mark.parametrize(
    "ranks, library, stored, per_host, expected",
    [
        ((0, 1), "nccl", True, 2, ["0"]),
        ((2, 3), "nccl", True, 4, ["0"]),
        ((0, 1, 2, 3), "nccl", True, 2, []),
        ((0, 2), "nccl", True, 2, []),
        ((0, 1), "nccl", True, 0, []),
        ((0,), "nccl", True, 1, []),
        ((0, 1), "gloo", True, 2, []),
        ((0, 1), "nccl", False, 2, []),
    ],
)
def test_an_option_enables_groups_of_one_host(
    monkeypatch: pytest.MonkeyPatch,
    ranks: Any,
    library: str,
    stored: bool,
    per_host: int,
    expected: list[str],
) -> None:
    from torch.distributed import _symmetric_memory

    store: Any = object() if stored else None
    group = groups.Group("0", ranks, store, None)
    enabled: list[str] = []
    monkeypatch.setattr(groups, "group_names", lambda: ("0",))
    monkeypatch.setattr(groups, "group_of", lambda name: group)
    monkeypatch.setattr(groups.Group, "library", lambda self, kind: library)
    monkeypatch.setattr(groups, "processes_of_host", lambda: per_host)
    monkeypatch.setattr(_symmetric_memory, "enable_symm_mem_for_group", enabled.append)
    monkeypatch.setattr(_symmetric_memory, "is_symm_mem_enabled_for_group", enabled.__contains__)
    assert groups.symmetric_groups() == groups.symmetric_groups("off") == ()
    assert list(groups.symmetric_groups("host")) == expected == enabled
    assert groups.symmetric_groups("off") == ()


@pytest.mark.parametrize("ranks", (2, 4))
def test_keys_know_the_size_of_groups(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    from polyfuse.compiler.graph_cache import lookup
    from polyfuse.compiler.session import session_for

    group = groups.Group("0", tuple(range(ranks)), None, None)
    monkeypatch.setattr(lookup, "symmetric_groups", lambda how: ("0",))
    monkeypatch.setattr(lookup, "group_of", lambda name: group if name == "0" else None)
    lines = lookup.environment_of(session_for(Settings(backends=("interpreter",))))["device"]
    assert f"symmetric memory of {ranks} in group 0" in lines


class Mapped:
    """Memory of two processes, as torch's symmetric memory maps it."""

    rank = 0

    def __init__(self) -> None:
        self.log: list[str] = []
        self.memory: list[torch.Tensor] = []

    def empty(self, size: int, **options: Any) -> torch.Tensor:
        self.memory += [torch.zeros(size, **options), torch.zeros(size, **options)]
        return self.memory[-2]

    def rendezvous(self, own: torch.Tensor, group: str) -> Mapped:
        return self

    def get_buffer(self, rank: int, size: Any, dtype: torch.dtype) -> torch.Tensor:
        return self.memory[-1]

    def barrier(self, channel: int) -> None:
        self.log.append("barrier")


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> Mapped:
    from torch.distributed import _symmetric_memory as memory

    found = Mapped()
    monkeypatch.setattr(memory, "empty", found.empty)
    monkeypatch.setattr(memory, "rendezvous", found.rendezvous)
    monkeypatch.setattr(symmetric, "_slots", {})
    return found


def test_operands_lie_in_slots(mapped: Mapped) -> None:
    cpu = torch.device("cpu")
    x = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    with torch.inference_mode():
        first = symmetric._exchanged_by_mapping(x, 0, True, "0")
    second = symmetric._exchanged_by_mapping(x + 1, 1, False, "0")
    own, other = mapped.memory
    assert mapped.log == ["barrier"] * 3 and own.numel() == 2 << 20
    halves = own.view(torch.bfloat16).chunk(2)
    assert [half[:6].tolist() for half in halves] == [list(range(6)), list(range(1, 7))]
    assert first.data_ptr() == other.data_ptr() and second.data_ptr() == other.data_ptr() + (1 << 20)
    # memory is the same each time, and may be written to outside of inference mode
    assert symmetric._exchanged_by_mapping(x, 0, False, "0") is first
    slots = symmetric._slots_for("0", cpu, 12)
    symmetric._exchanged_by_mapping(slots.at(0, x.shape, x.dtype)[0].fill_(7), 0, False, "0")
    assert halves[0][:6].tolist() == [7] * 6


def test_longer_messages_have_slots_of_their_own(mapped: Mapped) -> None:
    slots = [symmetric._slots_for("0", torch.device("cpu"), n) for n in (1, 1 << 20, (1 << 20) + 1, 3 << 20)]
    assert [found.own.numel() >> 20 for found in slots] == [2, 2, 4, 8]
    assert slots[0] is slots[1]
