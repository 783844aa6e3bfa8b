"""When a compiler's result counts as wrong: the rule, as arithmetic on errors that were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

AGREE = "agree"
WRONG = "wrong"
# Disagrees with some weights and inputs, but not with others: a routing or a threshold that rounding decided.
UNSTEADY = "unsteady"
FELL_BACK = "fell back"
RAISES = "raises"
# Eager's own result says nothing: it draws random numbers, or is far from the truth itself.
NO_TRUTH = "eager has no answer"
EAGER_FAILS = "eager fails"
NOT_BUILDABLE = "not buildable"
TIMED_OUT = "timed out"
CRASH = "crash"
OUTCOMES = (
    AGREE, WRONG, UNSTEADY, RAISES, CRASH, FELL_BACK, TIMED_OUT, NO_TRUTH, EAGER_FAILS, NOT_BUILDABLE,
)  # fmt: skip
BAD = (WRONG, RAISES, CRASH)

# A tensor is wrong when its error is beyond this many times what eager, and eager with perturbed weights,
# err, and beyond the floor: what sums in another order may change, as a part of a tensor's norm.
SLACK = {"float32": 10.0, "bfloat16": 4.0, "float16": 4.0}
FLOOR = {"float32": 5e-6, "bfloat16": 2e-2, "float16": 4e-3}
# Relative size of the perturbation: half a unit in the last place, 6e-8 in f32.
PERTURBATION = {name: torch.finfo(getattr(torch, name)).eps / 2 for name in FLOOR}
# What rounding elsewhere leaves in each element of a tensor that is zero in exact arithmetic: so many units
# in the last place of what its kind of tensor typically holds.
BROUGHT_ALONG = 4.0
# The least that is divided by.
TINY = 1e-30
# A tensor for which eager errs by more is judged no more, since almost anything would agree.
HOPELESS = 0.5
# A model is judged when at least this part of its tensors is.
JUDGED = 0.5


@dataclass(frozen=True)
class Errors:
    """Errors of one tensor, each the norm of a difference from the truth over the norm of the truth.

    Attributes:
        name: of the output or the parameter.
        own: eager's in the same dtype.
        perturbed: eager's with weights a rounding away.
        found: the compiler's; infinite where shape, dtype or which elements are not finite differ.
    """

    name: str
    own: float
    perturbed: float
    found: float

    def allowed(self, dtype: str) -> float:
        return SLACK[dtype] * max(self.own, self.perturbed) + FLOOR[dtype]

    def wrong(self, dtype: str) -> bool:
        return self.judged and not self.found <= self.allowed(dtype)

    @property
    def judged(self) -> bool:
        return max(self.own, self.perturbed) <= HOPELESS


def scales(truth: Mapping[str, torch.Tensor], dtype: str) -> dict[str, float]:
    """What the norm of each tensor's difference is measured against: its own norm, but at least the rounding
    that the other tensors of its kind bring along.

    The gradient of the bias of an attention's keys is zero in exact arithmetic, and rounding alone in any
    other.
    """
    kinds: dict[str, list[float]] = {}
    for name, tensor in truth.items():
        if tensor.numel():
            kinds.setdefault(_kind(name), []).append(_norm(tensor) / math.sqrt(tensor.numel()))
    typical = {kind: sorted(found)[len(found) // 2] for kind, found in kinds.items()}
    # such that what is brought along is within the floor
    eps = min(1.0, BROUGHT_ALONG * torch.finfo(getattr(torch, dtype)).eps / FLOOR[dtype])
    return {
        name: max(_norm(tensor), eps * typical.get(_kind(name), 0.0) * math.sqrt(tensor.numel()), TINY)
        for name, tensor in truth.items()
    }


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _norm(tensor: torch.Tensor) -> float:
    wide = tensor.abs()
    return float(torch.where(torch.isfinite(wide), wide, 0).norm())


def error(actual: torch.Tensor, truth: torch.Tensor, like: torch.Tensor, scale: float) -> float:
    """The norm of the difference where all are finite, over `scale`; `like` is eager's tensor, whose shape,
    dtype and elements that are not finite (or those of the truth) the actual one must have.
    """
    if actual.shape != like.shape or actual.dtype != like.dtype:
        return math.inf
    wide = actual.detach().to(truth.dtype)
    finite = torch.isfinite(wide)
    if not torch.equal(finite, torch.isfinite(like)) and not torch.equal(finite, torch.isfinite(truth)):
        return math.inf
    difference = torch.where(finite & torch.isfinite(truth), wide - truth, 0)
    return float(difference.norm()) / scale


def worst(found: Sequence[Errors], dtype: str) -> Errors | None:
    """The tensor that is farthest beyond (or nearest to) what is allowed."""
    judged = [entry for entry in found if entry.judged]
    return max(judged, key=lambda entry: entry.found / entry.allowed(dtype), default=None)
