"""A Kernel as C++ text: the loops, the threads and the entry point around the statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Kernel
from polyfuse.kit import Writer
from polyfuse.plugin import Source
from polyfuse.symbolic import product
from polyfuse_cpp.cuts.ranges import cut_into_ranges
from polyfuse_cpp.cuts.residues import planned
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.entry import KernelText, arguments, entry, in_parts, in_team, kernel_unit
from polyfuse_cpp.loops.ranged import RangedText
from polyfuse_cpp.loops.split_reductions import Scratch, Stage, refused_by_split, stages_of
from polyfuse_cpp.loops.stage import StageText
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.tiles import TiledText
from polyfuse_cpp.taps.problem import window_of
from polyfuse_cpp.taps.text import TapsText, fits
from polyfuse_cpp.tiling import Split, choose_plan, choose_split

_FAR = 8
"""How many times as long as from its own caches a thread takes to read a number from another one's."""


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
        if len(stages) == 1:
            _launch(stages[0], out)
        else:
            _launch_all(stages, split is not None, out)
        for buffer in scratch:
            out.line(f"scratch_free({buffer.name});")


def _launch(stage: StageText, out: Writer) -> None:
    """The only stage."""
    call = _prepare(stage, "", out)
    if stage.plan.serial:
        out.line(call.alone)
        return
    with out.block("if (team == 1)", "} else {"):
        out.line(call.alone)
    in_parts(out, call.shared, call.items, call.work, indent="  ")
    out.line("}")


def _launch_all(stages: Sequence[StageText], ordered: bool, out: Writer) -> None:
    """Several stages in one parallel region, each done by as many of its threads as it is worth. If they are
    `ordered`, each waits for the one before it, the last one behind the region where a single thread does it.
    """
    for number, stage in enumerate(stages):
        call = _prepare(stage, str(number), out)
        with out.block(f"const auto part{number} = [&](i64 at, i64 of)", "};"):
            out.line(f"of = index_min(of, team{number});")
            out.line(f"if (at < of) {call.alone if stage.plan.serial else call.shared}")
    out.line("int team = team0;")
    for number in range(1, len(stages)):
        out.line(f"if (team < team{number}) team = team{number};")
    last = len(stages) - 1
    with out.block("if (team == 1)", "} else {"):
        for number in range(len(stages)):
            out.line(f"part{number}(0, 1);")
    parts = [f"part{number}(at, of);" for number in range(len(stages))]
    if ordered:
        parts[last] = f"if (team{last} > 1) {parts[last]}"
    in_team(out, *(parts if ordered else [" ".join(parts)]), indent="  ")
    if ordered:
        out.line(f"  if (team{last} == 1) part{last}(0, 1);")
    out.line("}")


@dataclass(frozen=True)
class _Calls:
    """The calls of a stage's function: for all its items, and for share `at` of `of`; how many items can be
    shared out, and their work.
    """

    alone: str
    shared: str
    items: str = "1"
    work: str = "0"


def _prepare(stage: StageText, suffix: str, out: Writer) -> _Calls:
    """Declare the number of a stage's items and of the threads it is worth, with a suffix to their names."""
    plan, facts = stage.plan, stage.facts
    passed = arguments(facts.kernel)
    items, past = f"items{suffix}", ""
    out.line(f"const i64 {items} = {stage.items_text()};")
    if stage.new_pages:
        past = f", past{suffix}"
        resident = " && ".join(f"is_resident({t})" for t in stage.new_pages)
        out.line(f"const bool past{suffix} = {resident};")
    alone = f"{stage.name}({passed}0, {items}, true{past});"
    if plan.serial:
        if suffix:
            out.line(f"const int team{suffix} = 1;")
        return _Calls(alone, alone)
    limited = {name for name, _, _ in plan.limits}
    total = product(facts.sizes[a] for a in (*facts.axes, *facts.raxes) if not limited or a != "chunk")
    shares, first, last = items, f"{items} * at / of", f"{items} * (at + 1) / of"
    if size := stage.share_text():
        whole, shares = f"whole{suffix}", f"shares{suffix}"
        out.line(f"const i64 {whole} = {size}, {shares} = ({items} + {whole} - 1) / {whole};")
        first = f"{shares} * at / of * {whole}"
        last = f"index_min({items}, {shares} * (at + 1) / of * {whole})"
    work = f"({index_text(total)}) * {_price(stage)}"
    out.line(f"const int team{suffix} = team_for({shares}, {work});")
    only = "true" if plan.along else "of == 1" if suffix else "false"
    shared = f"{stage.name}({passed}{first}, {last}, {only}{past});"
    return _Calls(alone, shared, shares, work)


def _price(stage: StageText) -> int:
    """What a point costs, in vector additions: more where it reads what other threads have just written."""
    return stage.facts.cost * (_FAR if "chunk" in stage.facts.raxes else 1)
