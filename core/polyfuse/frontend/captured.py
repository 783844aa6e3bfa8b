"""A captured graph and its inputs as text that is the same in every process, to look up what became of it.

Two graphs of equal text, under equal switches of torch, are traced to the same operators. Where that cannot
be told from the text, as with functions that are not torch's own, there is none. The lines of the model that
operators come from are part of it.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fake, fx, global_state, shapes
from polyfuse.torch_compat.tracing.dynamo import is_static_input

__all__ = ["CacheBypass", "captured_text"]

# Operators of these namespaces are part of torch, so that its version says what they do.
_NAMESPACES = frozenset({"aten", "prim", "prims", "_c10d_functional"})

_PLAIN = (
    *(int, float, complex, bool, str, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


_HOMES = ("torch", "_operator", "builtins", "math")
_FOLDER = Path(torch.__file__).parent


class CacheBypass(Exception):
    """Why there is no text for a graph."""


def captured_text(gm: Any, example_inputs: Sequence[Any]) -> str:
    """Return the text of what Dynamo captured, and of the inputs that it was captured with.

    Raises:
        CacheBypass: something in it has no text that says what it does.
    """
    if not isinstance(gm, GraphModule):
        raise CacheBypass("it is no captured graph")
    watched = global_state.watchers()
    if watched:
        raise CacheBypass(watched)
    if any(True for _ in gm.parameters()) or any(True for _ in gm.buffers()):
        raise CacheBypass("it holds tensors of its own")
    if hasattr(gm, "saved_tensors_hooks_pack_0"):
        raise CacheBypass("hooks change what is saved for its backward")
    numbers = {node: number for number, node in enumerate(gm.graph.nodes)}
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(example_inputs):
        raise CacheBypass("it has inputs of its own")
    lines = list(_inputs(placeholders, example_inputs))
    for node, number in numbers.items():
        if node.op == "placeholder":
            continue
        if node.meta.get("custom"):
            raise CacheBypass("its operators are annotated")
        args, kwargs = _value(node.args, numbers), _value(node.kwargs, numbers)
        # reports, and errors of the compiled program, name the lines of the model
        lines.append(f"%{number} = {node.op} {_target(node)} {args} {kwargs}  # {fx.source_text(node)}")
    return "\n".join(lines)


def _inputs(placeholders: Sequence[Node], examples: Sequence[Any]) -> Iterator[str]:
    known: set[Any] = set()
    used: set[Any] = set()
    storages: set[int] = set()
    env: Any = None
    for node, example in zip(placeholders, examples, strict=True):
        value = node.meta.get("example_value")
        if shapes.is_symbolic(value):
            env = value.node.shape_env
            known.update(shapes.free_symbols(value))
            yield f"number {shapes.expr_of(value)}"
        elif isinstance(example, torch.Tensor) and fake.is_fake(value):
            storage = _storage(example)
            if storage in storages:
                raise CacheBypass("inputs of it share memory")
            storages.add(storage)
            found = shapes.free_symbols(value)
            used.update(found)
            if found:
                env = fake.shape_env_of(value.fake_mode)
            _check_same(env, value, example)
            yield _tensor(node, value, example)
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


def _storage(example: torch.Tensor) -> int:
    if type(example) not in (torch.Tensor, torch.nn.Parameter) or example.layout != torch.strided:
        raise CacheBypass(f"an input of it is a {type(example).__name__} of layout {example.layout}")
    return example.untyped_storage()._cdata


def _check_same(env: Any, value: Any, example: torch.Tensor) -> None:
    """Refuse inputs whose layout was changed in place while they were captured: what there was before is what
    counts.
    """
    now = [shapes.hint(env, x) for x in (*value.shape, *value.stride())]
    if now != [*example.shape, *example.stride()]:
        raise CacheBypass("the layout of an input is changed in place")


def _tensor(node: Node, value: Any, example: torch.Tensor) -> str:
    flags = (
        type(example).__name__,
        *(example.requires_grad, example.is_leaf, example.is_conj(), example.is_neg()),
        *(example.is_inference(), example._is_view()),
        is_static_input(node),
    )
    kind = f"{example.dtype} {example.device} {device_of(example.device.type).facts(example.device.index)}"
    layout = f"{shapes.exprs_of(value.shape)} {shapes.exprs_of(value.stride())}"
    return f"tensor {kind} {layout} {shapes.expr_of(value.storage_offset())} {flags}"


def _target(node: Node) -> str:
    target = node.target
    if node.op in ("output", "call_method"):
        return str(target)
    if node.op == "get_attr":
        raise CacheBypass("it calls an operator that takes functions")
    if node.op != "call_function" or isinstance(target, str):
        raise CacheBypass(f"it has a node of kind {node.op}")
    if isinstance(target, ops.HigherOrderOperator):
        raise CacheBypass(f"it calls {target.name()}, which takes functions")
    if isinstance(target, ops.OpOverload):
        return _of_torch(str(target), target.namespace)
    if isinstance(target, ops.OpOverloadPacket):
        return _of_torch(f"every {target}", str(target).partition(".")[0])
    return _function(target)


def _of_torch(name: str, namespace: str) -> str:
    if namespace not in _NAMESPACES:
        raise CacheBypass(f"it calls {name}, which is no operator of torch")
    return name


def _function(function: Callable[..., Any]) -> str:
    """The address of a function of torch or Python, under which it is found again."""
    owner = getattr(function, "__objclass__", None)
    module = str(getattr(owner or function, "__module__", ""))
    names = (getattr(function, "__qualname__", ""), getattr(function, "__name__", ""))
    for name in names if module.partition(".")[0] in _HOMES else ():
        if _lookup(module, name) is function and _is_original(function):
            return f"{module}:{name}"
    name = getattr(function, "__qualname__", function)
    raise CacheBypass(f"it calls {name}, which is no function of torch")


def _is_original(function: Any) -> bool:
    """Whether a function is the one that its module came with, and was not replaced."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is None or Path(code.co_filename).is_relative_to(_FOLDER)


def _lookup(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _value(value: Any, numbers: dict[Node, int]) -> str:
    if isinstance(value, Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list, torch.Size)):
        return f"{type(value).__name__}({', '.join(_value(item, numbers) for item in value)})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key!r}: {_value(item, numbers)}' for key, item in value.items())})"
    if isinstance(value, slice):
        return f"slice{_value((value.start, value.stop, value.step), numbers)}"
    if type(value) is float and math.isnan(value):
        return "nan"
    if type(value) in _PLAIN:
        return f"{type(value).__name__} {value!r}"
    raise CacheBypass(f"a call in it has a {type(value).__name__} as an argument")
