"""What buffers lie in while a program runs, and views of them: operands, results, and those with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyfuse.base.errors import IRError
from polyfuse.ir.graph import Graph, views_in
from polyfuse.ir.nodes import Buffer, Opaque, Origin, View
from polyfuse.ir.records import changed
from polyfuse.program.memory import MemoryPlan
from polyfuse.program.pools import ALIGNMENT, Pool, PoolSlice
from polyfuse.program.steps import Allocate, Free, KeepMemory, MakeView, ProgramInput, Ref, Reuse, Step
from polyfuse.schedule.result import Call, Schedule


class StepList(list[Step]):
    """The steps of a program so far.

    Args:
        taken: variables that the graph has names for.

    Attributes:
        origins: the operators that the steps which are added now come from.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        super().__init__()
        self.origins: tuple[Origin, ...] = ()
        self._taken = frozenset(taken)
        self._temporaries = 0

    def add(self, step: Step) -> None:
        """Add one with the present origins."""
        self.append(changed(step, origins=self.origins) if self.origins else step)

    def temporary(self, prefix: str) -> str:
        """A variable that the graph has no name like: its inputs are called after the traced nodes."""
        while True:
            self._temporaries += 1
            name = f"{prefix}_{self._temporaries}"
            if name not in self._taken:
                return name


class Storage:
    """Gives buffers memory when they are first written, and takes it back.

    Args:
        graph: what is planned.
        inputs: of the program.
        memory: who takes whose storage.
        slices: buffers that lie in pools.
        removed: buffers that nobody reads, which get none.
        repeated: views that are needed more than once.
        steps: takes what is to be done.

    Attributes:
        bound: variables that have a value now.
        views: names of the views that have one.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[ProgramInput],
        memory: MemoryPlan,
        slices: Mapping[str, PoolSlice],
        removed: frozenset[str],
        repeated: frozenset[View],
        steps: StepList,
    ) -> None:
        self.bound = {item.name: None for item in inputs if item.kind == "tensor"}
        self.views: dict[View, str] = {}
        self._graph = graph
        self._objects = frozenset(item.name for item in graph.inputs if item.kind == "object")
        self._takes = memory.takes
        self._taken = frozenset(memory.takes.values())
        self._slices = slices
        self._removed = removed
        self._repeated = repeated
        self._live_out = frozenset(graph.output_buffers())
        self._dead: set[str] = set()
        self._pools: dict[Pool, str] = {}
        self._steps = steps

    def ensure(self, name: str) -> str:
        """Give a buffer memory if it has none.

        Returns:
            The buffer whose storage it takes over, or ``""``.

        Raises:
            IRError: it has no value where the schedule reads it.
        """
        buffer = self._graph.buffers[name]
        if name in self.bound or name in self._removed or buffer.kind == "constant":
            return ""
        if buffer.kind not in ("temp", "status") or name in self._dead:
            raise IRError(
                f"the schedule of {self._graph.name} uses {name} where it has no value",
                "report it with the dumped schedule",
            )
        self.bound[name] = None
        if name in self._slices:
            self._carve(name, self._slices[name])
            return ""
        old = self._takes.get(name)
        if old is None:
            layout, status = (buffer.size, buffer.stride, buffer.torch_dtype), buffer.kind == "status"
            self._steps.add(Allocate(name, *layout, buffer.device, status=status))
            return ""
        before = self._graph.buffers[old]
        same = (before.size, before.stride) == (buffer.size, buffer.stride)
        self._forget_views(old)
        self._steps.add(Reuse(name, old, buffer.size, buffer.stride, same))
        self._forget(old)
        return old

    def _carve(self, name: str, part: PoolSlice) -> None:
        """Make a buffer a part of its pool; the first one of a pool allocates that."""
        buffer, pool = self._graph.buffers[name], part.pool
        if pool not in self._pools:
            self._pools[pool] = self._steps.temporary("pool")
            size = (pool.extent,)
            self._steps.add(Allocate(self._pools[pool], size, (1,), "uint8", pool.device, pool.cached))
        offset = part.units * (ALIGNMENT // buffer.itemsize)
        view = View(self._pools[pool], buffer.size, buffer.stride, offset, buffer.dtype)
        self._steps.add(MakeView(name, view))

    def drop(self, names: tuple[str, ...]) -> None:
        """Release inputs that nothing uses."""
        if names:
            self._steps.add(Free(names))
            for name in names:
                self._forget(name)

    def free(self, dead: Iterable[str], position: int) -> None:
        """Release what nobody needs behind a step of the schedule, and pools whose last buffer died in it."""
        names: list[str] = []
        for name in dead:
            if name in self.bound and name not in self._taken and name not in self._live_out:
                names.extend(self._views_of(name))
                names.append(name)
                self._forget(name)
            elif name in self.bound and name in self._taken:
                self._forget_views(name)
        if names:
            self._steps.add(Free(tuple(names)))
        pools = tuple(name for pool, name in self._pools.items() if pool.last == position)
        for pool, name in self._pools.items():
            if pool.cached and name in pools:
                self._steps.add(KeepMemory(name))
        if pools:
            self._steps.add(Free(pools))

    def _forget(self, name: str) -> None:
        del self.bound[name]
        self._dead.add(name)

    def _views_of(self, buffer: str) -> list[str]:
        found = [view for view in self.views if view.buffer == buffer]
        return [self.views.pop(view) for view in found]

    def _forget_views(self, buffer: str) -> None:
        names = self._views_of(buffer)
        if names:
            self._steps.add(Free(tuple(names)))

    def operand(self, value: Any) -> Any:
        """An argument with its views replaced by variables, where there are any."""
        if isinstance(value, (tuple, list)):
            return tuple(self.operand(item) for item in value)
        if isinstance(value, Opaque) and value.key in self._objects:
            return Ref(value.key)
        if not isinstance(value, View):
            return value
        if is_whole(value, self._graph.buffers[value.buffer]):
            return Ref(value.buffer)
        if value not in self._repeated:
            return value
        if value not in self.views:
            name = self._steps.temporary("view")
            self._steps.add(MakeView(name, value))
            self.views[value] = name
        return Ref(self.views[value])


def is_whole(view: View, buffer: Buffer) -> bool:
    """Whether a view is the buffer itself."""
    return (
        (view.size, view.stride, view.offset) == (buffer.size, buffer.stride, 0)
        and (view.dtype is None or view.dtype is buffer.dtype)
    ) or buffer.kind == "object"


def is_view_of_result(view: View, graph: Graph) -> bool:
    """Whether a result is a view of what the graph computed, of which autograd is to know.

    AOTAutograd makes those of inputs, and in training those that autograd follows, from their bases.
    """
    buffer = graph.buffers[view.buffer]
    if graph.kind != "inference" or view.dtype is not None or is_whole(view, buffer):
        return False
    return all(view.buffer != item.name for item in graph.inputs)


def repeated_views(graph: Graph, schedule: Schedule) -> frozenset[View]:
    """Views that are needed more than once, as operands or results."""
    counts: dict[View, int] = {}
    wanted: list[Any] = [o.value for o in graph.outputs]
    for step in schedule.steps:
        if isinstance(step, Call):
            wanted.append((step.node.args, tuple(value for _, value in step.node.kwargs)))
    for view in views_in(wanted):
        if not is_whole(view, graph.buffers[view.buffer]):
            counts[view] = counts.get(view, 0) + 1
    return frozenset(view for view, count in counts.items() if count > 1)
