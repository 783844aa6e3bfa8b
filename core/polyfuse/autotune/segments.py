"""Parts of a schedule as work on example inputs: what there is to time when something has several
implementations, each with other kernels around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from polyfuse.autotune.candidate import CallStep, Operand, Problem, Slot, Storage, TorchName, Window
from polyfuse.base.errors import InvalidOptionError, UnsupportedError
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, ExternCall, Opaque, View
from polyfuse.ir.types import DType
from polyfuse.runtime.devices.registry import device_of
from polyfuse.schedule import Call, Launch, Schedule
from polyfuse.symbolic import IndexLike, example_value

# Relative to the largest result: sums in another order, and matmuls of rounded operands.
_BY_TYPE: Final = {"float64": 1e-9, "float32": 1e-3, "float16": 1e-2, "bfloat16": 4e-2}
# Matmuls of float32 that a device may round to ten bits of fraction.
_ROUNDED: Final = 1e-2
_EIGHT_BITS: Final = 0.2


def tolerance(storages: Iterable[Storage], ops: Iterable[str] = (), asked: Iterable[str] = ()) -> float:
    """The tolerance for a problem: that of its operators, else that of its narrowest type.

    Args:
        ops: what it computes, as `aten.mm.default`.
        asked: the option `tune_tolerances`: `aten.mm=0.01` and the like.

    Raises:
        InvalidOptionError: a tolerance that cannot be read.
    """
    given = dict(_asked(text) for text in asked)
    names = {name for op in ops for name in (op, op.rpartition(".")[0])}
    if found := [given[name] for name in sorted(names & given.keys())]:
        return max(found)
    worst = 1e-9
    for storage in storages:
        if storage.dtype.startswith("float8"):
            worst = max(worst, _EIGHT_BITS)
        elif storage.dtype == "float32" and _rounds(storage.device):
            worst = max(worst, _ROUNDED)
        else:
            worst = max(worst, _BY_TYPE.get(storage.dtype, 0.0))
    return worst


def _asked(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not number > 0:
        raise InvalidOptionError(f"tune_tolerances has {text!r}", "write operator=number, as aten.mm=0.01")
    return name.strip(), number


def _rounds(device: str) -> bool:
    found = device_of(device)
    return found.rounds("matmuls") or found.rounds("convolutions")


_GROUPED_GEMM = "aten._grouped_mm.default"
# Kinds of buffers that a model reads from memory: nothing wrote them just before.
_COLD = ("input", "constant")


@dataclass(frozen=True)
class Segment:
    """Some steps of a schedule, in order, that are timed together."""

    graph: Graph
    steps: tuple[Launch | Call, ...]

    @property
    def ops(self) -> frozenset[str]:
        """The operators that it computes."""
        launched = {o.op for s in self.steps if isinstance(s, Launch) for o in s.kernel.origins}
        return frozenset(launched | {s.node.op for s in self.steps if isinstance(s, Call)})

    def describe(self) -> str:
        """A text that is equal for segments that take equal time."""
        names: dict[str, str] = {}
        lines: list[str] = []
        for step in self.steps:
            if isinstance(step, Launch):
                operands = [self._layout(o, names) if isinstance(o, str) else "size" for o in step.operands]
                lines.append(f"{ir_digest(step.kernel)} {' '.join(operands)}")
            else:
                node = step.node
                lines.append(
                    f"{node.op} {self._argument(node.args, names)} {self._argument(node.kwargs, names)} -> "
                    f"{' '.join(self._layout(o, names) for o in node.outputs)}"
                )
        return "\n".join(lines)

    def _layout(self, name: str, names: dict[str, str]) -> str:
        buffer = self.graph.buffers[name]
        number = names.setdefault(name, f"b{len(names)}")
        sizes = [self._number(n) for n in (*buffer.size, *buffer.stride)]
        kind = "cold" if buffer.kind in _COLD else "warm"
        return f"{number}:{buffer.torch_dtype}:{sizes}:{kind}"

    def _argument(self, value: Any, names: dict[str, str]) -> str:
        if isinstance(value, View):
            parts = [self._number(n) for n in (*value.size, *value.stride, value.offset)]
            return f"{self._layout(value.buffer, names)}{parts}{value.dtype or ''}"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(self._argument(item, names) for item in value)})"
        return repr(value)

    def _number(self, value: IndexLike) -> int:
        return example_value(value, self.graph.symbol_hints)


def segment(schedule: Schedule, nodes: frozenset[str]) -> Segment:
    """The steps that compute any of these nodes."""
    return Segment(schedule.graph, tuple(s for s in schedule.steps if node_names(s) & nodes))


def node_names(step: Launch | Call) -> frozenset[str]:
    """The nodes that a step computes."""
    return frozenset(n.name for n in (step.nodes if isinstance(step, Launch) else (step.node,)))


def around(step: Launch | Call, nodes: frozenset[str]) -> frozenset[str]:
    """All nodes of a launch that computes some of these; other calls are not timed."""
    names = node_names(step)
    return names if isinstance(step, Launch) and names & nodes else frozenset()


@dataclass
class Operands:
    """The storages of a problem, for graphs that share the names of buffers.

    What a call reads is random; other integers are zero, because they may be indices.
    """

    hints: Mapping[str, int]
    storages: list[Storage] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    frozen: dict[str, CallStep] = field(default_factory=dict)

    def slot(self, buffer: Buffer, numbers: bool = False) -> Slot:
        """A buffer as an operand. `numbers`: narrow integers in it are numbers, not indices."""
        found = self.numbers.get(buffer.name)
        if found is None:
            found = self.numbers[buffer.name] = len(self.storages)
            count = self._number(buffer.storage)
            cold = buffer.kind in _COLD
            fill = "normal" if buffer.dtype is not None and buffer.dtype.is_float else "zero"
            self.storages.append(Storage(buffer.torch_dtype, buffer.device, count, fill, cold))
        if numbers and buffer.dtype in (DType.i8, DType.u8):
            self.storages[found] = replace(self.storages[found], fill="small")
        return Slot(found)

    def problem(
        self, about: str, device: str, timer: str, segments: Sequence[Segment], tolerances: Iterable[str] = ()
    ) -> Problem:
        """What segments that compute the same are timed on; they are compared by what all of them write.

        Args:
            tolerances: the option `tune_tolerances`.
        """
        written = [
            {w for s in part.steps for w in s.writes if part.graph.buffers[w].dtype is not None}
            for part in segments
        ]
        names = set.intersection(*written) & self.numbers.keys()
        results = tuple(sorted(self.numbers[name] for name in names))
        storages = tuple(self.storages)
        ops = {op for part in segments for op in part.ops}
        return Problem(about, device, timer, storages, results, tolerance(storages, ops, tolerances))

    def named(self, graph: Graph, operands: Sequence[str | IndexLike]) -> tuple[Operand, ...]:
        """Buffers by name, and sizes."""
        return tuple(
            self.frozen.get(o) or self.slot(graph.buffers[o]) if isinstance(o, str) else self._number(o)
            for o in operands
        )

    def freeze(self, graph: Graph, node: ExternCall) -> None:
        """Note a call that is done once, so that no run of a candidate has it in it."""
        self.frozen[node.outputs[0]] = CallStep(node.op, tuple(self._value(graph, a) for a in node.args))

    def call(self, graph: Graph, node: ExternCall) -> CallStep:
        """A call of a library.

        Raises:
            UnsupportedError: it takes more than tensors, numbers and names.
        """
        into: Window | None = None
        if len(node.outputs) == 1 and node.outputs[0]:
            into = self._window(graph, graph.buffers[node.outputs[0]].view())
        args = tuple(self._value(graph, a) for a in node.args)
        named = tuple((key, self._value(graph, value)) for key, value in node.kwargs)
        if node.op == _GROUPED_GEMM:
            self._share(node)
        return CallStep(node.op, args, named, into, node.out == "out")

    def _number(self, value: IndexLike) -> int:
        return example_value(value, self.hints)

    def _share(self, node: ExternCall) -> None:
        """Give the groups of a GEMM equal shares; with groups that are empty nothing would be timed."""
        left, right, *rest = node.args
        ends = rest[0] if rest else dict(node.kwargs).get("offs")
        if not isinstance(ends, View):
            return
        total = right.size[-1] if len(left.size) == 3 else left.size[0 if len(right.size) == 3 else 1]
        number = self.numbers[ends.buffer]
        self.storages[number] = replace(self.storages[number], fill=f"ends {self._number(total)}")

    def _window(self, graph: Graph, view: View) -> Window:
        buffer = graph.buffers[view.buffer]
        size, stride = (tuple(map(self._number, part)) for part in (view.size, view.stride))
        dtype = buffer.torch_dtype if view.dtype is None else str(view.dtype.torch).removeprefix("torch.")
        return Window(self.slot(buffer, True).number, size, stride, self._number(view.offset), dtype)

    def _value(self, graph: Graph, value: Any) -> object:
        if isinstance(value, View):
            return self.frozen.get(value.buffer) or self._window(graph, value)
        if isinstance(value, (tuple, list)):
            return tuple(self._value(graph, item) for item in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Opaque):
            name = value.text.removeprefix("torch.")
            if value.text != name and name.isidentifier():
                return TorchName(name)
            raise UnsupportedError("a call takes an object that only the model has")
        return self._number(value)
