"""What `torch.export` captured as a functional graph for the compiler, with where its inputs come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node

from polyfuse.base.errors import PackageError
from polyfuse.frontend.decompositions.decompose import (
    BEFORE_AUTOGRAD,
    WHOLE,
    before_autograd,
    decomposition_table,
)
from polyfuse.frontend.decompositions.without_libraries import without_libraries
from polyfuse.frontend.describe import alias_root, output_node
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import decomp
from polyfuse.torch_compat.tracing.exported_names import with_plain_names

_ORIGINS: Mapping[InputKind, Literal["argument", "parameter", "buffer", "constant"]] = {
    InputKind.USER_INPUT: "argument",
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
}

_MUTATIONS = ("BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION")


@dataclass(frozen=True)
class ExportedInput:
    """One input of the graph: an argument, or a tensor of the model, `name` telling which.

    `mutated`: whether the graph writes to it.
    """

    origin: Literal["argument", "parameter", "buffer", "constant"]
    name: str
    mutated: bool


@dataclass(frozen=True, eq=False)
class ExportedGraph:
    """A functional ATen graph whose last operators write to inputs that the model writes to.

    Attributes:
        module: the graph; its outputs are the flat results.
        inputs: where its inputs come from.
        tensors: the model's, by their names.
        in_spec, out_spec: how arguments and results are nested.
        positional, keywords: names of arguments.
        ranges: of symbols, as torch has them.
    """

    module: GraphModule
    inputs: tuple[ExportedInput, ...]
    tensors: Mapping[str, torch.Tensor]
    in_spec: Any
    out_spec: Any
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    ranges: Mapping[Any, Any]


def functional_graph(
    program: ExportedProgram, numerics: str, *, own_kernels: bool = False, images_later: bool = False
) -> ExportedGraph:
    """Decompose operators that the compiler does not lower whole, and write mutations into the graph.

    Args:
        program: what was captured.
        numerics: the option.
        own_kernels: whether operators are decomposed too that libraries compute better, so that no library
            is needed.
        images_later: but for transposed convolutions of images, which `split_transposed` decomposes.

    Raises:
        PackageError: the program trains, or needs objects that cannot be stored.
    """
    table = {**_composite(), **decomposition_table(numerics)}
    if own_kernels:
        table.update(without_libraries(images_later=images_later))
    # operators that are made of others, and that the table lacks, stay whole
    printable, given = with_plain_names(program)
    with _views_of_attention_reshaped(program.graph):
        plain = printable.run_decompositions(table)
    signature = plain.graph_signature
    _refuse_other_inputs(signature, given)
    module = plain.graph_module
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    names = [spec.target or node.name for spec, node in zip(signature.input_specs, nodes, strict=True)]
    mutated = _write_mutations(module, plain, dict(zip(names, nodes, strict=True)))
    in_spec, out_spec = plain.call_spec.in_spec, plain.call_spec.out_spec
    keywords = tuple(str(name) for name in in_spec.children()[1].context)
    positional = _positional(plain, in_spec.children()[0].num_children, keywords)
    own = iter(_leaf_names(in_spec, (*positional, *keywords)))
    shown = [
        (next(own, "") if spec.kind is InputKind.USER_INPUT else given.get(name, name)) or name
        for spec, name in zip(signature.input_specs, names, strict=True)
    ]
    return ExportedGraph(
        module,
        tuple(
            ExportedInput(_ORIGINS[spec.kind], name, node in mutated)
            for spec, name, node in zip(signature.input_specs, shown, nodes, strict=True)
        ),
        {given.get(name, name): value for name, value in {**plain.state_dict, **plain.constants}.items()},
        in_spec,
        out_spec,
        positional,
        keywords,
        plain.range_constraints,
    )


def _refuse_other_inputs(signature: ExportGraphSignature, given: Mapping[str, str]) -> None:
    """Raise `PackageError` for an input that a package cannot hold.

    Args:
        given: the model's names of tensors, by those in the exported program.
    """
    for spec in signature.input_specs:
        if spec.kind not in _ORIGINS:
            raise PackageError(
                f"the model has an input of kind {spec.kind.name}"
                f" ({given.get(spec.target or '') or spec.target or spec.arg}), which no file holds",
                "leave what uses it out of the exported part of the model",
            )


@contextmanager
def _views_of_attention_reshaped(graph: Graph) -> Iterator[None]:
    """While it is on, what views the result of an attention reshapes it; the program is as before then.

    torch 2.11 captures a reshape as a view where one would do if that result lay as the query does, as it
    says of the operator; what it decomposes it into lies otherwise, and has no such view.
    """
    attention, view = torch.ops.aten.scaled_dot_product_attention.default, torch.ops.aten.view.default
    found = [n for n in graph.nodes if n.target is view and alias_root(n).target is attention]
    for node in found:
        node.target = torch.ops.aten.reshape.default
    try:
        yield
    finally:
        for node in found:
            node.target = view


def _composite() -> dict[Any, Any]:
    """What becomes of operators that are made of others: as where a model is traced for `torch.compile`."""
    table = dict(decomp.composite())
    for op in decomp.expand_packets(BEFORE_AUTOGRAD):
        if op in table or ops.base_name(op) in WHOLE:
            own = before_autograd(op)
            if own is None:
                table.pop(op, None)
            else:
                table[op] = own
    return table


def _write_mutations(module: GraphModule, program: ExportedProgram, inputs: Mapping[str, Node]) -> set[Node]:
    """Write results that update inputs to these, and leave them out of the results; return these inputs."""
    graph, output = module.graph, output_node(module)
    (values,) = output.args
    assert isinstance(values, (tuple, list))
    updates: list[tuple[Node, Any]] = []
    results: list[Any] = []
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        if spec.kind.name in _MUTATIONS:
            updates.append((inputs[str(spec.target)], value))
        elif spec.kind is OutputKind.USER_OUTPUT:
            results.append(value)
        else:
            raise PackageError(
                f"the exported program trains: it has a result of kind {spec.kind.name}",
                "export the model for inference; packages compute no gradients",
            )
    targets = {target for target, _ in updates}
    written: dict[Any, Any] = {}
    with graph.inserting_before(output):
        for position, (target, value) in enumerate(updates):
            if alias_root(value) in targets:
                # what it shows may be overwritten by then
                copied = graph.call_function(torch.ops.aten.clone.default, (value,))
                copied.meta.update(value.meta)
                updates[position] = target, copied
        for target, value in updates:
            node = graph.call_function(torch.ops.aten.copy_.default, (target, value))
            node.meta.update(target.meta)
            written.setdefault(value, node)
    output.args = (tuple(written.get(v, v) if isinstance(v, Node) else v for v in results),)
    module.recompile()
    return targets


def _leaf_names(in_spec: Any, names: tuple[str, ...]) -> Iterator[str]:
    """The author's name of each flat argument that is not part of another; empty for those that are."""
    parts = (part for whole in in_spec.children() for part in whole.children())
    for name, part in zip(names, parts, strict=True):
        whole = part.is_leaf() and not name.startswith("argument ")
        yield from (name,) if whole else ("",) * part.num_leaves


def _positional(program: ExportedProgram, count: int, keywords: tuple[str, ...]) -> tuple[str, ...]:
    """Names of positional arguments, where torch recorded them."""
    signature = program.module_call_graph[0].signature
    names = tuple(getattr(signature, "forward_arg_names", None) or ())
    if len(names) != count + len(keywords):
        return tuple(f"argument {i}" for i in range(count))
    return names[:count]
