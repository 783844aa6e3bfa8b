"""The periods that lowering passed over, put back into the schedule.

What the period before the gap became is compared with what the one behind it became: the same steps in the
same order, of nodes that are equal but for names that go on evenly. Then those in between become the same
again, under the names in between, as every decision about them would be made of the same. Otherwise all of
the graph is compiled.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from polyfuse.autotune.packing import is_within_room
from polyfuse.compiler.layers.names import Matching, Numbering
from polyfuse.compiler.layers.renaming import Found, Renaming
from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.periods import BEFORE, NotRepeated, Periods
from polyfuse.ir.graph import Graph, GraphOutput
from polyfuse.ir.nodes import Buffer, Node, Origin
from polyfuse.ir.records import alike, changed
from polyfuse.lowering.ends import input_names
from polyfuse.lowering.shortened import Shortening
from polyfuse.program.loops import NotALoop, Skipped
from polyfuse.schedule import Call, Decision, Launch, Schedule
from polyfuse.schedule.deps import storage_roots
from polyfuse.schedule.kernels.lifetimes import last_uses
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx

_Step = Launch | Call


def with_periods(short: Shortening, aten: AtenGraph, schedule: Schedule) -> Expansion:
    """What makes the schedule of a whole graph, from that of one with fewer periods.

    Raises:
        NotRepeated: the periods that are there did not become the same, or there is no room for the weights
            that all pack.
    """
    found = Expansion(schedule, short, aten)
    nodes = (node for step in found.first_steps for node in _nodes(step))
    if not is_within_room(schedule.graph, nodes, found.copies):
        raise NotRepeated("packed weights of all layers have no room")
    return found


class Expansion:
    """One schedule: the steps up to the end of one period, those of the other one, and the rest.

    Attributes:
        old: the schedule.
        copies: how many periods it leaves out.
        first_steps: those of the period that stands for them.
    """

    def __init__(self, schedule: Schedule, short: Shortening, aten: AtenGraph) -> None:
        if len(short.marks) != 3:
            raise NotRepeated("its layers are not where they were found")
        self.old, self.short = schedule, short
        self.numbering = Numbering(short.marks)
        periods = short.periods
        self.copies = periods.skipped
        names = input_names(aten)
        rows = [[names[node] for node in row] for row in periods.inputs]
        self.given = {name for row in rows for name in row}
        self.first, self.behind, self.other = self._cut()
        readers = {names[node]: first for node, first in periods.readers.items()}
        self.matching = Matching(self.numbering, rows, readers, self.copies + 1)
        self._match()
        self.written = {name for step in self.first_steps for name in step.writes}
        self._tables = self.matching.tables(self.copies)
        if any(self.matching.pairs.get(name, name) == name for name in self.written):
            raise NotRepeated("layers write to one buffer")
        self._check_names()

    @cached_property
    def whole(self) -> Schedule:
        """The schedule of all periods."""
        return self._schedule()

    @cached_property
    def decision(self) -> Decision:
        """That the steps of the periods are the same."""
        names = list(map(_name, self.first_steps))
        why = f"layers are equal: {self.copies} more take the same steps, and are not shown"
        return Decision("repeat", names[0], names[-1], why)

    @cached_property
    def renamings(self) -> Sequence[Renaming]:
        """What the names of the first period become in each that is left out."""
        found, tables = Found(), self._tables
        return [
            Renaming(table, at, found if table.keys() == tables[0].keys() else None)
            for table, at in zip(tables[:-1], self._origins, strict=True)
        ]

    @cached_property
    def late(self) -> Renaming:
        """What they become in all that comes behind these."""
        return Renaming(self._tables[-1], self._origins[-1])

    @cached_property
    def _origins(self) -> list[dict[str, Origin]]:
        used = {o.fx for step in self.old.steps for n in _nodes(step) for o in n.origins}
        return _origins(self.short.periods, self.copies, used)

    def later_names(self, names: Iterable[str], copy: int) -> tuple[str, ...]:
        """The names of the first period in a period so many behind it; with one more than there are copies,
        those of the steps behind them.
        """
        table = self._tables[copy - 1]
        return tuple([table.get(name, name) for name in names])

    def later_sources(self, origins: Iterable[Origin], copy: int) -> tuple[str, ...]:
        """The lines of the model that nodes of the first period come from in a period so many behind it, each
        once.
        """
        nodes, further = self.short.periods.nodes, min(copy, self.copies) * self.short.periods.length
        found: dict[str, None] = {}
        for origin in origins:
            at, source = self._traced.get(origin.fx), origin.source
            if at is not None:
                before, later = nodes[at], nodes[at + further]
                if before.meta.get("stack_trace") != later.meta.get("stack_trace"):
                    source = fx.source_text(later)
            found[source] = None
        return tuple(filter(None, found))

    @cached_property
    def _traced(self) -> Mapping[str, int]:
        periods = self.short.periods
        return {node.name: at for at, node in enumerate(periods.nodes[: BEFORE * periods.length])}

    def skipped(self, planned: Schedule) -> Skipped:
        """What the schedule leaves out.

        Args:
            planned: the schedule, as it is to be planned.

        Raises:
            NotALoop: the layers are not where they were any more.
        """
        return Skipped(
            *self.span(planned),
            self.copies,
            self.matching.inputs,
            self.matching.readers,
            self._numbered_outputs(),
            self._pairs,
        )

    def span(self, planned: Schedule) -> tuple[int, int, int]:
        """The steps of the schedule where the period that stands for those left out begins, where it ends,
        and where the one behind the gap ends.

        Args:
            planned: the schedule, as it is to be planned.

        Raises:
            NotALoop: the layers are not where they were any more.
        """
        at = {_name(step): position for position, step in enumerate(planned.steps)}
        steps = self.old.steps
        first, behind, end = (at.get(_name(steps[i]), -1) for i in (self.first, self.behind, self.other))
        if not 0 <= first < behind < end:
            raise NotALoop("a layer's first step is moved away from it")
        return first, behind, end

    def _pairs(self, one: Sequence[object], two: Sequence[object]) -> Mapping[str, str]:
        """The names in the steps of one program with those that they match in others'."""
        matching, known = replace(self.matching, pairs={}), self.matching.pairs
        matching.match(one, two)
        if any(known.get(name, other) != other for name, other in matching.pairs.items()):
            raise NotALoop("the steps of a layer do not follow each other as they were scheduled")
        return matching.pairs

    def _numbered_outputs(self) -> Sequence[tuple[GraphOutput, int]]:
        """All results as the first period makes them, and how many periods later each is made."""
        short, given = self.short, self.old.graph.outputs
        index, missing = {position: at for at, position in enumerate(short.present)}, short.left_out
        found: list[tuple[GraphOutput, int]] = []
        for position in range(len(given) + len(missing)):
            item = missing.get(position)
            if item is None:
                found.append((given[index[position]], self.copies if short.present[position] else 0))
            else:
                found.append((given[index[item.like]], item.copy))
        return found

    def _cut(self) -> tuple[int, int, int]:
        """Where the steps of the first period begin and end, and where those of the other one do."""
        ages = [max(map(self.numbering.age, _names(step))) for step in self.old.steps]
        if 1 not in ages or 2 not in ages:
            raise NotRepeated("a layer has no steps of its own")
        first, behind = ages.index(1), ages.index(2)
        end = len(ages) - ages[::-1].index(2)
        clean = set(ages[first:behind]) == {1} and set(ages[behind:end]) == {2}
        if not clean or {1, 2} & {*ages[:first], *ages[end:]} or 0 in ages[end:]:
            raise NotRepeated("steps of one layer stand between those of another")
        return first, behind, end

    @cached_property
    def first_steps(self) -> tuple[_Step, ...]:
        return self.old.steps[self.first : self.behind]

    def _match(self) -> None:
        """Compare the steps of the two periods, and what belongs to them."""
        one, two = self.first_steps, self.old.steps[self.behind : self.other]
        if len(one) != len(two):
            raise NotRepeated("layers take other numbers of steps")
        match, buffers, objects = self.matching, self.old.graph.buffers, self.old.graph.objects
        for first, second in zip(one, two, strict=True):
            match.match(_compared(first), _compared(second))
        removed = set(self.old.removed)
        inputs = {item.name: item for item in self.old.graph.inputs}
        for before, after in match.pairs.items():
            if before == after:
                continue
            if before in buffers or after in buffers:
                if (
                    before not in buffers
                    or after not in buffers
                    or not alike(buffers[before], buffers[after], "name")
                ):
                    raise NotRepeated(f"{before} is not laid out as {after}")
            if (before in removed) != (after in removed):
                raise NotRepeated(f"{before} stays in its kernel, and {after} does not")
            if objects.get(before) is not objects.get(after):
                raise NotRepeated(f"{before} is another object than {after}")
        for row in match.inputs:
            known = inputs[row[0]], buffers[row[0]]
            for name in row:
                item = inputs[name], buffers[name]
                if not alike(item[0], known[0], "name", "label") or not alike(item[1], known[1], "name"):
                    raise NotRepeated(f"{name} is not like {row[0]}")

    def _check_names(self) -> None:
        """Compare the names that all periods get, before anything has them."""
        old, *tables, late = self.old.graph.buffers, *self._tables
        steps, mine = self.old.steps, self.first_steps
        nodes = [name for step in steps[: self.behind] for name in _names(step)]
        nodes += [table.get(name, name) for table in tables for step in mine for name in _names(step)]
        behind = list(map(self.is_late, steps[self.behind :]))
        for step, renamed in zip(steps[self.behind :], behind, strict=True):
            nodes += [late.get(name, name) if renamed else name for name in _names(step)]
        written, written_late = (
            {name for step in some for name in _all_writes(step)} for some in (mine, steps[self.behind :])
        )
        buffers = [late.get(name, name) if name in written_late else name for name in old]
        buffers += [table.get(name, name) for table in tables for name in old if name in written]
        if len(set(nodes)) != len(nodes) or len(set(buffers)) != len(buffers):
            raise NotRepeated("names are given twice")

    def _schedule(self) -> Schedule:
        old, steps = self.old, list(self.old.steps[: self.behind])
        for copy, renaming in enumerate(self.renamings, 1):
            steps += [renaming.step(step, f"_{copy}") for step in self.first_steps]
        steps += [self._late_step(step) for step in old.steps[self.behind :]]
        graph = self._graph(steps)
        removed = self._removed(graph)
        last = last_uses(graph, steps, removed, storage_roots(graph))
        names = list(map(_name, self.first_steps))
        end = self.behind + self.copies * len(names)
        shown = [_name(step) for step in steps[self.behind : end]]
        copies = dict(zip(shown, map(_name, self.first_steps * self.copies), strict=True))
        return Schedule(graph, tuple(steps), removed, last, (*old.decisions, self.decision), copies)

    def _late_step(self, step: _Step) -> _Step:
        return self.late.step(step, "") if self.is_late(step) else step

    def is_late(self, step: _Step) -> bool:
        """Whether a step behind the gap has other names where nothing is left out: it takes from the last
        period there what it took from the one before it.
        """
        used = (*_names(step), *step.reads, *step.writes)
        pairs, known = self.matching.pairs, self._tables[-1]
        for name in used:
            if name in known or name in self.given:
                continue
            if self.numbering.age(name) == 1 or pairs.get(name, name) != name:
                raise NotRepeated(f"{name} is used two layers later")
        return any(name in known for name in used)

    def _graph(self, steps: Sequence[_Step]) -> Graph:
        old = self.old.graph
        objects = dict(old.objects)
        buffers = self._buffers()
        for renaming in self.renamings:
            for name in self.matching.pairs:
                if name in old.objects and renaming.name(name) != name:
                    objects[renaming.name(name)] = old.objects[name]
        nodes: list[Node] = []
        order = {node.name: at for at, node in enumerate(old.nodes)}
        number, taken = self.behind - self.first, len(steps)
        cuts = [0, self.first, *range(self.behind, self.behind + self.copies * number + 1, number), taken]
        like = [*self.old.steps[: self.behind], *(self.first_steps * self.copies)]
        like += self.old.steps[self.behind :]
        for begin, end in pairwise(cuts):
            found = [
                (order[before.name], node)
                for step, one in zip(steps[begin:end], like[begin:end], strict=True)
                for node, before in zip(_nodes(step), _nodes(one), strict=True)
            ]
            nodes += [node for _, node in sorted(found, key=lambda item: item[0])]
        return replace(old, buffers=buffers, nodes=tuple(nodes), outputs=self._outputs(), objects=objects)

    def _buffers(self) -> dict[str, Buffer]:
        """Buffers in the order in which they would have been made."""
        old = self.old.graph.buffers
        late = {name for step in self.old.steps[self.behind :] for name in _all_writes(step)}
        written = {name for step in self.first_steps for name in _all_writes(step)}
        mine = [name for name in old if name in written]
        made: dict[str, Buffer] = {}
        for name, buffer in old.items():
            shown = self.late.name(name) if name in late else name
            made[shown] = buffer if shown == name else changed(buffer, name=shown)
            if mine and name == mine[-1]:
                for renaming in self.renamings:
                    for one in mine:
                        new = renaming.name(one)
                        made[new] = changed(old[one], name=new)
        return made

    def _removed(self, graph: Graph) -> tuple[str, ...]:
        old = set(self.old.removed)
        first = {name for step in self.first_steps for name in _all_writes(step)} & old
        late = {name for step in self.old.steps[self.behind :] for name in _all_writes(step)} & old
        found = {*(old - late), *map(self.late.name, late)}
        for renaming in self.renamings:
            found.update(map(renaming.name, first))
        if not found <= graph.buffers.keys():
            raise NotRepeated("names do not go on evenly")
        return tuple(sorted(found))

    def _outputs(self) -> tuple[GraphOutput, ...]:
        missing = self.short.left_out
        found: list[GraphOutput] = []
        for position, (output, copy) in enumerate(self._numbered_outputs()):
            if position not in missing:
                found.append(self.late.value(output) if copy else output)
                continue
            renamed = self.renamings[copy - 1].value(output)
            if renamed == output:
                raise NotRepeated("a result of each layer is the same")
            found.append(renamed)
        return tuple(found)


