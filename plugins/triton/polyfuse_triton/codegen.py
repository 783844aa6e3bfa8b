"""The code generator: what it claims, and how a kernel becomes Triton text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.nodes import Node
from polyfuse.ir.statements import is_check
from polyfuse.kit import without_aliases
from polyfuse.plugin import Claim, Config, Source
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.claims import claim_of
from polyfuse_triton.dtypes import pointer_type
from polyfuse_triton.loops.aliases import refused_aliases
from polyfuse_triton.loops.kernel import KernelText, kernel_text
from polyfuse_triton.matmul.kernel import matmul_text
from polyfuse_triton.matmul.multiply_add import as_sums
from polyfuse_triton.matmul.plan import MatmulPlan, is_tile, matmul_of
from polyfuse_triton.matmul.tiling import around, best_plans, is_possible, prefers_sums
from polyfuse_triton.target import Target
from polyfuse_triton.tiling import choice
from polyfuse_triton.tiling.choice import candidates, choose_plan

__all__ = ["claims", "configs", "emit", "neighbours"]


_TILES_BESIDE_SUMS = 4
"""Tilings with matrix instructions that are tried where ordinary loops are likely to do as well."""


def claims(node: Node, target: Target) -> Claim:
    """Whether a node can be computed, or why not."""
    return claim_of(node, target)


def configs(kernel: Kernel, target: Target) -> Sequence[Config]:
    """Tilings, the best guess first."""
    matmul = matmul_of(kernel)
    if matmul is None:
        return candidates(as_sums(kernel), target)
    tiles = [plan.config() for plan in best_plans(matmul, target)]
    if not prefers_sums(matmul):
        return tiles
    return [*candidates(as_sums(kernel), target), *tiles[:_TILES_BESIDE_SUMS]]


def neighbours(kernel: Kernel, config: Config, target: Target) -> Sequence[Config]:
    """Tilings that differ from one in one thing."""
    matmul = matmul_of(kernel)
    if matmul is None or not is_tile(config):
        return choice.neighbours(as_sums(kernel), target, config)
    plans = around(MatmulPlan.of(config))
    return [plan.config() for plan in plans if is_possible(matmul, target, plan)]


def emit(kernel: Kernel, config: Config | None, target: Target) -> Source:
    """The kernel as a Triton function, and how to launch it."""
    matmul = matmul_of(kernel) if config is None or is_tile(config) else None
    if matmul is not None and (config is not None or not prefers_sums(matmul)):
        tiles = MatmulPlan.of(config) if config is not None else best_plans(matmul, target)[0]
        return _source(kernel, matmul_text(kernel, matmul, tiles), tiles.warps, tiles.stages)
    kernel = as_sums(kernel)
    plan = choose_plan(kernel, target, config)
    refused = refused_aliases(kernel, plan)
    kernel = without_aliases(kernel, refused)
    source = _source(kernel, kernel_text(kernel, plan), plan.num_warps, plan.num_stages)
    return replace(source, refused_aliases=refused)


def _source(kernel: Kernel, found: KernelText, warps: int, stages: int) -> Source:
    meta = KernelMeta(
        args=tuple(_meta_arg(a, name) for a, name in zip(kernel.args, found.parameters, strict=True)),
        constexprs=found.constants,
        num_warps=warps,
        num_stages=stages,
        grid=(found.grid, 1, 1),
        zeroed=found.zeroed,
        cluster=found.cluster,
        fp_fusion=kernel.numerics == "fast",
        asserts=kernel.device != "cpu" and any(is_check(s) for part in kernel.sections for s in part.body),
    )
    return Source(kernel.name, found.text, "triton", meta=meta.text())


def _meta_arg(arg: KernelArg, name: str) -> MetaArg:
    if arg.kind == "size":
        return MetaArg(name, "size", "i64")
    return MetaArg(name, "ptr", pointer_type(arg.dtype), divisible16=arg.aligned)
