"""Guards of a traced frame: a record of which there are, and the same guards built on a frame of another
process, where nothing was traced.

torch's own way to store guards pickles the values that they were made from, and leaves out those that compare
identities: functions, classes, modules. Here no value is stored. Guards are built again on the values of the
frame that is about to run, identities among them, and what they then say, with each identity replaced by a
description of the object, must be what they said when the frame was traced.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch._dynamo.guards import CheckFunctionManager
from torch._guards import GuardsSet, TracingContext, tracing
from torch.utils._ordered_set import OrderedSet

__all__ = [
    "GuardsDiffer",
    "NotingBuilder",
    "Unstorable",
    "rebuilt",
    "recorded",
    "text_of",
    "without_comments",
]

Describe = Callable[[object], str]
"""What an object is, as text that is the same in every process; `Unstorable` where there is none."""

# Guards that hold for objects of one process alone, or that follow how often something was written to.
_OF_ONE_PROCESS = frozenset({"WEAKREF_ALIVE", "DICT_VERSION", "GLOBAL_WEAKREF"})

# Not those within names that torch makes of identities: such a variable is part of a record.
_NUMBER = re.compile(r"\b\d{6,}\b")
# What torch adds to a guard for people: the line of the model, unless that was taken away, and hints.
_COMMENT = re.compile(r"([ \t]+# .*|[ \t]*\(HINT: .*\))?[ \t]*$", re.MULTILINE)


class Unstorable(Exception):
    """Why what Dynamo made of a frame is not stored."""


class GuardsDiffer(Exception):
    """The guards of a record say something else on this frame."""


class NotingBuilder(CheckFunctionManager):
    """Builds guards, and keeps the objects whose identities they compare, and what is said of sizes."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.compared: dict[int, object] = {}
        super().__init__(*args, **named)

    def build_guards(
        self, guards: Any, known: Any, code: CodeType, graph: Any, save: bool, **named: Any
    ) -> Any:
        """Torch notes what guards on sizes say only where it is to store them."""
        return super().build_guards(guards, known, code, graph, True, **named)

    def id_ref(self, obj: object, obj_str: str) -> int:
        self.compared[id(obj)] = obj
        return super().id_ref(obj, obj_str)

    def taken(self) -> Mapping[int, object]:
        """These objects, which the builder, who lives as long as its guards, then lets go."""
        found, self.compared = self.compared, {}
        return found


def recorded(manager: CheckFunctionManager, graph: Any) -> bytes:
    """The guards of a frame that was traced just now.

    Args:
        manager: which built them.
        graph: Dynamo's record of the trace.

    Raises:
        Unstorable: they cannot be built again elsewhere.
    """
    state = graph.dump_guards_state()
    refused = {
        "modes that see every call": state.torch_function_mode_stack,
        "transforms of torch.func": state.functorch_layers,
        "forward-mode differentiation": state.dual_level >= 0,
        "guards on how inputs share memory": state._aotautograd_guards,
        "torch.export": state.export or state.export_constraints,
    }
    for what, there in refused.items():
        if there:
            raise Unstorable(f"it depends on {what}")
    state = replace(
        state,
        local_scope={},
        global_scope={},
        torch_function_mode_stack=[],
        _guards=GuardsSet(OrderedSet(map(_plain, state._guards))),
        input_source_to_sizes_strides=torch.utils._pytree.tree_map(
            _constant, state.input_source_to_sizes_strides
        ),
    )
    try:
        return pickle.dumps((state, manager.shape_code_parts))
    except Exception as error:
        raise Unstorable(f"its guards cannot be pickled ({error})") from error


def _plain(guard: Any) -> Any:
    """A guard without what belongs to this process."""
    if _OF_ONE_PROCESS & {guard.create_fn_name(), *(guard.guard_types or ())}:
        raise Unstorable(f"it has a guard of kind {guard.create_fn_name()}")
    create = guard.create_fn
    if isinstance(create, functools.partial):
        # a reference to the value that is guarded: elsewhere it is looked up in the frame
        named = {key: value for key, value in create.keywords.items() if not _refers(value)}
        if any(map(_refers, create.args)):
            raise Unstorable(f"a guard of kind {guard.create_fn_name()} refers to an object")
        create = functools.partial(create.func, *create.args, **named)
    return replace(
        guard,
        create_fn=create,
        stack=None,
        user_stack=None,
        guard_types=None,
        code_list=None,
        obj_weakref=None,
        guarded_class_weakref=None,
    )


def _refers(value: object) -> bool:
    from weakref import ReferenceType

    from torch._dynamo.guards import TensorWeakRef

    return isinstance(value, (TensorWeakRef, ReferenceType, torch.Tensor))


def _constant(size: Any) -> Any:
    return size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size


def rebuilt(
    record: bytes,
    code: CodeType,
    f_locals: dict[str, Any],
    f_globals: dict[str, Any],
    describe: Describe,
    fail: Callable[..., None] | None = None,
) -> tuple[Any, str]:
    """The guards of a record, built on the values of a frame, and what they say as text.

    Args:
        record: is unpickled, which can execute anything.
        code: of the frame.
        fail: is told of guards that fail.

    Raises:
        Unstorable: an object that they compare has no description.
        GuardsDiffer: one of them fails on the frame.
        Exception: whatever torch raises where the frame lacks what is guarded.
    """
    from torch._dynamo.output_graph import OutputGraphCommon

    with tracing(TracingContext(None)):  # places of values have their own guards noted when they are made
        state, shapes = pickle.loads(record)
    # torch's own check counts in the trace around it, which there is not
    state = replace(state, local_scope=f_locals, global_scope=f_globals, skip_guards_check=True)
    builder = NotingBuilder(code, OutputGraphCommon(state), None, fail, shape_code_parts=shapes)
    found: Any = builder.guard_manager
    if not found.check(f_locals):
        raise GuardsDiffer("a guard of it fails")
    return found, text_of(found, builder.taken(), describe)


def text_of(manager: Any, compared: Mapping[int, object], describe: Describe) -> str:
    """What guards say, with descriptions in the place of the identities that they compare."""

    def described(match: re.Match[str]) -> str:
        number = int(match[0])
        return f"<{describe(compared[number])}>" if number in compared else match[0]

    return _NUMBER.sub(described, str(manager))


def without_comments(text: str) -> str:
    """What guards say but for the lines of the model, and for parts of constants that look so: to be compared
    in one process alone."""
    return _COMMENT.sub("", text)
