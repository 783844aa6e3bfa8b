"""Operators: names and back, whether they come with torch, and the facts a schema and its tags state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace, _Ops

__all__ = [
    "OpArgument",
    "WAIT_TENSOR",
    "arguments",
    "base_name",
    "communicates",
    "is_mutable",
    "overload_name",
    "HigherOrderOperator",
    "NAMESPACE_TYPES",
    "OpFacts",
    "OpOverload",
    "OpOverloadPacket",
    "argument_names",
    "facts",
    "maybe_op",
    "names_in",
    "op_name",
    "resolve",
    "result_names",
]

# Whose attributes are operators.
NAMESPACE_TYPES = (_Ops, _OpNamespace, OpOverloadPacket)


@dataclass(frozen=True)
class OpFacts:
    """What is known of an operator without running it."""

    name: str
    """Such as `aten.add.Tensor`; `operator.getitem` for Python functions."""
    is_operator: bool
    """A registered overload, with a schema."""
    is_higher_order: bool
    """Takes graphs as arguments (`cond`, `while_loop`, user kernels)."""
    is_view: bool
    """An output may share storage with an input, which is not written to."""
    is_random: bool
    """Draws from a generator: neither merged, nor dropped, nor reordered among its like."""
    uninitialised: bool
    """The result holds whatever memory held: two of them are not one."""
    mutates: tuple[int, ...]
    """Positions of schema arguments written to."""
    effects: bool
    """Must run even when nothing reads its result."""
    pointwise: bool
    data_dependent: bool
    """The size of a result, or the result, is an unbacked symbol."""
    keeps_strides: bool
    """Inputs must have exactly the strides of the trace (custom operators may rely on them)."""

    @property
    def mergeable(self) -> bool:
        """Two calls with equal arguments are as good as one."""
        return not (
            self.is_random
            or self.uninitialised
            or self.mutates
            or self.effects
            or self.is_higher_order
            or self.data_dependent
        )


_PYTHON_MODULES = (
    "_operator",
    "operator",
    "math",
    "builtins",
    "torch",
    "torch.sym",
    "torch.fx.experimental.symbolic_shapes",
)

# Views whose schema does not say so, and factory-like ops whose contents are whatever memory held.
_HIDDEN_VIEWS = frozenset({"aten._unsafe_view.default", "aten.lift_fresh.default", "aten.contiguous.default"})
# Arguments written to although the schema does not say so: their memory may be gone afterwards.
_HIDDEN_WRITES = {"inductor.resize_storage_bytes_.default": (0,)}
_UNINITIALISED = frozenset(
    {
        "aten.empty.memory_format",
        "aten.empty_strided.default",
        "aten.empty_like.default",
        "aten.new_empty.default",
        "aten.new_empty_strided.default",
        "aten.empty_permuted.default",
    }
)
# Their results are new tensors, and all that they do. They are not merged, as others of their kind are not.
_LASTING = ("aten.", "prims.", "operator.", "higher_order.", "torch.", "math.")
"""What names begin with of operators that are never defined anew."""
_PURE_HIGHER_ORDER = frozenset({"higher_order.triton_kernel_wrapper_functional"})
WAIT_TENSOR = "_c10d_functional.wait_tensor.default"
"""Returns its argument, which is complete from then on."""

_COMMUNICATES = ("_c10d_functional.", "c10d_functional.", "_dtensor.", "polyfuse_symmetric.")
"""Operators that talk to other processes: work goes on after they return, in the memory they were given."""

_EFFECTFUL_NAMES = (
    "aten._assert_async.",
    "aten._assert_scalar.",
    "aten._assert_tensor_metadata.",
    "aten.sym_constrain_range",
    "aten._print.",
    *_COMMUNICATES,
    "c10d.",
    "inductor.accumulate_grad_",
    "profiler.",
    "fsdp.",
)


def op_name(target: Any) -> str:
    """The name of a node's target: `aten.add.Tensor`, `higher_order.cond`, `operator.getitem`."""
    if isinstance(target, OpOverload):
        return _overload_name(target.name())
    if isinstance(target, OpOverloadPacket):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.name()}"
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    return f"{module.lstrip('_')}.{getattr(target, '__name__', str(target))}"


@cache
def _overload_name(name: str) -> str:
    """What `str` makes of an operator whose own name is such as `aten::add.Tensor`, each time anew."""
    space, _, rest = name.partition("::")
    name, _, overload = rest.partition(".")
    return f"{space}.{name}.{overload or 'default'}"


def resolve(name: str) -> Any:
    """The operator named `name`, the inverse of `op_name`; LookupError if torch has none."""
    # those of users may be removed and defined anew, and then the old object calls freed memory
    return _resolved(name) if name.startswith(_LASTING) else _resolve(name)


