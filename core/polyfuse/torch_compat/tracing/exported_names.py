"""Names of tensors in exported programs, which torch prints as Python when it takes operators apart.

torch writes a parameter's name into generated code as it is, so one that is a keyword, has a line break, a
quotation mark or a NUL, or that Python reads as another name, is an error of syntax there, or is not found.
One called `graph` or `code` collides with the generated module's own. Modules may have such names. Meanwhile
tensors are numbered.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule

_EMPTY = GraphModule(torch.nn.Module(), Graph())
"""What has an attribute of a tensor's name cannot get another one: `graph`, `code`, `meta`."""


def with_plain_names(program: ExportedProgram) -> tuple[ExportedProgram, Mapping[str, str]]:
    """The program with names that can be printed, and its author's names by these.

    A program whose names can be printed is returned as it is, and nothing is renamed.
    """
    given = dict.fromkeys((*program.state_dict, *program.constants))
    signature = program.graph_signature
    given.update(dict.fromkeys(spec.target for spec in signature.input_specs if spec.target is not None))
    if all(_prints(name) for name in given):
        return program, {}
    plain = {name: f"tensor_{number}" for number, name in enumerate(given)}

    def renamed(specs: Any) -> list[Any]:
        return [replace(spec, target=plain.get(spec.target, spec.target)) for spec in specs]

    made = ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=ExportGraphSignature(renamed(signature.input_specs), renamed(signature.output_specs)),
        state_dict={plain[name]: value for name, value in program.state_dict.items()},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={plain[name]: value for name, value in program.constants.items()},
        verifiers=program.verifiers,
    )
    return made, {short: name for name, short in plain.items()}


def _prints(name: str) -> bool:
    """Whether torch's text of attributes finds them under this name: numbers are quoted there."""
    return all(
        part.isdigit()
        or (
            part.isidentifier()
            and not keyword.iskeyword(part)
            and unicodedata.normalize("NFKC", part) == part
            and not hasattr(_EMPTY, part)
        )
        for part in name.split(".")
    )
