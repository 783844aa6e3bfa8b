"""The code generator: what it claims, and how a kernel becomes Triton text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyfuse.ir.expr import walk
from polyfuse.ir.kernel import Alias, Kernel, KernelArg
from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan, Scatter
from polyfuse.ir.ops import CHECK_MODE, CONTRACTIONS
from polyfuse.ir.statements import is_check
from polyfuse.kit import KernelFacts, without_aliases
from polyfuse.plugin import Claim, Config, No, Source, Yes
from polyfuse_triton.build.meta import PRODUCT, KernelMeta, MetaArg
from polyfuse_triton.dtypes import pointer_type
from polyfuse_triton.loops.aliases import refused_aliases
from polyfuse_triton.loops.group import grouped_text
from polyfuse_triton.loops.kernel import KernelText, kernel_text
from polyfuse_triton.loops.memory import ATOMIC_MODES
from polyfuse_triton.loops.ops import unsupported_op
from polyfuse_triton.matmul.few_rows import is_grouped, side_of
from polyfuse_triton.matmul.kernel import matmul_text
from polyfuse_triton.matmul.multiply_add import as_sums
from polyfuse_triton.matmul.plan import MatmulPlan, is_tile, matmul_of
from polyfuse_triton.matmul.tiling import around, best_plans, is_possible, prefers_sums, shared_bytes
from polyfuse_triton.reductions.reduce import REDUCTIONS
from polyfuse_triton.reductions.row_products import matrices_of_row
from polyfuse_triton.reductions.scans import SCANS
from polyfuse_triton.target import Target
from polyfuse_triton.tiling import choice
from polyfuse_triton.tiling.choice import candidates, choose_plan

_FEWEST_STAGES = 2
_EIGHT_BIT_FLOATS = 89
"""The first compute capability with conversions of 8-bit floating-point numbers."""


def claims(node: Node, target: Target) -> Claim:
    """All loop nodes on values of the IR's types; anything else is somebody else's."""
    if not isinstance(node, LoopNode):
        return No(f"{type(node).__name__} is not a loop")
    if isinstance(node, Reduction) and node.kind not in (*REDUCTIONS, *CONTRACTIONS):
        return No(f"the reduction {node.kind} is unknown")
    if isinstance(node, Scan) and (node.kind not in SCANS or len(node.raxes) != 1):
        return No(f"the scan {node.kind} over {len(node.raxes)} axes is unknown")
    if isinstance(node, Scatter) and node.mode not in ("set", *ATOMIC_MODES, CHECK_MODE):
        return No(f"the store mode {node.mode} is unknown")
    for expr in walk(*node.expressions()):
        if expr.dtype.is_eight_bit_float and (
            target.arch < _EIGHT_BIT_FLOATS or not expr.dtype.has_negative_zero
        ):
            return No(f"{target.name} has no conversions of {expr.dtype}")
        operand = expr.args[-1].dtype if expr.args else expr.dtype
        kind = expr.kind if expr.op == "rand" else ""
        reason = unsupported_op(expr.op, operand, kind)
        if reason:
            return No(reason)
    if isinstance(node, Scatter) and node.mode != "set" and node.value.dtype.is_eight_bit_float:
        return No(f"there is no atomic {node.mode} on {node.value.dtype}")
    return Yes()


_TILES_BESIDE_SUMS = 4
"""Tilings with matrix instructions that are tried where ordinary loops are likely to do as well."""


def configs(kernel: Kernel, target: Target) -> Sequence[Config]:
    """Tilings, the best guess first."""
    if kernel.parts:
        return ()
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


def may_group(kernel: Kernel, target: Target) -> Claim:
    """Loops that compute each element by itself and matmuls of a matrix and few rows, of known sizes: how
    many programs each part has is text.
    """
    if kernel.row_buffers or any(arg.kind == "size" for arg in kernel.args):
        return No("only loops of known sizes without row buffers become parts of a kernel")
    if not kernel.raxes:
        return Yes()
    matmul = matmul_of(kernel)
    if matmul is not None and matmul.beside is None and is_grouped(matmul.contraction):
        return Yes()
    if matmul is None and matrices_of_row(kernel, KernelFacts.of(kernel)):
        plan = choose_plan(kernel, target, None)
        if plan.persistent and plan.groups is None and not plan.is_shared:
            return Yes()
    return No("of kernels with reductions, only matmuls of a matrix and few rows become parts of a kernel")


def _grouped(kernel: Kernel, target: Target) -> Source:
    """A function that runs those of several kernels, each in programs of its own."""
    parts = {part: emit(part, config, target) for part, config in _tiles(kernel, target).items()}
    metas = {part: KernelMeta.parse(source.meta) for part, source in parts.items()}
    if _shared_by_parts(metas, _FEWEST_STAGES) > target.shared_bytes:
        parts = {part: emit(part, config, target) for part, config in _tiles(kernel, target, 2).items()}
        metas = {part: KernelMeta.parse(source.meta) for part, source in parts.items()}
    found = grouped_text(kernel, {part: (parts[part], metas[part]) for part in parts})
    stages = max(m.num_stages for m in metas.values())
    # no version of Triton that is used has the tiles of different functions in one memory
    while stages > _FEWEST_STAGES and _shared_by_parts(metas, stages) > target.shared_bytes:
        stages -= 1
    source = _source(kernel, found, max(m.num_warps for m in metas.values()), stages)
    refused = tuple(
        Alias(names[pair.output], names[pair.input])
        for part in kernel.parts
        for names in (dict(zip((arg.name for arg in part.kernel.args), part.args, strict=True)),)
        for pair in parts[part.kernel].refused_aliases
    )
    asserts = any(meta.asserts for meta in metas.values())
    meta = replace(KernelMeta.parse(source.meta), asserts=asserts)
    return Source(source.name, source.text, source.language, meta=meta.text(), refused_aliases=refused)


def _tiles(kernel: Kernel, target: Target, shorter: int = 1) -> dict[Kernel, Config | None]:
    """The tiles of different parts: those of one matmul with all columns, with so many times less depth."""
    found = {part.kernel: matmul_of(part.kernel) for part in kernel.parts}
    plain = {part: matmul for part, matmul in found.items() if matmul is not None and matmul.narrow is None}
    columns = sum(plain[part.kernel].shape[1] for part in kernel.parts if part.kernel in plain)
    configs: dict[Kernel, Config | None] = dict.fromkeys(found)
    for part, matmul in plain.items():
        plan = best_plans(matmul, target)[0]
        plan = replace(plan, m=max(plan.m, side_of(columns)), k=plan.k // shorter)
        configs[part] = plan.config()
    return configs


def _shared_by_parts(metas: Mapping[Kernel, KernelMeta], stages: int) -> int:
    """Bytes of shared memory that the tiles of all functions take together in so many stages."""
    total = 0
    for part, meta in metas.items():
        matmul = matmul_of(part)
        blocks = dict(meta.constexprs)
        if matmul is not None and PRODUCT in blocks:
            m, n, k = (int(blocks[f"{name}BLOCK"]) for name in "MNK")
            total += shared_bytes(
                matmul, MatmulPlan(m, n, k, 1, meta.num_warps, min(stages, meta.num_stages))
            )
    return total


def emit(kernel: Kernel, config: Config | None, target: Target) -> Source:
    """The kernel as a Triton function, and how to launch it."""
    if kernel.parts:
        return _grouped(kernel, target)
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