def _resolve(name: str) -> Any:
    space, _, rest = name.partition(".")
    if space == "operator":
        import operator

        if hasattr(operator, rest):
            return getattr(operator, rest)
    elif space == "higher_order":
        if hasattr(torch.ops.higher_order, rest):
            return getattr(torch.ops.higher_order, rest)
    elif space == "torch" and hasattr(torch, rest):
        return getattr(torch, rest)
    elif space == "math":
        import math

        if hasattr(math, rest):
            return getattr(math, rest)
    elif rest:
        if space == "polyfuse_symmetric":
            import polyfuse.torch_compat.symmetric  # noqa: F401  (it registers them)
        packet, _, overload = rest.partition(".")
        try:
            found = getattr(getattr(torch.ops, space), packet)
            return getattr(found, overload) if overload else found
        except AttributeError:
            pass
    raise LookupError(
        f"torch {torch.__version__} has no operator {name!r}; import the module that registers it first."
    )


_resolved = cache(_resolve)


def maybe_op(name: str) -> Any:
    """`resolve`, or None: for operators that only some torch releases have."""
    try:
        return resolve(name)
    except LookupError:
        return None


def names_in(space: str) -> tuple[str, ...]:
    """The names of all operators of a namespace, without overloads."""
    registered = torch._C._dispatch_get_all_op_names()
    return tuple(
        dict.fromkeys(
            n.partition(".")[0].replace("::", ".") for n in registered if n.startswith(f"{space}::")
        )
    )


def facts(target: Callable[..., Any] | str) -> OpFacts:
    """The facts of a node's target."""
    if isinstance(target, str):
        return _facts(resolve(target))
    try:
        return _facts(target)
    except TypeError:  # unhashable callables
        return _opaque(op_name(target))


@cache
def _facts(target: Any) -> OpFacts:
    name = op_name(target)
    if isinstance(target, OpOverload):
        return _overload_facts(target, name)
    if isinstance(target, HigherOrderOperator):
        pure = name in _PURE_HIGHER_ORDER
        return OpFacts(name, False, True, not pure, not pure, False, (), not pure, False, False, True)
    if getattr(target, "__module__", None) in _PYTHON_MODULES or isinstance(target, type):
        # Python arithmetic on sizes, getitem, torch.sym_max: pure. getitem of a tuple aliases its element.
        return OpFacts(
            name, False, False, name.endswith("getitem"), False, False, (), False, False, False, False
        )
    return _opaque(name)


def _opaque(name: str) -> OpFacts:
    return OpFacts(name, False, False, True, True, False, (), True, False, False, True)


def _overload_facts(op: OpOverload, name: str) -> OpFacts:
    schema, tags = op._schema, op.tags
    mutates = _HIDDEN_WRITES.get(name) or tuple(
        i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    )
    aliased = any(r.alias_info is not None for r in schema.returns)
    effects = bool(mutates) or name.startswith(_EFFECTFUL_NAMES) or not schema.returns
    return OpFacts(
        name=name,
        is_operator=True,
        is_higher_order=False,
        is_view=not mutates and (aliased or name in _HIDDEN_VIEWS),
        is_random=torch.Tag.nondeterministic_seeded in tags,
        uninitialised=name in _UNINITIALISED,
        mutates=mutates,
        effects=effects or _has_effect_token(op),
        pointwise=torch.Tag.pointwise in tags,
        data_dependent=torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags,
        keeps_strides=torch.Tag.needs_exact_strides in tags or op.namespace not in ("aten", "prims"),
    )


def communicates(name: str) -> bool:
    """Whether an operator starts or ends work with other processes."""
    return name.startswith(_COMMUNICATES)


@dataclass(frozen=True)
class OpArgument:
    """One argument in an operator's schema."""

    name: str
    is_list: bool
    keyword_only: bool


def arguments(op: OpOverload) -> tuple[OpArgument, ...]:
    """The arguments an operator takes, in order."""
    return tuple(
        OpArgument(a.name, str(a.type).startswith("List"), a.kwarg_only) for a in op._schema.arguments
    )


def is_mutable(op: OpOverload) -> bool:
    """True if the operator writes to an argument."""
    return bool(op._schema.is_mutable)


def base_name(op: OpOverload) -> str:
    """`add` of `aten.add.Tensor`."""
    return str(op._opname)


def overload_name(op: OpOverload) -> str:
    """`Tensor` of `aten.add.Tensor`."""
    return str(op._overloadname)


def _has_effect_token(op: OpOverload) -> bool:
    from torch._higher_order_ops.effects import has_effects

    try:
        return bool(has_effects(op))
    except TypeError:
        # Older releases want the call's arguments as well; registered effects are covered by the name list.
        return False


def argument_names(target: Any) -> tuple[str, ...]:
    """Names of an operator's schema arguments, in order; empty for what has no schema."""
    schema = getattr(target, "_schema", None)
    return tuple(a.name for a in schema.arguments) if schema is not None else ()


def result_names(target: Any) -> tuple[str, ...]:
    """Names of an operator's schema results, in order (empty where unnamed); nothing for what has no
    schema.
    """
    schema = getattr(target, "_schema", None)
    return tuple(r.name for r in schema.returns) if schema is not None else ()


_OPERATORS = frozenset(
    {"aten", "prim", "prims", "mkl", "mkldnn", "onednn", "quantized", "_quantized", "_c10d_functional"}
)

_FUNCTIONS = frozenset({"torch", "operator", "math"})
"""Before the names of plain functions."""


def comes_with_torch(name: str) -> bool:
    """Whether an operator or function of this name needs no import but that of torch."""
    return name.partition(".")[0] in _OPERATORS | _FUNCTIONS
