"""A Kernel as C++ text: the loops, the threads and the entry point around the statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse.symbolic import product
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.phases import planned
from polyfuse_cpp.loops.split_reductions import Scratch, Stage, refused_by_split, stages_of
from polyfuse_cpp.loops.stage import StageText, parameters
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.tiles import TiledText
from polyfuse_cpp.tiling import Split, choose_plan, choose_split

__all__ = ["KernelText", "kernel_text"]


@dataclass(frozen=True)
class KernelText:
    """The text of one kernel, and the headers of the vector layer that it needs."""

    text: str
    features: tuple[str, ...]
    signature: str
    refused_aliases: tuple[Alias, ...] = ()


def kernel_text(kernel: Kernel, lanes: int, lane_at: int = 0, unroll: int = 0) -> KernelText:
    """The C++ function of a kernel, named `Source.SYMBOL`; choices are those of `tiling.choose_plan`."""
    facts, plan = planned(kernel, lanes, lane_at, unroll)
    kernel = facts.kernel
    split = choose_split(facts, plan)
    out = Writer("  ")
    features: set[str] = {"kernel", "omp"}
    out.line("namespace pf {")
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
        kind = TiledText if its_plan.tile else StageText
        stages.append(
            kind(its_facts, replace(its_plan, limits=single.limits), out, features, name)
        )
        stages[-1].emit()
    _entry(facts, stages, scratch, split, out)
    out.line("}  // namespace pf")
    out.line(f"using pf::{Source.SYMBOL};")
    signature = "".join("i" if a.kind == "size" else "p" for a in kernel.args)
    text = out.text()
    if "floor_div(" in text or "remainder(" in text:
        features.add("divide")  # addresses divide too, not only values
    refused = () if split is None else refused_by_split(kernel)
    return KernelText(text, tuple(sorted(features)), signature, refused)


def _entry(
    facts: Facts,
    stages: Sequence[StageText],
    scratch: Sequence[Scratch],
    split: Split | None,
    out: Writer,
) -> None:
    """The function that callers see: it runs the stages, each with as many threads as it is worth."""
    declared = f"{Source.SYMBOL}({parameters(facts.kernel)})"
    with out.block(f'extern "C" __attribute__((visibility("default"))) void {declared}'):
        points = product(facts.sizes[a] for a in facts.axes)
        if not isinstance(points, int) or points == 0:
            out.line(f"if (({index_text(points)}) <= 0) return;")
        if split is not None:
            out.line(f"const i64 chunks = index_max(1, ({split.extent} + {split.size - 1}) / {split.size});")
        for piece in scratch:
            size = f"({index_text(piece.size)}) * {piece.dtype.itemsize} + 64"
            out.line(f"{piece.dtype}* const {piece.name} = ({piece.dtype}*)scratch_new({size});")
        for stage in stages:
            if len(stages) == 1:
                _launch(stage, out)
                continue
            with out.block():
                _launch(stage, out)
        for piece in scratch:
            out.line(f"scratch_free({piece.name});")


def _launch(stage: StageText, out: Writer) -> None:
    plan, facts = stage.plan, stage.facts
    passed = "".join(f"{a.name}, " for a in facts.kernel.args)
    out.line(f"const i64 items = {stage.items_text()};")
    alone = f"{stage.name}({passed}0, items, true);"
    if plan.serial:
        out.line(alone)
        return
    limited = {name for name, _, _ in plan.limits}
    total = product(facts.sizes[a] for a in (*facts.axes, *facts.raxes) if not limited or a != "chunk")
    out.line(f"const int team = team_for(items, ({index_text(total)}) * {facts.cost});")
    with out.block("if (team == 1)", "} else {"):
        out.line(alone)
    out.line("  #pragma omp parallel num_threads(team)")
    with out.block("  "):
        out.line("const i64 at = omp_get_thread_num(), of = omp_get_num_threads();")
        out.line(f"{stage.name}({passed}items * at / of, items * (at + 1) / of, {str(plan.along).lower()});")
    out.line("}")
