"""A captured graph and its inputs as text that is the same in every process, to look up what became of it.

Two graphs of equal text, under equal switches of torch, are traced to the same operators. Where the text
does not decide that, as with functions that are not torch's own, there is none. The lines of the model that
operators come from are part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from polyfuse.frontend.addresses import PLAIN, TORCH_NAMESPACES, address_of
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.groups import group_of
from polyfuse.torch_compat.tracing import fake, fx, global_state, shapes
from polyfuse.torch_compat.tracing.dynamo import is_static_input, is_static_tensor

# Operators that take functions and do no more than their arguments and these functions say.
_TAKE_FUNCTIONS = frozenset(
    {
        *(
            "associative_scan",
            "autograd_function_apply",
            "cond",
            "flex_attention",
            "invoke_subgraph",
            "map_impl",
        ),
        *("scan", "tag_activation_checkpoint", "while_loop", "wrap", "wrap_with_autocast"),
        "wrap_with_set_grad_enabled",
    }
)


class CacheBypass(Exception):
    """Why there is no text for a graph."""


def captured_text(gm: Any, example_inputs: Sequence[Any]) -> str:
    """Return the text of what Dynamo captured, and of the inputs that it was captured with.

    Raises:
        CacheBypass: something in it has no text that says what it does.
    """
    if not isinstance(gm, GraphModule):
        raise CacheBypass("its inputs or results are nested, as those of compiled autograd are")
    watched = global_state.watchers()
    if watched:
        raise CacheBypass(watched)
    if hasattr(gm, "saved_tensors_hooks_pack_0"):
        raise CacheBypass("hooks change what is saved for its backward")
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(example_inputs):
        raise CacheBypass("it has inputs of its own")
    memory = _Memory()
    owned = tuple(_owned(gm, memory))
    return "\n".join((*owned, *_inputs(placeholders, example_inputs, memory), *_nodes(gm)))


def _owned(gm: GraphModule, memory: _Memory) -> Iterator[str]:
    """The tensors that a graph holds, as those of optimizers do: AOTAutograd makes inputs of them."""
    for kind, named in (("parameter", gm.named_parameters), ("buffer", gm.named_buffers)):
        for name, value in named(remove_duplicate=False):
            if "." in name:
                raise CacheBypass("a function that it takes holds tensors of its own")
            shared = memory.shared(value)
            layout = f"{tuple(value.shape)} {value.stride()} {value.storage_offset()}"
            yield f"{kind} {name} {_kind(value)} {layout} {_flags(value)} {is_static_tensor(value)}{shared}"


def _nodes(gm: GraphModule, indent: str = "") -> Iterator[str]:
    """The operators of a graph, and, indented, those of the functions that they take."""
    numbers = {node: number for number, node in enumerate(gm.graph.nodes)}
    for node, number in numbers.items():
        if node.op == "placeholder":
            if indent:  # what it is follows from how the function is called
                yield f"{indent}%{number} = placeholder"
            continue
        if node.meta.get("custom"):
            raise CacheBypass("its operators are annotated")
        if node.op == "get_attr":
            if isinstance(getattr(gm, str(node.target), None), torch.Tensor) and not indent:
                yield f"%{number} = {node.target}"
                continue
            taken = _called_graph(gm, str(node.target))
            yield f"{indent}%{number} = function{_policy(taken)}"
            yield from _nodes(taken, indent + "  ")
            continue
        args, kwargs = value_text(node.args, numbers), value_text(node.kwargs, numbers)
        # reports, and errors of the compiled program, name the lines of the model
        line = f"{node.op} {_target(node)} {args} {kwargs}  # {fx.source_text(node)}"
        yield f"{indent}%{number} = {line}"


def _called_graph(gm: GraphModule, name: str) -> GraphModule:
    """A function that an operator of a graph takes."""
    taken = getattr(gm, name, None)
    if not isinstance(taken, GraphModule):
        raise CacheBypass(f"it reads an attribute of type {type(taken).__name__}")
    return taken


def _policy(taken: GraphModule) -> str:
    """The function that says which results of a checkpointed one are saved, where there is one."""
    policy = taken.meta.get("_checkpoint_context_fn")
    if policy is None:
        return ""
    from polyfuse.frontend.python_code import Unreadable, function_text

    try:
        return f" saving by {function_text(policy)}"
    except Unreadable as error:
        raise CacheBypass(f"it is unknown what is saved of a checkpointed function: {error}") from error


def _inputs(placeholders: Sequence[Node], examples: Sequence[Any], memory: _Memory) -> Iterator[str]:
    known: set[Any] = set()
    used: set[Any] = set()
    env: Any = None
    for node, example in zip(placeholders, examples, strict=True):
        value = node.meta.get("example_value")
        if shapes.is_symbolic(value):
            env = value.node.shape_env
            known.update(shapes.free_symbols(value))
            yield f"number {shapes.expr_of(value)}"
        elif isinstance(example, torch.Tensor) and fake.is_fake(value):
            shared = memory.shared(example)
            found = shapes.free_symbols(value)
            used.update(found)
            if found:
                env = fake.shape_env_of(value.fake_mode)
            _check_same(env, value, example)
            yield _tensor(node, value, example) + shared
        else:
            raise CacheBypass(f"an input of it is a {type(example).__name__}")
    if used - known:
        raise CacheBypass("sizes of its inputs are not among them")
    if env is not None:
        for symbol in sorted(known, key=str):
            if shapes.is_unbacked(symbol):
                raise CacheBypass("a size of an input is an unbacked symbol")
            yield f"range {symbol} {shapes.value_range(env, symbol)}"
        yield f"shapes {env.settings}"


class _Memory:
    """Which inputs share memory, in their order: AOTAutograd traces a graph that writes to one of them with a
    single input instead of those that overlap."""

    def __init__(self) -> None:
        self._count = 0
        # by storage: the first input in it, and the tensors that those in it are views of
        self._known: dict[int, tuple[int, list[torch.Tensor]]] = {}

    def shared(self, example: torch.Tensor) -> str:
        """Note one more input; return in which one's memory it lies, and of which tensor it is a view.

        Raises:
            CacheBypass: it is no plain tensor, or was noted before.
        """
        plain = type(example) in (torch.Tensor, torch.nn.Parameter) or fake.is_fake(example)
        if not plain or example.layout != torch.strided:
            raise CacheBypass(f"an input of it is a {type(example).__name__} of layout {example.layout}")
        self._count += 1
        # a tensor that is only referred to from C++ gets a new Python object whenever none is left
        base = example if example._base is None else example._base
        first, bases = self._known.setdefault(example.untyped_storage()._cdata, (self._count, []))
        number = next((n for n, known in enumerate(bases) if known is base), len(bases))
        if number == len(bases):
            bases.append(base)
        if first == self._count:
            return "" if example._base is None else f" of {base.dtype}"
        size = f"{example.untyped_storage().nbytes()} bytes, {tuple(base.shape)} {base.stride()}"
        return f" of {base.dtype} in the memory of {first}, viewing {number} of {size}"


def _check_same(env: Any, value: Any, example: torch.Tensor) -> None:
    """Refuse inputs whose layout was changed in place while they were captured: what there was before is what
    counts.
    """
    now = [shapes.hint(env, x) for x in (*value.shape, *value.stride())]
    if now != [*example.shape, *example.stride()]:
        raise CacheBypass("the layout of an input is changed in place")


def _tensor(node: Node, value: Any, example: torch.Tensor) -> str:
    flags = (*_flags(example), is_static_input(node))
    layout = f"{shapes.exprs_of(value.shape)} {shapes.exprs_of(value.stride())}"
    return f"tensor {_kind(example)} {layout} {shapes.expr_of(value.storage_offset())} {flags}"


def _kind(example: torch.Tensor) -> str:
    facts = device_of(example.device.type).facts(example.device.index)
    return f"{example.dtype} {example.device} {facts}"


def _flags(example: torch.Tensor) -> tuple[object, ...]:
    return (
        type(example).__name__,
        *(example.requires_grad, example.is_leaf, example.is_conj(), example.is_neg()),
        *(example.is_inference(), example._is_view()),
    )


def _target(node: Node) -> str:
    target = node.target
    if node.op in ("output", "call_method"):
        return str(target)
    if node.op != "call_function" or isinstance(target, str):
        raise CacheBypass(f"it has a node of kind {node.op}")
    if isinstance(target, ops.HigherOrderOperator):
        if target.name() not in _TAKE_FUNCTIONS:
            raise CacheBypass(f"it calls {target.name()}, which takes functions")
        return target.name()
    if isinstance(target, ops.OpOverload):
        its_own = target.namespace in TORCH_NAMESPACES
        return str(target) + (_carriers(node) if its_own else _traced(target, node))
    if isinstance(target, ops.OpOverloadPacket):
        its_own = str(target).partition(".")[0] in TORCH_NAMESPACES
        return f"every {target}" + ("" if its_own else _traced(target, node))
    return _function(target)


def _carriers(node: Node) -> str:
    """What carries out a collective, which decides whether it is recorded."""
    if getattr(node.target, "namespace", "") != "_c10d_functional":
        return ""
    found = (group_of(value) for value in (*node.args, *node.kwargs.values()) if isinstance(value, str))
    return "".join(f" by {group.libraries}" for group in found if group is not None)


def _traced(target: Any, node: Node) -> str:
    """How a call of an operator of others is traced, and what Dynamo found its results to be."""
    from polyfuse.frontend.python_code import Unreadable, operator_text

    try:
        text = operator_text(target)
    except Unreadable as error:
        raise CacheBypass(f"it calls {target}, which is no operator of torch: {error}") from error
    return f" {text} to {_results(node.meta.get('example_value'))}"


def _results(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_results, value))})"
    if isinstance(value, torch.Tensor):
        sizes, strides = shapes.exprs_of(value.shape), shapes.exprs_of(value.stride())
        return f"{value.dtype} {value.device} {sizes} {strides}"
    return str(shapes.expr_of(value)) if shapes.is_symbolic(value) else repr(value)


def _function(function: Callable[..., Any]) -> str:
    """The address of a function of torch or Python, under which it is found again."""
    address = address_of(function)
    if address:
        return address
    name = getattr(function, "__qualname__", function)
    raise CacheBypass(f"it calls {name}, which is no function of torch")


def value_text(value: Any, numbers: dict[Node, int]) -> str:
    """An argument of a call, with nodes by their numbers.

    Raises:
        CacheBypass: it has no text.
    """
    if isinstance(value, Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list, torch.Size)):
        return f"{type(value).__name__}({', '.join(value_text(item, numbers) for item in value)})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key!r}: {value_text(item, numbers)}' for key, item in value.items())})"
    if isinstance(value, slice):
        return f"slice{value_text((value.start, value.stop, value.step), numbers)}"
    if type(value) is float and math.isnan(value):
        return "nan"
    if type(value) in PLAIN:
        return f"{type(value).__name__} {value!r}"
    raise CacheBypass(f"a call in it has a {type(value).__name__} as an argument")
