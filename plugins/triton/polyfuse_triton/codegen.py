"""The code generator: what it claims, and how a kernel becomes Triton text."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.nodes import Node
from polyfuse.plugin import Claim, Config, Source
from polyfuse_triton import tiling
from polyfuse_triton.claims import claim_of
from polyfuse_triton.dtypes import pointer_type
from polyfuse_triton.kernel import kernel_text
from polyfuse_triton.meta import KernelMeta, MetaArg
from polyfuse_triton.target import Target
from polyfuse_triton.tiling import candidates, choose_plan

__all__ = ["claims", "configs", "emit", "neighbours"]


def claims(node: Node, target: Target) -> Claim:
    """Whether a node can be computed, or why not."""
    return claim_of(node, target)


def configs(kernel: Kernel, target: Target) -> Sequence[Config]:
    """Tilings, the best guess first."""
    return candidates(kernel, target)


def neighbours(kernel: Kernel, config: Config, target: Target) -> Sequence[Config]:
    """Tilings that differ from one in one thing."""
    return tiling.neighbours(kernel, target, config)


def emit(kernel: Kernel, config: Config | None, target: Target) -> Source:
    """The kernel as a Triton function, and how to launch it."""
    plan = choose_plan(kernel, target, config)
    found = kernel_text(kernel, plan)
    meta = KernelMeta(
        args=tuple(_meta_arg(a, name) for a, name in zip(kernel.args, found.parameters, strict=True)),
        constexprs=found.constants,
        num_warps=plan.num_warps,
        num_stages=plan.num_stages,
        grid=(found.grid, 1, 1),
        fp_fusion=kernel.numerics == "fast",
    )
    return Source(kernel.name, found.text, "triton", meta=meta.text())


def _meta_arg(arg: KernelArg, name: str) -> MetaArg:
    if arg.kind == "size":
        return MetaArg(name, "size", "i64")
    return MetaArg(name, "ptr", pointer_type(arg.dtype), divisible16=arg.aligned)