def _compared(step: _Step) -> tuple[object, ...]:
    """What has to be equal of two steps."""
    if isinstance(step, Call):
        return step.node, step.reads, step.writes
    kernel = changed(step.kernel, origins=())
    return (
        kernel.name,
        _Literal(kernel),
        step.operands,
        step.nodes,
        step.backend,
        (step.reads, step.writes),
        (
            step.inplace,
            step.alignment,
        ),
    )


class _Literal:
    """A value that holds no name of the graph, compared by equality."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Literal) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return "a kernel"


def _nodes(step: _Step) -> Sequence[Node]:
    return (step.node,) if isinstance(step, Call) else step.nodes


def _name(step: _Step) -> str:
    return step.node.name if isinstance(step, Call) else step.name


def _names(step: _Step) -> Iterable[str]:
    return [node.name for node in _nodes(step)]


def _all_writes(step: _Step) -> Iterable[str]:
    """What the nodes of a step write, inside its kernel too."""
    return [name for node in _nodes(step) for name in node.writes()]


def _origins(periods: Periods, copies: int, used: Container[str]) -> list[dict[str, Origin]]:
    """What stands for the traced nodes of the first two periods, in each of so many periods later.

    Args:
        used: the names of those that are needed.
    """
    found: list[dict[str, Origin]] = [{} for _ in range(copies)]
    texts: dict[str, str] = {}
    for at in range(BEFORE * periods.length):
        node = periods.nodes[at]
        name, op = node.name, ops.op_name(node.target)
        if name not in used:
            continue
        for copy, table in enumerate(found, 1):
            later = periods.nodes[at + copy * periods.length]
            trace = later.meta.get("stack_trace") or ""
            if trace not in texts:
                texts[trace] = fx.source_text(later)
            table[name] = Origin(op, later.name, texts[trace])
    return found
