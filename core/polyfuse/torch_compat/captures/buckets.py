"""Graphs that DDPOptimizer cuts into buckets, each of which is compiled by itself, and what calls these.

Torch compiles a bucket with the layouts in which the compiled buckets before it return their results: while
the first call of a bucket is awaited, it returns fake tensors of these layouts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.fx import GraphModule

from polyfuse.torch_compat.captures.guards import Unstorable

_NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan, "NoneType": type(None)}


@dataclass(frozen=True)
class Stitched:
    """What calls the buckets of a graph.

    Attributes:
        code: of its function.
        buckets: the names under which that finds them, in the order in which they were compiled, and whether
            the only result of one is taken out of its tuple.
    """

    code: str
    buckets: tuple[tuple[str, bool], ...]

    def around(self, graphs: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        """The same, of compiled buckets of another process."""
        scope: dict[str, Any] = dict(_NAMES)
        exec(compile(self.code, "<buckets of a graph>", "exec"), scope)
        called = zip(self.buckets, graphs, strict=True)
        held = {name: partial(_first_of, run) if single else run for (name, single), run in called}
        return partial(scope["forward"], SimpleNamespace(**held))


def _first_of(run: Callable[..., Any], *args: Any) -> Any:
    return run(*args)[0]


def stitched(compiled: Any) -> Stitched | None:
    """What calls the buckets of a graph; None for one that was not cut.

    Args:
        compiled: what Dynamo calls for a graph.

    Raises:
        Unstorable: it does more than to call them.
    """
    module = getattr(getattr(compiled, "_torchdynamo_orig_callable", None), "__self__", None)
    if not isinstance(module, GraphModule):
        return None
    buckets = []
    for node in module.graph.nodes:
        if node.op == "call_module":
            bucket: Any = module.get_submodule(str(node.target))
            buckets.append((str(node.target), bool(bucket.unwrap_singleton_tuple)))
        elif node.op not in ("placeholder", "output") and node.target is not operator.getitem:
            raise Unstorable("its graph computes something between its buckets")
    return Stitched(module.code, tuple(buckets))


def limits(compiler: Any) -> str:
    """How large the buckets may be into which graphs are cut, as text; empty where they are not cut.

    Args:
        compiler: what Dynamo calls to compile a graph.
    """
    optimizer: Any = getattr(compiler, "__self__", None)
    if not hasattr(optimizer, "backend_compile_fn"):
        return ""
    return f"{optimizer.bucket_bytes_cap} {optimizer.first_bucket_cap}"
