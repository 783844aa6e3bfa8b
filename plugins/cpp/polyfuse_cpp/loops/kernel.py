"""A Kernel as C++ text: the loops, the threads and the entry point around the statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyfuse.ir.kernel import Kernel
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse.symbolic import product
from polyfuse_cpp.cuts.ranges import cut_into_ranges
from polyfuse_cpp.cuts.residues import planned
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.entry import KernelText, arguments, entry, in_parallel, kernel_unit
from polyfuse_cpp.loops.ranged import RangedText
from polyfuse_cpp.loops.split_reductions import Scratch, Stage, refused_by_split, stages_of
from polyfuse_cpp.loops.stage import StageText
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.tiles import TiledText
from polyfuse_cpp.taps.problem import window_of
from polyfuse_cpp.taps.text import TapsText, fits
from polyfuse_cpp.tiling import Split, choose_plan, choose_split

__all__ = ["kernel_text"]


def kernel_text(kernel: Kernel, lanes: int, lane_at: int = 0, unroll: int = 0) -> KernelText:
    """The C++ function of a kernel, named `Source.SYMBOL`; choices are those of `tiling.choose_plan`."""
    facts, plan = planned(kernel, lanes, lane_at, unroll)
    kernel = facts.kernel
    window = window_of(facts, plan)
    if window is not None and not fits(facts, window):
        window = None
    split = choose_split(facts, plan) if window is None else None
    out = Writer("  ")
    features: set[str] = {"kernel", "omp"}
    passes, scratch = [Stage(kernel)], list[Scratch]()
    if split is not None:
        passes, scratch = stages_of(facts, split)
    stages: list[StageText] = []
    for number, single in enumerate(passes):
        its_facts, its_plan = facts, plan
        if split is not None:
            its_facts = Facts.of(single.kernel)
            # the configuration is that of the loops that read the inputs
            chosen = (plan.lane if lane_at else "", unroll) if single.limits else ("", 0)
            its_plan = choose_plan(its_facts, lanes, *chosen, single.without_lanes(lanes))
        name = f"{Source.SYMBOL}_run{number if len(passes) > 1 else ''}"
        its_plan = replace(its_plan, limits=single.limits)
        if window is not None:
            stages.append(TapsText(its_facts, its_plan, out, features, name, window))
            continue
        ranges = cut_into_ranges(its_facts, its_plan)
        if ranges is None:
            kind = TiledText if its_plan.tile else StageText
            stages.append(kind(its_facts, its_plan, out, features, name))
        elif ranges.by_rows:
            stages.append(RangedText(its_facts, its_plan, out, features, name, ranges))
        else:
            for at, (cell, cell_plan) in enumerate(ranges.cells.values()):
                stages.append(StageText(cell, cell_plan, out, features, f"{name}_range{at}"))
    for stage in stages:
        stage.emit()
    _entry(facts, stages, scratch, split, out)
    return kernel_unit(kernel, out, features, () if split is None else refused_by_split(kernel))


def _entry(
    facts: Facts,
    stages: Sequence[StageText],
    scratch: Sequence[Scratch],
    split: Split | None,
    out: Writer,
) -> None:
    """The function that callers see: it runs the stages, each with as many threads as it is worth."""
    with entry(facts.kernel, out):
        points = product(facts.sizes[a] for a in facts.axes)
        if not isinstance(points, int) or points == 0:
            out.line(f"if (({index_text(points)}) <= 0) return;")
        if split is not None:
            out.line(f"const i64 chunks = index_max(1, ({split.extent} + {split.size - 1}) / {split.size});")
        for buffer in scratch:
            size = f"({index_text(buffer.size)}) * {buffer.dtype.itemsize} + 64"
            out.line(f"{buffer.dtype}* const {buffer.name} = ({buffer.dtype}*)scratch_new({size});")
        for stage in stages:
            if len(stages) == 1:
                _launch(stage, out)
                continue
            with out.block():
                _launch(stage, out)
        for buffer in scratch:
            out.line(f"scratch_free({buffer.name});")


def _launch(stage: StageText, out: Writer) -> None:
    plan, facts = stage.plan, stage.facts
    passed = arguments(stage.facts.kernel)
    out.line(f"const i64 items = {stage.items_text()};")
    past = ""
    if stage.new_pages:
        out.line(f"const bool past = {' && '.join(f'is_resident({t})' for t in stage.new_pages)};")
        past = ", past"
    alone = f"{stage.name}({passed}0, items, true{past});"
    if plan.serial:
        out.line(alone)
        return
    limited = {name for name, _, _ in plan.limits}
    total = product(facts.sizes[a] for a in (*facts.axes, *facts.raxes) if not limited or a != "chunk")
    shares, first, last = "items", "items * at / of", "items * (at + 1) / of"
    if whole := stage.share_text():
        out.line(f"const i64 whole = {whole}, shares = (items + whole - 1) / whole;")
        shares = "shares"
        first, last = "shares * at / of * whole", "index_min(items, shares * (at + 1) / of * whole)"
    out.line(f"const int team = team_for({shares}, ({index_text(total)}) * {facts.cost});")
    with out.block("if (team == 1)", "} else {"):
        out.line(alone)
    share = f"{first}, {last}, {str(plan.along).lower()}{past}"
    in_parallel(out, f"{stage.name}({passed}{share});", indent="  ")
    out.line("}")
