"""Writes the pages of docs/reference that are made from the code. `make docs` runs it; a test compares."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import polyfuse
from polyfuse import aot, plugin
from polyfuse.base import errors
from polyfuse.base.log import AREAS
from polyfuse.base.settings import MODES, option_infos
from polyfuse.interface import Metrics
from polyfuse.ir import ops
from polyfuse.plugin import Backend
from polyfuse.plugin.hooks import specs as hookspecs

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
INTERFACES = ROOT / "tests" / "golden"
"""Where the plugin interface of each version lies as text, which a test keeps (`interface-2.0.txt`)."""
NOTE = "<!-- Made by tools/generate_docs.py from the code: change it there, then run `make docs`. -->"


def settings_page() -> str:
    """The options and the modes."""
    lines = [
        "# Settings",
        "",
        NOTE,
        "",
        "An option is set, later ones winning, by its environment variable, by the mode given to",
        '`torch.compile(mode=...)`, and by `torch.compile(backend="polyfuse", options={...})`. An unknown',
        "option is an error that names the nearest known ones; `polyfuse settings` shows all values.",
        "",
    ]
    for info in option_infos().values():
        kind = " or ".join(f"`{choice!r}`" for choice in info.choices) or f"`{info.kind}`"
        lines += [f"## `{info.name}`", "", info.doc, ""]
        if info.name == "plugin_options":
            lines += ["- environment: `POLYFUSE_PLUGIN__OPTION`", ""]
            continue
        lines += [f"- takes: {kind}" + (f", at least {info.minimum}" if info.minimum is not None else "")]
        lines += [f"- default: `{info.default!r}`", f"- environment: `{info.variable}`", ""]
    lines += ["# Modes", ""]
    for mode, preset in MODES.items():
        chosen = ", ".join(f"`{name}={value}`" for name, value in preset.items()) or "the defaults"
        lines.append(f"- `{mode}`: {chosen}")
    return "\n".join(lines)


def hooks_page() -> str:
    """The hook specifications, in the order in which they are called."""
    lines = ["# Hooks", "", NOTE, "", inspect.getdoc(hookspecs) or "", ""]
    for name, function in hooks():
        arguments = ", ".join(inspect.signature(function).parameters)
        lines += [f"## `{name}({arguments})`", ""]
        doc = inspect.getdoc(function) or ""
        text, _, example = doc.partition("Example::")
        for line in text.rstrip().splitlines():
            head, colon, rest = line.partition(":")
            known = head in ("Arguments", "Called", "Errors")
            lines.append(f"- **{head}**: {rest.strip()}" if colon and known else _continued(line, lines))
        lines += [f"- **Since**: plugin interface {since(name)}."]
        lines += ["", "```python", inspect.cleandoc("\n" + example), "```", ""]
    return "\n".join(lines)


@cache
def _versions() -> Mapping[str, str]:
    """The first version of the plugin interface with each name, `Class.method` and hook."""
    found: dict[str, str] = {}
    paths = INTERFACES.glob("interface-*.txt")
    for path in sorted(paths, key=lambda path: [int(n) for n in path.stem.partition("-")[2].split(".")]):
        inside = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            inner = re.match(r"    (?:(?:abstract|def|property|staticmethod|classmethod) )*(\w+)", line)
            outer = re.match(r"(?:class |def |hook )?(\w+)", line)
            if inner:
                name = f"{inside}.{inner[1]}"
            elif outer:
                name = inside = outer[1]
            else:
                continue
            found.setdefault(name, path.stem.partition("-")[2])
    # the version is the first line of each
    return found | {"API_VERSION": found["version"]}


def since(name: str) -> str:
    """The version of the plugin interface that brought a name, a `Class.method` or a hook."""
    return _versions()[name]


def errors_page() -> str:
    """The exceptions, as a tree."""
    lines = [
        "# Errors",
        "",
        NOTE,
        "",
        "Every message names the cause and, after a semicolon, what to do about it. A traceback shows the",
        "code in a note below the message, and where a compiled program was running, the operators and the",
        "line of the model. Commands print the code behind the message. A code keeps its meaning in all",
        "versions.",
        "",
        "| code | error |",
        "|---|---|",
    ]
    found = list(_tree(errors.PolyfuseError, 0))
    by_code = sorted((error for _, error in found), key=lambda error: error.code)
    lines += [f"| {e.code} | [`{e.__name__}`](#{e.code.lower()}-{e.__name__.lower()}) |" for e in by_code]
    lines.append("")
    for depth, error in found:
        lines += [f"{'#' * (depth + 2)} {error.code} `{error.__name__}`", "", inspect.getdoc(error) or "", ""]
    lines += [
        "## Warnings",
        "",
        "A warning is given once in a process, through the logger `polyfuse.AREA` of Python's `logging`.",
        "`POLYFUSE_LOG=error` silences all of them, `POLYFUSE_LOG=plugin=error` those of one area:",
        f"{', '.join(f'`{area}`' for area in AREAS)}, and the names of plugins.",
        "`strict` raises instead where something falls back.",
    ]
    return "\n".join(lines)


def scalar_ops_page() -> str:
    """The table of scalar operations, and the kinds of reductions, scans, stores and random numbers."""
    lines = ["# Scalar operations", "", NOTE, "", inspect.getdoc(ops) or "", ""]
    lines += ["| operation | operands | types | gives | within (ulp) |", "|---|:-:|---|---|:-:|"]
    for row in ops.SCALAR_OPS.values():
        types = _TYPE_GROUPS.get(row.types) or " ".join(map(str, row.types))
        gives = "bool" if row.result == "bool" else "the same"
        lines.append(f"| `{row.name}` | {row.arity} | {types} | {gives} | {row.ulp or 'exact'} |")
    remarks = _remarks(ops)
    lines += ["", remarks["SCALAR_OPS"], ""]
    for title, name in (("Reductions", "REDUCTIONS"), ("Products", "CONTRACTIONS"), ("Scans", "SCANS")):
        lines += [f"## {title}", "", "| kind | operands | results |", "|---|:-:|:-:|"]
        lines += [f"| `{k}` | {row.operands} | {row.results} |" for k, row in getattr(ops, name).items()]
        lines += ["", remarks[name], ""]
    lines += ["## Store modes", "", " ".join(f"`{mode}`" for mode in ops.STORE_MODES), ""]
    lines += [remarks["STORE_MODES"], "", "## Random numbers", "", remarks["RANDOM"]]
    return "\n".join(lines)


_TYPE_GROUPS = {
    ops.FLOATS: "floats",
    ops.NUMBERS: "numbers",
    ops.INTEGERS: "integers",
    ops.COMPUTED: "all",
    ops.FLOATS + ops.SIGNED: "floats, signed integers",
    ops.INTEGERS + ops.BOOL: "integers, bool",
}


def _remarks(owner: ModuleType | type) -> dict[str, str]:
    """The texts that stand below constants of a module, or attributes of a class."""
    body = ast.parse(inspect.getsource(owner)).body
    if inspect.isclass(owner) and isinstance(body[0], ast.ClassDef):
        body = body[0].body
    found: dict[str, str] = {}
    for first, second in itertools.pairwise(body):
        target = first.target if isinstance(first, ast.AnnAssign) else None
        if isinstance(first, ast.Assign):
            target = first.targets[0]
        if (
            isinstance(target, ast.Name)
            and isinstance(second, ast.Expr)
            and isinstance(second.value, ast.Constant)
        ):
            found[target.id] = inspect.cleandoc(str(second.value.value))
    return found


def hooks() -> Iterator[tuple[str, Callable[..., object]]]:
    """(name, function) of each hook, in the order of the module."""
    for name, value in vars(hookspecs).items():
        if name.startswith("polyfuse_") and callable(value):
            yield name, value


def api_page() -> str:
    """The public Python interface: packages, and the class of a backend."""
    lines = ["# Python API", "", NOTE, "", '`torch.compile(model, backend="polyfuse")` needs no import.', ""]
    for name in ("compile", "explain", "report", "metrics", "reset"):
        lines += _described(f"polyfuse.{name}", getattr(polyfuse, name), 2)
    lines += _described("polyfuse.interface.Metrics", Metrics, 2)
    lines += ["## `polyfuse.aot`", "", _first_paragraph(aot), ""]
    for name in aot.__all__:
        lines += _described(f"aot.{name}", getattr(aot, name), 3)
    lines += ["## `polyfuse.plugin`", "", _first_paragraph(plugin), ""]
    lines += ["| name | since | |", "|---|---|---|"]
    for name in plugin.__all__:
        lines.append(f"| `{name}` | {since(name)} | {_summary(getattr(plugin, name))} |")
    lines += ["", "Fields and methods are as old as their class unless it says otherwise below.", ""]
    lines += _later_members()
    lines += ["## `polyfuse.plugin.Backend`", "", inspect.getdoc(Backend) or "", "", *_attributes(Backend)]
    for name, value in vars(Backend).items():
        if callable(value) and not name.startswith("_"):
            lines += _described(f"Backend.{name}", value, 3)
            lines += [f"Since plugin interface {since(f'Backend.{name}')}.", ""]
    for title, names in _CLASSES.items():
        lines += [f"## {title}", ""]
        for name in names.split():
            lines += _described(f"plugin.{name}", getattr(plugin, name), 3)
    return "\n".join(lines)


_CLASSES = {
    "What a plugin says of itself": "Manifest Requires Offer Finding Codegen TargetInfo",
    "Nodes and expressions: what `claims` sees, and its answers": """
        Node LoopNode Pointwise Reduction Scan Scatter Expr DType ScalarOp ReductionKind
        Yes No""",
    "Kernels: what `emit` gets and returns": """
        Kernel KernelArg RowBuffer Section KernelPart Alias Load Store Constant IndexValue Cast Compute Random
        Reduce ScanStatement Source Config Launchable""",
    "Fusion rules and timers": "FusionRule FusionPair Timer HostTimer DeviceTimer",
    "Lowerings and rewrites": "Lowering LoweringContext TensorValue Rewrite RewriteContext",
    "Other implementations of calls": """
        Choice CallSite ExternCall ReplacementCalls TemplateSource Buffer View""",
    "Devices": """
        Device DeviceProperties Limits MemoryStatistics Event DeviceGraph GraphRecorder StreamRecorder""",
}
"""The classes that authors of plugins meet, by what they meet them for."""


def _summary(value: Any) -> str:
    """What a name is, in one sentence; empty for values that say nothing of themselves."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"`{value!r}`" if isinstance(value, (str, tuple)) else ""
    sentence = re.split(r"(?<=\w)[.:;] ", _first_paragraph(value) + " ")[0].strip()
    return f"{sentence.rstrip('.')}.".replace("|", "\\|")


