"""No part of the product needs what only one company has."""

from __future__ import annotations

import ast
import sys

from house.source_tree import all_files, nodes_of

OWN = {
    "polyfuse",
    *(f"polyfuse_{name}" for name in ("cpp", "cuda", "cutlass", "halide", "quantized", "triton")),
}
PUBLIC = {
    "accelerate",
    "cryptography",
    "filelock",
    "halide",
    "jinja2",
    "numpy",
    "packaging",
    "platformdirs",
    "pluggy",
    "pytest",
    "rich",
    "sympy",
    "torch",
    "transformers",
    "triton",
}
"""What is on PyPI for everybody."""


def test_nothing_imports_what_one_company_has() -> None:
    strange: dict[str, str] = {}
    for file in all_files():
        for node in nodes_of(file.tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in OWN | PUBLIC and top not in sys.stdlib_module_names:
                    strange[top] = file.location
                assert not name.startswith(("torch._utils_internal", "torch.fb")), (
                    f"{file.location} imports {name}"
                )
    assert not strange
