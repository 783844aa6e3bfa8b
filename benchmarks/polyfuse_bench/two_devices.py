"""Several devices of one host: tensor-parallel Llama blocks, FSDP2 training and decoding, by eager mode,
Inductor and Polyfuse, in rounds that alternate.

    PYTHONPATH=benchmarks torchrun --standalone --nproc-per-node 2 -m polyfuse_bench.two_devices --out FILE

Sides may be followed by `whole`, as in `--sides "inductor,polyfuse whole,polyfuse"`: without matmuls in
chunks beside collectives (`chunk_collectives`), for which `--costs` measures collectives first; or by
`symmetric`: through torch's symmetric memory.

Each rank runs this file. What is decided (to go on, to stop) is decided by all ranks together, and a time is
that of the slowest rank. Without a GPU, ranks compute on the CPU over Gloo, with `--tiny` sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

SIDES = ("eager", "inductor", "polyfuse")
CASES = (
    "blocks forward",
    "blocks training",
    "sequence forward",
    "sequence training",
    "decode 1",
    "decode 32",
    "fsdp2 training",
)


@dataclass(frozen=True)
class Sizes:
    """Of the models: width, heads, heads of keys, inner width, length, blocks, width and blocks of the model
    that is sharded, its vocabulary, and positions that a decoder has seen.
    """

    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    inner: int = 14336
    length: int = 2048
    blocks: int = 2
    sharded_width: int = 2048
    sharded_blocks: int = 16
    vocabulary: int = 32000
    seen: int = 2048


_SYMMETRIC = " symmetric"
_OBSERVED = 4
"""Calls that are profiled."""

TINY = Sizes(64, 8, 4, 96, 16, 1, 32, 2, 64, 16)


@dataclass
class Row:
    """What was measured of one case by one side.

    Attributes:
        milliseconds: of each round, of the slowest rank.
        compile_seconds: of the first call.
        peak_bytes: of the device's memory in a call; None on the CPU.
        communication_ms, exposed_ms: device time of collectives in a call, and the part of it in which
            nothing else ran, without the time that a rank waits for a later one; None on the CPU.
        error: why there is no time.
    """

    case: str
    side: str
    milliseconds: list[float] = field(default_factory=list)
    compile_seconds: float = 0.0
    peak_bytes: int | None = None
    communication_ms: float | None = None
    exposed_ms: float | None = None
    error: str = ""


class _Copied(torch.autograd.Function):
    """The identity, whose gradient is summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return collectives.all_reduce(gradient.contiguous(), "sum", dist.group.WORLD)