def _later_members() -> list[str]:
    """The fields and methods that came after their classes."""
    later = [
        f"* `{name}`: since {version}"
        for name, version in _versions().items()
        if "." in name and version != since(name.partition(".")[0])
    ]
    return [*later, ""] if later else []


def _described(name: str, value: Any, level: int) -> list[str]:
    """A heading, the signature and the docstring, whose indented parts become code."""
    mark = " (must be written)" if getattr(value, "__isabstractmethod__", False) else ""
    lines = [f"{'#' * level} `{name}`{mark}", ""]
    if not inspect.isclass(value) or dataclasses.is_dataclass(value):
        lines += ["```text", _signature(name.rpartition(".")[2], value), "```", ""]
    lines += [*_sections(inspect.getdoc(value) or ""), ""]
    if inspect.isclass(value):
        lines += _attributes(value)
        for key in vars(value):
            method = inspect.getattr_static(value, key)
            if not isinstance(method, property):
                method = getattr(value, key)
            if not key.startswith("_") and method.__doc__ and hasattr(method, "__get__"):
                call = "" if isinstance(method, property) else _signature("", method).partition(" -> ")[0]
                lines += [f"* `{key}{' '.join(call.split())}`: {_first_paragraph(method)}"]
        lines.append("")
    return lines


