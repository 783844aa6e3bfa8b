"""What each fusion rule of a shipped plugin wins: the same work with the rule and without it, interleaved.

Times the cases of one row in this process: by CPU time on the CPU, so that what else the machine does counts
little. A rule stays only if its rows show a gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from polyfuse_bench.backends import EAGER, resolved
from polyfuse_bench.devices import CPU, waiter
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

ON, OFF = "polyfuse", "polyfuse:without"
CANDIDATES = (EAGER, ON, OFF)
"""Who is compared: with the rule and without it."""

Step = Callable[..., Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One rule on one function.

    Attributes:
        rule: its name, as `disable_fusion_rules` takes it: that of the plugin whose kernels are compared, and
            its own.
        function: of tensors of the shapes `shapes`.
        words: what it computes, for people.
        options: under which the rule has something to say.
        device: for which it is.
        trains: whether the gradients of all tensors are computed too.
        dtype: of the tensors.
    """

    rule: str
    function: Step
    shapes: Sequence[Shape]
    words: str
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = CPU
    trains: bool = False
    dtype: torch.dtype = torch.float32


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _bias(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + b) * 2


def _affine(x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x * a + b for a, b in zip(others[::2], others[1::2], strict=True))


def _row_sums(x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple((x * a).sum(-1) for a in others)


def _softmaxes(x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple((x * a).softmax(-1) for a in others)


def _products_and_sum(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    half = len(tensors) // 2
    found = tensors[0]
    for one in tensors[1:half]:
        found = found * one
    total = found
    for one in tensors[half:]:
        total = total + one
    return found, total


def _column_sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * y).sum(0), x * 2


def _tanh_and_sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = torch.tanh(x * y)
    return found, found.sum(0)


def _linear_chain(x: torch.Tensor, w: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    found = x @ w
    for one in others:
        found = torch.tanh(found * one) + one
    return found


_MATRIX: Shape = (4096, 4096)
_LARGE: Shape = (1 << 20,)
_SMALL: Shape = (1 << 16,)
_SQUARE: Shape = (1024, 1024)

CASES: Mapping[str, Case] = {
    **{
        f"{plugin}-{name}": Case(f"{plugin}.few-streams", function, shapes, words)
        for plugin in ("cpp", "halide")
        for name, function, shapes, words in (
            ("affine-25", _affine, [_LARGE] * 17, "eight `x * a + b` of one `x`, 4 MB an array"),
            ("affine-49-small", _affine, [_SMALL] * 33, "sixteen of them, 256 KB an array"),
            ("row-sums-33", _row_sums, [_SQUARE] * 33, "sums over rows of 32 products with one matrix"),
            ("passed-on-22", _products_and_sum, [_LARGE] * 20, "a product of ten, and its sum with ten"),
            ("affine-16", _affine, [_LARGE] * 11, "five `x * a + b`: 16 arrays, which the rule leaves alone"),
        )
    },
    **{
        f"halide-{name}": Case("halide.columns-apart", function, shapes, words, trains=trains)
        for name, function, shapes, words, trains in (
            ("columns-sum", _column_sums, [_SQUARE] * 2, "column sums of `x * y`, and `x * 2`", False),
            ("columns-tanh", _tanh_and_sums, [_SQUARE] * 2, "`tanh(x * y)` and its column sums", False),
            ("columns-long", _tanh_and_sums, [(4096, 512)] * 2, "the same of 4096 rows", False),
            ("columns-bias", _bias, [_SQUARE, (1024,)], "training step of `gelu(x + b) * 2`", True),
            (
                "columns-norm",
                _layer_norm,
                [_SQUARE, (1024,), (1024,)],
                "training step of layer_norm, which the rule leaves alone",
                True,
            ),
        )
    },
    **{
        f"cutlass-{name}": Case(
            "cutlass.few-operands",
            _linear_chain,
            shapes,
            words,
            {"backends": ("cutlass", "triton"), "gemm": "fastest"},
            "cuda",
            dtype=torch.bfloat16,
        )
        for name, shapes, words in (
            ("operands-8", [_MATRIX] * 10, "4096x4096x4096 bf16, then eight matrices one after the other"),
            ("operands-8-flat", [(4096, 256), (256, 4096)] + [_MATRIX] * 8, "the same of depth 256"),
        )
    },
    **{
        f"long-rows-{columns}": Case(
            "triton.few-long-rows",
            _softmaxes,
            [(rows, columns)] * 9,
            f"eight `softmax(x * a)` of one `x`, rows of {columns}",
            device="cuda",
        )
        for rows, columns in ((512, 16384), (4096, 4096))
    },
}


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`, on the device of the case unless the task names
    another accelerator. `task["shapes"]` are others than those of the case.
    """
    case = CASES[task["name"]]
    device = task.get("device", CPU)
    torch.manual_seed(0)
    shapes = task.get("shapes") or case.shapes
    tensors = [
        torch.randn(*shape, device=device, dtype=case.dtype, requires_grad=case.trains) for shape in shapes
    ]

    def prepare(backend: str) -> Callable[[], Any]:
        function = compiled(case, backend, device)
        if not case.trains:
            return lambda: function(*tensors)
        weight = torch.linspace(-1, 1, tensors[0].numel(), device=device).reshape(tensors[0].shape)
        return lambda: torch.autograd.grad((function(*tensors) * weight).sum(), tensors)

    on_cpu = torch.device(device).type == CPU
    outcome = side_by_side(
        task["backends"],
        prepare,
        Effort(**task["effort"]),
        wait=waiter(device),
        clock=time.process_time if on_cpu else time.perf_counter,
    )
    return {"name": task["name"], "rule": case.rule, "words": case.words, "device": device, **outcome}


def compiled(case: Case, backend: str, device: str) -> Step:
    """A case's function by one of the candidates; elsewhere than on its device, without its options."""
    if backend == EAGER:
        return case.function
    plugin = case.rule.partition(".")[0]
    options: dict[str, Any] = {}
    if torch.device(device).type == case.device:
        options = {"backends": (plugin,), **case.options}
    if backend == OFF:
        options["disable_fusion_rules"] = (case.rule,)
    made: Step = torch.compile(case.function, backend=resolved(ON), dynamic=False, options=options)
    return made
