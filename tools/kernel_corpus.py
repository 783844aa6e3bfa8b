"""Writes tests/corpus: kernels of all kinds, as the scheduler makes them of real programs.

Programs are compiled, forward and backward, and of all their kernels as few are stored as hold everything
that occurs in any of them: statements, operations, types, reductions, shapes of loops. Every backend replays
them in its tests. Run it again when the scheduler makes kernels of a new kind.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from polyfuse_bench.models import MAIN_FAMILIES, Size, family, flatten_outputs, prepare
from torch import Tensor

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Compute, Load, Reduce, Scan, Store
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.text.print import text as text_of

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "corpus"
LONGEST = 6000
"""Characters of text; what is longer holds nothing that shorter kernels do not."""


def main() -> int:
    """Write the corpus; what was there before is replaced."""
    kernels = {text: features(kernel) for kernel, text in collected()}
    chosen = cover(kernels)
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.ir"):
        path.unlink()
    for number, text in enumerate(chosen):
        (FOLDER / f"{number:03d}.ir").write_text(text, encoding="utf-8")
    print(f"{len(chosen)} of {len(kernels)} kernels hold all {len(set().union(*kernels.values()))} features")
    return 0


def features(kernel: Kernel) -> frozenset[str]:
    """What occurs in a kernel."""
    types = {a.name: a.dtype for a in kernel.args}
    found = {f"axes {len(kernel.axes)}+{len(kernel.raxes)}", f"sections {min(len(kernel.sections), 6)}"}
    found |= {f"argument {a.kind} {a.dtype}" for a in kernel.args}
    found |= {f"local {min(len(kernel.locals), 3)}", f"aliases {min(len(kernel.aliases), 2)}"}
    for section in kernel.sections:
        kind = "loop" if section.looped else "point"
        for statement in section.body:
            found.add(f"{kind} {type(statement).__name__}")
            match statement:
                case Compute(op=op, dtype=dtype):
                    found.add(f"op {op} {dtype}")
                case Reduce(kind=name) | Scan(kind=name):
                    found.add(f"{type(statement).__name__} {name} {statement.dtype}")
                case Store(mode=mode):
                    found.add(f"store {mode} {types.get(statement.buffer)}")
                case Load():
                    found.add(f"load {'masked' if statement.mask else ''}")
    return frozenset(found)


def cover(kernels: dict[str, frozenset[str]]) -> list[str]:
    """The fewest texts, greedily, that hold all features; short ones first where several add as much."""
    left = set().union(*kernels.values())
    chosen = []
    while left:
        best = max(kernels, key=lambda text: (len(kernels[text] & left), -len(text), text))
        chosen.append(best)
        left -= kernels[best]
    return sorted(chosen, key=len)


def collected() -> Iterator[tuple[Kernel, str]]:
    """Every kernel of every program, under a neutral name."""
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(programs()):
            torch._dynamo.reset()
            for dynamic in (False, True) if number % 3 == 0 else (False,):
                options = {"backends": ["interpreter"], "dump": f"{folder}/{number}{dynamic}", "cache": False}
                options |= {"gemm": "generated"} if number % 2 == 0 else {}
                try:
                    run(options, dynamic)
                except Exception as error:
                    print(f"program {number} is left out: {type(error).__name__}: {str(error)[:80]}")
        for path in sorted(Path(folder).rglob("kernel*.ir")):
            text = re.sub(r"(?m)^(kernel) \S+", r"\1 k", path.read_text(encoding="utf-8"), count=1)
            kernel = parse_kernel(text)
            text = text_of(kernel)
            if len(text) <= LONGEST:
                yield kernel, text


def programs() -> Iterator[Callable[[dict[str, object], bool], None]]:
    """What is compiled: models, and functions that reach what no model does."""
    for name in MAIN_FAMILIES:
        for dtype in (torch.float32, torch.bfloat16):
            yield _model(name, dtype)
    for function, inputs in FUNCTIONS:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            yield _function(function, [x.to(dtype) if x.is_floating_point() else x for x in inputs()])


def _model(name: str, dtype: torch.dtype) -> Callable[[dict[str, object], bool], None]:
    def run(options: dict[str, object], dynamic: bool) -> None:
        prepared = prepare(family(name), Size.TINY, batch=2, train=True, dtype=dtype)
        compiled = torch.compile(prepared.model, backend="polyfuse", options=options, dynamic=dynamic)
        leaves = flatten_outputs(compiled(**prepared.inputs))
        sum(x.float().sum() for x in leaves if x.requires_grad).backward()  # type: ignore[union-attr]

    return run


def _function(
    function: Callable[..., object], inputs: list[Tensor]
) -> Callable[[dict[str, object], bool], None]:
    def run(options: dict[str, object], dynamic: bool) -> None:
        leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
        out = torch.compile(function, backend="polyfuse", options=options, dynamic=dynamic)(*leaves)
        tensors = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, Tensor)]
        total = [x.float().sum() for x in tensors if x.requires_grad]
        if total:
            torch.stack(total).sum().backward()

    return run


def _integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x // 3 + y % 5, (x << 2) ^ y, x & ~y | 7, torch.where(x > y, x, y).sum(0), x.prod(1), x.argmax(1)


def _scatters(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    zeros = torch.zeros(x.shape[0], x.shape[1], dtype=x.dtype)
    added = zeros.scatter_add(1, index, x.sin())
    return added, zeros.index_put((index[:, 0],), x.cos(), accumulate=True), x.gather(1, index).exp()


def _scans(x: Tensor) -> tuple[Tensor, ...]:
    return x.cumsum(1), x.exp().cumsum(0), x.cummax(1).values, x.logcumsumexp(1), x.abs().cumprod(1)


def _rows(x: Tensor) -> tuple[Tensor, ...]:
    mean = x.mean(-1, keepdim=True)
    return F.layer_norm(x, x.shape[-1:]), x.softmax(-1), (x - mean) / x.std(-1, keepdim=True), x.amax(0)


def _shapes(x: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.cat([x.t(), x.t().relu()], 1), F.pad(x, (2, 3), value=1.5) * 2, x.flip(1) + x.roll(1, 0),
        x.unfold(1, 4, 3).sum(-1), x.tril() - 1, x[:, ::2].contiguous() + 1,
    )  # fmt: skip


def _elements(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.gelu(x) + x.erf(), x.sigmoid() * x.tanh(),
        (x.abs() + 1).log() / (x * x + 1).sqrt(), x.atan2(x + 2),
        F.softplus(x).floor(), x.clamp(-1, 1) ** 3, x.isnan() | (x > 0), x.sign().to(torch.int32),
        x.frac(),
        torch.special.i0(x), torch.lgamma(x.abs() + 1), x.fmod(0.7), x.to(torch.float64).sinh(),
        x.nan_to_num(),
    )  # fmt: skip


def _images(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        F.interpolate(x, size=(5, 7)), F.adaptive_avg_pool2d(x, 3), F.group_norm(x, 2), F.pixel_shuffle(x, 2),
    )  # fmt: skip


def _products(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    many = torch.bmm(x[None].expand(3, -1, -1), y.t()[None].expand(3, -1, -1))
    return F.relu(x @ y.t() + 1), many.sum(-1)


def _dropped(x: Tensor) -> tuple[Tensor, ...]:
    return F.dropout(x, 0.3).sum(1), torch.rand_like(x) + torch.randn_like(x)


def _long(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(), x.var(), x.argmin(), (x * 2).norm()


FUNCTIONS: list[tuple[Callable[..., object], Callable[[], list[Tensor]]]] = [
    (_integers, lambda: [torch.randint(-9, 9, (7, 11)), torch.randint(1, 9, (7, 11))]),
    (_integers, lambda: [torch.randint(0, 9, (7, 11), dtype=torch.int32) for _ in range(2)]),
    (_integers, lambda: [torch.randint(0, 9, (7, 11), dtype=torch.uint8) for _ in range(2)]),
    (_scatters, lambda: [torch.randn(6, 9), torch.randint(0, 6, (6, 9))]),
    (_scans, lambda: [torch.randn(5, 33)]),
    (_rows, lambda: [torch.randn(9, 65)]),
    (_rows, lambda: [torch.randn(2, 3, 4097)]),
    (_shapes, lambda: [torch.randn(12, 17)]),
    (_elements, lambda: [torch.randn(4, 35)]),
    (_images, lambda: [torch.randn(2, 4, 8, 10)]),
    (_products, lambda: [torch.randn(17, 33), torch.randn(9, 33)]),
    (_dropped, lambda: [torch.randn(6, 40)]),
    (_long, lambda: [torch.randn(300_000)]),
]


if __name__ == "__main__":
    sys.exit(main())