def _attributes(owner: type) -> list[str]:
    """The attributes of a class that have a text below them."""
    found = [
        f"* `{name}`: {' '.join(text.split())}" for name, text in _remarks(owner).items() if name[0] != "_"
    ]
    return [*found, ""] if found else []


def _signature(name: str, value: Any) -> str:
    """The parameters, one a line where they are many."""
    found = inspect.signature(value)
    parameters: list[str] = []
    for item in found.parameters.values():
        if item.kind is item.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        if item.name != "self":
            default = "" if item.default is item.empty else f" = {item.default!r}"
            stars = {item.VAR_POSITIONAL: "*", item.VAR_KEYWORD: "**"}.get(item.kind, "")
            parameters.append(f"{stars}{item.name}: {item.annotation}{default}")
    end = "" if inspect.isclass(value) else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(parameters)}){end}"
    if len(line) <= 110:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){end}"])


def _sections(doc: str) -> list[str]:
    """A docstring with its `Args:`, `Attributes:` and `Raises:` as lists."""
    lines: list[str] = []
    inside = False
    for line in doc.splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises):", line):
            lines += [f"**{line[:-1]}**", ""]
            inside = True
        elif inside and re.match(r"    \S", line):
            name, _, rest = line.strip().partition(": ")
            lines.append(f"* `{name}`: {rest}" if rest else f"* {name}")
        else:
            inside = inside and (not line or line.startswith("    "))
            lines.append(line.strip() if not inside else f"  {line.strip()}".rstrip())
    return lines


def _first_paragraph(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api_page,
    "settings.md": settings_page,
    "hooks.md": hooks_page,
    "errors.md": errors_page,
    "scalar-ops.md": scalar_ops_page,
}


def _continued(line: str, before: list[str]) -> str:
    return f"  {line}" if line and before[-1].startswith(("- ", "  ")) else line


def _tree(error: type[errors.PolyfuseError], depth: int) -> Iterator[tuple[int, type[errors.PolyfuseError]]]:
    yield depth, error
    for child in sorted(error.__subclasses__(), key=lambda item: item.__name__):
        if child.__module__ == errors.__name__:
            yield from _tree(child, depth + 1)


def main() -> int:
    """Write all pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make().rstrip() + "\n", encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
