"""Kernels of several parts for Triton, and what they compute where Triton interprets."""

from __future__ import annotations

import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Claim
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import may_group
from polyfuse_triton.target import known_target
from schedule_builder import Anything, Maker, axes
from triton_interpreted import InterpretedTriton, _launcher


class Grouping(Anything):
    """Groups what Triton groups."""

    def may_group(self, kernel) -> Claim:
        return may_group(kernel, known_target("sm_90"))


def grouped(sizes: list[int]) -> Kernel:
    m = Maker(backend=Grouping)
    for k, n in enumerate(sizes):
        m.buffer(f"x{k}", n, kind="input")
        m.buffer(f"y{k}", n)
        (i,) = axes(n)
        m.pointwise(f"y{k}", (i,), apply("exp", m.load(f"x{k}", i)))
    schedule = m.schedule(*(f"y{k}" for k in range(len(sizes))), horizontal_fusion=True, max_fusion_size=1)
    (step,) = schedule.steps
    return step.kernel


def results(sizes: list[int]) -> float:
    """How far a launch of all parts is from exp, at most; runs where Triton interprets."""
    kernel = grouped(sizes)
    source = InterpretedTriton(Settings()).emit(kernel)
    given = [torch.randn(n) for n in sizes]
    made = [torch.zeros(n) for n in sizes]
    _launcher(source.rendered(), KernelMeta.parse(source.meta))(*given, *made)
    return max(float((m - g.exp()).abs().max()) for g, m in zip(given, made, strict=True))
