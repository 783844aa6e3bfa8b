"""For each defect a program of a few lines that meets it, on inputs as users have them.

Where a defect shows on special values alone (NaN, negative zero, ties), these are among the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

Inputs = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Program:
    """A function to compile and what to call it with.

    Attributes:
        defect: the name of the defect that it meets.
        function: over tensors.
        inputs: of each call; made anew by each.
        options: for `torch.compile`, where those by default leave nothing to the defect.
        dynamic: whether sizes are symbols.
    """

    defect: str
    function: Callable[..., object]
    inputs: tuple[Inputs, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    dynamic: bool = False

    @property
    def name(self) -> str:
        """The name of its defect."""
        return self.defect


def normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Inputs:
    """Normal random numbers."""

    def make() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)

    return make


def uniform(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Inputs:
    """Random numbers between zero and one."""

    def make() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.rand(shape, generator=generator).to(dtype) for shape in shapes)

    return make


def integers(low: int, high: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Inputs:
    """Random integers."""

    def make() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randint(low, high, shape, generator=generator).to(dtype) for shape in shapes)

    return make


def with_values(inputs: Inputs, *numbers: float) -> Inputs:
    """The same inputs, with some elements of the first one replaced."""

    def make() -> tuple[Tensor, ...]:
        first, *others = inputs()
        flat = first.reshape(-1)
        for k, number in enumerate(numbers):
            flat[3 + 5 * k] = number
        return (flat.reshape(first.shape), *others)

    return make


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x * weight + bias


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight)


def _transposed_sum(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def _table(values: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(values - bias)


def _padded(x: Tensor) -> Tensor:
    return F.pad(x, (2, 3)) * 2


def _huber(x: Tensor, y: Tensor) -> Tensor:
    distance = (x - y).abs()
    return torch.where(distance < 1, distance * distance, distance + 2)


def _steps(x: Tensor, limit: Tensor) -> Tensor:
    return torch.where(x < limit, x, -limit)


def _clamped(x: Tensor) -> Tensor:
    return x.clamp(-1, 1) * 3


def _buckets(x: Tensor, width: Tensor) -> Tensor:
    return torch.div(x, width, rounding_mode="floor") + 1


def _wrapped(x: Tensor, width: Tensor) -> Tensor:
    return torch.remainder(x, width)


def _negated(x: Tensor) -> Tensor:
    return -torch.relu(x)


def _scaled(x: Tensor) -> Tensor:
    return x * 0.5


def _third(x: Tensor) -> Tensor:
    return x / 3


def _squares(x: Tensor) -> Tensor:
    return x * x + 1


def _shifted(x: Tensor, amount: Tensor) -> Tensor:
    return x << amount


def _swish(x: Tensor) -> Tensor:
    return x * torch.exp(-x)


def _residual(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return x * y + z


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    return x / y


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _image(x: Tensor) -> Tensor:
    return (x.float() - 127.5) / 255


def _mixed(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) - y


def _index_of(x: Tensor) -> Tensor:
    return (x * 7.3).to(torch.int64)


def _truth(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x.to(torch.bool), y, -y)


def _bytes(x: Tensor) -> Tensor:
    return (x * 3).to(torch.int8)


def _double(x: Tensor) -> Tensor:
    return x.sin() + x


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1)


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def _largest(x: Tensor) -> Tensor:
    return x.amax(-1)


def _index_of_largest(x: Tensor) -> Tensor:
    return x.argmax(-1)


def _running(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def _histogram(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(5).index_add(0, index, x)


def _residual_norm(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, F.layer_norm(total, total.shape[-1:]) + x


_ROWS = normal((7, 37))

PROGRAMS: tuple[Program, ...] = (
    Program("index-off-by-one", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("wrong-stride", _transposed_sum, (normal((7, 37), (37, 7)),)),
    Program("wrong-broadcast-axis", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("transposed-operand", _transposed_sum, (normal((12, 12), (12, 12)),)),
    Program("index-cut", _table, (normal((70_000,), (1,)),)),
    Program("stale-row", _softmax, (_ROWS,)),
    Program("tail-clamped", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("padding-read", _padded, (_ROWS,)),
    Program("store-off-by-one", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("store-outside", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("swapped-operands", _table, (normal((259,), (259,)),)),
    Program("swapped-branches", _huber, (normal((7, 37), (7, 37)),)),
    Program("equality", _steps, (integers(0, 5, (7, 37), (37,)),)),
    Program("nan-dropped", _clamped, (with_values(_ROWS, float("nan")),)),
    Program("floor-as-trunc", _buckets, (integers(-50, 50, (7, 37), (1,)),)),
    Program("remainder-sign", _wrapped, (integers(-50, 50, (7, 37), (1,)),)),
    Program("negative-zero-lost", _negated, (_ROWS,)),
    Program("infinity-clamped", _scaled, (with_values(_ROWS, float("inf"), float("-inf")),)),
    Program("denormals-flushed", _scaled, (with_values(_ROWS, 1e-39, -2e-40),), {"numerics": "eager"}),
    Program("integer-overflow", _squares, (integers(0, 1_000_000, (7, 37)),)),
    Program("shift-amount-cut", _shifted, (integers(0, 30, (7, 37), (7, 37)),)),
    Program("approximate-function", _swish, (_ROWS,)),
    Program("fused-multiply-add", _residual, (normal((7, 37), (7, 37), (7, 37)),), {"numerics": "eager"}),
    Program("reciprocal-division", _quotient, (normal((7, 37), (7, 37)),), {"numerics": "eager"}),
    Program("constant-cut", _gelu, (_ROWS,)),
    Program("unsigned-as-signed", _image, (integers(0, 256, (7, 37), dtype=torch.uint8),)),
    Program("rounding-mode", _third, (normal((7, 37), dtype=torch.bfloat16),)),
    Program(
        "rounding-left-out",
        _mixed,
        (normal((7, 37), (37,), dtype=torch.bfloat16),),
        {"numerics": "eager"},
    ),
    Program("integer-to-nearest", _index_of, (_ROWS,)),
    Program("truth-of-low-bit", _truth, (lambda: (*integers(0, 9, (7, 37))(), *_ROWS()),)),
    Program("narrowing-saturates", _bytes, (integers(0, 100, (7, 37)),)),
    Program("double-as-single", _double, (normal((7, 37), dtype=torch.float64),)),
    Program("reduction-tail-skipped", _mean, (_ROWS,)),
    Program("reduction-start", _mean, (_ROWS,)),
    Program("narrow-accumulator", _sum, (uniform((7, 1000)),)),
    Program("integer-sum-overflow", _sum, (integers(0, 1 << 30, (7, 37)),)),
    Program("reduction-drops-nan", _largest, (with_values(_ROWS, float("nan")),)),
    Program("last-of-equals", _index_of_largest, (integers(0, 5, (7, 37)),)),
    Program("exclusive-scan", _running, (_ROWS,)),
    Program("mean-count", _mean, (_ROWS,)),
    Program("maximum-not-subtracted", _softmax, (lambda: (_ROWS()[0] * 100,),)),
    Program("tail-unwritten", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("last-row-unwritten", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("element-unwritten", _affine, (normal((7, 37), (37,), (37,)),)),
    Program("lost-update", _histogram, (lambda: (*normal((37,))(), *integers(0, 5, (37,))()),)),
    Program("alias-ignored", _residual_norm, (normal((7, 37), (7, 37)),)),
    Program("input-overwritten", _affine, (normal((7, 37), (37,), (37,)),)),
    # both sizes are of one class, so that one program serves them
    Program(
        "example-size", _affine, (normal((18, 37), (37,), (37,)), normal((21, 37), (37,), (37,))), {}, True
    ),
    Program("race", _softmax, (_ROWS, normal((7, 37), seed=1))),
    Program("stale-memory", _softmax, (_ROWS, normal((7, 37), seed=1))),
    Program("launch-raises", _softmax, (_ROWS,)),
)
"""One for each row of `polyfuse.testing.lying.DEFECTS`, in its order, but for `random-repeated`: compiled
programs draw with eager mode's generator, so that only kernels of the kit meet it."""