class _Summed(torch.autograd.Function):
    """The sum over ranks, whose gradient is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return collectives.all_reduce(x.contiguous(), "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.view_as(gradient)


class _Gathered(torch.autograd.Function):
    """Rows of all ranks, (1, length of a part, width) to (1, length, width); its gradient is summed and
    scattered.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return collectives.all_gather_tensor(x[0].contiguous(), 0, dist.group.WORLD)[None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return collectives.reduce_scatter_tensor(gradient[0].contiguous(), "sum", 0, dist.group.WORLD)[None]


class _Scattered(torch.autograd.Function):
    """Rows that are summed over ranks, of which each keeps its part; its gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return collectives.reduce_scatter_tensor(x[0].contiguous(), "sum", 0, dist.group.WORLD)[None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return collectives.all_gather_tensor(gradient[0].contiguous(), 0, dist.group.WORLD)[None]


class Block(nn.Module):
    """One rank's share of a Llama block. Sizes: (rows, length, width) to the same; with `sequence`, a part of
    the length.
    """

    def __init__(
        self, width: int, heads: int, kv_heads: int, inner: int, parts: int, sequence: bool = False
    ) -> None:
        super().__init__()
        self.sequence = sequence
        self.size, self.heads, self.kv_heads = width // heads, heads // parts, kv_heads // parts
        self.parts = parts
        linear = lambda a, b: nn.Linear(a, b, bias=False)  # noqa: E731
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = linear(width, (self.heads + 2 * self.kv_heads) * self.size)
        self.out = linear(self.heads * self.size, width)
        self.gate_up, self.down = linear(width, 2 * inner // parts), linear(inner // parts, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Tensor | None = None) -> Tensor:
        y = self._copied(self.norm(x))
        sizes = [n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (t.unflatten(-1, (-1, self.size)).transpose(1, 2) for t in self.qkv(y).split(sizes, -1))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        repeated = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeated, 1), v.repeat_interleave(repeated, 1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self._summed(self.out(attended.transpose(1, 2).flatten(-2)))
        gate, up = self.gate_up(self._copied(self.norm2(x))).chunk(2, -1)
        return x + self._summed(self.down(F.silu(gate) * up))

    def _copied(self, x: Tensor) -> Tensor:
        if self.sequence:
            return _Gathered.apply(x)
        return _Copied.apply(x) if self.parts > 1 and torch.is_grad_enabled() else x

    def _summed(self, x: Tensor) -> Tensor:
        if self.sequence:
            return _Scattered.apply(x)
        return _Summed.apply(x) if self.parts > 1 else x


class Blocks(nn.Module):
    """Blocks in a row. `past`: (blocks, 2, rows, heads of keys, length, size) or None."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: Tensor | None = None) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, None if past is None else past[number])
        return x


class Language(nn.Module):
    """A whole model: tokens to their loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.sharded_width
        heads = max(1, width // 64)
        self.tokens = nn.Embedding(sizes.vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, heads, 4 * width, 1) for _ in range(sizes.sharded_blocks)
        )
        self.head = nn.Linear(width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.cross_entropy(self.head(x[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _angles(begin: int, length: int, size: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.arange(begin, begin + length, device=device)[:, None] * torch.cat((rates, rates))
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _compiled(function: Any, side: str, graphs: bool) -> Any:
    if side == "eager":
        return function
    given: dict[str, Any] = {"backend": side.partition(" ")[0]}
    options = _options(side)
    if graphs and options:
        given["options"] = options | {"device_graphs": True}
    elif graphs:
        given["mode"] = "reduce-overhead"
    elif options:
        given["options"] = options
    return torch.compile(function, **given)


def _options(side: str) -> dict[str, Any]:
    if not side.startswith("polyfuse"):
        return {}
    whole = {"chunk_collectives": "off"} if side.endswith(" whole") else {}
    # by default wherever a group has it, and here one side alone shall use it
    without = {} if side.endswith(_SYMMETRIC) else {"symmetric_memory": "off"}
    return whole | without


def enable_symmetric(sides: Sequence[str]) -> None:
    """Give the world symmetric memory, without multicast, if one of the sides is for it."""
    if any(side.endswith(_SYMMETRIC) for side in sides):
        os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        from torch.distributed import _symmetric_memory

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            _symmetric_memory.enable_symm_mem_for_group(dist.group.WORLD.group_name)


def _graphed(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Eager mode's launches as one CUDA graph, as decoders use it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay(captured: Callable[[], Tensor] = call) -> Tensor:
        # the graph reads the tensors that `captured` holds
        graph.replay()
        return result

    return replay


def prepare(case: str, side: str, sizes: Sizes, device: str, dtype: torch.dtype) -> Callable[[], Tensor]:
    """One case by one side as a call without arguments; it returns what sides are compared by."""
    torch.manual_seed(3)
    world, on_gpu = dist.get_world_size(), device == "cuda"
    if case == "fsdp2 training":
        return _sharded(side, sizes, device, dtype)
    decoding = case.startswith("decode")
    rows = int(case.split()[1]) if decoding else 1
    length, sequence = 1 if decoding else sizes.length, case.startswith("sequence")
    with torch.device(device):
        made = Blocks(
            Block(sizes.width, sizes.heads, sizes.kv_heads, sizes.inner, world, sequence)
            for _ in range(sizes.blocks)
        ).to(dtype)
        x = torch.randn(rows, length // world if sequence else length, sizes.width, dtype=dtype) * 0.1
    size = sizes.width // sizes.heads
    cos, sin = _angles(sizes.seen if decoding else 0, length, size, device, dtype)
    run = _compiled(made, side, decoding and on_gpu)
    if case.endswith("training"):

        def train() -> Tensor:
            given = x.detach().requires_grad_()
            run(given, cos, sin).float().square().mean().backward()
            made.zero_grad(set_to_none=True)
            assert given.grad is not None
            return given.grad

        return train
    past = None
    if decoding:
        shape = (sizes.blocks, 2, rows, sizes.kv_heads // world, sizes.seen, size)
        past = torch.randn(shape, device=device, dtype=dtype) * 0.1

    def forward() -> Tensor:
        with torch.no_grad():
            result: Tensor = run(x, cos, sin, past)
            return result

    return _graphed(forward) if decoding and on_gpu and side == "eager" else forward


def _sharded(side: str, sizes: Sizes, device: str, dtype: torch.dtype) -> Callable[[], Tensor]:
    with torch.device(device):
        model = Language(sizes)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
        if side != "eager":
            block.compile(backend=side.partition(" ")[0], options=_options(side) or None)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(5 + dist.get_rank())
    tokens = torch.randint(sizes.vocabulary, (1, sizes.length), generator=generator).to(device)
    head = sizes.sharded_width // max(1, sizes.sharded_width // 64)
    cos, sin = _angles(0, sizes.length, head, device, dtype)

    def step() -> Tensor:
        loss: Tensor = model(tokens, cos, sin)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()[None]

    return step


def _slowest(value: float, device: str) -> float:
    """The largest of all ranks' numbers, known to all of them."""
    found = torch.tensor([value], device=device, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _timed(call: Callable[[], Tensor], count: int, device: str) -> float:
    """Milliseconds of a call."""
    dist.barrier()
    _wait(device)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    _wait(device)
    return _slowest((time.perf_counter() - begin) * 1e3 / count, device)


def exposed(events: Iterable[tuple[str, float, float]]) -> list[tuple[float, float]]:
    """How long each collective ran, and for how long of that no other kernel did, from (name, begin, end)."""
    found = sorted(events, key=lambda event: event[1])
    talking = [(begin, end) for name, begin, end in found if "nccl" in name.lower()]
    working = _merged([(begin, end) for name, begin, end in found if "nccl" not in name.lower()])
    hidden = [sum(max(0.0, min(e, f) - max(b, c)) for c, f in working) for b, e in talking]
    return [(e - b, e - b - h) for (b, e), h in zip(talking, hidden, strict=True)]


def least_of_ranks(ranks: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Time of all collectives, and what of it is exposed, by the rank that came to each one last.

    A collective's kernel also waits for ranks that are late, which says nothing of the message. Where ranks
    saw different numbers of collectives, it is the least of their sums.
    """
    if len({len(rank) for rank in ranks}) == 1:
        ranks = [[(min(t for t, _ in one), min(o for _, o in one)) for one in zip(*ranks, strict=True)]]
    total = min(sum(t for t, _ in rank) for rank in ranks)
    return total, min(sum(o for _, o in rank) for rank in ranks)


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in spans:
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _observe(row: Row, call: Callable[[], Tensor]) -> None:
    """Peak memory of a call on a GPU, and the mean of its exposed communication."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    row.peak_bytes = torch.cuda.max_memory_allocated()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(_OBSERVED):
            call()
        torch.cuda.synchronize()
    events = [
        (event.name, float(event.time_range.start), float(event.time_range.end))
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    seen_by: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen_by, exposed(events))
    total, open_ = least_of_ranks(seen_by)
    row.communication_ms, row.exposed_ms = total / _OBSERVED / 1e3, open_ / _OBSERVED / 1e3


def measure(
    case: str, sides: Sequence[str], sizes: Sizes, device: str, dtype: torch.dtype, rounds: int
) -> list[Row]:
    """All sides of one case. A side that fails on one rank is left out on all."""
    # sides share the code of the models, each with graphs of its own, which all stay
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = 64
    rows, calls, first = [Row(case, side) for side in sides], {}, None
    for row in rows:
        begin = time.perf_counter()
        try:
            call = prepare(case, row.side, sizes, device, dtype)
            result = call().float().clone()
            for _ in range(3):
                call()
        except Exception as error:
            row.error = f"{type(error).__name__}: {error}"[:300]
        row.compile_seconds = _slowest(time.perf_counter() - begin, device)
        if _slowest(float(bool(row.error)), device):
            row.error = row.error or "another rank failed"
            continue
        first = result if first is None else first
        distance = float((result - first).norm() / first.norm())
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
        if _slowest(distance, device) > tolerance:
            row.error = f"it is {distance:.2g} of the norm away from {sides[0]}"
            continue
        calls[row.side] = call
    for number in range(rounds):
        for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
            if row.side in calls:
                once = row.milliseconds[-1] if row.milliseconds else 10.0
                count = max(1, min(50, int(_slowest(200 / max(once, 0.1), device))))
                row.milliseconds.append(_timed(calls[row.side], 1 if device == "cpu" else count, device))
    if device == "cuda":
        for row in rows:
            if row.side in calls:
                _observe(row, calls[row.side])
    return rows


def _text(rows: Sequence[Row]) -> str:
    medians = {row.side: statistics.median(row.milliseconds) for row in rows if row.milliseconds}
    parts = [
        f"{row.side} {medians[row.side]:.3f} ms" if row.side in medians else f"{row.side}: {row.error}"
        for row in rows
    ]
    return f"{rows[0].case}: {', '.join(parts)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases that fit into the limit, and write what was measured after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=140, help="seconds after which no case begins")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--costs", action="store_true", help="measure what collectives cost, before all else")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that everything works")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    enable_symmetric(given.sides.split(","))
    if given.costs:
        from polyfuse.distributed.measure import measure_collectives

        measure_collectives(largest=64 << 20 if device == "cuda" else 1 << 20)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows: list[Row] = []
    longest = 0.0
    for case in given.cases.split(","):
        started = time.monotonic()
        if _slowest(started - begin + longest, device) > given.limit:
            break
        found = measure(
            case, given.sides.split(","), TINY if given.tiny else Sizes(), device, dtype, given.rounds
        )
        longest = max(longest, time.monotonic() - started)
        rows += found
        if dist.get_rank() == 0:
            print(_text(found), flush=True)
            if given.out is not None:
                name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
                about = {"device": name, "ranks": dist.get_world_size(), "torch": torch.__version__}
                text = json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1)
                given.out.write_text(text, encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
