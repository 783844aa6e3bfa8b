"""AOTAutograd: from a Dynamo graph to functional forward and backward graphs.

`aot_module_simplified` is called directly. The helper that torch offers to backends drops `options` and
`mode`, and imports a large part of another compiler; its remaining duties (counters, shielding the backward
from Dynamo, nested inputs) are done by `frontend.capture`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.fx import GraphModule


class GraphCompiler(Protocol):
    """What AOTAutograd calls with each finished graph and its fake inputs."""

    def __call__(self, gm: GraphModule, inputs: Sequence[Any], /) -> Callable[[list[Any]], Sequence[Any]]: ...


class Partitioner(Protocol):
    """Splits a joint graph into forward and backward."""

    def __call__(
        self, joint: GraphModule, inputs: Sequence[Any], /, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]: ...


def compile_module(
    gm: Any,
    example_inputs: Sequence[Any],
    *,
    forward: GraphCompiler,
    backward: GraphCompiler,
    inference: GraphCompiler,
    partition: Partitioner,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Trace `gm` with AOTAutograd and compile what comes out with the given compilers.

    Mutations of inputs stay in the graphs as trailing `aten.copy_`.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    compiled: Callable[..., Any] = aot_module_simplified(
        gm,
        list(example_inputs),
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=True,
    )
    return compiled


def min_cut_partition(
    joint: GraphModule, inputs: Sequence[Any], **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """torch's partitioner: recompute cheap fusible work in the backward instead of saving it."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def save_all_partition(
    joint: GraphModule, inputs: Sequence[Any], **kwargs: Any
) -> tuple[GraphModule, GraphModule]:
    """torch's default partitioner: the backward recomputes nothing."""
    from torch._functorch.partitioners import default_partition

    return default_partition(joint, inputs, **kwargs)


@contextmanager
def partition_options(*, own_cse: bool, memory_budget: float | None) -> Iterator[None]:
    """Partitioner settings for one compile; None leaves the user's own value alone."""
    from torch._functorch import config

    # Tokens that order effects are made inside the graphs: as inputs and outputs they would shift the
    # positions of everything else that AOTAutograd is told about outputs.
    changes: dict[str, Any] = {"unlift_effect_tokens": True}
    if own_cse:
        changes["cse"] = False
    if memory_budget is not None:
        changes["activation_memory_budget"] = memory_budget
    with config.patch(changes):
        yield


def graph_name() -> str:
    """AOTAutograd's name of the graph being compiled, such as `model_0_forward_1`; empty outside one."""
    from torch._functorch.aot_autograd import get_aot_graph_name

    try:
        return str(get_aot_graph_name())
    except Exception:  # outside a traced graph torch asserts or fails on missing state
        return ""


def is_joint_input(node: torch.fx.Node) -> str:
    """`"primal"`, `"tangent"` or `"other"`: which kind of joint-graph placeholder this is."""
    target = str(node.target)
    if target.startswith("primals"):
        return "primal"
    return "tangent" if target.startswith("tangents") else "other"
