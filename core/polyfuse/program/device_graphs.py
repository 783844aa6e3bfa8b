"""Whether a program's work can be recorded and replayed by its device, and what a recording has to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.communication import is_communication
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import OBJECT_CALL, Collective, ExternCall, Opaque
from polyfuse.lowering.calls.fallback import Rebuilt
from polyfuse.program.steps import ProgramInput
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.graphs.replay import GraphFacts
from polyfuse.schedule.result import Call, Launch, Schedule
from polyfuse.symbolic import free_symbols
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.devices.device_graphs import unsafe_to_record
from polyfuse.torch_compat.groups import group_of
from polyfuse.torch_compat.tracing import shapes
from polyfuse.torch_compat.user_kernels import UserKernel

UNSAFE: Final = frozenset(
    {
        "aten._fused_moving_avg_obs_fq_helper",
        "aten._fused_moving_avg_obs_fq_helper_functional",
        "aten.multinomial",
        "aten._local_scalar_dense",
        "aten._assert_scalar",
        "fbgemm.dense_to_jagged",
        "fbgemm.jagged_to_padded_dense",
    }
)
"""Operators, whatever their overload, that wait for the device or choose what to do by what they find there.
"""

UNSAFE_IF_DETERMINISTIC: Final = frozenset(
    {
        "aten.index_put",
        "aten.index_put_",
        "aten._unsafe_index_put",
        "aten._unsafe_masked_index_put_accumulate",
        "aten._index_put_impl_",
        "aten.masked_scatter",
        "aten.scatter",
        "aten.scatter_",
        "aten.scatter_add",
        "aten.scatter_add_",
        "aten.scatter_reduce",
        "aten.scatter_reduce_",
    }
)
"""The same for those that do it under `torch.use_deterministic_algorithms`."""

DOUBTFUL: Final = frozenset({"aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2"})
"""Operators that wait for some devices or types."""

_KNOWN: Final = ("aten.", "prims.", "higher_order.", "operator.")
"""Where operators come from of which torch says what they do."""

_WITH_STATE: Final = ".graphsafe_run_with_rng_state"
"""Calls an operator that is one of its arguments, with a given state of random numbers."""

_OPTIONS_IN_THE_WAY: Final = {
    "nan_asserts": "waits for the device",
    "debug_sync": "waits for the device",
    "profile": "looks at every launch",
    "observe": "looks at every result",
}


def graph_facts(
    schedule: Schedule, inputs: Sequence[ProgramInput], unused: Sequence[str], settings: Settings
) -> GraphFacts | None:
    """What a recording of the program needs to know; None if recording is not asked for.

    Args:
        schedule: what the program does.
        inputs: its inputs.
        unused: inputs that it does not look at.
        settings: whether to record at all.
    """
    if not settings.device_graphs:
        return None
    graph = schedule.graph
    devices = _devices(schedule, unused)
    mutated = set(graph.mutated_inputs())
    positions = [
        (i, item) for i, item in enumerate(inputs) if item.kind == "tensor" and item.name not in unused
    ]
    varying = tuple(i for i, item in positions if not item.static)
    return GraphFacts(
        device=next(iter(devices), "cpu"),
        fixed=tuple(i for i, item in positions if item.static),
        varying=varying,
        mutated=tuple(i for i, item in positions if item.name in mutated),
        carried=_carried(graph, varying),
        gradients=tuple(i for i in varying if _is_gradient(graph, i)),
        saved=tuple(i for i, output in enumerate(graph.outputs) if output.saved),
        objects=tuple(i for i, item in enumerate(inputs) if item.kind == "object"),
        refused=_refusal(schedule, inputs, devices, settings),
        limit=settings.max_device_graphs,
    )


def _devices(schedule: Schedule, unused: Sequence[str]) -> Mapping[str, str]:
    """Devices that the program computes on, each with the name of a buffer there."""
    found: dict[str, str] = {}
    removed = {*schedule.removed, *unused}
    touched = {name for step in schedule.steps for name in (*step.reads, *step.writes)}
    touched.update(schedule.graph.output_buffers())
    for buffer in schedule.graph.buffers.values():
        if buffer.name in touched and buffer.name not in removed and buffer.device:
            found.setdefault(buffer.device, buffer.name)
    return found


def _carried(graph: Graph, varying: Sequence[int]) -> tuple[int, ...]:
    """Inputs of a backward that its forward computed: not what comes from outside, now or then."""
    if graph.kind != "backward":
        return ()
    return tuple(i for i in varying if not graph.inputs[i].name.startswith(("tangents", "primals")))


def _is_gradient(graph: Graph, number: int) -> bool:
    """Whether an input of a backward is the gradient of a result."""
    return graph.kind == "backward" and graph.inputs[number].name.startswith("tangents")


def _refusal(
    schedule: Schedule, inputs: Sequence[ProgramInput], devices: Mapping[str, str], settings: Settings
) -> str:
    """Why the program cannot be recorded; empty if nothing is known to be in the way."""
    if len(devices) > 1:
        names = " and ".join(f"{device} ({name})" for device, name in devices.items())
        return f"it computes on {names}"
    option = preventing_option(settings)
    if option:
        return option
    for item in inputs:
        if item.kind == "symint" and item.value is not None:
            if any(shapes.is_unbacked_name(symbol) for symbol in free_symbols(item.value)):
                return f"the size {item.name} depends on data"
    return next(_faults(schedule), "")


def preventing_option(settings: Settings) -> str:
    """The option under which nothing is recorded, and why; empty if there is none."""
    for option, does in _OPTIONS_IN_THE_WAY.items():
        if getattr(settings, option):
            return f"the option {option} {does}"
    return ""


def partition_fault(step: Launch | Call, graph: Graph, device: str) -> str:
    """Why a step cannot be recorded with others on a device; empty if it can."""
    for name in (*step.reads, *step.writes):
        buffer = graph.buffers.get(name)
        if buffer is not None and buffer.device not in (device, ""):
            return f"{name} is on {buffer.device}"
    return _fault(step.node, graph)[1] if isinstance(step, Call) else ""


def _faults(schedule: Schedule) -> Iterator[str]:
    for step in schedule.steps:
        if not isinstance(step, Call):
            continue
        if is_communication(step.node) and _records_collectives(schedule):
            continue
        name, fault = _fault(step.node, schedule.graph)
        if fault:
            source = next((o.source for o in step.node.origins if o.source), "")
            yield f"{name} {fault}" + (f" ({source})" if source else "")


def _records_collectives(schedule: Schedule) -> bool:
    """Whether all collectives of a program take part in a recording of it as a whole."""
    return all(
        _is_recorded(step.node, schedule.graph)
        for step in schedule.steps
        if isinstance(step, Call) and isinstance(step.node, Collective)
    )


def _is_recorded(call: Collective, graph: Graph) -> bool:
    group = group_of(call.group)
    names = (*call.writes(), *call.mutates)
    devices = {graph.buffers[name].device for name in names if name in graph.buffers}
    if group is None or len(devices) != 1:
        return False
    device = next(iter(devices))
    return group.library(device.partition(":")[0]) in device_of(device).recorded_collectives


def doubtful(step: Launch | Call, graph: Graph) -> bool:
    """Whether only trying shows if a step can be recorded: it runs code of somebody else, or an operator that
    waits for some devices.
    """
    if not isinstance(step, Call):
        return False
    target, records = _target(step.node, graph)
    if records or target is None:
        return False
    name = ops.op_name(target)
    return name.rpartition(".")[0] in DOUBTFUL or not name.startswith(_KNOWN)


def _fault(call: ExternCall, graph: Graph) -> tuple[str, str]:
    """The name of what is called, and what is wrong with recording it."""
    if is_communication(call):
        return call.op, "communicates with other processes"
    target, records = _target(call, graph)
    if records:
        return call.op, ""
    if target is None:
        return call.op, "is unknown"
    return _op_fault(call, target)


def _target(call: ExternCall, graph: Graph) -> tuple[Any, bool]:
    """What is called, None if that is unknown, and whether it is known to record."""
    target: Any = None
    if call.op.startswith(OBJECT_CALL):
        target = graph.objects.get(call.op.removeprefix(OBJECT_CALL))
        if isinstance(target, UserKernel) or getattr(target, "records", False):
            return target, True
        target = target.target if isinstance(target, Rebuilt) else target
    else:
        target = ops.maybe_op(call.op)
    if target is not None and ops.op_name(target).endswith(_WITH_STATE):
        # the device knows the generator that it draws from, as it knows its own
        drawn = (graph.objects.get(arg.key) for arg in call.args if isinstance(arg, Opaque) and arg.key)
        target = next((op for op in drawn if isinstance(op, ops.OpOverload)), target)
    return target, False


def _op_fault(call: ExternCall, target: Any) -> tuple[str, str]:
    name, facts = ops.op_name(target), ops.facts(target)
    base = name if name.count(".") < 2 else name.rpartition(".")[0]
    if base in UNSAFE or unsafe_to_record(target):
        return name, "cannot be recorded"
    if call.symbols or facts.data_dependent:
        return name, "makes a size depend on data"
    if base in UNSAFE_IF_DETERMINISTIC and torch.are_deterministic_algorithms_enabled():
        return name, "cannot be recorded while algorithms have to be deterministic"
    if facts.is_higher_order or (facts.effects and not facts.mutates and not facts.is_random):
        return name, "does more than compute on the device"
    return name, ""
