"""Guards of a traced frame: a record of which there are, and the same guards built on a frame of another
process, where nothing was traced.

torch's own way to store guards pickles the values that they were made from, and leaves out those that compare
identities: functions, classes, modules. Here no value is stored. Guards are built again on the values of the
frame that is about to run, identities among them, and what they then say, with each identity replaced by a
description of the object, must be what they said when the frame was traced.
"""

from __future__ import annotations

import copyreg
import functools
import io
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import CodeType
from typing import Any

import torch
from torch._dynamo import guards as dynamo_guards
from torch._dynamo.guards import CheckFunctionManager
from torch._guards import GuardsSet, Source, TracingContext, tracing
from torch.utils._ordered_set import OrderedSet

Describe = Callable[[object], str]
"""What an object is, as text that is the same in every process; `Unstorable` where there is none."""

# Guards that hold for objects of one process alone, or that follow how often something was written to.
_OF_ONE_PROCESS = frozenset({"WEAKREF_ALIVE", "DICT_VERSION", "GLOBAL_WEAKREF"})

# Not those within names that torch makes of identities: such a variable is part of a record.
_EQUAL, _TYPE = "EQUALS_MATCH", "TYPE_MATCH"
# Types of values of which Python prints everything, in the same way everywhere.
_SAID = (int, float, complex, bool, str, bytes, type(None))

_NUMBER = re.compile(r"\b\d{6,}\b")
_HOOKS = re.compile(r"_(global_)?(forward|backward)(_pre)?_hooks")
# What torch adds to a guard for people: the line of the model, unless that was taken away, and hints.
_COMMENT = re.compile(r"([ \t]+# .*|[ \t]*\(HINT: .*\))?[ \t]*$", re.MULTILINE)


class Unstorable(Exception):
    """Why what Dynamo made of a frame is not stored."""


class GuardsDiffer(Exception):
    """The guards of a record say something else on this frame."""


@dataclass(frozen=True)
class Compared:
    """What guards compare that their text says in words of one process.

    Attributes:
        by_identity: objects by their identities.
        by_value: values that have parts, by what Python prints of them: addresses of functions, sets in an
            order of this process, or nothing of what tells two of them apart.
        modules: whose types they compare, by the names that guards have for them.
    """

    by_identity: dict[int, object] = field(default_factory=dict)
    by_value: dict[str, object] = field(default_factory=dict)
    modules: dict[str, torch.nn.Module] = field(default_factory=dict)


class NotingBuilder(CheckFunctionManager):
    """Builds guards, and keeps the objects that they compare, and what is said of sizes."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.compared = Compared()
        super().__init__(*args, **named)

    def build_guards(
        self, guards: Any, known: Any, code: CodeType, graph: Any, save: bool, **named: Any
    ) -> Any:
        """Torch notes what guards on sizes say only where it is to store them."""
        builder, manager = super().build_guards(guards, known, code, graph, True, **named)
        for guard in guards:
            kinds = guard.guard_types or ()
            value = builder.get(guard) if _EQUAL in kinds or _TYPE in kinds else None
            if isinstance(value, torch.nn.Module):
                self.compared.modules[guard.name] = value
            elif _EQUAL in kinds and type(value) not in _SAID:
                self.compared.by_value[repr(value)] = value
        return builder, manager

    def id_ref(self, obj: object, obj_str: str) -> int:
        self.compared.by_identity[id(obj)] = obj
        return super().id_ref(obj, obj_str)

    def taken(self) -> Compared:
        """These objects, which the builder, who lives as long as its guards, then lets go."""
        found, self.compared = self.compared, Compared()
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
        return pickled((state, manager.shape_code_parts))
    except Exception as error:
        raise Unstorable(f"its guards cannot be pickled ({error})") from error


def pickled(value: object) -> bytes:
    """What `pickle.loads` makes an equal value of, in which sources of guards have the fields of these.

    torch has a source made again from its fields, and torch 2.11 counts those among them that a source
    computes when it is made: one of an argument's default cannot be read, of which each BERT has some.

    Raises:
        Exception: whatever a part raises that cannot be pickled.
    """
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Reads the fields of sources, and sets them on a new one."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Source):
            return NotImplemented
        state = {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)}
        return copyreg.__newobj__, (type(value),), state  # type: ignore[attr-defined]


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
        fail: called with guards that fail.

    Raises:
        Unstorable: an object that they compare has no description.
        GuardsDiffer: one of them fails on the frame.
        Exception: whatever torch raises where the frame lacks what is guarded.
    """
    from torch._dynamo.output_graph import OutputGraphCommon

    with tracing(TracingContext(None)):  # sources of values note their own guards when they are made
        state, shapes = pickle.loads(record)
    # torch's own check counts in the trace around it, which there is not
    state = replace(state, local_scope=f_locals, global_scope=f_globals, skip_guards_check=True)
    with _unannounced():
        builder = NotingBuilder(code, OutputGraphCommon(state), None, fail, shape_code_parts=shapes)
    found: Any = builder.guard_manager
    if not found.check(f_locals):
        raise GuardsDiffer("a guard of it fails")
    return found, text_of(found, builder.taken(), describe)


@contextmanager
def _unannounced() -> Iterator[None]:
    """Torch logs an error where a frame lacks what is guarded, which here says that another record fits."""
    log: Any = logging.getLogger("torch._guards")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def text_of(manager: Any, compared: Compared, describe: Describe) -> str:
    """What guards say, with descriptions instead of identities and of values that have parts; and which
    hooks modules have, of which Dynamo leaves guards out."""
    objects, said = compared.by_identity, dict[int, str]()

    def described(match: re.Match[str]) -> str:
        number = int(match[0])
        if number in objects and number not in said:
            said[number] = f"<{describe(objects[number])}>"
        return said.get(number, match[0])

    hooks = (
        f"\n{name} {kind} <{describe(hook)}>"
        for name, module in sorted(compared.modules.items())
        for kind, hook in hooks_of(module)
    )
    text = str(manager) + "".join(hooks)
    if not hasattr(dynamo_guards, "_safe_type_repr"):
        # before torch 2.13, as the type of an object stands what Python prints of it
        for number, value in objects.items():
            text = text.replace(f", {number}), type={_printed(value)}", f", {number})")
    # the longest first: one may be how another begins
    for printed in sorted(compared.by_value, key=len, reverse=True):
        text = text.replace(f"== {printed}", f"== <{describe(compared.by_value[printed])}>")
    return _NUMBER.sub(described, text)


def _printed(value: object) -> str:
    """What guards say of an object's type before torch 2.13."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def is_constant(value: object) -> bool:
    """Whether an object is of a type that somebody declared to be constant: compared by its value."""
    return torch.utils._pytree.is_constant_class(type(value))


def hooks_of(module: Any) -> Iterator[tuple[str, object]]:
    """The hooks of calls of a module, or of `torch.nn.modules.module` for those of all modules, with their
    kinds, and how they are called."""
    for kind, hooks in vars(module).items():
        if _HOOKS.match(kind) and isinstance(hooks, dict):
            yield from ((kind, hook) for hook in hooks.values())


def without_comments(text: str) -> str:
    """What guards say but for the lines of the model, and for parts of constants that look so: to be compared
    in one process alone. Of equal guards, as each bucket of a graph adds them, there is one."""
    lines = _COMMENT.sub("", text).split("\n")
    return "\n".join(line for number, line in enumerate(lines) if not number or line != lines[number - 1])
