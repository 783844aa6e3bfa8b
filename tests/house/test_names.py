"""Which names may stand where."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from house.source_tree import (
    SourceFile,
    all_files,
    core_files,
    docstring_nodes,
    example_files,
    nodes_of,
    walk,
    walk_run_time,
)

# Vendors, their products, and languages that kernels are generated in. The core knows none of them.
FOREIGN = {
    "avx", "avx2", "avx512", "clang", "cpp", "cubin", "cublas", "cuda", "cudnn", "cutlass", "cute", "gcc",
    "halide", "hip", "hsaco", "inductor", "llvm", "metal", "mkl", "mkldnn", "mps", "neon", "nvcc", "nvidia",
    "onednn", "opencl", "openmp", "ptx", "rocm", "sycl", "triton", "xpu",
}  # fmt: skip

# Names of torch's operators that contain some of these; which operators there are is torch's affair.
OPERATORS = re.compile(r"\b\w*(cudnn|mkldnn|miopen|triton_kernel_wrapper)_\w+|\w+_for_mps\b")

# Modules that exist to deal in torch's own names, which contain some of these.
EXEMPT_FOLDERS = ("core/polyfuse/torch_compat/",)


@functools.cache
def words(text: str) -> frozenset[str]:
    """The words of an identifier or text: `CppKernel_v2` has `cpp`, `kernel` and `v2`."""
    text = OPERATORS.sub("", text)
    split = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return frozenset(re.findall(r"[a-z0-9]+", split.lower()))


def spoken(file: SourceFile) -> Iterator[tuple[str, int]]:
    """Identifiers and texts of a file, without docstrings and the documentation of options."""
    skipped = docstring_nodes(file.tree)
    for node in nodes_of(file.tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "option":
            skipped |= {id(part) for argument in node.args[1:2] for part in walk(argument)}
    for node in nodes_of(file.tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value, line
        elif isinstance(node, ast.Name):
            yield node.id, line
        elif isinstance(node, ast.Attribute):
            yield node.attr, line
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, line
        elif isinstance(node, ast.arg):
            yield node.arg, line
        elif isinstance(node, ast.keyword):
            yield node.arg or "", line
        elif isinstance(node, ast.alias):
            yield f"{node.name} {node.asname or ''}", line
    yield file.path.stem, 0


def test_the_core_names_no_vendor_and_no_target_language():
    wrong = []
    for file in core_files():
        if file.location.startswith(EXEMPT_FOLDERS):
            continue
        for text, line in spoken(file):
            found = words(text) & FOREIGN
            if found:
                wrong.append(f"{file.location}:{line} says {', '.join(sorted(found))}: {text[:60]!r}")
    assert not wrong, "\n".join(wrong)


def chain(node: ast.expr) -> list[str]:
    """`a.b.c` as a list, or nothing when the root is not a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def private(parts: list[str]) -> bool:
    # Operators are data: `torch.ops.aten._softmax` is public in spite of its name.
    if parts[:2] == ["torch", "ops"]:
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


def private_torch_names(file: SourceFile) -> Iterator[tuple[str, int]]:
    bound: dict[str, list[str]] = {}
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute)
    nodes = [node for node in walk_run_time(file.tree) if isinstance(node, kinds)]
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "torch":
                    bound[alias.asname or "torch"] = parts if alias.asname else ["torch"]
                    yield alias.name, node.lineno
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] == "torch"
            and not node.level
        ):
            for alias in node.names:
                parts = [*(node.module or "").split("."), alias.name]
                bound[alias.asname or alias.name] = parts
                yield ".".join(parts), node.lineno
    for node in nodes:
        if isinstance(node, ast.Attribute):
            parts = chain(node)
            if parts and parts[0] in bound:
                yield ".".join(bound[parts[0]] + parts[1:]), node.lineno


IMPORTS_TORCH = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)


def test_private_torch_names_stay_in_one_folder():
    wrong = set()
    for file in all_files():
        if file.location.startswith("core/polyfuse/torch_compat/") or not IMPORTS_TORCH.search(file.text):
            continue
        wrong |= {
            f"{file.location}:{line} uses {name}"
            for name, line in private_torch_names(file)
            if private(name.split("."))
        }
    assert not wrong, "\n".join(sorted(wrong))


def test_only_the_settings_read_the_environment():
    readers = {"environ", "environb", "getenv", "putenv", "getenvb", "unsetenv"}
    wrong = []
    for file in all_files():
        if file.location == "core/polyfuse/base/settings.py":
            continue
        for node in nodes_of(file.tree):
            by_attribute = (
                isinstance(node, ast.Attribute) and node.attr in readers and chain(node)[:1] == ["os"]
            )
            by_import = (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and any(alias.name in readers for alias in node.names)
            )
            if by_attribute or by_import:
                wrong.append(f"{file.location}:{getattr(node, 'lineno', 0)}")
    assert not wrong, "use polyfuse.base.settings.environment instead: " + ", ".join(wrong)


def test_nothing_unfinished_is_marked():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    wrong = [
        f"{file.location}:{number}"
        for file in all_files()
        for number, line in enumerate(file.text.splitlines(), 1)
        if marks.search(line)
    ]
    assert not wrong, ", ".join(wrong)


def iterates_a_set(node: ast.expr) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("set", "frozenset")
    )


def test_no_loop_runs_over_a_set():
    """The order of a set of texts differs from process to process, and generated code must not."""
    wrong = []
    for file in all_files():
        for node in nodes_of(file.tree):
            if isinstance(node, (ast.For, ast.comprehension)) and iterates_a_set(node.iter):
                wrong.append(f"{file.location}:{node.iter.lineno}")
    assert not wrong, ", ".join(wrong)


def test_statements_and_expressions_are_read_by_named_fields():
    wrong = [
        f"{file.location}:{number} numbers what has a name in `polyfuse.ir.statements` or `polyfuse.ir.expr`"
        for file in (*all_files(), *example_files())
        for number, line in enumerate(file.text.splitlines(), 1)
        if ".attrs[" in line
    ]
    assert not wrong, "\n".join(wrong)
